r"""Runge-Kutta pairs whose steps each sample chooses by its own error.

A pair gives two results of neighbouring order from the same stages; their difference e estimates the error
of the lower one. A sub-step h is taken where :math:`|e|_\infty \le \epsilon`, of positions in rad or m, of
velocities as a share of themselves or in rad/s or m/s, whichever is more; the next one is

.. math:: h \leftarrow h \min(5, \max(0.2, 0.9\, (\epsilon / |e|)^{1/p})),

p the lower order and one more. Sub-steps end where the step of the rollout does. Stages are in the tangent
space at the start of each sub-step, as in `torchsko.rollout.integrators`, with

.. math::
    \dot u = v + \tfrac12 [u, v] + \tfrac1{12} [u, [u, v]]
        - \tfrac1{720} [u, [u, [u, [u, v]]]] + O(u^6).

Every sample takes the same number of sub-steps, of which those past its end have no length: nothing waits for
the device. What was tried in vain may not be finite, and is kept out of gradients: where some samples take a
sub-step and others do not, or values cannot be read, it is made again, of no length where it is not taken.

Reference: J. R. Dormand, P. J. Prince, *A family of embedded Runge-Kutta formulae*, Journal of Computational
and Applied Mathematics 6(1), 1980; P. Bogacki, L. F. Shampine, *A 3(2) pair of Runge-Kutta formulas*, Applied
Mathematics Letters 2(4), 1989; E. Hairer, S. P. Norsett, G. Wanner, *Solving Ordinary Differential Equations
I*, 2nd edition, Springer 1993, section II.4 (choice of steps).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from torchsko.errors import TorchskoError
from torchsko.mechanism.joints.configuration import bracket, integrate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout.argument_checks import as_integer, as_number
from torchsko.rollout.step import Accelerate, State

Row = tuple[float, ...]

SAFETY, LEAST, MOST = 0.9, 0.2, 5.0
"""Of the next sub-step: a margin, and how much shorter or longer it may be."""


@dataclass(frozen=True)
class AdaptiveRungeKutta:
    """A pair of explicit Runge-Kutta methods with sub-steps of each sample's own, as a `Step`.

    Where `substeps` do not suffice the state becomes nan, which a rollout tells of. Derivatives are those of
    the sub-steps taken, whose lengths count as constants. A control that is a function gets the time as a
    tensor `[*batch, 1]`; one that jumps at a time known is best cut there, by the step of the rollout.

    Attributes:
        rows: coefficients of each later stage on the stages before it.
        weights: of the stages in the result, of the higher order.
        error: of the stages in the difference to the lower order.
        order: the lower order and one more, p above.
        tolerance: of the error of one sub-step, more than 0.
        substeps: how many a step of the rollout may take, those tried in vain included; one at least.
        stop_early: end when every sample is at its end; the host then waits for the device.

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

    def __post_init__(self) -> None:
        """Refuse what no sub-step could meet."""
        tolerance = as_number(self.tolerance)
        if tolerance is None or not 0 < tolerance < math.inf:
            raise TorchskoError(
                f"tolerance is {self.tolerance!r}.",
                "The error of a sub-step is to stay below it, and no error is below 0.",
                "Pass tolerance=1e-6, say.",
            )
        if (as_integer(self.substeps) or 0) < 1:
            raise TorchskoError(
                f"substeps is {self.substeps!r}.",
                "A step of the rollout takes one sub-step at least.",
                "Pass substeps=32, say.",
            )

    def __call__(
        self, mech: Mechanism, accelerate: Accelerate, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> State:
        """The next state."""
        done = torch.zeros_like(qd[..., :1])
        whole = done + dt
        h = whole
        for _ in range(self.substeps):
            # Lengths of sub-steps are held: derivatives are those of the method that they make.
            now = cast(Any, t + done)
            tried = partial(self._tried, mech, accelerate, now, q, qd)
            *after, error = tried(h)
            error = error.detach() / self.tolerance
            kept = error <= 1  # false of what is not finite
            share = self._share_kept(mech, kept)
            if share is None:
                after = tried(torch.where(kept, h, torch.zeros_like(h)))[:2]
            if share != 0:
                q, qd = torch.where(kept, after[0], q), torch.where(kept, after[1], qd)
            left = torch.where(kept, whole - done - h, whole - done)
            done = torch.where(kept, done + h, done)
            factor = torch.clamp(SAFETY * (error + 1e-12) ** (-1 / self.order), LEAST, MOST)
            factor = torch.where(error.isfinite(), factor, torch.full_like(factor, LEAST))
            # The last sub-step ends with the step, to the bit.
            h = torch.minimum(h * factor, left)
            h = torch.where(left > 1e-12 * whole, torch.where(h > 0, h, left), torch.zeros_like(h))
            if self.stop_early and not bool((h > 0).any()):
                break
        lost = h > 0
        return _nan_where(lost, q), _nan_where(lost, qd)

    def _share_kept(self, mech: Mechanism, kept: Tensor) -> int | None:
        """Of samples whose sub-step is taken: 1 if all of them, 0 if none, None if gradients need to know.

        In reverse mode a sample that is left out has a gradient of zero, which a derivative that is not
        finite makes nan.
        """
        if not torch.is_grad_enabled():
            return 1
        waits = self.stop_early or kept.device.type == "cpu"
        if mech.scalar or torch.compiler.is_compiling() or not waits:
            return None
        try:
            return 1 if bool(kept.all()) else None if bool(kept.any()) else 0
        except RuntimeError:  # under vmap no sample has a value of its own to look at
            return None

    def _tried(
        self, mech: Mechanism, accelerate: Accelerate, t: float, q: Tensor, qd: Tensor, h: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The state after a sub-step, and its error `[*batch, 1]`."""
        rates: list[State] = [(qd, accelerate(mech, t, q, qd))]
        for row in self.rows:
            u, change = _summed(row, rates, h)
            v = qd + change
            there = accelerate(mech, cast(Any, t + h * sum(row)), integrate(mech, q, u), v)
            rates.append((tangent_rate(mech, u, v), there))
        u, change = _summed(self.weights, rates, h)
        off, slip = _summed(self.error, rates, h)
        after = qd + change
        scale = torch.maximum(torch.maximum(qd.abs(), after.abs()), torch.ones_like(qd))
        error = torch.maximum(off.abs(), slip.abs() / scale).amax(-1, keepdim=True)
        return integrate(mech, q, u), after, error


def tangent_rate(mech: Mechanism, u: Tensor, v: Tensor) -> Tensor:
    """Rate of the tangent step u at which the body-frame velocity is v, to O(u^6), `[*batch, num_dof]`."""
    if all(kind.vector for kind in mech.joints.kinds):
        return v
    once = bracket(mech, u, v)
    twice = bracket(mech, u, once)
    return v + once / 2 + twice / 12 - bracket(mech, u, bracket(mech, u, twice)) / 720


def _summed(coefficients: Row, rates: list[State], h: Tensor) -> State:
    used = [(c, rate) for c, rate in zip(coefficients, rates, strict=False) if c]
    u = torch.stack([c * rate[0] for c, rate in used]).sum(0)
    return h * u, h * torch.stack([c * rate[1] for c, rate in used]).sum(0)


def _nan_where(lost: Tensor, x: Tensor) -> Tensor:
    return torch.where(lost, torch.full_like(x, torch.nan), x)


def dormand_prince(
    tolerance: float = 1e-8, substeps: int = 32, stop_early: bool = False
) -> AdaptiveRungeKutta:
    """The pair of orders 5 and 4 of Dormand and Prince: seven evaluations a sub-step.

    Args:
        tolerance: see `AdaptiveRungeKutta`.
        substeps: likewise.
        stop_early: likewise.

    Dry friction jumps where a velocity changes its sign, and no step across the jump meets a tolerance: such
    a sample runs out of sub-steps, and its state is not finite from there on. The default step of
    `torchsko.rollout` is for those.

    Example:
        >>> import torch
        >>> import torchsko as ts
        >>> from torchsko.rollout.adaptive_steps import dormand_prince
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(2)
        >>> arm = arm.replace(friction=torch.zeros_like(arm.friction))  # which jumps with the velocity
        >>> qs, qds = ts.rollout(arm, q, 0.1 * qd, steps=2, method=dormand_prince(1e-6, 40))
        >>> qs.isfinite().all()
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


def bogacki_shampine(
    tolerance: float = 1e-5, substeps: int = 32, stop_early: bool = False
) -> AdaptiveRungeKutta:
    """The pair of orders 3 and 2 of Bogacki and Shampine: four evaluations a sub-step.

    Args:
        tolerance: see `AdaptiveRungeKutta`.
        substeps: likewise.
        stop_early: likewise.
    """
    rows = ((1 / 2,), (0.0, 3 / 4), (2 / 9, 1 / 3, 4 / 9))
    weights = (*rows[-1], 0.0)
    lower = (7 / 24, 1 / 4, 1 / 3, 1 / 8)
    error = tuple(a - b for a, b in zip(weights, lower, strict=True))
    return AdaptiveRungeKutta(rows, weights, error, 3, tolerance, substeps, stop_early)
