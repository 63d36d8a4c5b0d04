"""Random robots: within their ranges, physical, reproducible, differentiable."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.mechanism.test_fields import filled
from torchsko.errors import MechanismError
from torchsko.mechanism.fields import FIELDS

MECH = filled(3)
VARIED = [name for name, field in FIELDS.items() if field.variation != "none"]
N = 5


def random(ranges, mech=MECH, n=N, seed=0):
    return ts.randomize(mech, n, ranges, torch.Generator().manual_seed(seed))


def ranges_of(name):
    return (0.5, 1.5) if FIELDS[name].variation == "factor" else (-0.1, 0.2)


@pytest.mark.parametrize("name", VARIED)
def test_every_field_has_a_batch_of_values_within_its_range(name):
    low, high = ranges_of(name)
    drawn = "joint_friction" if name == "friction" else name
    old, new = getattr(MECH, name), getattr(random({drawn: (low, high)}, n=50), name)
    assert new.shape == (50, *old.shape) and len(new.flatten(1).unique(dim=0)) == 50
    if FIELDS[name].variation == "rotation":
        rest = new @ new.mT if new.ndim == 4 else new.norm(dim=-1)
        assert_close(rest, torch.eye(3).expand_as(rest).double() if new.ndim == 4 else rest / rest)
        return
    change = new / old if FIELDS[name].variation == "factor" else new - old
    if name != "inertia":
        change = change[change.isfinite()]
        assert low <= change.min() < low + 0.05 and high - 0.05 < change.max() <= high


def test_bodies_stay_physical_and_keep_their_density():
    heavy = random({"mass": (0.5, 2.0)})
    scale = torch.where(MECH.mass > 0, heavy.mass / MECH.mass, 1.0)
    assert_close(heavy.inertia, scale[..., None, None] * MECH.inertia)
    assert_close(heavy.com, MECH.com)
    stretched = random({"inertia": (0.01, 10.0), "mass": (0.5, 2.0)}, n=200)
    solid = MECH.inertia.any(-1).any(-1)  # points of flexible bodies have no inertia
    a, b, c = torch.linalg.eigvalsh(stretched.inertia[:, solid]).unbind(-1)
    assert (a > 0).all() and (a + b >= c - 1e-12).all()


def test_a_stretched_sphere_is_an_ellipsoid():
    """Solid ellipsoid: second moments m a^2 / 5, moments of inertia m (b^2 + c^2) / 5."""
    builder = ts.MechanismBuilder("ball").link(
        "ball", mass=1.0, inertia=(0.4 * torch.eye(3)).tolist()
    )
    ball = builder.joint("root", "free", child="ball").build()
    factors = torch.tensor([1.0, 4.0, 9.0]).double()
    found = random({"inertia": (factors, factors)}, ball, 1).inertia[0, 0]
    assert_close(found, torch.diag(torch.tensor([2.6, 2.0, 1.0]).double()))


def test_one_entry_of_a_body_joint_or_frame_varies_alone():
    body, joint, frame = MECH.body_names[2], MECH.tree_joint_names[1], MECH.frame_names[1]
    many = random({
        f"{body}.mass": (2.0, 3.0), f"{joint}.damping": (2.0, 3.0), f"{frame}.frame_position": (1.0, 2.0),
        f"{MECH.joint_names[0]}.upper": (0.1, 0.2), f"{joint}.position": (1.0, 2.0),
    })  # fmt: skip
    parts = {"mass": 2, "damping": MECH.tree_dof_slice(joint), "frame_position": 1}
    parts |= {"upper": MECH.q_slice(MECH.joint_names[0]), "joint_position": 1, "inertia": 2}
    for name, part in parts.items():
        same = torch.ones(getattr(MECH, name).shape[0], dtype=torch.bool)
        same[part] = False
        old, new = getattr(MECH, name), getattr(many, name)
        assert_close(new[:, same], old[same].expand(N, *old[same].shape))
        assert (new[:, ~same] != old[~same]).any()


def test_the_generator_and_not_the_order_of_names_decides():
    names = ("friction", "mass", "com", "gravity")
    ranges = {name: ranges_of(name) for name in names[1:]} | {"joint_friction": (0.5, 1.5)}
    first, second = random(ranges), random(dict(reversed(ranges.items())))
    for name in names:
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert not torch.equal(first.mass, random(ranges, seed=1).mass)


def test_gradients_reach_nominal_values_and_bounds():
    mass = MECH.mass.clone().requires_grad_()
    bounds = [torch.tensor(x).double().requires_grad_() for x in (0.8, 1.2)]
    many = random({"mass": bounds, "inertia": (0.9, 1.1)}, MECH.replace(mass=mass))
    q, qd = MECH.random_state(N)
    loss = ts.forward_dynamics(many, q, qd, 0 * qd).square().sum()
    for slope in torch.autograd.grad(loss, [mass, *bounds]):
        assert slope.isfinite().all() and slope.abs().max() > 0


def test_robots_of_a_batch_vary_independently():
    two = MECH.replace(mass=torch.stack([MECH.mass, 2 * MECH.mass]))
    many = random({"joint_friction": (0.5, 2.0), "mass": (0.5, 2.0)}, two)
    assert many.batch_shape == (N, 2) and many.friction.shape[:2] == (N, 2)
    assert len((many.mass / two.mass).flatten().unique()) == many.mass.numel()


@pytest.mark.nightly
def test_the_nominal_robot_is_unchanged_and_kernels_take_the_batch():
    before = MECH.mass.clone()
    many = random({"mass": (0.5, 2.0)})
    q, qd = MECH.random_state(N)
    fast = ts.fuse(many)
    qdd = fast.forward_dynamics(q, qd, 0 * qd)
    assert_close(qdd, ts.forward_dynamics(many, q, qd, 0 * qd))
    assert torch.equal(before, MECH.mass)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"friction": (0.8, 1.2)}, "joint_friction.*contact_friction"),
        ({"contact_friction": (0.8, 1.2)}, "contact="),
        ({"servo.kp": (0.8, 1.2)}, "actuators="),
        ({"mas": (0.8, 1.2)}, "no parameter is named 'mas'"),
        ({"joint_parameters": (0.8, 1.2)}, "joint_parameters"),
        ({"nowhere.mass": (0.8, 1.2)}, "nowhere"),
        ({"mass": (1.2, 0.8)}, "low <= high"),
        ({"mass": (-0.1, 0.8)}, "a factor of at least 0"),
        ({"mass": 0.8}, "a pair"),
    ],
)
def test_ranges_that_do_not_fit_are_refused(ranges, words):
    with pytest.raises(MechanismError, match=words):
        random(ranges)
