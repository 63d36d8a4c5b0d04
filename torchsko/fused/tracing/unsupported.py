"""Errors for operations that cannot be traced, with advice on replacements."""

from __future__ import annotations

from typing import Any

from torchsko.errors import FusedError

READS_VALUES = frozenset("_local_scalar_dense is_nonzero equal nonzero".split())
"""ATen operations that read the value of a tensor."""

_RUN_EAGERLY = "or run the function without ts.fuse or fused=True."


def unsupported_operation(func: Any, name: str) -> FusedError:
    """The error for an ATen operation without a rule.

    Args:
        func: the operation.
        name: its name; "recorded" for an operation within make_fx, "out" for one with an ``out`` argument.
    """
    if name == "recorded":
        return FusedError(
            f"{func} is recorded by make_fx, as in torch.func.linearize, within the traced function.",
            "The record would contain traced values as constants.",
            "Take the derivative by torch.func.jvp, jacfwd or vjp.",
        )
    what = f"{func} has no rule for tracing to a scalar program."
    if name == "out":
        why = "It writes its result into out=."
        return FusedError(what, why, "Use the returned tensor, as in z = torch.mul(x, y).")
    if name in READS_VALUES:
        why = "It reads a value, which is not known while tracing."
        advice = "Replace branches on values by torch.where, and do not call .item()."
        return FusedError(what, why, advice)
    if name == "as_strided":
        return FusedError(what, "", "Use view, expand, select or index_select.")
    if "pinv" in name:
        return FusedError(
            what,
            "It computes eigenvalues, which need a number of iterations that depends on the values.",
            "For a pseudo-inverse solve with J @ J.mT + damping * identity. For the impedance or the "
            'operational-space inertia pass for example singular=("damped", 1e-4).',
        )
    if "linalg" in name or "cholesky" in name or name.startswith("lu_"):
        advice = "Use torch.linalg.solve, inv, det, lu_factor, cholesky or solve_triangular, "
        return FusedError(what, "", advice + _RUN_EAGERLY)
    return FusedError(what, "", "Use other operations, " + _RUN_EAGERLY)


def unsupported_by_functorch(error: RuntimeError) -> FusedError | None:
    """The error for a function that torch.func or a dispatch mode refuses; None if the cause is another."""
    if "setup_context" in str(error):
        return FusedError(
            "the gradient passes through a torch.autograd.Function without setup_context: one of the "
            "function, a backward hook of a module, or torch.utils.checkpoint(use_reentrant=True).",
            "Gradients of kernels are traced by torch.func, which requires setup_context.",
            "Split its forward into forward and setup_context, register the hook on a tensor, remove "
            "checkpoints (kernels save no tape), or do not fuse the function.",
        )
    if "saved tensor hooks" in str(error):
        return FusedError(
            "the function uses torch.utils.checkpoint or other saved-tensor hooks.",
            "Gradients of kernels are traced by torch.func, which does not support them. Kernels save no "
            "tape, so checkpoints gain nothing.",
            "Call the function directly: self.net(x).",
        )
    if "HigherOrderOperator" in str(error):
        return FusedError(
            "the function calls torch.cond, while_loop, scan, map or another higher-order operator.",
            "Kernels are straight-line code, with loops made by ts.iterate.",
            "Write ts.iterate(body, carry, n, args, until=...) for a loop and torch.where for a branch.",
        )
    return None
