"""Configurations that close the loops of a mechanism: the nearest one, and random ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]

from torchsko.mechanism.configuration import subtract
from torchsko.mechanism.coordinates import independent_q
from torchsko.mechanism.data import MechanismData, uncoupled
from torchsko.mechanism.loops.embedded_loops import EmbeddedNode, add_tree_step
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import matvec

CLOSING_STEPS = 40
"""Gauss-Newton steps to the nearest closed configuration."""

CONVERGED = 8.0
"""Residual in units of rounding at which the search ends [m or 1]."""

MAX_STEP = 0.5
"""Largest change of a dof in one step [rad or m]."""

CLOSED_RESIDUAL = 1e-9
"""Residual below which loops are closed [m or 1], in float64."""

SHRINKAGE = 6
"""How often a random configuration that cannot be closed is moved half way to the reference."""


MAX_RATE_RATIO = 50.0
"""Largest rate of a joint per rate of an independent one in random configurations [rad or m per rad or m]."""

REDRAWS = 16
"""How often random configurations near singular ones are drawn again."""


def all_rows(
    mech: MechanismData, tree: MechanismData, nodes: Sequence[EmbeddedNode], q: Tensor
) -> tuple[Tensor, Tensor]:
    """Residuals `[*batch, rows]` of all loops, and their Jacobian for all open dofs."""
    residuals, jacobians = [], []
    count = mech.num_tree_dof if mech.coupling is None else mech.coupling.num_dof
    for node in nodes:
        rows = node.rows(mech, tree, q, None)
        index = torch.full((count,), len(node.open_dofs), device=q.device)
        index[node.open_dofs] = torch.arange(len(node.open_dofs), device=q.device)
        residuals.append(rows.residual)
        jacobians.append(torch.nn.functional.pad(rows.jacobian, (0, 1)).index_select(-1, index))
    return torch.cat(residuals, -1), torch.cat(jacobians, -2)


def nearest_closed(
    mech: MechanismData, tree: MechanismData, nodes: Sequence[EmbeddedNode], q: Tensor
) -> tuple[Tensor, Tensor]:
    """Configurations of the tree after Gauss-Newton steps of least norm, and their largest residuals.

    Each sample ends where its loops are closed, since few samples take most of the steps. Samples of a batch
    of mechanisms end together. Where values cannot be read, all steps are made.
    """
    tolerance = CONVERGED * torch.finfo(q.dtype).eps
    with torch.no_grad():
        found = q if tree.batch_shape else q.reshape(-1, q.shape[-1])
        at, q_left = torch.arange(len(found), device=q.device), found
        for _ in range(CLOSING_STEPS):
            phi, G = all_rows(mech, tree, nodes, q_left)
            is_open = concrete_values(phi.abs().amax(-1) >= tolerance)
            if is_open is not None and not is_open.any():
                break
            if is_open is not None and not tree.batch_shape:
                left = torch.from_numpy(is_open)
                at, q_left, phi, G = at[left], q_left[left], phi[left], G[left]
            q_left = add_tree_step(tree.joints, q_left, _closing_step(mech, phi, G))
            found = q_left if tree.batch_shape else found.index_copy(0, at, q_left)
        found = found.reshape(q.shape)
        return found, all_rows(mech, tree, nodes, found)[0].abs().amax(-1)


def _closing_step(mech: MechanismData, phi: Tensor, G: Tensor) -> Tensor:
    """A damped Gauss-Newton step of the tree, `[*batch, num_tree_dof]`."""
    eps = torch.finfo(phi.dtype).eps
    # The damping vanishes with the residual, so that convergence is quadratic where rows are
    # independent and steps stay small near singular configurations.
    damping = (phi.square().sum(-1)[..., None, None] + eps * 100).clamp_max(1e-2)
    W = G @ G.mT + damping * torch.eye(G.shape[-2], dtype=G.dtype, device=G.device)
    step = -matvec(G.mT, torch.linalg.solve(W, phi))
    step = step * (MAX_STEP / step.abs().amax(-1, keepdim=True).clamp_min(MAX_STEP))
    return step if mech.coupling is None else mech.coupling.tree_rates(step, mech.coupling_ratio)


def closed_samples(mech: MechanismData, q: Tensor) -> Tensor:
    """Closed configurations near these, `[*batch, num_q]`; the reference where there is none."""
    closing, tree = mech.closing, uncoupled(mech)
    assert closing is not None
    open_mech = replace(mech, closing=None)
    reference = q.new_tensor(closing.reference)
    start = coupled_configuration(mech, reference.expand(q.shape))
    toward = subtract(tree, start, coupled_configuration(mech, q))
    found, is_open = start, torch.ones(q.shape[:-1], dtype=torch.bool, device=q.device)
    for _ in range(SHRINKAGE):
        tried, residual = nearest_closed(
            open_mech, tree, closing.nodes, add_tree_step(tree.joints, start, toward)
        )
        is_new = is_open & (residual < closed_residual(q))
        found = torch.where(is_new[..., None], tried, found)
        is_open = is_open & ~is_new
        if concrete_values(is_open.any()) is not None and not is_open.any():
            break
        toward = torch.where(is_open[..., None], toward / 2, 0.0)  # the reference is closed
    return independent_q(mech, found)


def regular_samples(mech: MechanismData, draw: Callable[[], Tensor]) -> Tensor:
    """Random closed configurations away from singular ones, `[*batch, num_q]`.

    Samples in which a joint moves more than `MAX_RATE_RATIO` times as fast as an independent one are drawn
    again. After `REDRAWS` draws the least singular one is taken. Compilers and vmap draw once.
    """
    q = closed_samples(mech, draw())
    ratio = _rate_ratio(mech, q)
    for _ in range(REDRAWS):
        is_singular = ratio > MAX_RATE_RATIO
        if not _has_values(ratio) or not is_singular.any():
            break
        other = closed_samples(mech, torch.where(is_singular[..., None], draw(), q))
        other_ratio = _rate_ratio(mech, other)
        is_better = is_singular & (other_ratio < ratio)
        q = torch.where(is_better[..., None], other, q)
        ratio = torch.where(is_better, other_ratio, ratio)
    return q


def _has_values(x: Tensor) -> bool:
    """False under a compiler, a trace or a vmap, where the number of draws cannot depend on values."""
    compiled = torch.compiler.is_compiling() or is_tracing()
    return not compiled and type(x) is Tensor and not is_functorch_wrapped_tensor(x)


def _rate_ratio(mech: MechanismData, q: Tensor) -> Tensor:
    """Largest entry of X, `[*batch]`; infinite where it is not defined."""
    assert mech.closing is not None
    X = mech.closing.tree_matrix(mech, uncoupled(mech), coupled_configuration(mech, q))
    return X.abs().amax((-1, -2)).nan_to_num(nan=torch.inf)


def closed_residual(q: Tensor) -> float:
    """Residual below which loops are closed, in the dtype of q [m or 1]."""
    return CLOSED_RESIDUAL * (1.0 if q.dtype == torch.float64 else 1e4)


def coupled_configuration(mech: MechanismData, q: Tensor) -> Tensor:
    """Configuration of the tree, without the derivatives along the manifold."""
    if mech.coupling is None:
        return q
    return mech.coupling.tree_q(q, mech.coupling_ratio, mech.coupling_offset)
