"""A user's own SKO model that is no robot (examples/05): a heat network, against Kirchhoff's laws."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchsko as ts
from tests.strategies import BATCHES

EXAMPLE = runpy.run_path(
    str(Path(__file__).parent.parent / "examples" / "05_own_sko_model.py"), run_name="example"
)
heat_sink, temperatures, kirchhoff = (
    EXAMPLE[name] for name in ("heat_sink", "temperatures", "kirchhoff")
)
NOTHING = torch.zeros(5, dtype=torch.float64)


def network(batch: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    leak, bar, power = (
        0.1 + torch.rand(*batch, 5, generator=g, dtype=torch.float64) for _ in "lbp"
    )
    return leak, bar, power


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_forward_dynamics_solves_kirchhoffs_equations(batch):
    data = network(batch)
    model = heat_sink(*data)
    theta = temperatures(model, ts.algorithms.forward_dynamics(model, NOTHING))
    torch.testing.assert_close(theta, kirchhoff(*data)[0])


def test_operational_space_compliance_is_the_matrix_of_thermal_resistances():
    data = network((3,))
    model, resistance = heat_sink(*data), torch.linalg.inv(kirchhoff(*data)[1])
    for i in range(5):
        for j in range(5):
            omega = ts.algorithms.compliance_block(model, i, j)
            torch.testing.assert_close(omega[..., 0, 0], resistance[..., i, j])


def test_a_prescribed_drop_takes_the_heat_that_balances_it():
    leak, bar, power = network(())
    model = heat_sink(leak, bar, power)
    wanted = torch.full((5,), -0.5, dtype=torch.float64)
    drop, pump = ts.algorithms.hybrid_dynamics(model, NOTHING, wanted, prescribed=["plate"])
    theta = temperatures(model, drop)
    # All that enters plate and beyond leaves into the air, through the bar, or with the pump.
    outboard = torch.tensor([0.0, 1, 1, 1, 1], dtype=torch.float64)
    balance = (outboard * (power - leak * theta)).sum() - bar[1] * drop[1] + pump[1]
    torch.testing.assert_close(drop[1], wanted[1])
    torch.testing.assert_close(balance, torch.zeros_like(balance))


def test_temperatures_have_gradients_to_every_property_of_the_network():
    def steady(*data: Tensor) -> Tensor:
        model = heat_sink(*data)
        return temperatures(model, ts.algorithms.forward_dynamics(model, NOTHING))

    assert torch.autograd.gradcheck(steady, tuple(x.requires_grad_() for x in network((2,))))


def test_the_example_runs(capsys):
    EXAMPLE["main"]()
    assert "plate temperature per bar conductance" in capsys.readouterr().out
