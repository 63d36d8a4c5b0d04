"""Base class of fused objects: their mechanism or layer, its current values, and copies."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Self

import torch
from torch import Tensor

from torchsko.fused.calls.memory_snapshot import MemorySnapshot
from torchsko.fused.functions.traits import ChangedConstantsError
from torchsko.fused.tracing.clean import (
    assert_at_runtime,
    concrete,
    in_clean_thread,
    is_differentiated,
    is_wrapped,
)
from torchsko.fused.workshop import Workshop, refuse_constants, workshop_of
from torchsko.mechanism.dispatch import MechanismLayer
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.mechanism import Mechanism


class FusedObject:
    """Kernels of a mechanism or of a layer.

    Learned parameters of a layer are read at each call, and gradients reach them. Its other tensors are
    constants; those that change, by ``load_state_dict`` or in place, become inputs of new kernels. Pass the
    parameters of the layer to the optimizer, and save its ``state_dict``.

    Copies, also unpickled ones, are made of the same arguments, and load their kernels from the disk cache.

    Args:
        source: the mechanism, or the layer.
        workshop: makes the kernels.

    Attributes:
        layer: the layer; None for kernels of a mechanism.
    """

    captured_attributes = ("layer", "_mech", "_workshop")

    def __init__(self, source: Mechanism | MechanismLayer, workshop: Workshop) -> None:
        self.layer = None if isinstance(source, Mechanism) else source
        self._source, self._workshop = source, workshop
        self._mech = source if isinstance(source, Mechanism) else workshop.mechanism
        self._values = tuple(getattr(self._mech, name) for name in workshop.parameters)
        self._seen: MemorySnapshot | None = None  # of the layer's constants

    def _options(self) -> dict[str, Any]:
        """Further arguments with which the object was made, by name."""
        raise NotImplementedError

    def __getstate__(self) -> tuple[Any, ...]:
        return self._source, self._workshop.choices, self._options()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        source, choices, options = state
        self.__init__(source, workshop_of(source, *choices), **options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        other = memo[id(self)] = type(self).__new__(type(self))  # its function may hold it
        other.__setstate__(deepcopy(self.__getstate__(), memo))
        return other

    def replace(self, **changes: Tensor) -> Self:
        """The same kernels with other values of parameters that are inputs.

        Args:
            **changes: tensors by name, as in `Mechanism.replace`.

        Raises:
            FusedError: a parameter that is a constant of the kernels.
            MechanismError: a tensor that does not fit.
        """
        self._follow()
        refuse_constants(self._workshop, changes)
        other = type(self).__new__(type(self))
        self._share_with(other, self.mechanism().replace(**changes))
        return other

    def _share_with(self, other: FusedObject, mech: Mechanism) -> None:
        """Share the kernels with an object of another mechanism."""
        vars(other).update(vars(self))
        FusedObject.__init__(other, mech, self._workshop)

    def mechanism(self) -> Mechanism:
        """The mechanism, with the current values of the parameters that are inputs."""
        return self._mech if self.layer is None else self.layer.mechanism()

    @property
    def _parameters(self) -> tuple[Tensor, ...]:
        """The current values of the parameters that are inputs."""
        if self.layer is None:
            return self._values
        names = self._workshop.parameters  # without any the mechanism need not be assembled
        robot = self.layer.mechanism() if names else None
        return tuple(getattr(robot, name) for name in names)

    def _follow(self) -> None:
        """Make kernels again if a constant of the mechanism or the layer has changed."""
        if self.layer is not None:
            self._follow_layer(self.layer)
        elif not torch.compiler.is_compiling() and not self._workshop.is_unchanged():
            self._renew()

    def _renew(self) -> None:
        """Make kernels for the current values of the mechanism, which was changed in place."""
        if torch.compiler.is_compiling():
            raise ChangedConstantsError
        self.__init__(self._source, self._workshop.renewed(self._mech), **self._options())

    def _follow_layer(self, layer: MechanismLayer) -> None:
        held, old = layer.stored_fields, self._workshop.mechanism
        names = [name for name in PARAMETERS if name not in self._workshop.parameters]
        now = [held[name] for name in names]
        if torch.compiler.is_compiling():
            _refuse_change(now, [getattr(old, name) for name in names])
            return
        if self._seen is not None and self._seen.is_of(now):
            return
        like = held["mass"]
        is_moved = like.dtype != old.dtype or like.device != old.device
        changed = in_clean_thread(
            lambda: [n for n in names if _differs(held[n], getattr(old, n)) and not is_moved]
        )
        if changed or is_moved:
            inputs, order = self._workshop.choices
            workshop = workshop_of(layer, (*inputs, *changed), order)
            self.__init__(layer, workshop, **self._options())
            now = [held[name] for name in PARAMETERS if name not in workshop.parameters]
        if not any(map(is_wrapped, now)):
            self._seen = in_clean_thread(lambda: MemorySnapshot(now))


def _refuse_change(now: list[Tensor], then: list[Tensor]) -> None:
    """Add a check to a compiled program, which cannot make kernels, that constants are unchanged."""
    current, old = (torch.cat([x.flatten() for x in tensors]) for tensors in (now, then))
    assert_at_runtime(
        (current == old).all(),
        "buffers of the layer have changed since its kernels were made.\n"
        "A compiled program treats them as constants and cannot make new kernels.\n"
        "Call the fused function once outside of the program; it is compiled again after that.",
    )


def _differs(x: Tensor, constant: Tensor) -> bool:
    if is_differentiated(x):
        return True
    value = concrete(x)
    return value.device == constant.device and not torch.equal(value, constant.to(value.dtype))
