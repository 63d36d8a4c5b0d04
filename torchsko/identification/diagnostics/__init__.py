"""Checks of logs and fits."""
