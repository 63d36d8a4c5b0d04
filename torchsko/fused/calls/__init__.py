"""Compiled kernels as functions of tensors."""
