"""What the tests of ADAM and RigidBodyDynamics.jl say and no other test here does."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.autograd import gradcheck

import torchsko as ts
from tests.newton import centers
from tests.states import normal_state
from tests.strategies import agree, random_mechanism, seeds
from torchsko.spatial.rotation import matrix_to_quaternion

# Another root.


def from_the_other_end(mech: ts.Mechanism) -> ts.Mechanism:
    """The same chain afloat, built from its last body on.

    Body frames are where the joints that move them have theirs: those of all but the last body move, and
    every axis is turned round, so that its coordinate stays what it was.
    """
    builder, last = ts.MechanismBuilder("reversed"), mech.num_bodies - 1
    placed = R, r = torch.eye(3).double(), torch.zeros(3).double()  # the new frame in the old one
    for k in reversed(range(mech.num_bodies)):
        com, inertia = R.mT @ (mech.com[k] - r), R.mT @ mech.inertia[k] @ R
        mass = float(mech.mass[k])
        builder.link(mech.body_names[k], mass=mass, com=com.tolist(), inertia=inertia.tolist())
        if k == last:
            builder.joint("root", "free", child=mech.body_names[k])
        else:
            builder.joint(
                mech.joint_names[k + 1], mech.joint_kinds[k + 1], axis=(-mech.axis[k + 1]).tolist(),
                parent=mech.body_names[k + 1], child=mech.body_names[k],
                rotation=placed[0].tolist(), position=placed[1].tolist(),
            )  # fmt: skip
        # The joint that moved this body: at the body's own frame, which the new one sees here.
        placed = R.mT, -R.mT @ r
        R, r = mech.joint_rotation[k], mech.joint_position[k]
    return builder.build()


def there(mech: ts.Mechanism, other: ts.Mechanism, q: Tensor, qd: Tensor) -> tuple[Tensor, Tensor]:
    """A state of a chain as one of the chain from the other end."""
    pose, root = ts.forward_kinematics(mech, q), mech.body_names[-1]
    x, v = other.neutral(), torch.zeros(other.num_dof).double()
    x[:3], x[3:7] = pose.position[-1], matrix_to_quaternion(pose.rotation[-1])
    v[:6] = ts.frame_velocity(mech, q, qd, root)
    for name in mech.joint_names[1:]:
        x[other.q_slice(name)], v[other.dof_slice(name)] = (
            q[mech.q_slice(name)],
            qd[mech.dof_slice(name)],
        )
    return x, v


@given(st.lists(st.sampled_from(["revolute", "prismatic"]), min_size=1, max_size=3), seeds)
def test_a_floating_chain_moves_alike_from_either_end(kinds, seed):
    parents = list(range(-1, len(kinds)))
    mech = random_mechanism(["free", *kinds], parents, seed, passive=False)
    other = from_the_other_end(mech)
    q, qd, tau = normal_state(mech, seed=seed)
    tau[:6] = 0
    x, v = there(mech, other, q, qd)
    agree(centers(other, x).flip(0), centers(mech, q), 1e-11)
    energies = (ts.total_energy(*args).reshape(1, 1) for args in ((other, x, v), (mech, q, qd)))
    agree(*energies, 1e-10)
    momenta = (ts.centroidal_momentum(*args)[None] for args in ((other, x, v), (mech, q, qd)))
    agree(*momenta, 1e-10)
    own, theirs = (
        [i for name in mech.joint_names[1:] for i in range(m.num_dof)[m.dof_slice(name)]]
        for m in (mech, other)
    )
    force = torch.zeros_like(v)
    force[theirs] = tau[own]
    found = ts.forward_dynamics(other, x, v, force)[theirs]
    agree(found[None], ts.forward_dynamics(mech, q, qd, tau)[own][None], 1e-9)


# Bodies apart, held together by constraints.


def freedom(mech: ts.Mechanism, k: int) -> Tensor:
    """Rows that span what a joint lets its body do, in the body's axes."""
    zero = torch.zeros(3).double()
    rows = {
        "revolute": [torch.cat([mech.axis[k], zero])],
        "prismatic": [torch.cat([zero, mech.axis[k]])],
        "spherical": [*torch.eye(6).double()[:3]],
    }
    return torch.stack(rows[mech.joint_kinds[k]])


def bodies_apart(mech: ts.Mechanism) -> ts.Mechanism:
    builder = ts.MechanismBuilder("apart")
    for name in mech.body_names:
        builder.link(name, mass=1.0, inertia=torch.eye(3).tolist())
        builder.joint(f"free {name}", "free", child=name)
    apart = builder.build()
    return apart.replace(mass=mech.mass, com=mech.com, inertia=mech.inertia)


