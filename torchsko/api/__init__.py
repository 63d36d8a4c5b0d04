"""The public surface: the table of verbs."""
