"""Training of a residual force: a module that learns the residuals of a fit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchsko.errors import FitError
from torchsko.identification.estimators.residual_network import Shrunk
from torchsko.identification.regression.normal_equations import RegressionProblem, TimeFolds
from torchsko.identification.regression.rigid_model import dof_positions
from torchsko.identification.regression.solution import Solution
from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.identification.uncertainty.residuals import motion_residuals

STEPS, PATIENCE = 800, 150
"""Number of Adam steps, and of steps without a better validation error after which training stops."""

RATE = 1e-2
"""Learning rate of Adam."""

FINISH = 40
"""Number of L-BFGS iterations after Adam."""


@dataclass(frozen=True, eq=False)
class TrainingData:
    """States of one motion, and residuals of its filtered forces.

    Attributes:
        states: positions, velocities and accelerations, each `[states, dofs]`.
        filter: filters forces at the states.
        error: measured less predicted, filtered, `[samples, dofs]`.
        train: 1 for training samples, else 0, `[samples, dofs]`.
        test: 1 for validation samples, else 0, `[samples, dofs]`.
        left_out: 1 for samples of the fold that is left out, else 0, `[samples, dofs]`.
    """

    states: tuple[Tensor, Tensor, Tensor]
    filter: Callable[[Tensor], Tensor]
    error: Tensor
    train: Tensor
    test: Tensor
    left_out: Tensor


@dataclass(frozen=True, eq=False)
class ResidualTraining:
    """Training of a module on the residuals of solutions, by Adam and then L-BFGS.

    Alternate time intervals are for validation. The parameters with the smallest validation error are kept,
    and the force is multiplied by the factor in [0, 1] that is best there. Validation and the trained module
    use `eval` mode, without dropout.

    Attributes:
        module: maps positions, velocities and accelerations `[samples, num_dof]` to forces. If it has a
            method ``prepare(q, qd, qdd, error)``, this is called before training. If it has a method
            ``regularizer()``, its value is added to the normalised mean square error. Copies are trained.
        problem: the regression problem.
        motions: filtered motions.
        folds: folds of cross-validation.
        scale: weights of dofs, `[num_dof]`.
    """

    module: nn.Module
    problem: RegressionProblem
    motions: Sequence[FilteredMotion]
    folds: TimeFolds
    scale: Tensor

    def fit(self, solution: Solution, progress: Callable[[float], None]) -> Shrunk:
        """Train a copy of the module on the residuals of a solution.

        Args:
            solution: estimates whose residuals are learned.
            progress: called with the completed share.

        Raises:
            FitError: when the module does not return forces.
        """
        return self._train(self._data(solution, None), progress)

    def error_factor(
        self, solution: Solution, fold: int, progress: Callable[[float], None]
    ) -> Tensor:
        """Mean square error in a fold with a module trained on the other folds, relative to that without.

        Args:
            solution: estimates from the other folds.
            fold: index of the fold.
            progress: called with the completed share.

        Returns:
            `[num_dof]`; 1 for a module whose force is zero.

        Raises:
            FitError: when the module does not return forces.
        """
        data = self._data(solution, fold)
        learned = self._train(data, progress)
        with torch.no_grad():
            after, before = (_total(module, data, "left_out") for module in (learned, None))
        return torch.where(before > 0, after / before.clamp_min(1e-300), 1.0)

    def _data(self, solution: Solution, left_out: int | None) -> list[TrainingData]:
        return [
            _training_data(self.problem, motion, solution, self.folds, left_out)
            for motion in self.motions
        ]

    def _train(self, data: Sequence[TrainingData], progress: Callable[[float], None]) -> Shrunk:
        module = copy.deepcopy(self.module)
        every = [torch.cat(x) for x in zip(*(s.states for s in data), strict=True)]
        own: Any = module  # optional methods
        if hasattr(module, "prepare"):
            own.prepare(*every, torch.cat([s.error for s in data]))
        _check_forces(module, every)
        start = float(_loss(None, data, "train", self.scale))

        def objective() -> Tensor:
            extra = own.regularizer() if hasattr(module, "regularizer") else 0.0
            return _loss(module, data, "train", self.scale) / start + extra

        with torch.no_grad(), _in_eval_mode(module):
            before = float(_loss(module, data, "test", self.scale))
        best = before, copy.deepcopy(module.state_dict())

        def keep_best() -> bool:
            nonlocal best
            with torch.no_grad(), _in_eval_mode(module):
                now = float(_loss(module, data, "test", self.scale))
            if now < best[0]:
                best = now, copy.deepcopy(module.state_dict())
                return True
            return False

        if any(p.requires_grad for p in module.parameters()):
            _by_adam(module, objective, keep_best, progress)
            module.load_state_dict(best[1])
            _by_lbfgs(module, objective, keep_best)
            module.load_state_dict(best[1])
        module.eval()
        with torch.no_grad():
            force = [s.filter(module(*s.states)) for s in data]
            both = sum((s.test * f * s.error).sum(0) for s, f in zip(data, force, strict=True))
            square = sum((s.test * f * f).sum(0) for s, f in zip(data, force, strict=True))
            part = torch.as_tensor(both / torch.as_tensor(square).clamp_min(1e-300)).clamp(0, 1)
        return Shrunk(module.requires_grad_(False), part).eval()


@contextmanager
def _in_eval_mode(module: nn.Module) -> Generator[None]:
    """Switch a module to `eval` mode, and restore the modes of all submodules."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, trains in modes:
            part.training = trains


