"""Steps of integrators as functions for kernels."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from torchsko.fused.capture.arguments import Eager
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout.early_termination import mask_forces, select_running
from torchsko.rollout.integrators import step_of


def step_over(method: str, names: Sequence[str]) -> Eager:
    """The step of an integrator as a function of tensors in a given order.

    Args:
        method: name of the integrator.
        names: arguments of the step; with early termination also "going" (1, or 0 after the end), "q_rest"
            and "qd_rest".
    """
    move = step_of(method)

    def step(mech: Mechanism, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        given = dict(zip(names, tensors, strict=True))
        q, qd, f_ext = given["q"], given["qd"], given.get("f_ext")
        if "going" not in given:
            return move(mech, q, qd, given["tau"], given["dt"], f_ext)
        goes, none = given["going"] > 0, qd[..., :0]
        seen = select_running(goes, (q, qd, none), (given["q_rest"], given["qd_rest"], none))[:2]
        forces = mask_forces(goes, given["tau"]), given["dt"], mask_forces(goes, f_ext, 2)
        return select_running(goes, (*move(mech, *seen, *forces), none), (q, qd, none))[:2]

    return step
