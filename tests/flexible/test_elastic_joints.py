"""Series elastic actuators: frequencies, the limit of a rigid gear, edits and refusals."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

import torchsko as ts
from tests.refusals import assert_refused

RATIO, ROTOR, LINK = 20.0, 2e-3, 0.3


def actuator(stiffness: float | None, damping: float = 0.0, **options) -> ts.Mechanism:
    """A wheel on a hinge, driven by a rotor behind an elastic gear."""
    builder = ts.MechanismBuilder("elastic").link(
        "wheel", inertia=((LINK, 0, 0), (0, LINK, 0), (0, 0, LINK))
    )
    builder.joint("axle", "revolute", child="wheel")
    builder.rotor("axle", RATIO, ROTOR, stiffness=stiffness, damping=damping)
    return builder.build(**options)


def arm(stiffness: float | None) -> ts.Mechanism:
    """Two links under gravity with a rotor at each joint."""
    builder = ts.MechanismBuilder("arm")
    for name, parent, ratio in (("upper", None, 30.0), ("lower", "upper", 20.0)):
        inertia = (0.02 * torch.eye(3)).tolist()
        builder.link(name, mass=1.0, com=(0.2, 0, 0), inertia=inertia)
        place = {"parent": parent, "position": (0.5 if parent else 0.0, 0, 0)}
        builder.joint(f"{name}_joint", "revolute", child=name, axis=(0, 1, 0), **place)
        builder.rotor(f"{name}_joint", ratio, 1e-4, stiffness=stiffness)
    return builder.build()


def frequencies(M: Tensor, K: Tensor) -> Tensor:
    return torch.linalg.eigvals(torch.linalg.solve(M, K)).real.clamp(min=0).sort().values.sqrt()


def test_free_and_locked_frequencies_are_those_of_two_inertias_and_a_spring():
    k = 150.0
    mech = actuator(k)
    assert mech.joint_names == ("axle", "axle_rotor")
    q = torch.zeros(2, dtype=torch.float64)
    free = frequencies(ts.mass_matrix(mech, q), mech.modal_stiffness)
    expected = (k * (1 / LINK + 1 / (RATIO**2 * ROTOR))) ** 0.5
    assert abs(float(free[1]) / expected - 1) < 1e-13 and free[0] < 1e-6
    held = mech.lock({"axle_rotor": 0.0})
    locked = frequencies(ts.mass_matrix(held, q[:1]), held.modal_stiffness)
    assert abs(float(locked[0]) / (k / LINK) ** 0.5 - 1) < 1e-13


def test_the_spring_pushes_both_joints_and_damping_takes_power():
    mech = actuator(150.0, damping=3.0)
    q, qd = (torch.tensor(x, dtype=torch.float64) for x in ([0.1, 3.0], [0.5, -2.0]))
    stretch, rate = q[1] / RATIO - q[0], qd[1] / RATIO - qd[0]
    torque = 150.0 * stretch + 3.0 * rate
    force = ts.passive_force(mech, q, qd)
    assert torch.allclose(force, torch.stack([-torque, torque / RATIO]))
    power = ts.power_balance(mech, q, qd, torch.zeros_like(q))
    assert torch.allclose(power.losses, 3.0 * rate**2) and mech.has_losses
    assert torch.allclose(ts.potential_energy(mech, q), 75.0 * stretch**2)


def test_a_locked_rotor_leaves_the_force_of_its_spring():
    mech = actuator(150.0)
    held = mech.lock({"axle_rotor": 4.0})
    q = torch.tensor([0.1], dtype=torch.float64)
    whole = torch.cat([q, q.new_tensor([4.0])])
    expected = ts.passive_force(mech, whole, torch.zeros_like(whole))[:1]
    assert torch.allclose(ts.passive_force(held, q, torch.zeros_like(q)), expected)


def test_the_motion_approaches_that_of_a_rigid_gear_as_the_stiffness_grows():
    """The error is O(1 / k) if the springs start with the torque that the rotors of the rigid gear take."""
    rigid, ratios = arm(None), torch.tensor([30.0, 20.0], dtype=torch.float64)
    q = torch.tensor([0.3, -0.4], dtype=torch.float64)
    still = torch.zeros_like(q)
    qdd = ts.forward_dynamics(rigid, q, still, still)
    start = ts.State(q, still)
    end = ts.rollout(rigid, start, steps=100, dt=3e-3, method="rk4", fused=False).q[-1]
    errors = []
    for k in (1e2, 1e3, 1e4):
        mech = arm(k)
        joints = [mech.q_slice(f"{x}_joint").start for x in ("upper", "lower")]
        rotors = [mech.q_slice(f"{x}_joint_rotor").start for x in ("upper", "lower")]
        order = torch.argsort(torch.tensor(joints + rotors))
        geared, accel = (torch.cat([x, ratios * x])[order] for x in (q, qdd))
        taken = ts.inverse_dynamics(mech, geared, 0 * geared, accel)[rotors]
        sprung = torch.cat([q, ratios * (q - ratios * taken / k)])[order]
        steps = 100 if k < 1e4 else 300
        run = ts.rollout(
            mech, ts.State(sprung, 0 * sprung), steps=steps, dt=0.3 / steps, method="rk4"
        )
        errors.append((run.q[-1][joints] - end).norm())
    assert all(8 < a / b < 12 for a, b in pairwise(errors))


def test_forward_dynamics_equals_the_dense_system_and_derivatives_follow():
    mech = arm(200.0)
    g = torch.Generator().manual_seed(0)
    q, qd = mech.random_state(generator=g)
    tau = torch.randn(4, generator=g, dtype=torch.float64)
    M, bias = ts.mass_matrix(mech, q), ts.bias_force(mech, q, qd)
    found = ts.forward_dynamics(mech, q, qd, tau)
    assert (found - torch.linalg.solve(M, tau - bias)).abs().max() < 1e-12 * found.abs().max()
    to_q = torch.func.jacfwd(lambda q: ts.forward_dynamics(mech, q, qd, tau))(q)
    assert torch.allclose(ts.forward_dynamics_derivatives(mech, q, qd, tau)[0], to_q, rtol=1e-9)


BAD = {
    "'nowhere'": ("nowhere", "b", 1.0, 1.0),
    "spherical": ("ball", "b", 1.0, 1.0),
    "ratio 0": ("a", "b", 0.0, 1.0),
    "stiffness -1": ("a", "b", 1.0, -1.0),
}


def links() -> ts.MechanismBuilder:
    """Two hinges and a ball."""
    builder = ts.MechanismBuilder("links")
    for name, kind in (("a", "revolute"), ("b", "revolute"), ("ball", "spherical")):
        builder.link(name, mass=1.0, inertia=torch.eye(3).tolist())
        builder.joint(name, kind, child=name)
    return builder


@pytest.mark.parametrize("what", BAD)
def test_a_spring_that_does_not_fit_is_refused(what):
    assert_refused(links().spring(*BAD[what]).build, what)


@pytest.mark.parametrize("file", ["robot.urdf", "robot.xml"])
def test_files_refuse_springs_between_joints(file, tmp_path):
    mech = links().spring("a", "b", 2.0, 10.0).build()
    assert_refused(lambda: ts.save(mech, tmp_path / file), "modal_stiffness")
