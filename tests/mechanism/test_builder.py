"""From links and joints to a mechanism: order, merging of fixed joints, links without mass."""

import pytest
import torch
from hypothesis import given
from torch.testing import assert_close

import torchsko as ts
from tests.strategies import seeds

IDENTITY = [[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]]


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Numbers:
    """Random numbers for builders, as plain lists."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def vector(self) -> torch.Tensor:
        return torch.randn(3, generator=self.generator, dtype=torch.float64)

    def turn(self) -> torch.Tensor:
        x = torch.randn(3, 3, generator=self.generator, dtype=torch.float64)
        R = torch.linalg.qr(x).Q
        return R * torch.linalg.det(R)

    def link(self) -> dict:
        moments = self.vector().square() + 0.1
        return {
            "mass": 1.0 + float(self.vector()[0].abs()),
            "com": self.vector().tolist(),
            "inertia": torch.diag(moments.sum() - moments).tolist(),
            "inertia_rotation": self.turn().tolist(),
        }

    def placement(self) -> dict:
        return {"rotation": self.turn().tolist(), "position": self.vector().tolist()}


def test_bodies_come_depth_first_siblings_in_the_order_of_the_file():
    builder = ts.MechanismBuilder()
    for name in ("d", "b", "a", "c", "e"):
        builder.link(name, mass=1.0, com=(0.1, 0.0, 0.0))
    for child, parent in (("b", "a"), ("e", "c"), ("a", None), ("c", "a"), ("d", "b")):
        builder.joint(f"to_{child}", "revolute", child=child, parent=parent, axis=(0, 1, 0))
    mech = builder.build()
    assert mech.body_names == ("a", "b", "d", "c", "e")
    assert mech.joint_names == ("to_a", "to_b", "to_d", "to_c", "to_e")
    assert mech.parents == (-1, 0, 1, 0, 3)


@given(seeds)
def test_the_order_of_siblings_only_permutes_the_results(seed):
    numbers = Numbers(seed)
    links = {name: numbers.link() for name in "abcd"}
    kinds = {"a": "spherical", "b": "revolute", "c": "prismatic", "d": "free"}
    parents = {"a": None, "b": "a", "c": "a", "d": "b"}
    data = {name: numbers.placement() | {"axis": numbers.vector().tolist()} for name in links}

    def built(order: str, rename: str) -> ts.Mechanism:
        builder = ts.MechanismBuilder()
        for name in order:
            parent = parents[name]
            builder.link(rename + name, **links[name])
            builder.joint(rename + name, kinds[name], child=rename + name,
                          parent=rename + parent if parent else None, **data[name])  # fmt: skip
        return builder.build()

    one, other = built("abcd", ""), built("dcba", "other_")
    q, qd = one.random_state(generator=torch.Generator().manual_seed(seed))

    def moved(x: torch.Tensor, where: str) -> torch.Tensor:
        parts = [x[getattr(one, where)(name.removeprefix("other_"))] for name in other.joint_names]
        return torch.cat(parts)

    tau = ts.inverse_dynamics(one, q, qd, qd)
    qd_other = moved(qd, "dof_slice")
    expected = ts.inverse_dynamics(other, moved(q, "q_slice"), qd_other, qd_other)
    assert one.joint_names != tuple(n.removeprefix("other_") for n in other.joint_names)
    assert_close(expected, moved(tau, "dof_slice"))


@given(seeds)
def test_a_fixed_joint_is_a_joint_that_does_not_move(seed):
    """Merged at build, a link acts as it does at the end of a free joint held still."""
    numbers = Numbers(seed)
    arm, tool, hand = numbers.link(), numbers.link(), numbers.link()
    shoulder, weld, wrist = (numbers.placement() for _ in range(3))

    def built(kind: str) -> ts.Mechanism:
        builder = ts.MechanismBuilder()
        builder.link("arm", **arm).link("tool", **tool).link("hand", **hand)
        builder.joint("shoulder", "revolute", child="arm", **shoulder)
        builder.joint("weld", kind, child="tool", parent="arm", **weld)
        return builder.joint("wrist", "spherical", child="hand", parent="tool", **wrist).build()

    merged, held = built("fixed"), built("free")
    q, qd = merged.random_state(generator=torch.Generator().manual_seed(seed))
    q_weld, still = tensor(0, 0, 0, 1, 0, 0, 0), torch.zeros(6, dtype=q.dtype)
    q_held = torch.cat([q[:1], q_weld, q[1:]])
    qd_held = torch.cat([qd[:1], still, qd[1:]])
    tau = ts.inverse_dynamics(held, q_held, qd_held, qd_held)
    assert_close(ts.inverse_dynamics(merged, q, qd, qd), torch.cat([tau[:1], tau[7:]]))
    frames = ("arm", "tool", "hand")
    assert set(merged.frame_names) == set(frames) and merged.body_names == ("arm", "hand")
    assert_close(ts.frame_pose(merged, q, frames), ts.frame_pose(held, q_held, frames))


def test_links_welded_to_the_inertial_frame_are_frames_without_dynamics():
    builder = ts.MechanismBuilder().link("base", mass=3.0).link("mast", mass=2.0)
    builder.link("rod", mass=1.0, com=(0.2, 0.0, 0.0))
    builder.joint("weld", "fixed", child="mast", parent="base", position=(0.0, 0.0, 1.0))
    mech = builder.joint("hinge", "revolute", child="rod", parent="mast", axis=(0, 1, 0)).build()
    assert mech.body_names == ("rod",)
    assert_close(ts.frame_pose(mech, tensor(0.3), ["mast"]).position[0], tensor(0, 0, 1))
    assert not ts.frame_jacobian(mech, tensor(0.3), ["mast", "base"]).any()


def test_a_forest_is_its_trees_side_by_side():
    numbers = Numbers(3)
    links = [numbers.link(), numbers.link()]

    def built(*which: int) -> ts.Mechanism:
        builder = ts.MechanismBuilder()
        for k in which:
            builder.link(f"l{k}", **links[k]).joint(f"j{k}", "spherical", child=f"l{k}")
        return builder.build()

    both, trees = built(0, 1), [built(0), built(1)]
    q, qd = both.random_state(generator=torch.Generator().manual_seed(0))
    alone = [
        ts.forward_dynamics(t, q[4 * k : 4 * k + 4], qd[3 * k : 3 * k + 3], torch.zeros(3).double())
        for k, t in enumerate(trees)
    ]
    assert_close(ts.forward_dynamics(both, q, qd, torch.zeros_like(qd)), torch.cat(alone))
    assert not ts.mass_matrix(both, q)[:3, 3:].any()


def gimbal(second_axis: tuple[float, float, float], tip_mass: float = 1.0) -> ts.Mechanism:
    """A ring without mass, and a body that turns in it."""
    builder = ts.MechanismBuilder("gimbal").link("ring")
    if tip_mass:
        builder.link("body", mass=tip_mass, com=(0.1, 0.0, 0.2), inertia=IDENTITY)
    else:
        builder.link("body")
    builder.joint("outer", "revolute", child="ring")
    return builder.joint("inner", "revolute", child="body", parent="ring", axis=second_axis).build()


def test_a_massless_link_between_crossed_axes_has_dynamics():
    mech = gimbal((1.0, 0.0, 0.0))
    assert mech.singular_joints == ()
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(0))
    tau = ts.inverse_dynamics(mech, q, qd, qd)
    assert_close(ts.forward_dynamics(mech, q, qd, tau), qd)


@pytest.mark.parametrize(
    ("mech", "singular"),
    [(gimbal((0, 0, 1)), "outer"), (gimbal((1, 0, 0), tip_mass=0.0), "inner")],
    ids=["collinear", "tip"],
)
def test_a_joint_that_no_inertia_resists_is_named_by_forward_dynamics_alone(mech, singular):
    q, qd = mech.random_state(3, generator=torch.Generator().manual_seed(0))
    M = ts.mass_matrix(mech, q)
    inertial = (M @ qd[..., None])[..., 0]
    assert_close(ts.inverse_dynamics(mech, q, qd, qd), inertial + ts.bias_force(mech, q, qd))
    assert torch.linalg.matrix_rank(M).max() < 2
    with pytest.raises(ts.MechanismError, match=f"'gimbal' is undefined.*'{singular}'"):
        ts.forward_dynamics(mech, q, qd, qd)


@pytest.mark.parametrize("mech", [gimbal((0, 0, 1)), gimbal((1, 0, 0), tip_mass=0.0)])
def test_armature_cures_a_joint_without_inertia(mech):
    cured = ts.mark_singular_joints(mech.replace(armature=tensor(0.2, 0.2)))
    assert cured.singular_joints == ()
    q, qd = mech.random_state(3, generator=torch.Generator().manual_seed(0))
    tau = ts.inverse_dynamics(cured, q, qd, qd)
    assert_close(ts.forward_dynamics(cured, q, qd, tau), qd)


def test_a_joint_is_singular_when_it_is_so_in_any_robot_of_a_batch():
    mech = gimbal((0, 0, 1))
    some = mech.replace(armature=torch.stack([tensor(0.2, 0.2), tensor(0.0, 0.0)]))
    assert ts.mark_singular_joints(some).singular_joints == ("outer",)
    every = mech.replace(armature=torch.stack([tensor(0.2, 0.2), tensor(0.1, 0.2)]))
    assert ts.mark_singular_joints(every).singular_joints == ()


def test_every_joint_of_a_massless_branch_is_singular():
    builder = ts.MechanismBuilder().link("arm", mass=1.0, inertia=IDENTITY).link("b").link("c")
    for name, parent, child in (("root", None, "arm"), ("inner", "arm", "b"), ("outer", "b", "c")):
        builder = builder.joint(name, "revolute", parent=parent, child=child, axis=(1, 0, 0))
    assert builder.build().singular_joints == ("inner", "outer")


def test_a_ball_joint_reads_no_axis():
    builder = ts.MechanismBuilder().link("l", mass=1.0, inertia=IDENTITY)
    mech = builder.joint("ball", "spherical", child="l", axis=(0.0, 0.0, 0.0)).build()
    assert mech.axis.isfinite().all()


ROOTED = (
    '<robot name="r"><link name="base"/><link name="arm"><inertial><mass value="1"/><inertia '
    'ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link>'
    '<joint name="root_joint" type="{}"><parent link="base"/><child link="arm"/></joint>{}</robot>'
)


@pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")
@pytest.mark.parametrize(
    ("kind", "floating_base", "names"),
    [
        ("revolute", False, ("root_joint",)),
        ("revolute", True, ("root_joint_base", "root_joint")),
        ("fixed", True, ("root_joint",)),
        ("floating", False, ("root_joint",)),
    ],
)
def test_a_joint_of_the_file_may_be_named_as_the_one_that_is_added(kind, floating_base, names):
    mech = ts.load(ROOTED.format(kind, ""), floating_base=floating_base)
    assert mech.joint_names == names
    if floating_base:
        assert mech.joint_kinds[0] == "free"


def test_the_added_joint_always_finds_a_name():
    builder = ts.MechanismBuilder().link("a", mass=1.0, inertia=IDENTITY)
    for parent, child, name in (("a", "b", "root_joint"), ("b", "c", "root_joint_a")):
        builder.link(child, mass=1.0, inertia=IDENTITY)
        builder.joint(name, "revolute", child=child, parent=parent)
    mech = builder.build(floating_base=True)
    assert len(set(mech.joint_names)) == 3 and mech.joint_names[1:] == (
        "root_joint",
        "root_joint_a",
    )


HEAVY = (
    '<link name="stray"><inertial><mass value="1"/><inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" '
    'izz="1"/></inertial></link>'
)


@pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")
@pytest.mark.parametrize(
    ("stray", "floating_base", "how"),
    [
        (HEAVY, False, "welded to the inertial frame"),
        (HEAVY, True, "free joint 'root_joint_stray'"),
        ('<link name="stray"/>', False, "welded to the inertial frame"),
        ('<link name="stray"/>', True, "welded to the inertial frame"),
    ],
)
def test_a_second_root_is_reported_and_floats_if_it_has_mass(stray, floating_base, how):
    mech = ts.load(ROOTED.format("revolute", stray), floating_base=floating_base)
    (entry,) = (str(e) for e in mech.unused if e.element == "link 'stray'")
    assert "besides 'base'" in entry and how in entry
    alone = ts.load(ROOTED.format("revolute", ""), floating_base=floating_base)
    assert not any("root" in str(e) for e in alone.unused)


def test_a_name_that_is_no_text_is_refused():
    builder = ts.MechanismBuilder().link("a", mass=1.0)
    for add in (lambda: builder.link(3), lambda: builder.joint(3, "revolute", child="a")):  # type: ignore
        with pytest.raises(
            ts.MechanismError, match=r"is 3, which is not a string(.|\n)*Pass '3'\."
        ):
            add()
    assert [link.name for link in builder.description().links] == ["a"]
