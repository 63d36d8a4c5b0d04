r"""Delayed controls, interpolated linearly between samples.

Sampled every h, the control sent at step k arrives at step k + T/h:

.. math::
    u_k = \sum_i \max(0,\, 1 - |i - T/h|)\; s_{k-i} .

The weights are continuous in T, so delays have derivatives (at an integer number of steps the derivative from
the right), and may differ by actuator and sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.errors import TorchskoError
from torchsko.utils.concrete_values import concrete_values


@dataclass(frozen=True, eq=False)
class Delay:
    """Delays of controls, for `torchsko.actuators.ActuatedControl`.

    Attributes:
        time: T, one for all actuators, or `[*batch, n]` [s]; not negative.
        dt: the time step of the rollout [s].
        before: controls sent before the start, `[*batch, n]`; default zero.
        samples: maximum number of delayed controls, for a time that is learned; default: from `time`, whose
            values are then read.

    Raises:
        TorchskoError: on a time that is negative, not finite, or longer than `samples` steps.
    """

    time: float | Tensor
    dt: float
    before: Tensor | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        longest = self._check_time()
        if self.samples is None:
            object.__setattr__(self, "samples", math.ceil(longest / self.dt - 1e-9))

    def _check_time(self) -> float:
        """Check the time, and return its maximum.

        With `samples`, values are read only where that does not wait.
        """
        time, most = self.time, self.samples
        if isinstance(time, Tensor):
            read = concrete_values(time) if most is not None else time.detach()
            low = high = 0.0
            if read is not None and time.numel():
                low, high = float(read.min()), float(read.max())
        else:
            low = high = time
        if not (0 <= low and high < math.inf and self.dt > 0):
            raise TorchskoError(
                f"the delay is {low} to {high} s, with the time step {self.dt} s.",
                "A delay is a finite time of 0 or more.",
                "Pass numbers of seconds, 0 or more.",
            )
        steps = high / self.dt
        rounding = torch.finfo(time.dtype).eps * steps if isinstance(time, Tensor) else 0.0
        needed = math.ceil(steps - rounding - 1e-9)
        if most is not None and needed > most:
            raise TorchskoError(
                f"the delay is up to {high} s, {needed} time steps of {self.dt} s, with samples={most}.",
                "Controls sent earlier would not arrive.",
                f"Pass samples={needed} or more, or keep a learned time below {most * self.dt} s.",
            )
        return high

    def initial_queue(self, like: Tensor, count: int) -> Tensor:
        """Delayed controls at the start, `[*batch, samples * count]`; `like` is `[*batch, k]`."""
        self._check_time()
        queue = like.new_zeros(*like.shape[:-1], self._samples, count)
        queue = queue if self.before is None else queue + self.before[..., None, :]
        return queue.flatten(-2)

    def check_step(self, dt: float | Tensor) -> None:
        """Check that the time step of a rollout is that of the delay.

        Raises:
            TorchskoError: when it differs from the delay's.
        """
        if not isinstance(dt, Tensor) and dt != self.dt:
            raise TorchskoError(
                f"the time step is {dt} s, that of the delay is {self.dt} s.",
                "The number of delayed controls depends on it.",
                f"Pass Delay(time, dt={dt}).",
            )

    def advance(self, ctrl: Tensor, queue: Tensor) -> tuple[Tensor, Tensor]:
        """Controls that arrive, `[*batch, n]`, and the queue after this step.

        Args:
            ctrl: controls sent now, `[*batch, n]`.
            queue: delayed controls, the latest first, `[*batch, samples * n]`.
        """
        if not self._samples:
            return ctrl.expand(*queue.shape[:-1], ctrl.shape[-1]), queue
        count = ctrl.shape[-1]
        before = queue.unflatten(-1, (self._samples, count))
        latest = ctrl.expand(*before.shape[:-2], count)[..., None, :]
        line = torch.cat([latest, before], -2)
        steps = self.time / self.dt
        rows = steps[..., None, :] if isinstance(steps, Tensor) and steps.ndim else steps
        weights = self._weights(ctrl, rows)
        return (weights * line).sum(-2), line[..., : self._samples, :].flatten(-2)

    def _weights(self, like: Tensor, steps: float | Tensor) -> Tensor:
        """Interpolation weights of all samples for a delay in steps, `[*batch, samples + 1, n or 1]`.

        At an integer number of steps the line to its right is used, or to its left at the end: the formula of
        the module has a kink there, where automatic differentiation would mix both sides.
        """
        index = torch.arange(self._samples + 1, dtype=like.dtype, device=like.device)[:, None]
        offset = index - steps
        zero = torch.zeros_like(offset)
        passed = torch.where(offset <= 0, zero + 1, zero)[..., 1 : self._samples, :]
        behind = index - passed.sum(-2, keepdim=True)
        rising = torch.where(behind == 0, 1 + offset, zero)
        return torch.where(behind == 1, 1 - offset, rising)

    @property
    def _samples(self) -> int:
        return self.samples or 0
