"""Operational space (Jain Part II, section 6.2) against dense J M^-1 J* and Pinocchio."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given

import torchsko as ts
from tests.batteries import branched_model
from tests.forms import in_form
from tests.strategies import (
    agree,
    dense_mass_matrix,
    dense_operators,
    mechanisms,
    random_model,
    sko_models,
)
from torchsko import algorithms
from torchsko.algebra.recursions.articulated import articulated_operators
from torchsko.algebra.topology.tree import Tree

ANY = sko_models(max_nodes=12, mixed=True, min_dofs=0)


def dense_omega(model):
    """(A* H*) M^-1 (A* H*)* of all nodes."""
    x, MM = dense_operators(model), dense_mass_matrix(model)
    J = x.A.mT @ x.H.mT
    return J @ torch.linalg.solve(MM, J.mT)


@pytest.mark.shows("Jain 2011, Part II", "Eq. 60 and Lemma 5", algorithms.extended_compliance)
@given(ANY)
def test_omega_is_the_compliance_of_all_nodes(model):
    agree(algorithms.extended_compliance(model).dense(), dense_omega(model), 1e-8)


@pytest.mark.shows("Jain 2011, Part II", "Algorithm 4.3", algorithms.ExtendedCompliance.block)
@given(ANY)
def test_every_block_of_omega_is_that_of_the_dense_one(model):
    compliance, dense = algorithms.extended_compliance(model), dense_omega(model)
    sizes = model.layout.nodes.sizes
    start = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    for i in range(len(sizes)):
        for j in range(len(sizes)):
            block = dense[..., start[i] : start[i + 1], start[j] : start[j + 1]]
            agree(compliance.block(i, j), block, 1e-8)


@pytest.mark.shows(
    "Jain 2011, Part II", "section 6.2 and Algorithm 4.3", algorithms.compliance_block
)
@given(sko_models(max_nodes=6))
def test_a_single_block_needs_no_kernel_from_the_caller(model):
    last = model.tree.num_nodes - 1
    block = algorithms.compliance_block(model, 0, last)
    agree(block, algorithms.extended_compliance(model).block(0, last))


def test_nodes_of_a_block_are_numbers_or_names_and_unknown_ones_are_refused():
    tree = Tree.from_parents([1, -1, 0], ["shin", "hip", "foot"])
    model = random_model(tree, [3, 2, 1], [1, 2, 1])
    block = algorithms.compliance_block
    assert torch.equal(block(model, "foot", "hip"), block(model, 2, 1))
    for unknown in (3, -1, "food"):
        with pytest.raises(ts.TreeError, match="no node"):
            block(model, unknown, 0)


def test_weights_of_omega_are_those_of_psi_and_not_of_a():
    model = branched_model()
    x = dense_operators(model)
    D_inv = articulated_operators(model).hinge_compliance.to_dense()
    wrong = x.A.mT @ x.H.mT @ D_inv @ x.H @ x.A
    assert (wrong - dense_omega(model)).abs().max() > 0.1


@pytest.mark.shows("Jain 2011, Part II", "Eq. 59", algorithms.reflected_compliance)
@given(ANY)
def test_reflected_compliance_of_any_rows_is_j_inverse_mass_matrix_j(model):
    g = torch.Generator().manual_seed(0)
    J = torch.randn(4, model.num_dof, generator=g, dtype=torch.float64)
    expected = J @ torch.linalg.solve(dense_mass_matrix(model), J.mT)
    agree(algorithms.reflected_compliance(ts.innovations(model), J), expected, 1e-8)


def frames_of(mech, count=1):
    return list(mech.frame_names[-count:])


@pytest.mark.shows("Jain 2011, Part II", "Eq. 59", ts.operational_space_compliance)
@given(mechanisms(max_bodies=5))
def test_compliance_of_frames_is_j_inverse_mass_matrix_j(mech):
    q, _ = mech.random_state(2, generator=torch.Generator().manual_seed(0))
    frames = frames_of(mech, 2)
    J = ts.frame_jacobian(mech, q, frames).flatten(-3, -2)
    expected = J @ torch.linalg.solve(ts.mass_matrix(mech, q), J.mT)
    agree(ts.operational_space_compliance(mech, q, frames), expected, 1e-8)


def panda():
    arm = ts.load(ts.robots.panda)
    return arm, arm.random_state(4, generator=torch.Generator().manual_seed(0))[0]


def outstretched(q):
    """The same arm with its elbow and wrist straight: no frame of the hand moves along the arm."""
    return q * torch.tensor([1.0, 0, 1, 0, 1, 0, 1], dtype=q.dtype)


@pytest.mark.shows(
    "Jain 2011, Part II", "section 6.2", ts.operational_space_inertia, algorithms.invert_compliance
)
def test_inertia_is_the_inverse_of_the_compliance():
    arm, q = panda()
    inertia = ts.operational_space_inertia(arm, q, frames_of(arm))
    compliance = ts.operational_space_compliance(arm, q, frames_of(arm))
    agree(inertia @ compliance, torch.eye(6, dtype=q.dtype).expand(4, 6, 6), 1e-8)


def test_the_operational_space_inertia_of_a_free_body_is_its_inertia():
    builder = ts.MechanismBuilder("brick")
    builder.link("brick", mass=2.0, inertia=[[0.1, 0, 0], [0, 0.2, 0], [0, 0, 0.25]])
    builder.joint("float", "free", child="brick")
    brick = builder.build()
    q, _ = brick.random_state(3)
    expected = torch.diag(torch.tensor([0.1, 0.2, 0.25, 2, 2, 2], dtype=q.dtype))
    agree(ts.operational_space_inertia(brick, q, ["brick"]), expected.expand(3, 6, 6))


@pytest.mark.shows("Jain 2011, Part II", "section 6.2", ts.consistent_jacobian_inverse)
def test_consistent_inverse_is_a_right_inverse_whose_null_space_moves_no_frame():
    arm, q = panda()
    J = ts.frame_jacobian(arm, q, frames_of(arm)).flatten(-3, -2)
    J_bar = ts.consistent_jacobian_inverse(arm, q, frames_of(arm))
    agree(J @ J_bar, torch.eye(6, dtype=q.dtype).expand(4, 6, 6), 1e-8)
    null = torch.eye(7, dtype=q.dtype) - J.mT @ J_bar.mT
    agree(J @ torch.linalg.solve(ts.mass_matrix(arm, q), null), torch.zeros(4, 6, 7), 1e-8)


def test_with_pinv_the_consistent_inverse_is_a_generalized_inverse():
    arm, q = panda()
    q = torch.cat([q[:2], outstretched(q[2:])])
    J = ts.frame_jacobian(arm, q, frames_of(arm)).flatten(-3, -2)
    J_bar = ts.consistent_jacobian_inverse(arm, q, frames_of(arm), singular="pinv")
    agree(J @ J_bar @ J, J, 1e-8)
    agree(J_bar @ J @ J_bar, J_bar, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("singular", ["nan", "pinv", ("damped", 1e-3)], ids=str)
def test_a_singular_sample_never_spoils_the_others(singular, dtype):
    arm, q = panda()
    arm, q = arm.to(dtype), q.to(dtype)
    mixed = torch.cat([q[:2], outstretched(q[2:])])
    together = ts.operational_space_inertia(arm, mixed, frames_of(arm), singular=singular)
    alone = ts.operational_space_inertia(arm, mixed[:2], frames_of(arm), singular=singular)
    torch.testing.assert_close(together[:2], alone)
    assert together[2:].isnan().all() if singular == "nan" else together.isfinite().all()


def test_pinv_gives_no_inertia_where_no_motion_is_possible():
    arm, q = panda()
    q = outstretched(q)
    compliance = ts.operational_space_compliance(arm, q, frames_of(arm))
    inertia = ts.operational_space_inertia(arm, q, frames_of(arm), singular="pinv")
    assert (torch.linalg.matrix_rank(inertia, rtol=1e-10) == 5).all()
    agree(compliance @ inertia @ compliance, compliance, 1e-8)


def test_damping_adds_to_the_compliance():
    arm, q = panda()
    compliance = ts.operational_space_compliance(arm, q, frames_of(arm))
    damped = ts.operational_space_inertia(arm, q, frames_of(arm), singular=("damped", 0.01))
    agree(damped, torch.linalg.inv(compliance + 0.01 * torch.eye(6, dtype=q.dtype)), 1e-8)


def test_every_sample_may_have_a_damping_of_its_own():
    """Six of them, as many as rows: a damping that broadcast with these would be one for each."""
    arm, _ = panda()
    q, qd = arm.random_state(6, generator=torch.Generator().manual_seed(0))
    damping = torch.logspace(-3, 0, 6, dtype=q.dtype)
    frames = frames_of(arm)
    task = ts.control.Task(frames[-1], ts.frame_pose(arm, arm.middle(), frames[-1]))

    def laws(q, qd, d):
        rule = ("damped", d)
        return (
            ts.operational_space_inertia(arm, q, frames, singular=rule),
            ts.control.impedance(arm, q, qd, [task], singular=rule),
        )

    alone = [laws(*x) for x in zip(q, qd, damping.tolist(), strict=True)]
    for x, y in zip(laws(q, qd, damping), zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(x, torch.stack(y))


def test_singular_samples_pass_no_nan_into_shared_gradients():
    arm, q = panda()
    mixed = torch.cat([q[:2], outstretched(q[2:])])
    mass = arm.mass.clone().requires_grad_()

    def gradient(states, good):
        inertia = ts.operational_space_inertia(arm.replace(mass=mass), states, frames_of(arm))
        return torch.autograd.grad(inertia[:good].sum(), mass)[0]

    torch.testing.assert_close(gradient(mixed, 2), gradient(mixed[:2], 2))


def test_raise_names_the_singular_samples():
    arm, q = panda()
    mixed = torch.cat([q[:2], outstretched(q[2:])])
    with pytest.raises(ts.SingularError, match=r"\[\[2\], \[3\]\]"):
        ts.operational_space_inertia(arm, mixed, frames_of(arm), singular="raise")
    agree(
        ts.operational_space_inertia(arm, q, frames_of(arm), singular="raise"),
        ts.operational_space_inertia(arm, q, frames_of(arm)),
    )


X, Y, Z = [1, 0, 0], [0, 1, 0], [0, 0, 1]


def about_x(angle):
    c, s = math.cos(angle), math.sin(angle)
    return [X, [0, c, -s], [0, s, c]]


def chain(length, axes, turn=0.0):
    """Joints in a row: every second one stands turned about x by an angle, the next one is turned back."""
    builder, parent = ts.MechanismBuilder("chain"), None
    for k, axis in enumerate(axes):
        name = f"link {k}"
        own = (length**2 / 12) * torch.eye(3, dtype=torch.float64)
        builder.link(name, mass=1.0, com=[length / 2, 0, 0], inertia=own.tolist())
        builder.joint(
            f"joint {k}", "revolute", parent=parent, child=name, axis=axis, position=[length, 0, 0],
            rotation=about_x(turn if k % 2 == 0 else -turn),
        )  # fmt: skip
        parent = name
    return builder.build()


@pytest.mark.parametrize("scalar", [False, True], ids=["dense", "scalar"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_rank_and_inertia_of_a_robot_are_the_same_in_millimeters(dtype, scalar):
    """In float32 all samples of a robot of some millimeters were nan."""
    axes = [(Z, Y, X)[k % 3] for k in range(9)]
    found, slopes = [], []
    for length in (1.0, 1e-3, 1e3):
        arm = chain(length, axes).to(dtype)
        q, _ = arm.random_state(4, generator=torch.Generator().manual_seed(0))
        straight = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0, 0], dtype=dtype)
        q = torch.stack([q[0], q[1], 0 * q[2], straight])  # straight, none moves along the arm
        mass = arm.mass.clone().requires_grad_()
        inertia_of = in_form(scalar, ts.operational_space_inertia)
        inertia = inertia_of(arm.replace(mass=mass), q, frames_of(arm))
        units = torch.tensor([1 / length] * 3 + [1.0] * 3, dtype=dtype)
        found.append(units[:, None] * inertia * units)
        slopes.append(torch.autograd.grad(found[-1][:2].sum(), mass)[0])
        regular = inertia.isfinite().all((-2, -1))
        assert regular.tolist() == [True, True, False, False]
    for mine, slope in zip(found[1:], slopes[1:], strict=True):
        rtol = 1e-9 if dtype == torch.float64 else 1e-2
        torch.testing.assert_close(mine[:2], found[0][:2], rtol=rtol, atol=rtol)
        torch.testing.assert_close(slope, slopes[0], rtol=rtol, atol=rtol)


@pytest.mark.parametrize("joints", [9, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_pseudo_inverse_is_the_same_in_millimeters(dtype, joints):
    """Rank and the least squares were those of radians and meters, so both changed with the unit."""
    found, slopes = [], []
    for length in (1.0, 1e-3, 1e3):
        arm = chain(length, [(Z, Y, X)[k % 3] for k in range(joints)]).to(dtype)
        q, _ = arm.random_state(3, generator=torch.Generator().manual_seed(0))
        q = torch.stack([q[0], q[1], 0 * q[2]])
        position = arm.joint_position.clone().requires_grad_()
        there = arm.replace(joint_position=position)
        inertia = ts.operational_space_inertia(there, q, frames_of(arm), singular="pinv")
        units = torch.tensor([1 / length] * 3 + [1.0] * 3, dtype=dtype)
        found.append(units[:, None] * inertia * units)
        slopes.append(length * torch.autograd.grad(found[-1][:2].sum(), position)[0])
    rtol = 1e-8 if dtype == torch.float64 else 1e-2
    for mine, slope in zip(found[1:], slopes[1:], strict=True):
        scale = float(found[0].detach().abs().max())
        torch.testing.assert_close(mine, found[0], rtol=rtol, atol=rtol * scale)
        scale = float(slopes[0].abs().max())
        torch.testing.assert_close(slope, slopes[0], rtol=rtol, atol=rtol * scale)


def test_a_pseudo_inverse_of_fewer_dofs_than_rows_has_all_its_derivatives():
    """To the lengths that make its rows of one unit, too: it is that of central differences."""
    arm = chain(1.3, [Z, Y, X, Z])
    q, _ = arm.random_state(2, generator=torch.Generator().manual_seed(0))
    place = arm.joint_position

    def inertia(place, q):
        return ts.operational_space_inertia(
            arm.replace(joint_position=place), q, frames_of(arm), singular="pinv"
        )

    assert torch.autograd.gradcheck(
        inertia, (place.clone().requires_grad_(), q.clone().requires_grad_()),
        check_forward_ad=True, atol=1e-5,
    )  # fmt: skip
    each = torch.vmap(lambda x: inertia(place, x))(q)
    torch.testing.assert_close(each, inertia(place, q))


@pytest.mark.parametrize("length", [1.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_rows_that_vanish_but_for_rounding_are_no_motion(dtype, length):
    """As large as the others, as equilibrated rows are, they would have an inertia of 1e30 kg."""
    turned = [0.0, math.sin(0.3), math.cos(0.3)]  # z of the base
    arm = chain(length, [turned if k % 2 == 0 else Z for k in range(8)], turn=0.3).to(dtype)
    q, _ = arm.random_state(4, generator=torch.Generator().manual_seed(0))
    rows = ts.operational_space_compliance(arm, q, frames_of(arm)).diagonal(dim1=-2, dim2=-1)
    assert ((rows > 0) & (rows < 1e-6 * rows.amax(-1, keepdim=True))).any()
    assert ts.operational_space_inertia(arm, q, frames_of(arm)).isnan().all()


@pytest.mark.parametrize("length", [1.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_axes_that_meet_but_for_rounding_allow_no_translation(dtype, length):
    """Links go out and come back to the point, where the levers that rounding leaves are 1e-17 m long."""
    builder, parent = ts.MechanismBuilder("ball"), None
    own = (length**2 * torch.eye(3, dtype=torch.float64)).tolist()
    offset = length * torch.tensor([0.7, 0.1, 0.3], dtype=torch.float64)
    for k in range(8):
        turn = torch.tensor(about_x(0.3 + 0.2 * k), dtype=torch.float64)
        builder.link(f"link {k}", mass=1.0, com=[0, 0, 0], inertia=own)
        builder.joint(
            f"joint {k}", "revolute", parent=parent, child=f"link {k}", axis=(Z, Y, X)[k % 3],
        )  # fmt: skip
        ways = {"out": (offset, turn), "back": (-turn.T @ offset, None)}
        parent = f"link {k}"
        for way, (position, rotation) in ways.items():
            placed = {} if rotation is None else {"rotation": rotation.tolist()}
            child = f"{way} {k}"
            builder.link(child, mass=1.0, com=[0, 0, 0], inertia=own)
            builder.joint(
                f"fixed {way} {k}", "fixed", parent=parent, child=child, position=position.tolist(), **placed,
            )  # fmt: skip
            parent = child
    ball = builder.build().to(dtype)
    q, _ = ball.random_state(8, generator=torch.Generator().manual_seed(0))
    linear = ts.operational_space_compliance(ball, q, parent).diagonal(dim1=-2, dim2=-1)[..., 3:]
    assert (linear > 0).all()
    assert ts.operational_space_inertia(ball, q, parent).isnan().all()


def test_a_sample_that_is_not_finite_gives_nan_and_not_a_number():
    C = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1)
    C = torch.stack([C[0], C[1] * torch.nan])
    for singular in ("nan", "pinv", ("damped", 0.1)):
        found = algorithms.invert_compliance(C, singular)
        assert found[0].isfinite().all() and found[1].isnan().all()


def test_frames_are_a_name_or_several():
    arm, q = panda()
    with pytest.raises(ts.MechanismError, match="names no frames"):
        ts.operational_space_compliance(arm, q, [])
    one = ts.operational_space_compliance(arm, q, "link7")
    torch.testing.assert_close(one, ts.operational_space_compliance(arm, q, ["link7"]))


def test_more_rows_than_dofs_and_unknown_rules_are_refused():
    arm, q = panda()
    with pytest.raises(ts.ShapeError, match="12 rows, 'panda' has 7 dofs"):
        ts.operational_space_inertia(arm, q, frames_of(arm, 2))
    assert ts.operational_space_inertia(arm, q, frames_of(arm, 2), singular="pinv").shape == (
        4,
        12,
        12,
    )
    with pytest.raises(ts.ShapeError, match="no rule for singular samples"):
        ts.operational_space_inertia(arm, q, frames_of(arm), singular="clamp")


def test_two_feet_of_a_humanoid_agree_with_pinocchio():
    pin = pytest.importorskip("pinocchio")
    from oracles.pinocchio_bridge import Robot

    folder = Path(pin.__file__).parents[4] / "share" / "example-robot-data" / "robots"
    robot = Robot.load(folder / "talos_data" / "robots" / "talos_reduced.urdf", True)
    frames = ["leg_left_6_link", "leg_right_6_link"]
    q = robot.states(3)[0]
    found = ts.operational_space_inertia(robot.mech, q, frames)
    data = robot.model.createData()
    for k, configuration in enumerate(robot.q_to_pin(q)):
        pin.computeJointJacobians(robot.model, data, configuration)
        pin.updateFramePlacements(robot.model, data)
        rows = [
            pin.getFrameJacobian(
                robot.model, data, robot.model.getFrameId(name), pin.ReferenceFrame.LOCAL
            )[[3, 4, 5, 0, 1, 2]]
            for name in frames
        ]
        J = torch.from_numpy(np.concatenate(rows))
        inverse = torch.from_numpy(pin.computeMinverse(robot.model, data, configuration)).triu()
        inverse = inverse + inverse.triu(1).mT
        agree(found[k] @ (J @ inverse @ J.mT), torch.eye(12, dtype=q.dtype), 1e-7)


@pytest.mark.nightly
def test_a_mechanism_task_compiles_and_maps():
    arm, q = panda()
    arm_frames = frames_of(arm)

    def inertia(q):
        return ts.operational_space_inertia(arm, q, arm_frames)

    torch._dynamo.reset()
    torch.testing.assert_close(torch.vmap(inertia)(q), inertia(q))
    compiled = torch.compile(inertia, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q), inertia(q))


def test_nodes_on_different_bases_are_not_coupled():
    tree = Tree.from_parents([-1, -1, 0])
    model = branched_model(tree=tree)
    omega = algorithms.extended_compliance(model)
    assert not omega.block(2, 1).any() and omega.block(2, 0).any()
