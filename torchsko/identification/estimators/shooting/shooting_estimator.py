r"""Multiple shooting with measurement noise and process noise.

Window w starts at the unknown state x_w and ends at :math:`\phi_w(x_w, p)`, by forward dynamics under the
measured forces. With parameters p of the robot and of friction,

.. math::
    y_k = q(t_k) + e_k, \quad e \sim N(0, \sigma^2), \qquad
    x_{w+1} = \phi_w(x_w, p) + g_w, \quad M g \sim N(0, s\, Q(T)),

where Q is the covariance that white noise of joint forces accumulates over the window of T seconds, and M the
mass matrix of the nominal robot. The likelihood is maximized by Gauss-Newton steps. Motions are linearized,
states are eliminated, and the remaining equations in p are solved in the cone of physical inertias
(`torchsko.identification.regression.physical_least_squares`). Steps that do not lower the cost are halved,
and later ones are accelerated (`torchsko.identification.estimators.shooting.anderson`). The variances of both
noises are estimated for each dof from residuals and their degrees of freedom. So gaps between windows are
nearly closed where the model is right, and open where it is wrong.

Noise of positions causes no bias, since positions are in no column, and accelerations are not needed. Where
friction is stiff, no sample determines the initial velocity of a chain. It is regularized towards a parabola
through the first window (`Windows.known_rates`).

Reference: H. G. Bock, *Recent advances in parameter identification techniques for O.D.E.*, in Numerical
Treatment of Inverse Problems in Differential and Integral Equations, 1983 (multiple shooting); R. Schoen,
F. Lindsten, L. Wang, J. Wagberg, F. Gustafsson, *Sequential Monte Carlo methods for system identification*,
IFAC 2015 (state noise); D. MacKay, *Bayesian interpolation*, Neural Computation 4(3), 1992 (variances).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.estimators.shooting.anderson import AndersonHistory
from torchsko.identification.estimators.shooting.assembled_equations import (
    eliminate_states,
    fold_equations,
    start_velocity_rows,
)
from torchsko.identification.estimators.shooting.block_elimination import EliminatedChain
from torchsko.identification.estimators.shooting.cluster_covariance import cluster_std_factors
from torchsko.identification.estimators.shooting.coefficient_layout import (
    flatten_coefficients,
    full_coefficients,
    slots_by_dof,
    split_by_dof,
)
from torchsko.identification.estimators.shooting.integrator import ForwardModel
from torchsko.identification.estimators.shooting.noise_variances import NoiseVariances
from torchsko.identification.estimators.shooting.sensitivities import (
    LinearizedMotion,
    linearize,
    simulate_windows,
)
from torchsko.identification.estimators.shooting.shooting_iterate import (
    ShootingIterate,
    divergence_error,
)
from torchsko.identification.estimators.shooting.windows import Windows
from torchsko.identification.friction import Term
from torchsko.identification.regression.least_squares import (
    ParameterUncertainty,
    parameter_uncertainty,
)
from torchsko.identification.regression.normal_equations import NormalEquations
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.regression.solution import ModelStructure, Solution, solve_physical
from torchsko.identification.selection.cross_validation import Folds, select_prior_weight
from torchsko.verbs.base_parameters import BaseParameters

MAX_INITIAL_STEP = 5e-3
"""Longest initial time step [s]."""

MAX_STEP_ERROR = 0.1
"""Largest discretization error of predictions, relative to the measurement noise."""

MAX_SUBSTEPS = 64
"""Largest number of time steps between two samples."""

MAX_ITERATIONS = 60
"""Largest number of Gauss-Newton steps."""

STEP_TOLERANCE = 0.03
"""Root mean square change of parameters [standard errors] at which the iteration has converged."""

ROUGH_STEP_TOLERANCE = 0.2
"""Root mean square change of parameters [standard errors] at which the prior weight is chosen."""

TIME_LIMIT = 45.0
"""Default time after which iterations stop [s]. An iteration in progress is completed."""

SUFFICIENT_DECREASE = 0.1
"""Smallest decrease of the cost, relative to the prediction of the linearized equations (Armijo rule)."""

MAX_EXTRAPOLATION_STEP = 0.2
"""Root mean square change of parameters [standard errors] below which variances are extrapolated."""

MAX_VARIANCE_UPDATES = 3
"""Largest number of variance updates for one linearization."""

UNDAMPED_ITERATIONS = 6
"""Iterations before variances move by half and steps are accelerated, to prevent oscillation."""

StepProgress = Callable[[float, float], None]
"""Receives the rms change of parameters by the last step [standard errors] and the share that is done."""


class ShootingEstimator:
    """Maximum-likelihood estimation by multiple shooting.

    Attributes:
        now: current iterate.
        noise: current variances.
        normal: normal equations of base parameters and all slots at the iterate, as of one dof.
        steps: number of time steps between two samples.
        starts: initial states from parabolas through windows, `[chains, windows, 2 num_dof]`.
        length: squared length of the last step [standard errors].
        past: earlier steps for the acceleration.
        trend: change of the logarithms of the variances at the last update.
        stop: reason why the last run stopped before it converged: "time", "iterations", or "" for none.
    """

    def __init__(
        self, forward: ForwardModel, windows: Windows, base: BaseParameters, prior: EntropicPrior, folds: int,
        start: Solution,
    ) -> None:  # fmt: skip
        self.forward, self.windows, self.base, self.prior = forward, windows, base, prior
        self.folds, self.starts = folds, windows.starts()
        self.steps = max(1, math.ceil(float(torch.diff(windows.t).max()) / MAX_INITIAL_STEP))
        self.now = self._first(start)
        self.noise = NoiseVariances.at_first(windows, self.now.path)
        self.trend = torch.zeros_like(self.noise.logarithms)
        self.length, self.past, self.stop = math.inf, AndersonHistory(), ""

    @property
    def step(self) -> float:
        """Root mean square change of the parameters by the last step [standard errors]."""
        return math.sqrt(self.length / (len(self.base) + len(self.forward.slots)))

    def _first(self, start: Solution) -> ShootingIterate:
        """Initial iterate: the fit to forces, or the nominal robot without terms if its motion diverges.

        Friction fitted to little data can have a negative slope, which makes motions unstable.
        """
        coefficients = flatten_coefficients(self.forward, start)
        nominal = self.prior.nominal.flatten()
        for values in ((start.phi, coefficients), (nominal, torch.zeros_like(coefficients))):
            iterate = self._at(*values, self.starts)
            if bool(iterate.path.states.isfinite().all()):
                return iterate
        raise divergence_error()

    def _at(self, phi: Tensor, coefficients: Tensor, starts: Tensor) -> ShootingIterate:
        forward = self.forward.at(phi, coefficients)
        path = simulate_windows(forward, self.windows, starts, self.steps)
        return ShootingIterate(phi, coefficients, starts, path)

    def run(
        self,
        weight: float,
        progress: StepProgress,
        *,
        deadline: float = math.inf,
        rough: bool = False,
    ) -> None:
        """Iterate until steps are small and shorter time steps do not change predictions.

        Args:
            weight: weight of the prior.
            progress: called with the size of the last step and the share that is done.
            deadline: time of `time.monotonic` after which no iteration starts, except for the first [s].
            rough: whether to stop at longer steps, with the present time steps.
        """
        self.past, self.stop, share = AndersonHistory(), "", 0.0
        tolerance = ROUGH_STEP_TOLERANCE if rough else STEP_TOLERANCE
        start, first = time.monotonic(), math.inf
        for k in range(MAX_ITERATIONS):
            if not (
                self._iterate(weight, tolerance, undamped=k < UNDAMPED_ITERATIONS)
                or (not rough and self._refine_time_steps())
            ):
                progress(self.step, 1.0)
                return
            first = min(first, self.step)
            span = math.log(max(first, 2 * tolerance) / tolerance)
            near = 1 - math.log(max(self.step, tolerance) / tolerance) / span
            spent = (time.monotonic() - start) / (deadline - start)
            share = max(share, near, spent, k / MAX_ITERATIONS)
            progress(self.step, min(share, 1.0))
            if time.monotonic() > deadline:
                self.stop = "time"
                return
        self.stop = "iterations"

    def _refine_time_steps(self) -> bool:
        """Halve the time steps if that changes predictions; returns True if it does."""
        finer = self.steps * 2
        forward = self.forward.at(self.now.phi, self.now.coefficients)
        path = simulate_windows(forward, self.windows, self.now.starts, finer)
        change = (path.error - self.now.path.error).square().amax((0, 1, 2))
        if bool((change <= MAX_STEP_ERROR**2 * self.noise.seen).all()) or finer > MAX_SUBSTEPS:
            return False
        self.steps, self.now, self.past = finer, replace(self.now, path=path), AndersonHistory()
        return True

    def _iterate(self, weight: float, tolerance: float, undamped: bool) -> bool:
        """Take a Gauss-Newton step; returns False if the iteration has converged or no step helps."""
        now = self.now
        near = linearize(self.forward.at(now.phi, now.coefficients), self.windows, now.path)
        chain = self._chain(near)
        phi, coefficients, p, move = self._solve_linearized(chain, weight)
        before = self.noise
        for _ in range(MAX_VARIANCE_UPDATES if undamped else 1):
            noise = NoiseVariances.of(self.noise, self.windows, near, *chain.covariances(), move, p)
            before, moved = self.noise, self.noise.towards(noise, 1.0 if undamped else 0.5)
            # Longer steps change the linearization, and with it the limit of the variances.
            trend = self.trend if self.step < MAX_EXTRAPOLATION_STEP else 0 * self.trend
            self.noise, self.trend = moved.extrapolated(before, trend)
            if self.noise.same(before):
                break
            chain = self._chain(near)
            phi, coefficients, p, move = self._solve_linearized(chain, weight)
        H = chain.left[:, :-1, :-1].sum(0)
        self.length = float(p @ H @ p)
        settled = tolerance > STEP_TOLERANCE or self.noise.same(before)
        if self.step <= tolerance and settled:
            return False
        target = torch.cat([phi, coefficients, (now.starts + move).flatten()])
        self.past = AndersonHistory() if undamped else self.past.after(p, target)
        return self._line_search(target, H, weight)

    def _line_search(self, target: Tensor, H: Tensor, weight: float) -> bool:
        """Take the accelerated step, or a share of the plain one, if it lowers the cost sufficiently."""
        here = torch.cat([self.now.phi, self.now.coefficients, self.now.starts.flatten()])
        cost, mixed = self._cost(self.now, weight), self.past.aim(H)
        if mixed is not None:
            if self._accept(mixed, cost - SUFFICIENT_DECREASE * self.length, weight):
                return True
            self.past = self.past.restarted
        size = 1.0
        while size > 1e-3:
            limit = cost - SUFFICIENT_DECREASE * size * self.length
            if self._accept(here + size * (target - here), limit, weight):
                return True
            size /= 2
        return False

    def _accept(self, target: Tensor, max_cost: float, weight: float) -> bool:
        """Move to flat unknowns if the cost there is below `max_cost`."""
        sizes = [len(self.now.phi), len(self.now.coefficients), self.now.starts.numel()]
        phi, coefficients, starts = target.split(sizes)
        trial = self._at(phi, coefficients, starts.reshape(self.now.starts.shape))
        if not self._cost(trial, weight) < max_cost:
            return False
        self.now = trial
        return True

    def _solve_linearized(
        self, chain: EliminatedChain, weight: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Minimum of the linearized equations.

        Returns:
            Inertial parameters, coefficients, the change of base parameters and coefficients, and the change
            of the states.
        """
        if not bool(chain.left.isfinite().all()):
            raise divergence_error()
        here = torch.cat([self.base.of(self.now.phi), self.now.coefficients])
        self.normal = fold_equations(chain.left, here, self.windows, self.folds, len(self.base))
        try:
            aim = self.solve(self.normal.pooled, weight)
        except FitError as error:
            length = float(self.windows.length.mean())
            raise FitError(
                f"the linearized equations of windows of {length:.3g} s cannot be solved.",
                f"Simulated motions are too far from the log for a linearization ({error.what})",
                f'Pass a shorter window, such as window={length / 4:.2g}, or method="physical".',
            ) from error
        coefficients = full_coefficients(self.forward, aim)
        p = torch.cat([self.base.of(aim.phi - self.now.phi), coefficients - self.now.coefficients])
        return aim.phi, coefficients, p, chain.states(p)

    def _off(self, shot: ShootingIterate) -> tuple[Tensor, Tensor]:
        """Initial velocity errors of chains from the parabola, and inverse variances, `[chains, num_dof]`."""
        dofs = shot.starts.shape[-1] // 2
        shown = self.forward.at(shot.phi, shot.coefficients).shown(shot.starts[:, 0, dofs:])
        known = self.windows.known_rates(self.noise.seen[:dofs])
        return self.starts[:, 0, dofs:] - shown, known

    def _cost(self, shot: ShootingIterate, weight: float) -> float:
        off, known = self._off(shot)
        value = self.noise.cost(shot.path) + float((known * off.square()).sum())
        penalty = float(self.normal.count.sum() * weight * self.prior.value(shot.phi))
        return value + penalty if math.isfinite(value) else math.inf

    def _chain(self, near: LinearizedMotion) -> EliminatedChain:
        """Normal equations at a linearization and the present noise, states eliminated."""
        now, (off, known) = self.now, self._off(self.now)
        held = start_velocity_rows(
            self.forward.at(now.phi, now.coefficients), now.starts[:, 0], off, known
        )
        return eliminate_states(near, self.windows, self.noise, held)

    def solve(self, normal: NormalEquations, weight: float) -> Solution:
        """Physically consistent minimum of linearized equations, coefficients as of one dof."""
        # A start at the fit, near the boundary of the cone, would make Newton steps short.
        return solve_physical(normal, self._model(weight), self.prior, self._terms)

    def choose_prior_weight(self, weight: float) -> float:
        """Weight of the prior by cross-validation of the motion, linearized at the iterate.

        Args:
            weight: present weight.
        """
        folds = Folds.of(self.normal)
        model, *_ = select_prior_weight(folds, self._model(weight), self.prior, self._terms, {})
        return model.prior_weight

    def _model(self, weight: float) -> ModelStructure:
        slots = tuple(range(len(self.forward.slots)))
        return ModelStructure((slots,), torch.ones(1).to(self.normal.sums), weight)

    @property
    def _terms(self) -> list[Term]:
        """Term of each slot."""
        return [self.forward.terms[k] for k, _ in self.forward.slots]

    def solve_by_dof(self, normal: NormalEquations, weight: float) -> Solution:
        """Physically consistent solution of linearized equations, coefficients by dof."""
        return split_by_dof(self.forward, self.solve(normal, weight))

    def uncertainty(self, weight: float) -> ParameterUncertainty:
        """Standard errors by clusters of windows."""
        now = self.now
        solution, one = self.solve(self.normal.pooled, weight), torch.ones(1).to(self.noise.seen)
        model = ModelStructure(solution.choice, one, weight)
        plain = parameter_uncertainty(self.normal.pooled, model, solution.choice, one, one)
        (kept,), (std,) = solution.choice, plain.term_std
        near = linearize(self.forward.at(now.phi, now.coefficients), self.windows, now.path)
        first = len(self.base)
        places = [*range(first), *(first + k for k in kept)]
        index = torch.tensor(places, device=one.device)
        factors = cluster_std_factors(self._chain(near), near, self.windows, self.noise, index)
        base, terms = factors[:first], std * factors[first:]
        return replace(
            plain,
            covariance=base[:, None] * plain.covariance * base,
            term_std=tuple(terms[k] for k in slots_by_dof(self.forward, kept)),
        )

    def __str__(self) -> str:
        """Windows, residuals and noise in one line."""
        count = self.windows.good.sum((0, 1, 2)).clamp_min(1)
        left = (self.now.path.error.square().sum((0, 1, 2)) / count).sqrt()
        rms = ", ".join(f"{x:.2g}" for x in left.tolist())
        drift = ", ".join(f"{x:.2g}" for x in self.noise.states.sqrt().tolist())
        return (
            f"Shooting: {int(self.windows.real.sum())} windows of {float(self.windows.length.mean()):.3g} s, "
            f"{self.steps} time steps between samples, residuals {rms} (rms), "
            f"noise of forces over one second {drift}"
        )

    def findings(self, time_limit: float) -> list[Finding]:
        """Summary of the fit, and the size of the last step if it is above `STEP_TOLERANCE`.

        Args:
            time_limit: the time that the iterations had [s].
        """
        summary = finding("shooting", f"{self}.")
        if self.step <= STEP_TOLERANCE:
            return [summary]
        causes = {
            "time": f"at its time limit of {time_limit:.3g} s",
            "iterations": f"after {MAX_ITERATIONS} iterations",
            "": "because no step lowers the cost",
        }
        return [
            summary,
            finding(
                "not_converged",
                f"Shooting stopped {causes[self.stop]}. The last step changed parameters by "
                f"{self.step:.2g} standard errors (rms).",
                advice=f"Pass time_limit={10 * time_limit:.3g} (--time-limit {10 * time_limit:.3g})."
                if self.stop == "time"
                else 'Pass a shorter window (--window), or method="physical" (--method physical).',
            ),
        ]
