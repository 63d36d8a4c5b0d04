"""Table of embedded, held, soft and open constraints on moving states, beside the dense system of Gauss."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import torchsko as ts
from tests.oracles.constraint_models import MODELS, Constraint, Model
from tests.oracles.gauss import GaussOracle
from torchsko.mechanism.coordinates import independent_q

pytestmark = pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")

BATCHES = ((), (1,), (2, 3))


class Row(NamedTuple):
    """One row of the table: a model, and the mode of each of its constraints."""

    name: str
    modes: tuple[str, ...]

    def names(self, *modes: str) -> list[str]:
        """Constraints in one of these modes."""
        loops = MODELS[self.name].loops
        return [n for n, mode in zip(loops, self.modes, strict=True) if mode in modes]

    def exact(self, *modes: str) -> list[Constraint]:
        loops = MODELS[self.name].loops
        return [c for n in self.names(*modes) for c in loops[n].exact]


def table() -> list[Row]:
    """All rows; held constraints have multipliers, soft ones the law of contact, so a row has one of both."""
    rows = []
    for name, model in MODELS.items():
        for modes in itertools.product(*(loop.modes for loop in model.loops.values())):
            if not {"held", "soft"} <= {*modes}:
                rows.append(Row(name, modes))
    return rows


TABLE = table()
NAMES = [f"{row.name}: {', '.join(row.modes)}" for row in TABLE]
# Rows of the knees, in world axes, are redundant only where the loops are closed.
MOVING = [
    row
    for row in TABLE
    if {"held", "soft"} & {*row.modes} and (row.name, row.modes[1]) != ("biped", "held")
]
MOVING_NAMES = [f"{row.name}: {', '.join(row.modes)}" for row in MOVING]


def load(model: Model, embedded: list[Constraint], soft: list[str]) -> ts.Mechanism:
    closures = [replace(c, method="embed") for c in embedded]
    return ts.load(model.text(*soft, coupled=True), closures=closures)


def mechanism(row: Row) -> ts.Mechanism:
    return load(MODELS[row.name], row.exact("embedded"), row.names("soft"))


def state(row: Row, mech: ts.Mechanism, *batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """A configuration in which all loops are closed, a velocity and joint forces of norm 3 and more."""
    model = MODELS[row.name]
    embeddable = [c for x in model.loops.values() if "embedded" in x.modes for c in x.exact]
    closed = load(model, embeddable, [])
    g = torch.Generator().manual_seed(0)
    step = 0.1 * torch.randn(*batch, closed.num_dof, generator=g, dtype=torch.float64)
    q = ts.integrate(closed, closed.initial(), step)
    qd, tau = torch.randn(2, *batch, mech.num_dof, generator=g, dtype=torch.float64)
    return independent_q(mech, ts.expand(closed, q)), 2 * qd, tau


def laws(row: Row, mech: ts.Mechanism) -> ts.constraints.HeldMechanism | ts.ContactModel | None:
    """The held constraints, or the soft ones."""
    if "held" in row.modes:
        return ts.constrain(mech, row.exact("held"))
    return ts.ContactModel.of(mech) if "soft" in row.modes else None


def motion(
    mech: ts.Mechanism, law: ts.constraints.HeldMechanism | ts.ContactModel | None, *state: Tensor
) -> tuple[Tensor, Tensor]:
    """Accelerations and forces: those of held rows, or those of soft constraints on the dofs."""
    if isinstance(law, ts.constraints.HeldMechanism):
        return replace(law, source=mech).forward_dynamics(*state)
    if law is not None:
        return ts.contact.contact_dynamics(mech, *state, contact=law)[:2]
    return ts.forward_dynamics(mech, *state), torch.zeros_like(state[1])


@pytest.mark.some(7)
@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_accelerations_and_forces_solve_the_dense_system(row: Row) -> None:
    mech, model = mechanism(row), MODELS[row.name]
    exact = row.exact("embedded", "held") + [c for c in [model.coupling] if c is not None]
    oracle = GaussOracle(model.text(*row.names("soft")), exact)
    there = ts.conventions("mujoco", mech, oracle.joint_names)
    law = laws(row, mech)
    for batch in BATCHES:
        q, qd, tau = state(row, mech, *batch)
        qdd, forces = motion(mech, law, q, qd, tau)
        accel, of_soft, multipliers = oracle.motions(
            there.q_to(q), there.qd_to(q, qd), there.tau_to(q, tau)
        )
        found = there.qdd_to(q, qd, qdd)
        assert found.shape == (*batch, accel.shape[-1])
        assert (found - accel).abs().max() < 1e-10 * accel.abs().max()
        if "held" in row.modes:
            chosen = oracle.multipliers_of(multipliers, row.exact("held"))
            assert (forces - chosen).abs().max() < 1e-9 * chosen.abs().max()
        elif "soft" in row.modes:
            expected = there.tau_from(q, of_soft)
            assert (forces - expected).abs().max() < 1e-9 * expected.abs().max()


def difference(fn: Callable[[float], tuple[Tensor, ...]], h: float = 2e-5) -> list[Tensor]:
    """Central differences of the fourth order of functions of one number, at zero."""
    near = (fn(k * h) for k in (1, -1, 2, -2))
    return [(8 * (a - b) - (c - d)) / (12 * h) for a, b, c, d in zip(*near, strict=True)]


PARAMETERS = ("mass", "com", "armature", "joint_position", "frame_position")


@pytest.mark.some(3)
@pytest.mark.parametrize("row", MOVING, ids=MOVING_NAMES)
def test_derivatives_to_states_masses_and_geometry_are_those_of_differences(row: Row) -> None:
    """Along the closed manifold, which moves with the geometry."""
    mech = mechanism(row)
    law = laws(row, mech)
    q, qd, tau = state(row, mech, 2)
    g = torch.Generator().manual_seed(1)
    draw = lambda x: torch.randn(x.shape, generator=g, dtype=torch.float64)  # noqa: E731
    parameters = PARAMETERS
    if "held" in row.modes:
        held = ts.constrain(mech, row.exact("held"))
        if (
            held.constraints.redundant
        ):  # loops that are planar; in other geometries the rows contradict
            parameters = PARAMETERS[:3]
    else:  # away from the closed configuration, where the softness has a kink
        q = ts.integrate(mech, q, 0.03 * draw(qd))
    along = [draw(qd) for _ in range(3)]
    directions = {name: 0.1 * draw(getattr(mech, name)) for name in parameters}

    def at(t: Tensor | float, *, moved: bool = True) -> tuple[Tensor, Tensor]:
        changed = {n: getattr(mech, n) + t * x for n, x in directions.items()} if moved else {}
        robot, (step, rate, force) = mech.replace(**changed), (t * x for x in along)
        return motion(robot, law, ts.integrate(robot, q, step), qd + rate, tau + force)

    near = difference(at)
    t = torch.zeros((), dtype=torch.float64)
    _, tangents = torch.func.jvp(at, (t,), (torch.ones_like(t),))
    for found, expected in zip(tangents, near, strict=True):
        assert (found - expected).abs().max() < 1e-7 * expected.abs().max()
    weights = [draw(x) for x in near]
    t.requires_grad_()
    total = sum((w * x).sum() for w, x in zip(weights, at(t), strict=True))
    (slope,) = torch.autograd.grad(total, t)
    expected = sum((w * x).sum() for w, x in zip(weights, near, strict=True))
    assert abs(slope - expected) < 1e-7 * sum(float(x.abs().max()) for x in near)
    if isinstance(law, ts.constraints.HeldMechanism):
        exact = law.forward_dynamics_derivatives(q, qd, tau)
        near = difference(lambda t: at(t, moved=False))
        for parts, expected in zip((exact[:3], exact[3:]), near, strict=True):
            found = sum((A @ x[..., None])[..., 0] for A, x in zip(parts, along, strict=True))
            assert (found - expected).abs().max() < 1e-7 * expected.abs().max()
