"""What Pinocchio gives for frames, the whole robot and all derivatives, beside ours: a table of every robot.

Usage: python -m tests.oracles.whole_robot [--states 64] [--only panda] [--part 1/2]
(> benchmarks/results/pinocchio.md)

Every URDF of `example-robot-data` on a free base, random states, float64: the largest difference in a state,
relative to the largest entry of the quantity in that state, over all states, frames and references. What is
zero up to rounding in a state, below 1e-12 in SI units, is compared as it is.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pinocchio as pin
import torch
from torch import Tensor

import torchsko as ts
from tests.oracles.pinocchio_bridge import (
    ALIGNING_AXES,
    NO_FORWARD_DYNAMICS,
    Robot,
    mass_matrix,
    robot_files,
)

BODIES = 4
"""At least so many of a robot, if it has them, in equal steps through its list; the last frame of each."""
BOUND = 1e-10
ROUNDING = 1e-12
ILL_CONDITIONED = "tiago_description/robots/tiago_no_hand.urdf"
"""Its mass matrices have condition numbers of 2e7, and of their inverses Pinocchio keeps nine digits."""
ARMATURE = 0.1
"""Of every joint [kg m^2 or kg] for forward dynamics where no inertia resists some force; see `errors`."""
REFERENCES = {"body": pin.LOCAL, "world": pin.WORLD, "mixed": pin.LOCAL_WORLD_ALIGNED}
ANGULAR_FIRST = [3, 4, 5, 0, 1, 2]
GROUPS = {
    "kinematics": ("pose", "velocity", "acceleration", "classical acceleration"),
    "Jacobians and rates": ("Jacobian", "Jacobian rate"),
    "their derivatives": ("velocity to", "acceleration to"),
    "center of mass": ("center", "its "),
    "centroidal": ("centroidal",),
    "energies": ("kinetic energy", "potential energy", "mechanical energy"),
    "dynamics": ("inverse dynamics", "bias", "gravity force", "joint wrenches", "mass matrix"),
    "forward": ("forward dynamics", "inverse mass matrix"),
    "Coriolis": ("Coriolis",),
    "regressors": ("regressor",),
    "d ID": ("d inverse", "d gravity"),
    "d FD": ("d forward",),
}
"""Columns of the table, by how the names of their quantities begin; the longest beginning counts."""

Theirs = Callable[..., tuple[np.ndarray, ...]]


@dataclass(frozen=True)
class Compared:
    """Quantities of one call in either library.

    Attributes:
        names: of the quantities.
        ours: of (q, qd, qdd) of all states.
        theirs: of (model, data, q, v, a) of one state.
        axes: how many of the last axes of each are dofs, in Pinocchio's order.
    """

    names: tuple[str, ...]
    ours: Callable[..., tuple[Tensor, ...]]
    theirs: Theirs
    axes: int = 0


def motion(x) -> np.ndarray:
    """A motion or a force as [angular; linear]."""
    return np.concatenate([x.angular, x.linear])


def rows(x: np.ndarray) -> np.ndarray:
    """The rows [linear; angular] of a matrix as [angular; linear]."""
    return np.asarray(x)[ANGULAR_FIRST]


def kinematics(both: Robot, names: list[str], frames: list[int]) -> Iterator[Compared]:
    """Poses, velocities, accelerations; Jacobians and their rates."""
    m = both.mech

    def poses(model, data, q, v, a):
        pin.framesForwardKinematics(model, data, q)
        placed = [data.oMf[f] for f in frames]
        return np.stack([x.rotation for x in placed]), np.stack([x.translation for x in placed])

    yield Compared(
        ("pose, rotation", "pose, position"), lambda q, *_: ts.frame_pose(m, q, names), poses
    )
    for reference, there in REFERENCES.items():

        def moves(q, qd, qdd, reference=reference):
            return (
                ts.frame_velocity(m, q, qd, names, reference=reference),
                ts.frame_acceleration(m, q, qd, qdd, names, reference=reference),
                ts.frame_acceleration(m, q, qd, qdd, names, reference=reference, classical=True),
            )

        def their_moves(model, data, q, v, a, there=there):
            pin.forwardKinematics(model, data, q, v, a)
            pin.updateFramePlacements(model, data)
            functions = (
                pin.getFrameVelocity,
                pin.getFrameAcceleration,
                pin.getFrameClassicalAcceleration,
            )
            return tuple(
                np.stack([motion(fn(model, data, f, there)) for f in frames]) for fn in functions
            )

        def columns(q, qd, qdd, reference=reference):
            J = ts.frame_jacobian(m, q, names, reference=reference)
            return J, ts.frame_jacobian_rate(m, q, qd, names, reference=reference)

        def their_columns(model, data, q, v, a, there=there):
            pin.computeJointJacobiansTimeVariation(model, data, q, v)
            pin.updateFramePlacements(model, data)
            functions = (pin.getFrameJacobian, pin.getFrameJacobianTimeVariation)
            return tuple(
                np.stack([rows(fn(model, data, f, there)) for f in frames]) for fn in functions
            )

        what = ("velocity", "acceleration", "classical acceleration")
        yield Compared(tuple(f"{x}, {reference}" for x in what), moves, their_moves)
        what = ("Jacobian", "Jacobian rate")
        yield Compared(tuple(f"{x}, {reference}" for x in what), columns, their_columns, 1)


def frame_derivatives(both: Robot, names: list[str], frames: list[int]) -> Iterator[Compared]:
    """Velocities to q, accelerations to q, qd and qdd.

    In "mixed" Pinocchio tells the derivatives of the components in "world" at the frame's origin, as if that
    did not move: those are compared.
    """
    m = both.mech
    for reference, there in REFERENCES.items():
        own = "world" if reference == "mixed" else reference

        def ours(q, qd, qdd, reference=reference, own=own):
            to_q, _ = ts.frame_velocity_derivatives(m, q, qd, names, reference=own)
            found = (to_q, *ts.frame_acceleration_derivatives(m, q, qd, qdd, names, reference=own))
            return tuple(moved(m, q, x, names) for x in found) if reference == "mixed" else found

        def theirs(model, data, q, v, a, there=there):
            pin.computeForwardKinematicsDerivatives(model, data, q, v, a)
            pin.updateFramePlacements(model, data)
            each = [pin.getFrameAccelerationDerivatives(model, data, f, there) for f in frames]
            return tuple(np.stack([rows(x) for x in column]) for column in zip(*each, strict=True))

        what = ("velocity to q", "acceleration to q", "acceleration to qd", "acceleration to qdd")
        yield Compared(tuple(f"{x}, {reference}" for x in what), ours, theirs, 1)


def moved(mech: ts.Mechanism, q: Tensor, columns: Tensor, names: list[str]) -> Tensor:
    """Columns of frames in "world", told at each frame's origin."""
    r = ts.frame_pose(mech, q, names).position[..., None].expand_as(columns[..., :3, :])
    swing = torch.linalg.cross(columns[..., :3, :], r, dim=-2)
    return torch.cat([columns[..., :3, :], columns[..., 3:, :] + swing], -2)


