"""Comparison of kernels with their source on one sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch._subclasses import FakeTensor

from torchsko.errors import FusedError
from torchsko.fused.capture.watch import is_within
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.clean import in_clean_thread

Source = Callable[[Sequence[Tensor]], Sequence[Tensor]]

RELATIVE_TOLERANCE = {torch.float32: 1e-2, torch.float64: 1e-6}
"""Largest error relative to the largest result: long rollouts amplify rounding to about a tenth of it."""

MIN_SCALE = 1e-3
"""Scale of the comparison for smaller results, which may be differences of larger numbers."""

PROBE_EPS = (16, -16, 7, -7, 29, -29, 53, -53)
"""Changes of the inputs, in units of rounding, by which the sensitivity of the results is measured.

There are several because a result that consists of rounding errors, such as a residual, has few values,
and may be equal at two inputs."""

MAX_AMPLIFICATION = 100
"""Allowed error over the largest change of the results when the inputs change by `PROBE_EPS`."""


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


def verify(name: str, source: Source, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Check results of kernels against their source.

    Args:
        name: name of the function.
        source: the function of one sample.
        inputs: its arguments for one sample.
        outputs: results of the kernels for that sample.

    Raises:
        FusedError: results differ by more than rounding.
    """

    def evaluate(shift: float = 0.0) -> list[Tensor]:
        moved = [x * (1 + shift) + shift if x.is_floating_point() else x for x in inputs]
        return [y.detach().to(inputs[0].dtype) for y in source(moved)]

    expected = in_clean_thread(evaluate)
    wrong = [
        k for k, pair in enumerate(zip(outputs, expected, strict=False)) if not _is_close(*pair)
    ]
    if not wrong:
        return
    if not all(map(_is_close, in_clean_thread(evaluate), expected)):
        raise FusedError(
            f"{name} gives another result at each evaluation.",
            "Kernels give the result of one evaluation.",
            "Pass what changes as an argument; ts.fuse(..., verify=False) omits this check.",
        )
    eps = torch.finfo(inputs[0].dtype).eps
    probes = in_clean_thread(lambda: [evaluate(n * eps) for n in PROBE_EPS])
    for k in wrong:
        y, z = outputs[k].detach(), expected[k]
        changes = torch.stack([(shifted[k] - z).abs().max().nan_to_num() for shifted in probes])
        change = MAX_AMPLIFICATION * changes.max()
        if not _is_close(y, z, change):
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
