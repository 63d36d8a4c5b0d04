"""A user's joint type works in every verb, rollout, learning layer and kernel; a wrong one is refused."""

import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.func import jacrev, jvp
from torch.testing import assert_close

import torchsko as ts
from tests.newton import along, kinetic_energy, potential_energy
from torchsko.mechanism.joints.check_type import check_joint_type
from torchsko.mechanism.joints.kind import JointType
from torchsko.mechanism.joints.registry import JOINT_TYPES
from torchsko.mechanism.joints.universal import Universal

sys.path.insert(0, str(Path(__file__).parent))
from tests.mechanism.own_joint import Crank


@pytest.fixture(scope="module")
def mech():
    ts.register_joint(Crank())
    turned = [[0.8, -0.6, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]
    builder = ts.MechanismBuilder("press")
    for name in ("wheel", "ram", "tool"):
        builder.link(name, mass=2.0, com=(0.1, 0.2, 0.3),
                     inertia=[[0.2, 0.01, 0], [0.01, 0.3, 0], [0, 0, 0.25]])  # fmt: skip
    builder.joint("hinge", "revolute", child="wheel", axis=(0, 1, 0), damping=0.1)
    builder.joint("crank", "crank", child="ram", parent="wheel", axis=(1, 2, 0), radius=0.7,
                  rotation=turned, position=(0.2, 0, 0.1), damping=0.2, stiffness=3.0)  # fmt: skip
    builder.joint("ball", "spherical", child="tool", parent="ram", position=(0, 0, 0.4))
    yield builder.build()
    JOINT_TYPES.pop("crank")


@pytest.fixture(scope="module")
def state(mech):
    g = torch.Generator().manual_seed(0)
    q, qd = mech.random_state(4, generator=g)
    return q, qd, torch.randn(4, mech.num_dof, generator=g, dtype=q.dtype)


def test_a_registered_joint_obeys_the_equations_of_motion(mech, state):
    q, qd, qdd = state
    energy = (qd[..., None, :] @ ts.mass_matrix(mech, q) @ qd[..., None])[..., 0, 0] / 2
    assert_close(energy, kinetic_energy(mech, q, qd))
    tau = ts.inverse_dynamics(mech, q, qd, qdd)
    for method in ("composite", "parallel"):
        assert_close(ts.inverse_dynamics(mech, q, qd, qdd, method=method), tau)
    for method in ("articulated", "composite", "scan"):
        assert_close(ts.forward_dynamics(mech, q, qd, tau, method=method), qdd)
    still = torch.zeros_like(qd[0])
    gradient = jacrev(lambda s: potential_energy(mech, ts.integrate(mech, q[0], s)))(still)
    assert_close(ts.bias_force(mech, q[0], still), gradient)

    def total(t):
        at, rate = ts.integrate(mech, q[0], qd[0] * t), qd[0] + qdd[0] * t
        return kinetic_energy(mech, at, rate) + potential_energy(mech, at)

    zero = torch.zeros((), dtype=q.dtype)
    power = jvp(total, (zero,), (torch.ones_like(zero),))[1]
    assert_close(power, (qd[0] * (tau[0] - mech.damping * qd[0])).sum())


def test_the_jacobian_of_a_registered_joint_is_the_derivative_of_its_pose(mech, state):
    q, qd, _ = (x[0] for x in state)
    pose = ts.frame_pose(mech, q, mech.frame_names)
    speed = along(mech, q, qd, lambda q: ts.frame_pose(mech, q, mech.frame_names).position)
    J = ts.frame_jacobian(mech, q, mech.frame_names)
    v = (J @ qd[..., None])[..., 3:, :]
    assert_close((pose.rotation @ v)[..., 0], speed)


def test_verbs_include_a_registered_joint(mech, state):
    q, qd, qdd = state
    M, bias = ts.mass_matrix(mech, q), ts.bias_force(mech, q, qd)
    tau = ts.inverse_dynamics(mech, q, qd, qdd)
    accel, force = ts.hybrid_dynamics(mech, q, qd, tau, qdd, ["crank"])
    assert_close(accel, qdd)
    assert_close(force, tau)
    free = [k for k in range(mech.num_dof) if k != mech.dof_slice("crank").start]
    other = torch.randn_like(tau)
    accel, _ = ts.hybrid_dynamics(mech, q, qd, other, qdd, ["crank"])
    reduced = (other - bias)[:, free] - M[:, free, 1] * qdd[:, 1:2]
    assert_close(
        accel[:, free], torch.linalg.solve(M[:, free][:, :, free], reduced[..., None])[..., 0]
    )
    J = ts.frame_jacobian(mech, q, "tool")
    assert_close(ts.operational_space_compliance(mech, q, "tool"), J @ torch.linalg.solve(M, J.mT))
    Y = ts.torque_regressor(mech, q, qd, qdd)
    linear = (Y * ts.inertial_parameters(mech)).sum((-2, -1)) + ts.passive_force(mech, q, qd)
    assert_close(linear, tau)


@pytest.mark.some(1)
@pytest.mark.parametrize("method", ["semi_implicit_euler", "rk4", "newmark"])
def test_a_registered_joint_has_rollouts(mech, state, method):
    q, qd = state[0][0], state[1][0]
    free = mech.replace(damping=torch.zeros_like(mech.damping))
    qs, qds, *_ = ts.rollout(free, ts.State(q, qd), steps=100, dt=1e-3, method=method)
    before, after = (
        kinetic_energy(free, qs[k], qds[k]) + potential_energy(free, qs[k]) for k in (0, -1)
    )
    tolerance = {"semi_implicit_euler": 2e-2, "rk4": 1e-8, "newmark": 1e-4}[method]
    assert (after - before).abs() <= tolerance * before.abs().clamp(min=1)
    assert (qs[-1] - q).abs().max() > 0.05


def test_parameters_of_a_registered_joint_are_learnable(mech, state):
    q, qd, tau = state
    learned = {"ram": ts.learn.InertiaLogCholesky(), "crank.radius": ts.learn.Positive()}
    layer = ts.Dynamics(mech, learned)
    loss = layer(q, qd, tau).square().sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in layer.parameters())
    assert "crank/radius" in str(list(layer.state_dict()))

    def accel(radius):
        return ts.forward_dynamics(mech.replace(joint_parameters=radius), q, qd, tau)

    assert torch.autograd.gradcheck(accel, (mech.joint_parameters.clone().requires_grad_(),))
    batched = mech.joint_parameters * torch.linspace(1, 2, 4, dtype=q.dtype)[:, None]
    each = [
        ts.forward_dynamics(mech.replace(joint_parameters=p), a, b, c)
        for p, a, b, c in zip(batched, q, qd, tau, strict=True)
    ]
    assert_close(accel(batched), torch.stack(each))


