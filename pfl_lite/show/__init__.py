"""What readers see: tables as text, figures, explorers and playgrounds, the methods' cards, the pieces of the chapters' pages."""
