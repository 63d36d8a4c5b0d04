"""Kinds of joints against MuJoCo's stacked joints and Pinocchio's own kinds."""

import hypothesis.strategies as st
import mujoco
import numpy as np
import pinocchio as pin
import pytest
import torch
from hypothesis import given

import torchsko as ts
from tests.oracles.mujoco_bridge import Twin
from tests.strategies import ALL_KINDS, agree, random_mechanism, seeds

STACKED = [kind for kind in ALL_KINDS if kind not in ("helical", "free")]


def prepared(kinds: list[str], parents: list[int], seed: int) -> ts.Mechanism:
    """Damping, armature and springs on every dof whose coordinate is its own; no dry friction."""
    mech = random_mechanism(kinds, parents, seed, armature=True)
    g = torch.Generator().manual_seed(seed)
    springs = torch.cat(
        [
            torch.full((kind.num_dof,), float(kind.vector), dtype=torch.float64)
            for kind in mech.joints.kinds
        ]
    )
    vector = torch.cat([torch.full((kind.num_q,), kind.vector) for kind in mech.joints.kinds])
    reference = 0.3 * torch.randn(mech.num_q, generator=g, dtype=torch.float64)
    if kinds[0] == "free":  # MuJoCo's is in the inertial frame
        identity = torch.eye(3, dtype=torch.float64)
        mech = mech.replace(
            joint_rotation=torch.cat([identity[None], mech.joint_rotation[1:]]),
            joint_position=mech.joint_position.index_fill(0, torch.tensor([0]), 0.0),
        )
    return mech.replace(
        friction=torch.zeros_like(mech.friction),
        stiffness=springs * torch.rand(mech.num_dof, generator=g, dtype=torch.float64),
        spring_reference=torch.where(vector, reference, mech.neutral()),
    )


@st.composite
def described(draw: st.DrawFn) -> tuple[list[str], list[int], int]:
    n = draw(st.integers(1, 5))
    kinds = [draw(st.sampled_from([*STACKED, "compound"])) for _ in range(n)]
    kinds[0] = draw(st.sampled_from([kinds[0], "free"]))
    return kinds, [-1] + [draw(st.integers(0, k - 1)) for k in range(1, n)], draw(seeds)


def against_mujoco(mech: ts.Mechanism, seed: int) -> None:
    """Poses, mass matrix, bias, inverse dynamics and acceleration of one random state."""
    g = torch.Generator().manual_seed(seed)
    q, _ = mech.random_state(generator=g)
    qd, x = torch.randn(2, mech.num_dof, generator=g, dtype=torch.float64)
    twin = Twin.of(mech)
    data = mujoco.MjData(twin.model)
    twin.set(data, q, qd)
    mujoco.mj_forward(twin.model, data)
    R, p = ts.forward_kinematics(mech, q)
    agree(R, torch.tensor(data.xmat[1:]).reshape(-1, 3, 3), 1e-11)
    agree(p, torch.tensor(data.xpos[1:]), 1e-11)
    if mech.joint_kinds[0] == "free":
        return  # in MuJoCo its linear rates are in other axes: trajectories are compared below
    M = np.zeros((mech.num_dof, mech.num_dof))
    mujoco.mj_fullM(twin.model, data, M)
    agree(ts.mass_matrix(mech, q), torch.tensor(M), 1e-9)
    expected = torch.tensor(data.qfrc_bias - data.qfrc_passive)
    agree(ts.bias_force(mech, q, qd)[:, None], expected[:, None], 1e-9)
    data.qacc[:] = x.numpy()
    mujoco.mj_inverse(twin.model, data)
    tau = torch.tensor(data.qfrc_inverse)
    agree(ts.inverse_dynamics(mech, q, qd, x)[:, None], tau[:, None], 1e-9)
    parallel = ts.inverse_dynamics(mech, q, qd, x, method="parallel")
    agree(parallel[:, None], tau[:, None], 1e-9)


@given(described(), seeds)
def test_trees_of_all_kinds_agree_with_mujoco(description, seed):
    against_mujoco(prepared(*description), seed)


