"""Contact points of pairs of shapes equal those of MuJoCo, and have gradients."""

from pathlib import Path

import numpy as np
import pytest
import torch

import torchsko as ts
from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.points import IN_BALLS, all_poses, are_near, placed_shapes, reads_of_group
from torchsko.shapes.registry import COLLISIONS, KINDS
from torchsko.spatial.rotation import quaternion_to_matrix

mujoco = pytest.importorskip("mujoco")

SHAPES = {
    "plane": 'type="plane" size="1 1 1"',
    "heightfield": 'type="hfield" hfield="hills"',
    "sphere": 'type="sphere" size="0.2"',
    "capsule": 'type="capsule" size="0.1 0.3"',
    "ellipsoid": 'type="ellipsoid" size="0.1 0.2 0.3"',
    "cylinder": 'type="cylinder" size="0.15 0.25"',
    "box": 'type="box" size="0.1 0.2 0.3"',
    "mesh": 'type="mesh" mesh="stone"',
}
PAIRS = [pair for pair in COLLISIONS if pair[0] != "heightfield"]
TERRAIN_PAIRS = [pair for pair in COLLISIONS if pair[0] == "heightfield"]
SIMPLE_PAIRS = [
    ("plane", "capsule"), ("sphere", "sphere"), ("sphere", "capsule"), *TERRAIN_PAIRS[:2],
]  # fmt: skip
"""Pairs whose functions other pairs use as well."""

MARGIN = 0.6
STONE = np.random.default_rng(5).normal(size=(9, 3)) * [0.1, 0.2, 0.3]
HILLS = np.random.default_rng(6).uniform(size=(5, 6))


def numbers(x):
    return " ".join(map(str, np.ravel(x)))


def text_of(first, second, margin=MARGIN):
    """Text of two shapes, the second on a free body."""
    fixed = first in ("plane", "heightfield")
    body = f'<geom name="a" {SHAPES[first]} margin="{margin / 2}"/>'
    body = f'<body pos=".1 .2 .3" euler="20 30 40">{"" if fixed else "<freejoint/>"}{body}</body>'
    return f"""<mujoco><asset><mesh name="stone" vertex="{numbers(STONE)}"/>
        <hfield name="hills" nrow="5" ncol="6" size="1 1.2 .4 .1" elevation="{numbers(HILLS)}"/></asset>
        <worldbody>{body}<body><freejoint/><geom name="b" {SHAPES[second]} margin="{margin / 2}"/></body>
        </worldbody></mujoco>"""


def model_of(first, second, margin=MARGIN):
    """A model of two shapes."""
    return mujoco.MjModel.from_xml_string(text_of(first, second, margin))


def random_positions(model, rng, num=40):
    """Configurations in which the shapes are near, `[num, nq]`."""
    q = rng.normal(size=(num, model.nq))
    for start in range(0, model.nq, 7):
        q[:, start : start + 3] *= 0.2
        q[:, start + 3 : start + 7] /= np.linalg.norm(q[:, start + 3 : start + 7], axis=1)[:, None]
    return q


def contacts_of(model, qpos):
    """Distances, positions and axes of MuJoCo's contacts, sorted by position."""
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    rows = [np.r_[c.dist, c.pos, c.frame] for c in data.contact]
    return sorted(rows, key=lambda row: tuple(row[1:4].round(9)))


def assert_points_equal(model, qpos, least):
    """The active points of a pair are those of MuJoCo."""
    mech = ts.from_mujoco(model)
    found = ts.contacts(mech, torch.tensor(qpos))
    count = 0
    for k, q in enumerate(qpos):
        expected = contacts_of(model, q)
        columns = found.distance[..., None], found.position, found.axes.flatten(-2)
        rows = torch.cat(columns, -1)[k][found.active[k]].tolist()
        rows = sorted(rows, key=lambda row: tuple(np.round(row[1:4], 9)))
        assert len(rows) == len(expected)
        count += len(rows)
        if rows:
            np.testing.assert_allclose(rows, expected, atol=1e-11)
    assert count >= least
    assert not found.dropped.any()


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_contact_points_equal_those_of_mujoco(kinds):
    model = model_of(*kinds)
    assert_points_equal(model, random_positions(model, np.random.default_rng(0)), 20)


