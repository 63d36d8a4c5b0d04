"""Identification: fit what a layer learns to measured joint forces, by gradient descent."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from torchsko.dynamics import inverse_dynamics
from torchsko.extras import require
from torchsko.learn.divergence import inertia_divergence
from torchsko.learn.module import Dynamics
from torchsko.mechanism.state import check_state


def identify(
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
    progress: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Fit a layer's parameters to measured joint forces, in place, by Adam on random batches.

    The loss is the weighted mean square error of inverse dynamics, plus `prior` times the mean
    `inertia_divergence` from the values at the start, which keeps there whatever the data cannot
    see.

    Args:
        layer: what it learns is fitted.
        q: measured configurations, `[samples, num_q]`.
        qd: velocities, `[samples, num_dof]` [rad/s or m/s].
        qdd: accelerations, `[samples, num_dof]` [rad/s^2 or m/s^2].
        tau: joint forces, `[samples, num_dof]` [N m or N].
        weight: of each squared error, `[samples, num_dof]`: one over the variance of its noise is
            the best, zero leaves out what the model does not describe (a joint stuck at rest, whose
            dry friction can be anything). One over each joint's mean square force when left out.
        steps: of the optimiser.
        lr: first step size, annealed to zero by a cosine.
        batch: samples a step, drawn with replacement.
        prior: weight of the divergence; 0 for none.
        progress: show a progress bar, which needs tqdm.
        generator: source of randomness, on the device of the samples.

    Returns:
        The squared error, without the prior's part, at every step, `[steps]`.

    Raises:
        ShapeError: when a tensor does not fit the mechanism.
        MissingExtraError: when a progress bar is wanted and tqdm is not installed.
    """
    with torch.no_grad():
        reference = layer.mechanism()
    weight = torch.ones_like(tau) / tau.square().mean(0) if weight is None else weight
    check_state(reference, q=q, qd=qd, qdd=qdd, tau=tau, weight=weight)
    optimiser = torch.optim.Adam(layer.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    losses = []
    for _ in _counted(steps, progress):
        pick = torch.randint(tau.shape[0], (batch,), generator=generator, device=tau.device)
        mech = layer.mechanism()
        error = inverse_dynamics(mech, q[pick], qd[pick], qdd[pick]) - tau[pick]
        misfit = (weight[pick] * error.square()).mean()
        loss = misfit + prior * inertia_divergence(mech, reference).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        losses.append(misfit.detach())
    return torch.stack(losses)


def _counted(steps: int, progress: bool) -> Iterable[int]:
    if not progress:
        return range(steps)
    tqdm = require("tqdm", "identify").tqdm
    return tqdm(range(steps), desc="identifying", unit="step")
