"""Comparison of kernels with their source on one sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch._subclasses import FakeTensor

from torchsko.errors import FusedError
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.clean import in_clean_thread
from torchsko.fused.tracing.watch import is_within

Source = Callable[[Sequence[Tensor]], Sequence[Tensor]]

RELATIVE_TOLERANCE = {torch.float32: 1e-2, torch.float64: 1e-6}
"""Largest error relative to the largest result: long rollouts amplify rounding to about a tenth of it."""

MIN_SCALE = 1e-3
"""Scale of the comparison for smaller results, which may be differences of larger numbers."""

PROBE_EPS = (16, -16, 7, -7, 29, -29, 53, -53)
"""Changes of the inputs, in units of rounding, by which the sensitivity of the results is measured.

There are several because a result that consists of rounding errors, such as a residual, has few values,
and may be equal at two inputs."""

MAX_SECONDS, MAX_SHARE = 0.1, 0.02
"""Processor time for comparisons: at once, and as a share of the process's since the kernels were made."""

MAX_AMPLIFICATION = 100
"""Allowed error over the largest change of the results when the inputs change by `PROBE_EPS`."""


@dataclass
class Schedule:
    """The calls whose results are compared: 1, 2, 4, 8, ..., or the first one later that time allows.

    Attributes:
        seconds: processor time of one evaluation of the function.
        evaluations: number of evaluations so far.
        is_verifying: whether the function is evaluated for a comparison.
        changes: for each result, the error that rounding of the inputs explains, as far as it was measured.
    """

    seconds: float
    evaluations: int = 0
    is_verifying: bool = False
    changes: dict[int, float] = field(default_factory=dict)
    _calls: int = 0
    _is_pending: bool = False
    _start: float = field(default_factory=time.process_time)

    def is_due(self) -> bool:
        """Count a call; whether its results are compared."""
        if torch.compiler.is_compiling():
            return False
        self._calls += 1
        self._is_pending |= self._calls & (self._calls - 1) == 0
        if not self._is_pending:
            return False
        limit = MAX_SECONDS + MAX_SHARE * (time.process_time() - self._start)
        return (self.evaluations + 1) * self.seconds <= limit

    def verify(
        self, name: str, source: Source, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        """Check results as by `verify`, and count the evaluations of the source."""

        def timed_source(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
            start = time.thread_time()
            found = source(tensors)
            seconds = time.thread_time() - start
            self.seconds = min(self.seconds, seconds) if self.evaluations else seconds
            self.evaluations += 1
            return found

        self._is_pending, self.is_verifying = False, True
        try:
            verify(name, timed_source, inputs, outputs, self.changes)
        finally:
            self.is_verifying = False


def can_verify(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
    """True if a call has values to compare: no trace, transform or CUDA graph is under way."""
    if torch.compiler.is_compiling() or _are_functorch_transforms_active() or is_within(inputs):
        return False
    if any(x.is_meta or isinstance(x, FakeTensor) for x in (*inputs, *outputs)):
        return False
    if not (inputs[0].numel() and outputs[0].numel()):
        return False
    return not (inputs[0].is_cuda and torch.cuda.is_current_stream_capturing())


def first_sample(ports: Sequence[Port], tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of the first sample of a batch."""
    pairs = zip(ports, tensors, strict=False)
    return [x.detach()[(0,) * (x.dim() - len(port.shape))] for port, x in pairs]


def verify(
    name: str,
    source: Source,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    changes: dict[int, float],
) -> None:
    """Check results of kernels against their source.

    Args:
        name: name of the function.
        source: the function of one sample.
        inputs: its arguments for one sample.
        outputs: results of the kernels for that sample.
        changes: for each result, the error that rounding explains, from earlier comparisons; updated.

    Raises:
        FusedError: results differ by more than rounding.
    """
    device = inputs[0].device

    def evaluate(shift: float | Tensor = 0.0) -> list[Tensor]:
        moved = [x * (1 + shift) + shift if x.is_floating_point() else x for x in inputs]
        return [y.detach().to(inputs[0].dtype) for y in source(moved)]

    if device.type != "cpu":
        # Single operations on a card take longer than on the CPU.
        inputs, outputs = ([x.cpu() for x in tensors] for tensors in (inputs, outputs))
    try:
        expected = in_clean_thread(evaluate)
    except RuntimeError:
        if device.type == "cpu":
            raise
        inputs = [x.to(device) for x in inputs]  # the function makes tensors on the card
        outputs = [x.to(device) for x in outputs]
        expected = in_clean_thread(evaluate)
    pairs = list(zip(outputs, expected, strict=False))
    wrong = [k for k, pair in enumerate(pairs) if not _is_close(*pair, changes.get(k, 0.0))]
    if not wrong:
        return
    if not all(map(_is_close, in_clean_thread(evaluate), expected)):
        raise FusedError(
            f"{name} gives another result at each evaluation.",
            "Kernels give the result of one evaluation.",
            "Pass what changes as an argument, or derive a control from `Controller`: initial_memory and "
            "act; ts.fuse(..., verify=False) omits this check.",
        )
    # One mapped evaluation takes little longer than that of a single sample.
    shifts = torch.tensor(PROBE_EPS, dtype=inputs[0].dtype, device=inputs[0].device)
    shifts = shifts * torch.finfo(inputs[0].dtype).eps
    shifted = in_clean_thread(lambda: torch.func.vmap(evaluate)(shifts))
    for k in wrong:
        moved = (shifted[k] - expected[k]).abs().max().nan_to_num().item()
        changes[k] = MAX_AMPLIFICATION * moved
    wrong = [k for k in wrong if not _is_close(*pairs[k], changes[k])]
    if not wrong:
        return
    y, z = outputs[wrong[0]].detach(), expected[wrong[0]]
    _, at = (y - z).abs().nan_to_num().flatten().max(0)
    found, wanted = y.flatten()[at].item(), z.flatten()[at].item()
    raise FusedError(
        f"kernels of {name} give {found:.6g}, the function itself {wanted:.6g}.",
        "It reads a value that has changed since the trace and is not compared at each call, such as "
        "the state of an iterator.",
        "Pass the value as an argument, or call retrace() of the fused object after a change; "
        "ts.fuse(..., verify=False) omits this check.",
    )


def _is_close(y: Tensor, z: Tensor, change: Tensor | float = 0.0) -> bool:
    """True if results agree wherever both are finite."""
    if not y.numel():
        return True
    y, finite = y.detach(), y.isfinite() & z.isfinite()
    scale = torch.where(z.isfinite(), z, 0).abs().max().clamp(min=MIN_SCALE)
    error = torch.where(finite, y - z, 0).abs().max()
    return bool(error <= RELATIVE_TOLERANCE[y.dtype] * scale + change)
