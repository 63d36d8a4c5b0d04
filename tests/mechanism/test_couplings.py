"""Joints that follow others: every verb is that of the tree through q_tree = X q + c, tau = X* tau_tree."""

import copy
import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual
from torch.testing import assert_close

import torchsko as ts
from tests.newton import kinetic_energy, potential_energy
from tests.states import normal_state
from tests.strategies import BATCHES, agree, coupled_mechanisms, random_mechanism, seeds
from torchsko import algorithms
from torchsko.errors import MechanismError
from torchsko.integrators.limit_springs import LimitSprings
from torchsko.integrators.motor import Motor
from torchsko.linalg.scalar_form import scalar_form


def matrix(mech: ts.Mechanism) -> Tensor:
    """X, dense, from rates of all joints."""
    return ts.expand_velocity(mech, mech.neutral(), torch.eye(mech.num_dof, dtype=mech.dtype)).mT


def column(x: Tensor) -> Tensor:
    return x[..., None]


@given(coupled_mechanisms(), st.sampled_from(BATCHES), seeds)
def test_dynamics_are_those_of_the_tree_through_x(mech, batch, seed):
    q, qd, qdd, other = normal_state(mech, *batch, seed=seed, vectors=3)
    tree, X, q_tree = mech.tree, matrix(mech), ts.expand(mech, q)
    assert tree.num_dof == mech.num_tree_dof > mech.num_dof
    MM = X.mT @ ts.mass_matrix(tree, q_tree) @ X
    agree(ts.mass_matrix(mech, q), MM, 1e-12)
    f_ext = torch.randn(*batch, mech.num_bodies, 6, dtype=q.dtype)
    rates = [x @ X.mT for x in (qd, qdd)]
    tau = ts.inverse_dynamics(tree, q_tree, *rates, f_ext) @ X
    for method in ("newton_euler", "composite", "parallel"):
        agree(ts.inverse_dynamics(mech, q, qd, qdd, f_ext, method=method), tau, 1e-11)
    agree(ts.passive_force(mech, q, qd), ts.passive_force(tree, q_tree, rates[0]) @ X, 1e-13)
    agree(ts.bias_force(mech, q, qd), ts.bias_force(tree, q_tree, rates[0]) @ X, 1e-11)
    expected = torch.linalg.solve(MM, column(tau - ts.bias_force(mech, q, qd, f_ext)))[..., 0]
    agree(expected, qdd, 1e-7)
    for method in ("articulated", "composite", "scan"):
        agree(ts.forward_dynamics(mech, q, qd, tau, f_ext, method=method), qdd, 1e-8)
    given_ = mech.joint_names[::2]
    accel, force = ts.hybrid_dynamics(mech, q, qd, tau, qdd, given_, f_ext)
    agree(accel, qdd, 1e-8)
    agree(force, tau, 1e-9)
    factor = ts.innovations(ts.assemble(mech, q))
    agree(factor.logdet(), torch.logdet(MM), 1e-9)
    agree(MM @ column(factor.solve(other)), column(other), 1e-8)


@given(coupled_mechanisms(), st.sampled_from(BATCHES), seeds)
def test_kinematics_are_those_of_the_tree(mech, batch, seed):
    q, qd, qdd, _ = normal_state(mech, *batch, seed=seed, vectors=3)
    tree, X, q_tree = mech.tree, matrix(mech), ts.expand(mech, q)
    names = list(mech.frame_names)
    for mine, its in zip(
        ts.frame_pose(mech, q, names), ts.frame_pose(tree, q_tree, names), strict=True
    ):
        assert_close(mine, its)
    J = ts.frame_jacobian(mech, q, names)
    agree(J, ts.frame_jacobian(tree, q_tree, names) @ X, 1e-13)
    agree(
        ts.operational_space_compliance(mech, q, names[-1]),
        J[..., -1, :, :] @ torch.linalg.solve(ts.mass_matrix(mech, q), J[..., -1, :, :].mT),
        1e-8,
    )
    Y = ts.torque_regressor(mech, q, qd, qdd)
    rotors = (mech.armature * (qdd @ X.mT)) @ X
    tau = (Y * ts.inertial_parameters(mech)).sum((-2, -1)) + ts.passive_force(mech, q, qd) + rotors
    agree(tau, ts.inverse_dynamics(mech, q, qd, qdd), 1e-10)
    step = 0.3 * qd
    moved = ts.integrate(mech, q, step)
    agree(ts.difference(mech, q, moved), step, 1e-9)
    expanded = ts.integrate(tree, q_tree, ts.expand_velocity(mech, q, step))
    agree(ts.difference(tree, expanded, ts.expand(mech, moved)), 0 * (step @ X.mT), 1e-9)


