"""Training of a `Dynamics` layer on measured joint forces by gradient descent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real

import torch
from torch import Tensor

from torchsko.errors import CompilerError, FitError, FusedError, MissingExtraError
from torchsko.fused.automatic import log_automatic_build
from torchsko.fused.build.toolchain import find_toolchain
from torchsko.fused.fuse import fuse
from torchsko.learn.divergence import inertia_divergence
from torchsko.learn.dynamics_module import Dynamics
from torchsko.learn.torque_samples import as_samples
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.optional_dependencies import require
from torchsko.verbs.dynamics import inverse_dynamics

_MIN_KERNEL_EVALUATIONS = 400_000
"""Samples times steps from which kernels save more time than their build takes, for an arm."""


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
    """Fit a layer's parameters to measured joint forces by Adam on random batches, in place.

    The loss is the weighted mean square error of inverse dynamics plus `prior` times the mean
    `inertia_divergence` from the initial values. The prior keeps unidentifiable parameters at their initial
    values.

    Args:
        layer: layer to train.
        q: measured positions, `[*samples, num_q]`. All leading dimensions, for example
            `[trajectories, times]`, index samples, and are equal for all measurements.
        qd: velocities, `[*samples, num_dof]` [rad/s or m/s].
        qdd: accelerations, `[*samples, num_dof]` [rad/s^2 or m/s^2].
        tau: joint forces, `[*samples, num_dof]` [N m or N].
        weight: weight of each squared error, `[*samples, num_dof]` or `[num_dof]`. One over the noise
            variance is optimal. Zero excludes a measurement that the model does not describe, such as the
            dry friction of a joint at rest. Default: one over the mean square force of each dof.
        steps: number of optimizer steps.
        lr: initial learning rate, reduced to zero on a cosine schedule.
        batch: samples in each step, drawn with replacement.
        prior: weight of the divergence; 0 disables it.
        progress: shows a progress bar, which needs tqdm. Default: when tqdm is installed.
        generator: random generator on the device of the samples.
        fused: selects compiled kernels for the error, the divergence and their gradients. True: errors of
            tracing are raised. False: eager functions. None: kernels on a CPU with a compiler when steps
            times batch is at least 400 000, unless the layer has ``fused=False``. A parametrization that
            cannot be traced then runs eagerly, and the logger ``torchsko`` reports a build. Results agree
            to rounding.

    Returns:
        Mean square error of each step, without the prior, `[steps]`.

    Raises:
        ShapeError: when a tensor does not fit the mechanism, or leading dimensions differ.
        FitError: before the first step, when measurements are not finite, a joint has no force and
            no weight is given, an option is out of range, or the layer learns nothing. During training, when
            the error is not finite; the parameters are then those of the last finite error.
        MissingExtraError: when ``progress=True`` and tqdm is not installed.
        FusedError: with ``fused=True``, when a parametrization cannot be traced.
    """
    _check_options(steps=steps, lr=lr, batch=batch, prior=prior)
    learned = [p for p in layer.parameters() if p.requires_grad]
    if not learned:
        raise FitError(
            "the layer has no learnable parameters.",
            "Training needs at least one.",
            'Pass ts.Dynamics(mech, learn={"link1": ts.learn.InertiaLogCholesky()}).',
        )
    with torch.no_grad():
        reference = layer.mechanism()
    samples = as_samples(reference, q, qd, qdd, tau, weight)
    if prior:
        _check_prior(reference)
    optimizer = torch.optim.Adam(learned, lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses, count = [], len(samples.tau)
    before = [p.detach().clone() for p in learned]
    objective = _objective(layer, reference, fused, steps * batch)
    for step in _progress(steps, progress, objective.is_fused):
        rows = torch.randint(count, (batch,), generator=generator, device=tau.device)
        drawn = samples.pick(rows)
        errors = objective.misfit(drawn.q, drawn.qd, drawn.qdd, drawn.tau, drawn.weight)
        misfit = errors.mean() / reference.num_dof
        loss = misfit + prior * objective.divergence() if prior else misfit
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in learned if p.grad is not None])
        if not (loss.isfinite() and norm.isfinite()):
            with torch.no_grad():
                for parameter, value in zip(learned, before, strict=True):
                    parameter.copy_(value)
            raise FitError(
                f"the error is {loss.item():g} at step {step}, the norm of its gradient {norm.item():g}.",
                "The last step was too long, and the parameters have been reset to those before it.",
                f"Pass a smaller learning rate, for example lr={lr / 10:g}.",
            )
        before = [p.detach().clone() for p in learned]
        optimizer.step()
        schedule.step()
        losses.append(misfit.detach())
    return torch.stack(losses)


@dataclass(frozen=True)
class _Objective:
    """Terms of the loss: squared error of each sample, and divergence from the initial values."""

    misfit: Callable[..., Tensor]
    divergence: Callable[[], Tensor]
    is_fused: bool


def _objective(
    layer: Dynamics, reference: Mechanism, fused: bool | None, evaluations: int
) -> _Objective:
    """Build the objective, as kernels when requested or worthwhile."""

    def misfit(
        mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, tau: Tensor, weight: Tensor
    ) -> Tensor:
        robot = layer.mechanism()
        return (weight * (inverse_dynamics(robot, q, qd, qdd) - tau).square()).sum(-1)

    def divergence(mech: Mechanism) -> Tensor:
        robot = layer.mechanism()
        return inertia_divergence(robot, reference).mean()

    allowed = fused is None and layer.fused is not False and reference.device.type == "cpu"
    if fused or (allowed and evaluations >= _MIN_KERNEL_EVALUATIONS):
        try:
            toolchain = find_toolchain()
            errors = fuse(misfit, reference, shapes={"weight": (reference.num_dof,)})
            distance = fuse(divergence, reference)
            # Trace now, so that an operation without a rule is found before the first step.
            distance.function(()).trace()
            error = errors.function(("q", "qd", "qdd", "tau", "weight"))
            error.trace()
            requested = fused or layer.fused
            # A cached kernel of the error implies cached kernels of gradients and divergence.
            if not requested and not error.is_built(reference.dtype, toolchain):
                log_automatic_build(reference.name)
            return _Objective(errors, distance, True)
        except (FusedError, CompilerError):
            if fused:
                raise
    return _Objective(partial(misfit, reference), partial(divergence, reference), False)


def _check_options(*, steps: int, lr: float, batch: int, prior: float) -> None:
    """Raise for an option out of range."""
    whole, positive = "an integer, at least 1", "a finite positive number"
    for name, value, valid, domain, default in (
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
        if not valid:
            raise FitError(
                f"{name} is {value!r}.",
                f"It has to be {domain}.",
                f"Pass {name}={default}, the default.",
            )


def _check_prior(reference: Mechanism) -> None:
    """Raise when a body's initial inertia has no finite divergence."""
    finite = inertia_divergence(reference, reference).isfinite()
    finite = finite.reshape(-1, reference.num_bodies).all(0).tolist()
    bad = [n for n, is_finite in zip(reference.body_names, finite, strict=True) if not is_finite]
    if bad:
        raise FitError(
            f"the initial inertia of body {', '.join(map(repr, bad))} is not positive definite.",
            "The divergence from it, which the prior penalizes, is infinite.",
            "Pass prior=0, or give the body mass and inertia in all directions.",
        )


def _progress(steps: int, progress: bool | None, is_fused: bool) -> Iterable[int]:
    """Step numbers, with a progress bar when requested, or by default when tqdm is installed."""
    if progress is False:
        return range(steps)
    try:
        tqdm = require("tqdm", "identify").tqdm
    except MissingExtraError:
        if progress:
            raise
        return range(steps)
    return tqdm(range(steps), desc="training" + " with kernels" * is_fused, unit="step")
