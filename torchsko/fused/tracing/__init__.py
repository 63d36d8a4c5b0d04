"""Symbolic tensors, and the tracer that turns eager functions into scalar programs."""
