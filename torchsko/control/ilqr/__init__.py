"""Optimal control by iterative LQR and Newton's method."""
