"""Closed mechanisms: embedding against dense KKT systems, energy, derivatives along the manifold."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given, settings
from torch import Tensor

import torchsko as ts
from tests.linkages import LINKAGES, Linkage, dense_motion, four_bar, state
from tests.transforms.verbs import VERBS, sample
from torchsko.bridge.kinematics import Kinematics
from torchsko.errors import MechanismError
from torchsko.mechanism.closed_chains.embedded_nodes import close_loops
from torchsko.mechanism.data import uncoupled


def residual(mech: ts.Mechanism, q: Tensor) -> Tensor:
    assert mech.closing is not None
    return mech.closing.residual(mech, uncoupled(mech), q).abs().amax()


def check_against_dense_kkt(
    mech: ts.Mechanism, tree: ts.Mechanism, tolerance: float, *batch: int, size: float = 1.0
) -> None:
    q, qd, tau = state(mech, *batch, size=size)
    assert residual(mech, q) < 1e-12
    assert mech.closing is not None
    rates = ts.expand_velocity(mech, q, qd)
    exact = dense_motion(tree, mech.closing.own, q, rates, tau)
    qdd = ts.forward_dynamics(mech, q, qd, tau)
    found = ts.expand_acceleration(mech, q, qd, qdd)
    scale = exact.accel.abs().amax()
    assert (found - exact.accel).abs().amax() < tolerance * scale
    mass = ts.mass_matrix(mech, q)
    assert (mass - exact.mass).abs().amax() < tolerance * exact.mass.abs().amax()
    bias = ts.bias_force(mech, q, qd)
    assert (bias - exact.bias).abs().amax() < tolerance * exact.terms.abs().amax()
    force = torch.zeros_like(rates)
    force[..., mech.closing.own] = tau
    cut = ts.constrain(tree, tree.closures).forward_dynamics(q, rates, force)[0]
    assert (found - cut).abs().amax() < 10 * tolerance * scale


@pytest.mark.some(2)
@pytest.mark.parametrize("name", LINKAGES)
def test_embedding_solves_the_kkt_system(name: str) -> None:
    check_against_dense_kkt(LINKAGES[name](), LINKAGES[name]("cut"), 1e-12, 2)


@pytest.mark.some(1)
@pytest.mark.parametrize(
    "name", ["four-bar on a floating base", "nested four-bars", "gear, cam and rod"]
)
def test_mass_matrices_agree(name: str) -> None:
    mech = LINKAGES[name]()
    q, qd, _ = state(mech, 2)
    unit = torch.eye(mech.num_dof, dtype=q.dtype)[:, None].expand(-1, 2, -1)
    M = ts.mass_matrix(mech, q)
    columns = ts.inverse_dynamics(mech, q, 0 * qd, unit) - ts.bias_force(mech, q, 0 * qd)
    torch.testing.assert_close(columns.movedim(0, -1), M, rtol=1e-10, atol=1e-10)
    factors = ts.innovations(ts.assemble(mech, q))
    torch.testing.assert_close(factors.inverse() @ M, unit[:, 0].expand_as(M), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(factors.logdet(), torch.logdet(M))
    energy = (qd * (M @ qd[..., None])[..., 0]).sum(-1) / 2
    torch.testing.assert_close(ts.kinetic_energy(mech, q, qd), energy)


def test_integrate_inverts_difference_and_stays_closed() -> None:
    mech = four_bar(base=True)
    q, qd, _ = state(mech, 4)
    q1 = ts.integrate(mech, q, 0.3 * qd)
    assert residual(mech, q1) < 1e-13
    torch.testing.assert_close(ts.difference(mech, q, q1), 0.3 * qd, rtol=1e-10, atol=1e-10)
    again = ts.integrate(mech, q, ts.difference(mech, q, q1))
    torch.testing.assert_close(again, q1, rtol=1e-10, atol=1e-10)
    for q in (mech.neutral(), mech.initial(), mech.middle()):
        assert residual(mech, q) < 1e-9
    far = q + 0.1
    closed, distance = ts.close_loops(mech, far)
    assert residual(mech, closed) < 1e-12 and distance > 1e-3


@pytest.mark.some(1)
@pytest.mark.parametrize("method", ["semi_implicit_euler", "implicit", "rk4", "newmark"])
def test_rollouts_of_every_integrator_stay_closed(method: str) -> None:
    mech = four_bar(base=True)
    q, qd, _ = state(mech)
    qs = ts.rollout(mech, ts.State(q, 0.3 * qd), steps=5, dt=0.01, method=method, fused=False).q
    assert residual(mech, qs) < 1e-12


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["six-bar", "spatial four-bar", "biped of six loops"])
def test_the_energy_error_of_rk4_falls_with_the_fourth_power_of_the_step(name: str) -> None:
    mech = LINKAGES[name]()
    q, qd, _ = state(mech)
    start = ts.total_energy(mech, q, qd)
    errors = []
    for steps in (20, 40):
        qs, qds, *_ = ts.rollout(
            mech, ts.State(q, qd), steps=steps, dt=0.2 / steps, method="rk4", fused=False
        )
        errors.append(float((ts.total_energy(mech, qs[-1], qds[-1]) - start).abs()))
        assert residual(mech, qs) < 1e-13
    assert errors[0] > 12 * errors[1] > 0


KINDS = ("revolute", "prismatic", "universal", "spherical", "helical")
LOOPS = ("ball", "planar", "revolute", "distance", "weld", "gear")


@st.composite
def closed_builders(draw: st.DrawFn) -> Linkage:
    """Random trees with one to three loops, which close in the neutral configuration."""
    made = Linkage("cut")
    g = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    vector = lambda: torch.randn(3, generator=g).tolist()  # noqa: E731
    names: list[str | None] = [None]
    simple = []
    if draw(st.booleans()):
        made.body("base", "free")
        names = ["base"]
    for k in range(draw(st.integers(3, 7))):
        kind = draw(st.sampled_from(KINDS))
        data: dict[str, object] = {} if kind == "spherical" else {"axis": vector()}
        if kind == "universal":
            data = {"axis": (1, 0, 0), "second_axis": (0, 1, 0)}
        if kind == "helical":
            data |= {"pitch": 0.1}
        made.body(f"b{k}", kind, draw(st.sampled_from(names)), vector(), **data)
        names.append(f"b{k}")
        simple += [f"b{k}_j"] if kind in ("revolute", "prismatic", "helical") else []
    tree = made.build()
    bodies = [x for x in names if x is not None]
    for k in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(LOOPS))
        if kind == "gear" and len(simple) > 1:
            one, two = draw(st.permutations(simple))[:2]
            made.close(f"loop{k}", "gear", one, None, two, None, parameters=(1.7, 0.0))
            continue
        kind = "ball" if kind == "gear" else kind
        one, two = draw(st.permutations(bodies))[:2]
        pose = ts.frame_pose(tree, tree.neutral(), [one, two])
        R = torch.linalg.qr(torch.randn(3, 3, generator=g).double()).Q
        R, x = R * R.det(), torch.randn(3, generator=g).double()
        apart = 0.4 * R[:, 0] if kind == "distance" else 0
        ends = []
        for i in range(2):
            turn = pose.rotation[i].mT
            ends.append(((turn @ R).tolist(), (turn @ (x + i * apart - pose.position[i])).tolist()))
        parameters = (0.4,) if kind == "distance" else ()
        made.close(f"loop{k}", kind, one, ends[0], two, ends[1], parameters=parameters)
    return made


def rank_of_rows(tree: ts.Mechanism, q: Tensor) -> int:
    rows = ts.constrain(tree, tree.closures).constraints.rows
    G = rows.at(Kinematics.of(tree, q), rows.numbers(tree)).jacobian
    return int(torch.linalg.matrix_rank(G, rtol=1e-8).max())


@pytest.mark.nightly
@settings(max_examples=50)
@given(made=closed_builders())
def test_random_loops_solve_the_kkt_system_or_have_a_deficient_rank(made: Linkage) -> None:
    tree = made.build()
    try:
        mech = close_loops(tree, "embed")
    except MechanismError as error:
        rank = rank_of_rows(tree, tree.neutral())
        if "no degree of freedom" in error.what:
            assert rank == tree.num_dof
        else:
            assert "singular" in error.what
            near = ts.constrain(tree, tree.closures).project(
                ts.integrate(tree, tree.neutral(), 0.3 * torch.randn(8, tree.num_dof).double())
            )
            assert rank < rank_of_rows(tree, near)
        return
    q, _, _ = state(mech, size=0.1)
    assume(residual(mech, q) < 1e-12)  # a step of independent dofs may be out of reach
    check_against_dense_kkt(mech, tree, 1e-9, size=0.1)


BAR = four_bar(base=True)


@pytest.mark.some(6)
@pytest.mark.parametrize("verb", VERBS, ids=lambda v: v.name)
def test_gradients_of_every_verb_are_slopes_along_the_manifold(verb) -> None:
    g = torch.Generator().manual_seed(1)
    states = {n: sample(BAR, n, (), g) for n in verb.states}
    point = next((n for n in ("q", "start") if n in states), None)
    if point is None:
        return
    direction = torch.randn(BAR.num_dof, generator=g, dtype=torch.float64)

    def at(t: Tensor) -> tuple[Tensor, ...]:
        moved = states | {point: ts.integrate(BAR, states[point], t * direction)}
        found = verb.call(BAR, **moved)
        return (found,) if isinstance(found, Tensor) else tuple(found)

    h = 1e-4
    near = [
        (8 * (a - b) - (c - d)) / (12 * h)
        for a, b, c, d in zip(
            *(at(torch.tensor(k * h)) for k in (1.0, -1.0, 2.0, -2.0)), strict=True
        )
    ]
    weights = [torch.randn(x.shape, generator=g, dtype=x.dtype) for x in near]
    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    total = sum((w * x).sum() for w, x in zip(weights, at(t), strict=True))
    slope = sum((w * x).sum() for w, x in zip(weights, near, strict=True))
    size = sum((w * x).abs().sum() for w, x in zip(weights, near, strict=True))
    gradient = torch.zeros(()) if not total.requires_grad else torch.autograd.grad(total, t)[0]
    assert abs(gradient - slope) < 1e-6 * max(1.0, float(size)), (float(gradient), float(slope))


def test_derivative_verbs_hold_the_change_of_x_and_xi() -> None:
    mech = four_bar()
    q, qd, tau = state(mech, 2)
    qdd = ts.forward_dynamics(mech, q, qd, tau)
    h = 1e-5

    def slope(fn) -> Tensor:
        return ((fn(h) - fn(-h)) / (2 * h))[..., None]

    move = lambda t: ts.integrate(mech, q, t * torch.ones_like(qd))  # noqa: E731
    forward = ts.forward_dynamics_derivatives(mech, q, qd, tau)[:2]
    for (to_q, to_qd), fn, last in (
        (ts.inverse_dynamics_derivatives(mech, q, qd, qdd)[:2], ts.inverse_dynamics, qdd),
        (forward, ts.forward_dynamics, tau),
    ):
        near_q = slope(lambda t, fn=fn, last=last: fn(mech, move(t), qd, last))
        near_qd = slope(lambda t, fn=fn, last=last: fn(mech, q, qd + t, last))
        torch.testing.assert_close(to_q, near_q, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(to_qd, near_qd, rtol=1e-6, atol=1e-6)
    C = ts.coriolis_matrix(mech, q, qd)
    M_rate = slope(lambda t: ts.mass_matrix(mech, ts.integrate(mech, q, t * qd)))[..., 0]
    skewed = M_rate - 2 * C
    torch.testing.assert_close(skewed, -skewed.mT, rtol=1e-6, atol=1e-6)
    centrifugal = (
        ts.bias_force(mech, q, qd) - ts.passive_force(mech, q, qd) - ts.gravity_force(mech, q)
    )
    torch.testing.assert_close((C @ qd[..., None])[..., 0], centrifugal, rtol=1e-10, atol=1e-10)
    Gamma = ts.christoffel_symbols(mech, q)
    torch.testing.assert_close((Gamma * qd[..., None, None, :]).sum(-1), C, rtol=1e-9, atol=1e-9)
    A, B = ts.linearize(mech, ts.State(q, qd), tau)
    torch.testing.assert_close(A[..., 1:, :1], forward[0])
    assert B.shape == (2, 2, 1)


@pytest.mark.nightly
def test_second_derivatives_and_gradients_to_closure_points() -> None:
    mech = four_bar(kind="planar")
    q, qd, tau = state(mech)

    def motion(q, qd, tau, mass, points):
        robot = mech.replace(mass=mass, frame_position=points)
        return ts.forward_dynamics(robot, ts.integrate(robot, q, 0.1 * qd), qd, tau)

    inputs = tuple(x.clone().requires_grad_() for x in (q, qd, tau, mech.mass, mech.frame_position))
    assert torch.autograd.gradcheck(motion, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(motion, inputs, fast_mode=True)


def test_locked_and_appended_loops_stay_closed() -> None:
    mech, tree = four_bar(base=True), four_bar("cut", base=True)
    values = {"arm_j": 0.3, "rocker_j": mech.neutral()[mech.q_slice("rocker_j")] - 0.1}
    lock = lambda robot: robot.lock(values)  # noqa: E731
    arm = ts.load(ts.robots.panda)
    append = lambda robot: arm.append(robot, "flange", prefix="b_")  # noqa: E731
    for change, count in ((lock, 9), (append, 12)):
        made = change(mech)
        assert made.num_dof == count and made.initial() is not None
        check_against_dense_kkt(made, change(tree), 1e-12, size=0.1)
    both = mech.append(four_bar(), "hand", prefix="b_")
    assert both.dof_names[-1] == "b_coupler_j" and set(mech.dof_names) <= set(both.dof_names)


def test_refusals_name_the_loop_and_the_remedy() -> None:
    with pytest.raises(
        MechanismError, match=r"independent=\('coupler_j',\)|independent=\('crank_j',\)"
    ):
        four_bar(independent=["crank_j", "rocker_j"])
    made = ts.MechanismBuilder("open")
    made.link("a", mass=1.0).joint("j", "revolute", child="a")
    made.close("loop", "ball", "a", (1, 0, 0), "world", (3, 0, 0))
    with pytest.raises(MechanismError, match=r"'loop' .* do not close: 2 m"):
        made.build(strict=False)
    made = ts.MechanismBuilder("typo").link("a", mass=1.0).joint("j", "revolute", child="a")
    with pytest.raises(MechanismError, match="position of frame 'loop_1'"):
        made.close("loop", "ball", "a", (1, 0), "world", (1, 0, 0))
    made.close("loop", "ball", "b", (1, 0, 0), "world", (1, 0, 0))
    with pytest.raises(MechanismError, match="closure 'loop': no link is named 'b'"):
        made.build(strict=False)
    pin = ts.constraints.Closure("pin", "ball", "wrist", None)
    with pytest.raises(MechanismError, match="no frame is named 'wrist'"):
        ts.load(ts.robots.panda, closures=[pin])
    mech = four_bar()
    with pytest.raises(MechanismError, match="no degree of freedom"):
        mech.lock({"crank_j": 0.1})
    with pytest.raises(MechanismError, match=r"'loop' .* do not close"):
        four_bar(base=True).lock({"rocker_j": 0.5})
    with pytest.raises(MechanismError, match="joint 'd_j' is in the loop 'cam'"):
        LINKAGES["gear, cam and rod"]().lock({"d_j": 0.1})
    dependent = next(n for n in mech.joint_names if n not in mech.dof_names)
    with pytest.raises(MechanismError, match="loops determine its rate"):
        mech.dof_slice(dependent)
    assert mech.q_slice(dependent).stop <= mech.num_q == 3


def test_loops_are_added_to_a_urdf() -> None:
    inertia = "ixx='.1' iyy='.1' izz='.1' ixy='0' ixz='0' iyz='0'"
    body = f"<inertial><mass value='1'/><inertia {inertia}/></inertial>"
    links = "".join(f"<link name='{n}'>{body if n != 'g' else ''}</link>" for n in "gabc")
    joints = "".join(
        f"<joint name='j{c}' type='continuous'><parent link='{p}'/><child link='{c}'/>"
        f"<origin xyz='{x} 0 0'/><axis xyz='0 0 1'/></joint>"
        for c, p, x in (("a", "g", 0), ("b", "a", 0.2), ("c", "g", 0.5))
    )
    loop = ts.constraints.Closure(
        "loop", "connect", "b", "c", (0.5, 0, 0), (0.4, 0, 0), method="embed"
    )
    mech = ts.load(f"<robot name='bar'>{links}{joints}</robot>", closures=[loop])
    assert mech.num_dof == 1 and mech.num_q == 3
    assert residual(mech, mech.neutral()) < 1e-12
