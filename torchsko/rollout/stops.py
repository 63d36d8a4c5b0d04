"""Where samples of a rollout end: after so many steps, or where a function of the state crosses zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.errors import ShapeError
from torchsko.mechanism.joints.configuration import apart, moved
from torchsko.mechanism.verb import MechanismLike, as_mechanism
from torchsko.rollout.again import is_mapped

Event = Callable[[Tensor, Tensor], Tensor]
"""(q, qd), with any batch dimensions in front, to a number for each state, `[*batch]`."""


class Stopped(NamedTuple):
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


def cut(qs: Tensor, qds: Tensor, lengths: Tensor, every: int = 1) -> tuple[Tensor, Tensor]:
    """A rollout of which each sample stays where it is after a number of steps.

    Args:
        qs: configurations, `[*batch, rows, num_q]`.
        qds: velocities, `[*batch, rows, num_dof]`.
        lengths: steps of each sample, integers `[*batch]`.
        every: steps from row to row; lengths between rows end at the row before.

    Returns:
        Both; gradients are those of the states kept.

    Raises:
        ShapeError: when lengths do not fit.
    """
    batch, rows = qs.shape[:-2], qs.shape[-2]
    fits = not (lengths.is_floating_point() or lengths.dtype == torch.bool)
    if not fits or torch.broadcast_shapes(lengths.shape, batch) != batch:
        raise ShapeError(
            f"lengths are {lengths.dtype} of shape {list(lengths.shape)}, the batch is {list(batch)}.\n"
            "Each sample takes a whole number of steps.\n"
            f"Pass integers of shape {list(batch)}."
        )
    # Values are read where no device has to be waited for, and no transform hides them.
    if (
        lengths.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not is_mapped(lengths)
    ):
        steps = (rows - 1) * every
        if (
            lengths.numel()
            and not 0 <= int(lengths.min()) <= int(lengths.max()) <= steps + every - 1
        ):
            raise ShapeError(
                f"lengths go from {int(lengths.min())} to {int(lengths.max())}, the rollout has {steps} "
                "steps.\nEach sample takes some of them.\n"
                f"Pass lengths.clamp(0, {steps}), or more steps."
            )
    last = torch.div(lengths, every, rounding_mode="floor").expand(batch)[..., None]
    row = torch.minimum(torch.arange(rows, device=qs.device).expand(*batch, rows), last)
    return tuple(x.gather(-2, row[..., None].expand_as(x)) for x in (qs, qds))  # type: ignore


def stop_at(mech: MechanismLike, qs: Tensor, qds: Tensor, event: Event) -> Stopped:
    """Stop each sample of a rollout where a function of its state first falls through zero.

    The place between two states follows from the function's values at both, to second order in the step; the
    state there is on the line between them, in tangent coordinates. It depends on the states by the
    equation that defines it, and so do its derivatives. No event is seen that comes and goes within a step.

    Args:
        mech: the mechanism.
        qs: configurations, `[*batch, rows, num_q]`, of `torchsko.rollout`.
        qds: velocities, `[*batch, rows, num_dof]`.
        event: positive before the event, not so after it.

    Returns:
        See `Stopped`.

    Example:
        >>> import torchsko as ts, torch
        >>> from torchsko.rollout.stops import stop_at
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
    value = event(qs, qds)
    rows = value.shape[-1]
    crossed = (value[..., :-1] > 0) & (value[..., 1:] <= 0)
    place = torch.arange(rows - 1, device=value.device)
    step = torch.where(crossed, place, torch.full_like(place, rows - 1)).amin(-1)
    happened = step < rows - 1
    before = torch.where(happened, step, torch.zeros_like(step))[..., None]

    def at(x: Tensor, row: Tensor) -> Tensor:
        index = row[..., None].expand(*row.shape, x.shape[-1])
        return x.gather(-2, index)[..., 0, :]

    (g, g_next), (q, q_next), (qd, qd_next) = (
        (at(x, before), at(x, before + 1)) for x in (value[..., None], qs, qds)
    )
    gap = torch.where(happened[..., None], g - g_next, torch.ones_like(g))
    share = torch.where(happened[..., None], g / gap, torch.zeros_like(g))
    there = moved(robot, q, share * apart(robot, q, q_next))
    speed = qd + share * (qd_next - qd)
    after = (torch.arange(rows, device=value.device) > step[..., None])[..., None]
    time = torch.where(
        happened, before[..., 0] + share[..., 0], torch.full_like(g[..., 0], rows - 1)
    )
    return Stopped(
        torch.where(after, there[..., None, :], qs),
        torch.where(after, speed[..., None, :], qds),
        time,
        happened,
    )
