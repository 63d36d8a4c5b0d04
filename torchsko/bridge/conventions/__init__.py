"""Conversion between coordinates of torchsko and of other libraries."""
