"""From actions to controls."""

from __future__ import annotations

from torch import Tensor

from torchsko.actuators.delay import Delay


def scaled(action: Tensor, center: Tensor, scale: float | Tensor) -> Tensor:
    """Controls around a center: actions between -1 and 1 times a scale, clipped beyond.

    Args:
        action: `[n]`.
        center: control of the action 0, `[n]`.
        scale: change of the control for the action 1, a number or `[n]`.

    Returns:
        Controls, `[n]`.
    """
    return center + scale * action.clamp(-1, 1)


def delayed(ctrl: Tensor, queue: Tensor, delay: float | Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """Controls that arrive after a delay, and the queue of those on their way.

    Args:
        ctrl: controls sent now, `[n]`.
        queue: controls sent before, the latest first, `[samples, n]`. Its length bounds the delay.
        delay: at most samples * dt, which may be a parameter of the environment [s].
        dt: duration of a control step [s].

    Returns:
        Controls of this step, `[n]`, interpolated linearly; and the queue after it.
    """
    arrived, after = Delay(delay, dt, samples=len(queue)).advance(ctrl, queue.flatten())
    return arrived, after.unflatten(-1, queue.shape)