@given(coupled_mechanisms(4), seeds)
def test_mass_and_bias_follow_from_the_energies_of_the_bodies(mech, seed):
    """Power is the rate of energy, with velocities from poses alone (tests/newton.py)."""
    none = torch.zeros(mech.num_tree_dof, dtype=mech.dtype)
    mech = mech.replace(damping=none, friction=none, stiffness=none)
    q, qd, qdd, _ = (x[0] for x in normal_state(mech, 1, seed=seed, vectors=3))
    X, tree = matrix(mech), mech.tree

    def energy(t: Tensor) -> Tensor:
        at, rate = ts.integrate(mech, q, qd * t + qdd * t * t / 2), qd + qdd * t
        return kinetic_energy(tree, ts.expand(mech, at), X @ rate) + potential_energy(
            tree, ts.expand(mech, at)
        )

    zero = torch.zeros((), dtype=q.dtype)
    power = torch.func.jvp(energy, (zero,), (torch.ones_like(zero),))[1]
    tau = ts.inverse_dynamics(mech, q, qd, qdd)
    agree((tau * qd).sum(), power, 1e-8)
    agree(
        qd @ ts.mass_matrix(mech, q) @ qd / 2,
        kinetic_energy(tree, ts.expand(mech, q), X @ qd),
        1e-10,
    )


def arm(armature: bool = True) -> ts.Mechanism:
    """A floating arm with a gear across two joints, and a pair of fingers."""
    kinds = ["free", "revolute", "revolute", "prismatic", "prismatic", "spherical"]
    return random_mechanism(
        kinds, [-1, 0, 1, 2, 2, 1], 3, armature, couplings={2: {1: -1.5}, 4: {3: -1.0}}
    )


def of_tensors(mech: ts.Mechanism, verb, *names: str):
    def call(*tensors: Tensor) -> Tensor:
        states, values = tensors[: -len(names)], tensors[-len(names) :]
        return verb(mech.replace(**dict(zip(names, values, strict=True))), *states)

    return call


VERBS = {
    "forward_dynamics": (ts.forward_dynamics, 4),
    "inverse_dynamics": (ts.inverse_dynamics, 4),
    "mass_matrix": (ts.mass_matrix, 1),
    "frame_jacobian": (lambda mech, q: ts.frame_jacobian(mech, q, "body4"), 1),
    "expand": (ts.expand, 1),
}


