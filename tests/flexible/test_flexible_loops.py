"""Flexible links in closed loops, embedded and cut, against the dense system with multipliers."""

import pytest
import torch
from torch import Tensor

import torchsko as ts
from tests.refusals import assert_refused

INERTIA = ((0.01, 0, 0), (0, 0.01, 0), (0, 0, 0.01))


def four_bar(method: str, independent=("crank_joint", "rod_modes")) -> ts.Mechanism:
    """A crank and a rocker joined by a flexible coupler, closed at the marker of its tip."""
    builder = ts.MechanismBuilder("four-bar")
    builder.link("crank", mass=1.0, com=(0.1, 0, 0), inertia=INERTIA)
    builder.joint("crank_joint", "revolute", child="crank")
    rod = ts.FlexibleBody.beam(0.5, 1.0, EI_y=4.0, EI_z=5.0, shapes=(0, 2))
    builder.flexible_link("rod", rod)
    builder.joint("rod_joint", "revolute", child="rod", parent="crank", position=(0.2, 0, 0))
    builder.link("rocker", mass=1.0, com=(0.2, 0, 0), inertia=INERTIA)
    builder.joint("rocker_joint", "revolute", child="rocker", position=(0.5, 0, 0))
    ends = ("rod/tip", (0, 0, 0), "rocker", (0.4, 0, 0))
    chosen = {"independent": independent} if method == "embed" else {}
    return builder.close("loop", "ball", *ends, method=method, **chosen).build()


@pytest.fixture(scope="module")
def solved() -> tuple[Tensor, ...]:
    """State and force of the independent dofs, and what the system with multipliers gives."""
    mech, tree = four_bar("embed"), four_bar("cut")
    g = torch.Generator().manual_seed(0)
    q, qd = mech.random_state(generator=g)
    tau = torch.randn(mech.num_dof, generator=g, dtype=q.dtype)
    q_tree, qd_tree = ts.expand(mech, q), ts.expand_velocity(mech, q, qd)

    def gap(q: Tensor) -> Tensor:
        ends = (ts.frame_pose(tree, q, name).position for name in ("loop_1", "loop_2"))
        one, two = ends
        return (two - one)[:2]

    slope = torch.func.jacfwd(gap)
    G = slope(q_tree)
    rate = torch.func.jvp(lambda q: slope(q) @ qd_tree, (q_tree,), (qd_tree,))[1]
    n = tree.num_dof
    force = torch.zeros(n, dtype=q.dtype)
    force[[tree.dof_names.index(name) for name in mech.dof_names]] = tau
    system = torch.zeros(n + 2, n + 2, dtype=q.dtype)
    system[:n, :n], system[:n, n:], system[n:, :n] = ts.mass_matrix(tree, q_tree), -G.T, G
    right = torch.cat([force - ts.bias_force(tree, q_tree, qd_tree), -rate])
    return q, qd, tau, q_tree, qd_tree, force, torch.linalg.solve(system, right)[:n]


def test_an_embedded_loop_with_a_flexible_link_is_the_system_with_multipliers(solved):
    mech = four_bar("embed")
    assert mech.dof_names == ("crank_joint", "rod_modes[0]", "rod_modes[1]")
    q, qd, tau, *_, expected = solved
    qdd = ts.forward_dynamics(mech, q, qd, tau)
    found = ts.expand_acceleration(mech, q, qd, qdd)
    assert (found - expected).abs().max() < 1e-12 * expected.abs().max()
    assert (ts.inverse_dynamics(mech, q, qd, qdd) - tau).abs().max() < 1e-10


def test_a_cut_loop_with_a_flexible_link_is_the_system_with_multipliers(solved):
    tree = four_bar("cut")
    *_, q, qd, force, expected = solved
    found, _ = ts.constrain(tree, tree.closures).forward_dynamics(q, qd, force)
    assert (found - expected).abs().max() < 1e-12 * expected.abs().max()


def test_two_points_of_a_flexible_body_in_one_loop_are_refused():
    rod = ts.FlexibleBody.beam(1.0, 1.0, EI_y=1.0, shapes=(2, 0), markers={"a": 0.4, "b": 1.0})
    mech = ts.MechanismBuilder("rod").flexible_link("rod", rod).build()
    frames = [ts.HeldFrame("rod/a"), ts.HeldFrame("rod/b")]
    assert_refused(lambda: ts.constrain(mech, frames), "'rod_modes'")
