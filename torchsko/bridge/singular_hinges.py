"""The verdict on a mechanism's hinges: which of them no inertia resists."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.hinge_step import hinge_steps, packed_hinges
from torchsko.bridge.assemble import assemble
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism

ROUNDING = 64 * torch.finfo(torch.float64).eps
"""A hinge inertia below this share of the inertia it is taken from is rounding."""


NOTHING = 1e-300
"""A hinge inertia below this has no reciprocal that other numbers could be multiplied with."""


@verb
@torch.no_grad()
def checked(mech: Mechanism) -> Mechanism:
    """The mechanism with the verdict on its hinges made anew: which of them have no inertia at all.

    A hinge inertia D(k) that vanishes in general (a massless link at the end of a chain, say) leaves
    inverse dynamics and the mass matrix well defined, but no acceleration follows from a force. The
    verdict is reached here, at three random states in float64, so that no later call has to look at
    values. Call it after `replace` has given such a link mass or armature.

    Args:
        mech: a mechanism; its parameters may carry batch dimensions.

    Returns:
        The same mechanism with `singular_joints` and `bare_joints` set: the joints that are so in any
        of its robots.
    """
    exact = mech.to(torch.float64)
    generator = torch.Generator(device=mech.device).manual_seed(0)
    batch = (3, *mech.batch_shape)
    model = assemble(exact, exact.random_state(*batch, generator=generator)[0])
    return mech.replace(
        singular_joints=_named(mech, model, _vanishing_hinges(model, batch)),
        bare_joints=_named(mech, model, _bare_hinges(model, batch)),
    )


def undefined(name: str, joints: Sequence[str]) -> str:
    """Message that forward dynamics do not exist, as no inertia resists some joints."""
    return (
        f"forward dynamics of {name!r} is undefined: no inertia resists joint "
        f"{', '.join(map(repr, joints))}.\n"
        "Outboard of it is no mass, only mass that other joints let go free, or an inertia that no rigid "
        "body has, so a force there gives no finite acceleration (inverse dynamics and the mass matrix "
        "are fine).\n"
        "Give the link mass, or the joint armature (mech.replace(armature=...)), then call "
        "torchsko.checked(mech); that alone where lock or append has changed it since it was loaded."
    )


def _named(mech: Mechanism, model: SKOModel, verdict: Tensor) -> tuple[str, ...]:
    """Names of the joints of a verdict `[num_bodies]`, breadth first."""
    flags = model.layout.tree_order(verdict, -1).tolist()
    return tuple(name for name, bad in zip(mech.tree_joint_names, flags, strict=True) if bad)


def _bare_hinges(model: SKOModel, batch: tuple[int, ...]) -> Tensor:
    """Where H M H* + S is no more than rounding of M."""
    D = packed_hinges(model).inertia(model.inertia)[1]
    return _in_all_states(_is_rounding(D, model.inertia), batch)


def _vanishing_hinges(model: SKOModel, batch: tuple[int, ...]) -> Tensor:
    """Where the hinge inertia is no more than rounding of the inertia it is taken from.

    One sweep of the Riccati recursion, in which a hinge found so is locked, so that what it does to
    the inertias inboard of it is not held against them.
    """
    layout, hinges = model.layout, hinge_steps(model)
    edges, M_levels = model.edge_weight.split(layout.level_sizes), layout.split(model.inertia)
    verdicts: list[Tensor] = []
    P_plus: Tensor | None = None
    for depth in reversed(range(len(edges))):
        P = M_levels[depth]
        if P_plus is not None:
            handed = edges[depth + 1].congruence(P_plus)
            P = P + layout.links[depth + 1].sum_to_parents(handed)
        D, _, P_plus = hinges[depth].cross(P)
        bad = _in_all_states(_is_rounding(D, P), batch)
        P_plus = torch.where(bad[:, None, None], P, P_plus)
        verdicts.append(bad)
    return torch.cat(verdicts[::-1])


def _in_all_states(verdict: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Verdicts `[3 states, *batch, n]`, or what broadcasts to that, as one of any robot `[n]`."""
    count = verdict.shape[-1]
    return verdict.expand(*batch, count).all(0).reshape(-1, count).any(0)


def _is_rounding(D: Tensor, P: Tensor) -> Tensor:
    """Whether D = H P H* `[*, n, d, d]` is singular to the precision of P; false where not finite."""
    largest = (ROUNDING * P.abs().amax((-1, -2))).clamp(min=NOTHING)
    if D.shape[-1] == 1:
        return D[..., 0, 0] <= largest
    finite = D.isfinite().all(-1).all(-1)  # eigenvalue routines answer nan with numbers
    smallest = torch.linalg.eigvalsh(torch.where(finite[..., None, None], D, 0.0))[..., 0]
    return finite & (smallest <= largest)