@pytest.mark.parametrize("kinds", [x for x in PAIRS if IN_BALLS.issuperset(x)], ids="-".join)
def test_balls_around_shapes_meet_where_the_shapes_do(kinds):
    model = model_of(*kinds, 0.05)
    mech = ts.from_mujoco(model)
    qpos = random_positions(model, np.random.default_rng(0), 400)
    qpos[:, [0, 7]] *= 5
    q, contact = torch.tensor(qpos), ts.ContactModel.of(mech)
    shapes = placed_shapes(contact, all_poses(Kinematics.of(mech, q)))
    near = are_near(reads_of_group(contact, shapes, contact.groups[0]))[:, 0]
    active = ts.contacts(mech, q, contact=contact).active.any(-1)
    assert near[active].all() and active.sum() > 10 and (~near).sum() > 10


@pytest.mark.parametrize("kind", ["capsule", "box"])
@pytest.mark.parametrize("tilt", [0.0, 0.01])
def test_contact_points_of_parallel_shapes_equal_those_of_mujoco(kind, tilt):
    model = model_of(kind, kind, 0.0)
    rng = np.random.default_rng(0)
    qpos = random_positions(model, rng)
    qpos[:, 3:7] = qpos[:, 10:14] + tilt * rng.normal(size=(len(qpos), 4))
    qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1)[:, None]
    assert_points_equal(model, qpos, 10)


def test_axes_of_an_upright_capsule_on_a_plane_equal_those_of_mujoco():
    text = text_of("plane", "capsule").replace('euler="20 30 40"', "")
    qpos = np.array([[0.1, -0.2, 0.3, 1, 0, 0, 0]])
    assert_points_equal(mujoco.MjModel.from_xml_string(text), qpos, 1)


def test_equal_boxes_face_to_face_touch_at_four_corners_in_any_orientation():
    box = '<body><freejoint/><geom type="box" size=".1 .1 .1"/></body>'
    mech = ts.load(f"<mujoco><worldbody>{box}{box}</worldbody></mujoco>")
    x = torch.randn(200, 7, dtype=mech.dtype, generator=torch.Generator().manual_seed(0))
    turn = torch.nn.functional.normalize(x[:, 3:], dim=-1)
    up = quaternion_to_matrix(turn)[..., 2]
    q = torch.cat([x[:, :3], turn, x[:, :3] + 0.199 * up, turn], -1)
    assert (ts.contacts(mech, q).active.sum(-1) == 4).all()
    single = mech.to(torch.float32)
    assert (ts.contacts(single, q.float()).active.sum(-1) >= 4).all()


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(x, marks=pytest.mark.nightly if x in SIMPLE_PAIRS else (), id="-".join(x))
        for x in PAIRS + TERRAIN_PAIRS
    ],
)
def test_points_and_axes_have_exact_derivatives_and_samples(kinds):
    model = model_of(*kinds)
    mech = ts.from_mujoco(model)
    contact = ts.ContactModel.of(mech)
    q = torch.tensor(random_positions(model, np.random.default_rng(1), 3))
    names = "shape_size", "shape_position", "shape_rotation", "mesh_vertices", "heights"

    def points(q, step, *changes):
        changed = contact.replace(**dict(zip(names, changes, strict=True)))
        found = ts.contacts(mech, ts.integrate(mech, q, step), contact=changed)
        exists = found.distance < 1e9
        return (
            torch.where(exists, found.distance, 0.0),
            torch.where(exists[..., None], found.position, 0.0),
            torch.where(exists[..., None, None], found.axes, 0.0),
        )

    inputs = [torch.zeros(3, mech.num_dof, dtype=q.dtype)]
    inputs = [x.clone().requires_grad_() for x in (*inputs, *(getattr(contact, n) for n in names))]

    def check(*inputs):
        return points(q, *inputs)

    assert torch.autograd.gradcheck(
        check, inputs, eps=1e-6, atol=1e-6, fast_mode=True, check_forward_ad=True
    )
    steps, parameters = inputs[0], inputs[1:]
    together = points(q, *inputs)
    mapped = torch.func.vmap(points, (0, 0, *(None,) * len(names)))(q, *inputs)
    nested = points(q.expand(2, 3, -1), steps, *parameters)
    single = points(q[:1], steps[:1], *parameters)
    for x, in_map, in_batch, alone in zip(together, mapped, nested, single, strict=True):
        torch.testing.assert_close(in_map, x)
        torch.testing.assert_close(in_batch[1], x)
        torch.testing.assert_close(alone, x[:1])


