"""Agreement with Pinocchio on frames in three references, the whole robot, and all derivatives.

The table of every robot: `pytest tests/oracles/test_whole_robot.py -m nightly -s`.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import torchsko as ts

pin = pytest.importorskip("pinocchio")

from tests.oracles.pinocchio_bridge import (  # noqa: E402
    ALIGNING_AXES,
    NO_FORWARD_DYNAMICS,
    Robot,
    robot_files,
    worst_error,
)
from tests.oracles.pinocchio_bridge import mass_matrix as symmetric_mass  # noqa: E402

CASES = [
    ("panda_description/urdf/panda.urdf", False),
    ("talos_data/robots/talos_reduced.urdf", True),
]
STATES = 8
FRAMES = 4
BOUND = 1e-10
REFERENCES = {"body": pin.LOCAL, "world": pin.WORLD, "mixed": pin.LOCAL_WORLD_ALIGNED}
ANGULAR_FIRST = [3, 4, 5, 0, 1, 2]


def motion(x) -> np.ndarray:
    return np.concatenate([x.angular, x.linear])


def by_frame(function: Callable, reference: str) -> Callable:
    """Of every frame in the list, [angular; linear] rows."""

    def rows(model, data, frames) -> np.ndarray:
        found = [function(model, data, frame, REFERENCES[reference]) for frame in frames]
        return np.stack(
            [x[ANGULAR_FIRST] if isinstance(x, np.ndarray) else motion(x) for x in found]
        )

    return rows


def frame_quantities(both: Robot, names: list[str], reference: str) -> dict[str, tuple]:
    """By name: ours of (q, qd, qdd), Pinocchio's of (model, data, frames), whether columns are dofs."""
    m = both.mech
    return {
        f"velocity, {reference}": (
            lambda q, qd, qdd: ts.frame_velocity(m, q, qd, names, reference),
            by_frame(pin.getFrameVelocity, reference),
            False,
        ),
        f"acceleration, {reference}": (
            lambda q, qd, qdd: ts.frame_acceleration(m, q, qd, qdd, names, reference),
            by_frame(pin.getFrameAcceleration, reference),
            False,
        ),
        f"classical acceleration, {reference}": (
            lambda q, qd, qdd: ts.frame_acceleration(m, q, qd, qdd, names, reference, True),
            by_frame(pin.getFrameClassicalAcceleration, reference),
            False,
        ),
        f"Jacobian, {reference}": (
            lambda q, qd, qdd: ts.frame_jacobian(m, q, names, reference),
            by_frame(pin.getFrameJacobian, reference),
            True,
        ),
        f"Jacobian rate, {reference}": (
            lambda q, qd, qdd: ts.frame_jacobian_rate(m, q, qd, names, reference),
            by_frame(pin.getFrameJacobianTimeVariation, reference),
            True,
        ),
    }


def whole_quantities(both: Robot) -> dict[str, tuple]:
    m = both.mech
    joints = [both.model.getJointId(name) for name in m.joint_names]
    return {
        "centre of mass": (
            lambda q, qd, qdd: ts.center_of_mass(m, q), lambda _, d, f: d.com[0], False
        ),
        "its velocity": (
            lambda q, qd, qdd: ts.com_velocity(m, q, qd), lambda _, d, f: d.vcom[0], False
        ),
        "its acceleration": (
            lambda q, qd, qdd: ts.com_acceleration(m, q, qd, qdd), lambda _, d, f: d.acom[0], False
        ),
        "its Jacobian": (
            lambda q, qd, qdd: ts.com_jacobian(m, q), lambda _, d, f: d.Jcom, True
        ),
        "kinetic energy": (
            lambda q, qd, qdd: ts.kinetic_energy(m, q, qd)[:, None],
            lambda _, d, f: np.array([d.kinetic_energy]),
            False,
        ),
        "potential energy": (
            lambda q, qd, qdd: ts.potential_energy(m, q)[:, None],
            lambda _, d, f: np.array([d.potential_energy]),
            False,
        ),
        "centroidal momentum": (
            lambda q, qd, qdd: ts.centroidal_momentum(m, q, qd), lambda _, d, f: motion(d.hg), False
        ),
        "centroidal momentum matrix": (
            lambda q, qd, qdd: ts.centroidal_momentum_matrix(m, q),
            lambda _, d, f: d.Ag[ANGULAR_FIRST],
            True,
        ),
        "gravity force": (
            lambda q, qd, qdd: ts.gravity_force(m, q), lambda _, d, f: d.g, True
        ),
        "joint wrenches": (
            lambda q, qd, qdd: ts.joint_wrenches(m, q, qd, qdd),
            lambda _, d, f: np.stack([motion(d.f[j]) for j in joints]),
            False,
        ),
    }  # fmt: skip


