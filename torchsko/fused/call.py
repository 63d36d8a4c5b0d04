"""Any function of a mechanism as kernels."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active
from torch.utils import _pytree as pytree

from torchsko.errors import FusedError, ShapeError, TorchskoError, unknown_name
from torchsko.fused.capture import Capture, Captured, discover
from torchsko.fused.clean import in_clean_thread, unfollowed
from torchsko.fused.constants import Constants
from torchsko.fused.refusals import refused_by_torch
from torchsko.fused.register import FusedFunction
from torchsko.fused.sources import Reachable
from torchsko.fused.watch import Swap, Watch, constants_of
from torchsko.fused.workshop import Eager, Workshop, check_dtype, refuse_constants
from torchsko.mechanism.mechanism import Mechanism
from torchsko.precision import in_own_type

T = TypeVar("T")
Key = tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]

_log = logging.getLogger("torchsko")


@dataclass(frozen=True)
class Recipe:
    """What one evaluation told about a function with some choice of arguments.

    Attributes:
        form: its results, nested as it nests them, with their numbers in the place of tensors.
        num_outputs: how many tensors it returns.
        captures: what it reads from outside of its arguments.
        kinds: their types, of results that are of another than the kernel's.
        own: names of objects that it makes itself, outside of its arguments.
    """

    form: Any
    num_outputs: int
    captures: tuple[Capture, ...]
    kinds: tuple[tuple[int, torch.dtype], ...] = ()
    own: frozenset[str] = frozenset()


class _Made(NamedTuple):
    function: FusedFunction
    spec: Any  # how results are nested; None for a single tensor
    captured: Captured
    kinds: tuple[tuple[int, torch.dtype], ...]


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
        recipes: Mapping[Key, Recipe] | None = None,
    ) -> None:
        self._mech = mech
        self._fn, self._workshop, self._shapes = fn, workshop, dict(shapes)
        self._parameters = tuple(getattr(mech, name) for name in workshop.parameters)
        source = fn.forward if isinstance(fn, nn.Module) else fn
        arguments = tuple(inspect.signature(source).parameters.values())[1:]
        self._names = tuple(argument.name for argument in arguments)
        self._positional = tuple(a.name for a in arguments if a.kind is not a.KEYWORD_ONLY)
        self._takes_any = any(a.kind in (a.VAR_KEYWORD, a.VAR_POSITIONAL) for a in arguments)
        self._refuse_unknown(shapes)
        self._made: dict[Key, _Made] = {}
        self._recipes: dict[Key, Recipe] = dict(recipes or {})
        required = [a.name for a in arguments if a.default is inspect.Parameter.empty]
        if recipes is None and all(self._shape(name) is not None for name in required):
            # Made now, since torch.compile could not make it while it traces a caller.
            self._make((tuple(required), ()))

    def __repr__(self) -> str:
        name = getattr(self._fn, "__qualname__", type(self._fn).__qualname__)
        return f"FusedCall({name}({', '.join(self._names)}), {self._mech!r})"

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
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        if len(given) != len(args) + len(kwargs):  # too many, or one of them twice
            raise TypeError(
                f"{len(args)} arguments and {', '.join(kwargs) or 'none'} by name were given.\n"
                f"The function takes, after the mechanism, {', '.join(self._names)}.\n"
                "Pass each of them once."
            )
        states = {name: x for name, x in given.items() if isinstance(x, Tensor)}
        options = tuple(
            (name, tuple(x) if isinstance(x, list) else x)
            for name, x in given.items()
            if not isinstance(x, Tensor) and x is not None
        )
        key = (tuple(states), options)
        try:
            known = key in self._made
        except TypeError:
            raise ShapeError(_no_constant(options)) from None
        if not known:
            if torch.compiler.is_compiling():
                raise FusedError(
                    "a fused function met new optional arguments inside of torch.compile.\n"
                    "Kernels cannot be made there.\nCall it once with these arguments before."
                )
            self._make(key)
        for x in states.values():
            check_dtype(self._mech, x)
        function, spec, captured, kinds = self._made[key]
        outside = captured.read()
        if isinstance(outside, str):
            function, spec, captured, kinds = self._made_again(key, outside)
            outside = cast(tuple, captured.read())
        # A narrower type is widened, as PyTorch's promotion does.
        outside = [x.to(self._mech.dtype) for x in outside]
        outputs = function(*states.values(), *outside, *self._parameters)
        if kinds:
            outputs = [*outputs]
            for k, kind in kinds:
                outputs[k] = outputs[k].to(kind)
        return outputs[0] if spec is None else pytree.tree_unflatten(list(outputs), spec)

    def function(self, names: tuple[str, ...]) -> FusedFunction:
        """The function of these tensors, of what it reads from outside, and of the mechanism's parameters."""
        return self._prepared(names).function

    def outside(self, names: tuple[str, ...]) -> list[Tensor] | str:
        """What that function reads from outside, as it is now, or the name of a constant that has changed."""
        outside = self._prepared(names).captured.read()
        if isinstance(outside, str):
            return outside
        # A narrower type is widened, as PyTorch's promotion does.
        return [x.to(self._mech.dtype) for x in outside]

    def _prepared(self, names: tuple[str, ...]) -> _Made:
        if (names, ()) not in self._made:
            self._make((names, ()))
        return self._made[names, ()]

    def mechanism(self) -> Mechanism:
        """The mechanism, with the current values of the parameters that are inputs."""
        return self._mech

    def replace(self, **changes: Tensor) -> FusedCall:
        """The same kernels with other values of parameters that are inputs.

        Raises:
            FusedError: a parameter that is a constant of the kernels.
        """
        refuse_constants(self._workshop, changes)
        mech = self._mech.replace(**changes)
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

    def _shape(self, name: str) -> tuple[int, ...] | None:
        return self._shapes.get(name, self._workshop.shape(name))

    def _made_again(self, key: Key, name: str) -> _Made:
        """Make the function of a choice of arguments anew, since a constant of it is another."""
        if torch.compiler.is_compiling():
            raise FusedError(
                f"{name} has changed since the kernels were made.\n"
                "They hold it constant, and a compiled program makes no new ones.\n"
                "Call the function once outside of it, or pass what changes as an argument."
            )
        say_again(name)
        self._recipes.pop(key, None)
        self._workshop.forget(key)
        self._make(key)
        return self._made[key]

    def _make(self, key: Key) -> None:
        """Make the function of a choice of arguments."""
        self._refuse_unknown((*key[0], *dict(key[1])))
        shapes = self._shapes_of(key[0])
        recipe = self._recipes.get(key)
        if recipe is None and _are_functorch_transforms_active():
            wrapped = Reachable(self._fn).wrapped()
            recipe = in_clean_thread(lambda: self._evaluate(key, shapes, wrapped))
        if recipe is None:
            with unfollowed():
                recipe = self._evaluate(key, shapes)
        captured = Captured(self._fn, recipe.captures, recipe.own, self._workshop.constants)
        for k, capture in enumerate(captured.inputs):
            shapes[f"{capture.name} ({k})"] = capture.shape  # no name of an argument

        def flat(mech: Mechanism, *tensors: Tensor) -> Any:
            current = captured.read()
            if isinstance(current, str):
                raise FusedError(_TOO_LATE.format(name=current))
            states, outside = tensors[: len(key[0])], tensors[len(key[0]) :]
            with Swap(current, outside):
                found = self._flat(key, mech, states)[0]
                # A kernel's results are of one type; who calls it gives them theirs.
                for k, _ in recipe.kinds:
                    found[k] = found[k].to(mech.dtype)
                return found

        def watched() -> AbstractContextManager:
            return Watch((*self._workshop.constants, *captured.constants), traces=True)

        function = self._workshop.make(
            key, flat, shapes, recipe.num_outputs, broadcasts=False, around=watched
        )
        self._recipes[key] = recipe
        spec = pytree.tree_structure(recipe.form)
        spec = None if spec.is_leaf() else spec
        self._made[key] = _Made(function, spec, captured, recipe.kinds)

    def _shapes_of(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
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
        return shapes

    def _refuse_unknown(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._names and not self._takes_any:
                raise FusedError(unknown_name("argument of the function", name, self._names))

    def _flat(self, key: Key, mech: Mechanism, tensors: tuple[Tensor, ...]) -> tuple[Any, Any]:
        """The function's results as a flat list, and how they are nested."""
        names, options = key
        given = {**dict(zip(names, tensors, strict=True)), **dict(options)}
        leading = [given.pop(name) for name in takewhile(given.__contains__, self._positional)]
        return pytree.tree_flatten(self._fn(mech, *leading, **given))

    def _run_until_still(self, run: Callable[[], T]) -> tuple[T, frozenset[str]]:
        """What a run of the function gives, once it changes no number; some it may set up.

        Returns:
            That, and the names of objects that it makes itself.

        Raises:
            FusedError: it changes a number each time.
        """
        numbers = own = frozenset[str]()
        for _ in range(2):
            before = Constants(self._fn, own)
            found = run()
            numbers, objects = before.changes()
            own |= objects
            if not numbers:
                return found, own
        raise FusedError(
            f"the function changes {', '.join(sorted(numbers))} each time that it runs.\n"
            "A kernel returns results and changes nothing: it would hold the first value for ever.\n"
            "Pass it as an argument, or see ts.rollout for a control with a memory: start and act."
        )

    @in_own_type
    def _evaluate(
        self, key: Key, shapes: Mapping[str, tuple[int, ...]], wrapped: Sequence[Tensor] = ()
    ) -> Recipe:
        """One evaluation, for a single sample; see `discover` for what is wrapped."""
        mech = self._workshop.mechanism
        states = [mech.neutral() if n == "q" else mech.mass.new_zeros(s) for n, s in shapes.items()]
        # Copies: the function may read the same tensors by ways of its own, and is to be seen doing so.
        one = [
            _first(getattr(mech, name), cast(tuple, self._workshop.shape(name))).detach().clone()
            for name in self._workshop.parameters
        ]
        own, *tensors = self._workshop.split((*states, *one), scalar=False)
        known = [*constants_of(own), *tensors]

        def once() -> tuple[tuple[Any, Any], tuple[Capture, ...]]:
            run = lambda: self._flat(key, own, tuple(tensors))  # noqa: E731
            return discover(self._fn, run, known, mech.dtype, wrapped)

        try:
            ((found, spec), captures), made = self._run_until_still(once)
        except (IndexError, RuntimeError, ValueError) as error:
            if isinstance(error, TorchskoError):
                raise
            if isinstance(error, RuntimeError) and (why := refused_by_torch(error)) is not None:
                raise FusedError(why) from error
            # Of the function's own: its batch may be all that it misses.
            seen = ", ".join(
                f"{name} {list(shape)}" for name, shape in shapes.items() if 0 not in shape
            )
            error.add_note(_OF_ONE_SAMPLE.format(seen=seen))
            raise
        if not found or not all(isinstance(x, Tensor) for x in found):
            raise FusedError(
                "the function returned something that is no tensor.\n"
                "A kernel's results are tensors.\nReturn a tensor, or tuples and dicts of them."
            )
        form = pytree.tree_unflatten(range(len(found)), spec)
        kinds = tuple((k, x.dtype) for k, x in enumerate(found) if x.dtype != mech.dtype)
        return Recipe(form, len(found), captures, kinds, made)


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
_OF_ONE_SAMPLE = (
    "For a kernel the function was called with one sample, without batch dimensions: {seen}.\n"
    "Count dimensions from the last: torch.cat([q, qd], -1), q[..., :3]."
)


def _first(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Of a parameter that of the first robot; where there is none, some numbers, since none is read."""
    rows = x.reshape(-1, *shape)
    return rows[0] if len(rows) else rows.new_ones(shape)


def _no_constant(options: tuple[tuple[str, Any], ...]) -> str:
    """Message that an argument is neither a tensor nor a constant that kernels could be told apart by."""
    name, x = next(
        (n, x) for n, x in options if not isinstance(x, Hashable) or isinstance(x, tuple)
    )
    return (
        f"{name} was given as {'list' if isinstance(x, tuple) else type(x).__name__}.\n"
        "Arguments of a kernel are tensors; numbers, texts and tuples of them are its constants.\n"
        f"Pass torch.as_tensor({name}, dtype=...), in the type of the mechanism."
    )
