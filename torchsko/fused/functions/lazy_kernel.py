"""A function of one sample, and what is made of its source: a program, and kernels for batches."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import CompilerError, FusedError, ShapeError, caller_stack_level
from torchsko.fused.build.kernel_library import is_built
from torchsko.fused.build.program_cache import load_ports, load_program, save_program
from torchsko.fused.build.toolchain import Toolchain
from torchsko.fused.calls.cuda_kernel import CudaKernel, load_cuda
from torchsko.fused.calls.kernel import Kernel, broadcast_batch, build_kernel, load_kernel
from torchsko.fused.calls.quick import Quick
from torchsko.fused.calls.scan_kernel import FEW_BYTES
from torchsko.fused.emit.cpp import cost
from torchsko.fused.functions.operator import empty_outputs
from torchsko.fused.functions.traits import Traits
from torchsko.fused.program.program import Port, Program, refuse_size
from torchsko.fused.tracing.clean import below_modes, in_clean_thread
from torchsko.fused.tracing.refusals import refused_by_torch
from torchsko.fused.tracing.tracer import trace
from torchsko.implicit.jacobians import Function, Tensors
from torchsko.utils.dtype import without_autocast

LONG = 100_000
"""Time of a vector of samples, in additions, from which on few samples have a narrower kernel: some 30 us."""


class Traced:
    """A function of one sample, run on batches of plain tensors by a kernel.

    Its program is traced and its kernels are compiled when first needed, in the dtype of the inputs; they
    are the only state. Without a compiler the source runs eagerly, after one warning.

    Attributes:
        inputs: the input ports.
        traits: what else is known of it.
        like: of these, as `num_outputs`, which every call reads.
        num_outputs: likewise.
    """

    def __init__(self, fn: Function, inputs: Sequence[Port], traits: Traits) -> None:
        """Prepare a function; nothing is traced yet.

        Args:
            fn: takes one tensor per port, of the port's shape, and returns a tensor or several; must
                work under `torch.func.vmap`.
            inputs: the ports, at least one.
            traits: see the class.
        """
        self.inputs, self.traits = tuple(inputs), traits
        self.like, self.num_outputs = traits.like, traits.num_outputs
        self._fn = fn
        self._lock = threading.RLock()
        self._outputs = traits.outputs
        self._program: Program | None = None
        self._quick: Quick | None = None  # of the kernel made last
        self._kernels: dict[tuple[Any, ...], Callable[..., Tensors]] = {}

    @property
    def program(self) -> Program:
        """The scalar program; traced on first use."""
        with self._lock:
            program = self._program
            if program is None and self.traits.identity is not None:
                program = load_program(self.traits.identity)
            if program is None:
                program = in_clean_thread(self._trace)
                if self.traits.identity is not None:
                    save_program(self.traits.identity, program)
            self._program = program
            return program

    def trace(self) -> None:
        """Trace the program now, not at its first use."""
        self.program  # noqa: B018

    def is_built(self, dtype: torch.dtype, toolchain: Toolchain) -> bool:
        """Whether the disk has its kernel for a CPU, for few samples or many; it is traced for that."""
        return any(is_built(self.program, dtype, toolchain, width) for width in (None, FEW_BYTES))

    def _trace(self) -> Program:
        try:
            with self.traits.around():
                program = trace(self.sample, self.inputs, self.traits.dtype)
        except RuntimeError as error:
            if (why := refused_by_torch(error)) is None:
                raise
            raise FusedError(why) from error
        refuse_size(program.num_flops)
        return program

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The output ports."""
        if self._outputs is None:
            known = self.traits.identity and load_ports(self.traits.identity)
            self._outputs = known or self.program.outputs
        return self._outputs

    def run(self, inputs: Sequence[Tensor]) -> Tensors:
        """The kernel itself: plain tensors only, no derivatives."""
        if len(inputs) != len(self.inputs):
            raise ShapeError(
                f"got {len(inputs)} tensors.",
                f"This function has {len(self.inputs)} inputs.",
                f"Pass {', '.join(port.name for port in self.inputs)}.",
            )
        if self._quick is not None:
            outputs = self._quick(*inputs)
            if outputs is not None:
                return outputs
        where = self._where(inputs)
        kernel = self._kernels.get(where) or self._kernel(*where)
        if self.like is None:
            return kernel(inputs)
        # The kernel can sum over all samples; sums over some are left to PyTorch.
        ranks = [len(port.shape) for port in self.inputs]
        summed = [k is not None and inputs[k].dim() == ranks[k] for k in self.like]
        return self._sum(inputs, kernel(inputs, summed))

    @without_autocast
    def eager(self, *inputs: Tensor) -> Tensors:
        """The source on a batch, by ordinary tensor operations; differentiable to any order."""
        if self.traits.batched is None:
            return self._mapped(*inputs)
        return self._sum(inputs, self._checked(self.traits.batched(*inputs)))

    def _mapped(self, *inputs: Tensor) -> Tensors:
        """The source for one sample, mapped over a batch."""
        leads = [self.batch_of(k, x) for k, x in enumerate(inputs)]
        batch = broadcast_batch(self.inputs, leads)
        if not batch:
            return self.sample(*inputs)
        if 0 in batch:
            return self._of_none(inputs, batch)
        flat = [
            x.expand((*batch, *port.shape)).reshape((prod(batch), *port.shape)) if lead else x
            for x, lead, port in zip(inputs, leads, self.inputs, strict=True)
        ]
        in_dims = tuple(0 if lead else None for lead in leads)
        outputs = torch.func.vmap(self.sample, in_dims)(*flat)
        return self._sum(inputs, [y.reshape(*batch, *y.shape[1:]) for y in outputs])

    def _of_none(self, inputs: Sequence[Tensor], batch: Sequence[int]) -> Tensors:
        """Results of an empty batch, of which a vmap within the source would look for the first sample."""
        zero = sum(x.sum() for x in inputs)  # so that derivatives are zero, and not unknown
        outputs = [inputs[0].new_zeros((*batch, *port.shape)) + zero for port in self.outputs]
        return self._sum(inputs, outputs)

    def batch_of(self, k: int, x: Tensor) -> torch.Size:
        """Batch shape of input k."""
        return x.shape[: x.dim() - len(self.inputs[k].shape)]

    def sample(self, *inputs: Tensor) -> Tensors:
        """The source, for one sample."""
        return self._checked(self._fn(*inputs))

    def _checked(self, outputs: Tensor | Sequence[Tensor]) -> Tensors:
        outputs = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        if len(outputs) != self.num_outputs:
            raise FusedError(
                f"the function returned {len(outputs)} tensors, where num_outputs="
                f"{self.num_outputs}.",
                "An operator has a fixed number of outputs.",
                f"Pass num_outputs={len(outputs)}.",
            )
        return outputs

    def _sum(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Tensors:
        if self.like is None:
            return tuple(outputs)
        return tuple(
            y if k is None or y.shape == inputs[k].shape else y.sum_to_size(inputs[k].shape)
            for k, y in zip(self.like, outputs, strict=True)
        )

    def _where(self, inputs: Sequence[Tensor]) -> tuple[Any, ...]:
        """Dtype and device of the kernel that serves these inputs; of some, whether it is for few samples."""
        where = inputs[0].dtype, inputs[0].device
        if not self._narrows:
            return where
        most = max(self.batch_of(k, x).numel() for k, x in enumerate(inputs))
        return *where, most * inputs[0].element_size() <= FEW_BYTES

    @cached_property
    def _narrows(self) -> bool:
        """Whether few samples have a kernel of their own, with narrower vectors: what takes long gains by it.

        A function with an identity is found on disk without its program, and takes no such time.
        """
        return self.traits.order >= 0 and self.traits.identity is None and cost(self.program) > LONG

    def _kernel(self, *where: Any) -> Callable[..., Tensors]:
        with self._lock:
            if where not in self._kernels:
                self._kernels[where] = self._new_kernel(*where)
            return self._kernels[where]

    def _new_kernel(
        self, dtype: torch.dtype, device: torch.device, *choice: Any
    ) -> Callable[..., Tensors]:
        if device.type == "meta":
            return lambda inputs, summed=None: empty_outputs(self, inputs)
        if self.traits.order < 0:
            return self._without_a_kernel
        if device.type not in ("cpu", "cuda"):
            raise FusedError(
                f"no fused kernel for device {device}.",
                "Kernels run on cpu and cuda.",
                "Move the inputs, or use the eager functions.",
            )
        try:
            cuda = device.type == "cuda"
            return self._cuda_kernel(dtype, device) if cuda else self._cpu_kernel(dtype, *choice)
        except CompilerError as error:
            message = f"{error}\nThe eager functions run instead."
            warnings.warn(message, stacklevel=caller_stack_level())
            return self._without_a_kernel

    def _without_a_kernel(self, inputs: Sequence[Tensor], summed: object = None) -> Tensors:
        return below_modes(lambda: self.eager(*inputs))

    def _cpu_kernel(self, dtype: torch.dtype, few: bool = False) -> Callable[..., Tensors]:
        known = self.traits.identity and load_kernel(
            self.traits.identity, self.inputs, self.outputs, dtype
        )
        width = FEW_BYTES if few else None
        kernel = known or build_kernel(
            self.program, dtype, identity=self.traits.identity, vector_bytes=width
        )
        if isinstance(kernel, Kernel) and not self._narrows:
            self._quick = kernel.quick(one_lead=self.like is not None)
        return kernel

    def _cuda_kernel(self, dtype: torch.dtype, device: torch.device) -> Callable[..., Tensors]:
        launch = load_cuda(lambda: self.program, self.traits.identity, dtype, device)
        return CudaKernel(self.inputs, self.outputs, dtype, launch)
