"""Event location: stop samples of a rollout where a function of the state crosses zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.errors import ShapeError, TorchskoError
from torchsko.integrators.argument_checks import accepts_arguments
from torchsko.mechanism.configuration import add_step, subtract
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.state import check_coordinates
from torchsko.utils.shapes import broadcast_shapes

Event = Callable[[Tensor, Tensor], Tensor]
"""Maps (q, qd) with any batch dimensions to a number for each state, `[*batch]`."""


class EventResult(NamedTuple):
    """A rollout whose samples stop at an event.

    Attributes:
        q: configurations, constant from the event on, `[*batch, steps + 1, num_q]`.
        qd: velocities, constant from the event on, `[*batch, steps + 1, num_dof]`.
        time: of the event, in rows of q from the start; that of the last row without an event, `[*batch]`. It
            is differentiable, and so are the states at the event.
        happened: whether there was an event, `[*batch]`.
    """

    q: Tensor
    qd: Tensor
    time: Tensor
    happened: Tensor

    @property
    def lengths(self) -> Tensor:
        """Number of rows after the start up to the one behind the event or the last, integers `[*batch]`."""
        return (self.time.detach().floor() + 1).clamp(max=self.q.shape[-2] - 1).long()


def stop_at(mech: MechanismLike, qs: Tensor, qds: Tensor, event: Event) -> EventResult:
    """Stop each sample of a rollout where a function of its state first crosses zero from above.

    The time follows from linear interpolation of the function between two states, with second-order error in
    the step. The state is interpolated linearly in tangent coordinates. Time and state depend on the states
    of the rollout by the implicit equation, and their derivatives have first-order error. An event that
    begins and ends within a step is not detected.

    The part of the rollout after the event has zero gradient. If it is not finite there, zero times its
    derivative is nan. Then repeat the rollout with ``lengths=every * found.lengths``, and stop that one at
    the event.

    Args:
        mech: the mechanism.
        qs: configurations, `[*batch, rows, num_q]`, of `torchsko.rollout`.
        qds: velocities, `[*batch, rows, num_dof]`.
        event: positive before the event, zero or negative after it. It is evaluated for all rows at once:
            parameters that differ by sample, such as the height of the ground, have the shape `[*batch, 1]`.

    Returns:
        See `EventResult`.

    Raises:
        ShapeError: when the states do not fit the mechanism or each other, there are fewer than two rows, or
            the event does not return a number for each state.
        TorchskoError: on an event with other arguments.

    Example:
        >>> import torchsko as ts, torch
        >>> builder = ts.MechanismBuilder("ball")
        >>> _ = builder.link("ball", mass=1.0, inertia=torch.eye(3).tolist())
        >>> _ = builder.joint("fall", "prismatic", child="ball", axis=(0, 0, 1))
        >>> ball = builder.build()
        >>> start = torch.tensor([1.0]).double()
        >>> state = ts.State(start, 0 * start)
        >>> there = ts.rollout(ball, state, steps=100, dt=0.01, method="rk4")
        >>> found = ts.integrators.stop_at(ball, there.q, there.qd, lambda q, qd: q[..., 0])
        >>> round(0.01 * found.time.item(), 4), found.happened.item()
        (0.4515, True)
    """
    robot = as_mechanism(mech)
    batches = check_coordinates(robot, qs=qs, qds=qds).values()
    qs, qds = (x.expand(*broadcast_shapes(*batches), x.shape[-1]) for x in (qs, qds))
    if not (callable(event) and accepts_arguments(event, 2)):
        name = getattr(event, "__name__", type(event).__name__)
        raise TorchskoError(
            f"event is {name}, which cannot be called with q and qd.",
            "An event maps states to numbers that are positive before the event.",
            "Pass a function such as lambda q, qd: q[..., 0], or an instance instead of a class.",
        )
    # Detached, since gradients of states that are not finite would be nan.
    value = _evaluate_event(event, qs.detach(), qds.detach())
    rows = value.shape[-1]
    crossed = (value[..., :-1] > 0) & (value[..., 1:] <= 0)
    index = torch.arange(rows - 1, device=value.device)
    step = torch.where(crossed, index, torch.full_like(index, rows - 1)).amin(-1)
    happened = step < rows - 1
    before = torch.where(happened, step, torch.zeros_like(step))[..., None]

    def at(x: Tensor, row: Tensor) -> Tensor:
        index = row[..., None].expand(*row.shape, x.shape[-1])
        return x.gather(-2, index)[..., 0, :]

    (q, q_next), (qd, qd_next) = ((at(x, before), at(x, before + 1)) for x in (qs, qds))
    g, g_next = _evaluate_event(
        event, torch.stack([q, q_next], -2), torch.stack([qd, qd_next], -2)
    ).split(1, -1)
    gap = torch.where(happened[..., None], g - g_next, torch.ones_like(g))
    fraction = torch.where(happened[..., None], g / gap, torch.zeros_like(g))
    q_event = add_step(robot, q, fraction * subtract(robot, q, q_next))
    qd_event = qd + fraction * (qd_next - qd)
    after = (torch.arange(rows, device=value.device) > step[..., None])[..., None]
    time = torch.where(
        happened, before[..., 0] + fraction[..., 0], torch.full_like(g[..., 0], rows - 1)
    )
    return EventResult(
        torch.where(after, q_event[..., None, :], qs),
        torch.where(after, qd_event[..., None, :], qds),
        time,
        happened,
    )


def _evaluate_event(event: Event, qs: Tensor, qds: Tensor) -> Tensor:
    """Evaluate the event for each state, `[*batch, rows]`."""
    rows = qs.shape[-2] if qs.ndim > 1 else 1
    if rows < 2:
        raise ShapeError(
            f"the rollout has {rows} states.",
            "An event lies between two of them.",
            "Pass a rollout of at least one step, such as steps=100.",
        )
    value, shape = event(qs, qds), qs.shape[:-1]
    if not isinstance(value, Tensor) or value.shape != shape or not value.is_floating_point():
        kind = type(value).__name__
        if isinstance(value, Tensor):
            kind = f"{value.dtype} of shape {list(value.shape)}"
        raise ShapeError(
            f"the event returned {kind} for states of the batch shape {list(shape)}.",
            "It returns one floating-point number for each state.",
            "Return q[..., 0] or (x * x).sum(-1), say, without the last dimension.",
        )
    return value