def computed(both: Robot, q, qd, qdd) -> list:
    """Pinocchio's data at every state, everything computed."""
    model, rows = both.model, []
    for row in zip(both.q_to_pin(q), both.to_pin(qd), both.to_pin(qdd), strict=True):
        data = model.createData()
        pin.computeJointJacobiansTimeVariation(model, data, *row[:2])
        pin.ccrba(model, data, *row[:2])
        pin.computeGeneralizedGravity(model, data, row[0])
        pin.jacobianCenterOfMass(model, data, row[0])
        pin.computeKineticEnergy(model, data, *row[:2])
        pin.computePotentialEnergy(model, data, row[0])
        pin.centerOfMass(model, data, *row)
        pin.rnea(model, data, *row)
        pin.forwardKinematics(model, data, *row)
        pin.updateFramePlacements(model, data)
        rows.append(data)
    return rows


def matrix(of: Callable, k: int, symmetric: bool = False) -> Callable:
    """The k-th matrix that a function of Pinocchio returns; whole, where it fills one triangle."""

    def one(*args) -> np.ndarray:
        found = of(*args)[k]
        return np.triu(found) + np.triu(found, 1).T if symmetric else found

    return one


def centroidal(k: int) -> Callable:
    return lambda *args: pin.computeCentroidalDynamicsDerivatives(*args)[k][ANGULAR_FIRST]


def frame_derivatives(frames: list[int], reference: str, k: int) -> Callable:
    """One of (v to q, a to q, a to v, a to a) of every frame."""

    def rows(model, data, q, v, a) -> np.ndarray:
        pin.computeForwardKinematicsDerivatives(model, data, q, v, a)
        pin.updateFramePlacements(model, data)
        return np.stack(
            [
                pin.getFrameAccelerationDerivatives(model, data, f, REFERENCES[reference])[k]
                [ANGULAR_FIRST]
                for f in frames
            ]
        )  # fmt: skip

    return rows


def moved(both: Robot, q, columns, names: list[str]):
    """Columns of frames in "world", told at each frame's origin."""
    r = ts.frame_pose(both.mech, q, names).position[..., None]
    swing = torch.linalg.cross(columns[..., :3, :], r.expand_as(columns[..., :3, :]), dim=-2)
    return torch.cat([columns[..., :3, :], columns[..., 3:, :] + swing], -2)


def matrices(both: Robot, names: list[str], frames: list[int], forward: bool) -> dict[str, tuple]:
    """By name: ours of (q, qd, qdd), Pinocchio's of (model, data, q, v, a), and how dofs are laid out.

    In "mixed" Pinocchio tells the derivatives of the components in "world" at the frame's origin, as if that
    did not move: those are compared.
    """
    m = both.mech
    found = {
        "mass matrix": (
            lambda q, qd, x: ts.mass_matrix(m, q), lambda m, d, q, *_: symmetric_mass(m, d, q), 2
        ),
        "Coriolis matrix": (
            lambda q, qd, x: ts.coriolis_matrix(m, q, qd),
            lambda m, d, q, v, a: pin.computeCoriolisMatrix(m, d, q, v),
            2,
        ),
        "inverse dynamics": (lambda *s: ts.inverse_dynamics(m, *s), pin.rnea, 1),
        "torque regressor": (
            lambda *s: ts.torque_regressor(m, *s)[..., places(both), :].flatten(-2).mT,
            lambda *args: pin.computeJointTorqueRegressor(*args).T,
            1,
        ),
        "centroidal rate": (
            lambda *s: ts.centroidal_momentum_rate(m, *s),
            lambda *args: motion(pin.computeCentroidalMomentumTimeVariation(*args)),
            0,
        ),
        "centroidal map's rate": (
            lambda q, qd, x: ts.centroidal_momentum_matrix_rate(m, q, qd),
            lambda m, d, q, v, a: pin.dccrba(m, d, q, v)[ANGULAR_FIRST],
            1,
        ),
    }  # fmt: skip
    for k, what in enumerate(("momentum to q", "rate to q", "rate to qd", "rate to qdd")):
        found[f"centroidal {what}"] = (
            lambda *s, k=k: ts.centroidal_derivatives(m, *s)[k], centroidal(k), 1
        )  # fmt: skip
    for k, to in enumerate(("q", "qd", "qdd")):
        found[f"inverse dynamics to {to}"] = (
            lambda *s, k=k: ts.inverse_dynamics_derivatives(m, *s)[k],
            matrix(pin.computeRNEADerivatives, k, symmetric=k == 2),
            2,
        )
        if forward:
            found[f"forward dynamics to {'tau' if k == 2 else to}"] = (
                lambda *s, k=k: ts.forward_dynamics_derivatives(m, *s)[k],
                matrix(pin.computeABADerivatives, k, symmetric=k == 2),
                2,
            )
    for reference in REFERENCES:
        own = "world" if reference == "mixed" else reference

        def told(q, columns, reference=reference):
            return moved(both, q, columns, names) if reference == "mixed" else columns

        found[f"velocity to q, {reference}"] = (
            lambda q, qd, x, own=own, told=told: told(
                q, ts.frame_velocity_derivatives(m, q, qd, names, own)[0]
            ),
            frame_derivatives(frames, reference, 0),
            1,
        )
        for k, to in enumerate(("q", "qd", "qdd")):
            found[f"acceleration to {to}, {reference}"] = (
                lambda q, qd, x, k=k, own=own, told=told: told(
                    q, ts.frame_acceleration_derivatives(m, q, qd, x, names, own)[k]
                ),
                frame_derivatives(frames, reference, k + 1),
                1,
            )
    return found


