"""Processes that share the environments of a run, as torchrun starts them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils import _pytree as pytree

from torchsko.errors import ShapeError


@dataclass(frozen=True)
class Processes:
    """The processes of a run; one without torchrun.

    Attributes:
        rank: index of this process.
        count: number of processes.
    """

    rank: int = 0
    count: int = 1

    @staticmethod
    def join(device: torch.device | str) -> Processes:
        """Join the processes of torchrun, whose environment variables name them."""
        rank, count = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if count > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if torch.device(device).type == "cuda" else "gloo")
        return Processes(rank, count)

    def share(self, num_envs: int) -> tuple[int, int]:
        """First environment of this process, and its number of environments.

        Raises:
            ShapeError: when the processes cannot have the same number.
        """
        if num_envs % self.count:
            raise ShapeError(
                f"{num_envs} environments cannot be shared by {self.count} processes.",
                "Each process has the same number of environments.",
                f"Pass num_envs={self.count * max(1, num_envs // self.count)}, say.",
            )
        n = num_envs // self.count
        return self.rank * n, n

    def sum(self, x: Tensor) -> Tensor:
        """The sum of a tensor over the processes."""
        if self.count > 1:
            x = x.clone()
            dist.all_reduce(x)
        return x

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace the gradients of parameters by their sums over the processes, in one message."""
        gradients = [x.grad for x in parameters if x.grad is not None]
        if self.count > 1:
            flat = self.sum(torch.cat([x.flatten() for x in gradients]))
            for x, total in zip(gradients, flat.split([x.numel() for x in gradients]), strict=True):
                x.copy_(total.view_as(x))

    def gather(self, tree: Any) -> Any:
        """Trees of tensors, `[n, ...]`, of all processes, `[count * n, ...]`."""
        if self.count == 1:
            return tree

        def gathered(x: Tensor) -> Tensor:
            # Communication libraries have no boolean tensors.
            part = (x.to(torch.uint8) if x.dtype == torch.bool else x).contiguous()
            parts = [torch.empty_like(part) for _ in range(self.count)]
            dist.all_gather(parts, part)
            return torch.cat(parts).to(x.dtype)

        return pytree.tree_map(gathered, tree)

    def wait(self) -> None:
        """Wait for the other processes."""
        if self.count > 1:
            dist.barrier()
