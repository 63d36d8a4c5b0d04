"""Contact points of primitive shapes equal those of MuJoCo, and have gradients."""

import numpy as np
import pytest
import torch

import torchsko as ts

mujoco = pytest.importorskip("mujoco")

SHAPES = {
    "plane": 'type="plane" size="1 1 1"',
    "sphere": 'type="sphere" size="0.2"',
    "capsule": 'type="capsule" size="0.1 0.3"',
    "ellipsoid": 'type="ellipsoid" size="0.1 0.2 0.3"',
    "cylinder": 'type="cylinder" size="0.15 0.25"',
    "box": 'type="box" size="0.1 0.2 0.3"',
}
PAIRS = [
    ("plane", "sphere"),
    ("plane", "capsule"),
    ("plane", "ellipsoid"),
    ("plane", "cylinder"),
    ("plane", "box"),
    ("sphere", "sphere"),
    ("sphere", "capsule"),
    ("sphere", "box"),
    ("capsule", "capsule"),
]
MARGIN = 0.6


def model_of(first, second):
    """A model of two shapes, the second on a free body, with a large margin."""
    fixed = first == "plane"
    body = f'<geom {SHAPES[first]} margin="{MARGIN / 2}"/>'
    body = f'<body pos=".1 .2 .3" euler="20 30 40">{"" if fixed else "<freejoint/>"}{body}</body>'
    return mujoco.MjModel.from_xml_string(
        f"""<mujoco><worldbody>{body}
        <body><freejoint/><geom {SHAPES[second]} margin="{MARGIN / 2}"/></body></worldbody></mujoco>"""
    )


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


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_contact_points_equal_those_of_mujoco(kinds):
    model = model_of(*kinds)
    mech = ts.from_mujoco(model)
    contact = ts.ContactModel.of(mech)
    qpos = random_positions(model, np.random.default_rng(0))
    found = ts.contacts(mech, torch.tensor(qpos), contact)
    count = 0
    for k, q in enumerate(qpos):
        expected = contacts_of(model, q)
        active = found.active[k]
        rows = torch.cat(
            [
                found.distance[k][active][:, None],
                found.position[k][active],
                found.axes[k][active].flatten(-2),
            ],
            -1,
        ).numpy()
        rows = sorted(rows, key=lambda row: tuple(row[1:4].round(9)))
        assert len(rows) == len(expected)
        count += len(rows)
        if rows:
            np.testing.assert_allclose(rows, expected, atol=1e-11)
    assert count >= 20


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_distances_have_exact_derivatives(kinds):
    model = model_of(*kinds)
    mech = ts.from_mujoco(model)
    contact = ts.ContactModel.of(mech)
    q = torch.tensor(random_positions(model, np.random.default_rng(1), 3))

    def points(step, size, position):
        changed = contact.replace(shape_size=size, shape_position=position)
        found = ts.contacts(mech, ts.integrate(mech, q, step), changed)
        return found.distance, found.position

    inputs = torch.zeros(3, mech.num_dof), contact.shape_size, contact.shape_position
    inputs = [x.to(torch.float64).clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(points, inputs, eps=1e-6, atol=1e-6, fast_mode=True)


def test_coincident_spheres_have_finite_gradients():
    mech = ts.from_mujoco(model_of("sphere", "sphere"))
    q = mech.neutral().requires_grad_()
    ts.contacts(mech, q).distance.sum().backward()
    assert torch.isfinite(q.grad).all()


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
