"""Forces that a log does not have: of a floating base, of joints, and forces that are always zero."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from torchsko.identification.diagnostics.context import FitContext
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.diagnostics.log_states import States
from torchsko.identification.uncertainty.residuals import CONSTANT_TOLERANCE
from torchsko.mechanism.coordinates import free_joints
from torchsko.verbs.dynamics import inverse_dynamics

MIN_SUPPORT_SHARE = 0.5
"""Share of the robot's weight, needed at a base without force, above which something supports the robot.

A robot in free flight needs no force there; one that stands or hangs needs all of its weight.
"""


def support_force(context: FitContext) -> Iterator[Finding]:
    """A floating base without measured force is in free flight."""
    mech = context.lossless
    floating = free_joints(mech)
    if not floating:
        return
    states = States.of(mech, context.motions)
    if not len(states.q):
        return
    zero = _always_zero(states.tau)
    for name in floating:
        at = mech.dof_slice(name)
        if not (zero & states.measured)[at].all():
            continue
        linear = slice(at.stop - 3, at.stop)
        rest = torch.zeros_like(states.qd)
        needed = _rms_length(inverse_dynamics(mech, states.q, states.qd, states.qdd)[:, linear])
        weight = _rms_length(inverse_dynamics(mech, states.q, rest, rest)[:, linear])
        if weight > 0 and needed > MIN_SUPPORT_SHARE * weight:
            yield finding(
                "support_force",
                f"The force of joint {name!r} is always zero, but the nominal robot needs {needed:.3g} N.",
                "Log the wrench of contacts (see ts.identification.Log), or nan if it was not measured. "
                "If the base did not move, load the robot without floating_base=True.",
                joints=[name],
                reason="The floor or the stand supports the robot with a force that the log does not have.",
            )


def zero_force(context: FitContext) -> Iterator[Finding]:
    """Joints have a force if the nominal robot needs one."""
    mech = context.lossless
    states = States.of(mech, context.motions)
    if not len(states.q):
        return
    zero = _always_zero(states.tau) & states.measured
    for name in free_joints(mech):
        zero[mech.dof_slice(name)] = False
    if not zero.any():
        return
    needed = inverse_dynamics(mech, states.q, states.qd, states.qdd).square().mean(0).sqrt()
    missing = zero & (needed > CONSTANT_TOLERANCE * needed.max())
    rows = zip(mech.dof_names, missing.tolist(), needed.tolist(), strict=True)
    for name, force in [(name, x) for name, is_missing, x in rows if is_missing]:
        yield finding(
            "zero_force",
            f"The force of joint {name} is always zero, but the nominal robot needs {force:.2g} (root mean "
            "square, N m or N).",
            "If nothing drives the joint, this is right; otherwise the bodies that it moves are wrong.",
            joints=[name],
        )


def unmeasured_force(context: FitContext) -> Iterator[Finding]:
    """The forces of the floating base and of all joints were measured."""
    mech = context.nominal
    base = {k for x in free_joints(mech) for k in range(mech.num_dof)[mech.dof_slice(x)]}
    unknown = set() if context.constants is None else _undetermined(context.constants.value)
    names = mech.dof_names
    if floating := [names[k] for k in context.unmeasured if k in base]:
        yield finding(
            "unmeasured_force",
            f"Forces of {', '.join(floating)} were not measured, and the fit does not use them.",
            "In free flight these forces are zero: put zeros there.",
            joints=floating,
            reason="Parameters that only these forces determine keep their nominal values.",
        )
    if joints := [names[k] for k in context.unmeasured if k not in base | unknown]:
        yield finding(
            "missing_force",
            f"Forces of {', '.join(joints)} were not measured. The fit uses the motion of these joints, but "
            "not their equations.",
            "If a joint has no drive, put zeros in its column.",
            joints=joints,
            reason="Their friction is not estimated.",
        )


def _undetermined(constants: Tensor) -> set[int]:
    """Dofs whose torque constant is not determined."""
    return set(constants.isnan().nonzero().flatten().tolist())


def _always_zero(tau: Tensor) -> Tensor:
    """Dofs whose force is always zero, `[num_dof]`."""
    largest = tau.abs().amax(0)
    return largest <= CONSTANT_TOLERANCE * largest.max()


def _rms_length(force: Tensor) -> float:
    """Root mean square length of forces `[samples, 3]`."""
    return float(force.square().sum(-1).mean().sqrt())
