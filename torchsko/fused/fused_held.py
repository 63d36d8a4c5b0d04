"""Constrained dynamics as kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

from torch import Tensor

from torchsko.fused.capture.arguments import Eager
from torchsko.fused.fused_call import FusedCall
from torchsko.verbs.constrained.held_mechanism import FUNCTIONS, HeldMechanism

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
    """

    make: MakeCall
    made: dict[str, FusedCall] = field(default_factory=dict)

    def _call(self, name: str, tensors: dict[str, Tensor | None], **options: float) -> Any:
        if name not in self.made:
            shapes = {"active": (len(self.constraints.rows.constraints),)}
            self.made[name] = self.make(MethodType(FUNCTIONS[name], self.constraints), shapes)
        given = {k: x for k, x in tensors.items() if x is not None}
        if (active := given.get("active")) is not None:
            self.constraints.rows.check_mask(active, given["q"].shape[:-1])
            given["active"] = active.to(given["q"].dtype)
        return self.made[name](**given, **options)
