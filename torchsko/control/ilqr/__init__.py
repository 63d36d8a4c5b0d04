"""Optimal control by iterative LQR."""
