"""Scalar programs: the expression graph, its simplification and the program it becomes."""