@pytest.mark.some(1)
@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_gradients_to_states_coefficients_offsets_and_losses(name, batch):
    mech = arm()
    verb, count = VERBS[name]
    fields = ("coupling_ratio", "coupling_offset", "damping", "armature", "spring_reference")
    tensors = [
        *normal_state(mech, *batch, vectors=3)[: min(count, 3)],
        *(getattr(mech, f) for f in fields),
    ]
    tensors = [x.clone().requires_grad_() for x in tensors]
    call = of_tensors(mech, verb, *fields)
    assert gradcheck(call, tensors, fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(call, tensors, fast_mode=True)
    used = torch.autograd.grad(call(*tensors).sum(), tensors[-5:], allow_unused=True)
    needed = {"forward_dynamics": 5, "inverse_dynamics": 5, "frame_jacobian": 2, "expand": 2}
    assert sum(g is not None and bool(g.abs().sum()) for g in used) >= needed.get(name, 2)


def test_a_batch_of_gear_ratios_is_a_batch_of_robots():
    mech = arm()
    q, qd, tau, _ = normal_state(mech, 3, seed=1, vectors=3)
    ratios = mech.coupling_ratio * torch.linspace(0.5, 1.5, 3, dtype=q.dtype)[:, None]
    together = ts.forward_dynamics(mech.replace(coupling_ratio=ratios), q, qd, tau)
    for k in range(3):
        one = mech.replace(coupling_ratio=ratios[k])
        assert_close(together[k], ts.forward_dynamics(one, q[k], qd[k], tau[k]))
    C = ts.coriolis_matrix(mech.replace(coupling_ratio=ratios), q, qd)
    for k in range(3):
        one = mech.replace(coupling_ratio=ratios[k])
        assert_close(C[k], ts.coriolis_matrix(one, q[k], qd[k]))
    mapped = torch.func.vmap(lambda r, *x: ts.forward_dynamics(mech.replace(coupling_ratio=r), *x))(
        ratios, q, qd, tau
    )
    assert_close(mapped, together)


def test_a_compiled_coupled_robot_is_the_eager_one():
    mech = random_mechanism(["revolute"] * 3, [-1, 0, 0], couplings={2: {1: -1.0}})
    q, qd, tau, _ = normal_state(mech, 2, vectors=3)
    compiled = torch.compile(ts.forward_dynamics, fullgraph=True, backend="aot_eager")
    assert_close(compiled(mech, q, qd, tau), ts.forward_dynamics(mech, q, qd, tau))


def test_kernels_of_a_coupled_robot():
    mech = random_mechanism(["revolute"] * 3, [-1, 0, 0], armature=True, couplings={2: {1: -1.0}})
    q, qd, tau, _ = normal_state(mech, 5, vectors=3)
    fast = ts.fuse(mech, inputs=("coupling_ratio",))
    ratio = mech.coupling_ratio.clone().requires_grad_()
    mine = ts.forward_dynamics(fast.replace(coupling_ratio=ratio), q, qd, tau)
    eager = ts.forward_dynamics(mech.replace(coupling_ratio=ratio), q, qd, tau)
    assert_close(mine, eager)
    weight = torch.randn_like(eager)
    for a, b in zip(
        *(torch.autograd.grad((x * weight).sum(), ratio) for x in (mine, eager)), strict=True
    ):
        assert_close(a, b)
    assert_close(ts.mass_matrix(fast, q), ts.mass_matrix(mech, q))
    for a, b in zip(
        ts.rollout(fast, ts.State(q, qd), tau, steps=3)[:2],
        ts.rollout(mech, ts.State(q, qd), tau, steps=3)[:2],
        strict=True,
    ):
        assert_close(a, b)


@given(coupled_mechanisms(), seeds)
def test_what_kernels_trace_of_a_coupled_robot_is_what_it_computes(mech, seed):
    """Fingers at the end of an arm, too: one edge then carries all that hangs below it."""
    q, qd, _, _ = normal_state(mech, seed=seed, vectors=3)
    agree(scalar_form()(ts.mass_matrix)(mech, q), ts.mass_matrix(mech, q))
    agree(scalar_form()(ts.coriolis_matrix)(mech, q, qd), ts.coriolis_matrix(mech, q, qd))


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("method", "order"), [("semi_implicit_euler", 1), ("rk4", 4), ("newmark", 2)]
)
def test_rollouts_keep_energy_at_the_order_of_the_method(method, order):
    mech = arm(armature=False)
    none = torch.zeros(mech.num_tree_dof, dtype=mech.dtype)
    mech = mech.replace(damping=none, friction=none)
    q, qd, _, _ = normal_state(mech, seed=2, vectors=3)
    qd = 0.3 * qd

    def drift(dt: float) -> float:
        qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), steps=round(0.1 / dt), dt=dt, method=method)
        E = [
            kinetic_energy(
                mech.tree, ts.expand(mech, qs[k]), ts.expand_velocity(mech, qs[k], qds[k])
            )
            + potential_energy(mech.tree, ts.expand(mech, qs[k]))
            for k in (0, -1)
        ]
        return float((E[1] - E[0]).abs())

    coarse, fine = drift(0.01), drift(0.005)
    assert fine < coarse / 2 ** (order - 0.35)