def whole(both: Robot) -> Iterator[Compared]:
    """Centers of mass, momenta and energies."""
    m = both.mech
    joints = [both.model.getJointId(name) for name in m.joint_names]
    heavy = (ts.subtree_masses(m) > 0).nonzero().flatten().tolist()

    def centers(q, qd, qdd):
        found = ts.com_velocity(m, q, qd), ts.com_acceleration(m, q, qd, qdd)
        return ts.center_of_mass(m, q), *found, ts.subtree_centers(m, q)[..., heavy, :]

    def their_centers(model, data, q, v, a):
        pin.centerOfMass(model, data, q, v, a)
        told = (data.oMi[joints[k]].act(data.com[joints[k]]) for k in heavy)
        return data.com[0], data.vcom[0], data.acom[0], np.stack([*told])

    what = ("center of mass", "its velocity", "its acceleration", "centers of subtrees")
    yield Compared(what, centers, their_centers)
    yield Compared(
        ("its Jacobian",),
        lambda q, *_: (ts.com_jacobian(m, q),),
        lambda model, data, q, v, a: (pin.jacobianCenterOfMass(model, data, q),),
        1,
    )

    def energies(q, qd, qdd):
        found = ts.kinetic_energy(m, q, qd), ts.potential_energy(m, q), ts.total_energy(m, q, qd)
        return tuple(x[:, None] for x in found)

    def their_energies(model, data, q, v, a):
        found = (
            pin.computeKineticEnergy(model, data, q, v),
            pin.computePotentialEnergy(model, data, q),
        )
        return tuple(
            np.array([x]) for x in (*found, pin.computeMechanicalEnergy(model, data, q, v))
        )

    yield Compared(
        ("kinetic energy", "potential energy", "mechanical energy"), energies, their_energies
    )


