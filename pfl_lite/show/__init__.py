"""What is shown: tables as text, figures, explorers, and the pieces of the chapters that read the ledger."""
