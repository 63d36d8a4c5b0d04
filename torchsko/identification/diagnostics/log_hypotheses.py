"""What a log may be mistaken in: columns of other joints, signs, angles, weight; told by the nominal robot.

Such a log can be fitted, by a robot that is none, and no single number of it is wrong. But the nominal
robot, which is roughly right, needs other forces to move so. Where it explains the forces badly, it is
asked whether it would explain them well if one thing were otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.friction import Balancer, Periodic, Spring
from torchsko.identification.logs.log import Log
from torchsko.identification.logs.units import SI_SCALE
from torchsko.identification.regression.normal_equations import RegressionProblem
from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import inverse_dynamics

SAMPLES = 400
"""States that are looked at, evenly spread."""

BAD = 0.5
"""Share of a dof's force besides friction that the nominal robot leaves over, from which on one asks why."""

GOOD, WORST = 0.05, 4.0
"""Shares beyond which none is better or worse: robots are not exact, and forces turned round leave four."""

WELL = 0.25
"""What it may leave over, in the geometric mean over dofs, where one thing is otherwise."""

BETTER = 10.0
"""Times less that it leaves over then, shares of all dofs multiplied: more than chance does."""

BEARING = (Spring, Balancer, Periodic)
"""Terms that may bear a robot's weight."""

SLOW = 0.05
"""Speed, over a joint's usual one, up to which dry friction may have either sign."""


Place = Callable[[str], slice]
"""Where a joint's numbers stand."""


