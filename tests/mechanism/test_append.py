"""A mechanism with another on it: energies add up, and the other's base moves as the frame does."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given
from torch import Tensor
from torch.func import jacrev

import torchsko as ts
from tests.states import normal_state
from tests.strategies import ALL_KINDS, agree, any_mechanisms, random_mechanism, seeds
from torchsko.spatial.rotation import quaternion_exp, unit_quaternion_to_matrix

any_mechanism = any_mechanisms(3, 4)


@st.composite
def afloat(draw: st.DrawFn) -> ts.Mechanism:
    """A robot whose one root floats."""
    n = draw(st.integers(1, 3))
    kinds = ["free", *(draw(st.sampled_from(ALL_KINDS)) for _ in range(n - 1))]
    parents = [-1, *(draw(st.integers(0, k - 1)) for k in range(1, n))]
    mech = random_mechanism(kinds, parents, draw(seeds))
    # A free joint stands where q says, as under `floating_base=True`.
    return mech.replace(
        joint_rotation=torch.cat([torch.eye(3, dtype=mech.dtype)[None], mech.joint_rotation[1:]]),
        joint_position=torch.cat([mech.joint_position[:1] * 0, mech.joint_position[1:]]),
        damping=torch.cat([mech.damping[:6] * 0, mech.damping[6:]]),
        friction=torch.cat([mech.friction[:6] * 0, mech.friction[6:]]),
    )


def drawn(seed: int, mech: ts.Mechanism) -> tuple[str, Tensor, Tensor, Tensor]:
    """A frame, and a placement in it: a unit quaternion, its rotation and a position."""
    g = torch.Generator().manual_seed(seed)
    frame = mech.frame_names[int(torch.randint(mech.num_frames, (), generator=g))]
    turn, r = torch.randn(2, 3, generator=g, dtype=mech.dtype)
    quat = quaternion_exp(turn)
    return frame, quat, unit_quaternion_to_matrix(quat), r


@given(any_mechanism, afloat(), seeds)
def test_appended_robots_have_the_forces_of_both(mech, other, seed):
    """d'Alembert: the other's forces reach the first through the frame's Jacobian."""
    frame, _, R, r = drawn(seed, mech)
    joined = mech.append(other, frame, R, r, prefix="tool_")
    (q, qd, qdd), (p, pd, pdd) = normal_state(mech, seed=seed), normal_state(other, seed=seed + 1)
    p, pd, pdd = p[7:], pd[6:], pdd[6:]
    at = ts.frame_pose(mech, q, frame)
    rotation, position = at.rotation @ R, at.position + at.rotation @ r
    base_q = torch.cat([position, matrix_to_quaternion(rotation)])
    told = {"q": q, "qd": qd, "qdd": qdd}
    V = ts.frame_velocity(mech, q, qd, frame)
    a = ts.frame_acceleration(mech, q, qd, qdd, frame)
    V, a, J = (to_point(R, r, x) for x in (V, a, ts.frame_jacobian(mech, q, frame)))
    alone = ts.inverse_dynamics(
        other, torch.cat([base_q, p]), torch.cat([V, pd]), torch.cat([a, pdd])
    )
    expected = torch.cat([ts.inverse_dynamics(mech, **told) + J.mT @ alone[:6], alone[6:]])
    both = (torch.cat(pair) for pair in ((q, p), (qd, pd), (qdd, pdd)))
    agree(ts.inverse_dynamics(joined, *both)[None], expected[None], 1e-10)


def to_point(R: Tensor, r: Tensor, x: Tensor) -> Tensor:
    """A frame's motion `[6]` or `[6, n]` as that of a frame placed in it."""
    w, v = x[:3], x[3:]
    arm = r if x.ndim == 1 else r[:, None].expand_as(w)
    return torch.cat([R.mT @ w, R.mT @ (v + torch.linalg.cross(w, arm, dim=0))])


def matrix_to_quaternion(R: Tensor) -> Tensor:
    """The eigenvector of the largest eigenvalue of Bar-Itzhack's matrix."""
    d = torch.stack([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]])
    K = torch.zeros(4, 4, dtype=R.dtype)
    K[0, 0] = R.trace()
    K[0, 1:] = K[1:, 0] = d
    K[1:, 1:] = R + R.mT - R.trace() * torch.eye(3, dtype=R.dtype)
    return torch.linalg.eigh(K).eigenvectors[:, -1]