@given(
    st.lists(st.sampled_from(["revolute", "prismatic", "spherical"]), min_size=1, max_size=3),
    seeds,
    st.data(),
)
def test_bodies_held_together_by_constraints_accelerate_as_the_tree(kinds, seed, data):
    """Lagrange's equations of the first kind: M a + J* multipliers = forces, J a + dJ/dt v = 0."""
    parents = [-1, *(data.draw(st.integers(-1, k - 1)) for k in range(1, len(kinds)))]
    mech = random_mechanism(kinds, parents, seed, passive=False)
    apart, names = bodies_apart(mech), mech.body_names
    q, qd, tau = normal_state(mech, seed=seed)
    pose = ts.forward_kinematics(mech, q)
    x = torch.cat([pose.position, matrix_to_quaternion(pose.rotation)], -1).flatten()
    v = ts.frame_velocity(mech, q, qd, names).flatten()
    force, rows, drift = -ts.bias_force(apart, x, v), [], []
    for k, name in enumerate(names):
        if mech.parents[k] < 0:
            J = ts.frame_jacobian(apart, x, name)
            bias = ts.frame_jacobian_rate(apart, x, v, name) @ v
        else:
            base = names[mech.parents[k]]
            J = ts.frame_jacobian(apart, x, name, relative_to=base)
            bias = ts.frame_jacobian_rate(apart, x, v, name, relative_to=base) @ v
        S = freedom(mech, k)
        held = torch.linalg.svd(S).Vh[len(S) :]
        agree((held @ J @ v)[None], torch.zeros(1, len(held)).double(), 1e-10)
        force = force + (S @ J).mT @ tau[mech.dof_slice(mech.joint_names[k])]
        rows.append(held @ J)
        drift.append(held @ bias)
    J, drift = torch.cat(rows), torch.cat(drift)
    zero = torch.zeros(len(J), len(J)).double()
    M = ts.mass_matrix(apart, x)
    system = torch.cat([torch.cat([M, J.mT], -1), torch.cat([J, zero], -1)])
    found = torch.linalg.solve(system, torch.cat([force, -drift]))[: apart.num_dof]
    qdd = ts.forward_dynamics(mech, q, qd, tau)
    agree(found.reshape(-1, 6), ts.frame_acceleration(mech, q, qd, qdd, names), 1e-9)


# A double pendulum.


@given(st.lists(st.floats(-3.0, 3.0), min_size=4, max_size=4))
def test_a_double_pendulum_has_the_equations_of_textbooks(values):
    """Spong, Hutchinson, Vidyasagar, Robot Modeling and Control 2006, section 7.4 (two-link arm)."""
    a, b, da, db = values
    l1, c1, c2, m1, m2, I1, I2, g = 1.1, 0.4, 0.7, 2.0, 1.3, 0.3, 0.2, 9.81
    builder = ts.MechanismBuilder("double pendulum")
    for name, mass, com, I in (("upper", m1, c1, I1), ("lower", m2, c2, I2)):
        inertia = [[0, 0, 0], [0, I, 0], [0, 0, I]]
        builder.link(name, mass=mass, com=(0, 0, -com), inertia=inertia)
    builder.joint("shoulder", "revolute", child="upper", axis=(0, 1, 0))
    elbow = {"axis": (0, 1, 0), "position": (0, 0, -l1)}
    builder.joint("elbow", "revolute", child="lower", parent="upper", **elbow)
    mech = builder.build()
    q, qd = torch.tensor([[a, b], [da, db]], dtype=torch.float64)
    inner = m2 * l1 * c2 * math.cos(b)
    second = I2 + m2 * c2**2
    first = I1 + m1 * c1**2 + m2 * l1**2 + second + 2 * inner
    M = torch.tensor([[first, second + inner], [second + inner, second]], dtype=torch.float64)
    h = m2 * l1 * c2 * math.sin(b)
    heavy = m2 * g * c2 * math.sin(a + b)
    gravity = [(m1 * c1 + m2 * l1) * g * math.sin(a) + heavy, heavy]
    bias = [-h * (2 * da * db + db**2) + gravity[0], h * da**2 + gravity[1]]
    agree(ts.mass_matrix(mech, q), M, 1e-13)
    agree(ts.bias_force(mech, q, qd)[None], torch.tensor([bias], dtype=torch.float64), 1e-13)
    agree(ts.gravity_force(mech, q)[None], torch.tensor([gravity], dtype=torch.float64), 1e-13)


# A whole turn, and a body sent to a pose.


@given(seeds, st.integers(-2, 2))
def test_a_whole_turn_of_a_joint_changes_nothing(seed, turns):
    mech = random_mechanism(["revolute", "universal", "revolute"], [-1, 0, 1], seed, passive=False)
    q, qd, qdd = normal_state(mech, seed=seed)
    round_ = q + 2 * math.pi * turns
    for actual, expected in zip(
        ts.forward_kinematics(mech, round_), ts.forward_kinematics(mech, q), strict=True
    ):
        agree(actual, expected, 1e-12)
    found = ts.inverse_dynamics(mech, round_, qd, qdd)
    agree(found[None], ts.inverse_dynamics(mech, q, qd, qdd)[None], 1e-11)


