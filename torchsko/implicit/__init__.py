"""Differentiation of implicitly defined functions and of loops, without a tape of their iterations.

* `torchsko.implicit.equation`: the solution of an equation, with derivatives by the implicit function
  theorem.
* `torchsko.implicit.loop`: loops that stay loops in kernels, with derivatives that are loops.
* `torchsko.implicit.jacobian_products`: VJP and JVP as functions.
"""
