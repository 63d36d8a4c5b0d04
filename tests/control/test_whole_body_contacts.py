"""Contact phases, surfaces, limits, references and priorities of whole-body control."""

import pytest
import torch
from torch.autograd import gradcheck

import torchsko as ts
from tests.control.test_whole_body import FEET, dog, standing  # noqa: F401
from tests.refusals import assert_refused
from tests.strategies import agree, random_mechanism
from torchsko.control import (
    Contact,
    SurfaceContact,
    com_objective,
    posture_objective,
    whole_body_control,
)
from torchsko.control.qp import QuadraticProgram, solve_qp

HALF = (0.1, 0.05)
CORNERS = torch.tensor([[x, y, 0.0] for x in (-0.1, 0.1) for y in (-0.05, 0.05)]).double()


def projection(G, to_wrench, wrench):
    """The wrench closest to a given one, among those of variables x with G x <= 0."""
    P = to_wrench.mT @ to_wrench + 1e-6 * torch.eye(to_wrench.shape[-1]).double()
    none = P[:0]
    p, h = -(wrench @ to_wrench), torch.zeros(len(G)).double()
    found = solve_qp(QuadraticProgram(P, p, none, none[:, 0], G, h), iterations=60)
    assert (found.residual < 1e-8).all()
    return found.x @ to_wrench.mT


def test_wrenches_of_a_surface_are_those_of_forces_at_its_corners():
    """Projections onto both cones are equal; the reference is the sum of forces at the corners."""
    surface, point = SurfaceContact("sole", 0.6, half_lengths=HALF), Contact("sole", 0.6)
    like, length = torch.zeros(1).double(), surface.unit_length
    of_corners = torch.block_diag(*[point.cone(like)] * 4)
    skew = torch.stack([torch.linalg.cross(r.expand(3, 3), torch.eye(3).double()) for r in CORNERS])
    to_wrench = torch.cat([torch.cat([torch.eye(3).double(), s.mT / length]) for s in skew], -1)
    wrenches = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)).double()
    expected = projection(of_corners, to_wrench, wrenches)
    found = projection(surface.cone(like), torch.eye(6).double(), wrenches)
    inside = (found - wrenches).norm(dim=-1) < 1e-6
    at_apex = found.norm(dim=-1) < 1e-6
    assert (~inside & ~at_apex).sum() > 100
    agree(found, expected, 1e-5)


@pytest.fixture(scope="module")
def humanoid():
    return ts.load(ts.robots.humanoid, floating_base=True)


def on_the_left_sole(mech, q, qd, contacts):
    target = ts.center_of_mass(mech, q) + torch.tensor([0.02, 0.01, 0.0]).double()
    asked = [com_objective(mech, q, qd, target), posture_objective(mech, q, qd, mech.middle())]
    return whole_body_control(mech, q, qd, asked, contacts)


def test_a_sole_is_held_like_its_corners(humanoid):
    q, qd = standing(humanoid)
    weight = {"force_weight": 1e-7}
    axes = ts.frame_pose(humanoid, q, "left_sole").rotation
    points = [Contact(ts.Frame("left_sole", position=r), axes=axes, **weight) for r in CORNERS]
    surface = SurfaceContact("left_sole", half_lengths=HALF, **weight)
    expected = on_the_left_sole(humanoid, q, 0 * qd, points)
    found = on_the_left_sole(humanoid, q, 0 * qd, [surface])
    assert (found.residual < 1e-6).all() and (expected.residual < 1e-6).all()
    agree(found.tau, expected.tau, 1e-3)
    agree(found.forces[..., 0, :], expected.forces.sum(-2), 1e-3)
    arms = (axes[..., None, :, :] @ CORNERS[..., None])[..., 0]
    moment = torch.linalg.cross(arms, expected.forces).sum(-2)
    agree(found.moments[..., 0, :], moment, 1e-3)
    assert moment.abs().max() > 1