def test_losses_and_springs_of_followers_act_on_what_they_follow():
    """A pendulum and a geared copy of it: damping d r^2, friction f |r|, spring k r^2 about (s - c) / r."""
    builder = ts.MechanismBuilder()
    for name in ("one", "two"):
        builder.link(name, mass=1.0, com=(0.0, 0.0, -0.3))
    builder.joint("a", "revolute", child="one", axis=(0, 1, 0))
    builder.joint("b", "revolute", child="two", axis=(0, 1, 0), damping=0.2, friction=0.3,
                  armature=0.5, stiffness=2.0, spring_reference=0.7)  # fmt: skip
    mech = builder.couple("b", {"a": -2.0}, 0.1).build(gravity=(0, 0, 0))
    q, qd = torch.tensor([0.4], dtype=torch.float64), torch.tensor([1.5], dtype=torch.float64)
    spring = 2.0 * 4.0 * (0.4 - (0.7 - 0.1) / -2.0)
    assert_close(
        ts.passive_force(mech, q, qd),
        torch.tensor([0.2 * 4 * 1.5 + 0.3 * 2 + spring], dtype=torch.float64),
    )
    inertia = torch.tensor([[0.09 + 4 * (0.09 + 0.5)]], dtype=torch.float64)
    assert_close(ts.mass_matrix(mech, q), inertia)


def test_limits_of_followers_bound_what_they_follow():
    builder = ts.MechanismBuilder()
    for name in ("one", "two", "three"):
        builder.link(name, mass=1.0, com=(0.0, 0.0, -0.3))
    y = (0, 1, 0)
    limits = {"lower": -1.0, "upper": 2.0, "velocity": 3.0, "effort": 10.0}
    builder.joint("a", "revolute", child="one", axis=y, **limits)
    limits |= {"upper": 0.8, "velocity": 4.0, "effort": 1.0}
    builder.joint("b", "revolute", child="two", axis=y, **limits)
    builder.joint("c", "revolute", child="three", axis=y, effort=5.0)
    mech = builder.couple("b", {"a": -2.0}, 0.2).couple("c", {"a": 1.0, "b": 1.0}).build()
    assert mech.joint_names == ("a",) and mech.dependent_joint_names == ("b", "c")
    assert mech.lower.tolist() == pytest.approx([-0.3]) and mech.upper.tolist() == pytest.approx(
        [0.6]
    )
    assert mech.velocity_limit.tolist() == [2.0]
    assert mech.effort_limit.tolist() == [10.0 + 2 * 1.0 + 1 * 5.0]
    q, _ = mech.random_state(500)
    assert float(q.min()) > -0.3 and float(q.max()) < 0.6
    assert float(mech.middle()) == pytest.approx(0.15)
    assert mech.tree.lower.tolist() == pytest.approx([-0.3, -math.inf, -math.inf])
    qs = ts.rollout(
        mech,
        ts.State(q[:2], torch.full((2, 1), 2.0, dtype=torch.float64)),
        steps=400,
        limits=LimitSprings(),
    ).q
    assert float(qs.max()) < 0.61


def test_names_slices_and_what_is_given_to_motors():
    mech = arm()
    assert mech.tree_joint_names == tuple(f"joint{k}" for k in range(6))
    assert mech.joint_names == ("joint0", "joint1", "joint3", "joint5")
    assert mech.joint_kinds == ("free", "revolute", "prismatic", "spherical")
    assert (mech.num_q, mech.num_dof, mech.num_tree_q, mech.num_tree_dof) == (13, 11, 15, 13)
    assert mech.dof_slice("joint3") == slice(7, 8) and mech.tree_dof_slice("joint3") == slice(8, 9)
    assert mech.q_slice("joint5") == slice(9, 13) and mech.tree_q_slice("joint4") == slice(10, 11)
    with pytest.raises(
        MechanismError, match=r"is a dependent joint.*\n.*\n.*tree_q_slice\('joint4'\)"
    ):
        mech.q_slice("joint4")
    assert "2 dependent" in repr(mech)
    driven = Motor(inertia=torch.arange(11.0).double(), damping=0.0, friction=0.0).on(mech)
    assert driven.armature[mech.tree_dof_slice("joint3")].tolist() == [7.0]
    assert driven.armature[mech.tree_dof_slice("joint4")].tolist() == [0.0]
    moved = mech.to(torch.float32)
    assert ts.expand(moved, mech.neutral().float()).dtype == torch.float32
    assert copy.deepcopy(mech).coupling is not None
    assert ts.expand(mech.tree, q := ts.expand(mech, mech.neutral())) is q


