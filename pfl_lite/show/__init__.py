<<<<<<< HEAD
"""What is shown: tables as text, figures, explorers, and the pieces of the chapters that read the ledger."""
=======
"""What readers see of methods and runs: the story's offices, the methods' cards, the ideas' pictures, the playgrounds."""
>>>>>>> f494dab (Draw a card for every method from one short entry, and show it in chapter, glossary and map)
