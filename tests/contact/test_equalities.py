"""Soft equalities, limits of tendons and of ball joints: derivatives, and laws of motion."""

import pytest
import torch

import torchsko as ts
from tests.contact.models import MODELS, TENDONS, WELDED

mujoco = pytest.importorskip("mujoco")

EQUALITIES = tuple(
    f"equality_{name}"
    for name in ("rotation", "position", "numbers", "solref", "solimp", "invweight", "active")
)
LIMITS = ("tendon_transmission", "tendon_range", "tendon_friction", "tendon_armature", "limit_margin",
          "limit_solimp")  # fmt: skip
PARAMETERS = {"welded": (*EQUALITIES, "ball_angle", *LIMITS[4:]), "tendons": (*EQUALITIES[2:], *LIMITS),
              "gripper": EQUALITIES[2:]}  # fmt: skip


def states_near_the_start(mech, num=2, seed=0):
    """Configurations near the initial one with velocities, `[num, ...]`."""
    generator = torch.Generator().manual_seed(seed)
    step, qd = torch.randn(2, num, mech.num_dof, dtype=mech.dtype, generator=generator)
    return ts.integrate(mech, mech.initial().expand(num, -1), 0.2 * step), 0.5 * qd


def dynamics_of(name):
    """A function of a step from two states, of velocities and of parameters of `name`; and its inputs."""
    text = MODELS[name]().replace('timestep="0.001"', "")
    mech = ts.load(text, mimic="independent")
    contact = ts.ContactModel.of(mech)
    q, qd = states_near_the_start(mech)
    names = PARAMETERS[name]

    def dynamics(step, qd, *parameters):
        changed = contact.replace(**dict(zip(names, parameters, strict=True)))
        q_moved = ts.integrate(mech, q, step)
        return ts.contact.contact_dynamics(mech, q_moved, qd, 0 * qd, contact=changed)[:2]

    inputs = (torch.zeros_like(qd), qd, *(getattr(contact, x) for x in names))
    return dynamics, [x.clone().requires_grad_() for x in inputs]


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_directional_derivative_of_all_inputs_equals_a_difference(name):
    dynamics, inputs = dynamics_of(name)
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in dynamics(*inputs)]

    def value(*inputs):
        return sum((w * y).sum() for w, y in zip(weights, dynamics(*inputs), strict=True))

    gradients = torch.autograd.grad(value(*inputs), inputs)
    for chosen in (inputs[:2], inputs[2:]):
        ways = [torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in inputs]
        steps = [
            1e-6 * way * (x.detach().abs() + 0.01) * any(x is y for y in chosen)
            for x, way in zip(inputs, ways, strict=True)
        ]
        with torch.no_grad():
            ends = [
                value(*(x + s * h for x, h in zip(inputs, steps, strict=True))) for s in (1, -1)
            ]
        slope = sum((g * h).sum() for g, h in zip(gradients, steps, strict=True))
        torch.testing.assert_close(slope, (ends[0] - ends[1]) / 2, rtol=2e-5, atol=1e-9)


@pytest.mark.nightly
@pytest.mark.parametrize("name", PARAMETERS)
def test_derivatives_of_all_inputs_are_exact(name):
    dynamics, inputs = dynamics_of(name)
    options = {"eps": 1e-6, "atol": 1e-4, "rtol": 1e-5, "fast_mode": True}
    assert torch.autograd.gradcheck(dynamics, inputs, check_forward_ad=True, **options)


@pytest.mark.nightly
@pytest.mark.parametrize("name", PARAMETERS)
def test_second_derivatives_are_exact(name):
    dynamics, inputs = dynamics_of(name)
    options = {"eps": 1e-6, "atol": 1e-3, "rtol": 1e-4, "fast_mode": True}
    assert torch.autograd.gradgradcheck(lambda *x: dynamics(*x)[0].sum(0), inputs, **options)


BODY = """<mujoco><option gravity="0 0 0"/><worldbody><body name="a"><freejoint/>
<geom size=".1" mass="2"/></body></worldbody><equality><{} solimp=".9999 .9999 .1"/></equality></mujoco>"""
CONNECT = BODY.format('connect body1="a" anchor=".3 0 0"')
WELD = BODY.format('weld body1="a" torquescale=".5"')


