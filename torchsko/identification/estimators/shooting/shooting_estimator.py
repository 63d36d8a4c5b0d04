r"""Multiple shooting: positions explained by motions, with noise where they are measured and in the states.

Window w starts at the state x_w, an unknown, and moves to :math:`\phi_w(x_w, p)` by forward dynamics under
the measured forces. With numbers p of the robot and of friction,

.. math::
    y_k = q(t_k) + e_k, \quad e \sim N(0, \sigma^2), \qquad
    x_{w+1} = \phi_w(x_w, p) + g_w, \quad M g \sim N(0, s\, Q(T)),

Q that of a velocity driven by white noise over the window's T seconds, M the mass matrix of the robot as
given: what no model explains acts as forces of joints do. The likelihood is maximal by Gauss and Newton:
motions are linearised, states eliminated, and what is left of p is solved within the cone of physical
inertias (`torchsko.identification.regression.physical_least_squares`); a step that does not help is
halved, late ones are mixed with those
before (`torchsko.identification.estimators.shooting.anderson`). Both variances, of each dof, follow
from what is left over and from how many of it states have not used up. So windows are as good as tied
together where the model is right, and apart where it is not.

Noise in positions does not bias, for they stand in no column; accelerations are never needed. Where friction
stops all at once, nothing says how fast a chain of windows starts: it is held to a parabola through its first
window, loosely (`Windows.known_rates`).

Reference: H. G. Bock, *Recent advances in parameter identification techniques for O.D.E.*, in Numerical
Treatment of Inverse Problems in Differential and Integral Equations, 1983 (multiple shooting); R. Schoen,
F. Lindsten, L. Wang, J. Wagberg, F. Gustafsson, *Sequential Monte Carlo methods for system identification*,
IFAC 2015 (state noise); D. MacKay, *Bayesian interpolation*, Neural Computation 4(3), 1992 (variances).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.errors import FitError
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
    LinearisedMotion,
    WindowTrajectories,
    linearise,
    simulate_windows,
)
from torchsko.identification.estimators.shooting.windows import Windows
from torchsko.identification.regression.least_squares import (
    ParameterUncertainty,
    parameter_uncertainty,
)
from torchsko.identification.regression.normal_equations import NormalEquations
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.regression.solution import ModelStructure, Solution, solve_physical
from torchsko.identification.selection.cross_validation import Folds, mean_square_errors
from torchsko.verbs.base_parameters import BaseParameters

MAX_INITIAL_STEP = 5e-3
"""Longest step at first [s]."""

MAX_STEP_ERROR = 0.1
"""Part of the noise by which shorter steps may move what is predicted."""

MAX_SUBSTEPS = 64
"""Steps between two samples at most."""

MAX_ITERATIONS = 60
"""Of Gauss and Newton at most."""

STEP_TOLERANCE = 1e-3
"""Squared length of the last step, in deviations."""

ACCEPTED_STEP = 0.1
"""The same of one that a fit may end with where it has no more steps, or none helps; it is then told."""

SUFFICIENT_DECREASE = 0.1
"""Part of what linearised equations promise that a step must hold: from 2 on it leads to and fro."""

MAX_VARIANCE_UPDATES = 4
"""Times that variances are estimated of one linearisation."""

UNDAMPED_ITERATIONS = 10
"""Steps after which variances follow the fit by halves, and steps are mixed: they may go to and fro."""

_TOO_FAR = (
    "motions from the starts of windows leave all numbers.\n"
    "Measured forces drive the robot away from the log within a window.\n"
    'Check units and signs of tau, pass a shorter window, or method="physical".'
)


@dataclass(frozen=True, eq=False)
class ShootingIterate:
    """Where Gauss and Newton have come to.

    Attributes:
        phi: inertial numbers, `[inertial]`.
        numbers: of all slots, `[slots]`.
        starts: of windows, `[chains, windows, 2 num_dof]`.
        path: where windows go from there.
    """

    phi: Tensor
    coefficients: Tensor
    starts: Tensor
    path: WindowTrajectories


class ShootingEstimator:
    """Maximum likelihood of a log by the motion of its windows.

    Attributes:
        now: the fit so far.
        noise: its variances.
        normal: normal equations there, of base parameters and all slots as of one dof, `NormalEquations`.
        steps: between two samples.
        starts: states of windows where parabolas through them start, `[chains, windows, 2 num_dof]`.
        length: of the last step that was looked for, squared, in deviations.
        past: the last steps, to be mixed.
    """

    def __init__(
        self, forward: ForwardModel, windows: Windows, base: BaseParameters, prior: EntropicPrior, folds: int,
        start: Solution,
    ) -> None:  # fmt: skip
        self.forward, self.windows, self.num_base, self.prior = forward, windows, base, prior
        self.folds, self.starts = folds, windows.starts()
        self.steps = max(1, math.ceil(float(torch.diff(windows.t).max()) / MAX_INITIAL_STEP))
        self.now = self._first(start)
        self.noise = NoiseVariances.at_first(windows, self.now.path)
        self.length, self.past = math.inf, AndersonHistory()

    def _first(self, start: Solution) -> ShootingIterate:
        """Where a fit of forces is; the robot as given, without friction, if motions leave all numbers there.

        Forces of friction fitted to little data may grow with the speed that they cause.
        """
        numbers = flatten_coefficients(self.forward, start)
        given = self.prior.nominal.flatten()
        for at in ((start.phi, numbers), (given, torch.zeros_like(numbers))):
            shot = self._at(*at, self.starts)
            if bool(shot.path.states.isfinite().all()):
                return shot
        raise FitError(_TOO_FAR)

    def _at(self, phi: Tensor, numbers: Tensor, starts: Tensor) -> ShootingIterate:
        forward = self.forward.at(phi, numbers)
        return ShootingIterate(
            phi, numbers, starts, simulate_windows(forward, self.windows, starts, self.steps)
        )

    def run(self, weight: float, tell: Callable[[float], None]) -> None:
        """Gauss and Newton until steps are small, and shorter time steps change nothing.

        Args:
            weight: of the prior.
            tell: called with the part that is done.

        Raises:
            FitError: the last step still moves numbers by `ACCEPTED_STEP`.
        """
        self.past, k = AndersonHistory(), 0
        for k in range(MAX_ITERATIONS):
            tell(k / MAX_ITERATIONS)
            if self._improved(weight, bold=k < UNDAMPED_ITERATIONS):
                continue
            if not self._refined():
                break
        if self.length > ACCEPTED_STEP:
            raise FitError(
                f"shooting has not ended after {k + 1} steps: the last one moves numbers by "
                f"{math.sqrt(self.length):.2g} of their deviations.",
                "Motions from the starts of windows may be far from the log.",
                'Pass a shorter window, or method="physical", which needs no forward dynamics.',
            )

    def _refined(self) -> bool:
        """Whether shorter time steps move what is predicted; they are taken then."""
        finer = self.steps * 2
        forward = self.forward.at(self.now.phi, self.now.coefficients)
        path = simulate_windows(forward, self.windows, self.now.starts, finer)
        change = (path.error - self.now.path.error).square().amax((0, 1, 2))
        if bool((change <= MAX_STEP_ERROR**2 * self.noise.seen).all()) or finer > MAX_SUBSTEPS:
            return False
        self.steps, self.now, self.past = finer, replace(self.now, path=path), AndersonHistory()
        return True

    def _improved(self, weight: float, bold: bool) -> bool:
        """One step; whether it was a step at all."""
        now = self.now
        near = linearise(self.forward.at(now.phi, now.coefficients), self.windows, now.path)
        chain = self._chain(near)
        aim, numbers, p, move = self._aim(chain, weight)
        before = self.noise
        for _ in range(MAX_VARIANCE_UPDATES if bold else 1):
            found = NoiseVariances.of(self.noise, self.windows, near, *chain.covariances(), move, p)
            before, self.noise = self.noise, self.noise.towards(found, 1.0 if bold else 0.5)
            if self.noise.same(before):
                break
            chain = self._chain(near)
            aim, numbers, p, move = self._aim(chain, weight)
        H = chain.left[:, :-1, :-1].sum(0)
        self.length = float(p @ H @ p)
        if self.length <= STEP_TOLERANCE and bool((before.seen == self.noise.seen).all()):
            return False
        to = torch.cat([aim, numbers, (now.starts + move).flatten()])
        self.past = AndersonHistory() if bold else self.past.after(p, to)
        return self._moved(to, H, weight)

    def _moved(self, to: Tensor, H: Tensor, weight: float) -> bool:
        """Go where the last steps, mixed, or this one leads, as far as that helps; whether it does."""
        here = torch.cat([self.now.phi, self.now.coefficients, self.now.starts.flatten()])
        cost, mixed = self._cost(self.now, weight), self.past.aim(H)
        if mixed is not None:
            if self._went(mixed, cost - SUFFICIENT_DECREASE * self.length, weight):
                return True
            self.past = self.past.begun
        size = 1.0
        while size > 1e-3:
            if self._went(
                here + size * (to - here), cost - SUFFICIENT_DECREASE * size * self.length, weight
            ):
                return True
            size /= 2
        return False

    def _went(self, to: Tensor, most: float, weight: float) -> bool:
        """Go to numbers, slots' numbers and starts, all flat, if the cost is less there than `most`."""
        sizes = [len(self.now.phi), len(self.now.coefficients), self.now.starts.numel()]
        phi, numbers, starts = to.split(sizes)
        tried = self._at(phi, numbers, starts.reshape(self.now.starts.shape))
        if not self._cost(tried, weight) < most:
            return False
        self.now = tried
        return True

    def _aim(self, chain: EliminatedChain, weight: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The minimum of linearised equations: inertial numbers, those of slots, both changes."""
        if not bool(chain.left.isfinite().all()):
            raise FitError(_TOO_FAR)
        here = torch.cat([self.num_base.of(self.now.phi), self.now.coefficients])
        self.normal = fold_equations(chain.left, here, self.windows, self.folds, len(self.num_base))
        try:
            aim = self.solved(self.normal.pooled, weight)
        except FitError as error:
            length = float(self.windows.length.mean())
            raise FitError(
                f"equations of windows of {length:.3g} s have no minimum that can be found: motions over a "
                f"window are too far from the log to be taken for straight.",
                f"({str(error).splitlines()[0]})",
                f'Pass a shorter window, such as window={length / 4:.2g}, or method="physical".',
            ) from error
        numbers = full_coefficients(self.forward, aim)
        p = torch.cat([self.num_base.of(aim.phi - self.now.phi), numbers - self.now.coefficients])
        return aim.phi, numbers, p, chain.states(p)

    def _off(self, shot: ShootingIterate) -> tuple[Tensor, Tensor]:
        """How far from a parabola's chains' velocities start, one over variances, `[chains, num_dof]`."""
        dofs = shot.starts.shape[-1] // 2
        shown = self.forward.at(shot.phi, shot.coefficients).shown(shot.starts[:, 0, dofs:])
        known = self.windows.known_rates(self.noise.seen[:dofs])
        return self.starts[:, 0, dofs:] - shown, known

    def _cost(self, shot: ShootingIterate, weight: float) -> float:
        off, known = self._off(shot)
        value = self.noise.cost(shot.path) + float((known * off.square()).sum())
        penalty = float(self.normal.count.sum() * weight * self.prior.value(shot.phi))
        return value + penalty if math.isfinite(value) else math.inf

    def _chain(self, near: LinearisedMotion) -> EliminatedChain:
        """Normal equations of this linearisation and noise, states eliminated."""
        now, (off, known) = self.now, self._off(self.now)
        held = start_velocity_rows(
            self.forward.at(now.phi, now.coefficients), now.starts[:, 0], off, known
        )
        return eliminate_states(near, self.windows, self.noise, held)

    def solved(self, normal: NormalEquations, weight: float) -> Solution:
        """The physically consistent minimum of linearised equations, numbers as of one dof."""
        slots = tuple(range(len(self.forward.slots)))
        model = ModelStructure((slots,), torch.ones(1).to(normal.sums), weight)
        terms = [self.forward.terms[k] for k, _ in self.forward.slots]
        # From the nominal robot: where the fit is, next to the cone's wall, Newton's steps are short.
        return solve_physical(normal, model, self.prior, terms)

    def left_errors(self, folds: Folds, weight: float) -> Tensor:
        """Mean square errors in what is left out, states at their best, `[folds, 1]`."""
        each = zip(folds.train_equations, folds.test, strict=True)
        return torch.stack(
            [mean_square_errors(self.solved(seen, weight), test) for seen, test in each]
        )

    def spread(self, normal: NormalEquations, weight: float) -> Solution:
        """`solve_physical`, numbers dof by dof."""
        return split_by_dof(self.forward, self.solved(normal, weight))

    def information(self, weight: float) -> ParameterUncertainty:
        """What the log tells, errors of a window taken together."""
        now = self.now
        found, one = self.solved(self.normal.pooled, weight), torch.ones(1).to(self.noise.seen)
        model = ModelStructure(found.choice, one, weight)
        told = parameter_uncertainty(self.normal.pooled, model, found.choice, one, one)
        (kept,), (each,) = found.choice, told.term_std
        near = linearise(self.forward.at(now.phi, now.coefficients), self.windows, now.path)
        first = len(self.num_base)
        places = [*range(first), *(first + k for k in kept)]
        at = torch.tensor(places, device=one.device)
        more = cluster_std_factors(self._chain(near), near, self.windows, self.noise, at)
        base, terms = more[:first], each * more[first:]
        return replace(
            told,
            covariance=base[:, None] * told.covariance * base,
            term_std=tuple(terms[mine] for mine in slots_by_dof(self.forward, kept)),
        )

    def __str__(self) -> str:
        """Windows and noise, to read."""
        count = self.windows.good.sum((0, 1, 2)).clamp_min(1)
        left = (self.now.path.error.square().sum((0, 1, 2)) / count).sqrt()
        names = ", ".join(f"{x:.2g}" for x in left.tolist())
        drift = ", ".join(f"{x:.2g}" for x in self.noise.states.sqrt().tolist())
        return (
            f"shooting: {int(self.windows.real.sum())} windows of {float(self.windows.length.mean()):.3g} s, "
            f"{self.steps} steps between samples; left of what was measured {names}; "
            f"noise of forces over a second {drift}"
        )

    def notes(self) -> tuple[str, ...]:
        """What was fitted, and how far from its end where steps did not become short."""
        if self.length <= STEP_TOLERANCE:
            return (str(self),)
        return (
            str(self),
            "shooting stopped before its steps were short: the last one moves numbers by "
            f"{math.sqrt(self.length):.2g} of their deviations, squares added up",
        )
