"""Captured tensors and Python values of traced functions."""
