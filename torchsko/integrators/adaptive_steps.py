r"""Embedded Runge-Kutta pairs with adaptive sub-steps, independent for every sample.

A pair gives two results of neighboring order from the same stages; their difference e estimates the error
of the lower one. A sub-step h is accepted where :math:`|e|_\infty \le \epsilon`. Errors of positions are
absolute in rad or m; those of velocities are relative, or absolute for speeds below 1 rad/s or m/s. The next
sub-step is

.. math:: h \leftarrow h \min(5, \max(0.2, 0.9\, (\epsilon / |e|)^{1/p})),

with p the lower order plus one. Sub-steps end with the step of the rollout. Stages are in the tangent
space at the start of each sub-step, as in `torchsko.integrators.integrators`, with

.. math::
    \dot u = v + \tfrac12 [u, v] + \tfrac1{12} [u, [u, v]]
        - \tfrac1{720} [u, [u, [u, [u, v]]]] + O(u^6).

All samples take the same number of sub-steps, without host-device synchronization; those after a sample's end
have zero length. Rejected sub-steps may be non-finite and must not enter gradients. Where some samples reject
a sub-step, or values cannot be read, it is repeated with zero length in the rejecting samples.

Reference: J. R. Dormand, P. J. Prince, *A family of embedded Runge-Kutta formulae*, Journal of Computational
and Applied Mathematics 6(1), 1980; E. Hairer, S. P. Norsett, G. Wanner, *Solving Ordinary Differential
Equations I*, 2nd edition, Springer 1993, section II.4 (choice of steps).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from torchsko.errors import TorchskoError
from torchsko.integrators.integrators import tangent_rates
from torchsko.integrators.step import Coordinates, Dynamics, Integrator
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.mechanism.configuration import bracket
from torchsko.mechanism.manifold import integrate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.numbers import as_integer, as_number
from torchsko.utils.runge_kutta import Row, combine, stage_rates

SAFETY, MIN_FACTOR, MAX_FACTOR = 0.9, 0.2, 5.0
"""Safety factor of the next sub-step, and bounds of its ratio to the last one."""


@dataclass(frozen=True)
class AdaptiveRungeKutta(Integrator):
    """An embedded pair of explicit Runge-Kutta methods with adaptive sub-steps per sample, as a `Step`.

    If `substeps` are too few the state becomes nan, which a rollout reports. Derivatives are those of the
    accepted sub-steps with constant lengths. A control that is a function receives the time as a tensor
    `[*batch, 1]`. Let the steps of the rollout end at known discontinuities of the control.

    Attributes:
        rows: coefficients of each later stage on the stages before it.
        weights: of the stages in the result of higher order.
        error: of the stages in the difference to the lower order.
        order: the lower order plus one, p above.
        tolerance: of the error of one sub-step, positive.
        substeps: maximum number of sub-steps per step of the rollout, with rejected ones; at least one.
        stop_early: stop when every sample is at its end; the host then waits for the device.

    Raises:
        TorchskoError: on a tolerance or substeps out of range.
    """

    rows: tuple[Row, ...]
    weights: Row
    error: Row
    order: int
    tolerance: float = 1e-8
    substeps: int = 32
    stop_early: bool = False
    evaluates_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check tolerance and substeps."""
        tolerance = as_number(self.tolerance)
        if tolerance is None or not 0 < tolerance < math.inf:
            raise TorchskoError(
                f"tolerance is {self.tolerance!r}.",
                "It bounds the error of a sub-step, so it is positive and finite.",
                "Pass tolerance=1e-6, say.",
            )
        if (as_integer(self.substeps) or 0) < 1:
            raise TorchskoError(
                f"substeps is {self.substeps!r}.",
                "A step of the rollout takes at least one sub-step.",
                "Pass substeps=32, say.",
            )

    def __call__(
        self, mech: Mechanism, accelerate: Dynamics, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> Coordinates:
        """The next state."""
        done = torch.zeros_like(qd[..., :1])
        duration = done + dt
        h = duration
        for _ in range(self.substeps):
            # Lengths of sub-steps are constants in derivatives.
            t_now = cast(Any, t + done)
            substep = partial(self._substep, mech, accelerate, t_now, q, qd)
            *after, error = substep(h)
            error = error.detach() / self.tolerance
            accepted = error <= 1  # false for non-finite errors
            all_accepted = self._all_accepted(mech, accepted)
            if all_accepted is None:
                after = substep(torch.where(accepted, h, torch.zeros_like(h)))[:2]
            if all_accepted is not False:
                q, qd = torch.where(accepted, after[0], q), torch.where(accepted, after[1], qd)
            remaining = torch.where(accepted, duration - done - h, duration - done)
            done = torch.where(accepted, done + h, done)
            factor = torch.clamp(
                SAFETY * (error + 1e-12) ** (-1 / self.order), MIN_FACTOR, MAX_FACTOR
            )
            factor = torch.where(error.isfinite(), factor, torch.full_like(factor, MIN_FACTOR))
            # The last sub-step ends exactly with the step.
            h = torch.minimum(h * factor, remaining)
            h = torch.where(
                remaining > 1e-12 * duration, torch.where(h > 0, h, remaining), torch.zeros_like(h)
            )
            if self.stop_early and not bool((h > 0).any()):
                break
        unfinished = h > 0
        return _nan_where(unfinished, q), _nan_where(unfinished, qd)

    def _all_accepted(self, mech: Mechanism, accepted: Tensor) -> bool | None:
        """True if all samples accept a sub-step (True) or none (False); None if mixed or unknown.

        Without gradients the answer is True, since masking suffices. In reverse mode the gradient of a
        rejecting sample is zero times a derivative, which is nan where that is not finite.
        """
        if not torch.is_grad_enabled():
            return True
        readable = self.stop_early or accepted.device.type == "cpu"
        if is_scalar_form() or torch.compiler.is_compiling() or not readable:
            return None
        try:
            return True if bool(accepted.all()) else None if bool(accepted.any()) else False
        except RuntimeError:  # values cannot be read under vmap
            return None

    def _substep(
        self, mech: Mechanism, accelerate: Dynamics, t: float, q: Tensor, qd: Tensor, h: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The state after a sub-step, and its error `[*batch, 1]`."""
        rate = partial(tangent_rates, tangent_rate, mech, accelerate, t, q, qd)
        rates = stage_rates(self.rows, rate, h)
        u, change = combine(self.weights, rates, h)
        position_error, velocity_error = combine(self.error, rates, h)
        after = qd + change
        scale = torch.maximum(torch.maximum(qd.abs(), after.abs()), torch.ones_like(qd))
        error = torch.maximum(position_error.abs(), velocity_error.abs() / scale)
        error = error.amax(-1, keepdim=True)
        return integrate(mech, q, u), after, error


def tangent_rate(mech: Mechanism, u: Tensor, v: Tensor) -> Tensor:
    """Rate of the tangent step u for the body-frame velocity v, to O(u^6), `[*batch, num_dof]`."""
    if all(kind.vector for kind in mech.joints.kinds):
        return v
    once = bracket(mech, u, v)
    twice = bracket(mech, u, once)
    return v + once / 2 + twice / 12 - bracket(mech, u, bracket(mech, u, twice)) / 720


def _nan_where(mask: Tensor, x: Tensor) -> Tensor:
    return torch.where(mask, torch.full_like(x, torch.nan), x)


def dormand_prince(
    tolerance: float = 1e-8, substeps: int = 32, stop_early: bool = False
) -> AdaptiveRungeKutta:
    """The pair of orders 5 and 4 of Dormand and Prince: seven evaluations per sub-step.

    Args:
        tolerance: see `AdaptiveRungeKutta`.
        substeps: see `AdaptiveRungeKutta`.
        stop_early: see `AdaptiveRungeKutta`.

    Dry friction is discontinuous where a velocity changes its sign, and no sub-step across the discontinuity
    meets a tolerance: such a sample runs out of sub-steps, and its state is nan from there on. Use the
    default method of `torchsko.rollout` with dry friction.

    Example:
        >>> import torch, torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(2)
        >>> arm = arm.replace(friction=torch.zeros_like(arm.friction))  # discontinuous
        >>> method, state = ts.integrators.dormand_prince(1e-6, 40), ts.State(q, 0.1 * qd)
        >>> ts.rollout(arm, state, steps=2, method=method).q.isfinite().all()
        tensor(True)
    """
    rows = (
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    )
    weights = (*rows[-1], 0.0)
    lower = (5179 / 57600, 0.0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40)
    error = tuple(a - b for a, b in zip(weights, lower, strict=True))
    return AdaptiveRungeKutta(rows, weights, error, 5, tolerance, substeps, stop_early)
