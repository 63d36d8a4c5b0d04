"""Hypotheses about errors in a log: reversed signs, exchanged joints, angle units and gravity.

A log with such an error can be fitted, but the result is wrong. If the nominal robot, which is roughly right,
explains the measured forces badly, this check looks for one change of the log after which it explains them
well.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.identification.diagnostics.context import FitContext
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.friction import Balancer, Periodic, Spring
from torchsko.identification.logs.units import SI_SCALE
from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import inverse_dynamics

MAX_SAMPLES = 400
"""Number of states that are examined, evenly spread."""

MIN_UNEXPLAINED = 0.5
"""Share of a force that the nominal robot must leave unexplained before hypotheses are tested."""

SHARE_RANGE = 0.05, 4.0
"""Range to which unexplained shares are limited: robots are not exact, and reversed forces leave about 4."""

MAX_UNEXPLAINED = 0.25
"""Geometric mean over dofs of the shares that an accepted hypothesis may leave unexplained."""

MIN_IMPROVEMENT = 10.0
"""Factor by which a hypothesis must reduce the product of all shares."""

GRAVITY_COMPENSATION = (Spring, Balancer, Periodic)
"""Terms that may support the weight of a robot."""

SLOW = 0.05
"""Speed over the root mean square speed below which dry friction may have either sign."""

Slices = Callable[[str], slice]


@dataclass(frozen=True, eq=False)
class States:
    """Filtered samples of a log.

    Attributes:
        mech: the nominal robot, lossless.
        q: `[samples, num_q]`.
        qd: `[samples, num_dof]`.
        qdd: `[samples, num_dof]`.
        tau: `[samples, num_dof]`.
        measured: dofs that have a measured force, `[num_dof]`.
    """

    mech: Mechanism
    q: Tensor
    qd: Tensor
    qdd: Tensor
    tau: Tensor
    measured: Tensor

    @classmethod
    def of(cls, mech: Mechanism, motions: Sequence[FilteredMotion]) -> States:
        """Samples at which all measured forces are valid."""
        measured = torch.stack([m.valid.bool().any(0) for m in motions]).any(0)
        good = [m.valid.bool()[:, measured].all(1) for m in motions]
        parts = [[getattr(m, name) for m in motions] for name in ("q", "qd", "qdd", "tau")]
        q, qd, qdd, tau = (
            torch.cat([x[rows] for x, rows in zip(part, good, strict=True)]) for part in parts
        )
        thin = slice(None, None, max(1, len(q) // MAX_SAMPLES))
        return cls(mech, q[thin], qd[thin], qdd[thin], tau[thin], measured)

    def unexplained(self) -> Tensor:
        """Share of each force that the nominal robot and friction leave unexplained, `[num_dof]`.

        nan for forces that were not measured.
        """
        force = inverse_dynamics(self.mech, self.q, self.qd, self.qdd)
        speed = self.qd.square().mean(0).sqrt().clamp_min(1e-300)
        offset = self.qd.new_ones(1).expand_as(self.qd)
        friction = torch.stack([self.qd, (self.qd / (SLOW * speed)).tanh(), offset], -1)
        basis = torch.linalg.qr(friction.movedim(1, 0))[0]
        both = torch.stack([self.tau, self.tau - force], -1).movedim(1, 0)
        tau, rest = (both - basis @ (basis.mT @ both)).square().sum(1).unbind(-1)
        return torch.where(self.measured, rest / tau.clamp_min(1e-300), torch.nan)

    def reversed(self, joint: str, *names: str) -> States:
        """States with the sign of some quantities of a joint reversed; "q" includes its derivatives."""
        return self._scaled([joint], -1.0, names)

    def in_radians(self) -> States:
        """States whose angles were converted from degrees by mistake, converted back."""
        kinds = zip(self.mech.joint_names, self.mech.joint_types, strict=True)
        return self._scaled(
            [name for name, k in kinds if k.coordinate_unit == "rad"], 1 / SI_SCALE["deg"], ("q",)
        )

    def exchanged(self, first: str, second: str, *names: str) -> States:
        """States with some quantities of two joints exchanged."""

        def change(x: Tensor, at: Slices) -> Tensor:
            order = list(range(x.shape[-1]))
            a, b = at(first).start, at(second).start
            order[a], order[b] = b, a
            return x[:, order]

        return self._with(names, change)

    def _scaled(self, joints: Sequence[str], factor: float, names: Sequence[str]) -> States:
        def change(x: Tensor, at: Slices) -> Tensor:
            size = torch.ones_like(x[0])
            for joint in joints:
                size[at(joint)] = factor
            return x * size

        return self._with(names, change)

    def _with(self, names: Sequence[str], change: Callable[[Tensor, Slices], Tensor]) -> States:
        changed = {"q": change(self.q, self.mech.q_slice)} if "q" in names else {}
        rates = ("qd", "qdd") if "q" in names else ()
        for name in (*rates, *(("tau",) if "tau" in names else ())):
            changed[name] = change(getattr(self, name), self.mech.dof_slice)
        return replace(self, **changed)


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One change of a log or of the robot's mounting.

    Attributes:
        states: after the change.
        description: of the error in the log.
        advice: how to correct it.
        joints: that it is about.
    """

    states: States
    description: str
    advice: str
    joints: tuple[str, ...] = ()