def test_what_a_follower_is_can_be_learned():
    """The inertia, damping and gear of a follower, from torques of what it follows."""
    mech = random_mechanism(
        ["revolute", "revolute", "prismatic"], [-1, 0, 1], 1, couplings={2: {1: 0.7}}
    )
    layer = ts.Dynamics(
        mech, {"body2": ts.learn.InertiaLogCholesky(), "joint2.damping": ts.learn.Positive()}
    )
    q, qd, qdd, _ = normal_state(mech, 4, vectors=3)
    start = layer.inverse_dynamics(q, qd, qdd)
    assert_close(start, ts.inverse_dynamics(mech, q, qd, qdd))
    start.square().sum().backward()
    assert all(bool(p.grad.abs().sum()) for p in layer.parameters())


@pytest.mark.parametrize(
    ("couplings", "said"),
    [
        ([("b", {"x": 1.0})], "coupling 'b' names the joint 'x', which does not exist"),
        ([("y", {"a": 1.0})], "names the joint 'y', which does not exist"),
        ([("bal", {"a": 1.0, "b": 1.0})], "names the joint 'bal', which does not exist"),
        ([("g", {"a": 1.0, "b": 1.0}), ("h", {"a": 2.0, "b": 2.0})], "'h' is redundant"),
        ([("ball", {"a": 1.0})], "'ball', which is spherical, with 3 dofs and 4 coordinates"),
        ([("weld", {"a": 1.0})], "'weld', which is fixed"),
        ([("a", {"b": 1.0}), ("b", {"a": 1.0})], "joints 'a' follows 'b' follows 'a'"),
        ([("a", {"a": 1.0})], "joints 'a' follows 'a'"),
        ([("a", {"b": 1.0}), ("a", {"b": 2.0})], "'a' has two couplings"),
        ([("a", {"b": math.inf})], "Coefficients and offsets are finite"),
    ],
)
def test_invalid_couplings_are_refused_by_name(couplings, said):
    builder = ts.MechanismBuilder()
    kinds = {"a": "revolute", "b": "revolute", "ball": "spherical", "weld": "fixed"}
    for name, kind in kinds.items():
        builder.link(f"link_{name}", mass=1.0, com=(0.1, 0.2, 0.3))
        builder.joint(name, kind, child=f"link_{name}")
    for coupling in couplings:
        builder.couple(*coupling)
    with pytest.raises(MechanismError, match=said):
        builder.build()


@pytest.mark.parametrize(
    "couplings",
    [
        [("a", {}, 0.1), ("b", {}, 0.2)],
        [("a", {"b": 2.0}), ("b", {}, 0.2)],
        [("sum", {"a": 1.0, "b": 1.0}, 0.1), ("difference", {"a": 1.0, "b": -1.0})],
    ],
)
def test_couplings_that_hold_every_joint_are_refused_by_name(couplings):
    builder = ts.MechanismBuilder("bench")
    for name in ("a", "b"):
        builder.link(f"link_{name}", mass=1.0, com=(0.1, 0.2, 0.3))
        builder.joint(name, "revolute", child=f"link_{name}")
    for coupling in couplings:
        builder.couple(*coupling)
    said = r"every joint of 'bench' is dependent: .*\n.*one degree of freedom.*\n.*these couplings"
    with pytest.raises(MechanismError, match=said):
        builder.build()


@pytest.mark.parametrize("name", ["damping", "stiffness", "spring_reference"])
def test_numbers_of_states_are_too_few_for_all_joints_which_the_refusal_says(name):
    mech = random_mechanism(["revolute", "prismatic"], [-1, 0], couplings={1: {0: 2.0}})
    said = r"has shape \[1\][^$]*dependent ones included[^$]*Pass a tensor of shape \[\*batch, 2\]"
    with pytest.raises(MechanismError, match=said):
        mech.replace(**{name: torch.zeros(mech.num_dof, dtype=mech.dtype)})


