"""Contact of mechanisms with embedded loops and with joints that follow others."""

from dataclasses import replace

import mujoco
import numpy as np
import pytest
import torch

import torchsko as ts
from tests.contact.models import CLOSED
from tests.oracles import gauss
from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.soft_rows import soft_rows


@pytest.fixture
def closed():
    """The mechanism, configurations near its start, velocities and joint forces."""
    mech = ts.load(CLOSED, closures="embed")
    generator = torch.Generator().manual_seed(1)
    step, qd, tau = torch.randn(3, 6, mech.num_dof, dtype=mech.dtype, generator=generator)
    q = ts.integrate(mech, mech.initial().expand(6, -1), 0.2 * step)
    return mech, q, qd, tau


def test_forces_do_virtual_work_on_motions_that_the_loops_allow(closed):
    """On all joints, with the rows of the tree: X* (ID - f) = tau (d'Alembert)."""
    mech, q, qd, tau = closed
    found = ts.contact.contact_dynamics(mech, q, qd, tau)
    tree = ts.load(CLOSED, mimic="independent")
    contact = ts.ContactModel.of(tree)
    contact = contact.replace(equality_active=torch.zeros_like(contact.equality_active))
    state = ts.expand(mech, q), ts.expand_velocity(mech, q, qd)
    accel = ts.expand_acceleration(mech, q, qd, found.qdd)
    rows = soft_rows(Kinematics.of(tree, *state), contact)
    gradient, _, _ = rows.derivatives(rows.motion(accel) - rows.reference)
    assert ((gradient != 0).sum(-1) >= 3).all()
    force = -rows.generalized_forces(gradient)
    smooth = tree.replace(friction=torch.zeros_like(tree.friction))
    left = ts.inverse_dynamics(smooth, *state, accel) - force
    units = torch.eye(mech.num_dof, dtype=q.dtype)[:, None].expand(-1, 6, -1)
    motions = ts.expand_velocity(mech, q, units)
    torch.testing.assert_close((motions * left).sum(-1).mT, tau, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close((motions * force).sum(-1).mT, found.forces, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("independent", ["crank", "rod", "rocker"])
def test_rows_of_dependent_joints_are_those_of_mujoco(independent):
    """MuJoCo's contacts, limits and dry friction on the tree, at the accelerations of all joints."""
    loop = ts.constraints.Closure(
        "loop", "connect", "rod", "rocker", (0.4, 0, 0), (0.3, 0, 0), method="embed"
    )
    start, end = CLOSED.index("<connect"), CLOSED.index("<joint joint1")
    text = CLOSED[:start] + CLOSED[end:]
    mech = ts.load(text, closures=[replace(loop, independent=(independent,))])
    assert independent in mech.dof_names
    model = mujoco.MjModel.from_xml_string(text)
    model.eq_active0[:] = 0
    data, there = mujoco.MjData(model), ts.conventions("mujoco", mech)
    generator, kinds = torch.Generator().manual_seed(1), set()
    for _ in range(6):
        step, qd, tau = torch.randn(3, mech.num_dof, dtype=mech.dtype, generator=generator)
        q = ts.integrate(mech, mech.initial(), 0.2 * step)
        found = ts.contact.contact_dynamics(mech, q, qd, tau)
        data.qpos[:], data.qvel[:] = there.q_to(q), there.qd_to(q, qd)
        mujoco.mj_forward(model, data)
        J, M = gauss.soft_rows(model, data), np.zeros((model.nv, model.nv))
        accel = there.qdd_to(q, qd, found.qdd).numpy()
        mujoco.mj_constraintUpdate(model, data, J @ accel - data.efc_aref[: data.nefc], None, 0)
        mujoco.mj_fullM(model, data, M)
        applied = data.qfrc_passive + there.tau_to(q, tau).numpy() + data.qfrc_constraint
        left = torch.as_tensor(M @ accel + data.qfrc_bias - applied)
        force = there.tau_from(q, torch.as_tensor(np.array(data.qfrc_constraint)))
        size = float(force.abs().max())
        assert there.tau_from(q, left).abs().max() < 1e-10 * max(size, 1.0)
        torch.testing.assert_close(found.forces, force, rtol=1e-9, atol=1e-9 * size)
        kinds |= {*data.efc_type[np.abs(data.efc_force[: data.nefc]) > 0].tolist()}
    assert len(kinds) == 3


@pytest.mark.parametrize("integrator", ["Euler", "implicitfast", "RK4"])
def test_short_steps_follow_the_accelerations_and_stay_closed(closed, integrator):
    mech, q, qd, _ = (x if isinstance(x, ts.Mechanism) else x[:2] for x in closed)
    qdd = ts.contact.contact_dynamics(mech, q, qd, 0 * qd).qdd
    dt = 1e-6
    after = ts.step(mech, ts.State(q, qd), dt=dt, integrator=integrator)
    assert (ts.close_loops(mech, after.q).distance < 1e-12).all()
    torch.testing.assert_close(ts.difference(mech, q, after.q) / dt, qd, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close((after.qd - qd) / dt, qdd, rtol=1e-3, atol=1e-1)


@pytest.mark.parametrize("eulerdamp", [True, False])
def test_a_rollout_of_contact_steps_takes_the_steps_of_a_closed_mechanism(closed, eulerdamp):
    mech, q, qd, tau = (x if isinstance(x, ts.Mechanism) else x[:2] for x in closed)
    contact = ts.ContactModel.of(mech)
    contact = replace(contact, options=replace(contact.options, eulerdamp=eulerdamp))
    after = ts.step(mech, ts.State(q, qd), tau, contact=contact, dt=0.002, integrator="Euler")
    method = ts.ContactStep(contact)
    qs, qds, *_ = ts.rollout(
        mech, ts.State(q, qd), tau, steps=1, dt=0.002, method=method, fused=False
    )
    torch.testing.assert_close(qs[:, -1], after.q, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(qds[:, -1], after.qd, rtol=1e-9, atol=1e-9)


def test_damping_of_dependent_joints_acts_implicitly(closed):
    """(M + h X* D X) (qd1 - qd) = h M qdd, with the damping of all joints of the tree."""
    mech, q, qd, _ = (x if isinstance(x, ts.Mechanism) else x[0] for x in closed)
    qd = qd * torch.tensor([1.0] * 2 + [0.0] * 6, dtype=qd.dtype)  # the ball does not turn
    dt, M = 0.01, ts.mass_matrix(mech, q)
    contact = ts.ContactModel.of(mech)
    contact = replace(contact, options=replace(contact.options, timestep=dt))
    qdd = ts.contact.contact_dynamics(mech, q, qd, 0 * qd, contact=contact).qdd
    X = ts.expand_velocity(
        mech, q.expand(mech.num_dof, -1), torch.eye(mech.num_dof, dtype=q.dtype)
    ).mT
    implicit = M + dt * X.mT @ torch.diag(mech.damping) @ X
    after = ts.step(mech, ts.State(q, qd), dt=dt, integrator="Euler")
    torch.testing.assert_close(implicit @ (after.qd - qd), dt * M @ qdd, rtol=1e-9, atol=1e-9)


@pytest.mark.nightly
def test_derivatives_are_those_along_the_closed_motion(closed):
    mech, q, qd, tau = (x if isinstance(x, ts.Mechanism) else x[:1] for x in closed)
    contact = ts.ContactModel.of(mech)

    def dynamics(step, qd, tau, size):
        changed = contact.replace(shape_size=size)
        return ts.contact.contact_dynamics(
            mech, ts.integrate(mech, q, step), qd, tau, contact=changed
        )[:2]

    inputs = (torch.zeros_like(qd), qd, tau, contact.shape_size)
    inputs = [x.clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(dynamics, inputs, eps=1e-6, atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("contact", ["soft", "smooth"])
def test_the_armature_of_a_tendon_on_one_joint_is_armature_of_the_joint(closed, contact):
    """The inertia a c^2 of a tendon of length c q, on joints that loops and couplings move."""
    joints = {"rocker": (0.2, 2.0), "second": (0.4, -0.5)}
    by_joint, tendons = CLOSED, ""
    for joint, (a, c) in joints.items():
        named = f'<joint name="{joint}"'
        by_joint = by_joint.replace(named, f'{named} armature="{a * c * c}"')
        tendons += f'<fixed armature="{a}"><joint joint="{joint}" coef="{c}"/></fixed>'
    by_tendon = CLOSED.replace("</worldbody>", f"</worldbody><tendon>{tendons}</tendon>")
    light, q, qd, tau = closed

    def after(text):
        mech = light if text is CLOSED else ts.load(text, closures="embed")
        options = {"contact": ts.contact.SmoothContact.of(mech)} if contact == "smooth" else {}
        return ts.step(mech, ts.State(q, qd), tau, **options, dt=0.002).qd

    found, expected = after(by_tendon), after(by_joint)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert (found - after(CLOSED)).abs().max() > 1e-3
