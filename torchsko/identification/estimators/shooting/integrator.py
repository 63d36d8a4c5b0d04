r"""A robot with forces at its joints that moves under measured ones, and how its motion depends on numbers.

A step of length h is the midpoint rule, linearly implicit in friction, whose slope by velocity is D >= 0:

.. math::
    (M + \gamma h D) a &= \tau - C - f, \qquad v_m = v + \tfrac h2 a, \qquad
    q_m = q + \tfrac h2 (v + \gamma h a), \\
    (M_m + \gamma h D_m) b &= \tau_m - C_m - f_m + \gamma h D_m a, \qquad
    v' = v + h b, \qquad q' = q + h (v_m + \gamma h (b - a)),

M the mass matrix, C Coriolis, gravity and spring forces, f friction, with m at half the step: order 2 for any
:math:`\gamma`, and with :math:`\gamma = 1 - 1 / \sqrt 2` a velocity is forgotten within a step where friction
is steep beside inertia. (With 1/2 it would swing to and fro instead, and hide how fast a window starts.)
With x = (q, v), numbers p that joint forces Y p are linear in, and :math:`\ddot q` of the step, the motion
nearby obeys

.. math::
    \frac{d}{dt} \delta x = \begin{bmatrix} 0 & 1 \\ \partial_q \ddot q & \partial_v \ddot q \end{bmatrix}
    \delta x - \begin{bmatrix} 0 \\ M^{-1} Y \end{bmatrix} \delta p,

whose steps are those of the diagonally implicit method with this :math:`\gamma`, damped alike.

Reference: E. Hairer, G. Wanner, *Solving Ordinary Differential Equations II*, 2nd edition, Springer 1996,
sections IV.6 (SDIRK methods of order 2), IV.7 (linearly implicit methods).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from torchsko.errors import CompilerError, FusedError
from torchsko.fused.build.toolchain import find_toolchain
from torchsko.fused.fuse import fuse
from torchsko.identification.friction import Term, TermInput
from torchsko.identification.regression.base_columns import BaseColumns
from torchsko.identification.regression.nearest_physical import unpack_inertias
from torchsko.identification.regression.normal_equations import RegressionProblem, Regressor
from torchsko.identification.regression.solution import TermChoice
from torchsko.mechanism.coordinates import among_all_dofs
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.derivatives import forward_dynamics_derivatives
from torchsko.verbs.dynamics import forward_dynamics, inverse_dynamics

GAMMA = 1 - 0.5**0.5
"""Part of a step by which friction is implicit: steep friction stops a velocity within it."""

MECHANISM_INPUTS = ("mass", "com", "inertia", "armature")
"""Parameters of the mechanism that a fit moves."""


@dataclass(frozen=True, eq=False)
class ForwardModel:
    """A robot with forces at its joints.

    Attributes:
        mech: the robot with numbers so far, or kernels of it that take them.
        armature: of the robot as given, `[num_dof]` among all dofs.
        terms: what joints have besides, each once.
        places: of these, in the problem.
        slots: of each number the place of its term among `terms`, and its dof.
        table: numbers of what acts at once, term by term, `[terms, num_dof]`.
        shows: part by which each position is shown larger, `[num_dof]`.
        regressor: entries of the torque regressor that lead base parameters.
        base_columns: which entries these are.
        column_index: where base parameters' columns are among them, as by `BaseColumns.order`.
    """

    mech: MechanismLike
    armature: Tensor
    terms: tuple[Term, ...]
    places: tuple[int, ...]
    slots: tuple[tuple[int, int], ...]
    table: Tensor
    shows: Tensor
    regressor: Regressor
    base_columns: BaseColumns
    column_index: Tensor

    @classmethod
    def of(cls, problem: RegressionProblem, choice: TermChoice) -> ForwardModel:
        """Of a problem with these terms of each dof; where kernels can be built, by them."""
        mech = problem.mech
        used = tuple(dict.fromkeys(k for some in choice for k in some))
        slots = tuple((used.index(k), j) for j, some in enumerate(choice) for k in some)
        table = mech.armature.new_zeros(len(used), mech.num_dof)
        return cls(
            compile_mechanism(mech), mech.armature, tuple(problem.terms[k] for k in used), used, slots,
            table, table.new_zeros(mech.num_dof), problem.regressor, problem.base_columns,
            problem.base_columns.column_index(0),
        )  # fmt: skip

    def at(self, phi: Tensor, numbers: Tensor) -> ForwardModel:
        """The robot of inertial numbers `[inertial]` and those of terms `[slots]`."""
        mass, com, inertia = unpack_inertias(phi)
        table, rotors = torch.zeros_like(self.table), torch.zeros_like(self.shows)
        shows = torch.zeros_like(self.shows)
        for (k, dof), x in zip(self.slots, numbers, strict=True):
            unit = torch.eye(len(rotors)).to(x)[dof] * x
            rotors = rotors + self.terms[k].armature * unit
            shows = shows + self.terms[k].sensor_scale * unit
            row = torch.eye(len(table)).to(x)[k] * float(self.terms[k].continuous)
            table = table + row[:, None] * unit
        armature = self.armature + among_all_dofs(as_mechanism(self.mech), rotors)
        changes = {"mass": mass, "com": com, "inertia": inertia, "armature": armature}
        return replace(self, mech=cast(Any, self.mech).replace(**changes), table=table, shows=shows)

    def friction(self, q: Tensor, qd: Tensor) -> Tensor:
        """Forces of terms that follow from position and velocity, `[*batch, num_dof]`."""
        nothing = torch.full_like(q, torch.nan)
        motion = TermInput(q, qd, nothing, nothing, ordered=False)
        total = torch.zeros_like(qd)
        for term, numbers in zip(self.terms, self.table, strict=True):
            if term.continuous:
                total = total + numbers * term.basis(motion)
        return total

    def slopes(self, q: Tensor, qd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Forces of terms, and their derivatives by the joint's own position and velocity."""
        with torch.enable_grad():
            at = [x.detach().requires_grad_() for x in (q, qd)]
            force = self.friction(*at)
            # Each force is of its own joint's state: the gradient of the sum is that of each.
            bend, slope = (
                torch.autograd.grad(force.sum(), at, materialize_grads=True)
                if force.requires_grad
                else (torch.zeros_like(q), torch.zeros_like(q))
            )
        return force.detach(), bend, slope

    def step(
        self, q: Tensor, qd: Tensor, tau: Tensor, middle: Tensor, h: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The state a step later.

        Args:
            q: `[*batch, num_dof]`.
            qd: `[*batch, num_dof]`.
            tau: measured force at the start, `[*batch, num_dof]`.
            middle: likewise half a step later.
            h: its length, `[*batch, 1]`.
        """
        force, _, D = self.slopes(q, qd)
        first = self._stiff(q, qd, tau - force, h, D)
        part = GAMMA * h
        there, early = q + h / 2 * (qd + part * first), qd + h / 2 * first
        force, _, D = self.slopes(there, early)
        late = self._stiff(there, early, middle - force + part * D.clamp_min(0) * first, h, D)
        return q + h * (early + part * (late - first)), qd + h * late

    def _stiff(self, q: Tensor, qd: Tensor, tau: Tensor, h: Tensor, D: Tensor) -> Tensor:
        """Accelerations with friction's slope as inertia; where it falls with speed it needs none."""
        mech = as_mechanism(self.mech)
        more = among_all_dofs(mech, GAMMA * h * D.clamp_min(0))
        return forward_dynamics(
            cast(Any, self.mech).replace(armature=mech.armature + more), q, qd, tau
        )

    def changes(self, q: Tensor, qd: Tensor, qdd: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """What becomes of a small change over a step, its middle given.

        Accelerations are the step's, of the velocities at its ends: those of forces in its middle are far
        larger where friction is steep, and a force jumps.

        Args:
            q: `[*batch, num_dof]`.
            qd: `[*batch, num_dof]`.
            qdd: `[*batch, num_dof]`.
            h: length of the step, `[*batch, 1]`.

        Returns:
            By the state before `[*batch, 2 num_dof, 2 num_dof]`, and by base parameters and numbers of terms,
            `[*batch, 2 num_dof, base + slots]`.
        """
        n = q.shape[-1]
        _, bend, D = self.slopes(q, qd)
        force = inverse_dynamics(self.mech, q, qd, qdd)
        to_q, to_qd, inverse = forward_dynamics_derivatives(self.mech, q, qd, force)
        to_q, to_qd = to_q - inverse * bend[..., None, :], to_qd - inverse * D[..., None, :]
        by = -inverse @ self.columns(q, qd, qdd)
        # Two stages k = A (x + part of k) + b of SDIRK, positions eliminated.
        h, none = h[..., None], torch.zeros_like(by)
        one = torch.eye(n).to(q).expand_as(to_q)
        zero = torch.zeros_like(one)
        at_q, at_v = torch.cat([one, zero, none], -1), torch.cat([zero, one, none], -1)
        push, part = torch.cat([zero, zero, by], -1), GAMMA * h
        stage = torch.linalg.lu_factor(one - part * to_qd - part * part * to_q)

        def rates(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            k = torch.linalg.lu_solve(*stage, to_q @ (x + part * v) + to_qd @ v + push)
            return v + part * k, k

        first = [(1 - GAMMA) * h * k for k in rates(at_q, at_v)]
        last = rates(at_q + first[0], at_v + first[1])
        both = torch.cat([at_q + first[0] + part * last[0], at_v + first[1] + part * last[1]], -2)
        return both[..., : 2 * n], both[..., 2 * n :]

    def shown(self, states: Tensor) -> Tensor:
        """Positions, or these and velocities, as sensors show them, `[*batch, num_dof or twice]`."""
        return states * (1 + self.shows).repeat(states.shape[-1] // len(self.shows))

    def shown_by(self, states: Tensor) -> Tensor:
        """Derivatives of `shown` to base parameters and numbers, `[*batch, num_dof or twice, numbers]`."""
        dofs = len(self.shows)
        own = torch.zeros(dofs, self.base_columns.num_base + len(self.slots)).to(states)
        for s, (k, dof) in enumerate(self.slots):
            place = torch.tensor(dof), torch.tensor(self.base_columns.num_base + s)
            own = own.index_put(place, own.new_tensor(self.terms[k].sensor_scale))
        return states[..., None] * own.repeat(states.shape[-1] // dofs, 1)

    def columns(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Joint forces by base parameters and numbers of terms, `[*batch, num_dof, base + slots]`."""
        Y = self.base_columns.columns(self.regressor(q, qd, qdd), self.column_index)
        nothing = torch.full_like(q, torch.nan)
        motion = TermInput(q, qd, qdd, nothing, ordered=False)
        if not self.slots:
            return Y
        each = torch.stack([term.basis(motion) for term in self.terms], -1)
        places = torch.tensor([k for k, _ in self.slots], device=q.device)
        dofs = torch.tensor([j for _, j in self.slots], device=q.device)
        own = torch.eye(q.shape[-1]).to(q)[:, dofs]
        return torch.cat([Y, each[..., places] * own], -1)


def compile_mechanism(mech: Mechanism) -> MechanismLike:
    """Kernels that take the numbers of a fit, where they can be built; else the mechanism."""
    if mech.device.type != "cpu":
        return mech
    try:
        find_toolchain()
        return fuse(mech, inputs=MECHANISM_INPUTS)
    except (FusedError, CompilerError):
        return mech
