"""Constrained dynamics as kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.fused_call import FusedCall
from torchsko.fused.workshop import Eager
from torchsko.verbs.held.held_mechanism import FUNCTIONS, HeldMechanism

MakeCall = Callable[[Eager, Mapping[str, tuple[int, ...]]], FusedCall]
"""Makes kernels of a function of the mechanism, with shapes of its further arguments."""


@dataclass(frozen=True, eq=False, repr=False)
class FusedHeldMechanism(HeldMechanism):
    """A mechanism with constraints whose methods are kernels; made by `torchsko.fuse`.

    A mask is an input of the kernel, so that one kernel serves all gaits. Placements of constraints that
    are tensors are inputs too, with gradients.

    Attributes:
        make: makes the kernels of a function.
        made: kernels of each method.
        plain: kernels that have the states as their only inputs, by method and number of states.
    """

    make: MakeCall
    made: dict[str, FusedCall] = field(default_factory=dict)
    plain: dict[tuple[str, int], FusedFunction] = field(default_factory=dict)

    def _call(self, name: str, tensors: dict[str, Tensor | None], **options: float) -> Any:
        given = {k: x for k, x in tensors.items() if x is not None}
        if "active" in given or options:
            return self._call_kernels(name, given, **options)
        # The constraints do not change, so without captured tensors their kernel is called directly.
        function = self.plain.get((name, len(given)))
        results = None if function is None else function.call_native(tuple(given.values()))
        if results is not None:
            return results[0] if len(results) == 1 else tuple(results)
        found = self._call_kernels(name, given)
        if (name, len(given)) not in self.plain and not torch.compiler.is_compiling():
            function, captured = self.made[name].current(tuple(given))
            if len(function.inputs) == len(given) and not captured:
                self.plain[name, len(given)] = function
        return found

    def _call_kernels(self, name: str, given: dict[str, Tensor], **options: float) -> Any:
        if name not in self.made:
            shapes = {"active": (len(self.constraints.rows.constraints),)}
            self.made[name] = self.make(MethodType(FUNCTIONS[name], self.constraints), shapes)
        if (active := given.get("active")) is not None:
            self.constraints.rows.check_mask(active, given["q"].shape[:-1])
            given["active"] = active.to(given["q"].dtype)
        return self.made[name](**given, **options)
