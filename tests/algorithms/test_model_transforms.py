"""Every algorithm on an SKO model under every transformation: derivatives, vmap, functorch, compile."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from tests.batteries import check_transforms, ramp
from tests.forms import in_form
from tests.strategies import random_model
from torchsko import algorithms
from torchsko.algebra.operators import logdepth
from torchsko.algebra.operators.edges import DenseEdges
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.innovations import swept_innovations
from torchsko.algebra.recursions.lyapunov import (
    backward_diag_of,
    backward_terms,
    forward_diag,
    forward_terms,
)
from torchsko.algebra.recursions.lyapunov_blocks import backward_block, forward_block
from torchsko.algebra.recursions.riccati import solve_riccati
from torchsko.algebra.topology.gathering import join
from torchsko.algebra.topology.tree import Tree
from torchsko.algorithms import bias_force, forward_dynamics, inverse_dynamics, mass_matrix

FUNCTIONS: dict[str, Callable[[SKOModel, Tensor], Tensor | tuple[Tensor, ...]]] = {
    "mass_matrix": lambda model, x: mass_matrix(model),
    "inverse_dynamics": inverse_dynamics,
    "forward_dynamics": forward_dynamics,
    "bias_force": lambda model, x: bias_force(model),
    "riccati": lambda model, x: solve_riccati(model).art_inertia,
    "solve": lambda model, x: swept_innovations(model).solve(x),
    "logdet": lambda model, x: swept_innovations(model).logdet(),
    "inverse": lambda model, x: swept_innovations(model).inverse(),
    "sqrt": lambda model, x: swept_innovations(model).sqrt(x),
    "whiten": lambda model, x: swept_innovations(model).whiten(x),
    "sqrt_transpose": lambda model, x: swept_innovations(model).sqrt_transpose(x),
    "whiten_transpose": lambda model, x: swept_innovations(model).whiten_transpose(x),
}


def lyapunov_blocks(model, diag, block, terms):
    layout, A, B = model.layout, model.edge_weight, DenseEdges(model.edge_weight.dense().cos())
    Y = diag(layout, A, model.inertia, B)
    # Forward blocks of unrelated nodes, such as 4 and 0, are constants, which gradcheck does not accept.
    pairs = ((4, 1), (1, 3)) if block is forward_block else ((4, 0), (4, 1), (1, 3))
    return *(block(layout, A, B, Y, *pair) for pair in pairs), *terms(layout, A, B, Y)


def logdepth_products(model):
    jumps, x = model.layout.jumps, model.coriolis_accel
    weights = logdepth.powers(jumps, model.edge_weight.dense())
    sweeps = (logdepth.gather(jumps, weights, x), logdepth.scatter(jumps, weights, x))
    diagonals = (logdepth.forward_diag, logdepth.backward_diag_of)
    return *sweeps, *(diag(jumps, weights, model.inertia) for diag in diagonals)


def scanned_actions(model, x):
    fac = algorithms.innovations(model, method="scan")
    actions = (fac.forward_dynamics, fac.solve, fac.sqrt, fac.whiten)
    actions += (fac.sqrt_transpose, fac.whiten_transpose)
    return *(act(x) for act in actions), fac.logdet()


def task_inertia(model, singular):
    J = torch.linspace(-1, 1, 2 * model.num_dof, dtype=torch.float64).cos().reshape(2, -1)
    compliance = algorithms.reflected_compliance(swept_innovations(model), J)
    return algorithms.invert_compliance(compliance, singular)


def extended_blocks(model):
    omega = algorithms.extended_compliance(model)
    return omega.block(3, 0), omega.block(4, 1), omega.dense()


MORE: dict[str, Callable[[SKOModel, Tensor], Tensor | tuple[Tensor, ...]]] = {
    "by_jacobian": lambda model, x: algorithms.mass_matrix_by_jacobian(model),
    "by_inverse_dynamics": lambda model, x: algorithms.mass_matrix_by_inverse_dynamics(model),
    "trace": lambda model, x: algorithms.mass_matrix_trace(model),
    "composite_inertia": lambda model, x: join(list(algorithms.composite_inertia(model))),
    "composite_inverse_dynamics": algorithms.composite_inverse_dynamics,
    "composite_forward_dynamics": algorithms.composite_forward_dynamics,
    "hybrid_dynamics": lambda model, x: algorithms.hybrid_dynamics(model, x, x.cos(), (0, 4, 5)),
    "certificate": lambda model, x: swept_innovations(model).hinge_certificate(),
    "scan": scanned_actions,
    "doubling": lambda model, x: logdepth_products(model),
    "forward_blocks": lambda model, x: lyapunov_blocks(
        model, forward_diag, forward_block, forward_terms
    ),
    "backward_blocks": lambda model, x: lyapunov_blocks(
        model, backward_diag_of, backward_block, backward_terms
    ),
    "extended_compliance": lambda model, x: extended_blocks(model),
    "task_inertia": lambda model, x: task_inertia(model, "nan"),
    "task_inertia_pinv": lambda model, x: task_inertia(model, "pinv"),
    "task_inertia_damped": lambda model, x: task_inertia(model, ("damped", 0.1)),
}
"""Functions whose laws have tests of their own; here only their transformations."""

TREE = Tree.from_parents([1, -1, 1])
SIZES, DOFS = [3, 2, 2], [2, 1, 0]


def blocks_and_function(name, armature=True):
    """The tensors of a ragged model, one per block, and a function of them through `from_blocks`."""
    model = random_model(TREE, SIZES, DOFS, (), 5, armature)
    layout, nodes = model.layout, range(3)

    def cut(packed, rows, cols):
        x = layout.tree_order(packed, -3)
        return [x[k, : rows[k], : cols[k]].clone().requires_grad_() for k in nodes]

    one = [1] * 3
    above = [SIZES[max(p, 0)] if p >= 0 else 0 for p in TREE.parent]
    fields = [
        cut(model.edge_weight.dense(), above, SIZES),
        cut(model.joint_map, DOFS, SIZES),
        cut(model.inertia, SIZES, SIZES),
        cut(model.coriolis_accel, SIZES, one),
        cut(model.gyro_force, SIZES, one),
        cut(model.armature, DOFS, one) if armature else [],
    ]
    x = torch.randn(model.num_dof, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def call(*tensors):
        *blocks, vector = tensors
        W, H, M, a, b, S = (blocks[3 * i : 3 * i + 3] for i in range(6))
        made = SKOModel.from_blocks(
            TREE,
            [None if p < 0 else w for p, w in zip(TREE.parent, W, strict=True)],
            H,
            [(m + m.mT) / 2 for m in M],
            [v[:, 0] for v in a],
            [v[:, 0] for v in b],
            [s[:, 0] for s in S] or None,
        )
        return FUNCTIONS[name](made, vector)

    return [x for field in fields for x in field] + [x.requires_grad_()], call


@pytest.mark.some(2)
@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_to_every_block_are_right(name, scalar):
    tensors, call = blocks_and_function(name)
    # Entry by entry in the dense reading; the scalar one along random directions.
    checks = {"check_forward_ad": True, "check_batched_grad": True}
    assert in_form(scalar, gradcheck)(call, tensors, fast_mode=scalar, **checks)


@pytest.mark.some(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives_to_every_block_are_right(name):
    tensors, call = blocks_and_function(name)
    assert gradgradcheck(call, tensors, fast_mode=True)


@pytest.mark.some(4)
@pytest.mark.parametrize("armature", [True, False])
@pytest.mark.parametrize("name", [*FUNCTIONS, *MORE])
def test_derivatives_vmap_and_compile(name, armature):
    """By day verbs stand for these functions; see tests/transforms."""
    function = {**FUNCTIONS, **MORE}[name]
    check_transforms(lambda model: function(model, ramp(model)), armature)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functorch_jacobians_agree_with_reverse_mode(name):
    tensors, call = blocks_and_function(name)
    with torch.no_grad():
        tensors = [x.detach() for x in tensors]
    expected = torch.autograd.functional.jacobian(lambda *x: _flat(call(*x)), tuple(tensors))
    places = tuple(range(len(tensors)))
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        jacobians = transform(lambda *x: _flat(call(*x)), argnums=places)(*tensors)
        torch.testing.assert_close(jacobians, expected)
    directions = tuple(torch.ones_like(x) for x in tensors)
    _, rate = torch.func.jvp(lambda *x: _flat(call(*x)), tuple(tensors), directions)
    torch.testing.assert_close(rate, sum(J.flatten(1).sum(-1) for J in expected))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_backward_can_be_repeated(name):
    tensors, call = blocks_and_function(name)
    total = _flat(call(*tensors)).sum()
    used = [x for x in tensors if x.numel()]
    first = torch.autograd.grad(total, used, retain_graph=True, allow_unused=True)
    second = torch.autograd.grad(total, used, allow_unused=True)
    for x, y in zip(first, second, strict=True):
        assert (x is None) == (y is None)
        if x is not None and y is not None:
            assert torch.equal(x, y) and bool(x.isfinite().all())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_over_blocks_is_the_batch(name):
    tensors, call = blocks_and_function(name)
    with torch.no_grad():
        many = [torch.stack([x, 1.1 * x]) for x in tensors]
        one_by_one = [_flat(call(*(x[i] for x in many))) for i in range(2)]
        together = torch.vmap(lambda *x: _flat(call(*x)))(*many)
    torch.testing.assert_close(together, torch.stack(one_by_one))


@pytest.mark.nightly
def test_a_model_can_be_made_from_blocks_inside_a_compiled_function():
    tensors, call = blocks_and_function("forward_dynamics")
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors), call(*tensors))


def _flat(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    parts = result if isinstance(result, tuple) else (result,)
    return torch.cat([x.flatten() for x in parts])
