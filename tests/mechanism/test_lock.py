"""A mechanism with joints locked moves as the whole one does with these joints at rest."""

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.func import jacrev

import torchsko as ts
from tests.states import normal_state
from tests.strategies import agree, any_mechanisms, random_mechanism, seeds

any_mechanism = any_mechanisms(4, 5)


def split(mech: ts.Mechanism, seed: int) -> tuple[list[str], list[str]]:
    """Names of joints to lock and to keep, one at least of the latter."""
    g = torch.Generator().manual_seed(seed)
    order = [mech.joint_names[i] for i in torch.randperm(len(mech.joint_names), generator=g)]
    count = int(torch.randint(len(order), (), generator=g))
    return order[:count], [name for name in mech.joint_names if name not in order[:count]]


def places(slices: list[slice]) -> list[int]:
    return [i for s in slices for i in range(s.start, s.stop)]


def held(mech: ts.Mechanism, q: Tensor, names: list[str]) -> dict[str, Tensor]:
    return {name: q[..., mech.q_slice(name)] for name in names}


@given(any_mechanism, seeds)
def test_a_locked_robot_moves_as_the_whole_with_its_joints_at_rest(mech, seed):
    names, kept = split(mech, seed)
    q, qd, qdd = normal_state(mech, seed=seed)
    own = places([mech.dof_slice(name) for name in kept])
    rest = torch.zeros(mech.num_dof, dtype=q.dtype)
    rest[own] = 1
    qd, qdd = qd * rest, qdd * rest
    left = mech.lock(held(mech, q, names))
    assert left.joint_names == tuple(kept)
    assert left.frame_names == mech.frame_names
    at = places([mech.q_slice(name) for name in kept])
    whole = ts.inverse_dynamics(mech, q, qd, qdd)
    agree(ts.inverse_dynamics(left, q[at], qd[own], qdd[own])[None], whole[own][None], 1e-11)
    agree(ts.mass_matrix(left, q[at]), ts.mass_matrix(mech, q)[own][:, own], 1e-11)
    for actual, expected in zip(
        ts.frame_pose(left, q[at], left.frame_names),
        ts.frame_pose(mech, q, mech.frame_names),
        strict=True,
    ):
        agree(actual, expected, 1e-12)
    V = ts.frame_velocity(left, q[at], qd[own], left.frame_names)
    agree(V, ts.frame_velocity(mech, q, qd, mech.frame_names), 1e-11)
    for limit, taken in (("lower", at), ("upper", at), ("velocity_limit", own)):
        assert torch.equal(getattr(left, limit), getattr(mech, limit)[taken])


@given(any_mechanism, seeds)
def test_derivatives_by_locked_values_are_those_by_coordinates(mech, seed):
    names, kept = split(mech, seed)
    q, qd, _ = normal_state(mech, seed=seed)
    own = places([mech.dof_slice(name) for name in kept])
    at = places([mech.q_slice(name) for name in kept])
    rest = torch.zeros(mech.num_dof, dtype=q.dtype)
    rest[own] = 1

    def after(q: Tensor, mass: Tensor) -> Tensor:
        left = mech.replace(mass=mass).lock(held(mech, q, names))
        return ts.bias_force(left, q[at], qd[own])

    def before(q: Tensor, mass: Tensor) -> Tensor:
        return ts.bias_force(mech.replace(mass=mass), q, qd * rest)[own]

    for argument in (0, 1):
        actual = jacrev(after, argument)(q, mech.mass)
        agree(actual, jacrev(before, argument)(q, mech.mass), 1e-10)


CHAIN = random_mechanism(
    ["revolute", "spherical", "prismatic", "revolute", "revolute"],
    [-1, 0, 1, 1, 3],
    seed=4,
    couplings={4: {0: 0.7, 2: -0.4}},
)


@pytest.mark.parametrize("batch", [(3,), (2, 1)], ids=str)
def test_batches_of_values_are_batches_of_robots(batch):
    q, *_ = normal_state(CHAIN, *batch, seed=2)
    names = ["joint1", "joint2"]
    left = CHAIN.lock(held(CHAIN, q, names))
    assert left.batch_shape == batch
    x, v = left.random_state()
    together = ts.inverse_dynamics(left, x, v, v)
    for i in torch.cartesian_prod(*map(torch.arange, batch)).reshape(-1, len(batch)).tolist():
        alone = CHAIN.lock(held(CHAIN, q[tuple(i)], names))
        agree(together[tuple(i)][None], ts.inverse_dynamics(alone, x, v, v)[None], 1e-13)


def test_what_follows_locked_joints_only_stops_with_them():
    q, *_ = normal_state(CHAIN, seed=3)
    one = CHAIN.lock(held(CHAIN, q, ["joint2"]))
    assert one.dependent_joint_names == ("joint4",)
    both = CHAIN.lock(held(CHAIN, q, ["joint0", "joint2"]))
    assert both.tree_joint_names == ("joint1", "joint3")
    assert both.coupling is None
    own = places([CHAIN.q_slice(name) for name in ("joint1", "joint3")])
    agree(
        ts.frame_pose(both, q[own], "body4").rotation,
        ts.frame_pose(CHAIN, q, "body4").rotation,
        1e-13,
    )


def test_a_joint_of_the_inertial_frame_leaves_bodies_that_never_move():
    left = CHAIN.lock({"joint0": 0.2})
    assert "body 'body0'" in [x.element for x in left.unused]
    assert left.parents[0] == -1