def centroidal(both: Robot) -> Iterator[Compared]:
    """The map, its rate, momentum and its rate, and their derivatives."""
    m = both.mech

    def momenta(q, qd, qdd):
        return ts.centroidal_momentum(m, q, qd), ts.centroidal_momentum_rate(m, q, qd, qdd)

    def their_momenta(model, data, q, v, a):
        pin.computeCentroidalMomentumTimeVariation(model, data, q, v, a)
        return motion(data.hg), motion(data.dhg)

    yield Compared(("centroidal momentum", "centroidal momentum's rate"), momenta, their_momenta)

    def maps(q, qd, qdd):
        A = ts.centroidal_momentum_matrix(m, q)
        return A, ts.centroidal_momentum_matrix_rate(m, q, qd)

    def their_maps(model, data, q, v, a):
        pin.dccrba(model, data, q, v)
        return rows(data.Ag), rows(data.dAg)

    yield Compared(("centroidal map", "centroidal map's rate"), maps, their_maps, 1)
    yield Compared(
        tuple(
            f"centroidal {x}" for x in ("momentum to q", "rate to q", "rate to qd", "rate to qdd")
        ),
        lambda *s: ts.centroidal_derivatives(m, *s),
        lambda *s: tuple(rows(x) for x in pin.computeCentroidalDynamicsDerivatives(*s)),
        1,
    )


def dynamics(both: Robot) -> Iterator[Compared]:
    """Forces, wrenches, matrices, and the derivatives of inverse dynamics."""
    m = both.mech
    joints = [both.model.getJointId(name) for name in m.joint_names]
    yield Compared(
        ("inverse dynamics", "bias", "gravity force"),
        lambda q, qd, qdd: (
            ts.inverse_dynamics(m, q, qd, qdd),
            ts.bias_force(m, q, qd),
            ts.gravity_force(m, q),
        ),
        lambda model, data, q, v, a: (
            pin.rnea(model, data, q, v, a).copy(),
            pin.nonLinearEffects(model, data, q, v).copy(),
            pin.computeGeneralizedGravity(model, data, q).copy(),
        ),
        1,
    )

    def wrenches(model, data, q, v, a):
        pin.rnea(model, data, q, v, a)
        return (np.stack([motion(data.f[j]) for j in joints]),)

    yield Compared(("joint wrenches",), lambda *s: (ts.joint_wrenches(m, *s),), wrenches)
    yield Compared(
        ("mass matrix", "Coriolis matrix"),
        lambda q, qd, qdd: (ts.mass_matrix(m, q), ts.coriolis_matrix(m, q, qd)),
        lambda model, data, q, v, a: (
            mass_matrix(model, data, q),
            pin.computeCoriolisMatrix(model, data, q, v).copy(),
        ),
        2,
    )
    yield Compared(
        ("Coriolis matrix's action",),
        lambda q, qd, qdd: ((ts.coriolis_matrix(m, q, qd) @ qd[..., None])[..., 0],),
        lambda model, data, q, v, a: (pin.computeCoriolisMatrix(model, data, q, v) @ v,),
        1,
    )
    yield derivatives(
        "inverse dynamics to q qd qdd",
        lambda *s: ts.inverse_dynamics_derivatives(m, *s),
        pin.computeRNEADerivatives,
    )
    yield Compared(
        ("d gravity to q",),
        lambda q, qd, qdd: ts.inverse_dynamics_derivatives(m, q, 0 * qd, 0 * qdd)[:1],
        lambda model, data, q, v, a: (pin.computeGeneralizedGravityDerivatives(model, data, q),),
        2,
    )


