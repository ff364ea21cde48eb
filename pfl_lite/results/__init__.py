"""What runs come to: the ledger, what is missing, the runner, tables, verdicts, and care of the files."""