def limits_told(mech: ts.Mechanism) -> list[str]:
    return [x.element for x in mech.unused if x.element.startswith("limit")]


def test_notes_on_limits_are_of_joints_that_are_left():
    """They went on counting joints that were locked, and named one of them."""
    builder = ts.MechanismBuilder("arm")
    ends = {
        "first": (-1.0, 1.0),
        "second": (-2.0, 2.0),
        "third": (0.5, 0.5),
        "fourth": (None, None),
    }
    for k, (name, (lower, upper)) in enumerate(ends.items()):
        builder.link(f"link{k}", mass=1.0)
        parent = {"parent": f"link{k - 1}"} if k else {}
        bounds = {} if lower is None else {"lower": lower, "upper": upper}
        builder.joint(name, "revolute", child=f"link{k}", **parent, **bounds)
    mech = builder.build()
    assert limits_told(mech) == [
        "limits of position of joint 'first' and 2 more",
        "limits of position (equal) of joint 'third'",
    ]
    assert limits_told(mech.lock({"first": 0.1})) == [
        "limits of position of joint 'second' and 1 more",
        "limits of position (equal) of joint 'third'",
    ]
    left = mech.lock({"third": 0.5})
    assert limits_told(left) == ["limits of position of joint 'first' and 1 more"]
    assert limits_told(left.lock({"first": 0.0, "second": 0.0})) == []
    others = [x for x in mech.unused if not x.element.startswith("limit")]
    assert [x for x in left.unused if not x.element.startswith("limit")] == others


def test_notes_on_limits_are_of_those_that_hold_after_replace():
    """After what a note said to type it went on to say that no force is allowed."""
    builder, lower, none = ts.MechanismBuilder("arm"), -1.0, {"effort": 0.0, "velocity": 0.0}
    for k, limits in enumerate(({"lower": lower, "upper": 1.0}, none)):
        builder.link(f"link{k}", mass=1.0)
        parent = {"parent": f"link{k - 1}"} if k else {}
        builder.joint(f"joint{k}", "revolute", child=f"link{k}", **parent, **limits)
    mech = builder.build()
    zeros = ["limit of velocity 0 of joint 'joint1'", "limit of effort 0 of joint 'joint1'"]
    assert limits_told(mech)[-2:] == zeros
    freed = mech.replace(effort_limit=torch.tensor([torch.inf, 5.0], dtype=mech.dtype))
    assert [x for x in limits_told(mech) if x not in limits_told(freed)] == zeros[1:]
    open_ended = torch.full_like(mech.upper, torch.inf)
    freed = freed.replace(lower=-open_ended, upper=open_ended, velocity_limit=open_ended)
    assert limits_told(freed) == ["limits of effort of joint 'joint1'"]
    assert limits_told(mech.replace(effort_limit=mech.effort_limit[None][:0])) == limits_told(mech)
    assert limits_told(mech.replace(mass=2 * mech.mass)) == limits_told(mech)


def test_joints_that_no_inertia_resists_are_still_named_where_they_are_left():
    builder = ts.MechanismBuilder("tip")
    builder.link("arm", mass=1.0, com=(0.1, 0.0, 0.0)).link("tip")
    builder.joint("shoulder", "revolute", child="arm")
    builder.joint("wrist", "revolute", child="tip", parent="arm")
    mech = builder.build()
    assert mech.singular_joints == ("wrist",)
    assert mech.lock({"wrist": 0.0}).singular_joints == ()
    assert mech.lock({"shoulder": 0.0}).singular_joints == ("wrist",)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"joint9": 0.0}, "no moving joint is named 'joint9'"),
        ({"joint4": 0.0}, "Lock 'joint0' instead"),
        ({name: CHAIN.neutral()[CHAIN.q_slice(name)] for name in CHAIN.joint_names}, "Omit one"),
        ({"joint1": 0.0}, "4 coordinates"),
        ({"joint0": torch.zeros(2, dtype=torch.float64)}, "1 coordinates"),
        ({"joint0": torch.zeros(1)}, "torch.float32"),
    ],
)
def test_what_cannot_be_locked_is_refused_by_name(values, said):
    with pytest.raises(ts.TorchskoError, match=said) as error:
        CHAIN.lock(values)
    assert len(str(error.value).splitlines()) == 3


def test_where_a_motion_of_a_joint_is_no_joint_the_joint_is_named():
    cart = random_mechanism(["planar", "revolute"], [-1, 0], seed=0)
    with pytest.raises(
        ts.MechanismError, match=r"one motion of joint 'joint0', which has .*joint0_angle"
    ):
        cart.lock({"joint0_angle": 0.0})


def test_one_motion_of_a_compound_joint_is_refused_with_how_to_hold_it():
    mech = ts.load(
        """<mujoco><worldbody><body name="ball"><joint name="a" axis="0 0 1"/>
             <joint name="b" axis="0 1 0"/><geom size=".1" mass="1"/>
             <body name="rod" pos="0 0 .3"><joint name="c"/><geom size=".1" mass="1"/></body>
           </body></worldbody></mujoco>"""
    )
    with pytest.raises(ts.MechanismError, match="To fix 'b' alone") as told:
        mech.lock({"b": 0.0})
    assert "{'a+b': [0.0, 0.0]}" in str(told.value)
    assert mech.lock({"a+b": [0.0, 0.0]}).joint_names == ("c",)