def test_a_sole_comes_to_rest_and_satisfies_the_equations_of_motion(humanoid):
    q, qd = standing(humanoid)
    surface = SurfaceContact("left_sole", half_lengths=HALF)
    out = on_the_left_sole(humanoid, q, qd, [surface])
    assert (out.residual < 1e-6).all()
    J = ts.frame_jacobian(humanoid, q, "left_sole", reference="mixed")
    wrench = torch.cat([out.moments, out.forces], -1)[..., 0, :]
    expected = ts.inverse_dynamics(humanoid, q, qd, out.qdd) - (wrench[..., None, :] @ J)[..., 0, :]
    agree(out.tau, expected, 1e-6)
    A = ts.frame_acceleration(
        humanoid, q, qd, out.qdd, "left_sole", reference="mixed", classical=True
    )
    sliding = ts.frame_velocity(humanoid, q, qd, "left_sole", reference="mixed")
    agree(A, -20 * sliding, 1e-6)


def test_a_mask_of_contacts_gives_the_law_of_the_active_ones(dog):  # noqa: F811
    q, qd = standing(dog, (4,))
    masks = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 1], [0, 1, 1, 1], [0, 0, 0, 0]]).bool()

    def law(q, qd, contacts):
        asked = [com_objective(dog, q, qd, ts.center_of_mass(dog, q).detach() + 0.02)]
        asked.append(posture_objective(dog, q, qd, q.detach()))
        return whole_body_control(dog, q, qd, asked, contacts)

    out = law(q, qd, [Contact(f, active=masks[:, i]) for i, f in enumerate(FEET)])
    assert (out.residual < 1e-6).all()
    assert not out.forces[~masks].any() and (out.forces[masks][:, 2] > 0).any()
    for k, mask in enumerate(masks):
        feet = [foot for foot, flag in zip(FEET, mask, strict=True) if flag]
        alone = law(q[k], qd[k], [Contact(f) for f in feet])
        agree(out.tau[k], alone.tau, 1e-6)
        agree(out.forces[k][mask], alone.forces, 1e-6)


def test_a_robot_that_is_to_stay_has_no_acceleration(dog, humanoid):  # noqa: F811
    """References of the forces carry it; references of zero shift it."""
    for mech, contacts in (
        (dog, [Contact(foot) for foot in FEET]),
        (humanoid, [SurfaceContact(x, half_lengths=HALF) for x in ("left_sole", "right_sole")]),
    ):
        (q, _), shifts = standing(mech, (), 1), []
        qd, zero = torch.zeros(mech.num_dof).double(), torch.zeros(3).double()
        asked = [posture_objective(mech, q, qd, q)]
        for force in (None, zero):
            again = [type(x)(**{**vars(x), "force": force}) for x in contacts]
            out = whole_body_control(mech, q, qd, asked, again)
            assert out.residual < 1e-8
            shifts.append(out.qdd.abs().max())
        assert shifts[0] < 1e-8 < 1e-5 < shifts[1]


def test_normal_forces_keep_their_limits(dog):  # noqa: F811
    q, qd = standing(dog)
    asked = [posture_objective(dog, q, qd, q)]
    free = whole_body_control(dog, q, qd, asked, [Contact(f) for f in FEET]).forces[..., 2]
    least, largest = 0.5 * free.mean(), 0.9 * free.amax(-1)
    contacts = [Contact(f, normal_limits=(float(least), largest)) for f in FEET]
    out = whole_body_control(dog, q, qd, asked, contacts)
    normal = out.forces[..., 2]
    assert (out.residual < 1e-6).all() and (free.amax(-1) > largest + 1).all()
    assert (normal <= largest[:, None] + 1e-6).all() and (normal >= least - 1e-6).all()


def test_forces_follow_their_references(dog):  # noqa: F811
    """Loads of diagonal feet change by forces that move nothing."""
    q, qd = dog.middle(), torch.zeros(18).double()
    r = ts.frame_pose(dog, q, FEET).position
    wrench = torch.cat([torch.ones_like(r[:, :1]), r[:, :2]], -1).mT  # of normal forces
    internal = torch.linalg.svd(wrench).Vh[-1]
    asked = [posture_objective(dog, q, qd, q)]
    before = whole_body_control(dog, q, qd, asked, [Contact(f) for f in FEET]).forces
    shift = 0.3 * before[:, 2].min() * internal / internal.abs().max()
    assert shift.abs().min() > 1
    aim = before + torch.nn.functional.pad(shift[:, None], (2, 0))
    contacts = [Contact(f, force=x, force_weight=1.0) for f, x in zip(FEET, aim, strict=True)]
    agree(whole_body_control(dog, q, qd, asked, contacts).forces, aim, 1e-5)


