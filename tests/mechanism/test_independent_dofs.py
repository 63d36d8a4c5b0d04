"""Independent dofs of loops: actuated joints, named joints, mirrored legs; random states of loops."""

from __future__ import annotations

import pytest
import torch

import torchsko as ts
from tests.linkages import LINKAGES, biped
from torchsko.errors import MechanismError
from torchsko.mechanism.closed_chains import closed_states
from torchsko.mechanism.closed_chains.closed_states import MAX_RATE_RATIO

INERTIA = '<inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/>'
LINKS = "".join(
    f'<link name="{name}"><inertial><mass value="1"/>{INERTIA}</inertial></link>'
    for name in ("a", "b", "c")
)
JOINTS = "".join(
    f'<joint name="{name}" type="continuous"><parent link="{parent}"/><child link="{child}"/>'
    f'<origin xyz="{x} 0 0"/><axis xyz="0 0 1"/></joint>'
    for name, parent, child, x in (
        ("crank", "base", "a", 0),
        ("coupler", "a", "b", 0.2),
        ("rocker", "base", "c", 0.5),
    )
)
PIN = """<loop name="pin" type="revolute"><predecessor link="b"><origin xyz="0.5 0 0"/></predecessor>
<successor link="c"><origin xyz="0.4 0 0"/></successor><axis xyz="0 0 1"/></loop>"""


def four_bar(motor: str | None) -> str:
    """URDF of a four-bar with a transmission."""
    drive = f'<transmission name="t"><joint name="{motor}"/></transmission>' if motor else ""
    return f'<robot name="bar"><link name="base"/>{LINKS}{JOINTS}{PIN}{drive}</robot>'


@pytest.mark.parametrize("motor", ["crank", "coupler", "rocker"])
@pytest.mark.parametrize("format", ["urdf", "mjcf"])
def test_an_actuated_joint_is_independent(motor: str, format: str, tmp_path) -> None:
    text = four_bar(motor)
    if format == "mjcf":
        pytest.importorskip("mujoco")
        ts.save(ts.load(four_bar(None), closures="cut"), tmp_path / "bar.xml")
        drive = f'<actuator><motor name="m" joint="{motor}"/></actuator>'
        text = (tmp_path / "bar.xml").read_text().replace("</mujoco>", f"{drive}</mujoco>")
    bar = ts.load(text, closures="embed")
    assert bar.dof_names == (motor,)
    assert f"with independent {motor};" in repr(bar)


@pytest.mark.parametrize("name", ["crank", "coupler", "rocker"])
def test_a_named_joint_is_independent_whatever_is_actuated(name: str) -> None:
    for motor in ("crank", "rocker"):
        assert ts.load(four_bar(motor), closures="embed", independent=(name,)).dof_names == (name,)


@pytest.mark.parametrize(
    ("independent", "closures", "message"),
    [
        ("crank", "embed", r"independent=\('crank',\)"),
        (("crank", "rocker"), "embed", "does not determine"),
        (("cranc",), "embed", "'cranc'"),
        (("crank",), "cut", "no embedded loop"),
    ],
)
def test_names_that_cannot_be_independent_are_refused(independent, closures, message) -> None:
    with pytest.raises(MechanismError, match=message):
        ts.load(four_bar(None), closures=closures, independent=independent)


def test_mirrored_legs_have_mirrored_independent_dofs() -> None:
    names = [name for name in biped().dof_names if name[:2] in ("l_", "r_")]
    left, right = ([name[2:] for name in names if name[:2] == side] for side in ("l_", "r_"))
    assert left == right != []


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ["spatial four-bar", "six-bar", "Stewart platform, leg lengths"])
def test_random_states_of_loops_are_away_from_singular_ones(name: str) -> None:
    mech = LINKAGES[name]()
    draw = lambda: mech.random_state(60, generator=torch.Generator().manual_seed(4))[0]  # noqa: E731
    q = draw()
    assert torch.equal(q, draw())
    unit = torch.eye(mech.num_dof, dtype=q.dtype)[:, None]
    assert ts.expand_velocity(mech, q, unit).abs().max() <= MAX_RATE_RATIO
    assert ts.close_loops(mech, q).distance.max() < 1e-12
    with torch.device("cpu"):  # a default device
        assert torch.equal(q, draw())


def test_steps_to_a_closed_configuration_end_for_each_sample(monkeypatch) -> None:
    """The number of rows that are evaluated is that of each sample alone, and so is the result."""
    mech, evaluated = LINKAGES["six-bar"](), []
    rows = closed_states.all_rows

    def counted(mech, tree, nodes, q):
        evaluated.append(q.shape[:-1].numel())
        return rows(mech, tree, nodes, q)

    monkeypatch.setattr(closed_states, "all_rows", counted)
    q = torch.rand(12, mech.num_q, generator=torch.Generator().manual_seed(0), dtype=mech.dtype)
    together = closed_states.closed_samples(mech, q)
    total = sum(evaluated)
    evaluated.clear()
    alone = torch.stack([closed_states.closed_samples(mech, x) for x in q])
    assert torch.allclose(together, alone, rtol=0, atol=1e-12)
    assert sum(evaluated) <= total <= 2 * sum(evaluated)
