"""Instruction order, chunks, scratch slots and tuning parameters of generated code."""