def derivatives(names: str, ours: Callable[..., tuple[Tensor, ...]], theirs: Theirs) -> Compared:
    """Derivatives of dynamics, of which Pinocchio fills one triangle of the last, symmetric one."""
    verb, arguments = names.split(" to ")

    def whole(*s):
        to_q, to_v, to_x = theirs(*s)
        return to_q, to_v, whole_matrix(to_x)

    return Compared(tuple(f"d {verb} to {x}" for x in arguments.split()), ours, whole, 2)


def forward(both: Robot) -> Iterator[Compared]:
    """Forward dynamics, its derivatives, and the inverse of the mass matrix; qdd is read as forces."""
    m = both.mech
    yield Compared(
        ("forward dynamics",),
        lambda *s: (ts.forward_dynamics(m, *s),),
        lambda *s: (pin.aba(*s),),
        1,
    )
    yield derivatives(
        "forward dynamics to q qd tau",
        lambda *s: ts.forward_dynamics_derivatives(m, *s),
        pin.computeABADerivatives,
    )
    yield Compared(
        ("inverse mass matrix",),
        # A model has no batch where nothing of it depends on the state, as of a single free body.
        lambda q, *_: (ts.innovations(ts.assemble(m, q)).inverse().expand(len(q), -1, -1),),
        lambda model, data, q, v, a: (whole_matrix(pin.computeMinverse(model, data, q)),),
        2,
    )


def regressors(both: Robot, some: list[int]) -> Iterator[Compared]:
    """Of torques, of both energies, and of the wrench on some bodies by themselves."""
    m, model = both.mech, both.model
    joints = [model.getJointId(name) for name in m.joint_names]
    places = [j - 1 for j in joints]
    inverse = torch.tensor(np.argsort(places))
    yield Compared(
        ("regressor of torques",),
        lambda *s: (ts.torque_regressor(m, *s)[..., inverse, :].flatten(-2).mT,),
        lambda *s: (pin.computeJointTorqueRegressor(*s).T,),
        1,
    )

    def energies(q, qd, qdd):
        return ts.kinetic_energy_regressor(m, q, qd), ts.potential_energy_regressor(m, q)

    def their_energies(model, data, q, v, a):
        kinetic = pin.computeKineticEnergyRegressor(model, data, q, v).reshape(-1, 10)[places]
        return kinetic, pin.computePotentialEnergyRegressor(model, data, q).reshape(-1, 10)[places]

    what = ("regressor of kinetic energy", "regressor of potential energy")
    yield Compared(what, energies, their_energies)

    def wrenches(q, qd, qdd):
        Y = ts.wrench_regressor(m, q, qd, qdd, [m.body_names[k] for k in some])
        return (torch.stack([Y[:, i, :, k] for i, k in enumerate(some)], 1),)

    def their_wrenches(model, data, q, v, a):
        pin.rnea(model, data, q, v, a)
        return (np.stack([rows(pin.jointBodyRegressor(model, data, joints[k])) for k in some]),)

    yield Compared(("regressor of wrenches",), wrenches, their_wrenches)


def whole_matrix(x: np.ndarray) -> np.ndarray:
    """A symmetric matrix of which Pinocchio fills one triangle."""
    return np.triu(x) + np.triu(x, 1).T


