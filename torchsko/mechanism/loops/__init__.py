"""Constraints of a mechanism: motion of subtrees, constraint rows, loops and their coordinates."""
