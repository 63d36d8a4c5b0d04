"""Exciting trajectories."""
