"""Scalar programs: expression graph, arithmetic rules, simplification and lowering."""
