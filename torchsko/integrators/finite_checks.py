"""Detection of non-finite states in a rollout: step, sample and joint."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import (
    Fields,
    NonFiniteError,
    ShapeError,
    TorchskoError,
    caller_stack_level,
    unknown_name,
)
from torchsko.integrators.adaptive_steps import AdaptiveRungeKutta
from torchsko.integrators.limit_springs import takes_damping_implicitly
from torchsko.integrators.step import Step
from torchsko.mechanism.coordinates import scatter_dofs
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_coordinates, shared_batch
from torchsko.utils.concrete_values import concrete_values

NonFiniteChoice = Literal["warn", "raise", "zero", "ignore"]
"""Treatment of samples that leave the finite numbers; see `torchsko.rollout`."""


@dataclass(frozen=True)
class NonFinite:
    """The first state of a rollout that is not finite.

    Attributes:
        step: number of steps up to it; 0 is the start.
        sample: its index in the batch; () without batch dimensions.
        joint: name of the first joint whose position or velocity is not finite there.
        samples: number of samples of the batch that are not finite at the end.
    """

    step: int
    sample: tuple[int, ...]
    joint: str
    samples: int


def first_nonfinite(mech: MechanismLike, qs: Tensor, qds: Tensor) -> NonFinite | None:
    """Find the first non-finite state of a rollout. It reads values, so it waits for the device.

    Args:
        mech: the mechanism, or a layer.
        qs: configurations, `[*batch, steps + 1, num_q]`.
        qds: velocities, `[*batch, steps + 1, num_dof]`.

    Returns:
        The earliest such state, in the first of its samples; None if all are finite.

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism, or there is no dimension of steps.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(4)
        >>> qd[2, 5] = float("nan")
        >>> there = ts.rollout(arm, ts.State(q, qd), steps=3, nonfinite="ignore")
        >>> ts.integrators.first_nonfinite(arm, there.q, there.qd)
        NonFinite(step=0, sample=(2,), joint='joint6', samples=1)
    """
    robot = as_mechanism(mech)
    batch = shared_batch(check_coordinates(robot, qs=qs, qds=qds))
    if not batch:
        raise ShapeError(
            f"qs has shape {list(qs.shape)}.",
            "A trajectory has a dimension of steps, as ts.rollout returns it.",
            "Pass qs[None] and qds[None] for a single state.",
        )
    qs, qds = (x.detach().expand(*batch, x.shape[-1]) for x in (qs, qds))
    finite = qs.isfinite().all(-1) & qds.isfinite().all(-1)
    if bool(finite.all()):
        return None
    step = int((~finite).reshape(-1, finite.shape[-1]).any(0).nonzero()[0])
    sample = tuple((~finite[..., step]).nonzero()[0].tolist())
    q, rates = qs[*sample, step], scatter_dofs(robot, qds[*sample, step])
    joint = next(
        name
        for name in robot.joint_names
        if not (
            q[robot.q_slice(name)].isfinite().all()
            & rates[robot.tree_dof_slice(name)].isfinite().all()
        )
    )
    return NonFinite(step, sample, joint, int((~finite[..., -1]).sum()))


def check_nonfinite(nonfinite: Any) -> None:
    """Check the choice of `torchsko.rollout`."""
    if nonfinite not in get_args(NonFiniteChoice):
        raise TorchskoError(*unknown_name("nonfinite", nonfinite, get_args(NonFiniteChoice)))


def report_nonfinite(
    mech: Mechanism,
    qs: Tensor,
    qds: Tensor,
    dt: float,
    every: int,
    nonfinite: NonFiniteChoice,
    step: Step,
) -> None:
    """Warn, or raise an error, if a rollout is not finite."""
    if nonfinite == "ignore":
        return
    if nonfinite != "raise":
        # Non-finite values persist, so the last state suffices.
        ends = [concrete_values(x[..., -1, :]) for x in (qs, qds)]
        if all(x is None or np.isfinite(x).all() for x in ends):
            return
    first = first_nonfinite(mech, qs, qds)
    if first is None:
        return
    what, why, advice = _fields(
        mech, replace(first, step=every * first.step), dt, qs.shape[:-2], step
    )
    if nonfinite == "raise":
        raise NonFiniteError(what, why, advice)
    if nonfinite == "zero":
        why += " The gradient of such a sample is zero."
    warnings.warn("\n".join((what, why, advice)), RuntimeWarning, stacklevel=caller_stack_level())


def _fields(mech: Mechanism, first: NonFinite, dt: float, batch: torch.Size, step: Step) -> Fields:
    """Fault, reason and advice of the message."""
    where = f" of sample {list(first.sample)} ({first.samples} such in the batch)" if batch else ""
    if first.step == 0:
        return (
            f"the start{where} of the rollout of {mech.name!r} is not finite, at joint {first.joint!r}.",
            "All later states are nan.",
            "Pass a finite q and qd.",
        )
    what = (
        f"the rollout of {mech.name!r} is not finite at step {first.step} "
        f"(t = {first.step * dt:.6g} s), at joint {first.joint!r}{where}."
    )
    if isinstance(step, AdaptiveRungeKutta):
        why = (
            f"{step.substeps} sub-steps were too few for errors below {step.tolerance:.3g}, or the control "
            "is not finite."
        )
        advice = (
            f"Try substeps={4 * step.substeps}, tolerance={100 * step.tolerance:.3g}, or dt={dt / 4:.3g}; "
            'with dry friction, method="semi_implicit_euler"'
        )
    else:
        why = "The time step is too long for the motion or the stiffness, or the control is not finite."
        if mech.closing is not None:
            why += (
                " A loop that cannot be closed after a step gives nan as well: see ts.close_loops."
            )
        limits = ", or limits=ts.integrators.LimitSprings()"
        advice = (
            f"Try dt={dt / 4:.3g}, damping or armature at the joint, lower gains, "
            f'effort="clamp"{limits if takes_damping_implicitly(step) else ""}'
        )
    return (
        what,
        why,
        f'{advice}. nonfinite="raise" raises an error instead, "ignore" disables the check.',
    )
