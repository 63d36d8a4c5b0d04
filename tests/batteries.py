"""What every function of a model must satisfy whatever it computes: derivatives, vmap, compile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.strategies import random_model
from torchsko.algebra.operators.edges import DenseEdges
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.topology.tree import Tree

BRANCHED = Tree.from_parents([1, -1, 1, 2, 2, -1])
"""Two bases, two branchings, a numbering that is not breadth first."""


def ramp(model: SKOModel, phase: float = 0.0) -> Tensor:
    """Some dof vector `[num_dof]`, the same in every call."""
    return (torch.arange(model.num_dof, dtype=torch.float64) + phase).cos()


class CountOperations(TorchDispatchMode):
    """Counts the ATen operations run inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.total += 1
        return func(*args, **(kwargs or {}))


ModelFunction = Callable[[SKOModel], Tensor | tuple[Tensor, ...]]


def branched_model(
    batch: tuple[int, ...] = (), armature: bool = True, tree: Tree = BRANCHED
) -> SKOModel:
    """A small model with ragged blocks."""
    n = tree.num_nodes
    return random_model(tree, [3, 4, 2, 3, 3, 2][:n], [1, 2, 1, 3, 1, 1][:n], batch, 7, armature)


def check_transforms(function: ModelFunction, armature: bool = True) -> None:
    """Reverse and forward derivatives are right, vmap is the batch, compile is eager."""
    single, batched = branched_model((), armature), branched_model((3,), armature)
    call = _of_tensors(function, single)
    leaves = [x.requires_grad_() for x in _tensors(single)]
    assert torch.autograd.gradcheck(call, leaves, check_forward_ad=True, fast_mode=True)
    _same(torch.vmap(call)(*_tensors(batched)), call(*_tensors(batched)))
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    _same(compiled(*_tensors(batched)), call(*_tensors(batched)))


def _tensors(model: SKOModel) -> list[Tensor]:
    fields = [model.edge_weight.dense(), model.joint_map, model.inertia, model.coriolis_accel]
    fields += [model.gyro_force, *([] if model.armature is None else [model.armature])]
    return [x.clone() for x in fields]


def _of_tensors(function: ModelFunction, like: SKOModel) -> Callable[..., Tensor]:
    """The function of a model's tensors; inertias are made symmetric, as models require."""

    def call(weight: Tensor, H: Tensor, M: Tensor, a: Tensor, b: Tensor, S: Tensor | None = None):
        model = replace(
            like,
            edge_weight=DenseEdges(weight),
            maps=H,
            inertia=(M + M.mT) / 2,
            coriolis_accel=a,
            gyro_force=b,
            armature=S,
        )
        return function(model)

    return call


def _same(actual: Tensor | tuple[Tensor, ...], expected: Tensor | tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