def test_an_objective_of_high_priority_is_not_changed_by_others(dog):  # noqa: F811
    q, qd = standing(dog)
    contacts, target = [Contact(foot) for foot in FEET], ts.center_of_mass(dog, q) + 0.02

    def acceleration(*priorities):
        asked = [com_objective(dog, q, qd, target, priority=priorities[0])]
        posture = posture_objective(dog, q, qd, dog.middle(), weight=1e3)
        asked.append(posture._replace(priority=priorities[1]))
        out = whole_body_control(dog, q, qd, asked[: len(priorities)], contacts)
        assert (out.residual < 1e-6).all()
        return ts.com_acceleration(dog, q, qd, out.qdd), out.qdd

    alone = whole_body_control(dog, q, qd, [com_objective(dog, q, qd, target)], contacts)
    expected = ts.com_acceleration(dog, q, qd, alone.qdd)
    strict, qdd = acceleration(0, 1)
    agree(strict, expected, 1e-6)
    assert (qdd - alone.qdd).norm(dim=-1).min() > 1e-2  # the posture moves in what is left
    mixed, _ = acceleration(0, 0)
    assert (mixed - expected).norm(dim=-1).min() > 1e-1


def test_errors_show_what_an_earlier_priority_leaves_of_a_later_one(dog):  # noqa: F811
    q, qd = standing(dog)
    shifts = torch.tensor([[0.002, 0, 0], [-0.02, 0, 0]]).double()
    here, still, contacts = ts.center_of_mass(dog, q), 0 * qd, [Contact(foot) for foot in FEET]
    asked = [com_objective(dog, q, still, here + x, priority=k) for k, x in enumerate(shifts)]
    out = whole_body_control(dog, q, still, asked, contacts)
    com = ts.com_acceleration(dog, q, still, out.qdd)
    agree(out.errors, torch.stack([(com - 100 * x).norm(dim=-1) for x in shifts], -1), 1e-8)
    assert out.errors[:, 0].max() < 0.01 and out.errors[:, 1].min() > 2


def test_a_program_without_a_solution_is_named_by_the_contact_or_joint(dog):  # noqa: F811
    """Feet that stay carry the weight: neither more than it, nor without torques."""
    q, qd = standing(dog)
    asked, weight = [posture_objective(dog, q, qd, q)], 9.81 * float(dog.mass.sum())
    heavy = [Contact(foot) for foot in FEET]
    heavy[1] = Contact(FEET[1], normal_limits=(3 * weight, 5 * weight))
    what = rf"no solution in \d of 4 samples, .*normal_limits of the contact at '{FEET[1]}'"
    with pytest.warns(RuntimeWarning, match=what):
        out = whole_body_control(dog, q, qd, asked, heavy)
    assert out.residual.max() > 1e-2
    weak = dog.replace(effort_limit=torch.where(dog.effort_limit > 0, 0.0, dog.effort_limit))
    with pytest.warns(RuntimeWarning, match=r"no solution"):
        whole_body_control(weak, q, qd, asked, [Contact(foot) for foot in FEET])


def test_joints_stop_before_their_limits_of_position_and_velocity():
    arm = ts.load(ts.robots.panda)
    arm = arm.replace(velocity_limit=torch.full((7,), 0.4).double())
    q, qd, dt = arm.upper - 0.12, torch.zeros(7).double(), 5e-3
    aim = arm.upper + 0.5
    fastest = torch.zeros(7).double()
    for _ in range(60):
        asked = [posture_objective(arm, q, qd, aim, gains=(400.0, 40.0))]
        out = whole_body_control(arm, q, qd, asked, limit_rate=10.0)
        assert out.residual < 1e-6
        qd = qd + dt * out.qdd
        q = q + dt * qd
        fastest = torch.maximum(fastest, qd)
        assert (q <= arm.upper + 1e-9).all()
        assert (qd <= arm.velocity_limit + 1e-9).all()
    assert (fastest > 0.8 * arm.velocity_limit).any() and (q > arm.upper - 0.05).any()


