r"""Forward dynamics as the solution of an equation: inverse dynamics less the forces.

.. math:: R(\ddot q;\, q, \dot q, T, f_{ext}, parameters) = ID(q, \dot q, \ddot q, f_{ext}) - T, \qquad
    R_{\ddot q} = \mathcal{M},

with MM the mass matrix, its own transpose. Inputs are all parameters of a mechanism, those that no
residual reads among them: none can be forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from torchsko import algorithms
from torchsko.bridge.assemble import model_at
from torchsko.implicit.equation import implicit
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism

_FIXED = tuple(field.name for field in fields(Mechanism) if field.name not in PARAMETERS)


def accelerations(
    mech: Mechanism, q: Tensor, qd: Tensor, gen_force: Tensor, f_ext: Tensor | None
) -> Tensor:
    """Forward dynamics of the assembled model; derivatives by the equation above.

    Args:
        mech: the mechanism.
        q: `[*batch, num_q]`.
        qd: `[*batch, num_dof]`.
        gen_force: joint forces less passive ones, `[*batch, num_dof]`.
        f_ext: `[*batch, num_bodies, 6]`, or None.

    Returns:
        qdd, `[*batch, num_dof]`.
    """
    balance = _Balance({name: getattr(mech, name) for name in _FIXED})
    forces = () if f_ext is None else (f_ext,)
    parameters = [getattr(mech, name) for name in PARAMETERS]
    return implicit(balance, *parameters, q, qd, gen_force, *forces)


@dataclass(frozen=True, eq=False)
class _Balance:
    """The equation, of (*parameters, q, qd, gen_force, [f_ext]).

    Attributes:
        fixed: fields of the mechanism that are no parameters. What is held besides the inputs no
            checkpoint can let go, so no tensor of a parameter is.
    """

    fixed: dict[str, Any]

    def split(self, inputs: tuple[Tensor, ...]) -> tuple[Mechanism, tuple[Tensor, ...]]:
        """The mechanism with these parameters, and the other inputs."""
        named: dict[str, Any] = dict(zip(PARAMETERS, inputs, strict=False))
        return Mechanism(**self.fixed, **named), inputs[len(named) :]

    def solution(self, *inputs: Tensor) -> Tensor:
        """Qdd, by the articulated-body sweeps."""
        mech, (q, qd, gen_force, *forces) = self.split(inputs)
        return algorithms.forward_dynamics(model_at(mech, q, qd, *forces), gen_force)

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Inverse dynamics less the forces."""
        mech, (q, qd, gen_force, *forces) = self.split(inputs)
        return algorithms.inverse_dynamics(model_at(mech, q, qd, *forces), x) - gen_force

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """MM^-1 rhs."""
        mech, (q, *_) = self.split(inputs)
        return algorithms.innovations(model_at(mech, q)).solve(rhs)
