"""Where samples of a rollout stop: where a function of the state crosses zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.errors import ShapeError, TorchskoError
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.joints.configuration import add_step, subtract
from torchsko.mechanism.state import check_coordinates
from torchsko.rollout.argument_checks import accepts_arguments
from torchsko.utils.shapes import broadcast_shapes

Event = Callable[[Tensor, Tensor], Tensor]
"""(q, qd), with any batch dimensions in front, to a number for each state, `[*batch]`."""


class EventResult(NamedTuple):
    """A rollout of which each sample stops at an event.

    Attributes:
        q: configurations, that of the event from it on, `[*batch, steps + 1, num_q]`.
        qd: velocities likewise, `[*batch, steps + 1, num_dof]`.
        time: of the event, in units of the rows of q from the start; of the last row without one,
            `[*batch]`. Differentiable, and so are the states there.
        happened: whether there was one, `[*batch]`.
    """

    q: Tensor
    qd: Tensor
    time: Tensor
    happened: Tensor

    @property
    def lengths(self) -> Tensor:
        """Rows after the start up to that behind the event, or to the last, integers `[*batch]`."""
        return (self.time.detach().floor() + 1).clamp(max=self.q.shape[-2] - 1).long()


def stop_at(mech: MechanismLike, qs: Tensor, qds: Tensor, event: Event) -> EventResult:
    """Stop each sample of a rollout where a function of its state first falls through zero.

    The place between two states follows from the function's values at both, to second order in the step; the
    state there is on the line between them, in tangent coordinates. It depends on the states by the
    equation that defines it, and so do its derivatives, to first order in the step. No event is seen that
    comes and goes within a step.

    What the rollout does after the event has a gradient of zero; where it leaves the finite numbers there,
    zero times its derivative is nan. Then roll out again with ``lengths=every * found.lengths``, and
    stop that one at the event.

    Args:
        mech: the mechanism.
        qs: configurations, `[*batch, rows, num_q]`, of `torchsko.rollout`.
        qds: velocities, `[*batch, rows, num_dof]`.
        event: positive before the event, not so after it. It is asked of all rows at once: what is another
            number for each sample, such as the height of its ground, it reads as `[*batch, 1]`.

    Returns:
        See `EventResult`.

    Raises:
        ShapeError: when the states do not fit the mechanism or each other, there is no step between
            them, or the event gives no number for each.
        TorchskoError: on an event that takes other arguments.

    Example:
        >>> import torchsko as ts, torch
        >>> from torchsko.rollout.event_location import stop_at
        >>> builder = ts.MechanismBuilder("ball")
        >>> _ = builder.link("ball", mass=1.0, inertia=torch.eye(3).tolist())
        >>> _ = builder.joint("fall", "prismatic", child="ball", axis=(0, 0, 1))
        >>> ball = builder.build()
        >>> start = torch.tensor([1.0]).double()
        >>> qs, qds = ts.rollout(ball, start, 0 * start, steps=100, dt=0.01, method="rk4")
        >>> found = stop_at(ball, qs, qds, lambda q, qd: q[..., 0])
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
            "It gives a number for each state, more than 0 before the event.",
            "Pass a function such as lambda q, qd: q[..., 0]; an object, not its class.",
        )
    # Looked for without gradients, which of states that are not finite would be nan.
    value = _evaluate_event(event, qs.detach(), qds.detach())
    rows = value.shape[-1]
    crossed = (value[..., :-1] > 0) & (value[..., 1:] <= 0)
    place = torch.arange(rows - 1, device=value.device)
    step = torch.where(crossed, place, torch.full_like(place, rows - 1)).amin(-1)
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
    share = torch.where(happened[..., None], g / gap, torch.zeros_like(g))
    there = add_step(robot, q, share * subtract(robot, q, q_next))
    speed = qd + share * (qd_next - qd)
    after = (torch.arange(rows, device=value.device) > step[..., None])[..., None]
    time = torch.where(
        happened, before[..., 0] + share[..., 0], torch.full_like(g[..., 0], rows - 1)
    )
    return EventResult(
        torch.where(after, there[..., None, :], qs),
        torch.where(after, speed[..., None, :], qds),
        time,
        happened,
    )


def _evaluate_event(event: Event, qs: Tensor, qds: Tensor) -> Tensor:
    """The event's numbers, one for each state, `[*batch, rows]`."""
    rows = qs.shape[-2] if qs.ndim > 1 else 1
    if rows < 2:
        raise ShapeError(
            f"the rollout has {rows} states.",
            "An event lies between two of them.",
            "Pass the states of a rollout of one step at least: steps=100, say.",
        )
    value, shape = event(qs, qds), qs.shape[:-1]
    if not isinstance(value, Tensor) or value.shape != shape or not value.is_floating_point():
        found = (
            f"{value.dtype} of shape {list(value.shape)}"
            if isinstance(value, Tensor)
            else type(value).__name__
        )
        raise ShapeError(
            f"the event returned {found} for states of the batch shape {list(shape)}.",
            "It gives one number for each state, more than 0 before the event.",
            "Return q[..., 0] or (x * x).sum(-1), say, without the last dimension.",
        )
    return value