def law_of_phases(mech, q, qd, active, force):
    contact = Contact(ts.Frame(mech.body_names[4]), active=active[..., 0], force=force)
    sole = SurfaceContact(
        ts.Frame(mech.body_names[-1]),
        half_lengths=HALF,
        active=active[..., 1],
        normal_limits=(0.0, 1e3),
    )
    asked = [
        com_objective(mech, q, qd, ts.center_of_mass(mech, mech.middle())),
        posture_objective(mech, q, qd, mech.middle(), priority=1),
    ]
    out = whole_body_control(mech, q, qd, asked, [contact, sole], limit_rate=10.0)
    return out.tau, torch.cat([out.forces, out.moments], -1), out.residual


@pytest.fixture(scope="module")
def small():
    kinds, parents = ["free", *["revolute"] * 9], [-1, 0, 1, 2, 3, 0, 5, 6, 7, 8]
    return random_mechanism(kinds, parents, seed=2, passive=False)


@pytest.mark.nightly
def test_a_law_for_all_phases_is_one_kernel(small):
    q, qd = standing(small, (5,), 3)
    active = torch.tensor([[1, 1], [1, 0], [0, 1], [0, 0], [1, 1]]).bool()
    force = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)).double()
    shapes = {"active": (2,), "force": (3,)}
    found = ts.fuse(law_of_phases, small, shapes=shapes)(q, qd, active.double(), force)
    expected = law_of_phases(small, q, qd, active, force)
    assert (expected[2] < 1e-6).all() and (found[2] < 1e-6).all()
    for x, y in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-6 * float(y.abs().max()))


def test_gradients_reach_forces_and_states(small):
    q, qd = standing(small, (2,), 3)
    active = torch.tensor([[1, 1], [1, 0]]).bool()
    force = torch.tensor([0.1, 0.2, 3.0]).double().expand(2, 3)

    def tau(qd, force):
        out = law_of_phases(small, q, qd, active, force)
        return out[0][..., 6:], out[1]

    leaves = [x.detach().clone().requires_grad_() for x in (qd, force)]
    assert gradcheck(tau, leaves, eps=1e-4, atol=1e-3, rtol=1e-3, fast_mode=True)


def test_wrong_numbers_are_refused(dog):  # noqa: F811
    q, qd = standing(dog)
    asked = [posture_objective(dog, q, qd, q)]
    assert_refused(lambda: Contact(FEET[0], force_weight=-1.0), "force_weight")
    for contact, name in (
        (SurfaceContact(FEET[0], half_lengths=(-1.0, 0.1)), "half_lengths"),
        (Contact(FEET[0], active=torch.ones(3).bool()), "active"),
        (Contact(FEET[0], force=torch.ones(4, 2).double()), "force"),
    ):
        assert_refused(lambda x=contact: whole_body_control(dog, q, qd, asked, [x]), name)
    assert_refused(lambda: whole_body_control(dog, q, qd, asked, limit_rate=-1.0), "limit_rate")


def test_gradients_of_torques_are_those_of_the_active_limits(dog):  # noqa: F811
    """Slacks that an interior point leaves would not be small beside the weight of the posture, 1e-4."""
    stance = torch.tensor([0.0, -0.8, 1.6], dtype=torch.float64).repeat(4)
    contacts = [Contact(foot) for foot in FEET]
    q, g = torch.cat([dog.neutral()[:7], stance]), torch.Generator().manual_seed(0)
    qd, along, weight = (torch.randn(8, 18, generator=g, dtype=torch.float64) for _ in range(3))

    def totals(qd):
        asked = [com_objective(dog, q, qd, ts.center_of_mass(dog, q) + 0.02)]
        asked.append(posture_objective(dog, q, qd, q, weight=1e-4))
        return (weight * whole_body_control(dog, q, qd, asked, contacts).tau).sum(-1)

    leaf = (0.3 * qd).requires_grad_()
    (gradient,) = torch.autograd.grad(totals(leaf).sum(), leaf)
    ends = [totals(0.3 * qd + s * 1e-4 * along) for s in (1, -1)]
    agree((gradient * along).sum(-1), (ends[0] - ends[1]) / 2e-4, 1e-6)