def accelerations_of(text, q, qd, **changes):
    """Accelerations, with some parameters of the equality changed."""
    mech = ts.load(text)
    contact = ts.ContactModel.of(mech)
    contact = contact.replace(**{name: getattr(contact, name) + x for name, x in changes.items()})
    return mech, ts.contact.contact_dynamics(mech, q, qd, torch.zeros_like(qd), contact=contact).qdd


@pytest.mark.parametrize("text", [CONNECT, WELD], ids=["connect", "weld"])
def test_a_body_accelerates_towards_the_place_where_it_is_held(text):
    mech = ts.load(text)
    q, qd = mech.initial(), torch.zeros(6, dtype=torch.float64)
    shift = torch.zeros(1, 2, 3, dtype=torch.float64, requires_grad=True)
    inertial = ts.ContactModel.of(mech).equality_ends[0].index(mech.num_bodies)
    qdd = accelerations_of(text, q, qd, equality_position=shift)[1]
    slope = torch.autograd.grad(qdd[3], shift)[0][0, inertial, 0]
    # Near zero the acceleration is k d times the distance; MuJoCo's default time constant is 0.02 s.
    assert float(slope) == pytest.approx(1 / (0.9999 * 0.02) ** 2, rel=1e-2)


def test_a_weld_turns_a_body_back():
    mech = ts.load(WELD)
    turn = torch.tensor([0.0, 0.0, 0.05, 0, 0, 0], dtype=torch.float64, requires_grad=True)
    q = ts.integrate(mech, mech.initial(), turn)
    qdd = accelerations_of(WELD, q, torch.zeros(6, dtype=torch.float64))[1]
    assert float(qdd[2].detach()) < -10
    assert float(torch.autograd.grad(qdd[2], turn)[0][2]) < -1000


@pytest.mark.parametrize("text", [CONNECT, WELD], ids=["connect", "weld"])
def test_reference_accelerations_include_the_turning_of_the_rows(text):
    """A body that moves as a stiff equality allows, or with a rate that it damps, has that acceleration.

    The second rate of the residual is -b times its rate, without a further part of order rate squared.
    """
    spin = torch.tensor([0.0, 0.0, 3.0], dtype=torch.float64)
    arm = torch.tensor([0.3, 0.0, 0.0], dtype=torch.float64)
    mech = ts.load(text)
    if text == CONNECT:
        qd = torch.cat([spin, -torch.linalg.cross(spin, arm)])
        qdd = accelerations_of(text, mech.initial(), qd)[1]
        point = ts.Frame("a", position=arm)
    else:
        qd = torch.cat([0 * spin, arm])
        qdd = accelerations_of(text, mech.initial(), qd)[1]
        point = ts.Frame("a")
    accel = ts.frame_acceleration(
        mech, mech.initial(), qd, qdd, point, reference="mixed", classical=True
    )[3:]
    speed = ts.frame_velocity(mech, mech.initial(), qd, point, reference="mixed")[3:]
    rate = 2 / (0.9999 * 0.02)
    torch.testing.assert_close(accel, -rate * speed, rtol=1e-3, atol=5e-3)


def test_an_equality_acts_where_it_is_active():
    mech = ts.load(WELDED.format(cone="elliptic"))
    contact = ts.ContactModel.of(mech)
    assert contact.equality_active.tolist() == [1, 1, 0]
    q, qd = states_near_the_start(mech)
    active = torch.tensor([[1.0, 1, 0], [0, 0, 0]], dtype=torch.float64)
    both = ts.contact.contact_dynamics(
        mech, q, qd, 0 * qd, contact=contact.replace(equality_active=active)
    )
    held = ts.contact.contact_dynamics(mech, q[0], qd[0], 0 * qd[0], contact=contact)
    torch.testing.assert_close(both.qdd[0], held.qdd, rtol=1e-9, atol=1e-9)
    assert (both.qdd[1] - both.qdd[0]).abs().max() > 1


def test_locked_joints_leave_tendons_and_equalities_of_further_joints():
    mech = ts.load(TENDONS, mimic="independent")
    contact = ts.ContactModel.of(mech.lock({"knee": 0.0}))
    assert contact.tendon_names == ("a", "b", "c") and contact.equality_names == ("equality0",)
    contact = ts.ContactModel.of(mech.lock({"knee": 0.1, "hip": 0.2}))
    assert contact.tendon_names == ("b", "c") and len(contact.equality_names) == 1
    assert contact.equality_ends == ((mech.lock({"knee": 0, "hip": 0}).num_tree_dof,) * 2,)
