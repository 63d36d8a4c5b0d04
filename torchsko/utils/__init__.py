"""Helpers: shapes, dtypes, concrete values, optional dependencies, atomic writes and interrupts."""
