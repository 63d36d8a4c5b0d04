"""Kernels as differentiable PyTorch functions."""
