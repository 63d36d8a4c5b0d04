"""Identification: fit what a layer learns to measured joint forces, by gradient descent."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from torchsko.dynamics import check_state
from torchsko.errors import MissingExtraError
from torchsko.learn.module import Dynamics
from torchsko.learn.regressor import inertia_divergence


def identify(
    layer: Dynamics,
    q: Tensor,
    qd: Tensor,
    qdd: Tensor,
    tau: Tensor,
    *,
    steps: int = 500,
    lr: float = 0.02,
    batch: int = 256,
    prior: float = 1e-4,
    progress: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Fit a layer's parameters to measured joint forces, in place, by Adam on random batches.

    The loss is the squared error of inverse dynamics, each joint in units of its root mean square
    force, plus `prior` times the mean `inertia_divergence` from the values at the start: what the data
    cannot see stays there.

    Args:
        layer: what it learns is fitted.
        q: measured configurations, `[samples, num_q]`.
        qd: velocities, `[samples, num_dof]` [rad/s or m/s].
        qdd: accelerations, `[samples, num_dof]` [rad/s^2 or m/s^2].
        tau: joint forces, `[samples, num_dof]` [N m or N].
        steps: of the optimiser.
        lr: first step size, annealed to zero by a cosine.
        batch: samples a step, drawn with replacement.
        prior: weight of the divergence; 0 for none.
        progress: show a progress bar, which needs tqdm.
        generator: source of randomness, on the device of the samples.

    Returns:
        The loss at every step, `[steps]`.

    Raises:
        ShapeError: when a tensor does not fit the mechanism.
        MissingExtraError: when a progress bar is wanted and tqdm is not installed.
    """
    with torch.no_grad():
        reference = layer.mechanism()
    check_state(reference, q=q, qd=qd, qdd=qdd, tau=tau)
    scale = tau.square().mean(0).sqrt()
    optimiser = torch.optim.Adam(layer.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    losses = []
    for _ in _counted(steps, progress):
        pick = torch.randint(tau.shape[0], (batch,), generator=generator, device=tau.device)
        error = (layer.inverse_dynamics(q[pick], qd[pick], qdd[pick]) - tau[pick]) / scale
        loss = (
            error.square().mean() + prior * inertia_divergence(layer.mechanism(), reference).mean()
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def _counted(steps: int, progress: bool) -> Iterable[int]:
    if not progress:
        return range(steps)
    try:
        from tqdm import tqdm
    except ImportError:
        raise MissingExtraError(
            "the progress bar needs tqdm, which is not installed.\n"
            "It belongs to the extra for identification.\n"
            'Type pip install "torchsko[identify]", or pass progress=False.'
        ) from None
    return tqdm(range(steps), desc="fitting", unit="step", leave=False)
