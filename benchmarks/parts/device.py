"""The device that `benchmarks/first_light.py` measures: an NVIDIA GPU, or the CPU to rehearse on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

# Multiply-adds in eight independent chains, as many as hide their own latency.
CHAINS = """
extern "C" __global__ void chains(REAL *x, int rounds) {
  int k = blockIdx.x * blockDim.x + threadIdx.x;
  REAL a[8];
  for (int j = 0; j < 8; ++j) a[j] = x[k] + j;
  for (int r = 0; r < rounds; ++r)
    for (int j = 0; j < 8; ++j) a[j] = a[j] * (REAL)0.999 + (REAL)0.001;
  for (int j = 0; j < 8; ++j) x[k] += a[j];
}
"""
REALS = {torch.float32: "float", torch.float64: "double"}


@dataclass(frozen=True)
class Device:
    """The device of the calls, and their timing.

    Attributes:
        kind: "cuda" or "cpu".
    """

    kind: str

    @property
    def is_gpu(self) -> bool:
        """True for a GPU."""
        return self.kind == "cuda"

    @property
    def name(self) -> str:
        """Of the card."""
        return torch.cuda.get_device_name() if self.is_gpu else "a rehearsal on the CPU"

    def wait(self) -> None:
        """Until all is done."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], object], repeats: int = 1) -> float:
        """Of one of several calls in a row: between events on a GPU."""
        if not self.is_gpu:
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            return (time.perf_counter() - start) / repeats
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e-3 / repeats

    def host_seconds(self, call: Callable[[], object], repeats: int = 20) -> float:
        """Of the processor for one of several calls in a row, which do not wait for the GPU."""
        self.wait()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        took = (time.perf_counter() - start) / repeats
        self.wait()
        return took

    def interleaved(
        self, calls: dict[str, Callable[[], object]], passes: int, repeats: int = 1
    ) -> dict[str, list[float]]:
        """Seconds of each contestant in each pass, after two passes of warming up."""
        found: dict[str, list[float]] = {name: [] for name in calls}
        for k in range(passes + 2):
            for name, call in calls.items():
                took = self.seconds(call, repeats)
                if k >= 2:
                    found[name].append(took)
        return found

    def copy_rate(self) -> float:
        """Bytes read and written in a second, copying a gibibyte (a MiB in a rehearsal)."""
        source = torch.empty(2**28 if self.is_gpu else 2**18, device=self.kind)
        target = torch.empty_like(source)
        took = statistics.median(
            self.interleaved({"copy": lambda: target.copy_(source)}, 9)["copy"]
        )
        return 2 * source.numel() * 4 / took

    def flop_rate(self, dtype: torch.dtype) -> float:
        """Operations in a second, two a multiply-add, in every lane."""
        if not self.is_gpu:
            return 1e10
        kernel = torch.cuda._compile_kernel(CHAINS.replace("REAL", REALS[dtype]), "chains")
        lanes, rounds = 2**21, 4096
        x = torch.zeros(lanes, device="cuda", dtype=dtype)
        call = lambda: kernel((lanes // 256, 1, 1), (256, 1, 1), (x, rounds))  # noqa: E731
        took = statistics.median(self.interleaved({"fma": call}, 5)["fma"])
        return 2.0 * 8 * rounds * lanes / took

    def launches(self, call: Callable[[], object]) -> int | None:
        """Kernels of one call; None in a rehearsal."""
        if not self.is_gpu:
            return None
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as found:
            call()
            torch.cuda.synchronize()
        return sum(event.count for event in found.key_averages() if event.device_time_total > 0)
