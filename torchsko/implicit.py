r"""Derivatives of forward dynamics without differentiating its recursion.

From T = ID(q, qd, qdd) at the solution qdd = FD(q, qd, T), with MM the mass matrix,

.. math::
    d\ddot q = \mathcal{M}^{-1} [\, dT - \partial ID \cdot d(q, \dot q, f_{ext}, parameters)\,],

so the cotangent lambda of qdd gives :math:`\mu = \mathcal{M}^{-1}\lambda` to T, and minus the
vector-Jacobian product of inverse dynamics with cotangent mu, at fixed qdd, to everything else. Saved
are the inputs and qdd; the articulated inertias leave no tape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchsko import algorithms
from torchsko.algorithms import innovations
from torchsko.bridge.assemble import assemble
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism
from torchsko.precision import in_own_type

DIFFERENTIABLE = (
    "mass",
    "com",
    "inertia",
    "joint_rotation",
    "joint_position",
    "axis",
    "joint_parameters",
    "coupling_ratio",
    "coupling_offset",
    "armature",
    "gravity",
)
"""Parameters of a mechanism that its SKO model depends on."""

Residual = Callable[..., Tensor]


def accelerations(
    mech: Mechanism, q: Tensor, qd: Tensor, gen_force: Tensor, f_ext: Tensor | None
) -> Tensor:
    """Forward dynamics of the assembled model; derivatives by the identity above.

    Args:
        mech: the mechanism.
        q: `[*batch, num_q]`.
        qd: `[*batch, num_dof]`.
        gen_force: joint forces less passive ones, `[*batch, num_dof]`.
        f_ext: `[*batch, num_bodies, 6]`, or None.

    Returns:
        qdd, `[*batch, num_dof]`.
    """
    parameters = [getattr(mech, name) for name in DIFFERENTIABLE]
    if torch.compiler.is_compiling():
        # Dynamo cannot trace a Function that has both derivatives; the plain tape is right as well.
        return _plain(mech, q, qd, gen_force, f_ext, *parameters)
    return _Accelerations.apply(mech, q, qd, gen_force, f_ext, *parameters)


def _at(mech: Mechanism, parameters: tuple[Tensor, ...]) -> Mechanism:
    named = dict(zip(DIFFERENTIABLE, parameters, strict=True))
    return mech.replace(has_armature=mech.has_armature, aligned=mech.aligned, **named)


def _without_batches(mech: Mechanism) -> Mechanism:
    """The mechanism with zeros for batched parameters: the model is given its own, and reads no others.

    What a context holds besides `save_for_backward` no checkpoint can let go.
    """
    shapes = {name: getattr(mech, name).shape[-len(one) :] for name, one in PARAMETERS.items()}
    batched = {n: s for n, s in shapes.items() if getattr(mech, n).ndim > len(s)}
    if not batched:
        return mech
    zeros = {name: mech.gravity.new_zeros(shape) for name, shape in batched.items()}
    return mech.replace(has_armature=mech.has_armature, aligned=mech.aligned, **zeros)


def _plain(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    gen_force: Tensor,
    f_ext: Tensor | None,
    *parameters: Tensor,
) -> Tensor:
    return algorithms.forward_dynamics(assemble(_at(mech, parameters), q, qd, f_ext), gen_force)


def _balance(mech: Mechanism, qdd: Tensor, has_force: bool) -> Residual:
    """Inverse dynamics at fixed acceleration, as a function of (q, qd, [f_ext], *parameters)."""

    def force(q: Tensor, qd: Tensor, *rest: Tensor) -> Tensor:
        f_ext, parameters = (rest[0], rest[1:]) if has_force else (None, rest)
        return algorithms.inverse_dynamics(assemble(_at(mech, parameters), q, qd, f_ext), qdd)

    return force


class _Accelerations(torch.autograd.Function):
    """Forward dynamics with the derivatives of this module."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mech: Mechanism, *tensors: Any) -> Tensor:
        return _plain(mech, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        mech, q, qd, gen_force, f_ext, *parameters = inputs
        ctx.mech = _without_batches(mech)
        ctx.force_shape, ctx.has_force = gen_force.shape, f_ext is not None
        state = [q, qd, *([] if f_ext is None else [f_ext]), *parameters]
        ctx.save_for_backward(output, *state)
        ctx.save_for_forward(output, *state)

    @staticmethod
    @in_own_type
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        # Aliases: torch.func cannot wrap again what it saved at a level that has ended since.
        qdd, *state = (x.view_as(x) for x in ctx.saved_tensors)
        mu = _solve(ctx.mech, state, ctx.has_force, grad_outputs[0])
        pull = torch.func.vjp(_balance(ctx.mech, qdd, ctx.has_force), *state)[1]
        to_q, to_qd, *rest = pull(-mu)
        to_force = rest.pop(0) if ctx.has_force else None
        return None, to_q, to_qd, mu.sum_to_size(ctx.force_shape), to_force, *rest

    @staticmethod
    @in_own_type
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        # torch turns forward mode off in here, which would make jvp of jvp zero without a word. It is
        # turned on again for the levels outside; the one being differentiated is taken off first.
        with forward_ad._set_fwd_grad_enabled(True):
            saved = [_primal(x) for x in ctx.saved_tensors]
            tangents = [None if dx is None else _primal(dx) for dx in grad_inputs[1:]]
            return _push(ctx, saved, tangents)


def _primal(x: Tensor) -> Tensor:
    return forward_ad.unpack_dual(x, level=0).primal


def _push(ctx: Any, saved: list[Tensor], tangents: list[Tensor | None]) -> Tensor:
    """Tangent of qdd."""
    qdd, *state = saved
    dq, dqd, dT, df, *dparameters = tangents
    moved = [dq, dqd, *([df] if ctx.has_force else []), *dparameters]
    moved = [torch.zeros_like(x) if dx is None else dx for x, dx in zip(state, moved, strict=True)]
    # Forward levels do not nest in torch, so the product comes from transposing the transpose.
    pull = torch.func.vjp(_balance(ctx.mech, qdd, ctx.has_force), *state)[1]
    push = torch.func.vjp(pull, torch.zeros_like(qdd))[1]
    (dforce,) = push(tuple(moved))
    change = -dforce if dT is None else dT - dforce
    return _solve(ctx.mech, state, ctx.has_force, change)


def _solve(mech: Mechanism, state: list[Tensor], has_force: bool, x: Tensor) -> Tensor:
    """MM^-1 x at a state."""
    q, parameters = state[0], tuple(state[3 if has_force else 2 :])
    return innovations(assemble(_at(mech, parameters), q)).solve(x)
