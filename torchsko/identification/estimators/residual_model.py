"""A module of yours as residual force: trained on what a fit leaves over, kept where it predicts."""

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
"""Of Adam at most, and without a better prediction of what is left out."""

RATE = 1e-2
"""Of Adam."""

FINISH = 40
"""Iterations of L-BFGS from where Adam ended."""


@dataclass(frozen=True, eq=False)
class Sheet:
    """States of one motion, and what is left of its filtered forces.

    Attributes:
        states: positions, velocities and accelerations, each `[states, dofs]`.
        filter: takes forces at the states to filtered ones.
        error: measured less predicted, filtered, `[samples, dofs]`.
        train: samples to train on, `[samples, dofs]`, of 0 and 1.
        test: samples left out.
    """

    states: tuple[Tensor, Tensor, Tensor]
    filter: Callable[[Tensor], Tensor]
    error: Tensor
    train: Tensor
    test: Tensor


def trained(
    module: nn.Module,
    problem: RegressionProblem,
    motions: Sequence[FilteredMotion],
    solution: Solution,
    folds: TimeFolds,
    scale: Tensor,
    tell: Callable[[float], None],
) -> tuple[Shrunk, Tensor]:
    """The module, a copy, trained by Adam and then L-BFGS on what a solution leaves over.

    Every other one of the folds' stretches is left out, the last among them if they are odd. The best for
    them is kept, and of its force the part that is best there, none where it does not help. What drops out
    or is normalised does so while it trains alone: judged, and given back, is the module at rest (`eval`).

    Args:
        module: called with positions, velocities, accelerations `[samples, num_dof]`, gives forces. Its
            ``regularizer()``, where it has one, is added to the mean square error over its start; its
            ``prepare(q, qd, qdd, error)`` is called first.
        problem: what explains forces.
        motions: to train on.
        solution: what was fitted.
        folds: stretches of time.
        scale: weights of dofs.
        tell: called with the part that is done.

    Returns:
        The module, and mean square errors in what was left out, `[1, num_dof]`.

    Raises:
        FitError: when the module gives no forces.
    """
    module = copy.deepcopy(module)
    sheets = [_sheet(problem, motion, solution, folds) for motion in motions]
    every = [torch.cat(x) for x in zip(*(s.states for s in sheets), strict=True)]
    own: Any = module  # what it has besides a force, nn.Module does not say
    if hasattr(module, "prepare"):
        own.prepare(*every, torch.cat([s.error for s in sheets]))
    _refuse(module, every)
    start = float(_loss(None, sheets, "train", scale))

    def objective() -> Tensor:
        extra = own.regularizer() if hasattr(module, "regularizer") else 0.0
        return _loss(module, sheets, "train", scale) / start + extra

    with torch.no_grad(), _at_rest(module):
        before = float(_loss(module, sheets, "test", scale))
    best = before, copy.deepcopy(module.state_dict())

    def judged() -> bool:
        nonlocal best
        with torch.no_grad(), _at_rest(module):
            now = float(_loss(module, sheets, "test", scale))
        if now < best[0]:
            best = now, copy.deepcopy(module.state_dict())
            return True
        return False

    if any(p.requires_grad for p in module.parameters()):
        _by_adam(module, objective, judged, tell)
        module.load_state_dict(best[1])
        _by_lbfgs(module, objective, judged)
        module.load_state_dict(best[1])
    module.eval()
    with torch.no_grad():
        force = [s.filter(module(*s.states)) for s in sheets]
        both = sum((s.test * f * s.error).sum(0) for s, f in zip(sheets, force, strict=True))
        square = sum((s.test * f * f).sum(0) for s, f in zip(sheets, force, strict=True))
        part = torch.as_tensor(both / torch.as_tensor(square).clamp_min(1e-300)).clamp(0, 1)
        shrunk = Shrunk(module.requires_grad_(False), part).eval()
        left = torch.stack([_squares(shrunk, s, "test") for s in sheets]).sum(0)
        count = torch.stack([s.test.sum(0) for s in sheets]).sum(0).clamp_min(1)
    return shrunk, (left / count)[None]


@contextmanager
def _at_rest(module: nn.Module) -> Generator[None]:
    """The module as it will be used; what trains in it trains on after."""
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
    judged: Callable[[], bool],
    tell: Callable[[float], None],
) -> None:
    """Steps until predictions of what is left out get no better."""
    optimizer, last = torch.optim.Adam(module.parameters(), lr=RATE), 0
    for step in range(STEPS):
        optimizer.zero_grad()
        objective().backward()
        optimizer.step()
        if step % 10 == 9:
            last = step if judged() else last
            tell(step / STEPS)
        if step - last > PATIENCE:
            return


def _by_lbfgs(
    module: nn.Module, objective: Callable[[], Tensor], judged: Callable[[], bool]
) -> None:
    """A few iterations, for Adam ends beside the minimum."""
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
        if not judged():
            return


def _sheet(
    problem: RegressionProblem, motion: FilteredMotion, solution: Solution, folds: TimeFolds
) -> Sheet:
    t, _, error, good = motion_residuals(problem, motion, solution)
    out = (folds.of(t) % 2 == (folds.count - 1) % 2)[:, None].expand_as(good)
    states = (dof_positions(problem.mech, motion.q), motion.qd, motion.qdd)
    train, test = (good & ~out).to(error), (good & out).to(error)
    return Sheet(states, motion.settings.double_filter, -error, train, test)


def _squares(module: nn.Module | None, sheet: Sheet, which: str) -> Tensor:
    """Sums of squares of what is left, `[dofs]`."""
    force = 0.0 if module is None else sheet.filter(module(*sheet.states))
    return (getattr(sheet, which) * (sheet.error - force).square()).sum(0)


def _loss(module: nn.Module | None, sheets: Sequence[Sheet], which: str, scale: Tensor) -> Tensor:
    total = torch.stack([_squares(module, s, which) for s in sheets]).sum(0)
    count = torch.stack([getattr(s, which).sum(0) for s in sheets]).sum(0).clamp_min(1)
    return (scale * total / count).mean()


def _refuse(module: nn.Module, states: Sequence[Tensor]) -> None:
    """Refuse a module that gives no forces."""
    few = [x[:5] for x in states]
    kinds = {x.dtype for x in module.parameters() if x.is_floating_point()} - {few[0].dtype}
    try:
        with torch.no_grad(), _at_rest(module):
            found = module(*few)
        told = str(list(found.shape)) if isinstance(found, Tensor) else type(found).__name__
    except Exception as error:  # it is the caller's code, and may raise anything
        said = str(error).splitlines() or [type(error).__name__]
        found, told = None, f"an error ({said[0]})"
    if not isinstance(found, Tensor) or found.shape != few[1].shape:
        raise FitError(
            f"the residual {type(module).__name__} gives {told} for states of shape {list(few[1].shape)}.\n"
            "It is called as module(q, qd, qdd), positions, velocities and accelerations of that shape, and "
            "gives forces of it.\n"
            + (
                f"Its numbers are {kinds.pop()}, states {few[0].dtype}: pass residual=module.double()."
                if kinds
                else f"Pass ts.identification.Network({few[1].shape[1]}), or a module like it."
            )
        )
