"""Kernels of a function for one choice of arguments, with the checks of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchsko.fused.capture.captured import Captured, Changes
from torchsko.fused.capture.recipe import Recipe
from torchsko.fused.capture.verification import Schedule, can_verify, first_sample
from torchsko.fused.functions.diverged_samples import treat_nonfinite
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.scan import Scan
from torchsko.integrators.finite_checks import NonFiniteChoice


class CallKernels:
    """Kernels of one choice of arguments.

    Args:
        name: name of the function, for messages.
        recipe: results and captures.
        captured: the captured tensors and values.
        verify: whether results are compared with the function's.
        nonfinite: see `torchsko.fuse`.

    Attributes:
        function: of the arguments, the captured tensors, and the mechanism's parameters.
        recipe: results and captures.
        captured: the captured tensors and values now.
        schedule: the calls whose results are compared with the function's.
        scans: the scans of the function, by their numbers of carried and streamed inputs and direction.
    """

    function: FusedFunction

    def __init__(
        self,
        name: str,
        recipe: Recipe,
        captured: Captured,
        *,
        verify: bool,
        nonfinite: NonFiniteChoice,
    ) -> None:
        self.recipe, self.captured = recipe, captured
        self.schedule = Schedule(recipe.seconds)
        self.scans: dict[tuple[int, int, bool], Scan] = {}
        self._name, self._verify = name, verify
        self._nonfinite: NonFiniteChoice = nonfinite
        self._spec = None if recipe.spec.is_leaf() else recipe.spec
        self._has_native_results = nonfinite == "ignore" and not recipe.dtypes

    def call_native(self, args: Sequence[Any], parameters: Sequence[Tensor]) -> Any:
        """The results of a small call without derivatives; None if it needs Python code.

        Args:
            args: tensors, or NumPy arrays.
            parameters: values of the mechanism's parameters that are inputs.
        """
        if not self._has_native_results or torch.compiler.is_compiling():
            return None
        captured = self.captured.read()
        if isinstance(captured, Changes):
            return None
        inputs = (*args, *captured, *parameters)
        outputs = self.function.call_native(inputs)
        if outputs is None:
            return None
        if self._is_due():
            self._compare([*map(tensor_of, inputs)], [*map(tensor_of, outputs)])
        return self._nested(outputs)

    def results(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Any:
        """The kernels' results in the function's dtypes, nested as the function nests them.

        Args:
            inputs: of the kernels.
            outputs: of the kernels for these inputs.

        Raises:
            FusedError: results differ from the function's, by `torchsko.fuse`'s ``verify``.
            NonFiniteError: a result is not finite, by ``nonfinite``.
        """
        if self._is_due():
            self._compare(inputs, outputs)
        ports = self.function.outputs
        outputs = treat_nonfinite(self._name, outputs, ports, self._nonfinite)
        if self.recipe.dtypes:
            outputs = [*outputs]
            for k, dtype in self.recipe.dtypes:
                outputs[k] = outputs[k].to(dtype)
        return self._nested(outputs)

    def verify_scan(self, scan: Scan, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Compare one step of a scan from the first sample with the function, as calls are compared.

        Args:
            scan: repeats the function.
            inputs: of the scan.
            results: of the scan for these inputs.
        """
        roles = scan.roles
        if not (self._is_due() and can_verify(inputs, results)):
            return
        one, carry, stop = scan.of_length(1), roles.carry, roles.carry + roles.stream
        streamed = [
            x.narrow(x.dim() - len(port.shape), 0, 1)
            for port, x in zip(one.inputs[carry:stop], inputs[carry:stop], strict=True)
        ]
        given = [x.detach() for x in (*inputs[:carry], *streamed, *inputs[stop:])]
        last = 0 if scan.reverse else -1
        rows = [x[last] for x in first_sample(one.outputs, one(*given))]
        sample = first_sample(one.inputs, given)
        sample[carry:stop] = [x[0] for x in sample[carry:stop]]
        self.schedule.verify(self._name, lambda x: self.function.sample(*x), sample, rows)

    def _is_due(self) -> bool:
        return self._verify and self.schedule.is_due()

    def _compare(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Compare the results of the first sample with the function's, if they have values."""
        if not can_verify(inputs, outputs):
            return
        function = self.function
        sample, rows = (
            first_sample(ports, tensors)
            for ports, tensors in ((function.inputs, inputs), (function.outputs, outputs))
        )
        self.schedule.verify(self._name, lambda x: function.sample(*x), sample, rows)

    def _nested(self, outputs: Sequence[Any]) -> Any:
        if self._spec is None:
            return outputs[0]
        return pytree.tree_unflatten(list(outputs), self._spec)


def tensor_of(x: Any) -> Any:
    """The tensor of a NumPy array or number, in the memory of the array if that is writable; else ``x``."""
    if isinstance(x, np.floating):
        x = np.asarray(x)
    if not isinstance(x, np.ndarray):
        return x
    return torch.from_numpy(x if x.flags.writeable else x.copy())
