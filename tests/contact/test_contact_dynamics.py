"""Constraint forces and accelerations equal those of MuJoCo; their derivatives are exact."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.contact.models import MODELS
from torchsko.contact.line_search import step_length

mujoco = pytest.importorskip("mujoco")


def reached_states(model, num, seed=0, steps=80):
    """States on random trajectories with their accelerations and forces, as arrays by name."""
    rng, data, rows = np.random.default_rng(seed), mujoco.MjData(model), []
    for _ in range(num):
        mujoco.mj_resetData(model, data)
        data.qvel[:] = 0.3 * rng.normal(size=model.nv)
        for _ in range(rng.integers(1, steps)):
            data.ctrl[:] = rng.uniform(-1, 1, size=model.nu)
            mujoco.mj_step(model, data)
        mujoco.mj_forward(model, data)
        names = ("qpos", "qvel", "qacc", "qfrc_actuator", "qfrc_constraint")
        rows.append([getattr(data, name).copy() for name in names] + [data.nefc])
    return [np.array(column) for column in zip(*rows, strict=True)]


CASES = [
    ("quadruped", {"cone": "pyramidal"}),
    ("quadruped", {"cone": "elliptic", "impratio": 3.0}),
    ("quadruped", {"cone": "elliptic", "condim": 6}),
    ("quadruped", {"cone": "pyramidal", "condim": 4}),
    ("hopper", {"cone": "elliptic"}),
    ("hopper", {"cone": "pyramidal", "condim": 1}),
    ("boxes", {"cone": "elliptic"}),
    ("boxes", {"cone": "pyramidal"}),
    ("pile", {"cone": "elliptic"}),
    ("four-bar", {}),
    ("welded", {"cone": "elliptic"}),
    ("welded", {"cone": "pyramidal"}),
    ("gripper", {}),
    ("tendons", {}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_forces_and_accelerations_equal_those_of_mujoco(compiled, name, options):
    model = compiled(MODELS[name](**options))
    mech = ts.from_mujoco(model, mimic="independent")
    mujoco_conventions = ts.conventions("mujoco", mech)
    qpos, qvel, qacc, actuator, constraint, count = reached_states(model, 12)
    q = mujoco_conventions.q_from(torch.tensor(qpos))
    qd = mujoco_conventions.qd_from(q, torch.tensor(qvel))
    tau = mujoco_conventions.tau_from(q, torch.tensor(actuator))
    tau = tau + ts.actuators.tendons_of(mech).force(mech, q, qd)
    found = ts.contact.contact_dynamics(mech, q, qd, tau)
    forces = mujoco_conventions.tau_from(q, torch.tensor(constraint))
    qdd = mujoco_conventions.qdd_from(q, qd, torch.tensor(qacc))
    scale = 1 + forces.abs().amax()
    assert count.max() >= 3
    torch.testing.assert_close(found.forces / scale, forces / scale, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.qdd, qdd, rtol=1e-9, atol=1e-9 * float(qdd.abs().amax()))
    assert (found.residual <= 1e-9 * scale).all()


@pytest.mark.parametrize(("name", "options"), CASES[:4], ids=str)
def test_contact_forces_equal_those_of_mujoco(compiled, name, options):
    model = compiled(MODELS[name](**options))
    mech = ts.from_mujoco(model)
    contact, to_mujoco = ts.ContactModel.of(mech), ts.conventions("mujoco", mech)
    data, wrench, count = mujoco.MjData(model), np.zeros(6), 0
    for qpos, qvel, *_ in zip(*reached_states(model, 6), strict=True):
        data.qpos[:], data.qvel[:] = qpos, qvel
        mujoco.mj_forward(model, data)
        q = to_mujoco.q_from(torch.tensor(qpos))
        qd = to_mujoco.qd_from(q, torch.tensor(qvel))
        qdd = to_mujoco.qdd_from(q, qd, torch.tensor(data.qacc))
        points = ts.contacts(mech, q, contact=contact)
        found = ts.contact_forces(mech, q, qd, qdd, contact=contact)
        assert (found[~points.active] == 0).all()
        for k in range(data.ncon):
            mujoco.mj_contactForce(model, data, k, wrench)
            apart = (points.position - torch.tensor(data.contact[k].pos)).abs().amax(-1)
            nearest = int(torch.where(points.active, apart, 1.0).argmin())
            np.testing.assert_allclose(
                found[nearest], wrench, atol=1e-6 * (1 + np.abs(wrench).max())
            )
            count += 1
    assert count


def test_the_residual_states_the_error_of_the_equations_of_motion(compiled):
    mech = ts.from_mujoco(compiled(MODELS["hopper"]()))
    q = mech.file_metadata.initial - torch.tensor([0.0, 0.05, 0.0, 0.0], dtype=torch.float64)
    qd = torch.zeros(4, dtype=torch.float64)
    found = ts.contact.contact_dynamics(mech, q, qd, qd)
    smooth = mech.replace(friction=torch.zeros_like(mech.friction))
    error = ts.inverse_dynamics(smooth, q, qd, found.qdd) - found.forces
    assert float(error.abs().max()) == pytest.approx(float(found.residual))


NAMES = (
    "friction",
    "solref",
    "solimp",
    "shape_size",
    "shape_position",
    "limit_solref",
    "loss_solref",
)


@pytest.mark.parametrize(
    ("cone", "condim"),
    [
        ("elliptic", 3),
        pytest.param("pyramidal", 3, marks=pytest.mark.nightly),
        pytest.param("elliptic", 6, marks=pytest.mark.nightly),
    ],
)
def test_derivatives_of_all_inputs_are_exact(compiled, cone, condim):
    mech = ts.from_mujoco(compiled(MODELS["hopper"](cone=cone, condim=condim)))
    contact = ts.ContactModel.of(mech)
    torch.manual_seed(0)
    start = mech.file_metadata.initial + torch.tensor([0, -0.03, 0.1, -0.05], dtype=torch.float64)
    q = start + 0.01 * torch.randn(2, 4, dtype=torch.float64)
    qd, tau = 0.3 * torch.randn(2, 4, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    assert ts.contacts(mech, q, contact=contact).active.any(-1).all()

    def dynamics(q, qd, tau, mass, *parameters):
        changed = contact.replace(**dict(zip(NAMES, parameters, strict=True)))
        return ts.contact.contact_dynamics(mech.replace(mass=mass), q, qd, tau, contact=changed)[:2]

    parameters = [getattr(contact, name) for name in NAMES]
    inputs = [x.clone().requires_grad_() for x in (q, qd, tau, mech.mass, *parameters)]
    options = {"eps": 1e-7, "atol": 1e-4, "rtol": 1e-5, "fast_mode": True}
    assert torch.autograd.gradcheck(dynamics, inputs, check_forward_ad=True, **options)


def test_states_at_the_edges_have_finite_gradients(compiled):
    mech = ts.from_mujoco(compiled(MODELS["boxes"](cone="elliptic")))
    q = mech.file_metadata.initial.clone()
    q[2], q[9], q[16] = 0.1, 0.1, 0.1  # surfaces that touch at distance zero
    states = torch.stack(
        [q, q - 0.01 * (torch.arange(21) % 7 == 2), q + 1.0 * (torch.arange(21) % 7 == 2)]
    )
    for dtype in (torch.float64, torch.float32):
        robot = mech.to(dtype)
        q = states.to(dtype).requires_grad_()
        qd = torch.zeros(3, 18, dtype=dtype, requires_grad=True)
        found = ts.contact.contact_dynamics(robot, q, qd, torch.zeros_like(qd))
        gradients = torch.autograd.grad(found.qdd.square().sum(), (q, qd))
        assert all(torch.isfinite(x).all() for x in (found.qdd, *gradients))


@pytest.mark.nightly
@pytest.mark.parametrize("cone", ["elliptic", "pyramidal"])
def test_second_derivatives_are_exact(compiled, cone):
    mech = ts.from_mujoco(compiled(MODELS["hopper"](cone=cone)))
    contact = ts.ContactModel.of(mech)
    torch.manual_seed(0)
    start = mech.file_metadata.initial + torch.tensor([0, -0.03, 0.1, -0.05], dtype=torch.float64)
    q = start + 0.01 * torch.randn(2, 4, dtype=torch.float64)
    qd, tau = 0.3 * torch.randn(2, 4, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)

    def accelerations(*state):
        return ts.contact.contact_dynamics(mech, *state, contact=contact).qdd.sum(0)

    inputs = [x.clone().requires_grad_() for x in (q, qd, tau)]
    options = {"eps": 1e-6, "atol": 1e-3, "rtol": 1e-4, "fast_mode": True}
    assert torch.autograd.gradgradcheck(accelerations, inputs, **options)


def test_line_searches_do_not_alternate_between_the_ends_of_their_bracket():
    """The slope is -1 at 0 and 0.75 at 1 and jumps at the minimum; Newton steps lead from end to end."""
    kink, right, left = 0.6178, 0.7475, 0.2535
    weight, loss = torch.tensor([1e8, left]).double(), torch.tensor([0.42145]).double()
    rows = SimpleNamespace(weight=weight, loss=loss, cones=(), has_small_friction=False)
    x, along = torch.full((2,), -kink).double(), torch.ones(2).double()
    slope, curvature = torch.tensor(-0.42195).double(), torch.tensor(right).double()
    start, is_last = torch.tensor(-1.0).double(), torch.tensor(False)
    found = step_length(rows, x, along, slope, curvature, start, is_last)
    assert abs(found - kink) < 0.05
