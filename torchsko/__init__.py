"""Multibody dynamics as a PyTorch layer, on spatial kernel operator models."""
