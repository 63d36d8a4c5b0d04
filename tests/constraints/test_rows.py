"""Constraint rows: Jacobians and biases are derivatives of the residual along motions of the robot."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.constraints.constraint_kinds import KINDS, constraint_kind
from torchsko.constraints.row_kinds import FrameRows, JointRows, Marker
from torchsko.errors import MechanismError
from torchsko.mechanism.loops.placements import Placements
from torchsko.mechanism.loops.row_set import IndexedConstraint, Rows, RowSet
from torchsko.spatial.rotation import quaternion_exp, unit_quaternion_to_matrix

ROBOT = random_mechanism(
    parents=[-1, 0, 1, 0, 3, 4],
    kinds=["free", "spherical", "universal", "revolute", "helical", "prismatic"],
)


def numbers(count: int, parameters: int) -> Placements:
    generator = torch.Generator().manual_seed(2)
    draw = lambda *size: torch.randn(*size, generator=generator, dtype=torch.float64)  # noqa: E731
    R = torch.linalg.qr(draw(2 * count, 3, 3)).Q
    return Placements(R * R.det()[:, None, None], draw(2 * count, 3), draw(parameters))


def rows_of(kind: FrameRows | JointRows, ends: tuple[int, int], members: list[int]):
    links = [IndexedConstraint(kind, ends), IndexedConstraint(kind, ends[::-1])]
    count = 2 if isinstance(kind, FrameRows) else 0
    placed = numbers(count, 2 * len(kind.parameters))
    held = RowSet.of(ROBOT, links, members)

    def at(q: Tensor, qd: Tensor | None = None) -> Rows:
        return held.rows(ROBOT, q, qd, placed)

    return held, at


def derivative(f, h: float = 1e-3) -> Tensor:
    """Sixth-order central difference at 0."""
    weights = ((1, 3 / 4), (2, -3 / 20), (3, 1 / 60))
    return sum(c * (f(k * h) - f(-k * h)) for k, c in weights) / h  # type: ignore[return-value]


@pytest.mark.parametrize("name", KINDS)
def test_jacobian_and_bias_are_the_rates_of_the_residual(name: str) -> None:
    kind = KINDS[name]
    ends = (2, 5) if isinstance(kind, FrameRows) else (3, 5)
    held, at = rows_of(kind, ends, list(range(6)))
    q, qd = ROBOT.random_state(4, generator=torch.Generator().manual_seed(5))
    qd = qd / 2
    rows = at(q, qd)
    assert rows.jacobian.shape == (4, 2 * kind.num_rows, ROBOT.num_dof)
    G = torch.zeros_like(rows.jacobian)
    G[..., held.subtree.dofs] = rows.jacobian
    velocity = (G @ qd[..., None])[..., 0]
    moved = lambda t: ts.integrate(ROBOT, q, t * qd)  # noqa: E731
    torch.testing.assert_close(
        derivative(lambda t: at(moved(t)).residual), velocity, atol=1e-9, rtol=1e-9
    )

    def rate(t: float) -> Tensor:
        found = at(moved(t)).jacobian @ qd[..., held.subtree.dofs, None]
        return found[..., 0]

    assert rows.bias is not None
    torch.testing.assert_close(derivative(rate), rows.bias, atol=1e-8, rtol=1e-8)


def test_rows_between_bodies_do_not_depend_on_the_motion_of_their_common_ancestor() -> None:
    kind = constraint_kind("weld")
    held, at = rows_of(kind, (2, 5), [1, 2, 3, 4, 5])
    q, qd = ROBOT.random_state(generator=torch.Generator().manual_seed(5))
    other = q.clone()
    other[:3] += 1.0
    other_rates = torch.cat([torch.randn(6, dtype=q.dtype), qd[6:]])
    one, two = at(q, qd), at(other, other_rates)
    assert held.subtree.num_dof == ROBOT.num_dof - 6
    for x, y in zip(one, two, strict=True):
        assert torch.equal(x, y)


def test_an_unknown_kind_is_refused_with_the_nearest_name() -> None:
    assert constraint_kind("connect") is KINDS["ball"]
    with pytest.raises(MechanismError, match="revolute"):
        constraint_kind("revolut")


FRAME_KINDS = [name for name, kind in KINDS.items() if isinstance(kind, FrameRows)]


@pytest.mark.parametrize("name", FRAME_KINDS)
def test_angular_rows_are_those_that_no_translation_changes(name: str) -> None:
    kind = KINDS[name]
    g = torch.Generator().manual_seed(0)
    quaternions = torch.randn(2, 4, generator=g, dtype=torch.float64)
    rotations = unit_quaternion_to_matrix(quaternions / quaternions.norm(dim=-1, keepdim=True))
    positions = torch.randn(2, 3, generator=g, dtype=torch.float64)
    one, two = (Marker(R, r) for R, r in zip(rotations, positions, strict=True))
    linear = kind.maps(one, two, torch.ones(len(kind.parameters), dtype=torch.float64))[1][..., 3:]
    still = (linear.abs().amax(-1) == 0).nonzero()[:, 0].tolist()
    assert still == list(kind.angular_rows)


@pytest.mark.parametrize("name", ["weld", "prismatic", "revolute"])
def test_rows_of_coinciding_axes_have_the_length_of_twice_the_sine_of_half_the_angle(
    name: str,
) -> None:
    kind = KINDS[name]
    rotation = lambda x: unit_quaternion_to_matrix(quaternion_exp(x))  # noqa: E731
    angles = torch.linspace(0, torch.pi, 41, dtype=torch.float64)
    g = torch.Generator().manual_seed(3)
    start = rotation(torch.randn(3, generator=g, dtype=torch.float64))
    for axis in ((1.0, 0.0, 0.0), (0.6, -0.8, 0.0)):  # orthogonal to z, so z turns by the angle
        turn = rotation(angles[:, None] * torch.tensor(axis, dtype=torch.float64))
        one = Marker(start.expand(41, 3, 3), torch.zeros(41, 3, dtype=torch.float64))
        two = Marker(start @ turn, one.position)
        phi = kind.residual(one, two, angles[:, None, None][..., :0, 0])
        found = phi[..., list(kind.angular_rows)].norm(dim=-1)
        torch.testing.assert_close(found, 2 * (angles / 2).sin(), atol=1e-7, rtol=0)


def test_the_table_of_the_documentation_has_every_kind() -> None:
    page = (Path(__file__).parents[2] / "docs" / "closed_chains.md").read_text()
    for kind in KINDS.values():
        assert f"| `{kind.name}` | {kind.num_rows} | {kind.summary} |" in page.replace('"', ""), (
            kind
        )
