"""Identification: fit what a layer learns to measured joint forces, by gradient descent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real

import torch
from torch import Tensor, nn

from torchsko.errors import CompilerError, FitError, FusedError, MissingExtraError
from torchsko.fused.automatic import say_built
from torchsko.fused.build.toolchain import find_toolchain
from torchsko.fused.fuse import fuse
from torchsko.learn.divergence import inertia_divergence
from torchsko.learn.dynamics_module import Dynamics
from torchsko.learn.torque_samples import as_samples
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.optional_dependencies import require
from torchsko.verbs.dynamics import inverse_dynamics

_PAYS = 400_000
"""Samples times steps for which building kernels takes less time than it saves, of an arm by half or more."""


def train(
    layer: Dynamics,
    q: Tensor,
    qd: Tensor,
    qdd: Tensor,
    tau: Tensor,
    *,
    weight: Tensor | None = None,
    steps: int = 400,
    lr: float = 0.03,
    batch: int = 1024,
    prior: float = 1e-4,
    progress: bool | None = None,
    generator: torch.Generator | None = None,
    fused: bool | None = None,
) -> Tensor:
    """Fit a layer's parameters to measured joint forces, in place, by Adam on random batches.

    The loss is the weighted mean square error of inverse dynamics, plus `prior` times the mean
    `inertia_divergence` from the values at the start, which keeps there whatever the data cannot
    see.

    Args:
        layer: what it learns is fitted.
        q: measured configurations, `[*samples, num_q]`. Leading dimensions, `[trajectories, times]`
            say, all count samples; they are the same for every measurement.
        qd: velocities, `[*samples, num_dof]` [rad/s or m/s].
        qdd: accelerations, `[*samples, num_dof]` [rad/s^2 or m/s^2].
        tau: joint forces, `[*samples, num_dof]` [N m or N].
        weight: of each squared error, `[*samples, num_dof]` or `[num_dof]`: one over the variance of
            its noise is the best, zero leaves out what the model does not describe (a joint stuck at
            rest, whose dry friction can be anything). One over each dof's mean square force when
            left out.
        steps: of the optimiser.
        lr: first step size, annealed to zero by a cosine.
        batch: samples a step, drawn with replacement.
        prior: weight of the divergence; 0 for none.
        progress: show a progress bar, which needs tqdm; where tqdm is installed, when left out.
        generator: source of randomness, on the device of the samples.
        fused: whether kernels, built within seconds, compute the error, the divergence and their gradients.
            None: where a compiler is there, on a CPU, and steps times batch are 400 000 at least, which pays
            for the build, unless the layer declines (``ts.Dynamics(..., fused=False)``); a parametrization
            that cannot be traced is left to the eager functions. The logger ``torchsko`` says so where they
            are built now, and the progress bar. True: errors of tracing are raised. Both ways give the same
            fit to rounding.

    Returns:
        The squared error, without the prior's part, at every step, `[steps]`.

    Raises:
        ShapeError: when a tensor does not fit the mechanism or has other leading dimensions.
        FitError: before the first step, on measurements that are not finite, a joint without force
            where no weight is given, options out of range, nothing to learn; during the fit, when the
            error leaves the finite numbers (the parameters are then the last that gave a finite one).
        MissingExtraError: when a progress bar is asked for and tqdm is not installed.
        FusedError: with ``fused=True``, when a parametrization cannot be traced.
    """
    _check_options(steps=steps, lr=lr, batch=batch, prior=prior)
    learned = [p for p in layer.parameters() if p.requires_grad]
    if not learned:
        raise FitError(
            "the layer has nothing to learn.",
            "A fit changes its parameters, and it has none.",
            'Pass ts.Dynamics(mech, learn={"link1": ts.learn.InertiaLogCholesky()}), say.',
        )
    with torch.no_grad():
        reference = layer.mechanism()
    samples = as_samples(reference, q, qd, qdd, tau, weight)
    if prior:
        _check_prior(reference)
    optimiser = torch.optim.Adam(learned, lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    losses, count = [], len(samples.tau)
    before = [p.detach().clone() for p in learned]
    objective = _objective(layer, reference, fused, steps * batch)
    for step in _counted(steps, progress, objective.is_fused):
        rows = torch.randint(count, (batch,), generator=generator, device=tau.device)
        some = samples.pick(rows)
        errors = objective.misfit(some.q, some.qd, some.qdd, some.tau, some.weight)
        misfit = errors.mean() / reference.num_dof
        loss = misfit + prior * objective.divergence() if prior else misfit
        optimiser.zero_grad()
        loss.backward()
        slope = torch.nn.utils.get_total_norm([p.grad for p in learned if p.grad is not None])
        if not (loss.isfinite() and slope.isfinite()):
            _give_back(learned, before)
            raise FitError(
                f"the error is {loss.item():g} at step {step}, the length of its gradient "
                f"{slope.item():g}.",
                "The last step went too far; the parameters are those before it.",
                f"Pass a smaller lr, {lr / 10:g} say.",
            )
        before = [p.detach().clone() for p in learned]
        optimiser.step()
        schedule.step()
        losses.append(misfit.detach())
    return torch.stack(losses)


@dataclass(frozen=True)
class _Objective:
    """What a fit makes small: the error of each sample, and the way from the start."""

    misfit: Callable[..., Tensor]
    divergence: Callable[[], Tensor]
    is_fused: bool


def _objective(
    layer: Dynamics, reference: Mechanism, fused: bool | None, evaluations: int
) -> _Objective:
    """The objective, as kernels where that was asked for, or pays."""

    def misfit(
        mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, tau: Tensor, weight: Tensor
    ) -> Tensor:
        robot = layer.mechanism().replace(scalar=mech.scalar)
        return (weight * (inverse_dynamics(robot, q, qd, qdd) - tau).square()).sum(-1)

    def divergence(mech: Mechanism) -> Tensor:
        robot = layer.mechanism().replace(scalar=mech.scalar)
        return inertia_divergence(robot, reference).mean()

    may = fused is None and layer.fused is not False and reference.device.type == "cpu"
    if fused or (may and evaluations >= _PAYS):
        try:
            toolchain = find_toolchain()
            errors = fuse(misfit, reference, shapes={"weight": (reference.num_dof,)})
            way = fuse(divergence, reference)
            # Traced now, so that what has no rule is known before the first step.
            way.function(()).trace()
            error = errors.function(("q", "qd", "qdd", "tau", "weight"))
            error.trace()
            asked = fused or layer.fused
            # Where the disk has that of the error, those of gradients and divergence were built with it.
            if not asked and not error.is_built(reference.dtype, toolchain):
                say_built(reference.name)
            return _Objective(errors, way, True)
        except (FusedError, CompilerError):
            if fused:
                raise
    return _Objective(partial(misfit, reference), partial(divergence, reference), False)


def _give_back(learned: list[nn.Parameter], values: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(learned, values, strict=True):
            parameter.copy_(value)


def _check_options(*, steps: int, lr: float, batch: int, prior: float) -> None:
    """Refuse options out of range, by name."""
    whole, positive = "a whole number, at least 1", "a finite positive number"
    for name, value, fits, what, usual in (
        ("steps", steps, isinstance(steps, Integral) and steps >= 1, whole, 400),
        ("batch", batch, isinstance(batch, Integral) and batch >= 1, whole, 1024),
        ("lr", lr, isinstance(lr, Real) and 0 < lr < math.inf, positive, 0.03),
        (
            "prior",
            prior,
            isinstance(prior, Real) and 0 <= prior < math.inf,
            f"{positive}, or 0",
            1e-4,
        ),
    ):
        if not fits:
            raise FitError(
                f"{name} is {value!r}.",
                f"It has to be {what}.",
                f"Pass {name}={usual}, the default.",
            )


def _check_prior(reference: Mechanism) -> None:
    """Refuse a start from which the divergence is no number."""
    known = inertia_divergence(reference, reference).isfinite()
    known = known.reshape(-1, reference.num_bodies).all(0).tolist()
    bad = [n for n, is_known in zip(reference.body_names, known, strict=True) if not is_known]
    if bad:
        raise FitError(
            f"body {', '.join(map(repr, bad))} has no positive definite inertia to stay near.",
            "The prior measures a distance from the values at the start, infinite from there.",
            "Pass prior=0, or give the body mass and inertia in all directions.",
        )


def _counted(steps: int, progress: bool | None, is_fused: bool) -> Iterable[int]:
    """The numbers of the steps, with a progress bar if one is wanted or possible."""
    if progress is False:
        return range(steps)
    try:
        tqdm = require("tqdm", "identify").tqdm
    except MissingExtraError:
        if progress:
            raise
        return range(steps)
    return tqdm(range(steps), desc="identifying" + " by kernels" * is_fused, unit="step")