@given(seeds, st.lists(st.booleans(), min_size=1, max_size=6))
def test_a_compound_joint_is_mujocos_stack_of_joints(seed, turns):
    g = torch.Generator().manual_seed(seed)
    axes, points = torch.randn(2, len(turns), 3, generator=g, dtype=torch.float64).tolist()
    motions = [
        ts.Turn(axis, point) if turn else ts.Slide(axis)
        for turn, axis, point in zip(turns, axes, points, strict=True)
    ]
    builder = ts.MechanismBuilder().link("a", mass=1.3, com=(0.1, 0.2, -0.3),
                                         inertia=[[2.0, 0.1, 0], [0.1, 1.5, 0.2], [0, 0.2, 1.8]])  # fmt: skip
    mech = builder.joint("j", "compound", child="a", motions=motions, position=(1, 2, 3)).build()
    against_mujoco(mech, seed)


def test_mujocos_euler_is_our_first_step_for_every_stack_of_joints():
    kinds = ["planar", "cylindrical", "compound", "universal", "translation"]
    mech = prepared(kinds, [-1, 0, 1, 0, 3], seed=11)
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(2))
    theirs, rates = Twin.of(mech, dt=1e-3).trajectory(q, qd, steps=100)
    ours, speeds, *_ = ts.rollout(mech, ts.State(q, qd), steps=100, dt=1e-3)
    agree(ours, theirs, 1e-9)
    agree(speeds, rates, 1e-9)


PINOCCHIO = {
    "helical": lambda axis, own: pin.JointModelHelicalUnaligned(axis, float(own[0])),
    "universal": lambda axis, own: pin.JointModelUniversal(axis, own),
}


@pytest.mark.parametrize("kind", PINOCCHIO)
def test_helical_and_universal_joints_agree_with_pinocchio(kind):
    mech = random_mechanism([kind, "revolute", kind], [-1, 0, 1], seed=3, passive=False)
    model = pin.Model()
    model.gravity.linear = mech.gravity.numpy()
    at = 0
    for k, name in enumerate(mech.joint_names):
        own = mech.joints.kinds[k].num_parameters
        values = mech.joint_parameters[at : at + own].numpy()
        at += own
        axis = mech.axis[k].numpy()
        make = PINOCCHIO.get(mech.joint_kinds[k], lambda e, _: pin.JointModelRevoluteUnaligned(e))
        place = pin.SE3(mech.joint_rotation[k].numpy(), mech.joint_position[k].numpy())
        index = model.addJoint(mech.parents[k] + 1, make(axis, values), place, name)
        inertia = pin.Inertia(mech.mass[k].item(), mech.com[k].numpy(), mech.inertia[k].numpy())
        model.appendBodyToJoint(index, inertia, pin.SE3.Identity())
    data = model.createData()
    q, qd = mech.random_state(20, generator=torch.Generator().manual_seed(0))
    qdd = torch.randn(qd.shape, generator=torch.Generator().manual_seed(1), dtype=qd.dtype)
    states = zip(q.numpy(), qd.numpy(), qdd.numpy(), strict=True)
    expected = torch.tensor(np.stack([pin.rnea(model, data, *state) for state in states]))
    agree(ts.inverse_dynamics(mech, q, qd, qdd), expected, 1e-11)


def test_robots_on_a_free_base_move_as_mujocos_do():
    mech = prepared(["free", "compound", "planar"], [-1, 0, 1], seed=5)
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(6))
    theirs, rates = Twin.of(mech, dt=1e-3).trajectory(q, qd, steps=50)
    ours, speeds, *_ = ts.rollout(mech, ts.State(q, qd), steps=50, dt=1e-3)
    for mine, expected in zip(
        ts.forward_kinematics(mech, ours), ts.forward_kinematics(mech, theirs), strict=True
    ):
        agree(mine, expected, 1e-9)
    agree(speeds, rates, 1e-9)


