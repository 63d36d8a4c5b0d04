"""What to do instead of an operation that cannot be traced."""

from __future__ import annotations

from typing import Any

READS_VALUES = frozenset("_local_scalar_dense is_nonzero equal nonzero".split())
"""Operations that ask for a number."""


def refusal(func: Any, name: str) -> str:
    """Why an ATen operation of a name has no rule, and what to type."""
    if name == "recorded":
        return (
            f"{func} is recorded by make_fx, as in torch.func.linearize, within the traced function.\n"
            "The record would hold values that are not known while tracing as constants.\n"
            "Take the derivative by torch.func.jvp, jacfwd or vjp."
        )
    if name == "out":
        advice = "It writes its result into out=: use what it returns, as in z = torch.mul(x, y)."
    elif name in READS_VALUES:
        advice = (
            "It reads a value, which is not known while tracing: replace branches on values by "
            "torch.where and keep .item() out."
        )
    elif name == "as_strided":
        advice = "Use view, expand, select or index_select, which say what they mean."
    elif "pinv" in name:
        advice = (
            "It takes eigenvalues, which no fixed sequence of operations gives: for a pseudo-inverse solve "
            "J @ J.mT + damping * identity.\n"
            'Of impedance, or an operational-space inertia, pass singular=("damped", 1e-4), say.'
        )
    elif "linalg" in name or "cholesky" in name or name.startswith("lu_"):
        advice = (
            "torch.linalg.solve, inv, det, lu_factor, cholesky and solve_triangular have rules: write it "
            "with these, or run the function as it is: do not fuse it, or leave fused=True out."
        )
    else:
        advice = (
            "Write it with other operations, or run the function as it is: do not fuse it, or leave "
            "fused=True out."
        )
    return f"{func} has no rule for tracing to a scalar program.\n{advice}"


def refused_by_torch(error: RuntimeError) -> str | None:
    """What to do where torch refuses what a function does: a mode, or torch.func, which traces gradients."""
    if "setup_context" in str(error):
        return (
            "gradients meet a torch.autograd.Function without setup_context within the function: one of "
            "yours, a module's backward hook, or torch.utils.checkpoint(use_reentrant=True).\n"
            "Gradients of kernels are traced by torch.func, which takes none that is written so.\n"
            "Split its forward into forward and setup_context, put the hook on a tensor, keep checkpoints "
            "out (kernels hold no tape), or do not fuse the function."
        )
    if "saved tensor hooks" in str(error):
        return (
            "torch.utils.checkpoint, or other hooks of what autograd saves, are used within the function.\n"
            "Gradients of kernels are traced by torch.func, which takes none; kernels hold no tape anyway.\n"
            "Call what is checkpointed itself: self.net(x)."
        )
    if "HigherOrderOperator" in str(error):
        return (
            "torch.cond, while_loop, scan, map or another operator that takes functions is called within the "
            "function.\nA kernel is a straight line, with loops that ts.loop makes.\n"
            "Write ts.loop(body, carry, n, args, until=...) for a loop, torch.where for a choice."
        )
    return None
