"""Derivatives of what an equation defines: forward dynamics, and whatever else is found by solving."""
