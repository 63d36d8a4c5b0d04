r"""Controls that arrive late: what was sent T ago, between samples by a straight line.

Sampled every h, the control sent at step k arrives at step k + T/h:

.. math::
    u_k = \sum_i \max(0,\, 1 - |i - T/h|)\; s_{k-i} .

The weights change with T without a jump, so delays have derivatives (at a whole number of steps that of the
line to its right), and may differ by actuator and sample.
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
    """Delays of controls, for `torchsko.ActuatedControl`.

    Attributes:
        time: T, one for all actuators, or `[*batch, n]` [s]; not negative.
        dt: the time step that it is used with [s].
        before: controls sent before the start, `[*batch, n]`; zero when left out.
        samples: how many controls are on their way at most, for a time that is learned; found from `time`
            when left out, which reads it.

    Raises:
        TorchskoError: on a time that is negative, not finite, or longer than `samples` steps.
    """

    time: float | Tensor
    dt: float
    before: Tensor | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        longest = self._checked()
        if self.samples is None:
            object.__setattr__(self, "samples", math.ceil(longest / self.dt - 1e-9))

    def _checked(self) -> float:
        """The longest time; those after which a control comes too weak, or never, are refused.

        With `samples` given they are looked at only where that does not wait.
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
                "What is sent arrives later, in finite time.",
                "Pass numbers of seconds, from 0 on.",
            )
        steps = high / self.dt
        rounding = torch.finfo(time.dtype).eps * steps if isinstance(time, Tensor) else 0.0
        needed = math.ceil(steps - rounding - 1e-9)
        if most is not None and needed > most:
            raise TorchskoError(
                f"the delay is up to {high} s, {needed} time steps of {self.dt} s, with samples={most}.",
                "A control that was sent before those on their way never arrives.",
                f"Pass samples={needed} or more, or hold what is learned below {most * self.dt} s.",
            )
        return high

    def start(self, like: Tensor, count: int) -> Tensor:
        """What is on its way at the start, `[*batch, samples * count]`; a tensor `[*batch, k]` to be like.

        Raises:
            TorchskoError: when the time has changed, as one that is learned does, to one that is refused.
        """
        self._checked()
        sent = like.new_zeros(*like.shape[:-1], self._samples, count)
        sent = sent if self.before is None else sent + self.before[..., None, :]
        return sent.flatten(-2)

    def through(self, ctrl: Tensor, sent: Tensor, dt: float) -> tuple[Tensor, Tensor]:
        """What arrives, `[*batch, n]`, and what is on its way after this step.

        Args:
            ctrl: sent now, `[*batch, n]`.
            sent: on its way so far, the latest first, `[*batch, samples * n]`.
            dt: time step [s].

        Raises:
            TorchskoError: when that is another than the delay's.
        """
        if not isinstance(dt, Tensor) and dt != self.dt:
            raise TorchskoError(
                f"the time step is {dt} s, that of the delay {self.dt} s.",
                "How many controls are on their way depends on it.",
                f"Pass Delay(time, dt={dt}).",
            )
        if not self._samples:
            return ctrl.expand(*sent.shape[:-1], ctrl.shape[-1]), sent
        count = ctrl.shape[-1]
        before = sent.unflatten(-1, (self._samples, count))
        now = ctrl.expand(*before.shape[:-2], count)[..., None, :]
        line = torch.cat([now, before], -2)
        steps = self.time / self.dt
        rows = steps[..., None, :] if isinstance(steps, Tensor) and steps.ndim else steps
        weights = self._weights(ctrl, rows)
        return (weights * line).sum(-2), line[..., : self._samples, :].flatten(-2)

    def _weights(self, like: Tensor, steps: float | Tensor) -> Tensor:
        """Of the samples that a delay of so many steps is between, `[*batch, samples + 1, n or 1]`.

        At a whole number of steps the line to its right counts, or that to its left where there is none:
        the formula above has a kink there, of which each operation would take a side of its own.
        """
        late = torch.arange(self._samples + 1, dtype=like.dtype, device=like.device)[:, None]
        off = late - steps
        none = torch.zeros_like(off)
        passed = torch.where(off <= 0, none + 1, none)[..., 1 : self._samples, :]
        behind = late - passed.sum(-2, keepdim=True)
        falling = torch.where(behind == 0, 1 + off, none)
        return torch.where(behind == 1, 1 - off, falling)

    @property
    def _samples(self) -> int:
        return self.samples or 0
