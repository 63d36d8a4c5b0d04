"""Instruction order and memory layout of a program."""
