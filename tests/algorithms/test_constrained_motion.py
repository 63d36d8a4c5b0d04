"""The equation of constrained motion, solved with its matrix and with the transpose of it."""

import pytest
import torch
from torch.testing import assert_close

from tests.strategies import random_model
from torchsko.algebra.recursions.innovations import swept_innovations
from torchsko.algebra.topology.tree import Tree
from torchsko.algorithms.constrained_motion import Multipliers


@pytest.mark.parametrize("redundant", [False, True])
def test_the_transposed_solution_is_the_adjoint_of_the_solution(redundant):
    model = random_model(Tree.from_parents([-1, 0, 0]), [3, 4, 3], [2, 3, 1])
    g = torch.Generator().manual_seed(0)
    G, x, y = (torch.randn(n, m, generator=g).double() for n, m in ((4, 6), (10, 5), (10, 5)))
    if redundant:
        G[3] = G[0] - 2 * G[1]
    mask = torch.tensor([1.0, 1.0, 0.0, 1.0]).double()
    solver = Multipliers.of(swept_innovations(model), G, mask, redundant)
    forward, back = solver.solve(y, transposed=False), solver.solve(x, transposed=True)
    assert_close(x.mT @ forward, back.mT @ y, rtol=1e-9, atol=1e-9)
