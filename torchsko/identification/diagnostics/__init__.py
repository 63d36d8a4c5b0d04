"""Checks of logs and fits, and the lists in which they run."""
