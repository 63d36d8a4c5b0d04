"""A function of one sample whose program is traced and whose kernels are compiled on first use."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count
from math import prod
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import CompilerError, FusedError, ShapeError, caller_stack_level
from torchsko.fused.build.kernel_library import is_built
from torchsko.fused.build.program_cache import Outline, load_outline, load_program, save_program
from torchsko.fused.build.progress import report_stage
from torchsko.fused.build.toolchain import Toolchain
from torchsko.fused.calls.cuda_kernel import CudaKernel, LaunchError, load_cuda
from torchsko.fused.calls.kernel import Kernel, broadcast_batch, build_kernel, load_kernel
from torchsko.fused.calls.native_call import NativeCall
from torchsko.fused.calls.scan_kernel import NARROW_VECTOR_BYTES
from torchsko.fused.emit.cpp import cost
from torchsko.fused.functions.operator import empty_outputs
from torchsko.fused.functions.traits import ChangedConstantsError, Traits
from torchsko.fused.program.program import Port, Program, refuse_size
from torchsko.fused.tracing.clean import below_modes, in_clean_thread
from torchsko.fused.tracing.symbolic import Recording
from torchsko.fused.tracing.tracer import trace
from torchsko.fused.tracing.unsupported import unsupported_by_functorch
from torchsko.implicit.jacobian_products import Function, Tensors
from torchsko.utils.dtype import without_autocast

MIN_NARROW_COST = 100_000
"""Cost of a vector, in additions (about 30 us), from which small batches have a narrower kernel."""


class LazyKernel:
    """A function of one sample that a kernel applies to batches of plain tensors.

    The program is traced and the kernels are compiled on first use, in the dtype of the inputs;
    both are then kept. Without a compiler the source runs eagerly; calls 1, 10, 100, ... warn of it.

    Attributes:
        inputs: the input ports.
        traits: further properties of the function.
        summed_to: ``traits.summed_to``.
        num_outputs: ``traits.num_outputs``.
    """

    def __init__(self, fn: Function, inputs: Sequence[Port], traits: Traits) -> None:
        """Store the function without tracing it.

        Args:
            fn: takes one tensor per port, of the port's shape, and returns one or several tensors; must
                work under `torch.func.vmap`.
            inputs: the ports, at least one.
            traits: further properties of the function.
        """
        self.inputs, self.traits = tuple(inputs), traits
        self._sizes = tuple(port.size for port in self.inputs)
        # Copied because every call reads them.
        self.summed_to, self.num_outputs = traits.summed_to, traits.num_outputs
        self._fn, self._is_unchanged = fn, traits.is_unchanged
        self._lock = threading.RLock()
        self._program: Program | None = None
        self._native_call: NativeCall | None = None  # of the latest kernel
        self._kernels: dict[tuple[Any, ...], Callable[..., Tensors]] = {}

    @property
    def program(self) -> Program:
        """The scalar program; loaded or traced on first use."""
        with self._lock:
            program = self._program
            if program is None and self.traits.identity is not None:
                program = load_program(self.traits.identity)
            if program is None:
                program = in_clean_thread(self._trace)
                if self.traits.identity is not None:
                    save_program(self.traits.identity, program, cost(program))
            self._program = program
            return program

    def trace(self) -> None:
        """Trace the program now."""
        self.program  # noqa: B018

    def is_built(self, dtype: torch.dtype, toolchain: Toolchain) -> bool:
        """True if the disk cache has a CPU kernel of the function, which is traced to find out."""
        return any(
            is_built(self.program, dtype, toolchain, width) for width in (None, NARROW_VECTOR_BYTES)
        )

    def _trace(self) -> Program:
        # Collections of garbage would visit all expressions again and again.
        had_gc = gc.isenabled()
        gc.disable()
        try:
            with Recording(), self.traits.trace_context():
                program = trace(
                    self.sample,
                    self.inputs,
                    self.traits.dtype,
                    stores=self.traits.stores,
                    bodies=self.traits.bodies,
                )
        except RuntimeError as error:
            cause = unsupported_by_functorch(error)
            if cause is None:
                raise
            raise cause from error
        finally:
            if had_gc:
                gc.enable()
        refuse_size(program.num_flops)
        report_stage("traced", program.num_flops)
        return program

    @property
    def results(self) -> tuple[Port, ...]:
        """The ports of all results of the kernels: of the outputs, then of stored solutions."""
        return self.traits.outputs or self._outline.outputs

    @cached_property
    def _outline(self) -> Outline:
        """The outline of the program, which is loaded or traced if the disk cache has none."""
        cached = self.traits.identity and load_outline(self.traits.identity)
        return cached or Outline(self.program.outputs, self.program.stored, cost(self.program))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The output ports."""
        return self.results[: self.num_outputs]

    @property
    def solutions(self) -> tuple[Port, ...]:
        """The ports of stored solutions."""
        return self.results[self.num_outputs :]

    @property
    def stored(self) -> tuple[tuple[int, ...], ...]:
        """The keys of stored solutions."""
        return self._outline.stored

    def run(self, inputs: Sequence[Tensor]) -> Tensors:
        """Apply the kernel to plain tensors, without derivatives."""
        return self.run_storing(inputs)[: self.num_outputs]

    def run_storing(self, inputs: Sequence[Tensor]) -> Tensors:
        """The outputs as by `run`, then the stored solutions, if the kernel stores any."""
        if len(inputs) != len(self.inputs):
            raise ShapeError(
                f"the function got {len(inputs)} tensors and has {len(self.inputs)} inputs.",
                "",
                f"Pass {', '.join(port.name for port in self.inputs)}.",
            )
        if not self._is_unchanged():
            raise ChangedConstantsError
        if self._native_call is not None:
            outputs = self._native_call(*inputs)
            if outputs is not None:
                return outputs
        key = self._kernel_key(inputs)
        kernel = self._kernels.get(key) or self._kernel(*key)
        if self.summed_to is None:
            return kernel(inputs)
        # The kernel can sum over the whole batch; PyTorch sums over some of its dimensions.
        ranks = [len(port.shape) for port in self.inputs]
        summed = [k is not None and inputs[k].dim() == ranks[k] for k in self.summed_to]
        return self._sum(inputs, kernel(inputs, summed))

    @without_autocast
    def eager(self, *inputs: Tensor) -> Tensors:
        """Apply the source to a batch eagerly; differentiable to any order."""
        if self.traits.batched is None:
            return self._mapped(*inputs)
        return self._sum(inputs, self._checked(self.traits.batched(*inputs)))

    def _mapped(self, *inputs: Tensor) -> Tensors:
        """Apply the source for one sample to a batch by vmap."""
        leads = [self.batch_of(k, x) for k, x in enumerate(inputs)]
        batch = broadcast_batch(self.inputs, leads)
        if not batch:
            return self.sample(*inputs)
        if 0 in batch:
            return self._empty_batch(inputs, batch)
        flat = [
            x.expand((*batch, *port.shape)).reshape((prod(batch), *port.shape)) if lead else x
            for x, lead, port in zip(inputs, leads, self.inputs, strict=True)
        ]
        in_dims = tuple(0 if lead else None for lead in leads)
        outputs = torch.func.vmap(self.sample, in_dims)(*flat)
        return self._sum(inputs, [y.reshape(*batch, *y.shape[1:]) for y in outputs])

    def _empty_batch(self, inputs: Sequence[Tensor], batch: Sequence[int]) -> Tensors:
        """Results of an empty batch; vmap within the source would fail without a first sample."""
        zero = sum(x.sum() for x in inputs)  # makes derivatives zero instead of undefined
        outputs = [inputs[0].new_zeros((*batch, *port.shape)) + zero for port in self.outputs]
        return self._sum(inputs, outputs)

    def batch_of(self, k: int, x: Tensor) -> torch.Size:
        """Batch shape of input k."""
        return x.shape[: x.dim() - len(self.inputs[k].shape)]

    def sample(self, *inputs: Tensor) -> Tensors:
        """Apply the source to one sample."""
        return self._checked(self._fn(*inputs))

    def _checked(self, outputs: Tensor | Sequence[Tensor]) -> Tensors:
        outputs = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        if len(outputs) != self.num_outputs:
            raise FusedError(
                f"the function returned {len(outputs)} tensors, but num_outputs={self.num_outputs}.",
                "A PyTorch operator has a fixed number of outputs.",
                f"Pass num_outputs={len(outputs)}.",
            )
        return outputs

    def _sum(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Tensors:
        if self.summed_to is None:
            return tuple(outputs)
        return tuple(
            y if k is None or y.shape == inputs[k].shape else y.sum_to_size(inputs[k].shape)
            for k, y in zip(self.summed_to, outputs, strict=True)
        )

    def _kernel_key(self, inputs: Sequence[Tensor]) -> tuple[Any, ...]:
        """Dtype and device of the kernel for these inputs, and whether its vectors are narrow."""
        key = inputs[0].dtype, inputs[0].device
        if not self._has_narrow_kernel:
            return key
        lanes = NARROW_VECTOR_BYTES // inputs[0].element_size()
        pairs = zip(inputs, self._sizes, strict=True)
        return *key, all([x.numel() <= lanes * size for x, size in pairs])

    @cached_property
    def _has_narrow_kernel(self) -> bool:
        """True if small batches use a kernel with narrower vectors, which pays for expensive programs."""
        return self.traits.order >= 0 and self._outline.cost > MIN_NARROW_COST

    def _kernel(self, *key: Any) -> Callable[..., Tensors]:
        with self._lock:
            if key not in self._kernels:
                self._kernels[key] = self._new_kernel(*key)
            return self._kernels[key]

    def _new_kernel(
        self, dtype: torch.dtype, device: torch.device, *narrow: bool
    ) -> Callable[..., Tensors]:
        if device.type == "meta":
            return lambda inputs, summed=None: empty_outputs(self, inputs)
        if self.traits.order < 0:
            return self._run_eagerly
        if device.type not in ("cpu", "cuda"):
            raise FusedError(
                f"no fused kernel for device {device}.",
                "Kernels run on cpu and cuda.",
                "Move the inputs, or use the eager functions.",
            )
        try:
            cuda = device.type == "cuda"
            if not cuda:
                return self._cpu_kernel(dtype, *narrow)
            return self._launched(self._cuda_kernel(dtype, device), (dtype, device, *narrow))
        except CompilerError as error:
            return self._fallback(error)

    def _launched(
        self, kernel: Callable[..., Tensors], key: tuple[Any, ...]
    ) -> Callable[..., Tensors]:
        """A kernel that the eager functions replace after a launch that fails."""

        def call(inputs: Sequence[Tensor], summed: Sequence[bool] | None = None) -> Tensors:
            try:
                return kernel(inputs, summed)
            except LaunchError as error:
                self._kernels[key] = self._fallback(error)
                return self._kernels[key](inputs, summed)

        return call

    def _fallback(self, error: Exception) -> Callable[..., Tensors]:
        """The eager functions, with a warning at calls 1, 10, 100, ..., which names the function."""
        inputs_of_kernel = ", ".join(port.name for port in self.inputs)
        numbers = count(1)

        def call(inputs: Sequence[Tensor], summed: object = None) -> Tensors:
            number = next(numbers)
            if str(number).rstrip("0") == "1":
                message = (
                    f"no kernel of {self.traits.name}({inputs_of_kernel}): {error}\n"
                    f"The eager functions run instead (call {number})."
                )
                warnings.warn(message, stacklevel=caller_stack_level())
            return self._run_eagerly(inputs)

        return call

    def _run_eagerly(self, inputs: Sequence[Tensor], summed: object = None) -> Tensors:
        return below_modes(lambda: self.eager(*inputs))

    def _cpu_kernel(self, dtype: torch.dtype, narrow: bool = False) -> Callable[..., Tensors]:
        identity, width = self.traits.identity, NARROW_VECTOR_BYTES if narrow else None
        cached = identity and load_kernel(identity, self.inputs, self.results, dtype, width)
        kernel = cached or build_kernel(self.program, dtype, identity=identity, vector_bytes=width)
        if isinstance(kernel, Kernel) and narrow == self._has_narrow_kernel:
            lanes = NARROW_VECTOR_BYTES // dtype.itemsize if narrow else None
            self._native_call = kernel.native_call(self.summed_to is not None, lanes)
        return kernel

    def _cuda_kernel(self, dtype: torch.dtype, device: torch.device) -> Callable[..., Tensors]:
        launch = load_cuda(lambda: self.program, self.traits.identity, dtype, device)
        return CudaKernel(self.inputs, self.results, dtype, launch)
