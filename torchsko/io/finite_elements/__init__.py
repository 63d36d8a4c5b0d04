"""Readers of the results of finite-element programs."""
