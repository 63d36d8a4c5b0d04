"""Conventions of other libraries: kinematics as their documents say, power, and the way back."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import jvp

import torchsko as ts
from tests.io.urdf_texts import joint, robot
from tests.states import normal_state
from tests.strategies import agree, random_mechanism
from torchsko.bridge.conventions.libraries import LIBRARIES
from torchsko.spatial.rotation import quaternion_to_matrix, skew

each = pytest.mark.parametrize("library", LIBRARIES)


def forest(library: str) -> ts.Mechanism:
    """A floating base that carries one joint of every kind of the library, and a second floating body."""
    kinds = ["free", *LIBRARIES[library].kinds]
    return random_mechanism(kinds, [-1, -1, *range(1, len(kinds) - 1)], seed=3)


def there(library: str, mech: ts.Mechanism) -> ts.Conventions:
    """The map with the joints in another order, revolute ones by cosine and sine where that is known."""
    round_ = [n for n, kind in zip(mech.joint_names, mech.joint_kinds, strict=True)
              if kind == "revolute" and library == "pinocchio"]  # fmt: skip
    return ts.conventions(library, mech, mech.joint_names[::-1], cos_sin=round_)


@each
def test_conversions_are_invertible(library):
    mech = forest(library)
    conv = there(library, mech)
    q, qd, qdd, tau = normal_state(mech, 2, 3, seed=1, vectors=3)
    J = torch.randn(2, 3, 4, mech.num_dof, dtype=q.dtype)
    apart = ts.difference(
        mech, q, conv.q_from(conv.q_to(q))
    )  # angles by cosine: whole turns are lost
    turns = torch.round(apart / (2 * torch.pi)) * 2 * torch.pi
    agree(apart, turns, 1e-12)
    assert conv.q_to(q).shape == (2, 3, conv.num_q) and conv.qd_to(q, qd).shape == (
        2,
        3,
        conv.num_dof,
    )
    agree(conv.qd_from(q, conv.qd_to(q, qd)), qd, 1e-12)
    agree(conv.qdd_from(q, qd, conv.qdd_to(q, qd, qdd)), qdd, 1e-12)
    agree(conv.tau_from(q, conv.tau_to(q, tau)), tau, 1e-12)
    agree(conv.jacobian_from(q, conv.jacobian_to(q, J)), J, 1e-12)


@each
def test_power_and_the_velocities_of_frames_are_the_same(library):
    mech = forest(library)
    conv = there(library, mech)
    q, qd, _, tau = normal_state(mech, 5, seed=1, vectors=3)
    v, force = conv.qd_to(q, qd), conv.tau_to(q, tau)
    agree((v * force).sum(-1, keepdim=True), (qd * tau).sum(-1, keepdim=True), 1e-12)
    J = ts.frame_jacobian(mech, q, mech.frame_names[-1])
    agree((conv.jacobian_to(q, J) @ v[..., None])[..., 0], (J @ qd[..., None])[..., 0], 1e-12)
    M = conv.mass_matrix_to(q, ts.mass_matrix(mech, q))
    energy = (v[..., None, :] @ M @ v[..., None])[..., 0] / 2
    agree(energy, ts.kinetic_energy(mech, q, qd)[..., None], 1e-11)


@each
def test_converted_accelerations_are_rates_of_converted_velocities(library):
    mech = forest(library)
    conv = there(library, mech)
    q, qd, qdd, _ = normal_state(mech, 4, seed=1, vectors=3)

    def velocity(t: Tensor) -> Tensor:
        return conv.qd_to(ts.integrate(mech, q, t * qd), qd + t * qdd)

    zero, one = torch.zeros((), dtype=q.dtype), torch.ones((), dtype=q.dtype)
    agree(jvp(velocity, (zero,), (one,))[1], conv.qdd_to(q, qd, qdd), 1e-12)


@pytest.mark.parametrize(
    ("library", "position", "quaternion", "linear", "angular"),
    [
        ("pinocchio", [0, 1, 2], [6, 3, 4, 5], "body", "body"),
        ("mujoco", [0, 1, 2], [3, 4, 5, 6], "world", "body"),
        ("drake", [4, 5, 6], [0, 1, 2, 3], "world", "world"),
        ("isaaclab", [0, 1, 2], [3, 4, 5, 6], "com", "world"),
        ("newton", [0, 1, 2], [6, 3, 4, 5], "com", "world"),
    ],
)
def test_a_floating_base_moves_as_the_documents_of_each_library_say(
    library, position, quaternion, linear, angular
):
    """Rates of position and rotation, in the axes and of the point that the library names."""
    mech = random_mechanism(["free"], [-1], seed=4)
    conv = ts.conventions(library, mech)
    q, qd, *_ = normal_state(mech, 6, seed=1, vectors=3)

    def pose(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = conv.q_to(ts.integrate(mech, q, t * qd))
        R = quaternion_to_matrix(x[..., quaternion])
        return x[..., position], R, x[..., position] + R @ mech.com[0]

    zero, one = torch.zeros((), dtype=q.dtype), torch.ones((), dtype=q.dtype)
    (_, R, _), (v, Rdot, v_com) = jvp(pose, (zero,), (one,))
    velocity = conv.qd_to(q, qd)
    first, last = velocity.split(3, -1)
    omega, speed = (first, last) if library == "drake" else (last, first)
    agree(Rdot, R @ skew(omega) if angular == "body" else skew(omega) @ R, 1e-12)
    expected = {"body": (R.mT @ v[..., None])[..., 0], "world": v, "com": v_com}[linear]
    agree(speed, expected, 1e-12)


def hand() -> ts.Mechanism:
    builder = ts.MechanismBuilder("hand")
    for name, y in (("palm", 0.1), ("left", 0.2), ("right", -0.2)):
        builder.link(name, mass=1.0, com=(0.1, y, 0.0))
    builder.joint("base", "free", child="palm")
    for side in ("left", "right"):
        builder.joint(f"{side}_joint", "prismatic", parent="palm", child=side, axis=(0, 1, 0))
    return builder.couple("right_joint", {"left_joint": -0.5}, offset=0.01).build()


@pytest.mark.parametrize("library", ["mujoco", "newton"])
def test_joints_that_follow_others_may_be_there_or_not(library):
    mech = hand()
    mech = mech.replace(
        coupling_ratio=torch.tensor([[-0.5], [0.3]]).double(), com=mech.com.expand(2, 3, 3)
    )
    q, qd, qdd, tau = normal_state(hand(), 2, seed=1, vectors=3)
    every, own = (
        ts.conventions(library, mech, names)
        for names in (["base", "right_joint", "left_joint"], ["left_joint"])
    )
    assert (every.num_q, own.num_q, own.joint_names) == (9, 8, ("base", "left_joint"))
    agree(every.q_to(q)[:, 7:8], -torch.tensor([[0.5], [-0.3]]) * q[:, 7:] + 0.01, 1e-15)
    J = torch.randn(2, 4, mech.num_dof, dtype=q.dtype)
    for conv in (every, own):
        agree(conv.q_from(conv.q_to(q)), q, 1e-15)
        agree(conv.qdd_from(q, qd, conv.qdd_to(q, qd, qdd)), qdd, 1e-12)
        agree(conv.tau_from(q, conv.tau_to(q, tau)), tau, 1e-12)
        v, there_J = conv.qd_to(q, qd), conv.jacobian_to(q, J)
        agree((there_J @ v[..., None])[..., 0], (J @ qd[..., None])[..., 0], 1e-12)
        agree(conv.jacobian_from(q, there_J), J, 1e-12)
    force = torch.randn(2, every.num_dof, dtype=q.dtype)
    power = (force * every.qd_to(q, qd)).sum(-1, keepdim=True)
    agree((every.tau_from(q, force) * qd).sum(-1, keepdim=True), power, 1e-12)


def test_conversions_run_under_vmap_and_have_gradients():
    mech = forest("newton")
    conv = ts.conventions("newton", mech)
    q, qd, qdd, _ = normal_state(mech, 3, seed=1, vectors=3)
    agree(torch.vmap(conv.qdd_to)(q, qd, qdd), conv.qdd_to(q, qd, qdd), 1e-14)
    q, qd = q[0].requires_grad_(), qd[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda q, qd: conv.qdd_to(q, qd, qdd[0]), (q, qd))


def test_joints_of_several_numbers_have_mujocos_names_of_the_file_that_was_saved(tmp_path):
    """A cart that carries a crane, with MuJoCo as the plant."""
    mujoco = pytest.importorskip("mujoco")
    mech = random_mechanism(["planar", "universal", "cylindrical"], [-1, 0, 1], seed=5)
    ts.save(mech, tmp_path / "cart.xml")
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "cart.xml"))
    names = [model.joint(k).name for k in range(model.njnt)]
    conv, (q, qd, _, tau) = (
        ts.conventions("mujoco", mech, names),
        normal_state(mech, seed=1, vectors=3),
    )
    assert mech.q_slice(names[2]) == slice(2, 3)
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = conv.q_to(q).numpy(), conv.qd_to(q, qd).numpy()
    data.qfrc_applied[:] = conv.tau_to(q, tau).numpy()
    mujoco.mj_forward(model, data)
    frictionless = mech.replace(friction=torch.zeros_like(mech.friction))
    qdd = conv.qdd_to(q, qd, ts.forward_dynamics(frictionless, q, qd, tau))
    agree(torch.tensor(data.qacc_smooth)[None], qdd[None], 1e-9)
    with pytest.raises(ts.MechanismError, match="'joint0' is named by its motions"):
        ts.conventions("pinocchio", random_mechanism(["planar"], [-1], seed=5), names[:3])


def test_what_cannot_be_converted_is_refused_by_name():
    mech, ball = hand(), random_mechanism(["spherical"], [-1], seed=0)
    refused = [
        (lambda: ts.conventions("bullet", mech), "no library is named 'bullet'"),
        (
            lambda: ts.conventions("mujoco", mech, ["base", "thumb"]),
            "no moving joint is named 'thumb'",
        ),
        (lambda: ts.conventions("mujoco", mech, ["base"]), "'left_joint' is not among"),
        (lambda: ts.conventions("mujoco", mech, ["left_joint"] * 2), "'left_joint' occurs twice"),
        (lambda: ts.conventions("drake", ball), "is spherical, which is not converted to 'drake'"),
        (lambda: ts.conventions("pinocchio", mech, cos_sin=["base"]), "'base' in cos_sin is free"),
    ]
    for call, said in refused:
        with pytest.raises(ts.MechanismError, match=re.escape(said)):
            call()
    with pytest.raises(ts.ShapeError, match="of the other library has shape"):
        ts.conventions("newton", mech).q_from(torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("axis", ["0 0 1", "0 1 0"])
def test_pinocchio_ignores_the_axis_of_a_planar_joint(axis):
    """As documented: its plane is normal to z; here the plane is normal to the axis."""
    pin = pytest.importorskip("pinocchio")
    text = robot(joint(f'<axis xyz="{axis}"/>', "planar"))
    model = pin.buildModelFromXML(text)
    data = model.createData()
    pin.framesForwardKinematics(model, data, np.array([1.0, 2.0, 1.0, 0.0]))
    assert data.oMf[model.getFrameId("b")].translation.tolist() == [1.0, 2.0, 0.0]
    mech = ts.load(text)
    q = ts.conventions("pinocchio", mech).q_from(torch.tensor([1.0, 2.0, 1.0, 0.0]).double())
    position = ts.frame_pose(mech, q, "b").position
    normal = torch.tensor([float(x) for x in axis.split()], dtype=q.dtype)
    assert float(position @ normal) == 0.0 and position.norm() == torch.tensor(5.0).double().sqrt()
