"""Shapes, dtypes, optional dependencies, atomic writes and interrupts."""