def test_feedback_brings_a_free_body_to_any_pose():
    mech = random_mechanism(["free"], [-1], 2, passive=False)
    g = torch.Generator().manual_seed(1)
    start, target = (mech.random_state(4, generator=g)[0] for _ in range(2))

    def control(t, q, qd):
        return ts.control.pd_with_gravity(mech, q, qd, target, stiffness=40.0, damping=20.0)

    qs, qds, *_ = ts.rollout(
        mech, ts.State(start, torch.zeros(4, 6).double()), control, steps=300, dt=0.03
    )
    off = ts.difference(mech, qs[:, -1], target).abs().amax(-1)
    assert (ts.difference(mech, start, target).abs().amax(-1) > 1e4 * off).all()
    assert (off < 1e-4).all() and (qds[:, -1].abs() < 1e-3).all()


# Links of any length and density.

WIDTH = 0.1


def box_arm(lengths: list[float], densities: list[float]) -> ts.Mechanism:
    """Square bars, each hung on the end of that before."""
    builder, at = ts.MechanismBuilder("bars"), 0.0
    for k, (length, density) in enumerate(zip(lengths, densities, strict=True)):
        mass, com, inertia = (
            x.tolist() for x in bar(*torch.tensor([length, density], dtype=torch.float64))
        )
        builder.link(f"bar{k}", mass=mass, com=com, inertia=inertia)
        parent = {"parent": f"bar{k - 1}"} if k else {}
        kind = {"axis": (0, 1, 0) if k % 2 else (1, 0, 0), "position": (0, 0, at)}
        builder.joint(f"hinge{k}", "revolute", child=f"bar{k}", **parent, **kind)
        at = -length
    return builder.build()


def bar(length: Tensor, density: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mass, center and inertia of a bar that hangs down from its origin."""
    mass = density * length * WIDTH**2
    zero = torch.zeros_like(mass)
    com = torch.stack([zero, zero, -length / 2], -1)
    across = mass * (length**2 + WIDTH**2) / 12
    moments = torch.stack([across, across, mass * WIDTH**2 / 6], -1)
    return mass, com, torch.diag_embed(moments)


def stretched(mech: ts.Mechanism, lengths: Tensor, densities: Tensor) -> ts.Mechanism:
    """The arm with other bars, `[*batch, 3]` each; differentiable."""
    mass, com, inertia = bar(lengths, densities)
    down = torch.cat([torch.zeros_like(lengths[..., :1]), -lengths[..., :-1]], -1)
    position = torch.stack([torch.zeros_like(down), torch.zeros_like(down), down], -1)
    return mech.replace(mass=mass, com=com, inertia=inertia, joint_position=position)


QUANTITIES = {
    "mass matrix": lambda m, q, qd, qdd: ts.mass_matrix(m, q),
    "bias force": lambda m, q, qd, qdd: ts.bias_force(m, q, qd),
    "Coriolis": lambda m, q, qd, qdd: ts.coriolis_matrix(m, q, qd) @ qd[..., None],
    "gravity": lambda m, q, qd, qdd: ts.gravity_force(m, q),
    "inverse dynamics": ts.inverse_dynamics,
    "forward dynamics": ts.forward_dynamics,
    "pose": lambda m, q, qd, qdd: ts.frame_pose(m, q, "bar2").position,
    "Jacobian": lambda m, q, qd, qdd: ts.frame_jacobian(m, q, "bar2", reference="mixed"),
    "its rate": lambda m, q, qd, qdd: ts.frame_jacobian_rate(m, q, qd, "bar2", reference="mixed"),
    "relative Jacobian": lambda m, q, qd, qdd: ts.frame_jacobian(m, q, "bar2", relative_to="bar1"),
    "center of mass": lambda m, q, qd, qdd: ts.center_of_mass(m, q),
    "its Jacobian": lambda m, q, qd, qdd: ts.com_jacobian(m, q),
    "centroidal map": lambda m, q, qd, qdd: ts.centroidal_momentum_matrix(m, q),
    "total mass": lambda m, q, qd, qdd: ts.subtree_masses(m)[..., :1],
}


@pytest.mark.some(11)
@pytest.mark.parametrize("quantity", QUANTITIES.values(), ids=QUANTITIES)
def test_lengths_and_densities_of_links_are_tensors_like_any_other(quantity):
    """As the robot built from those numbers, robot by robot; and differentiable."""
    g = torch.Generator().manual_seed(3)
    lengths = 0.3 + torch.rand(2, 3, generator=g).double()
    densities = 500 + 1000 * torch.rand(2, 3, generator=g).double()
    arm = box_arm([1.0] * 3, [1e3] * 3)
    q, qd, x = torch.randn(3, 2, 3, generator=g).double()
    found = quantity(stretched(arm, lengths, densities), q, qd, x)
    for k in range(2):
        alone = box_arm(lengths[k].tolist(), densities[k].tolist())
        expected = quantity(alone, q[k], qd[k], x[k])
        agree(found[k].reshape(1, -1), expected.reshape(1, -1), 1e-12)

    def scaled(lengths: Tensor, tons: Tensor) -> Tensor:
        return quantity(stretched(arm, lengths, 1e3 * tons), q, qd, x)

    at = lengths.requires_grad_(), (densities / 1e3).requires_grad_()
    assert gradcheck(scaled, at, check_forward_ad=True, fast_mode=True, rtol=1e-5, atol=1e-6)
