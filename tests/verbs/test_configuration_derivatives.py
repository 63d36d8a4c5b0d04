"""Derivatives of integrate and difference are those of the functions, and Pinocchio's."""

import numpy as np
import pinocchio as pin
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.func import jacrev

import torchsko as ts
from tests.linkages import four_bar, stewart
from tests.strategies import agree, any_mechanisms, seeds


def states(mech: ts.Mechanism, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    (one, two), _ = mech.random_state(2, generator=g)
    return one, two, 0.4 * torch.randn(mech.num_dof, generator=g, dtype=one.dtype)


def check(mech: ts.Mechanism, seed: int, tolerance: float, size: float = 1.0) -> None:
    q, end, v = states(mech, seed)
    v = size * v
    zero, there = torch.zeros_like(v), ts.integrate(mech, q, v)

    def moved(dq: Tensor, dv: Tensor) -> Tensor:
        near = ts.integrate(mech, q, dq)
        return ts.difference(mech, there, ts.integrate(mech, near, v + dv))

    def between(a: Tensor, b: Tensor) -> Tensor:
        return ts.difference(mech, ts.integrate(mech, q, a), ts.integrate(mech, end, b))

    for fn, found in (
        (moved, ts.integrate_derivatives(mech, q, v)),
        (between, ts.difference_derivatives(mech, q, end)),
    ):
        for expected, x in zip(jacrev(fn, (0, 1))(zero, zero), found, strict=True):
            agree(x, expected, tolerance)


@given(any_mechanisms(4, 4), seeds)
def test_derivatives_are_those_of_the_functions(mech, seed):
    check(mech, seed, 1e-9)


@pytest.mark.parametrize("make", [four_bar, stewart])
def test_derivatives_along_the_closed_manifold(make):
    check(make(), 1, 1e-6, 0.05)


def test_of_a_floating_robot_they_are_pinocchios():
    mech = ts.load(ts.robots.panda, floating_base=True)
    model = pin.buildModelFromUrdf(str(ts.robots.panda), pin.JointModelFreeFlyer())
    there = ts.conventions("pinocchio", mech, list(model.names)[1:])
    q, end, v = states(mech, 3)
    unit = torch.eye(mech.num_dof, dtype=q.dtype)
    T = there.qd_to(q.expand(len(unit), -1), unit).T.numpy()  # our rates to Pinocchio's
    a, b = (there.q_to(x).numpy() for x in (q, end))
    step = T @ v.numpy()
    ours = [*ts.integrate_derivatives(mech, q, v), *ts.difference_derivatives(mech, q, end)]
    theirs = [*pin.dIntegrate(model, a, step), *pin.dDifference(model, a, b)]
    for x, y in zip(ours, theirs, strict=True):
        agree(x, torch.tensor(np.linalg.solve(T, y @ T)), 1e-10)