@dataclass(frozen=True, eq=False)
class States:
    """Some filtered samples of a log, all of one robot.

    Attributes:
        mech: the nominal robot, lossless.
        q: `[samples, num_q]`.
        qd: `[samples, num_dof]`.
        qdd: `[samples, num_dof]`.
        tau: `[samples, num_dof]`.
        felt: which dofs have a force that counts anywhere, `[num_dof]`.
    """

    mech: Mechanism
    q: Tensor
    qd: Tensor
    qdd: Tensor
    tau: Tensor
    felt: Tensor

    @classmethod
    def of(cls, mech: Mechanism, motions: Sequence[FilteredMotion]) -> States:
        """Samples of motions whose forces all count, besides those that nobody measured."""
        felt = torch.stack([m.valid.bool().any(0) for m in motions]).any(0)
        good = [m.valid.bool()[:, felt].all(1) for m in motions]
        parts = [[getattr(m, name) for m in motions] for name in ("q", "qd", "qdd", "tau")]
        q, qd, qdd, tau = (
            torch.cat([x[rows] for x, rows in zip(part, good, strict=True)]) for part in parts
        )
        some = slice(None, None, max(1, len(q) // SAMPLES))
        return cls(mech, q[some], qd[some], qdd[some], tau[some], felt)

    def left_over(self) -> Tensor:
        """Share of each dof's force that the nominal robot leaves over, friction set aside, `[num_dof]`.

        nan where no force was measured.
        """
        force = inverse_dynamics(self.mech, self.q, self.qd, self.qdd)
        usual = self.qd.square().mean(0).sqrt().clamp_min(1e-300)
        friction = torch.stack(
            [self.qd, (self.qd / (SLOW * usual)).tanh(), self.qd.new_ones(1).expand_as(self.qd)], -1
        )
        basis = torch.linalg.qr(friction.movedim(1, 0))[0]
        both = torch.stack([self.tau, self.tau - force], -1).movedim(1, 0)
        tau, rest = (both - basis @ (basis.mT @ both)).square().sum(1).unbind(-1)
        return torch.where(self.felt, rest / tau.clamp_min(1e-300), torch.nan)

    def turned(self, joint: str, *names: str) -> States:
        """With the other sign of these of a joint, rates with positions."""

        def change(x: Tensor, at: Place) -> Tensor:
            size = torch.ones_like(x[0])
            size[at(joint)] = -1.0
            return x * size

        return self._with(names, change)

    def swapped(self, one: str, other: str, *names: str) -> States:
        """With these of two joints in one another's place."""

        def change(x: Tensor, at: Place) -> Tensor:
            order = list(range(x.shape[-1]))
            a, b = at(one).start, at(other).start
            order[a], order[b] = b, a
            return x[:, order]

        return self._with(names, change)

    def in_radians(self) -> States:
        """With angles, and their rates, as they were before they were taken for degrees."""
        kinds = zip(self.mech.joint_names, self.mech.joint_types, strict=True)
        angles = [name for name, kind in kinds if kind.coordinate_unit == "rad"]

        def change(x: Tensor, at: Place) -> Tensor:
            size = torch.ones_like(x[0])
            for joint in angles:
                size[at(joint)] = 1 / SI_SCALE["deg"]
            return x * size

        return self._with(("q",), change)

    def _with(self, names: Sequence[str], change: Callable[[Tensor, Place], Tensor]) -> States:
        changed = {"q": change(self.q, self.mech.q_slice)} if "q" in names else {}
        rates = ("qd", "qdd") if "q" in names else ()
        for name in (*rates, *(("tau",) if "tau" in names else ())):
            changed[name] = change(getattr(self, name), self.mech.dof_slice)
        return replace(self, **changed)


@dataclass(frozen=True, eq=False)
class Otherwise:
    """One thing that may be otherwise.

    Attributes:
        states: as they would be.
        what: is wrong with the log then.
        advice: what to do about it.
    """

    states: States
    what: str
    advice: str


def refuse_mistaken(
    problem: RegressionProblem,
    log: Log,
    motions: Sequence[FilteredMotion],
    named: Mapping[int, Sequence[int]],
) -> None:
    """Refuse a log that the nominal robot explains only if one thing of it were otherwise.

    Args:
        problem: what explains forces.
        log: what was measured.
        motions: of it, filtered.
        named: terms that were asked for, of each dof: where these bear the weight, none may be missing.

    Raises:
        FitError: names the joint and what to do.
    """
    if log.current:  # torque constants were found by the nominal robot's weights
        return
    states = States.of(problem.mech, motions)
    if len(states.q) < 10 * problem.mech.num_dof:
        return
    as_is = states.left_over()
    if float(as_is.nan_to_num(0.0).max()) < BAD:
        return
    borne = any(isinstance(problem.terms[k], BEARING) for some in named.values() for k in some)
    tried = [(x.states.left_over(), x) for x in others(states, borne=borne)]
    left, best = min(tried, key=lambda x: float(_size(x[0])))
    better = int(states.felt.sum()) * (_size(as_is) - _size(left))
    if _size(left) < math.log(WELL) and better > math.log(BETTER):
        gained = as_is.clamp(GOOD, WORST) / left.clamp(GOOD, WORST)
        dof = int(gained.nan_to_num(0.0).argmax())
        raise FitError(
            f"{log.name}: {best.what}, as it seems.",
            f"Of the force of joint {problem.mech.dof_names[dof]!r}, friction set aside, the nominal robot "
            f"explains {percent(left[dof])} so, and {percent(as_is[dof])} as it was logged.",
            f"{best.advice} If the log is right, correct the nominal robot: a tool that is not there, say.",
        )


def _size(left: Tensor) -> Tensor:
    """Logarithm of the geometric mean over dofs: each dof's errors have a size of their own."""
    return left.clamp(GOOD, WORST).log().nanmean()


def percent(left: Tensor) -> str:
    """The share of a force that is explained, by the share that is left over."""
    return f"{100 * max(0.0, 1 - float(left)):.0f} %"


def others(states: States, *, borne: bool) -> Iterator[Otherwise]:
    """All that is looked at: signs, joints in one another's place, angles; the weight, unless it is borne."""
    mech = states.mech
    kinds = zip(mech.joint_names, mech.independent_joints, strict=True)
    single = [
        name
        for name, k in kinds
        if mech.joints.kinds[k].vector
        and mech.dof_slice(name).stop - mech.dof_slice(name).start == 1
    ]
    parts = (("tau",), ("q",), ("q", "tau"))
    for name, some in itertools.product(single, parts):
        turn = ", ".join(f"{x}[:, {_at(mech, x, name)}] *= -1" for x in _columns(some))
        yield Otherwise(
            states.turned(name, *some),
            f"the sign of {' and '.join(some)} of joint {name!r} is the other one",
            f"Turn it, {turn}, or the joint's axis in the robot's file.",
        )
    for (one, other), some in itertools.product(itertools.combinations(single, 2), parts):
        yield Otherwise(
            states.swapped(one, other, *some),
            f"{' and '.join(some)} of joints {one!r} and {other!r} stand in one another's place",
            f'Say which columns are which, columns={{"{some[0]}": [...]}} or --column {some[0]}=..., in the '
            f"order {', '.join(mech.joint_names)}.",
        )
    if any(kind.coordinate_unit == "rad" for kind in mech.joint_types):
        yield Otherwise(
            states.in_radians(),
            "angles are radians that were taken for degrees",
            "Leave the unit of q out, and that of qd: radians are what a log is in.",
        )
    if borne:
        return
    gravity = mech.gravity
    size = float(gravity.norm())
    yield Otherwise(
        replace(states, mech=mech.replace(gravity=0 * gravity)),
        "forces are without the robot's weight",
        "Add it where drives hold the weight by themselves: tau + ts.gravity_force(mech, q). Where springs "
        "do, name them, learn=[..., ts.learn.friction.Balancer(near, far)]; where there is none, load the "
        "robot with gravity=(0, 0, 0).",
    )
    for axis, sign in itertools.product(range(3), (1.0, -1.0)):
        down = torch.zeros_like(gravity)
        down[axis] = sign * size
        told = [round(x, 2) for x in down.tolist()]
        yield Otherwise(
            replace(states, mech=mech.replace(gravity=down)),
            "the robot's weight pulls another way",
            f"Load the robot with gravity={told}: it hangs, or is mounted on its side.",
        )


def _columns(some: Sequence[str]) -> Sequence[str]:
    return [y for x in some for y in (("q", "qd") if x == "q" else (x,))]


def _at(mech: Mechanism, name: str, joint: str) -> int:
    return (mech.q_slice if name == "q" else mech.dof_slice)(joint).start
