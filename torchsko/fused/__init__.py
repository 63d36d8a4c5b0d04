"""Fused kernels: eager torchsko functions traced to scalar programs and compiled to one loop."""
