"""Steps of integrators as functions of which kernels are made."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from torchsko.fused.workshop import Eager
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout.ends import chosen, quiet
from torchsko.rollout.integrators import INTEGRATORS
from torchsko.verbs.dynamics import forward_dynamics


def step_of(method: str) -> Eager:
    """The step of an integrator by name, joint forces held."""

    def step(
        mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor, dt: Tensor, f_ext: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        def accelerate(
            mech: Mechanism, t: float, q: Tensor, qd: Tensor, force: Tensor | None = None
        ) -> Tensor:
            return forward_dynamics(mech, q, qd, tau if force is None else tau + force, f_ext)

        # A trailing axis, so that steps of single samples meet their vectors.
        return INTEGRATORS[method](mech, accelerate, 0.0, q, qd, cast(Any, dt[..., None]))

    return step


def ending(move: Eager) -> Eager:
    """A step of samples that may have ended: going is 0 then, and else 1; see `Ends`."""

    def step(
        mech: Mechanism,
        q: Tensor,
        qd: Tensor,
        going: Tensor,
        tau: Tensor,
        dt: Tensor,
        q_rest: Tensor,
        qd_rest: Tensor,
    ) -> tuple[Tensor, Tensor]:
        goes, none = going > 0, qd[..., :0]
        seen = chosen(goes, (q, qd, none), (q_rest, qd_rest, none))[:2]
        end = move(mech, *seen, quiet(goes, tau), dt)
        return chosen(goes, (*end, none), (q, qd, none))[:2]

    return step