def _by_adam(
    module: nn.Module,
    objective: Callable[[], Tensor],
    keep_best: Callable[[], bool],
    progress: Callable[[float], None],
) -> None:
    """Adam steps until the validation error stops improving."""
    optimizer, last = torch.optim.Adam(module.parameters(), lr=RATE), 0
    for step in range(STEPS):
        optimizer.zero_grad()
        objective().backward()
        optimizer.step()
        if step % 10 == 9:
            last = step if keep_best() else last
            progress(step / STEPS)
        if step - last > PATIENCE:
            return


def _by_lbfgs(
    module: nn.Module, objective: Callable[[], Tensor], keep_best: Callable[[], bool]
) -> None:
    """L-BFGS iterations, because Adam ends beside the minimum."""
    optimizer = torch.optim.LBFGS(
        module.parameters(), max_iter=FINISH // 4, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective()
        value.backward()
        return value

    for _ in range(4):
        optimizer.step(closure)
        if not keep_best():
            return


def _training_data(
    problem: RegressionProblem,
    motion: FilteredMotion,
    solution: Solution,
    folds: TimeFolds,
    left_out: int | None,
) -> TrainingData:
    t, _, error, good, _ = motion_residuals(problem, motion, solution)
    fold, last = folds.of(t), folds.last
    out = torch.zeros_like(fold, dtype=torch.bool) if left_out is None else fold == left_out
    if left_out is not None:
        length = (folds.last - folds.first) / folds.count
        t, last = torch.where(fold > left_out, t - length, t), last - length
    # Alternate intervals of the remaining time; their number is that of the folds.
    test = TimeFolds(folds.first, last, folds.count).of(t) % 2 == (folds.count - 1) % 2
    states = (dof_positions(problem.mech, motion.q), motion.qd, motion.qdd)
    train, check, unused = (
        (good & mask[:, None]).to(error) for mask in (~out & ~test, ~out & test, out)
    )
    return TrainingData(states, motion.settings.double_filter, -error, train, check, unused)


def _squares(module: nn.Module | None, sheet: TrainingData, which: str) -> Tensor:
    """Sums of squared errors, `[dofs]`."""
    force = 0.0 if module is None else sheet.filter(module(*sheet.states))
    return (getattr(sheet, which) * (sheet.error - force).square()).sum(0)


def _total(module: nn.Module | None, sheets: Sequence[TrainingData], which: str) -> Tensor:
    """Sums of squared errors of all motions, `[dofs]`."""
    return torch.stack([_squares(module, s, which) for s in sheets]).sum(0)


def _loss(
    module: nn.Module | None, sheets: Sequence[TrainingData], which: str, scale: Tensor
) -> Tensor:
    total = _total(module, sheets, which)
    count = torch.stack([getattr(s, which).sum(0) for s in sheets]).sum(0).clamp_min(1)
    return (scale * total / count).mean()


def _check_forces(module: nn.Module, states: Sequence[Tensor]) -> None:
    """Check that a module returns forces."""
    few = [x[:5] for x in states]
    kinds = {x.dtype for x in module.parameters() if x.is_floating_point()} - {few[0].dtype}
    try:
        with torch.no_grad(), _in_eval_mode(module):
            found = module(*few)
        told = str(list(found.shape)) if isinstance(found, Tensor) else type(found).__name__
    except Exception as error:  # it is the caller's code, and may raise anything
        said = str(error).splitlines() or [type(error).__name__]
        found, told = None, f"an error ({said[0]})"
    if not isinstance(found, Tensor) or found.shape != few[1].shape:
        raise FitError(
            f"the residual {type(module).__name__} gives {told} for states of shape {list(few[1].shape)}.",
            "It is called as module(q, qd, qdd), positions, velocities and accelerations of that shape, and "
            "gives forces of it.",
            f"Its numbers are {kinds.pop()}, states {few[0].dtype}: pass residual=module.double()."
            if kinds
            else f"Pass ts.identification.Network({few[1].shape[1]}), or a module like it.",
        )
