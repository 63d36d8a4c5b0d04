"""Verbs: the functions that users call on a mechanism."""
