"""A layer whose verbs are kernels: what it learns is read at each call, what it holds is watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from torchsko.api.verb_table import Row
from torchsko.errors import FusedError
from torchsko.fused.calls.memory_snapshot import MemorySnapshot
from torchsko.fused.capture.arguments import Eager
from torchsko.fused.capture.watch import is_within
from torchsko.fused.functions.traits import TraceContext
from torchsko.fused.fused_call import FusedCall
from torchsko.fused.fused_mechanism import FusedMechanism
from torchsko.fused.tracing.clean import (
    assert_at_runtime,
    concrete,
    hidden_from_saved_tensor_hooks,
    in_clean_thread,
    is_differentiated,
    is_wrapped,
)
from torchsko.fused.workshop import Workshop, unwrapped
from torchsko.mechanism.dispatch import MechanismLayer
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism


class Values:
    """The values of a layer now, and the workshop of kernels that hold some of them constant.

    Attributes:
        layer: the layer.
        workshop: of kernels for what it held when `follow` was last called.
    """

    captured_attributes = ("layer",)

    def __init__(self, layer: MechanismLayer, workshop: Workshop) -> None:
        self.layer = layer
        self._take(workshop)

    def _take(self, workshop: Workshop) -> None:
        self.workshop = workshop
        self._constants = tuple(n for n in PARAMETERS if n not in workshop.parameters)
        self._seen: MemorySnapshot | None = (
            None  # of the layer's constants, when these kernels were theirs
        )

    def inputs(self) -> tuple[Tensor, ...]:
        """The parameters that are inputs of the kernels, as they are now."""
        names = self.workshop.parameters
        if not names:  # nothing is learned: no mechanism need be put together
            return ()
        robot = self.layer.mechanism()
        return tuple(getattr(robot, name) for name in names)

    def follow(self) -> bool:
        """See to a workshop of what the layer holds now; whether it is another than before."""
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
        """Have a compiled program, in which no kernels can be made, refuse values other than the kernels'."""
        held, old = self.layer.stored_fields, self.workshop.mechanism
        now = torch.cat([held[name].flatten() for name in self._constants])
        then = torch.cat([getattr(old, name).flatten() for name in self._constants])
        assert_at_runtime(
            (now == then).all(),
            "buffers of the layer have changed since its kernels were made.\n"
            "A compiled program holds them constant, and makes no new kernels.\n"
            "Call the fused function once outside of it: it is compiled anew after that.",
        )


class FusedLayer(FusedMechanism):
    """A layer whose verbs are kernels: `torchsko.fuse` makes it.

    What the layer learns is read from it at each call, and gradients reach its parameters. The rest are
    constants; those that change, by ``load_state_dict`` or in place, are inputs of new kernels from then
    on. It stays a layer of its own: hand its parameters to the optimizer, and save its ``state_dict``.

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
        """Refused: a layer moves in place, and its kernels follow.

        Raises:
            FusedError: always.
        """
        raise FusedError(
            f"kernels of a layer were asked to go to {target}.",
            "Its parameters are the layer's, which moves by itself.",
            f"Type ts.fuse(layer.to({target!r})).",
        )

    @property
    def _parameters(self) -> tuple[Tensor, ...]:
        return self._now.inputs()

    def _verb(self, row: Row, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not torch.compiler.is_compiling() and is_within((*args, *kwargs.values())):
            # Another function's kernel is to read all that the layer holds anew.
            return row.function(self.mechanism(), *args, **kwargs)
        self._follow()
        return super()._verb(row, args, kwargs)

    def _follow(self) -> None:
        """Make new kernels where the layer no longer holds what these have as constants."""
        if self._now.follow():
            workshop = self._now.workshop
            super().__init__(workshop, workshop.mechanism, verify=self._verify)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.layer, self._workshop.choices, self._verify

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        layer, choices, verify = state
        self.__init__(workshop_of(layer, *choices), layer, verify=verify)

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedLayer:
        return FusedLayer(self._workshop, deepcopy(self.layer, memo), verify=self._verify)


class FusedLayerCall(FusedCall):
    """A function of a layer's mechanism as kernels: `torchsko.fuse` makes it.

    It reads the layer as `FusedLayer` does: what is learned at each call, with gradients; of the rest, which
    are constants, those that change are inputs of new kernels from then on.
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
    ) -> None:
        self._now = Values(layer, workshop)
        super().__init__(fn, workshop, workshop.mechanism, shapes, verify=verify)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the function to a batch, with what the layer holds now; see `FusedCall`."""
        if not torch.compiler.is_compiling() and is_within((*args, *kwargs.values())):
            # Another function's kernel is to read all that the layer holds anew.
            return self._fn(self.mechanism(), *args, **kwargs)
        self._follow()
        return super().__call__(*args, **kwargs)

    def mechanism(self) -> Mechanism:
        """The layer's mechanism, with its current values."""
        return self._now.layer.mechanism()

    def replace(self, **changes: Tensor) -> FusedCall:
        """The same kernels with other values, and those of the layer now; see `FusedCall.replace`."""
        self._follow()
        return super().replace(**changes)

    @property
    def _parameters(self) -> tuple[Tensor, ...]:
        return self._now.inputs()

    def _follow(self) -> None:
        """Have kernels made anew where the layer no longer holds what these have as constants."""
        if self._now.follow():
            workshop = self._now.workshop
            mech, shapes = workshop.mechanism, self._shapes
            super().__init__(self._fn, workshop, mech, shapes, verify=self._verify)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._fn, self._now.layer, self._workshop.choices, self._shapes, self._verify

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        fn, layer, choices, shapes, verify = state
        self.__init__(fn, workshop_of(layer, *choices), layer, shapes, verify=verify)

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedLayerCall:
        other = memo[id(self)] = FusedLayerCall.__new__(FusedLayerCall)  # its function may hold it
        fn, layer = deepcopy(self._fn, memo), deepcopy(self._now.layer, memo)
        other.__setstate__((fn, layer, *self.__getstate__()[2:]))
        return other


def workshop_of(
    layer: MechanismLayer, inputs: Sequence[str], order: int, around: TraceContext = nullcontext
) -> Workshop:
    """The workshop of a layer, at copies of its values; what it learns is an input.

    Args:
        layer: also within a transform of torch.func, which may have wrapped its tensors.
        inputs: further parameters that are.
        order: of derivatives; see `torchsko.fuse`.
        around: makes a context to trace in.
    """
    with hidden_from_saved_tensor_hooks():
        robot = layer.mechanism()
    derived = [name for name in PARAMETERS if is_differentiated(getattr(robot, name))]
    return in_clean_thread(
        lambda: Workshop(
            unwrapped(robot), (*layer.learned_fields, *inputs, *derived), order, around
        )
    )


def _differs(x: Tensor, constant: Tensor) -> bool:
    if is_differentiated(x):
        return True
    value = concrete(x)
    return value.device == constant.device and not torch.equal(value, constant.to(value.dtype))
