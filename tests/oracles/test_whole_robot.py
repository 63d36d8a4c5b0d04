"""Agreement with Pinocchio on frames in three references, and on what the whole robot has.

The table: `pytest tests/oracles/test_whole_robot.py -s`.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import torchsko as ts

pin = pytest.importorskip("pinocchio")

from tests.oracles.pinocchio_bridge import Robot, robot_files, worst_error  # noqa: E402

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


@pytest.mark.parametrize(("name", "floating"), CASES)
def test_frames_and_the_whole_robot_are_pinocchios(name, floating):
    both = Robot.load(robot_files()[name], floating)
    q, qd, qdd, _ = both.states(STATES)
    names = list(both.mech.frame_names[:: max(1, both.mech.num_frames // FRAMES)])
    frames = [both.model.getFrameId(f, pin.FrameType.BODY) for f in names]
    quantities = whole_quantities(both)
    for reference in REFERENCES:
        quantities |= frame_quantities(both, names, reference)
    rows, found = computed(both, q, qd, qdd), {}
    for quantity, (ours, theirs, of_dofs) in quantities.items():
        expected = np.stack([theirs(both.model, data, frames).copy() for data in rows])
        expected = both.from_pin(expected) if of_dofs else torch.from_numpy(expected)
        actual = ours(q, qd, qdd)
        assert actual.shape == expected.shape, quantity
        found[quantity] = worst_error(actual, expected)
    print(f"\n{name}, floating={floating}, {STATES} states, {len(names)} frames:")
    for quantity, error in found.items():
        print(f"  {quantity:32s} {error:.1e}")
    assert {quantity: error for quantity, error in found.items() if error > BOUND} == {}