def places(both: Robot) -> torch.Tensor:
    """Our bodies in the order of Pinocchio's joints."""
    joints = [both.model.getJointId(name) for name in both.mech.joint_names]
    return torch.tensor(np.argsort(joints))


def errors(name: str, floating: bool, states: int) -> dict[str, float]:
    """The worst relative error of every quantity over all states of a robot."""
    both = Robot.load(robot_files()[name], floating)
    q, qd, qdd, _ = both.states(states)
    names = list(both.mech.frame_names[:: max(1, both.mech.num_frames // FRAMES)])
    frames = [both.model.getFrameId(f, pin.FrameType.BODY) for f in names]
    quantities = whole_quantities(both)
    for reference in REFERENCES:
        quantities |= frame_quantities(both, names, reference)
    rows, found = computed(both, q, qd, qdd), {}
    for quantity, (ours, theirs, of_dofs) in quantities.items():
        expected = np.stack([theirs(both.model, data, frames).copy() for data in rows])
        expected = both.from_pin(expected) if of_dofs else torch.from_numpy(expected)
        found[quantity] = error(quantity, ours(q, qd, qdd), expected)
    forward = name not in NO_FORWARD_DYNAMICS and name not in ALIGNING_AXES
    data = both.model.createData()
    for quantity, (ours, theirs, axes) in matrices(both, names, frames, forward).items():
        states = zip(both.q_to_pin(q), both.to_pin(qd), both.to_pin(qdd), strict=True)
        expected = np.stack([theirs(both.model, data, *state).copy() for state in states])
        expected = both.from_pin(expected, axes) if axes else torch.from_numpy(expected)
        found[quantity] = error(quantity, ours(q, qd, qdd), expected)
    return found


def error(quantity: str, actual: torch.Tensor, expected: torch.Tensor) -> float:
    assert actual.shape == expected.shape, quantity
    return worst_error(actual, expected)


@pytest.mark.parametrize(("name", "floating"), CASES)
def test_frames_and_the_whole_robot_are_pinocchios(name, floating):
    found = errors(name, floating, STATES)
    print(f"\n{name}, floating={floating}, {STATES} states:")
    for quantity, worst in found.items():
        print(f"  {quantity:32s} {worst:.1e}")
    assert {quantity: worst for quantity, worst in found.items() if worst > BOUND} == {}


GROUPS = {
    "frames": ("velocity, ", "acceleration, ", "classical", "Jacobian"),
    "their derivatives": ("velocity to", "acceleration to"),
    "whole robot": ("centre", "its ", "kinetic", "potential", "gravity", "joint wrenches"),
    "centroidal": ("centroidal",),
    "matrices": ("mass", "Coriolis", "torque regressor"),
    "dynamics to q, qd, x": ("inverse dynamics", "forward dynamics"),
}
"""Columns of the table, by how the names of their quantities begin."""


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")
def test_every_robot_agrees_at_64_states_and_the_table_says_how_well():
    worse, seen = {}, set()
    print("\n| robot | " + " | ".join(GROUPS) + " |\n" + "|---" * (1 + len(GROUPS)) + "|")
    for name in robot_files():
        found = errors(name, True, 64)
        row = []
        for starts in GROUPS.values():
            group = {k: x for k, x in found.items() if k.startswith(starts)}
            seen |= group.keys()
            row.append(f"{max(group.values()):.0e}" if group else "-")
        print(f"| {name} | " + " | ".join(row) + " |", flush=True)
        assert found.keys() <= seen
        worse |= {(name, k): x for k, x in found.items() if not x <= BOUND}
    assert worse == {}
