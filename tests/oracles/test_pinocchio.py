"""Agreement with Pinocchio on every robot of `example-robot-data`, and the list of exceptions.

The figures: `pytest tests/oracles/test_pinocchio.py -s -k worst`.
"""

import dataclasses
import functools

import numpy as np
import pytest
import torch

import torchsko as ts
from torchsko.io.urdf.read_urdf import read_urdf

pin = pytest.importorskip("pinocchio")

import exact_dynamics  # noqa: E402

from tests.oracles.pinocchio_bridge import (  # noqa: E402
    ALIGNING_AXES,
    BATCH,
    FLOATING_ONLY,
    NO_FORWARD_DYNAMICS,
    UNPHYSICAL,
    Robot,
    mass_matrix,
    robot_files,
    state_errors,
    worst_error,
)

pytestmark = pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")
FILES = robot_files()

CASES = [
    pytest.param(
        name, floating, id=f"{name.removesuffix('.urdf')}-{'floating' if floating else 'fixed'}"
    )
    for name in FILES
    for floating in (False, True)
    if floating or name not in FLOATING_ONLY
]
ARM = "panda_description/urdf/panda.urdf"
HUMANOID = "talos_data/robots/talos_reduced.urdf"
CONTINUOUS = "kinova_description/robots/kinova.urdf"
QUADRUPED = "anymal_c_simple_description/urdf/anymal.urdf"
THREE = [(ARM, False), (CONTINUOUS, True), (HUMANOID, True)]

# Relative to the largest entry; what Pinocchio's own `aba` reaches is printed, not bounded.
BOUNDS = {
    "inverse dynamics": 1e-12,
    "mass matrix": 1e-12,
    "bias": 1e-12,
    "forward dynamics": 1e-10,
    "Pinocchio's aba": float("inf"),
}

each_robot = pytest.mark.parametrize(("name", "floating"), CASES)
three_robots = pytest.mark.parametrize(("name", "floating"), THREE)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine, two threads that wait for each other are 40 times slower than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.lru_cache(maxsize=4)
def robot(name: str, floating: bool) -> Robot:
    return Robot.load(FILES[name], floating)


@functools.cache
def errors(name: str, floating: bool) -> dict[str, float]:
    """Worst error over the batch, relative to the largest entry of each state."""
    both = robot(name, floating)
    mech = both.mech
    q, qd, qdd, tau = both.states(BATCH)
    found = {
        "inverse dynamics": worst_error(
            ts.inverse_dynamics(mech, q, qd, qdd), both.map(pin.rnea, q, qd, qdd)
        ),
        "mass matrix": worst_error(ts.mass_matrix(mech, q), both.map(mass_matrix, q, axes=2)),
        "bias": worst_error(ts.bias_force(mech, q, qd), both.map(pin.nonLinearEffects, q, qd)),
    }
    if name not in NO_FORWARD_DYNAMICS:
        qdd = ts.forward_dynamics(mech, q, qd, tau)
        error = state_errors(qdd, both.map(pin.aba, q, qd, tau))
        if name in ALIGNING_AXES:
            found["Pinocchio's aba"] = error.max().item()
            for k in torch.nonzero(error > 1e-10).flatten().tolist():
                true = exact_dynamics.forward_dynamics(mech, q[k], qd[k], tau[k])
                error[k] = worst_error(qdd[k : k + 1], true[None])
        found["forward dynamics"] = error.max().item()
    return found


# Coverage.


def test_every_robot_that_pinocchio_loads_is_covered_and_faults_are_in_its_report():
    assert len(FILES) >= 68
    at_fault = {name for name in FILES if robot(name, True).mech.report}
    assert at_fault == {*UNPHYSICAL, *NO_FORWARD_DYNAMICS}
    for name, link in UNPHYSICAL.items():
        assert f"link {link!r} <inertia>" in [x.element for x in robot(name, True).mech.report]
        with pytest.raises(ts.RobotFileError, match=f"link {link!r}: the <inertia> is unphysical"):
            ts.load(FILES[name], mimic="independent", strict=True)
    for name in FLOATING_ONLY:
        with pytest.raises(ts.MechanismError, match="no moving joint"):
            ts.load(FILES[name])


