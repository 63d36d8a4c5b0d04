"""What every kind of joint promises: H and its rate follow from the pose, the flags say the truth."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.func import jvp
from torch.testing import assert_close

import torchsko as ts
from tests.fused.evaluate import evaluate
from tests.newton import kinetic_energy, potential_energy, unskew
from tests.strategies import (
    ALL_KINDS,
    BATCHES,
    OWN_DATA,
    agree,
    few,
    mechanisms,
    random_mechanism,
    seeds,
)
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace
from torchsko.mechanism.configuration import bracket
from torchsko.spatial.rigid_transform import force_matrix

VECTOR_KINDS = [kind for kind in ALL_KINDS if kind not in ("spherical", "free")]
close = {"rtol": 1e-10, "atol": 1e-10}


def single(kind: str, seed: int, count: int = 3):
    """Joints of one kind: the group, its constants, coordinates and rates."""
    other = "revolute" if kind != "revolute" else "prismatic"
    mech = random_mechanism([kind, other], [-1, 0], seed)
    group = mech.joints.groups[0]
    q, _ = mech.random_state(count, generator=torch.Generator().manual_seed(seed))
    qd = torch.randn(count, mech.num_dof, generator=torch.Generator().manual_seed(seed + 1),
                     dtype=q.dtype)  # fmt: skip
    return mech, group, group.constants(mech), group.coordinates(q), group.rates(qd)


def full(kind, constants, q: Tensor) -> tuple[Tensor, Tensor]:
    turn, shift = kind.pose(constants, q)
    size = (*q.shape[:-1], 3)
    turn = torch.eye(3, dtype=q.dtype).expand(*size, 3) if turn is None else turn
    return turn, q.new_zeros(size) if shift is None else shift


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ALL_KINDS)
@given(seed=seeds)
def test_the_joint_map_is_the_derivative_of_the_pose_and_its_rate_that_of_the_map(name, seed):
    _, group, constants, q, qd = single(name, seed)
    kind, t = group.kind, q.new_zeros(())

    def moved(t: Tensor) -> Tensor:
        return kind.integrate(q, t * qd)

    (R, _), (R_dot, r_dot) = jvp(lambda t: full(kind, constants, moved(t)), (t,), (t + 1,))
    velocity = torch.cat([unskew(R.mT @ R_dot), (R.mT @ r_dot[..., None])[..., 0]], -1)

    def rate(t: Tensor) -> Tensor:
        H = kind.joint_map_at(constants, moved(t))
        return (H.mT @ qd[..., None])[..., 0] + 0 * t

    claimed, change = jvp(rate, (t,), (t + 1,))
    assert_close(claimed.expand_as(velocity), velocity, **close)
    assert_close(kind.bias_accel(constants, q, qd).expand_as(change), change, **close)


@pytest.mark.some(5)
@pytest.mark.parametrize("name", ALL_KINDS)
@given(seed=seeds)
def test_neutral_is_the_identity_and_the_flags_say_the_truth(name, seed):
    mech, group, constants, q, _ = single(name, seed)
    kind = group.kind
    neutral = torch.tensor(kind.neutral(), dtype=q.dtype).expand(1, -1)
    R, r = full(kind, constants, neutral)
    assert_close(R, torch.eye(3, dtype=q.dtype).expand_as(R), **close)
    assert_close(r, torch.zeros_like(r), **close)
    assert_close(
        kind.joint_map_at(constants, neutral), kind.joint_map(constants), check_stride=False
    )
    H = kind.joint_map_at(constants, q)
    assert len(kind.coordinates) == q.shape[-1] and len(kind.rates) == H.shape[-2]
    if kind.orthonormal:
        identity = torch.eye(H.shape[-2], dtype=q.dtype)
        assert_close(H @ H.mT, identity.expand_as(H @ H.mT), **close)
    if kind.one_axis:
        turn, _ = full(kind, constants, q)
        axis = constants["axis"][..., None].expand(*turn.shape[:-1], 1)
        assert_close(turn @ axis, axis, **close)
    if kind.unit_rows:
        e = torch.eye(3, dtype=q.dtype)[seed % 3].expand_as(constants["axis"])
        rows = kind.joint_map_at({**constants, "axis": e}, q)
        assert_close(rows.abs().sort(-1).values[..., -1], torch.ones_like(rows[..., 0]))
        assert_close(rows.abs().sum(-1), torch.ones_like(rows[..., 0]))
    placement = force_matrix(mech.joint_rotation[:1], mech.joint_position[:1])
    weights = kind.weight_terms(constants, q, placement).split([1])[0]
    expected = placement @ force_matrix(*full(kind, constants, q))
    assert_close(weights, expected, **close)


@given(st.sampled_from(ALL_KINDS), seeds, st.sampled_from(BATCHES))
def test_difference_is_the_inverse_of_integrate(name, seed, batch):
    mech = random_mechanism([name], [-1], seed)
    g = torch.Generator().manual_seed(seed)
    q, _ = mech.random_state(*batch, generator=g)
    step = torch.rand(*batch, mech.num_dof, generator=g, dtype=q.dtype) - 0.5
    assert_close(ts.difference(mech, q, ts.integrate(mech, q, step)), step, **close)


@given(mechanisms(4), seeds)
def test_what_is_traced_to_scalars_is_what_is_computed(mech, seed):
    g = torch.Generator().manual_seed(seed)
    q, _ = mech.random_state(generator=g)
    vectors = torch.randn(2, mech.num_dof, generator=g, dtype=q.dtype)
    ports = [Port("q", (mech.num_q,)), Port("qd", (mech.num_dof,)), Port("x", (mech.num_dof,))]
    for verb in (ts.inverse_dynamics, ts.forward_dynamics):
        program = trace(lambda *x, verb=verb: verb(mech, *x), ports)
        expected = verb(mech, q, *vectors)
        (found,) = evaluate(program, [q, *vectors])
        scale = max(1.0, float(expected.abs().max()))
        assert_close(found, expected, rtol=1e-9, atol=1e-9 * scale)


@given(st.sampled_from(list(OWN_DATA)), seeds)
def test_parameters_are_placed_moved_and_kept_by_name(name, seed):
    mech = random_mechanism(["revolute", name, "free", name], [-1, 0, 0, 1], seed)
    for k in (1, 3):
        kind, joint = mech.joints.kinds[k], mech.joint_names[k]
        values = [
            mech.joint_parameters[mech.parameter_slice(joint, p.name)] for p in kind.parameters
        ]
        (group,) = [g for g in mech.joints.groups if g.kind == kind]
        at = group.bodies.tolist().index(k)
        constants = group.constants(mech)
        for parameter, value in zip(kind.parameters, values, strict=True):
            assert_close(constants[parameter.name][at], value.reshape(parameter.shape))
    assert mech.to(torch.float32).joint_parameters.dtype == torch.float32
    assert random_mechanism(["revolute", "free"], [-1, 0]).joint_parameters.shape == (0,)


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("helical", {}, "pitch of joint 'j' is missing"),
        ("helical", {"pitch": [1.0, 2.0]}, "pitch of joint 'j'"),
        ("revolute", {"pitch": 1.0}, "unknown keyword 'pitch'"),
        ("universal", {"second_axis": (0, 0, 1)}, "perpendicular"),
        ("universal", {}, "second_axis of joint 'j' is missing"),
        ("planar", {"direction": (0, 0, 2)}, "direction"),
        ("compound", {}, "'j' has the motions"),
        ("compound", {"motions": [ts.Turn((0, 0, 0))]}, "whose axis is zero"),
        ("compound", {"motions": [ts.Slide()] * 7}, "one to six"),
        ("helical", {"pitch": float("nan")}, "pitch of joint 'j'"),
        ("cylindrical", {"axis": (0, 0, 0)}, "has the axis"),
    ],
)
def test_what_a_kind_needs_is_asked_for_by_name(kind, data, said):
    builder = ts.MechanismBuilder().link("a", mass=1.0, inertia=torch.eye(3).tolist())
    with pytest.raises(ts.MechanismError, match=said):
        builder.joint("j", kind, child="a", **data).build()


def test_a_pitch_is_learned_from_motion():
    inertia = [[0.2, 0.01, 0], [0.01, 0.3, 0], [0, 0, 0.25]]
    builder = ts.MechanismBuilder().link("nut", mass=1.0, com=(0.1, 0, 0), inertia=inertia)
    mech = builder.joint("screw", "helical", child="nut", axis=(1, 0, 1), pitch=0.3).build()
    g = torch.Generator().manual_seed(0)
    q, qd = mech.random_state(30, generator=g)
    tau = torch.randn(30, 1, generator=g, dtype=q.dtype)
    truth = ts.forward_dynamics(mech, q, qd, tau)
    wrong = mech.replace(joint_parameters=torch.tensor([0.35], dtype=q.dtype))
    layer = ts.Dynamics(wrong, {"screw.pitch": ts.learn.Free()})
    optimizer = torch.optim.LBFGS(
        layer.parameters(), max_iter=50, tolerance_grad=1e-14, tolerance_change=1e-18,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        optimizer.zero_grad()
        error = (layer(q, qd, tau) - truth).square().mean()
        error.backward()
        return error

    optimizer.step(loss)
    assert_close(layer.mechanism().joint_parameters.detach(), mech.joint_parameters, **close)
    with pytest.raises(ts.MechanismError, match="second_axis"):
        ts.Dynamics(random_mechanism(["universal"], [-1]), {"joint0.second_axis": ts.learn.Free()})


def test_a_planar_joint_moves_in_the_frames_own_x_and_y_unless_told_otherwise():
    builder = ts.MechanismBuilder().link("a", mass=1.0, inertia=torch.eye(3).tolist())
    mech = builder.joint("j", "planar", child="a").build()
    q = torch.tensor([1.0, 2.0, torch.pi / 2], dtype=torch.float64)
    R, p = ts.forward_kinematics(mech, q)
    assert_close(p[0], torch.tensor([1.0, 2.0, 0.0], dtype=q.dtype))
    turned = torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]], dtype=q.dtype)
    assert_close(R[0], turned)


@given(seeds)
def test_a_planar_joint_of_a_urdf_file_slides_in_the_plane_normal_to_its_axis(seed):
    g = torch.Generator().manual_seed(seed)
    axis = torch.nn.functional.normalize(torch.randn(3, generator=g, dtype=torch.float64), dim=-1)
    text = f"""<robot name="r"><link name="a"/><link name="b"><inertial><mass value="2"/>
      <inertia ixx="1" ixy="0" ixz="0" iyy="2" iyz="0" izz="2.5"/></inertial></link>
      <joint name="j" type="planar"><parent link="a"/><child link="b"/>
      <axis xyz="{" ".join(map(repr, axis.tolist()))}"/><limit velocity="2" effort="3"/></joint></robot>"""
    mech = ts.load(text)
    assert mech.joint_kinds == ("planar",)
    assert all(left.element.startswith("limits of") for left in mech.unused)
    q, _ = mech.random_state(5, generator=g)
    R, p = ts.forward_kinematics(mech, q)
    assert_close(R[:, 0] @ axis, axis.expand(5, 3), **close)
    assert_close(p[:, 0] @ axis, torch.zeros(5, dtype=q.dtype), **close)
    assert_close(p[:, 0].norm(dim=-1), q[:, :2].norm(dim=-1), **close)
    trace_ = R[:, 0].diagonal(dim1=-2, dim2=-1).sum(-1)
    assert_close(trace_, 1 + 2 * q[:, 2].cos(), **close)


def against_poincare(mech: ts.Mechanism, seed: int) -> None:
    """Mass matrix and bias from kinetic and potential energy of the bodies, by automatic derivatives.

    With nu the rates and p = dT/dnu, Poincare's equations d p/dt = ad*(nu) p + X(T - V) + tau hold on any
    Lie group (Poincare 1901); on a vector space they are Lagrange's.
    """
    none = torch.zeros_like(mech.damping)
    mech = mech.replace(damping=none, friction=none)
    g = torch.Generator().manual_seed(seed)
    q, _ = mech.random_state(generator=g)
    nu = torch.randn(mech.num_dof, generator=g, dtype=q.dtype)
    e, t = torch.eye(mech.num_dof, dtype=q.dtype), q.new_zeros(())

    def metric(q: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The bilinear form of kinetic energy."""
        at = q.expand(*torch.broadcast_shapes(x.shape, y.shape)[:-1], -1)
        both, one, other = (kinetic_energy(mech, at, z) for z in (x + y, x + 0 * y, y + 0 * x))
        return both - one - other

    agree(ts.mass_matrix(mech, q), metric(q, e[:, None], e), 1e-10)

    # Added to the mass matrix, armature is a rotor's inertia on vectors only: it has no bias of its own.
    mech = mech.replace(armature=none)

    def momentum(t: Tensor) -> Tensor:
        return metric(ts.integrate(mech, q, t * nu), nu, e)

    def lagrangian(t: Tensor) -> Tensor:
        at = ts.integrate(mech, q.expand(mech.num_dof, -1), t * e)
        return kinetic_energy(mech, at, nu.expand_as(e)) - potential_energy(mech, at)

    p, rate = jvp(momentum, (t,), (t + 1,))
    turning = bracket(mech, nu.expand_as(e), e) @ p
    expected = rate - turning - jvp(lagrangian, (t,), (t + 1,))[1]
    agree(ts.bias_force(mech, q, nu)[:, None], expected[:, None], 1e-10)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ALL_KINDS)
@few
@given(seed=seeds)
def test_each_kind_alone_obeys_the_equations_of_poincare(name, seed):
    against_poincare(random_mechanism([name], [-1], seed, armature=seed % 2 == 0), seed)


@few
@given(mechanisms(5), seeds)
def test_trees_of_all_kinds_obey_the_equations_of_poincare(mech, seed):
    against_poincare(mech, seed)