@given(any_mechanism, any_mechanism, seeds)
def test_what_hangs_on_the_others_inertial_frame_hangs_on_the_frame(mech, other, seed):
    frame, _, R, r = drawn(seed, mech)
    joined = mech.append(other, frame, R, r, prefix="tool_")
    (q, qd, qdd), (p, pd, pdd) = normal_state(mech, seed=seed), normal_state(other, seed=seed + 1)
    assume(joined.num_dof == mech.num_dof + other.num_dof)  # no free base, welded
    x, v, a = (torch.cat(pair) for pair in ((q, p), (qd, pd), (qdd, pdd)))
    at, own = ts.frame_pose(mech, q, frame), ts.frame_pose(other, p, other.frame_names)
    placed = ts.frame_pose(joined, x, tuple("tool_" + name for name in other.frame_names))
    turn = at.rotation @ R
    agree(placed.rotation, turn @ own.rotation, 1e-12)
    shift = at.position + at.rotation @ r
    agree(placed.position, shift + own.position @ turn.mT, 1e-12)
    agree(
        ts.frame_pose(joined, x, mech.frame_names).position,
        ts.frame_pose(mech, q, mech.frame_names).position,
        1e-14,
    )
    # With the first at rest, the other's forces are those it has in turned gravity.
    still = torch.cat([torch.zeros_like(qd), pd]), torch.cat([torch.zeros_like(qdd), pdd])
    turned = other.replace(gravity=turn.mT @ mech.gravity)
    whole = ts.inverse_dynamics(joined, x, *still)
    agree(whole[None, mech.num_dof :], ts.inverse_dynamics(turned, p, pd, pdd)[None], 1e-10)
    # And forward dynamics invert inverse dynamics of the whole.
    agree(
        ts.forward_dynamics(joined, x, v, ts.inverse_dynamics(joined, x, v, a))[None],
        a[None],
        1e-8,
    )


FIRST = random_mechanism(["revolute", "prismatic"], [-1, 0], seed=1)
SECOND = random_mechanism(["free", "revolute"], [-1, 0], seed=2)
FIXED = random_mechanism(["revolute", "revolute"], [-1, 0], seed=3)


def test_a_free_base_may_be_kept():
    joined = FIRST.append(SECOND, "body1", prefix="b_", weld=False)
    assert joined.joint_names == ("joint0", "joint1", "b_joint0", "b_joint1")
    assert FIRST.append(SECOND, "body1", prefix="b_").joint_names[2:] == ("b_joint1",)


def test_the_name_of_a_welded_base_is_free():
    """Both float, and call their free joint the same, as those of `floating_base=True` do."""
    copter, arm = _floating("copter", "rotor"), _floating("arm", "elbow")
    both = copter.append(arm, "copter")
    assert both.joint_names == ("root_joint", "rotor", "elbow")
    agree(both.mass.sum()[None, None], (copter.mass.sum() + arm.mass.sum())[None, None], 1e-14)
    with pytest.raises(ts.MechanismError, match="both have a joint named 'root_joint'"):
        copter.append(arm, "copter", weld=False)


def _floating(base: str, joint: str) -> ts.Mechanism:
    builder = ts.MechanismBuilder(base).link(base, mass=1.0, inertia=torch.eye(3).tolist())
    builder.link(f"{joint}_link", mass=0.3, inertia=torch.eye(3).tolist())
    builder.joint(joint, "revolute", parent=base, child=f"{joint}_link")
    return builder.build(floating_base=True)


def test_derivatives_reach_the_placement():
    """At rest the work of gravity on the other is its weight times its height."""
    q = torch.zeros(4, dtype=FIRST.dtype)

    def potential(r: Tensor) -> Tensor:
        return ts.potential_energy(FIRST.append(FIXED, "body1", position=r, prefix="b_"), q)

    turn = ts.frame_pose(FIRST, q[:2], "body1").rotation
    weight = -FIXED.mass.sum() * FIRST.gravity @ turn
    actual = jacrev(potential)(torch.ones(3, dtype=FIRST.dtype))
    agree(actual[None], weight[None], 1e-12)


def test_batches_of_placements_are_batches_of_robots():
    r = torch.randn(3, 1, 3, generator=torch.Generator().manual_seed(0), dtype=FIRST.dtype)
    joined = FIRST.append(SECOND, "body1", position=r, prefix="b_")
    assert joined.batch_shape == (3, 1)
    q, qd = joined.random_state(2)
    together = ts.bias_force(joined, q, qd)
    assert together.shape == (3, 2, 3)
    for i in range(3):
        alone = FIRST.append(SECOND, "body1", position=r[i, 0], prefix="b_")
        agree(together[i], ts.bias_force(alone, q, qd), 1e-13)