def test_a_continuous_joint_is_driven_all_of_its_turns_and_the_short_way_of_the_help_is_pinocchios():
    """By laws in joint space alike; inverse kinematics asks for a place, and stays in the turn it is in."""
    mech = random_mechanism(["revolute", "revolute"], [-1, 0], seed=3)
    q, end = 20 * torch.randn(2, 2, dtype=mech.dtype, generator=torch.Generator().manual_seed(0))
    still, way = torch.zeros_like(q), ts.difference(mech, q, end)
    theirs = pin.Model()
    for k, joint in enumerate((pin.JointModelRUBX(), pin.JointModelRUBX())):
        theirs.addJoint(k, joint, pin.SE3.Identity(), f"{k}")
    round_ = (torch.stack([x.cos(), x.sin()], -1).flatten().numpy() for x in (q, end))
    short = torch.remainder(way + torch.pi, 2 * torch.pi) - torch.pi
    agree(short[None], torch.tensor(pin.difference(theirs, *round_))[None], 1e-12)
    assert way.abs().min() > 2 * torch.pi

    def asked(target: torch.Tensor) -> list[torch.Tensor]:
        gains = {"stiffness": 3.0, "damping": 1.0}
        state = (q, still, target)
        return [
            ts.control.pd_with_gravity(mech, *state, **gains),
            ts.mass_matrix(mech, q).inverse() @ ts.control.computed_torque(mech, *state, **gains),
            ts.control.posture_objective(mech, *state, gains=(3.0, 1.0)).desired,
        ]

    for far, near in zip(asked(end), asked(q), strict=True):
        agree((far - near)[None], 3 * way[None], 1e-9)
    place = ts.frame_pose(mech, end, tip := mech.frame_names[-1])
    goals = [ts.control.FrameGoal(tip, place)]
    found = ts.inverse_kinematics(mech, q + short + 0.1, goals)
    assert found.converged
    agree(ts.difference(mech, q, found.q)[None], short[None], 1e-6)


def test_a_planar_and_a_spherical_joint_are_pinocchios_in_its_coordinates():
    """Pinocchio's planar joint slides along the body's axes, and has a cosine and a sine."""
    builder = ts.MechanismBuilder("cart")
    for name in ("cart", "ball", "arm"):
        builder.link(name, mass=1.3, com=(0.1, 0.2, -0.3),
                     inertia=[[2.0, 0.1, 0], [0.1, 1.5, 0.2], [0, 0.2, 1.8]])  # fmt: skip
    builder.joint("plane", "planar", child="cart", axis=(0, 0, 1))
    builder.joint("socket", "spherical", parent="cart", child="ball", position=(0.1, 0.2, 0.3))
    builder.joint("elbow", "revolute", parent="ball", child="arm", position=(0.3, 0, 0))
    mech, model = builder.build(), pin.Model()
    models = (pin.JointModelPlanar(), pin.JointModelSpherical(), pin.JointModelRUBZ())
    for k, joint in enumerate(models):
        place = pin.SE3(np.eye(3), mech.joint_position[k].numpy())
        index = model.addJoint(k, joint, place, mech.joint_names[k])
        inertia = pin.Inertia(mech.mass[k].item(), mech.com[k].numpy(), mech.inertia[k].numpy())
        model.appendBodyToJoint(index, inertia, pin.SE3.Identity())
    there = ts.conventions("pinocchio", mech, list(model.names)[1:], cos_sin=["elbow"])
    g = torch.Generator().manual_seed(0)
    q, _ = mech.random_state(20, generator=g)
    qd, qdd = torch.randn(2, 20, mech.num_dof, generator=g, dtype=q.dtype)
    data = model.createData()
    states = there.q_to(q), there.qd_to(q, qd), there.qdd_to(q, qd, qdd)
    rows = zip(*(x.numpy() for x in states), strict=True)
    tau = torch.tensor(np.stack([pin.rnea(model, data, *row) for row in rows]))
    agree(there.tau_to(q, ts.inverse_dynamics(mech, q, qd, qdd)), tau, 1e-11)
    M = torch.tensor(np.stack([pin.crba(model, data, row).copy() for row in states[0].numpy()]))
    agree(there.mass_matrix_to(q, ts.mass_matrix(mech, q)).triu(), M.triu(), 1e-11)
