"""Whole rollouts with contact: one kernel, exact gradients, independent samples, bounded memory."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.contact.models import HOPPER, quadruped
from tests.contact.test_contact_dynamics import reached_states
from torchsko.contact.soft_dynamics import ContactDynamics

mujoco = pytest.importorskip("mujoco")

STEPS, DT, NUM_REACHED = 8, 0.002, 10_000
GAIN = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the report names the shapes
    TEXT = HOPPER.format(cone="elliptic", condim=3)
    HOPPING = ts.load(TEXT.partition("<actuator>")[0] + "</mujoco>")  # controls are joint forces


def law(t, q, qd):
    return -GAIN * qd - q


def states(num):
    """Hoppers about to touch and in the ground, most of them sliding."""
    g = torch.Generator().manual_seed(0)
    q = HOPPING.file_metadata.initial + 0.03 * torch.randn(num, 4, generator=g).double()
    return q - 0.05 * torch.eye(4).double()[1], 0.3 * torch.randn(num, 4, generator=g).double()


@pytest.fixture(scope="module")
def fast():
    return ts.fuse(HOPPING, inputs=("mass",))


def simulate(mech, q, qd, dt=DT, **options):
    found = ts.rollout(
        mech, ts.State(q, qd), law, steps=STEPS, dt=dt, method=ts.ContactStep(), **options
    )
    return found.q, found.qd, found.constraint_forces, found.residual


def test_rollouts_are_steps_with_gradients(fast):
    mass = (HOPPING.mass * torch.linspace(0.8, 1.2, 5)[:, None]).requires_grad_()
    q, qd = (x.requires_grad_() for x in states(5))
    weights = torch.linspace(1, 2, 4).double()
    found, wanted = [], []
    for robot, options in ((HOPPING, {"fused": False}), (fast, {"fused": True})):
        many = robot.replace(mass=mass)
        qs, qds, forces, residuals = simulate(many, q, qd, **options)
        loss = (weights * (qs[:, -1] + 0.1 * qds[:, -1])).sum() + 1e-4 * forces.square().sum()
        found.append((qs, qds, forces, *torch.autograd.grad(loss, (q, qd, mass, GAIN))))
        assert residuals.max() < 1e-9 * (1 + forces.abs().max())
    state, many = ts.State(q, qd), HOPPING.replace(mass=mass)
    contact = ts.ContactModel.of(many)
    for _ in range(STEPS):
        tau = law(state.t, state.q, state.qd)
        state = ts.step(many, state, tau, contact=contact, dt=DT)
        wanted.append((state.q, state.qd))
    assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)
    for k, series in enumerate(zip(*wanted, strict=True)):
        assert_close(found[0][k][:, 1:], torch.stack(series, 1), rtol=1e-9, atol=1e-9)
    assert found[0][2].abs().amax((0, 1)).min() > 0.01


def test_rollouts_are_steps_of_a_robot_whose_tendon_has_armature_springs_and_damping():
    text = """<mujoco><option timestep=".002"/><worldbody>
      <body><joint name="j" axis="0 1 0" damping=".2"/><geom size=".1" pos=".3 0 0"/>
      <body pos=".5 0 0"><joint name="k" axis="0 1 0"/><geom size=".1" pos=".3 0 0"/></body></body>
      </worldbody><tendon><fixed name="t" armature=".5" stiffness="20" damping="2" springlength=".1">
      <joint joint="j" coef="1"/><joint joint="k" coef="-2"/></fixed></tendon>
      <actuator><motor joint="j"/></actuator></mujoco>"""
    mech = ts.load(text)
    q, qd = torch.tensor([[0.3, 0.5], [-1.0, 2.0]]).double().split(1)
    ctrl, state = torch.ones(1, dtype=q.dtype), ts.State(q, qd)
    for _ in range(STEPS):
        state = ts.step(mech, state, ctrl.expand(1, 1))
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), ctrl, steps=STEPS, method=ts.ContactStep())
    assert_close((qs[:, -1], qds[:, -1]), state[:2], rtol=1e-12, atol=1e-12)


def test_long_steps_lengthen_the_time_constants_of_contacts(fast):
    q, qd = states(5)
    state, dt = ts.State(q, qd), 0.012
    with pytest.warns(ts.RobotFileWarning, match=r"0\.024 s is used"):
        for _ in range(STEPS):
            state = ts.step(HOPPING, state, law(state.t, state.q, state.qd).detach(), dt=dt)
        found = simulate(HOPPING, q, qd, dt, fused=False), simulate(fast, q, qd, dt, fused=True)
    for qs, qds, *_ in found:
        assert_close((qs[:, -1], qds[:, -1]), state[:2], rtol=1e-9, atol=1e-9)


def test_samples_do_not_depend_on_the_batch_nor_on_diverged_samples(fast):
    q, qd = states(37)
    together = simulate(fast, q, qd, fused=True)
    for rows in (slice(0, 1), slice(3, 20), slice(30, 37)):
        assert_close(simulate(fast, q[rows], qd[rows], fused=True),
                     tuple(x[rows] for x in together), rtol=0, atol=0)  # fmt: skip
    is_good = torch.arange(37) != 4
    start = torch.where(is_good[:, None], qd, torch.nan)
    found = simulate(fast, q, start, fused=True, nonfinite="ignore")
    assert_close([x[is_good] for x in found], [x[is_good] for x in together], rtol=0, atol=0)
    with pytest.raises(ts.NonFiniteError, match=r"sample \[4\]"):
        simulate(fast, q, start, fused=True, nonfinite="raise")


MEMORY = """
import torch
import torchsko as ts
from tests.contact.models import HOPPER
torch.set_num_threads(1)
text = HOPPER.format(cone="elliptic", condim=3)
mech = ts.fuse(ts.load(text.partition("<actuator>")[0] + "</mujoco>"))
def peak(steps):
    q = mech.mechanism().file_metadata.initial.repeat(256, 1).requires_grad_()
    found = ts.rollout(mech, ts.State(q, 0 * q), lambda t, q, qd: -qd, steps=steps, dt=2e-3,
                       method=ts.ContactStep(), every=steps // 2, checkpoint=25, fused=True)
    found[0][:, -1].sum().backward()
    (most,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(most) * 1024
print(-(peak(100) - peak(1000)))
"""


@pytest.mark.nightly
def test_gradients_through_a_thousand_steps_take_less_than_200_megabytes():
    root = Path(ts.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", MEMORY], env=os.environ | {"PYTHONPATH": str(root)},
                          capture_output=True, text=True, timeout=3600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200e6


@pytest.mark.nightly
def test_the_solver_converges_in_both_precisions():
    model = mujoco.MjModel.from_xml_string(quadruped("elliptic"))
    double = ts.from_mujoco(model)
    to_mujoco = ts.conventions("mujoco", double)
    qpos, qvel, *_ = reached_states(model, NUM_REACHED, steps=160)
    q = to_mujoco.q_from(torch.tensor(qpos))
    qd = to_mujoco.qd_from(q, torch.tensor(qvel))
    found = []
    for dtype in (torch.float64, torch.float32):
        mech, parts = double.to(dtype), zip(*(y.to(dtype).split(500) for y in (q, qd)), strict=True)
        found.append([ts.contact.contact_dynamics(mech, *x, torch.zeros_like(x[1])) for x in parts])
    exact, single = (ContactDynamics(*map(torch.cat, zip(*x, strict=True))) for x in found)
    size = 1 + exact.forces.abs().amax(-1)
    assert ((exact.residual / size) > 1e-6).double().mean() < 1e-3
    assert (exact.forces != 0).any(-1).double().mean() > 0.9
    scale = exact.qdd.abs().amax(-1)
    error = (single.qdd - exact.qdd).abs().amax(-1) / scale
    assert (error < 1e-5).double().mean() > 0.99
