"""Detection of singular hinges: joints without any inertia outboard."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.hinge_step import hinge_steps, packed_hinges
from torchsko.algebra.topology.sharing import total
from torchsko.bridge.assemble import assemble
from torchsko.errors import Fields
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism

ROUNDING = 64 * torch.finfo(torch.float64).eps
"""A hinge inertia below this fraction of its articulated inertia is rounding."""


NOTHING = 1e-300
"""Smallest hinge inertia whose reciprocal can be multiplied without overflow."""


@verb
@torch.no_grad()
def mark_singular_joints(mech: Mechanism) -> Mechanism:
    """The mechanism with its singular joints detected again.

    A hinge inertia D(k) vanishes in general for a massless link at the end of a chain, for example.
    Inverse dynamics and the mass matrix are then well defined, but no acceleration follows from a force. The
    test runs here, at three random states in float64, so that no later call reads
    values. Call it after `replace` has given such a link mass or armature.

    Args:
        mech: a mechanism; its parameters may carry batch dimensions.

    Returns:
        The same mechanism with `singular_joints` and `bare_joints` set: joints that are singular or bare in
        at least one of its robots.
    """
    exact = mech.to(torch.float64)
    generator = torch.Generator(device=mech.device).manual_seed(0)
    batch = (3, *mech.batch_shape)
    model = assemble(exact, exact.random_state(*batch, generator=generator)[0])
    return mech.replace(
        singular_joints=_named(mech, model, _vanishing_hinges(model, batch)),
        bare_joints=_named(mech, model, _bare_hinges(model, batch)),
    )


def undefined(name: str, joints: Sequence[str]) -> Fields:
    """Fields of the error for joints that no inertia resists."""
    return (
        f"forward dynamics of {name!r} is undefined: no inertia resists joint "
        f"{', '.join(map(repr, joints))}.",
        "Its outboard bodies have no mass, only mass that other joints leave free, or an unphysical inertia. "
        "A force there gives no finite acceleration; inverse dynamics and the mass matrix are defined.",
        "Give the link mass, or the joint armature (mech.replace(armature=...)), then call "
        "torchsko.mark_singular_joints(mech). After lock or append that call alone may suffice.",
    )


def _named(mech: Mechanism, model: SKOModel, verdict: Tensor) -> tuple[str, ...]:
    """Names of the joints in a mask `[num_bodies]`, breadth first."""
    flags = model.layout.tree_order(verdict, -1).tolist()
    return tuple(name for name, bad in zip(mech.tree_joint_names, flags, strict=True) if bad)


def _bare_hinges(model: SKOModel, batch: tuple[int, ...]) -> Tensor:
    """Mask of hinges whose H M H* + S is at most rounding of M."""
    D = packed_hinges(model).inertia(model.inertia)[1]
    return _in_all_states(_is_rounding(D, model.inertia), batch)


def _vanishing_hinges(model: SKOModel, batch: tuple[int, ...]) -> Tensor:
    """Mask of hinges whose hinge inertia is at most rounding of their articulated inertia.

    One sweep of the Riccati recursion. A hinge detected as singular is locked, so that it does not affect the
    test of the hinges inboard of it.
    """
    layout, hinges = model.layout, hinge_steps(model)
    edges, M_levels = model.edge_weight.split(layout.level_sizes), layout.split(model.inertia)
    verdicts: list[Tensor] = []
    handed: Tensor | None = None
    for depth in reversed(range(len(edges))):
        P = M_levels[depth] if handed is None else M_levels[depth] + handed
        hinge, link, hinge_link = hinges[depth], layout.links[depth], layout.hinge_links[depth]
        U, D = hinge.inertia(P)
        _, P_plus = hinge.cross_single(P, U, D)
        bad = _in_all_states(_is_rounding(D, total(hinge.share, P)), batch)
        verdicts.append(bad)
        if depth:
            P_plus = torch.where(bad[:, None, None], P, P_plus)
            handed = link.sum_to_parents(edges[depth].congruence(P_plus))
            if hinge.share is not None and hinge_link is not None:
                _, released = hinge.shared_gain(edges[depth].up(U), D)
                released = torch.where(hinge.share.once(bad[:, None, None]), 0.0, released)
                handed = handed - hinge_link.sum_to_parents(released)
    return torch.cat(verdicts[::-1])


def _in_all_states(verdict: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Reduce masks that broadcast to `[3 states, *batch, n]`: true in all states of any robot, `[n]`."""
    count = verdict.shape[-1]
    return verdict.expand(*batch, count).all(0).reshape(-1, count).any(0)


def _is_rounding(D: Tensor, P: Tensor) -> Tensor:
    """True where D = H P H* `[*, n, d, d]` is singular to the precision of P; false where not finite."""
    largest = (ROUNDING * P.abs().amax((-1, -2))).clamp(min=NOTHING)
    if D.shape[-1] == 1:
        return D[..., 0, 0] <= largest
    finite = D.isfinite().all(-1).all(-1)  # eigenvalue routines return numbers for nan
    smallest = torch.linalg.eigvalsh(torch.where(finite[..., None, None], D, 0.0))[..., 0]
    return finite & (smallest <= largest)
