"""Kernels as differentiable PyTorch functions, and scans of them."""
