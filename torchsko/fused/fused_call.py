"""Functions of a mechanism as kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchsko.errors import FusedError, ShapeError
from torchsko.fused.calls.memory_snapshot import MemorySnapshot
from torchsko.fused.capture.arguments import Arguments, Choice, Eager, no_constant
from torchsko.fused.capture.captured import Captured, Changes, log_retrace
from torchsko.fused.capture.recipe import Recipe, recipe_of
from torchsko.fused.capture.verification import Schedule, can_verify, first_sample
from torchsko.fused.capture.watch import Watch
from torchsko.fused.functions.diverged_samples import treat_nonfinite
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.scan import Scan
from torchsko.fused.functions.traits import ChangedConstantsError
from torchsko.fused.tracing.swap import Swap
from torchsko.fused.workshop import Remade, Workshop, check_dtype, refuse_constants
from torchsko.integrators.finite_checks import NonFiniteChoice
from torchsko.mechanism.mechanism import Mechanism

MAX_RETRACES = 3
"""Traces in one call, after which a captured value is taken to change at each read."""


class _Kernels:
    """Kernels of one choice of arguments.

    Attributes:
        function: of the arguments, the captured tensors, and the mechanism's parameters.
        recipe: results and captures.
        captured: the captured tensors and values now.
        schedule: the calls whose results are compared with the function's.
    """

    captured_attributes = ()
    function: FusedFunction

    def __init__(self, recipe: Recipe, captured: Captured) -> None:
        self.recipe, self.captured = recipe, captured
        self.schedule = Schedule(recipe.seconds)
        spec = pytree.tree_structure(recipe.form)
        self._spec = None if spec.is_leaf() else spec

    def results(self, outputs: Sequence[Tensor]) -> Any:
        """The kernels' results in the function's dtypes, nested as the function nests them."""
        if self.recipe.dtypes:
            outputs = [*outputs]
            for k, dtype in self.recipe.dtypes:
                outputs[k] = outputs[k].to(dtype)
        if self._spec is None:
            return outputs[0]
        return pytree.tree_unflatten(list(outputs), self._spec)


class FusedCall(Remade):
    """A function of a mechanism as kernels: `torchsko.fuse` makes it.

    Call it like the function, without the mechanism. Tensors are inputs; other arguments, such as names of
    frames, are constants with a kernel for each choice. Captured tensors are inputs, and captured Python
    values are constants; see `torchsko.fuse`.

    Copies, also unpickled ones, load their kernels from the disk cache; a file of `torch.save` is read by
    ``torch.load(file, weights_only=False)``. A copy of a bound method is bound to the copy of its object;
    a function is pickled by its name, so a lambda cannot be pickled.
    """

    captured_attributes = ("_fn", "_mech", "_workshop")

    def __init__(
        self,
        fn: Eager,
        workshop: Workshop,
        mech: Mechanism,
        shapes: Mapping[str, tuple[int, ...]],
        recipes: Mapping[Choice, Recipe] | None = None,
        *,
        verify: bool = True,
        nonfinite: NonFiniteChoice = "ignore",
    ) -> None:
        self._mech = mech
        self._nonfinite: NonFiniteChoice = nonfinite
        self._fn, self._workshop, self._shapes, self._verify = fn, workshop, dict(shapes), verify
        self._values = tuple(getattr(mech, name) for name in workshop.parameters)
        self._arguments = Arguments.of(fn)
        self._arguments.refuse_unknown(shapes)
        self._made: dict[Choice, _Kernels] = {}
        self._recipes: dict[Choice, Recipe] = dict(recipes or {})
        required = self._arguments.required
        if recipes is None and all(self._shape(name) is not None for name in required):
            # Made now, since torch.compile could not make it while it traces a caller.
            self._make((required, ()))

    def __repr__(self) -> str:
        return f"FusedCall({self.name}({', '.join(self._arguments.names)}), {self._mech!r})"

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self._fn, "__qualname__", type(self._fn).__qualname__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the function to a batch.

        Args:
            *args: its arguments after the mechanism; tensors `[*batch, *shape]`, whose batches broadcast.
            **kwargs: the same arguments by name.

        Returns:
            What the function returns.

        Raises:
            FusedError: a tensor of unknown shape; a result that is not a tensor nor a nest of tensors; a
                random draw, or a read of a clock, a file or the environment; a write into a captured tensor;
                a number that the function changes each time that it runs; results that differ from the
                function's (see ``verify`` of `torchsko.fuse`); within torch.compile, a changed constant.
            ShapeError: a tensor that does not fit, or an array or a list in its place.
        """
        states, options = self._arguments.chosen(args, kwargs)
        choice = (tuple(states), options)
        try:
            made = self._made.get(choice)
        except TypeError:
            raise ShapeError(*no_constant(options)) from None
        if made is None:
            self._make_first(choice)
        for x in states.values():
            check_dtype(self._mech, x)
        made, captured = self._current(choice)
        tensors = (*states.values(), *captured, *self._parameters)
        try:
            outputs = made.function(*tensors)
        except ChangedConstantsError:
            self._renew()
            return self(*args, **kwargs)
        function = made.function
        if self._verify and made.schedule.is_due() and can_verify(tensors, outputs):
            inputs = first_sample(function.inputs, tensors)
            rows = first_sample(function.outputs, outputs)
            made.schedule.verify(self.name, lambda x: function.sample(*x), inputs, rows)
        return made.results(treat_nonfinite(self.name, outputs, function.outputs, self._nonfinite))

    def verify_scan(
        self,
        names: tuple[str, ...],
        scan: Scan,
        inputs: Sequence[Tensor],
        results: Sequence[Tensor],
    ) -> None:
        """Compare one step of a scan from the first sample with the function, as calls are compared.

        Args:
            names: the arguments of the function.
            scan: repeats the function.
            inputs: of the scan.
            results: of the scan for these inputs.
        """
        made, roles = self._made[names, ()], scan.roles
        if not (self._verify and made.schedule.is_due() and can_verify(inputs, results)):
            return
        one, carry, stop = scan.of_length(1), roles.carry, roles.carry + roles.stream
        streamed = [
            x.narrow(x.dim() - len(port.shape), 0, 1)
            for port, x in zip(one.inputs[carry:stop], inputs[carry:stop], strict=True)
        ]
        given = [x.detach() for x in (*inputs[:carry], *streamed, *inputs[stop:])]
        rows = [x[-1] for x in first_sample(one.outputs, one(*given))]
        sample = first_sample(one.inputs, given)
        sample[carry:stop] = [x[0] for x in sample[carry:stop]]
        made.schedule.verify(self.name, lambda x: made.function.sample(*x), sample, rows)

    def _renew(self) -> None:
        """Make kernels for the present numbers of the mechanism, which was changed in place."""
        self._workshop = self._workshop.renewed(self._mech)
        self._made = {}

    def retrace(self) -> None:
        """Trace the function again at its next call, with the Python values that it reads then."""
        for choice in self._made:
            self._workshop.remove(choice)
        self._made, self._recipes = {}, {}

    def function(self, names: tuple[str, ...]) -> FusedFunction:
        """The kernels' function of these arguments, the captured tensors and the mechanism's parameters."""
        return self.current(names)[0]

    def current(self, names: tuple[str, ...]) -> tuple[FusedFunction, list[Tensor]]:
        """The function as in `function`, and the captured tensors as they are now."""
        if not self._workshop.is_unchanged():
            self._renew()
        if (names, ()) not in self._made:
            self._make((names, ()))
        made, captured = self._current((names, ()))
        return made.function, captured

    def _current(self, choice: Choice) -> tuple[_Kernels, list[Tensor]]:
        """The kernels of a choice of arguments for the present Python values, and the captured tensors."""
        made = self._made[choice]
        for _ in range(MAX_RETRACES):
            captured = made.captured.read()
            if not isinstance(captured, Changes):
                # Promoted to the mechanism's dtype, as PyTorch's operators do.
                return made, [x.to(self._mech.dtype) for x in captured]
            made = self._follow_changes(choice, made, captured)
        changes = made.captured.read()
        if isinstance(changes, Changes):
            raise FusedError(
                f"{changes.name} changes at each read.",
                "Kernels hold it constant, so none fits the next call.",
                f"Pass it to {self.name} as an argument.",
            )
        return made, [x.to(self._mech.dtype) for x in changes]

    def mechanism(self) -> Mechanism:
        """The mechanism, with the current values of the parameters that are inputs."""
        return self._mech

    def replace(self, **changes: Tensor) -> FusedCall:
        """Change parameters that are inputs; the kernels stay the same.

        Raises:
            FusedError: a parameter that is a constant of the kernels.
        """
        refuse_constants(self._workshop, changes)
        mech = self.mechanism().replace(**changes)
        other = FusedCall(
            self._fn, self._workshop, mech, self._shapes, self._recipes, **self._treatment
        )
        other._made = dict(self._made)
        return other

    def _made_of(self) -> tuple[Any, ...]:
        return (self._fn,), self._mech, (self._shapes, self._recipes), self._treatment

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedCall:
        other = memo[id(self)] = FusedCall.__new__(FusedCall)  # its function may hold it
        if deepcopy(self._fn, memo) is not self._fn:
            other.__setstate__(deepcopy(self.__getstate__(), memo))
            return other
        # A copy of the same function has the same kernels.
        mech, options = deepcopy(self._mech, memo), self._treatment
        other.__init__(self._fn, self._workshop, mech, self._shapes, self._recipes, **options)
        other._made = dict(self._made)
        return other

    @property
    def _treatment(self) -> dict[str, Any]:
        """The options of results: ``verify`` and ``nonfinite`` of `torchsko.fuse`."""
        return {"verify": self._verify, "nonfinite": self._nonfinite}

    @property
    def _parameters(self) -> tuple[Tensor, ...]:
        """The current values of the parameters that are inputs."""
        return self._values

    def _shape(self, name: str) -> tuple[int, ...] | None:
        return self._shapes.get(name, self._workshop.shape(name))

    def _make_first(self, choice: Choice) -> _Kernels:
        """Make the function of a choice of arguments that is new."""
        if torch.compiler.is_compiling():
            raise FusedError(
                "a fused function met new optional arguments inside of torch.compile.",
                "Kernels cannot be made there.",
                "Call it once with these arguments before.",
            )
        return self._make(choice)

    def _follow_changes(self, choice: Choice, made: _Kernels, changes: Changes) -> _Kernels:
        """The kernels for other Python values: the same ones if they give the same program."""
        if torch.compiler.is_compiling():
            raise FusedError(
                f"{changes.name} has changed since the kernels were made.",
                "Kernels hold it constant, and a compiled program makes no new kernels.",
                "Call the function once outside of it, or pass what changes as an argument.",
            )
        if made.function.is_traced:
            if changes.paths and self._is_same_program(choice, made):
                made.captured.ignore(made.captured.ignored | changes.paths)
                return made
            log_retrace(self.name, changes.name)
        self._recipes.pop(choice, None)
        self._workshop.remove(choice)
        return self._make(choice)

    def _is_same_program(self, choice: Choice, made: _Kernels) -> bool:
        """True if a new trace of the function gives the kernels' programs."""
        recipe = recipe_of(
            self._fn, self._arguments, choice, self._shapes_of(choice[0]), self._workshop
        )
        old = made.recipe
        if (recipe.form, recipe.captures, recipe.dtypes) != (old.form, old.captures, old.dtypes):
            return False
        made.captured.ignore(made.captured.ignored)
        try:
            return made.function.is_current()
        except FusedError:  # which a new trace raises again, where it is needed
            return False

    def _make(self, choice: Choice) -> _Kernels:
        """Make the kernels of a choice of arguments."""
        names, options = choice
        self._arguments.refuse_unknown((*names, *dict(options)))
        shapes = self._shapes_of(names)
        recipe = self._recipes.get(choice)
        if recipe is None:
            recipe = recipe_of(self._fn, self._arguments, choice, shapes, self._workshop)
        fixed = self._workshop.constants
        snapshot = lambda x: MemorySnapshot(x).is_unchanged  # noqa: E731
        captured = Captured(self._fn, recipe.captures, recipe.changing, fixed, snapshot)
        for k, capture in enumerate(captured.inputs):
            shapes[f"{capture.name} ({k})"] = capture.shape  # no name of an argument
        made = _Kernels(recipe, captured)
        made.function = self._traced(choice, shapes, made)
        self._recipes[choice] = recipe
        self._made[choice] = made
        return made

    def _traced(
        self, choice: Choice, shapes: Mapping[str, tuple[int, ...]], made: _Kernels
    ) -> FusedFunction:
        """The kernels' function, traced when it is first run."""

        def flat(mech: Mechanism, *tensors: Tensor) -> Any:
            # Where results are compared, their difference shows a change.
            is_traced = not made.schedule.is_verifying
            current = made.captured.read() if is_traced else made.captured.tensors
            if isinstance(current, Changes):
                raise FusedError(
                    f"{current.name} has changed between a call and the first kernel of its derivative.",
                    "That kernel is made by the backward pass, from the function as it is now.",
                    f"Change {current.name} after the backward pass, or keep it in a tensor of real numbers.",
                )
            if is_traced and made.captured.ignored != made.recipe.changing:
                # A derivative may depend on a value that the function's own program does not.
                made.captured.ignore(())
            states, captured = tensors[: len(choice[0])], tensors[len(choice[0]) :]
            with Swap(current, captured):
                found, _ = self._arguments.call(self._fn, choice, mech, states)
                # The results of a kernel have one dtype; `_Kernels.results` restores the others.
                for k, _ in made.recipe.dtypes:
                    found[k] = found[k].to(mech.dtype)
                return found

        def watched() -> AbstractContextManager:
            return Watch((*self._workshop.constants, *made.captured.constants), traces=True)

        return self._workshop.make(
            choice,
            flat,
            shapes,
            made.recipe.num_outputs,
            broadcasts=False,
            around=watched,
            num_joint=len(choice[0]),
        )

    def _shapes_of(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for name in names:
            shape = self._shape(name)
            if shape is None:
                raise FusedError(
                    f"the shape of {name!r} is unknown.",
                    "A kernel is compiled for one shape per sample; states, forces, dt and the mechanism's "
                    "parameters have known shapes, by their usual names.",
                    f"Call ts.fuse(fn, mech, shapes={{{name!r}: (...)}}).",
                )
            shapes[name] = shape
        return shapes
