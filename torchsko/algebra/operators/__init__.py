"""Blocks, edge weights and joint maps, models, and the operators they make."""
