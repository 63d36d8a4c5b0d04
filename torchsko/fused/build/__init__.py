"""Compilers, compiled libraries and their cache on disk."""