def test_mass_that_the_other_left_out_is_asked_for():
    builder = ts.MechanismBuilder("gripper").link("palm", mass=1.0).link("finger", mass=0.1)
    builder.joint("slide", "prismatic", parent="palm", child="finger")
    with pytest.raises(ts.MechanismError, match="link 'palm' <inertial>") as error:
        FIRST.append(builder.build(), "body1")
    assert "floating_base=True" in str(error.value).splitlines()[2]
    joined = FIRST.append(builder.build(floating_base=True), "body1")
    agree(joined.mass.sum()[None, None], (FIRST.mass.sum() + 1.1)[None, None], 1e-14)


def test_mass_that_a_lock_left_on_the_inertial_frame_is_not_lost_on_one_that_moves():
    cart = FIRST.append(SECOND.lock({"joint1": torch.zeros(1).double()}), "body1", prefix="b_")
    agree(cart.mass.sum()[None, None], (FIRST.mass.sum() + SECOND.mass.sum())[None, None], 1e-14)
    stopped = FIXED.lock({"joint0": 0.3})
    with pytest.raises(ts.MechanismError, match="body 'body0' of 'random' was left out") as error:
        FIRST.append(stopped, "body1", prefix="b_")
    assert "append(other, frame).lock" in str(error.value).splitlines()[2]
    light = FIXED.replace(mass=FIXED.mass * torch.tensor([0.0, 1.0]).double())
    light = light.replace(inertia=FIXED.inertia * torch.tensor([0.0, 1.0]).double()[:, None, None])
    joined = FIRST.append(light.lock({"joint0": 0.3}), "body1", prefix="b_")
    agree(joined.mass[2:], FIXED.mass[1:], 1e-14)


def test_robots_stand_side_by_side_with_bases_that_never_move():
    """Two arms on one bench, of files whose bases have mass: each moves as it does alone."""
    arm, apart = ts.load(ts.robots.panda), torch.tensor([0.8, 0.0, 0.0]).double()
    assert any(entry.fixed_inertia for entry in arm.unused)
    pair = arm.append(arm, "link0", position=apart, prefix="right_")
    q, qd = pair.random_state(generator=torch.Generator().manual_seed(0))
    alone = [ts.bias_force(arm, *(x[part] for x in (q, qd))) for part in (slice(7), slice(7, 14))]
    agree(ts.bias_force(pair, q, qd)[None], torch.cat(alone)[None], 1e-13)
    hand = ts.frame_pose(pair, q, "right_flange").position
    agree(hand[None], (ts.frame_pose(arm, q[7:], "flange").position + apart)[None], 1e-13)
    with pytest.raises(ts.MechanismError, match="link 'link0' <inertial>"):
        FIRST.append(pair, "body1", prefix="b_")


@pytest.mark.parametrize(
    ("other", "options", "said"),
    [
        (FIXED, {}, 'Pass prefix="random_"'),
        (FIXED, {"prefix": "b_", "frame": "body7"}, "no frame is named 'body7'"),
        (FIXED.float(), {"prefix": "b_"}, "Append other.to"),
        (
            FIXED,
            {"prefix": "b_", "position": torch.zeros(2, dtype=FIXED.dtype)},
            "position of the appended mechanism has shape",
        ),
        (
            FIXED,
            {"prefix": "b_", "rotation": torch.eye(3)},
            "rotation of the appended mechanism is torch.float32",
        ),
    ],
)
def test_invalid_arguments_are_refused_by_name(other, options, said):
    with pytest.raises(ts.TorchskoError, match=said) as error:
        FIRST.append(other, **{"frame": "body1"} | options)
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")
def test_a_tool_on_a_link_without_mass_makes_its_joint_move_as_the_refusal_says():
    """A verdict of load: what lifts it after lock and append is told by who refuses."""
    heavy = {"mass": 2.0, "com": (0.1, 0.0, 0.0), "inertia": torch.eye(3).tolist()}

    def robot(massless):
        arm = ts.MechanismBuilder("arm").link("upper", **heavy)
        arm = arm.joint("shoulder", "revolute", child="upper")
        arm = arm.link("tip", **({} if massless else heavy))
        return arm.joint("wrist", "revolute", child="tip", parent="upper", axis=(0, 1, 0)).build()

    tool = ts.MechanismBuilder("tool").link("tool", **heavy).joint("base", "free", child="tool")
    arm = robot(massless=True).append(tool.build(), "tip")
    q, qd = arm.random_state()
    with pytest.raises(ts.MechanismError, match="After lock or append"):
        ts.forward_dynamics(arm, q, qd, 0 * qd)
    found = ts.forward_dynamics(ts.mark_singular_joints(arm), q, qd, 0 * qd)
    agree(found, ts.forward_dynamics(robot(massless=False), q, qd, 0 * qd), 1e-12)
