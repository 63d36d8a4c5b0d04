"""Layers whose verbs are kernels: learned parameters are read at each call, other tensors are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchsko.api.row import Row
from torchsko.errors import FusedError
from torchsko.fused.calls.memory_snapshot import MemorySnapshot
from torchsko.fused.capture.arguments import Eager
from torchsko.fused.capture.watch import is_within
from torchsko.fused.fused_call import FusedCall
from torchsko.fused.fused_mechanism import FusedMechanism
from torchsko.fused.tracing.clean import (
    assert_at_runtime,
    concrete,
    in_clean_thread,
    is_differentiated,
    is_wrapped,
)
from torchsko.fused.workshop import Remade, Workshop, workshop_of
from torchsko.integrators.finite_checks import NonFiniteChoice
from torchsko.mechanism.dispatch import MechanismLayer
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.mechanism import Mechanism


class Values:
    """The current values of a layer, and the workshop of the kernels in which some of them are constants.

    Attributes:
        layer: the layer.
        workshop: makes kernels for the constants at the last call of `follow`.
    """

    captured_attributes = ("layer",)

    def __init__(self, layer: MechanismLayer, workshop: Workshop) -> None:
        self.layer = layer
        self._take(workshop)

    def _take(self, workshop: Workshop) -> None:
        self.workshop = workshop
        self._constants = tuple(n for n in PARAMETERS if n not in workshop.parameters)
        self._seen: MemorySnapshot | None = (
            None  # snapshot of the layer's constants when these kernels were made
        )

    def inputs(self) -> tuple[Tensor, ...]:
        """The current values of the parameters that are inputs of the kernels."""
        names = self.workshop.parameters
        if not names:  # no inputs: the mechanism need not be assembled
            return ()
        robot = self.layer.mechanism()
        return tuple(getattr(robot, name) for name in names)

    def follow(self) -> bool:
        """Replace the workshop if a constant of the layer has changed; return True if so."""
        if torch.compiler.is_compiling():
            self._refuse_change()
            return False
        held = self.layer.stored_fields
        now = [held[name] for name in self._constants]
        if self._seen is not None and self._seen.is_of(now):
            return False
        old = self.workshop.mechanism
        changed = in_clean_thread(
            lambda: [
                n for n, x in zip(self._constants, now, strict=True) if _differs(x, getattr(old, n))
            ]
        )
        like = self.layer.stored_fields["mass"]
        moved = like.dtype != old.dtype or like.device != old.device
        if changed or moved:
            inputs, order = self.workshop.choices
            self._take(workshop_of(self.layer, (*inputs, *(() if moved else changed)), order))
            now = [held[name] for name in self._constants]
        if not any(map(is_wrapped, now)):
            self._seen = in_clean_thread(lambda: MemorySnapshot(now))
        return bool(changed) or moved

    def _refuse_change(self) -> None:
        """Add a check to a compiled program, which cannot make kernels, that the constants are unchanged."""
        held, old = self.layer.stored_fields, self.workshop.mechanism
        now = torch.cat([held[name].flatten() for name in self._constants])
        then = torch.cat([getattr(old, name).flatten() for name in self._constants])
        assert_at_runtime(
            (now == then).all(),
            "buffers of the layer have changed since its kernels were made.\n"
            "A compiled program treats them as constants and cannot make new kernels.\n"
            "Call the fused function once outside of the program; it is compiled again after that.",
        )


class FusedLayer(FusedMechanism):
    """A layer whose verbs are kernels: `torchsko.fuse` makes it.

    Learned parameters are read from the layer at each call, and gradients reach them. Other tensors are
    constants; those that change, by ``load_state_dict`` or in place, become inputs of new kernels. Pass the
    parameters of the original layer to the optimizer, and save its ``state_dict``.

    Attributes:
        layer: the layer.
    """

    captured_attributes = ("layer", "_workshop")

    def __init__(self, workshop: Workshop, layer: MechanismLayer, *, verify: bool = True) -> None:
        self.layer = layer
        self._now = Values(layer, workshop)
        super().__init__(workshop, workshop.mechanism, verify=verify)

    def mechanism(self) -> Mechanism:
        """The layer's mechanism, with its current values."""
        return self.layer.mechanism()

    def to(self, target: torch.device | torch.dtype | str) -> FusedMechanism:
        """Refuse to move: a layer moves in place, and its kernels follow.

        Raises:
            FusedError: always.
        """
        raise FusedError(
            f"kernels of a layer cannot move to {target}.",
            "They share the parameters of the layer.",
            f"Type ts.fuse(layer.to({target!r})).",
        )

    @property
    def _parameters(self) -> tuple[Tensor, ...]:
        return self._now.inputs()

    def _verb(self, row: Row, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not torch.compiler.is_compiling() and is_within((*args, *kwargs.values())):
            # Within another fused function its kernel reads all values of the layer.
            return row.function(self.mechanism(), *args, **kwargs)
        self._follow()
        return super()._verb(row, args, kwargs)

    def _follow(self) -> None:
        """Make new kernels if a constant of the layer has changed."""
        if self._now.follow():
            workshop = self._now.workshop
            super().__init__(workshop, workshop.mechanism, verify=self._verify)

    def _fuse_call(self, fn: Eager, shapes: Mapping[str, tuple[int, ...]]) -> FusedCall:
        workshop = workshop_of(self.layer, *self._workshop.choices)
        return FusedLayerCall(fn, workshop, self.layer, shapes, verify=self._verify)

    def _made_of(self) -> tuple[Any, ...]:
        return (), self.layer, (), {"verify": self._verify}


class FusedLayerCall(FusedCall):
    """A function of a layer's mechanism as kernels: `torchsko.fuse` makes it.

    It reads the layer as `FusedLayer` does: learned parameters at each call, with gradients. Constants that
    change become inputs of new kernels.
    """

    captured_attributes = ("_fn", "_now", "_workshop")

    def __init__(
        self,
        fn: Eager,
        workshop: Workshop,
        layer: MechanismLayer,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        verify: bool = True,
        nonfinite: NonFiniteChoice = "ignore",
    ) -> None:
        self._now = Values(layer, workshop)
        treatment: dict[str, Any] = {"verify": verify, "nonfinite": nonfinite}
        super().__init__(fn, workshop, workshop.mechanism, shapes, **treatment)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the function to a batch with the current values of the layer; see `FusedCall`."""
        if not torch.compiler.is_compiling() and is_within((*args, *kwargs.values())):
            # Within another fused function its kernel reads all values of the layer.
            return self._fn(self.mechanism(), *args, **kwargs)
        self._follow()
        return super().__call__(*args, **kwargs)

    def mechanism(self) -> Mechanism:
        """The layer's mechanism, with its current values."""
        return self._now.layer.mechanism()

    def replace(self, **changes: Tensor) -> FusedCall:
        """The kernels with replaced values and the current values of the layer; see `FusedCall.replace`."""
        self._follow()
        return super().replace(**changes)

    @property
    def _parameters(self) -> tuple[Tensor, ...]:
        return self._now.inputs()

    def _follow(self) -> None:
        """Make kernels again if a constant of the layer has changed."""
        if self._now.follow():
            workshop = self._now.workshop
            mech, shapes = workshop.mechanism, self._shapes
            super().__init__(self._fn, workshop, mech, shapes, **self._treatment)

    def _made_of(self) -> tuple[Any, ...]:
        return (self._fn,), self._now.layer, (self._shapes,), self._treatment

    __deepcopy__ = Remade.__deepcopy__


def _differs(x: Tensor, constant: Tensor) -> bool:
    if is_differentiated(x):
        return True
    value = concrete(x)
    return value.device == constant.device and not torch.equal(value, constant.to(value.dtype))
