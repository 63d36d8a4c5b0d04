"""Recursions over trees: Lyapunov, Riccati, and the factors that follow from them."""
