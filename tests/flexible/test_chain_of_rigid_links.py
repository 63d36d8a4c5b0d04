"""A flexible arm of two links against MuJoCo's chain of rigid links and torsion springs."""

import math
from itertools import pairwise

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import jacfwd

import torchsko as ts

STIFFNESS, TIME = 20.0, 1.0
"""Bending stiffness of links of unit length and density [N m^2], and duration [s]."""


def torques(t: float) -> tuple[float, float]:
    """Of shoulder and elbow, which deflect the links by up to 8 % of their length [N m]."""
    return 4.0 * math.sin(math.pi * t), 1.2 * math.sin(math.pi * t)


def chain(n: int) -> str:
    """Two links, each of n cells with a spring of stiffness EI / h in the middle of each."""
    h = 1.0 / n

    def rod(length: float) -> str:
        about = length**3 / 12
        inertia = f'diaginertia="{about * 1e-6} {about} {about}"'
        return f'<inertial pos="{length / 2} 0 0" mass="{length}" {inertia}/>'

    def link(name: str, at: float, carried: str) -> str:
        spring = f'<joint axis="0 1 0" stiffness="{STIFFNESS / h}"/>'
        place = h / 2 if n == 1 else h
        body = f'<body pos="{place} 0 0">{spring}{rod(h / 2)}{carried}</body>'
        for i in range(n - 1):
            place = h / 2 if i == n - 2 else h
            body = f'<body pos="{place} 0 0">{spring}{rod(h)}{body}</body>'
        hinge = f'<joint name="{name}" axis="0 1 0"/>'
        return f'<body pos="{at} 0 0">{hinge}{rod(h / 2)}{body}</body>'

    tip = f'<site name="tip" pos="{h / 2} 0 0"/>'
    motors = '<actuator><motor joint="shoulder"/><motor joint="elbow"/></actuator>'
    arm = link("shoulder", 0, link("elbow", h / 2, tip))
    option = '<option gravity="0 0 0" integrator="RK4"/>'
    return f"<mujoco>{option}<worldbody>{arm}</worldbody>{motors}</mujoco>"


def tip_of_chain(n: int, dt: float) -> np.ndarray:
    model = mujoco.MjModel.from_xml_string(chain(n))
    model.opt.timestep = dt
    data = mujoco.MjData(model)

    def control(model: mujoco.MjModel, data: mujoco.MjData) -> None:
        data.ctrl[:] = torques(data.time)

    mujoco.set_mjcb_control(control)
    try:
        for _ in range(round(TIME / dt)):
            mujoco.mj_step(model, data)
    finally:
        mujoco.set_mjcb_control(None)
    mujoco.mj_forward(model, data)
    return data.site("tip").xpos.copy()


@pytest.fixture(scope="module")
def tip() -> Tensor:
    """Position of the tip after a second, extrapolated from chains whose error is O(1 / n^2)."""
    ends = [tip_of_chain(n, dt) for n, dt in ((5, 2e-4), (10, 1e-4), (20, 2.5e-5))]
    coarse, fine = ((4 * b - a) / 3 for a, b in pairwise(ends))
    assert np.abs(coarse - fine).max() < 5e-6
    return torch.tensor(fine)


def arm(count: int) -> ts.Mechanism:
    beam = ts.FlexibleBody.beam(1.0, 1.0, EI_y=STIFFNESS, shapes=(count, 0))
    builder = ts.MechanismBuilder("arm").flexible_link("upper", beam).flexible_link("lower", beam)
    builder.joint("shoulder", "revolute", child="upper", axis=(0, 1, 0))
    elbow = {"parent": "upper/tip", "axis": (0, 1, 0)}
    return builder.joint("elbow", "revolute", child="lower", **elbow).build(gravity=(0, 0, 0))


def tip_of_arm(mech: ts.Mechanism, accelerate, dt: float) -> Tensor:
    """By RK4 with accelerations of (q, qd, tau)."""
    n = mech.num_dof
    drives = [mech.dof_slice(name).start for name in ("shoulder", "elbow")]

    def rate(t: float, x: Tensor) -> Tensor:
        tau = x.new_zeros(n)
        tau[drives] = tau.new_tensor(torques(t))
        return torch.cat([x[n:], accelerate(x[:n], x[n:], tau)])

    x = mech.mass.new_zeros(2 * n)
    for i in range(round(TIME / dt)):
        t = i * dt
        k1 = rate(t, x)
        k2 = rate(t + dt / 2, x + dt / 2 * k1)
        k3 = rate(t + dt / 2, x + dt / 2 * k2)
        k4 = rate(t + dt, x + dt * k3)
        x = x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return ts.frame_pose(mech, x[:n], "lower/tip").position


@pytest.mark.nightly
@pytest.mark.parametrize("count", [2, 3])
def test_the_tip_is_that_of_a_chain_of_rigid_links(count, tip):
    mech = arm(count)
    fast = ts.fuse(mech)
    end = tip_of_arm(mech, fast.forward_dynamics, 2e-3 if count == 2 else 1e-3)
    assert (end - tip).norm() < 1e-4


@pytest.mark.nightly
def test_an_inertia_frozen_at_zero_deflection_is_wrong(tip):
    """It conserves its own energy and momentum, but the tip is off by 20 times as much or more."""
    mech = arm(2)
    beam = ts.FlexibleBody.beam(1.0, 1.0, EI_y=STIFFNESS, shapes=(2, 0))
    body = ts.MechanismBuilder("body").flexible_link("beam", beam).build(floating_base=True)
    frozen = ts.mass_matrix(body, body.neutral())
    rows = torch.eye(mech.num_dof, dtype=mech.dtype)
    modes = mech.joints.modes[1]

    def mass(q: Tensor) -> Tensor:
        """Sum of J* M(0) J over the links, with the motion of their frames at the deflected state."""
        total = torch.zeros_like(rows)
        for link in ("upper", "lower"):
            J = torch.cat([ts.frame_jacobian(mech, q, link), rows[mech.dof_slice(f"{link}_modes")]])
            total = total + J.mT @ frozen @ J
        return total

    def accelerate(q: Tensor, qd: Tensor, tau: Tensor) -> Tensor:
        slope = jacfwd(mass)(q)
        force = torch.einsum("ijk,k,j->i", slope, qd, qd)
        force = force - torch.einsum("jki,j,k->i", slope, qd, qd) / 2
        force = force.index_add(0, modes, mech.modal_stiffness @ q[modes])
        return torch.linalg.solve(mass(q), tau - force)

    exact = (tip_of_arm(mech, ts.fuse(mech).forward_dynamics, 5e-3) - tip).norm()
    assert (tip_of_arm(mech, accelerate, 5e-3) - tip).norm() > 20 * exact