def errors(name: str, floating: bool, states: int) -> dict[str, float]:
    """The worst relative error of every quantity over all states of a robot.

    Where no inertia resists some force, or Pinocchio keeps fewer than ten digits of what follows, every joint
    gets an armature for forward dynamics, in both libraries.
    """
    both = Robot.load(robot_files()[name], floating)
    state = both.states(states)[:3]
    some = list(range(0, both.mech.num_bodies, max(1, both.mech.num_bodies // BODIES)))
    last = dict(zip(both.mech.frame_body, both.mech.frame_names, strict=True))
    names = [last[k] for k in some]
    frames = [both.model.getFrameId(f, pin.FrameType.BODY) for f in names]
    helped = (*NO_FORWARD_DYNAMICS, *ALIGNING_AXES, ILL_CONDITIONED)
    able = with_armature(both) if name in helped else both
    found: dict[str, float] = {}
    for robot, compared in (
        *((both, x) for x in kinematics(both, names, frames)),
        *((both, x) for x in frame_derivatives(both, names, frames)),
        *((both, x) for x in (*whole(both), *centroidal(both), *dynamics(both))),
        *((both, x) for x in regressors(both, some)),
        *((able, x) for x in forward(able)),
    ):
        found |= of(robot, compared, state)
    return found


def of(both: Robot, compared: Compared, state: tuple[Tensor, ...]) -> dict[str, float]:
    """The worst relative errors of quantities over all states."""
    q, *rest = state
    data, each = both.model.createData(), []
    for row in zip(both.q_to_pin(q), *map(both.to_pin, rest), strict=True):
        # Copied, for Pinocchio gives views of `data`.
        each.append([x.copy() for x in compared.theirs(both.model, data, *row)])
    found = {}
    theirs = [np.stack(x) for x in zip(*each, strict=True)]
    for name, mine, there in zip(compared.names, compared.ours(*state), theirs, strict=True):
        expected = both.from_pin(there, compared.axes) if compared.axes else torch.from_numpy(there)
        assert mine.shape == expected.shape, name
        off, size = (x.flatten(1).abs().amax(1) for x in (mine - expected, expected))
        found[name] = float((off / torch.where(size < ROUNDING, 1.0, size)).max())
    return found


def with_armature(both: Robot) -> Robot:
    """The robot with an armature on every joint but its base, in both libraries."""
    mech = both.mech
    armature = torch.full_like(mech.armature, ARMATURE)
    if "free" in mech.joint_kinds:
        armature[mech.dof_slice(mech.joint_names[mech.joint_kinds.index("free")])] = 0
    model = both.model.copy()
    model.armature = both.to_pin(armature)
    return Robot(ts.mark_singular_joints(mech.replace(armature=armature)), model, both.there)


def group_of(quantity: str) -> str:
    """The column that a quantity is in."""
    starts = {start: group for group, all_ in GROUPS.items() for start in all_}
    return starts[max((x for x in starts if quantity.startswith(x)), key=len)]


def table(states: int, names: list[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """Prints the table, a row a robot as it is found; gives each robot's errors."""
    print(f"{len(names)} robots of example-robot-data on a free base, {states} states each.")
    print(f"Worst relative differences to Pinocchio {pin.__version__}, over three references.\n")
    print("| robot | dofs | " + " | ".join(GROUPS) + " |")
    print("|---" * (2 + len(GROUPS)) + "|")
    for name in names:
        found = errors(name, True, states)
        worst = dict.fromkeys(GROUPS, 0.0)
        for quantity, x in found.items():
            worst[group_of(quantity)] = max(worst[group_of(quantity)], x)
        robot = name.removesuffix(".urdf").replace("_description", "")
        dofs = pin.buildModelFromUrdf(str(robot_files()[name]), pin.JointModelFreeFlyer()).nv
        row = [robot, str(dofs), *(f"{x:.0e}" for x in worst.values())]
        print("| " + " | ".join(row) + " |", flush=True)
        yield name, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=64)
    parser.add_argument("--only", default="", help="robots whose path has this in it")
    parser.add_argument("--part", default="1/1", help="2/3: of each three robots the second")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ts.RobotFileWarning)
    start, worst = time.perf_counter(), ("", "", 0.0)
    part, parts = map(int, args.part.split("/"))
    names = [name for name in robot_files() if args.only in name][part - 1 :: parts]
    above = []
    for name, found in table(args.states, names):
        for quantity, x in found.items():
            worst = max(worst, (name, quantity, x), key=lambda row: row[2])
            above += [(name, quantity, x)] if not x <= BOUND else []
    print(f"\nThe worst: {worst[1]} of {worst[0]}, {worst[2]:.1e}.")
    for name, quantity, x in above:
        print(f"Above {BOUND:.0e}: {quantity} of {name}, {x:.1e}.")
    print(f"{len(found)} quantities of {len(names)} robots in {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
