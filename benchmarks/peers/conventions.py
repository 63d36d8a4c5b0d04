"""Maps between torchsko's velocities on a free base and those of other libraries.

A convention is linear at every state: velocity ``v = P(q) qd``, acceleration ``P qdd + c(q, qd)``
with c = P' qd, force ``P^-T tau``; everything else follows from P and c.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from cases import Case
from torch import Tensor

from torchsko.spatial.rotation import quaternion_to_matrix


class Convention:
    """One library's velocities at the states of a case, in double precision.

    Attributes:
        velocity: `[batch, num_dof]`, the library's.
        accel: likewise, the acceleration for inverse dynamics.
        force: likewise.
        cotangent: likewise, of the acceleration.
    """

    def __init__(self, case: Case, linear_first: bool = True, world: bool = False) -> None:
        """Prepare the inputs.

        Args:
            case: robot and states.
            linear_first: [v; omega] instead of [omega; v].
            world: v is that of the inertial frame (MuJoCo), not of the body.
        """
        self._case = case
        q, qd, qdd, tau, cotangent = (
            x.double() for x in (case.q, case.qd, case.qdd, case.tau, case.cotangent)
        )
        self._free = case.robot.floating_base and linear_first
        self._world = world
        self.velocity = self._forth(q, qd)
        self.accel = self._forth(q, qdd) + self._drift(q, qd)
        self.force = self._forth(q, tau)  # P is orthogonal, so P^-T is P
        self.cotangent = self._forth(q, cotangent)

    def inverse(self, force: Tensor) -> tuple[Tensor, ...]:
        """Forces in torchsko's convention, at the checked states."""
        return (self._back(self._q, force),)

    def forward(self, accel: Tensor) -> tuple[Tensor, ...]:
        """Accelerations likewise."""
        return (self._back(self._q, accel - self._drift(self._q, self._qd)),)

    def mass_matrix(self, M: Tensor) -> tuple[Tensor, ...]:
        """The mass matrix, P* M P."""
        half = self._back(self._q.unsqueeze(-2), M)
        return (self._back(self._q.unsqueeze(-2), half.mT),)

    def gradients(self, by_q: Tensor, by_velocity: Tensor, by_force: Tensor) -> tuple[Tensor, ...]:
        """Gradients to (q, qd, tau) of what the cotangent multiplies.

        ``by_q`` is the gradient to a configuration laid out as torchsko's, with the library's
        velocity and force held fixed.
        """
        cotangent = self._case.cotangent[self._case.checked].double()
        q, qd, tau = self._q, self._qd, self._case.tau[self._case.checked].double()
        accel = self._forth(q, self._case.answers["forward"][0]) + self._drift(q, qd)

        def inputs(q: Tensor, qd: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
            return self._forth(q, qd), self._forth(q, tau)

        def output(q: Tensor, qd: Tensor) -> Tensor:
            return self._back(q, accel - self._drift(q, qd))

        dq, dqd, dtau = torch.func.vjp(inputs, q, qd, tau)[1]((by_velocity, by_force))
        more_q, more_qd = torch.func.vjp(output, q, qd)[1](cotangent)
        return by_q + dq + more_q, dqd + more_qd, dtau

    @property
    def _q(self) -> Tensor:
        return self._case.q[self._case.checked].double()

    @property
    def _qd(self) -> Tensor:
        return self._case.qd[self._case.checked].double()

    def _forth(self, q: Tensor, x: Tensor) -> Tensor:
        if not self._free:
            return x
        angular, linear, rest = x[..., :3], x[..., 3:6], x[..., 6:]
        return torch.cat([self._turn(q, linear, lambda R: R), angular, rest], -1)

    def _back(self, q: Tensor, x: Tensor) -> Tensor:
        if not self._free:
            return x
        linear, angular, rest = x[..., :3], x[..., 3:6], x[..., 6:]
        return torch.cat([angular, self._turn(q, linear, lambda R: R.mT), rest], -1)

    def _turn(self, q: Tensor, x: Tensor, matrix: Callable[[Tensor], Tensor]) -> Tensor:
        if not self._world:
            return x
        return (matrix(quaternion_to_matrix(q[..., 3:7])) @ x.unsqueeze(-1)).squeeze(-1)

    def _drift(self, q: Tensor, qd: Tensor) -> Tensor:
        if not (self._free and self._world):
            return torch.zeros_like(qd)
        turned = self._turn(q, torch.linalg.cross(qd[..., :3], qd[..., 3:6]), lambda R: R)
        return torch.cat([turned, torch.zeros_like(qd[..., 3:])], -1)
