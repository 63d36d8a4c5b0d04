"""Whether a rollout stayed finite, and where it did not: step, sample and joint."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import NonFiniteError, ShapeError, caller_stack_level
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_coordinates, shared_batch
from torchsko.rollout.adaptive_steps import AdaptiveRungeKutta
from torchsko.rollout.limit_springs import takes_damping_implicitly
from torchsko.rollout.step import Step
from torchsko.utils.concrete_values import concrete_values


@dataclass(frozen=True)
class NonFinite:
    """The first state of a rollout that is not finite.

    Attributes:
        step: how many steps lead to it; 0 is the start.
        sample: its place in the batch; () without batch dimensions.
        joint: name of the first joint whose position or velocity is not finite there.
        samples: how many samples of the batch are not finite at the end.
    """

    step: int
    sample: tuple[int, ...]
    joint: str
    samples: int


def first_nonfinite(mech: MechanismLike, qs: Tensor, qds: Tensor) -> NonFinite | None:
    """Where a rollout left the finite numbers. Reads values, so it waits for the device.

    Args:
        mech: the mechanism, or a layer.
        qs: configurations, `[*batch, steps + 1, num_q]`.
        qds: velocities, `[*batch, steps + 1, num_dof]`.

    Returns:
        The earliest such state, in the first of the samples that have one then; None where all are
        finite.

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism, or there is no dimension of steps.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(4)
        >>> qd[2, 5] = float("nan")
        >>> ts.first_nonfinite(arm, *ts.rollout(arm, q, qd, steps=3, check=False))
        NonFinite(step=0, sample=(2,), joint='joint6', samples=1)
    """
    robot = as_mechanism(mech)
    batch = shared_batch(check_coordinates(robot, qs=qs, qds=qds))
    if not batch:
        raise ShapeError(
            f"qs has shape {list(qs.shape)}.",
            "A trajectory has a state for each step, one row after the other, as ts.rollout gives it.",
            "Pass both with a dimension of steps: qs[None], qds[None].",
        )
    qs, qds = (x.detach().expand(*batch, x.shape[-1]) for x in (qs, qds))
    good = qs.isfinite().all(-1) & qds.isfinite().all(-1)
    if bool(good.all()):
        return None
    step = int((~good).reshape(-1, good.shape[-1]).any(0).nonzero()[0])
    sample = tuple((~good[..., step]).nonzero()[0].tolist())
    q, qd = qs[*sample, step], qds[*sample, step]
    joint = next(
        name
        for name in robot.joint_names
        if not (
            q[robot.q_slice(name)].isfinite().all() & qd[robot.dof_slice(name)].isfinite().all()
        )
    )
    return NonFinite(step, sample, joint, int((~good[..., -1]).sum()))


def report_nonfinite(
    mech: Mechanism,
    qs: Tensor,
    qds: Tensor,
    dt: float,
    every: int,
    check: bool | None,
    step: Step,
) -> None:
    """Say by a warning, or an error, that a rollout left the finite numbers.

    Args:
        mech: the mechanism.
        qs: configurations, `[*batch, steps + 1, num_q]`.
        qds: velocities, `[*batch, steps + 1, num_dof]`.
        dt: time step [s].
        every: how many steps lie between two states.
        check: as in `torchsko.rollout`.
        step: the method.

    Raises:
        NonFiniteError: with ``check=True``.
    """
    if check is False:
        return
    if check is None:
        # What is not finite once stays so: the last state tells of all.
        ends = [concrete_values(x[..., -1, :]) for x in (qs, qds)]
        if all(x is None or np.isfinite(x).all() for x in ends):
            return
    found = first_nonfinite(mech, qs, qds)
    if found is None:
        return
    words = _message(mech, replace(found, step=every * found.step), dt, qs.shape[:-2], step)
    if check:
        raise NonFiniteError(words)
    warnings.warn(words, RuntimeWarning, stacklevel=caller_stack_level())


def _message(mech: Mechanism, found: NonFinite, dt: float, batch: torch.Size, step: Step) -> str:
    where = f" of sample {list(found.sample)} ({found.samples} such in the batch)" if batch else ""
    if found.step == 0:
        return (
            f"the start{where} of the rollout of {mech.name!r} is not finite, at joint {found.joint!r}.\n"
            "Every state that follows from it is nan.\nPass a q and a qd that are finite."
        )
    return (
        f"the rollout of {mech.name!r} left the finite numbers at step {found.step} "
        f"(t = {found.step * dt:.6g} s), at joint {found.joint!r}{where}.\n"
        f"{_remedy(dt, step)}; check=True makes this an error, check=False says nothing."
    )


def _remedy(dt: float, step: Step) -> str:
    """Why, and what to try, as the method has it."""
    if isinstance(step, AdaptiveRungeKutta):
        return (
            f"Its {step.substeps} sub-steps did not suffice for errors below {step.tolerance:.3g}, or the "
            "control is not finite.\n"
            f"Try substeps={4 * step.substeps}, tolerance={100 * step.tolerance:.3g}, or dt={dt / 4:.3g}; "
            'across dry friction, method="semi_implicit_euler"'
        )
    limits = (
        ", or limits=LimitSprings() of torchsko.rollout.limit_springs"
        if takes_damping_implicitly(step)
        else ""
    )
    return (
        "The step is too long for a motion this fast or forces this stiff, or the control is not finite.\n"
        f"Try dt={dt / 4:.3g}, damping or armature at the joint, softer gains, "
        f'effort="clamp"{limits}'
    )