DEGENERATE = [
    ("sphere", "sphere", 0.0), ("sphere", "capsule", 0.0), ("sphere", "cylinder", 0.0),
    ("sphere", "box", 0.0), ("capsule", "capsule", 0.0), ("capsule", "box", 0.0), ("box", "box", 0.0),
    ("capsule", "capsule", 0.2), ("box", "box", 0.2), ("capsule", "box", 0.2),
    *((first, kind, 0.0) for first, kind in PAIRS + TERRAIN_PAIRS if first in ("plane", "heightfield")),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_degenerate_poses_have_finite_values_and_gradients(dtype):
    for first, second, offset in DEGENERATE:
        text = text_of(first, second).replace('pos=".1 .2 .3" euler="20 30 40"', "")
        mech = ts.load(text, dtype=dtype)
        q = mech.neutral().clone()
        q[-7] = offset
        q.requires_grad_()
        found = ts.contacts(mech, q)
        exists = found.distance < 1e9
        total = torch.where(exists, found.distance, 0.0).sum() + found.position.sum()
        (gradient,) = torch.autograd.grad(total + found.axes.sum(), q)
        assert torch.isfinite(gradient).all(), (first, second, offset)
        assert torch.isfinite(found.position).all() and torch.isfinite(found.axes).all()


def test_pairs_follow_bit_masks_exclusions_and_parents():
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/>
        <body name="a"><freejoint/><geom name="a" size=".1"/>
          <body name="b"><joint/><geom name="b" size=".1"/>
            <body name="c"><joint/><geom name="c" size=".1"/><geom name="d" size=".1" contype="2"
              conaffinity="4"/></body></body></body>
        <body name="e"><freejoint/><geom name="e" size=".1" contype="4" conaffinity="1"/></body>
        </worldbody><contact><exclude body1="a" body2="e"/><pair geom1="a" geom2="b"/></contact></mujoco>"""
    )
    pairs = ts.ContactModel.of(ts.from_mujoco(model)).pair_names
    expected = {
        ("floor", "a"), ("floor", "b"), ("floor", "c"), ("a", "c"), ("b", "e"), ("c", "e"),
        ("d", "e"), ("a", "b"), ("floor", "e"),
    }  # fmt: skip
    assert {tuple(sorted(pair)) for pair in pairs} == {tuple(sorted(pair)) for pair in expected}


def test_unsupported_pairs_are_named():
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><body><freejoint/><geom name="a" type="cylinder" size=".1 .1"/></body>
        <body><freejoint/><geom name="b" type="ellipsoid" size=".1 .1 .1"/></body></worldbody></mujoco>"""
    )
    (text,) = ts.ContactModel.of(ts.from_mujoco(model)).unsupported
    assert "'a'" in text and "'b'" in text


def test_pairs_of_other_kinds_are_named_when_a_file_is_read():
    with pytest.warns(
        ts.RobotFileWarning, match=r"1 pairs of geoms \('a' \(box\) and 'b' \(mesh\)\)"
    ):
        ts.load(text_of("box", "mesh"))


@pytest.mark.nightly
@pytest.mark.parametrize("kinds", PAIRS + TERRAIN_PAIRS, ids="-".join)
def test_kernels_have_the_points_and_gradients_of_eager_mode(kinds):
    model = model_of(*kinds)
    mech = ts.from_mujoco(model)
    contact = ts.ContactModel.of(mech)
    q = torch.tensor(random_positions(model, np.random.default_rng(1), 8))

    def points(mech, q, size, heights):
        found = ts.contacts(mech, q, contact=contact.replace(shape_size=size, heights=heights))
        exists = found.distance < 1e9
        return (
            torch.where(exists, found.distance, 0.0),
            torch.where(exists[..., None], found.position, 0.0),
        )

    parts = (contact.shape_size, contact.heights)
    inputs = [x.detach().clone() for x in (q, *(p.expand(8, *p.shape) for p in parts))]
    names = dict(zip(("q", "size", "heights"), (tuple(x.shape[1:]) for x in inputs), strict=True))
    fast = ts.fuse(points, mech, shapes=names)
    results = []
    for call in (fast, lambda *x: points(mech, *x)):
        leaves = [x.clone().requires_grad_() for x in inputs]
        found = call(*leaves)
        total = sum((x * torch.sin(torch.arange(x.numel())).reshape(x.shape)).sum() for x in found)
        gradients = torch.autograd.grad(total, leaves, materialize_grads=True)
        results.append((*found, *gradients))
    for fused, eager in zip(*results, strict=True):
        torch.testing.assert_close(fused, eager, rtol=1e-11, atol=1e-11)


def test_the_first_shape_of_a_pair_is_the_earlier_kind_and_the_documentation_has_the_pair():
    page = (Path(__file__).parents[2] / "docs" / "contact.md").read_text()
    rows = {
        row.split("|")[1].strip().replace(" ", ""): row for row in page.splitlines() if "| " in row
    }
    assert {*SHAPES} == {*KINDS}
    for first, second in COLLISIONS:
        assert KINDS.index(first) <= KINDS.index(second)
        assert second in rows[first].split("|")[2]
