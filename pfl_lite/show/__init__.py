"""What readers see: tables as text, figures, explorers, the story's offices, the pieces of the chapters' pages."""
