"""Any function of a mechanism as kernels."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import takewhile
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchsko.errors import FusedError
from torchsko.fused.register import FusedFunction
from torchsko.fused.workshop import Eager, Workshop, check_dtype, refuse_constants
from torchsko.mechanism.mechanism import Mechanism


class FusedCall:
    """A function of a mechanism as kernels: `torchsko.fuse` makes it.

    Call it like the function, without the mechanism. Tensors are inputs; other arguments, such as
    names of frames, are constants with a kernel for each choice.

    Attributes:
        mechanism: the mechanism, with the current values of the parameters that are inputs.
    """

    def __init__(
        self,
        fn: Eager,
        workshop: Workshop,
        mech: Mechanism,
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.mechanism = mech
        self._fn, self._workshop, self._shapes = fn, workshop, shapes
        self._parameters = tuple(getattr(mech, name) for name in workshop.parameters)
        arguments = tuple(inspect.signature(fn).parameters.values())[1:]
        self._names = tuple(argument.name for argument in arguments)
        self._positional = tuple(a.name for a in arguments if a.kind is not a.KEYWORD_ONLY)
        self._specs: dict[Any, Any] = {}
        required = [a.name for a in arguments if a.default is inspect.Parameter.empty]
        if all(self._shape(name) is not None for name in required):
            # Made now, since torch.compile could not make it while it traces a caller.
            self._prepare(tuple(required), ())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the function to a batch.

        Args:
            *args: the function's arguments after the mechanism; tensors `[*batch, *shape]`, whose
                batch shapes broadcast.
            **kwargs: likewise, by name.

        Returns:
            What the function returns.

        Raises:
            FusedError: a tensor of unknown shape, or a result that is no tensor nor a nest of them.
            ShapeError: a tensor that does not fit.
        """
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        states = {name: x for name, x in given.items() if isinstance(x, Tensor)}
        options = tuple(
            (name, tuple(x) if isinstance(x, list) else x)
            for name, x in given.items()
            if not isinstance(x, Tensor) and x is not None
        )
        key = (tuple(states), options)
        if key not in self._specs:
            if torch.compiler.is_compiling():
                raise FusedError(
                    "a fused function met new optional arguments inside of torch.compile.\n"
                    "Kernels cannot be made there.\nCall it once with these arguments before."
                )
            self._prepare(*key)
        for x in states.values():
            check_dtype(self.mechanism, x)
        function = cast(FusedFunction, self._workshop.find(key))
        outputs = function(*states.values(), *self._parameters)
        spec = self._specs[key]
        return outputs[0] if spec is None else pytree.tree_unflatten(list(outputs), spec)

    def replace(self, **changes: Tensor) -> FusedCall:
        """The same kernels with other values of parameters that are inputs.

        Raises:
            FusedError: a parameter that is a constant of the kernels.
        """
        refuse_constants(self._workshop, changes)
        return FusedCall(self._fn, self._workshop, self.mechanism.replace(**changes), self._shapes)

    def _shape(self, name: str) -> tuple[int, ...] | None:
        return self._shapes.get(name, self._workshop.shape(name))

    def _prepare(self, names: tuple[str, ...], options: tuple[tuple[str, Any], ...]) -> None:
        """Make the function of these tensors; one evaluation tells how its results are nested."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name in names:
            shape = self._shape(name)
            if shape is None:
                raise FusedError(
                    f"the shape of {name!r} is unknown.\n"
                    "A kernel is compiled for one shape per sample; only q, qd, qdd, tau, f_ext and "
                    f"the mechanism's parameters have known ones.\n"
                    f"Call ts.fuse(fn, mech, shapes={{{name!r}: (...)}})."
                )
            shapes[name] = shape

        def flat(mech: Mechanism, *tensors: Tensor) -> Any:
            given = {**dict(zip(names, tensors, strict=True)), **dict(options)}
            leading = [given.pop(name) for name in takewhile(given.__contains__, self._positional)]
            return pytree.tree_flatten(self._fn(mech, *leading, **given))

        mech = self.mechanism
        states = [mech.neutral() if n == "q" else mech.mass.new_zeros(shapes[n]) for n in names]
        one = [
            x.reshape(-1, *cast(tuple, self._workshop.shape(name)))[0]
            for name, x in zip(self._workshop.parameters, self._parameters, strict=True)
        ]
        found, spec = flat(*self._workshop.split((*states, *one), scalar=False))
        if not found or not all(isinstance(x, Tensor) for x in found):
            raise FusedError(
                "the function returned something that is no tensor.\n"
                "A kernel's results are tensors.\nReturn a tensor, or tuples and dicts of them."
            )
        self._workshop.make(
            (names, options), lambda *x: flat(*x)[0], shapes, len(found), broadcasts=False
        )
        self._specs[names, options] = None if spec.is_leaf() else spec