@pytest.mark.parametrize("name", sorted(NO_FORWARD_DYNAMICS))
def test_forward_dynamics_that_do_not_exist_are_refused_by_name(name):
    both = robot(name, False)
    q, qd, _, tau = both.states(1)
    with pytest.raises(ts.MechanismError, match=NO_FORWARD_DYNAMICS[name]):
        ts.forward_dynamics(both.mech, q, qd, tau)


# The map of conventions.


@pytest.mark.some(36)
@each_robot
def test_both_have_the_same_joints_by_name_and_each_rate_finds_its_joint(name, floating):
    both = robot(name, floating)
    assert set(both.mech.joint_names) == set(both.model.names) - {"universe"}
    for joint in both.mech.joint_names:
        qd = torch.zeros(both.mech.num_dof, dtype=torch.float64)
        qd[both.mech.dof_slice(joint)] = 1.0
        there = both.model.joints[both.model.getJointId(joint)]
        place = np.flatnonzero(both.to_pin(qd))
        np.testing.assert_array_equal(place, np.arange(there.idx_v, there.idx_v + there.nv))


def test_the_map_permutes_the_joints_of_some_robots():
    def order(both: Robot) -> np.ndarray:
        return both.to_pin(torch.arange(both.mech.num_dof, dtype=torch.float64))

    assert any((np.diff(order(robot(name, False))) != 1).any() for name in list(FILES)[:8])


def test_vectors_and_matrices_return_from_pinocchio_as_they_went():
    both = robot(QUADRUPED, True)
    _, x, *_ = both.states(3)
    assert torch.equal(both.from_pin(both.to_pin(x)), x)
    outer = both.to_pin(x)[:, :, None] * both.to_pin(x)[:, None, :]
    assert torch.equal(both.from_pin(outer, axes=2), x[:, :, None] * x[:, None, :])


@pytest.mark.some(34)
@each_robot
def test_every_link_is_where_pinocchio_has_it(name, floating):
    both = robot(name, floating)
    q, *_ = both.states(4)
    pose = ts.frame_pose(both.mech, q, both.mech.frame_names)
    body = ts.forward_kinematics(both.mech, q)
    data = both.model.createData()
    frames = [both.model.getFrameId(f, pin.FrameType.BODY) for f in both.mech.frame_names]
    bodies = [both.model.getJointId(j) for j in both.mech.joint_names]
    for k, row in enumerate(both.q_to_pin(q)):
        pin.framesForwardKinematics(both.model, data, row)
        for placements, (R, r) in (
            ([data.oMf[i] for i in frames], (pose.rotation[k], pose.position[k])),
            ([data.oMi[i] for i in bodies], (body.rotation[k], body.position[k])),
        ):
            np.testing.assert_allclose(R, [p.rotation for p in placements], rtol=0, atol=1e-13)
            np.testing.assert_allclose(r, [p.translation for p in placements], rtol=0, atol=1e-13)


@three_robots
def test_every_link_moves_as_pinocchio_has_it(name, floating):
    both = robot(name, floating)
    q, qd, *_ = both.states(4)
    J = ts.frame_jacobian(both.mech, q, both.mech.frame_names)
    velocity = (J @ qd[:, None, :, None])[..., 0].numpy()
    data = both.model.createData()
    for k, (row, rate) in enumerate(zip(both.q_to_pin(q), both.to_pin(qd), strict=True)):
        pin.forwardKinematics(both.model, data, row, rate)
        for i, frame in enumerate(both.mech.frame_names):
            there = both.model.getFrameId(frame, pin.FrameType.BODY)
            expected = pin.getFrameVelocity(both.model, data, there)
            expected = np.concatenate([expected.angular, expected.linear])
            np.testing.assert_allclose(velocity[k, i], expected, rtol=0, atol=1e-12)


