"""Methods as values: stages, what combines them, and what describes them."""
