"""Any function of a mechanism as kernels.

What it takes is in `arguments`, what one evaluation tells about it in `recipe`, what it reads from outside
in `capture`; here its kernels are made and called.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchsko.errors import FusedError, ShapeError
from torchsko.fused.capture.arguments import Arguments, Choice, no_constant
from torchsko.fused.capture.captured import Captured
from torchsko.fused.capture.recipe import Recipe, recipe_of
from torchsko.fused.capture.watch import Swap, Watch
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.workshop import Eager, Workshop, check_dtype, refuse_constants
from torchsko.mechanism.mechanism import Mechanism

_log = logging.getLogger("torchsko")


class _Made(NamedTuple):
    """Kernels of one choice of arguments.

    Attributes:
        function: of the tensors that are given, those from outside, and the mechanism's parameters.
        spec: how results are nested; None for a single tensor.
        captured: what is read from outside.
        kinds: types of results that are of another than the kernel's.
    """

    function: FusedFunction
    spec: Any
    captured: Captured
    kinds: tuple[tuple[int, torch.dtype], ...]

    def results(self, outputs: Sequence[Tensor]) -> Any:
        """What the kernels gave, in the types and the nest of the function."""
        if self.kinds:
            outputs = [*outputs]
            for k, kind in self.kinds:
                outputs[k] = outputs[k].to(kind)
        return outputs[0] if self.spec is None else pytree.tree_unflatten(list(outputs), self.spec)


class FusedCall:
    """A function of a mechanism as kernels: `torchsko.fuse` makes it.

    Call it like the function, without the mechanism. Tensors are inputs; other arguments, such as
    names of frames, are constants with a kernel for each choice. Tensors of real numbers that the
    function reads from elsewhere (closures, modules, globals) are inputs too, read anew at each call.

    Copies, also unpickled ones, load their kernels from the disk cache; a file of `torch.save` is read by
    ``torch.load(file, weights_only=False)``. A copy of a bound method is bound to the copy of its object;
    a function is pickled by its name, so a lambda cannot be.
    """

    def __init__(
        self,
        fn: Eager,
        workshop: Workshop,
        mech: Mechanism,
        shapes: Mapping[str, tuple[int, ...]],
        recipes: Mapping[Choice, Recipe] | None = None,
    ) -> None:
        self._mech = mech
        self._fn, self._workshop, self._shapes = fn, workshop, dict(shapes)
        self._values = tuple(getattr(mech, name) for name in workshop.parameters)
        self._arguments = Arguments.of(fn)
        self._arguments.refuse_unknown(shapes)
        self._made: dict[Choice, _Made] = {}
        self._recipes: dict[Choice, Recipe] = dict(recipes or {})
        required = self._arguments.required
        if recipes is None and all(self._shape(name) is not None for name in required):
            # Made now, since torch.compile could not make it while it traces a caller.
            self._make((required, ()))

    def __repr__(self) -> str:
        name = getattr(self._fn, "__qualname__", type(self._fn).__qualname__)
        return f"FusedCall({name}({', '.join(self._arguments.names)}), {self._mech!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the function to a batch.

        Args:
            *args: the function's arguments after the mechanism; tensors `[*batch, *shape]`, whose
                batch shapes broadcast.
            **kwargs: likewise, by name.

        Returns:
            What the function returns.

        Raises:
            FusedError: a tensor of unknown shape, or a result that is no tensor nor a nest of them;
                random numbers drawn within the function, a write into a tensor from outside of it, or a
                number that it changes each time; within torch.compile, a constant that has changed.
            ShapeError: a tensor that does not fit, or an array or a list in its place.
        """
        states, options = self._arguments.chosen(args, kwargs)
        choice = (tuple(states), options)
        try:
            made = self._made.get(choice)
        except TypeError:
            raise ShapeError(no_constant(options)) from None
        if made is None:
            made = self._make_first(choice)
        for x in states.values():
            check_dtype(self._mech, x)
        outside = made.captured.read()
        if isinstance(outside, str):
            made = self._make_again(choice, outside)
            outside = cast(tuple, made.captured.read())
        outside = _widened(outside, self._mech)
        return made.results(made.function(*states.values(), *outside, *self._parameters))

    def function(self, names: tuple[str, ...]) -> FusedFunction:
        """The function of these tensors, of what it reads from outside, and of the mechanism's parameters."""
        return self._prepared(names).function

    def outside(self, names: tuple[str, ...]) -> list[Tensor] | str:
        """What that function reads from outside, as it is now, or the name of a constant that has changed."""
        outside = self._prepared(names).captured.read()
        return outside if isinstance(outside, str) else _widened(outside, self._mech)

    def _prepared(self, names: tuple[str, ...]) -> _Made:
        made = self._made.get((names, ()))
        return self._make((names, ())) if made is None else made

    def mechanism(self) -> Mechanism:
        """The mechanism, with the current values of the parameters that are inputs."""
        return self._mech

    def replace(self, **changes: Tensor) -> FusedCall:
        """The same kernels with other values of parameters that are inputs.

        Raises:
            FusedError: a parameter that is a constant of the kernels.
        """
        refuse_constants(self._workshop, changes)
        mech = self.mechanism().replace(**changes)
        other = FusedCall(self._fn, self._workshop, mech, self._shapes, self._recipes)
        other._made = dict(self._made)
        return other

    def __getstate__(self) -> tuple[Any, ...]:
        choices = self._workshop.choices
        return self._fn, self._mech, choices, self._shapes, self._recipes

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        fn, mech, choices, shapes, recipes = state
        self.__init__(fn, Workshop(mech, *choices), mech, shapes, recipes)

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedCall:
        other = memo[id(self)] = FusedCall.__new__(FusedCall)  # its function may hold it
        fn, mech = deepcopy(self._fn, memo), deepcopy(self._mech, memo)
        if fn is not self._fn:
            other.__setstate__((fn, mech, *self.__getstate__()[2:]))
            return other
        other.__init__(fn, self._workshop, mech, self._shapes, self._recipes)
        other._made = dict(self._made)
        return other

    @property
    def _parameters(self) -> tuple[Tensor, ...]:
        """The current values of the parameters that are inputs."""
        return self._values

    def _shape(self, name: str) -> tuple[int, ...] | None:
        return self._shapes.get(name, self._workshop.shape(name))

    def _make_first(self, choice: Choice) -> _Made:
        """Make the function of a choice of arguments that is new."""
        if torch.compiler.is_compiling():
            raise FusedError(
                "a fused function met new optional arguments inside of torch.compile.",
                "Kernels cannot be made there.",
                "Call it once with these arguments before.",
            )
        return self._make(choice)

    def _make_again(self, choice: Choice, name: str) -> _Made:
        """Make the function of a choice of arguments anew, since a constant of it is another."""
        if torch.compiler.is_compiling():
            raise FusedError(
                f"{name} has changed since the kernels were made.",
                "They hold it constant, and a compiled program makes no new ones.",
                "Call the function once outside of it, or pass what changes as an argument.",
            )
        say_again(name)
        self._recipes.pop(choice, None)
        self._workshop.forget(choice)
        return self._make(choice)

    def _make(self, choice: Choice) -> _Made:
        """Make the function of a choice of arguments."""
        names, options = choice
        self._arguments.refuse_unknown((*names, *dict(options)))
        shapes = self._shapes_of(names)
        recipe = self._recipes.get(choice)
        if recipe is None:
            recipe = recipe_of(self._fn, self._arguments, choice, shapes, self._workshop)
        captured = Captured(self._fn, recipe.captures, recipe.own, self._workshop.constants)
        for k, capture in enumerate(captured.inputs):
            shapes[f"{capture.name} ({k})"] = capture.shape  # no name of an argument
        function = self._traced(choice, shapes, recipe, captured)
        self._recipes[choice] = recipe
        spec = pytree.tree_structure(recipe.form)
        made = _Made(function, None if spec.is_leaf() else spec, captured, recipe.kinds)
        self._made[choice] = made
        return made

    def _traced(
        self,
        choice: Choice,
        shapes: Mapping[str, tuple[int, ...]],
        recipe: Recipe,
        captured: Captured,
    ) -> FusedFunction:
        """The kernels of a choice of arguments, traced when they are first run."""

        def flat(mech: Mechanism, *tensors: Tensor) -> Any:
            current = captured.read()
            if isinstance(current, str):
                raise FusedError(_TOO_LATE.format(name=current))
            states, outside = tensors[: len(choice[0])], tensors[len(choice[0]) :]
            with Swap(current, outside):
                found, _ = self._arguments.call(self._fn, choice, mech, states)
                # A kernel's results are of one type; who calls it gives them theirs.
                for k, _ in recipe.kinds:
                    found[k] = found[k].to(mech.dtype)
                return found

        def watched() -> AbstractContextManager:
            return Watch((*self._workshop.constants, *captured.constants), traces=True)

        return self._workshop.make(
            choice, flat, shapes, recipe.num_outputs, broadcasts=False, around=watched
        )

    def _shapes_of(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for name in names:
            shape = self._shape(name)
            if shape is None:
                raise FusedError(
                    f"the shape of {name!r} is unknown.",
                    "A kernel is compiled for one shape per sample; only states, forces, dt and "
                    "the mechanism's parameters, by their usual names, have known ones.",
                    f"Call ts.fuse(fn, mech, shapes={{{name!r}: (...)}}).",
                )
            shapes[name] = shape
        return shapes


def _widened(tensors: Sequence[Tensor], mech: Mechanism) -> list[Tensor]:
    """What is read from outside in the mechanism's type: a narrower one, as PyTorch's promotion does."""
    return [x.to(mech.dtype) for x in tensors]


def say_again(name: str) -> None:
    """Say that kernels are made anew, since something that they hold constant is another."""
    _log.warning(
        "kernels are made again: %s has changed, which they hold constant. Keep in a tensor of real numbers "
        "what changes often: it is read anew at each call",
        name,
    )


_TOO_LATE = (
    "{name} has changed between a call and the first kernel of its derivative.\n"
    "That kernel is made by the backward pass, from the function as it is now.\n"
    "Change {name} after the backward pass, or keep it in a tensor of real numbers."
)