@pytest.mark.some(37)
@each_robot
def test_limits_are_those_pinocchio_reads(name, floating):
    both = robot(name, floating)
    for joint in both.mech.joint_names:
        there = both.model.joints[both.model.getJointId(joint)]
        if there.nv > 1:
            continue
        dof, q = both.mech.dof_slice(joint), both.mech.q_slice(joint)
        assert both.mech.effort_limit[dof].item() == both.model.effortLimit[there.idx_v]
        assert both.mech.velocity_limit[dof].item() == both.model.velocityLimit[there.idx_v]
        if there.nq == 1:
            assert both.mech.lower[q].item() == both.model.lowerPositionLimit[there.idx_q]
            assert both.mech.upper[q].item() == both.model.upperPositionLimit[there.idx_q]
        else:
            assert both.mech.upper[q].item() == -both.mech.lower[q].item() == torch.inf


# Dynamics.


@pytest.mark.some(30)
@each_robot
def test_dynamics_agree(name, floating):
    found = errors(name, floating)
    assert {law: error for law, error in found.items() if error > BOUNDS[law]} == {}


def test_exact_arithmetic_agrees_with_pinocchio_where_both_are_well_conditioned():
    both = robot(QUADRUPED, True)
    q, qd, _, tau = both.states(1)
    true = exact_dynamics.forward_dynamics(both.mech, q[0], qd[0], tau[0])
    assert worst_error(both.map(pin.aba, q, qd, tau), true[None]) <= 1e-12


@pytest.mark.nightly
def test_the_worst_of_all_robots_is_within_bounds():
    worst: dict[str, tuple[float, str]] = {}
    for case in CASES:
        name, floating = case.values
        for law, error in errors(name, floating).items():
            worst[law] = max(worst.get(law, (0.0, "")), (error, f"{name}, floating={floating}"))
    print(f"\n{len(FILES)} robots, {len(CASES)} with fixed or floating base, {BATCH} states each:")
    for law, (error, where) in worst.items():
        print(f"  {law:18s} {error:.1e}  {where}")
    assert all(worst[law][0] <= bound for law, bound in BOUNDS.items() if law in worst)


def test_the_robot_that_ships_has_the_inertias_and_joints_of_the_one_in_example_robot_data():
    ours, theirs = read_urdf(ts.robots.panda), read_urdf(FILES[ARM], mimic="independent")
    links = {link.name.removeprefix("panda_"): link for link in theirs.links}
    joints = {joint.name.removeprefix("panda_"): joint for joint in theirs.joints}
    for i in range(8):
        link = ours.links[i]
        assert dataclasses.replace(links[link.name], name=link.name) == link
    for joint in ours.joints[:7]:
        for field in ("rotation", "position", "axis", "lower", "upper", "velocity", "effort"):
            assert getattr(joint, field) == getattr(joints[joint.name], field)


@three_robots
def test_external_forces_agree(name, floating):
    both = robot(name, floating)
    q, qd, qdd, tau = both.states(8)
    g = torch.Generator().manual_seed(1)
    f = torch.randn(8, both.mech.num_bodies, 6, generator=g, dtype=q.dtype)
    data = both.model.createData()
    rnea, aba = [], []
    for row, rate, accel, load, wrench in zip(
        both.q_to_pin(q), *map(both.to_pin, (qd, qdd, tau)), f.numpy(), strict=True
    ):
        forces = pin.StdVec_Force([pin.Force.Zero()] * both.model.njoints)
        for joint, (mx, my, mz, *linear) in zip(both.mech.joint_names, wrench, strict=True):
            at = both.model.getJointId(joint)
            forces[at] = pin.Force(np.array(linear), np.array([mx, my, mz]))
        rnea.append(pin.rnea(both.model, data, row, rate, accel, forces).copy())
        aba.append(pin.aba(both.model, data, row, rate, load, forces).copy())
    tau_here = ts.inverse_dynamics(both.mech, q, qd, qdd, f_ext=f)
    qdd_here = ts.forward_dynamics(both.mech, q, qd, tau, f_ext=f)
    assert worst_error(tau_here, both.from_pin(np.stack(rnea))) <= 1e-12
    assert worst_error(qdd_here, both.from_pin(np.stack(aba))) <= 1e-10