def test_kernels_include_a_registered_joint(mech, state):
    q, qd, tau = state
    fast = ts.fuse(mech, inputs=("joint_parameters",))
    assert_close(fast.forward_dynamics(q, qd, tau), ts.forward_dynamics(mech, q, qd, tau))
    longer = mech.replace(joint_parameters=1.3 * mech.joint_parameters)
    moved = fast.replace(joint_parameters=1.3 * mech.joint_parameters)
    assert_close(moved.forward_dynamics(q, qd, tau), ts.forward_dynamics(longer, q, qd, tau))


def test_a_registered_joint_is_pickled_to_processes_without_it(mech, state):
    q, qd, tau = state
    again = pickle.loads(pickle.dumps(mech))
    assert_close(ts.forward_dynamics(again, q, qd, tau), ts.forward_dynamics(mech, q, qd, tau))


@dataclass(frozen=True)
class WithoutBias(Crank):
    """Reports no rate of its joint map."""

    bias_accel = JointType.bias_accel


@dataclass(frozen=True)
class WithoutMap(Crank):
    """Inherits `joint_map_at`, as if the map were constant."""

    joint_map_at = JointType.joint_map_at

    def joint_map(self, constants):
        return torch.nn.functional.pad(constants["axis"] * constants["radius"][..., None], (3, 0))[
            ..., None, :
        ]


@dataclass(frozen=True)
class WrongMap(Crank):
    """The joint map of a crank of twice the radius."""

    def joint_map_at(self, constants, q):
        return 2 * super().joint_map_at(constants, q)


@dataclass(frozen=True)
class WrongBias(Crank):
    def bias_accel(self, constants, q, qd):
        return 0.5 * super().bias_accel(constants, q, qd)


@dataclass(frozen=True)
class WrongStep(Crank):
    def difference(self, start, end):
        return start - end


@dataclass(frozen=True)
class WrongNeutral(Crank):
    def neutral(self):
        return (0.5,)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (WithoutBias(), "bias_accel.*Override it"),
        (WithoutMap(), "joint_map of.*override joint_map_at"),
        (WrongMap(), "joint_map_at"),
        (WrongBias(), "bias_accel"),
        (WrongStep(), "difference"),
        (WrongNeutral(), r"pose at neutral\(\)"),
        (Crank(orthonormal=True), "orthonormal=True"),
        (Crank(unit_rows=True), "unit_rows=True"),
        (Crank(has_axis=False), "has_axis is False"),
        (Crank(rates=("angle", "other")), "2 rates|shape"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, JointType) else x,
)
def test_a_joint_type_whose_methods_disagree_is_refused_at_registration(kind, named):
    known = dict(JOINT_TYPES)
    JOINT_TYPES.pop("crank", None)
    try:
        with pytest.raises(ts.MechanismError, match=f"(?s){named}"):
            ts.register_joint(kind)
        assert "crank" not in JOINT_TYPES
    finally:
        JOINT_TYPES.update(known)


@pytest.mark.parametrize("kind", JOINT_TYPES.values(), ids=lambda kind: kind.name)
def test_the_joint_types_of_the_library_agree_with_their_poses(kind):
    axes = {"axis": (0, 0, 2), "second_axis": (1, 0, 0)}
    motions = [ts.Turn((0, 1, 0), (0.1, 0.2, 0.3)), ts.Slide((1, 1, 0)), ts.Turn((1, 0, 2))]
    g = torch.Generator().manual_seed(1)
    shapes = {"shape": (3, 2), "second_order": (3, 2, 2), "slope": (3, 2)}
    elastic = {name: torch.randn(shape, generator=g).numpy() for name, shape in shapes.items()}
    example = {"universal": axes, "compound": {"motions": motions}, "elastic": elastic}
    check_joint_type(kind, example.get(kind.name, {}))


def test_parameters_that_are_not_arbitrary_come_from_an_example():
    @dataclass(frozen=True)
    class Cardan(Universal):
        name: str = "cardan"

    with pytest.raises(ts.MechanismError, match=r"refuses random parameters[^$]*example="):
        ts.register_joint(Cardan())
    ts.register_joint(Cardan(), example={"axis": (0, 0, 1), "second_axis": (0, 1, 0)})
    JOINT_TYPES.pop("cardan")


def test_an_unknown_joint_type_is_an_error_by_name():
    builder = ts.MechanismBuilder().link("a", mass=1.0)
    with pytest.raises(ts.MechanismError, match="'crankshaft'"):
        builder.joint("j", "crankshaft", child="a")


def test_a_name_is_taken_once():
    class Other(Crank):
        pass

    with pytest.raises(ts.MechanismError, match="'revolute' exists already"):
        ts.register_joint(Other(name="revolute"))