def test_an_equation_of_joints_is_a_coupling_under_a_name_of_its_own():
    """A bevel differential: (left + right) / 2 = carrier, (left - right) / 2 = spider, in any order."""
    builder = ts.MechanismBuilder()
    for k, name in enumerate(("carrier", "spider", "left", "right")):
        builder.link(
            name,
            mass=1.0 + k,
            com=(0.1, 0.2, 0.1 * k),
            inertia=((0.2, 0, 0), (0, 0.3, 0), (0, 0, 0.4)),
        )
        builder.joint(f"{name}_axle", "revolute", child=name, axis=(1, 0, 0),
                      parent="carrier" if name == "spider" else None)  # fmt: skip
    builder.couple("mean", {"left_axle": 0.5, "right_axle": 0.5, "carrier_axle": -1.0}, 0.1)
    builder.couple("spin", {"left_axle": 0.5, "right_axle": -0.5, "spider_axle": -1.0})
    mech = builder.build()
    assert mech.joint_names == ("left_axle", "right_axle")
    q, qd, tau, _ = normal_state(mech, 5, vectors=3)
    carrier, spider, left, right = ts.expand(mech, q).unbind(-1)
    assert_close((left + right) / 2 - carrier, torch.full((5,), 0.1, dtype=q.dtype))
    assert_close((left - right) / 2, spider)
    X = torch.tensor([[0.5, 0.5], [0.5, -0.5], [1, 0], [0, 1]], dtype=q.dtype)
    MM = X.mT @ ts.mass_matrix(mech.tree, ts.expand(mech, q)) @ X
    agree(ts.mass_matrix(mech, q), MM, 1e-13)
    right_side = (tau - ts.bias_force(mech, q, qd))[..., None]
    agree(ts.forward_dynamics(mech, q, qd, tau), torch.linalg.solve(MM, right_side)[..., 0], 1e-12)
    chained = builder.couple("lock", {"left_axle": 1.0, "carrier_axle": 2.0}, 0.3).build()
    assert chained.num_dof == 1
    carrier, spider, left, right = ts.expand(chained, chained.random_state()[0])
    assert_close(left + 2 * carrier, torch.full_like(left, 0.3))
    assert_close((left + right) / 2 - carrier, torch.full_like(left, 0.1))
    assert_close((left - right) / 2, spider)


def test_a_follower_of_nothing_stands_still():
    builder = ts.MechanismBuilder()
    for name in ("one", "two"):
        builder.link(name, mass=1.0, com=(0.0, 0.1, -0.3))
    builder.joint("a", "revolute", child="one", axis=(0, 1, 0))
    builder.joint("b", "revolute", child="two", parent="one", axis=(1, 0, 0))
    mech = builder.couple("b", {}, 0.4).build()
    q, qd, tau, _ = normal_state(mech, 3, vectors=3)
    assert mech.joint_names == ("a",)
    tree, q_tree = mech.tree, ts.expand(mech, q)
    assert_close(q_tree[:, 1], torch.full((3,), 0.4, dtype=torch.float64))
    assert_close(ts.mass_matrix(mech, q), ts.mass_matrix(tree, q_tree)[:, :1, :1])
    assert_close(ts.inverse_dynamics(mech, q, qd, ts.forward_dynamics(mech, q, qd, tau)), tau)


def test_a_joint_of_the_model_keeps_one_hinge_for_its_node():
    """No block grows with the members: the model has as many nodes, each of six rows."""
    mech = arm()
    q, *_ = normal_state(mech, vectors=3)
    model = ts.assemble(mech, q)
    assert model.inertia.shape == (6, 6, 6) and model.layout.nodes.width == 6
    assert algorithms.mass_matrix(model).shape == (11, 11)
    with dual_level():
        X = make_dual(mech.coupling_ratio, torch.ones_like(mech.coupling_ratio))
        assert unpack_dual(ts.mass_matrix(mech.replace(coupling_ratio=X), q)).tangent is not None
