"""What is known of a function of one sample besides its source, and what follows for its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.fused.build.program_cache import digest
from torchsko.fused.calls.kernel import broadcast_batch
from torchsko.fused.program.program import Port
from torchsko.implicit.jacobians import Function

Around = Callable[[], AbstractContextManager]


@dataclass(frozen=True)
class Traits:
    """What is known of a function besides its source and its inputs.

    Attributes:
        num_outputs: number of tensors that the source returns.
        order: derivatives up to this order are kernels; below 0, the function is none itself.
        like: for each output the input whose shape it takes, by a sum over the other samples, as a
            gradient does; None for the batch shape of the call. None alone stands for all None.
        batched: the function on batches, in eager operations that broadcast; by default the source
            under vmap.
        outputs: the output ports if they are known; by default those of the program.
        identity: a hexadecimal digest of all that the trace depends on; given, the program is kept on
            disk.
        around: makes a context to trace in.
        dtype: in which its kernels compute, for functions that ask what that rounds.
    """

    num_outputs: int = 1
    order: int = 1
    like: tuple[int | None, ...] | None = None
    batched: Function | None = None
    outputs: tuple[Port, ...] | None = None
    identity: str | None = None
    around: Around = nullcontext
    dtype: torch.dtype = torch.float64

    def derived(
        self,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        batched: Function,
        *kind: object,
        like: Sequence[int | None] | None = None,
    ) -> Traits:
        """Those of a derivative.

        Args:
            inputs: the derivative's ports.
            outputs: likewise.
            batched: the derivative on tensors of one batch shape.
            *kind: which one it is.
            like: see the class.
        """
        return replace(
            self,
            num_outputs=len(outputs),
            order=self.order - 1,
            like=None if like is None else tuple(like),
            batched=lambda *tensors: batched(*_expanded(inputs, tensors)),
            outputs=tuple(outputs),
            identity=self.identity and digest(self.identity, *kind),
        )


def _expanded(ports: Sequence[Port], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of ports, all of one batch shape."""
    ranks = [len(port.shape) for port in ports]
    pairs = list(zip(tensors, ranks, strict=True))
    batch = broadcast_batch(ports, [x.shape[: x.dim() - rank] for x, rank in pairs])
    return [x.expand((*batch, *x.shape[x.dim() - rank :])) for x, rank in pairs]
