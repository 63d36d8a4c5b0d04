"""State of a simulation, and the reset of samples of a batch."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from torchsko.errors import ShapeError
from torchsko.utils.shapes import are_broadcastable, broadcast_shapes, is_expandable


class State(NamedTuple):
    """State of a simulation: a named tuple of tensors with one batch shape.

    ``torch.where`` over the fields, `torch.utils._pytree`, torch.func, torch.compile and
    ``torch.load(weights_only=True)`` support it. `torchsko.initial_state` returns the state at the start of a
    robot, and `torchsko.reset` resets samples of a batch.

    Attributes:
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        act: activations of actuators, `[*batch, m]`, or `[*batch, 1]` for the same value of all; by default
            zeros `[*batch, 1]`.
        t: time [s], `[*batch]`; a number is expanded, by default 0.
        warmstart: acceleration from which the solver starts, `[*batch, num_dof]`; without gradients. By
            default zeros.
        residual: largest error of the equations of motion in the last step, `[*batch]` [N m or N]; by default
            zeros.

    Example:
        >>> import torch, torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> state = ts.State(*arm.random_state(4))
        >>> [list(x.shape) for x in state]
        [[4, 7], [4, 7], [4, 1], [4], [4, 7], [4]]
    """

    q: Tensor
    qd: Tensor
    act: Tensor = cast(Tensor, None)
    t: Tensor = cast(Tensor, 0.0)
    warmstart: Tensor = cast(Tensor, None)
    residual: Tensor = cast(Tensor, None)


def _new_state(
    cls: type[State],
    q: Tensor,
    qd: Tensor,
    act: Tensor | None = None,
    t: Tensor | float = 0.0,
    warmstart: Tensor | None = None,
    residual: Tensor | None = None,
) -> State:
    """A state whose missing fields are zero."""
    if isinstance(q, Tensor) and isinstance(qd, Tensor):  # not a tree of other leaves
        lead, other = q.shape[:-1], qd.shape[:-1]
        batch = broadcast_shapes(lead, other) if are_broadcastable(lead, other) else lead
        act = q.new_zeros(*batch, 1) if act is None else act
        t = q.new_full(batch, t) if isinstance(t, int | float) else t
        warmstart = q.new_zeros(*batch, qd.shape[-1]) if warmstart is None else warmstart
        residual = q.new_zeros(batch) if residual is None else residual
    return tuple.__new__(cls, (q, qd, act, t, warmstart, residual))


# The body of a NamedTuple cannot define __new__, and torch.compile returns empty tuples of its subclasses.
State.__new__ = _new_state
torch.serialization.add_safe_globals([State])


def reset(state: State, mask: Tensor, start: State) -> State:
    """Reset samples of a batch: each field of the masked samples is that of another state.

    Nothing of a reset sample is left, also if it is not finite: neither activations, time, warm start nor
    residual. A loss that depends on the result has zero gradients to the reset samples of ``state``.

    Args:
        state: the state, `[*batch, ...]`.
        mask: samples to reset, bool `[*batch]`.
        start: the state after a reset, such as `torchsko.initial_state`, whose batch dimensions broadcast
            with the mask.

    Returns:
        The state with the other samples unchanged.

    Raises:
        ShapeError: when the mask is not a bool tensor, or its shape does not fit the state.

    Example:
        >>> import torch, torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> state = ts.State(*arm.random_state(3))
        >>> state.qd[1] = float("nan")
        >>> state = ts.reset(state, ~state.qd.isfinite().all(-1), ts.initial_state(arm))
        >>> bool(state.qd.isfinite().all())
        True
    """
    for name, x in (("state", state), ("start", start)):
        check_is_state(name, x, "ts.reset(state, mask, start)")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = f"of {mask.dtype}" if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
        raise ShapeError(
            f"the mask of a reset is {kind}.",
            "It selects samples.",
            "Pass a bool tensor [*batch], such as ~state.qd.isfinite().all(-1).",
        )
    batch = state.q.shape[:-1]
    if not is_expandable(tuple(mask.shape), tuple(batch)):
        raise ShapeError(
            f"the mask of a reset has shape {list(mask.shape)}, the state has the batch {list(batch)}.",
            "It has one entry for each sample.",
            f"Pass a bool tensor of shape {list(batch)}.",
        )
    rows = mask.expand(batch)
    fields = []
    for name, rank in RANKS.items():
        x, y = getattr(state, name), getattr(start, name)
        fields.append(torch.where(rows[(..., *[None] * rank)], y, x))
    return State(*fields)


RANKS = {"q": 1, "qd": 1, "act": 1, "t": 0, "warmstart": 1, "residual": 0}
"""Numbers of dimensions of the fields of a state without a batch."""


def check_is_state(name: str, x: object, call: str) -> None:
    """Refuse anything but a `State`.

    Raises:
        ShapeError: names the argument and its type.
    """
    if isinstance(x, State):
        return
    raise ShapeError(
        f"{name} was given as {type(x).__name__}.",
        "The state of a simulation is a ts.State.",
        f"Pass {name}=ts.State(q, qd), as in {call}.",
    )