@three_robots
def test_armature_adds_the_same_in_both(name, floating):
    both = robot(name, floating)
    g = torch.Generator().manual_seed(2)
    armature = torch.rand(both.mech.num_dof, generator=g, dtype=torch.float64)
    if (
        floating
    ):  # that of a free joint acts in inertial axes here, as in MuJoCo, and there in body axes
        armature = torch.cat([torch.zeros(6).double(), armature[6:]])
    model = both.model.copy()
    model.armature = both.to_pin(armature)
    with_rotors = Robot(both.mech.replace(armature=armature), model, both.there)
    mech = with_rotors.mech
    q, qd, qdd, tau = both.states(8)
    expected = with_rotors.map(pin.rnea, q, qd, qdd)
    assert worst_error(ts.inverse_dynamics(mech, q, qd, qdd), expected) <= 1e-12
    expected = with_rotors.map(mass_matrix, q, axes=2)
    assert worst_error(ts.mass_matrix(mech, q), expected) <= 1e-12
    expected = with_rotors.map(pin.aba, q, qd, tau)
    assert worst_error(ts.forward_dynamics(mech, q, qd, tau), expected) <= 1e-10


@pytest.mark.parametrize("name", [ARM, HUMANOID, "tiago_description/robots/tiago_dual.urdf"])
def test_damping_and_friction_are_what_pinocchio_reads_and_leaves_out_of_rnea(name):
    both = Robot.load(FILES[name], False, losses=True)
    q, qd, qdd, tau = both.states(8)
    rate = both.to_pin(qd)
    damping, friction = both.model.damping, both.model.upperDryFrictionLimit
    losses = both.from_pin(damping * rate + friction * np.sign(rate))
    assert damping.any()
    expected = both.map(pin.rnea, q, qd, qdd) + losses
    assert worst_error(ts.inverse_dynamics(both.mech, q, qd, qdd), expected) <= 1e-12
    expected = both.map(pin.aba, q, qd, tau - losses)
    assert worst_error(ts.forward_dynamics(both.mech, q, qd, tau), expected) <= 1e-10


# Derivatives, along the tangent of q.


def tangent_jacobians(mech, function, q, qd, x):
    """d function / d (tangent of q, qd, x) at each state of a batch."""

    def shifted(step, q, qd, x):
        return function(mech, ts.integrate(mech, q, step), qd, x)

    jacobian = torch.func.vmap(torch.func.jacfwd(shifted, argnums=(0, 2, 3)))
    return jacobian(torch.zeros_like(qd), q, qd, x)


@pytest.mark.parametrize(
    ("verb", "theirs", "last"),
    [
        (ts.inverse_dynamics, pin.computeRNEADerivatives, 2),
        (ts.forward_dynamics, pin.computeABADerivatives, 3),
    ],
    ids=["inverse", "forward"],
)
@three_robots
def test_derivatives_of_dynamics_agree_to_1e_9(name, floating, verb, theirs, last):
    """To the tangent, to qd and to qdd or tau; of the last Pinocchio fills one triangle."""
    both = robot(name, floating)
    states = both.states(8)
    state = *states[:2], states[last]
    for k, here in enumerate(tangent_jacobians(both.mech, verb, *state)):
        there = both.map(lambda *x, k=k: np.asarray(theirs(*x)[k]), *state, axes=2)
        there = there.triu() + there.triu(1).mT if k == 2 else there
        assert worst_error(here, there) <= 1e-9


# Single precision.


@three_robots
def test_float32_forward_dynamics_keep_five_digits(name, floating):
    both = robot(name, floating)
    q, qd, _, tau = (x.float() for x in both.states(BATCH))
    qdd = ts.forward_dynamics(both.mech.to(torch.float32), q, qd, tau)
    expected = both.map(pin.aba, q.double(), qd.double(), tau.double())
    error = worst_error(qdd.double(), expected)
    print(f"\nfloat32 forward dynamics of {name}, floating={floating}: {error:.1e}")
    assert error <= 1e-5
