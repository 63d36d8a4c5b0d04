"""Tracing of eager functions to scalar programs."""
