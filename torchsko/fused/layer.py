"""A layer whose verbs are kernels: what it learns is read at each call, what it holds is watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import Any, Protocol

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.fused.clean import (
    concrete,
    in_clean_thread,
    is_differentiated,
    is_wrapped,
    refuse_when_run,
    unfollowed,
)
from torchsko.fused.mechanism import FusedMechanism
from torchsko.fused.snapshot import Snapshot
from torchsko.fused.traits import Around
from torchsko.fused.watch import is_within
from torchsko.fused.workshop import Workshop, unwrapped
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism
from torchsko.mechanism.verb import MechanismLike
from torchsko.table import Row


class Layer(MechanismLike, Protocol):
    """A layer, such as `torchsko.Dynamics`: its mechanism's values change from call to call."""

    @property
    def learns(self) -> tuple[str, ...]:
        """Names of the mechanism's tensors that change."""
        ...

    @property
    def held(self) -> Mapping[str, Tensor]:
        """The mechanism's tensors by name, as they are now; of those that change the start."""
        ...


class FusedLayer(FusedMechanism):
    """A layer whose verbs are kernels: `torchsko.fuse` makes it.

    What the layer learns is read from it at each call, and gradients reach its parameters. The rest are
    constants; those that change, by ``load_state_dict`` or in place, are inputs of new kernels from then
    on. It stays a layer of its own: hand its parameters to the optimizer, and save its ``state_dict``.
    """

    def __init__(self, workshop: Workshop, layer: Layer) -> None:
        self._layer = layer
        self._take(workshop)

    def _take(self, workshop: Workshop) -> None:
        super().__init__(workshop, workshop.mechanism)
        self._constants = tuple(n for n in PARAMETERS if n not in workshop.parameters)
        self._seen: Snapshot | None = (
            None  # of the layer's constants, when these kernels were theirs
        )

    def mechanism(self) -> Mechanism:
        """The layer's mechanism, with its current values."""
        return self._layer.mechanism()

    def to(self, target: torch.device | torch.dtype | str) -> FusedMechanism:
        """Refused: a layer moves in place, and its kernels follow.

        Raises:
            FusedError: always.
        """
        raise FusedError(
            f"kernels of a layer were asked to go to {target}.\n"
            "Its parameters are the layer's, which moves by itself.\n"
            f"Type ts.fuse(layer.to({target!r}))."
        )

    @property
    def _parameters(self) -> tuple[Tensor, ...]:
        names = self._workshop.parameters
        if not names:  # nothing is learned: no mechanism need be put together
            return ()
        robot = self._layer.mechanism()
        return tuple(getattr(robot, name) for name in names)

    def _verb(self, row: Row, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not torch.compiler.is_compiling() and is_within((*args, *kwargs.values())):
            # Another function's kernel is to read all that the layer holds anew.
            return row.function(self.mechanism(), *args, **kwargs)
        self._follow()
        return super()._verb(row, args, kwargs)

    def _follow(self) -> None:
        """Make new kernels where the layer no longer holds what these have as constants."""
        if torch.compiler.is_compiling():
            return self._refuse_change()
        held = self._layer.held
        now = [held[name] for name in self._constants]
        if self._seen is not None and self._seen.is_of(now):
            return
        old = self._workshop.mechanism
        changed = in_clean_thread(
            lambda: [
                n for n, x in zip(self._constants, now, strict=True) if _differs(x, getattr(old, n))
            ]
        )
        like = self._layer.held["mass"]
        if changed or like.dtype != old.dtype or like.device != old.device:
            inputs, order = self._workshop.choices
            moved = like.dtype != old.dtype or like.device != old.device
            self._take(workshop_of(self._layer, (*inputs, *(() if moved else changed)), order))
            now = [held[name] for name in self._constants]
        if not any(map(is_wrapped, now)):
            self._seen = in_clean_thread(lambda: Snapshot(now))

    def _refuse_change(self) -> None:
        """Have a compiled program, in which no kernels can be made, refuse values other than the kernels'."""
        held, old = self._layer.held, self._workshop.mechanism
        now = torch.cat([held[name].flatten() for name in self._constants])
        then = torch.cat([getattr(old, name).flatten() for name in self._constants])
        refuse_when_run(
            (now == then).all(),
            "buffers of the layer have changed since its kernels were made.\n"
            "A compiled program holds them constant, and makes no new kernels.\n"
            "Call a verb of ts.fuse(layer) once outside of it: it is compiled anew after that.",
        )

    def __getstate__(self) -> tuple[Any, ...]:
        return self._layer, self._workshop.choices

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        layer, choices = state
        self.__init__(workshop_of(layer, *choices), layer)

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedLayer:
        return FusedLayer(self._workshop, deepcopy(self._layer, memo))


def workshop_of(
    layer: Layer, inputs: Sequence[str], order: int, around: Around = nullcontext
) -> Workshop:
    """The workshop of a layer, at copies of its values; what it learns is an input.

    Args:
        layer: also within a transform of torch.func, which may have wrapped its tensors.
        inputs: further parameters that are.
        order: of derivatives; see `torchsko.fuse`.
        around: makes a context to trace in.
    """
    with unfollowed():
        robot = layer.mechanism()
    derived = [name for name in PARAMETERS if is_differentiated(getattr(robot, name))]
    return in_clean_thread(
        lambda: Workshop(unwrapped(robot), (*layer.learns, *inputs, *derived), order, around)
    )


def _differs(x: Tensor, constant: Tensor) -> bool:
    if is_differentiated(x):
        return True
    value = concrete(x)
    return value.device == constant.device and not torch.equal(value, constant.to(value.dtype))
