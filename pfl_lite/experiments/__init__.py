"""The tables and figures of the papers as data, the ledger of runs, and what is computed from it."""
