"""Properties of a fused function in addition to its source and inputs, and those of its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.fused.build.program_cache import digest
from torchsko.fused.calls.kernel import broadcast_batch
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.traced_loops import Bodies
from torchsko.implicit.jacobian_products import Function

TraceContext = Callable[[], AbstractContextManager]
"""Makes a context manager that is active while a function is traced."""


class ChangedConstantsError(FusedError):
    """Tensors that kernels hold constant were changed in place."""

    def __init__(self) -> None:
        super().__init__(
            "a tensor of the mechanism was changed in place after ts.fuse.",
            "Kernels hold it constant, and no new ones can be made here.",
            "Call the fused object once outside of torch.compile and of backward passes, or name the tensor "
            "in inputs of ts.fuse.",
        )


@dataclass(frozen=True)
class Traits:
    """Properties of a fused function in addition to its source and inputs.

    Attributes:
        num_outputs: number of tensors that the source returns.
        order: highest order of derivatives that are kernels; below 0 the function itself runs eagerly.
        summed_to: for each output, the input to whose shape it is summed, as a gradient is; None for an
            output that keeps the batch shape of the call. A single None means None for all outputs.
        batched: the function on batches, in eager operations that broadcast; by default the source
            under vmap.
        outputs: the output ports; by default those of the program.
        identity: a hexadecimal digest of everything that the trace depends on; the program of a
            function with an identity is cached on disk.
        trace_context: makes a context manager that is active while the function is traced.
        dtype: dtype of the kernels, for functions whose tolerances depend on it.
        stores: whether the kernels also return the solutions of solvers, for the VJP.
        is_unchanged: returns whether the mechanism's constants are those of the trace; called at each run.
        bodies: loop bodies that were traced, shared by derivatives.
        num_joint: number of first inputs whose gradients are computed together: one kernel then serves calls
            that need different ones.
        name: name of the function, for messages.
    """

    num_outputs: int = 1
    order: int = 1
    summed_to: tuple[int | None, ...] | None = None
    batched: Function | None = None
    outputs: tuple[Port, ...] | None = None
    identity: str | None = None
    trace_context: TraceContext = nullcontext
    dtype: torch.dtype = torch.float64
    stores: bool = True
    is_unchanged: Callable[[], bool] = lambda: True
    bodies: Bodies = field(default_factory=dict)
    num_joint: int = 0
    name: str = ""

    def derived(
        self,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        batched: Function,
        *kind: object,
        summed_to: Sequence[int | None] | None = None,
    ) -> Traits:
        """The properties of a derivative of the function.

        Args:
            inputs: input ports of the derivative.
            outputs: output ports of the derivative.
            batched: the derivative on tensors of one batch shape.
            *kind: identifies the derivative among those of the function.
            summed_to: see the class.
        """
        return replace(
            self,
            num_outputs=len(outputs),
            order=self.order - 1,
            summed_to=None if summed_to is None else tuple(summed_to),
            batched=lambda *tensors: batched(*_expanded(inputs, tensors)),
            outputs=tuple(outputs),
            identity=self.identity and digest(self.identity, *kind),
            stores=False,
            num_joint=0,
            name=f"{kind[0]} of {self.name}",
        )


def _expanded(ports: Sequence[Port], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors expanded to a common batch shape."""
    ranks = [len(port.shape) for port in ports]
    pairs = list(zip(tensors, ranks, strict=True))
    batch = broadcast_batch(ports, [x.shape[: x.dim() - rank] for x, rank in pairs])
    return [x.expand((*batch, *x.shape[x.dim() - rank :])) for x, rank in pairs]