def inconsistent_log(context: FitContext) -> Iterator[Finding]:
    """No single change of the log makes the nominal robot explain it much better.

    Logs of currents are not checked: their torque constants were estimated from the nominal robot.
    """
    if context.constants is not None:
        return
    states = States.of(context.lossless, context.motions)
    if len(states.q) < 10 * context.nominal.num_dof:
        return
    logged = states.unexplained()
    if float(logged.nan_to_num(0.0).max()) < MIN_UNEXPLAINED:
        return
    terms = context.problem.terms
    compensated = any(
        isinstance(terms[k], GRAVITY_COMPENSATION)
        for indices in context.given_terms.values()
        for k in indices
    )
    tested = [(x.states.unexplained(), x) for x in hypotheses(states, compensated=compensated)]
    left, best = min(tested, key=lambda x: float(_log_mean(x[0])))
    improvement = int(states.measured.sum()) * (_log_mean(logged) - _log_mean(left))
    if _log_mean(left) < math.log(MAX_UNEXPLAINED) and improvement > math.log(MIN_IMPROVEMENT):
        gained = logged.clamp(*SHARE_RANGE) / left.clamp(*SHARE_RANGE)
        dof = int(gained.nan_to_num(0.0).argmax())
        yield finding(
            "inconsistent_log",
            f"It seems that {best.description}.",
            f"{best.advice} If the log is right, correct the nominal robot, for example its tool.",
            joints=best.joints,
            reason=f"The nominal robot would then explain {percent_explained(left[dof])} of the force of "
            f"{context.nominal.dof_names[dof]}; it explains {percent_explained(logged[dof])} of it as "
            "logged (without friction).",
        )


def _log_mean(shares: Tensor) -> Tensor:
    """Logarithm of the geometric mean over dofs."""
    return shares.clamp(*SHARE_RANGE).log().nanmean()


def percent_explained(unexplained: Tensor) -> str:
    """The explained share of a force in percent."""
    return f"{100 * max(0.0, 1 - float(unexplained)):.0f} %"


def hypotheses(states: States, *, compensated: bool) -> Iterator[Hypothesis]:
    """All hypotheses: signs, exchanged joints, angle units and, unless terms support the weight, gravity."""
    mech = states.mech
    kinds = zip(mech.joint_names, mech.independent_joints, strict=True)
    single = [
        name
        for name, k in kinds
        if mech.joints.kinds[k].vector
        and mech.dof_slice(name).stop - mech.dof_slice(name).start == 1
    ]
    quantities = (("tau",), ("q",), ("q", "tau"))
    for name, changed in itertools.product(single, quantities):
        columns = [y for x in changed for y in (("q", "qd") if x == "q" else (x,))]
        code = ", ".join(f"{x}[:, {_column(mech, x, name)}] *= -1" for x in columns)
        yield Hypothesis(
            states.reversed(name, *changed),
            f"the sign of {' and '.join(changed)} of joint {name!r} is reversed",
            f"Change it, {code}, or change the joint's axis in the robot's file.",
            (name,),
        )
    for (first, second), changed in itertools.product(
        itertools.combinations(single, 2), quantities
    ):
        yield Hypothesis(
            states.exchanged(first, second, *changed),
            f"{' and '.join(changed)} of joints {first!r} and {second!r} are exchanged",
            f'Name the columns, columns={{"{changed[0]}": [...]}} or --column {changed[0]}=..., in the '
            f"order {', '.join(mech.joint_names)}.",
            (first, second),
        )
    if any(kind.coordinate_unit == "rad" for kind in mech.joint_types):
        yield Hypothesis(
            states.in_radians(),
            "angles were in radians, but were converted from degrees",
            "Remove the units of q and qd.",
        )
    if not compensated:
        yield from _gravity_hypotheses(states)


def _gravity_hypotheses(states: States) -> Iterator[Hypothesis]:
    mech, gravity = states.mech, states.mech.gravity
    yield Hypothesis(
        replace(states, mech=mech.replace(gravity=0 * gravity)),
        "the forces do not include the robot's weight",
        "If drives compensate gravity, add it: tau + ts.gravity_force(mech, q). If springs do, name them: "
        "joint_terms=[..., ts.identification.friction.Balancer(near, far)]. Without gravity, load the robot "
        "with gravity=(0, 0, 0).",
    )
    for axis, sign in itertools.product(range(3), (1.0, -1.0)):
        direction = torch.zeros_like(gravity)
        direction[axis] = sign * float(gravity.norm())
        values = [round(x, 2) for x in direction.tolist()]
        yield Hypothesis(
            replace(states, mech=mech.replace(gravity=direction)),
            "gravity acts in another direction",
            f"If the robot is mounted on a wall or a ceiling, load it with gravity={values}.",
        )


def _column(mech: Mechanism, name: str, joint: str) -> int:
    return (mech.q_slice if name == "q" else mech.dof_slice)(joint).start
