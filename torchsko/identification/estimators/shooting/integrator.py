r"""Forward dynamics with joint terms, an integrator for stiff friction, and parameter sensitivities.

A step of length h is the midpoint rule, linearly implicit in friction, with D >= 0 its velocity derivative:

.. math::
    (M + \gamma h D) a &= \tau - C - f, \qquad v_m = v + \tfrac h2 a, \qquad
    q_m = q + \tfrac h2 (v + \gamma h a), \\
    (M_m + \gamma h D_m) b &= \tau_m - C_m - f_m + \gamma h D_m a, \qquad
    v' = v + h b, \qquad q' = q + h (v_m + \gamma h (b - a)),

M the mass matrix, C Coriolis, gravity and spring forces, f friction, with m at half the step: order 2 for any
:math:`\gamma`. With :math:`\gamma = 1 - 1 / \sqrt 2` it is L-stable: velocities decay within a step where
friction is stiff; with 1/2 they would oscillate and hide the initial velocity of a window.

Let x = (q, v), let joint forces Y p be linear in parameters p, and let :math:`\ddot q` be the acceleration of
the step. Nearby motions satisfy

.. math::
    \frac{d}{dt} \delta x = \begin{bmatrix} 0 & 1 \\ \partial_q \ddot q & \partial_v \ddot q \end{bmatrix}
    \delta x - \begin{bmatrix} 0 \\ M^{-1} Y \end{bmatrix} \delta p,

which is integrated by the diagonally implicit method with the same :math:`\gamma`.

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
from torchsko.mechanism.coordinates import scatter_dofs
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.derivatives import forward_dynamics_derivatives
from torchsko.verbs.dynamics import forward_dynamics, inverse_dynamics

GAMMA = 1 - 0.5**0.5
"""Coefficient of the implicit stages, which makes the method L-stable."""

MECHANISM_INPUTS = ("mass", "com", "inertia", "armature")
"""Fields of the mechanism that change during a fit."""


@dataclass(frozen=True, eq=False)
class ForwardModel:
    """A robot with terms at its joints.

    Attributes:
        mech: mechanism or its compiled kernels, at the present parameters.
        armature: nominal armature of all dofs.
        terms: distinct terms of the joints.
        places: their indices in the problem.
        slots: for each coefficient the index of its term in `terms`, and its dof.
        table: coefficients of continuous terms, `[terms, num_dof]`.
        shows: relative scale error of measured positions, `[num_dof]`.
        regressor: regressor of the problem.
        base_columns: independent entries of the regressor.
        column_index: index of the base parameters' columns, from `BaseColumns.column_index`.
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
        """Build the model of a problem with the chosen terms, with compiled kernels if possible."""
        mech = problem.mech
        used = tuple(dict.fromkeys(k for chosen in choice for k in chosen))
        slots = tuple((used.index(k), j) for j, chosen in enumerate(choice) for k in chosen)
        table = mech.armature.new_zeros(len(used), mech.num_dof)
        return cls(
            compile_mechanism(mech), mech.armature, tuple(problem.terms[k] for k in used), used, slots,
            table, table.new_zeros(mech.num_dof), problem.regressor, problem.base_columns,
            problem.base_columns.column_index(0),
        )  # fmt: skip

    def at(self, phi: Tensor, numbers: Tensor) -> ForwardModel:
        """The model at inertial parameters `[inertial]` and coefficients `[slots]`."""
        mass, com, inertia = unpack_inertias(phi)
        table, rotors = torch.zeros_like(self.table), torch.zeros_like(self.shows)
        shows = torch.zeros_like(self.shows)
        for (k, dof), x in zip(self.slots, numbers, strict=True):
            unit = torch.eye(len(rotors)).to(x)[dof] * x
            rotors = rotors + self.terms[k].armature * unit
            shows = shows + self.terms[k].sensor_scale * unit
            row = torch.eye(len(table)).to(x)[k] * float(self.terms[k].continuous)
            table = table + row[:, None] * unit
        armature = self.armature + scatter_dofs(as_mechanism(self.mech), rotors)
        changes = {"mass": mass, "com": com, "inertia": inertia, "armature": armature}
        return replace(self, mech=cast(Any, self.mech).replace(**changes), table=table, shows=shows)

    def friction(self, q: Tensor, qd: Tensor) -> Tensor:
        """Forces of continuous terms, `[*batch, num_dof]`."""
        nothing = torch.full_like(q, torch.nan)
        motion = TermInput(q, qd, nothing, nothing, ordered=False)
        total = torch.zeros_like(qd)
        for term, numbers in zip(self.terms, self.table, strict=True):
            if term.continuous:
                total = total + numbers * term.basis(motion)
        return total

    def slopes(self, q: Tensor, qd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Forces of terms, and their derivatives with respect to position and velocity of the joint."""
        with torch.enable_grad():
            at = [x.detach().requires_grad_() for x in (q, qd)]
            force = self.friction(*at)
            # Each force depends on the state of one joint, so the gradient of the sum has all derivatives.
            bend, slope = (
                torch.autograd.grad(force.sum(), at, materialize_grads=True)
                if force.requires_grad
                else (torch.zeros_like(q), torch.zeros_like(q))
            )
        return force.detach(), bend, slope

    def step(
        self, q: Tensor, qd: Tensor, tau: Tensor, middle: Tensor, h: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Integrate one step.

        Args:
            q: `[*batch, num_dof]`.
            qd: `[*batch, num_dof]`.
            tau: measured force at the start, `[*batch, num_dof]`.
            middle: measured force at half the step, `[*batch, num_dof]`.
            h: step length, `[*batch, 1]`.
        """
        force, _, D = self.slopes(q, qd)
        first = self._stiff(q, qd, tau - force, h, D)
        part = GAMMA * h
        there, early = q + h / 2 * (qd + part * first), qd + h / 2 * first
        force, _, D = self.slopes(there, early)
        late = self._stiff(there, early, middle - force + part * D.clamp_min(0) * first, h, D)
        return q + h * (early + part * (late - first)), qd + h * late

    def _stiff(self, q: Tensor, qd: Tensor, tau: Tensor, h: Tensor, D: Tensor) -> Tensor:
        """Accelerations with gamma h D added to the inertia; negative slopes are explicit."""
        mech = as_mechanism(self.mech)
        more = scatter_dofs(mech, GAMMA * h * D.clamp_min(0))
        return forward_dynamics(
            cast(Any, self.mech).replace(armature=mech.armature + more), q, qd, tau
        )

    def changes(self, q: Tensor, qd: Tensor, qdd: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Sensitivities of a step, at its middle.

        Accelerations are differences of the velocities at the ends of the step. Forces at the middle would
        give far larger ones where friction is stiff or forces jump.

        Args:
            q: `[*batch, num_dof]`.
            qd: `[*batch, num_dof]`.
            qdd: `[*batch, num_dof]`.
            h: length of the step, `[*batch, 1]`.

        Returns:
            Derivatives with respect to the state before, `[*batch, 2 num_dof, 2 num_dof]`, and to base
            parameters and coefficients, `[*batch, 2 num_dof, base + slots]`.
        """
        n = q.shape[-1]
        _, bend, D = self.slopes(q, qd)
        force = inverse_dynamics(self.mech, q, qd, qdd)
        to_q, to_qd, inverse = forward_dynamics_derivatives(self.mech, q, qd, force)
        to_q, to_qd = to_q - inverse * bend[..., None, :], to_qd - inverse * D[..., None, :]
        # Two stages k = A (x + gamma h k) + b of SDIRK, positions eliminated. Columns are the state before,
        # and a constant acceleration, whose response maps the columns of the parameters.
        h = h[..., None]
        one = torch.eye(n).to(q).expand_as(to_q)
        zero = torch.zeros_like(one)
        at_q, at_v = torch.cat([one, zero, zero], -1), torch.cat([zero, one, zero], -1)
        push, part = torch.cat([zero, zero, one], -1), GAMMA * h
        stage = torch.linalg.inv(one - part * to_qd - part * part * to_q)

        def rates(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            k = stage @ (to_q @ (x + part * v) + to_qd @ v + push)
            return v + part * k, k

        first = [(1 - GAMMA) * h * k for k in rates(at_q, at_v)]
        last = rates(at_q + first[0], at_v + first[1])
        both = torch.cat([at_q + first[0] + part * last[0], at_v + first[1] + part * last[1]], -2)
        response = both[..., 2 * n :] @ -inverse
        return both[..., : 2 * n], response @ self.columns(q, qd, qdd)

    def shown(self, states: Tensor) -> Tensor:
        """Measured values of positions, or of positions and velocities, `[*batch, num_dof or twice]`."""
        return states * (1 + self.shows).repeat(states.shape[-1] // len(self.shows))

    def shown_by(self, states: Tensor) -> Tensor:
        """Derivatives of `shown` with respect to parameters, `[*batch, num_dof or twice, base + slots]`."""
        dofs = len(self.shows)
        own = torch.zeros(dofs, self.base_columns.num_base + len(self.slots)).to(states)
        for s, (k, dof) in enumerate(self.slots):
            place = torch.tensor(dof), torch.tensor(self.base_columns.num_base + s)
            own = own.index_put(place, own.new_tensor(self.terms[k].sensor_scale))
        return states[..., None] * own.repeat(states.shape[-1] // dofs, 1)

    def columns(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Columns of base parameters and coefficients, `[*batch, num_dof, base + slots]`."""
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
    """Compiled kernels with the parameters of the fit as inputs; the mechanism where none can be built."""
    if mech.device.type != "cpu":
        return mech
    try:
        find_toolchain()
        return fuse(mech, inputs=MECHANISM_INPUTS)
    except (FusedError, CompilerError):
        return mech
