"""Linear systems of one sample each in a kernel, beside PyTorch on the same core.

Usage: python benchmarks/dense.py [--rows 32] [--batch 4096]
General systems (LU with pivoting) and positive definite ones (Cholesky) with one right-hand side, float64;
best of interleaved runs, in microseconds a sample, and the build time of the kernel.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.traits import Traits
from torchsko.fused.program.program import Port
from torchsko.linalg.symmetric import spd_solve

ROUNDS = 15


def definite(A: Tensor, b: Tensor) -> Tensor:
    """The solution of a positive definite system."""
    return spd_solve(A, b[..., None])[..., 0]


def by_cholesky(A: Tensor, b: Tensor) -> Tensor:
    """The solution of a positive definite system by PyTorch."""
    return torch.cholesky_solve(b[..., None], torch.linalg.cholesky(A))[..., 0]


def duration(call: Callable[[], object]) -> float:
    """Time of one call in s."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Measure general and definite systems."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--batch", type=int, default=4096)
    args = parser.parse_args()
    torch.set_num_threads(1)
    n, g = args.rows, torch.Generator().manual_seed(0)
    A = torch.randn(args.batch, n, n, generator=g, dtype=torch.float64)
    b = torch.randn(args.batch, n, generator=g, dtype=torch.float64)
    ports = [Port("A", (n, n)), Port("b", (n,))]
    matrices = {"general": A, "definite": A @ A.mT + n * torch.eye(n, dtype=A.dtype)}
    solvers = {
        "general": (torch.linalg.solve, torch.linalg.solve),
        "definite": (definite, by_cholesky),
    }
    for name, matrix in matrices.items():
        source, reference = solvers[name]
        kernel = FusedFunction(source, ports, Traits())
        built = duration(lambda k=kernel, m=matrix: k(m, b))
        found = {"kernel": lambda k=kernel, m=matrix: k(m, b)[0]}
        found |= {"PyTorch": lambda r=reference, m=matrix: r(m, b)}
        best = dict.fromkeys(found, float("inf"))
        for _ in range(ROUNDS):
            for key, call in found.items():
                best[key] = min(best[key], duration(call))
        cells = [f"{key} {1e6 * best[key] / args.batch:.2f} us" for key in found]
        error = (found["kernel"]() - found["PyTorch"]()).abs().max()
        ratio = best["PyTorch"] / best["kernel"]
        print(f"{name} {n} x {n}: {', '.join(cells)}, {ratio:.1f} times as fast", end="; ")
        print(f"built in {built:.1f} s, largest difference {error:.0e}", flush=True)


if __name__ == "__main__":
    main()
