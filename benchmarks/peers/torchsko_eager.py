"""Eager functions of torchsko, with their custom backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import Case, Entry, tangent
from torch import Tensor

import torchsko as ts

NAME = "torchsko eager"


def enter(case: Case) -> list[Entry]:
    """All verbs."""
    mech = case.robot.mech.to(case.dtype)
    verbs: dict[str, Callable[..., Tensor]] = {
        "inverse": lambda q, qd, x: ts.inverse_dynamics(mech, q, qd, x),
        "forward": lambda q, qd, x: ts.forward_dynamics(mech, q, qd, x),
        "mass_matrix": lambda q, qd, x: ts.mass_matrix(mech, q),
    }
    return entries(NAME, case, verbs)


def entries(name: str, case: Case, verbs: dict[str, Callable[..., Tensor]]) -> list[Entry]:
    """Entries of functions of (q, qd, x) in torchsko's conventions; the VJP by autograd."""

    def plain(verb: str) -> Entry:
        fn, x = verbs[verb], case.qdd if verb == "inverse" else case.tau

        def run() -> Tensor:
            with torch.no_grad():
                return fn(case.q, case.qd, x)

        return Entry(name, verb, run, lambda y: (_checked(case, y),))

    def run_vjp() -> tuple[Tensor, ...]:
        inputs = [x.detach().requires_grad_() for x in (case.q, case.qd, case.tau)]
        qdd = verbs["forward"](*inputs)
        return (qdd.detach(), *torch.autograd.grad(qdd, inputs, case.cotangent))

    vjp = Entry(name, "forward_vjp", run_vjp, lambda y: gradients(case, y))
    return [*(plain(verb) for verb in verbs), vjp]


def gradients(case: Case, results: Any) -> tuple[Tensor, ...]:
    """Accelerations and their gradients at the checked states, the one to q in the tangent."""
    qdd, dq, dqd, dtau = (_checked(case, x) for x in results)
    return qdd, tangent(case.robot.mech, case.q[case.checked].double(), dq), dqd, dtau


def _checked(case: Case, x: Any) -> Tensor:
    return x.detach()[case.checked].double()
