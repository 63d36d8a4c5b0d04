"""Functions of a mechanism as kernels."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchsko.errors import FusedError, ShapeError
from torchsko.fused.capture.arguments import Arguments, Choice, no_constant
from torchsko.fused.capture.captured import Captured, Changes
from torchsko.fused.capture.recipe import Recipe, recipe_of
from torchsko.fused.capture.verification import Schedule, can_verify, first_sample
from torchsko.fused.functions.diverged_samples import treat_nonfinite
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.scan import Scan
from torchsko.fused.functions.traits import ChangedConstantsError
from torchsko.fused.fused_object import FusedObject
from torchsko.fused.tracing.content import digest_of_content
from torchsko.fused.tracing.swap import Swap
from torchsko.fused.tracing.watch import Watch, is_within
from torchsko.fused.workshop import Eager, Workshop, check_dtype
from torchsko.implicit.loop_roles import LoopRoles
from torchsko.integrators.finite_checks import NonFiniteChoice
from torchsko.mechanism.dispatch import MechanismLayer
from torchsko.mechanism.mechanism import Mechanism

_log = logging.getLogger("torchsko")

MAX_RETRACES = 3
"""Traces in one call, after which a captured value is taken to change at each read."""


_AGAIN = (
    "kernels of %s are made again: %s has changed, which they hold constant. Keep values that change "
    "often in a tensor of real numbers: it is read at each call"
)


class _Kernels:
    """Kernels of one choice of arguments.

    Attributes:
        function: of the arguments, the captured tensors, and the mechanism's parameters.
        recipe: results and captures.
        captured: the captured tensors and values now.
        schedule: the calls whose results are compared with the function's.
        scans: the scans of the function, by their numbers of carried and streamed inputs and direction.
    """

    function: FusedFunction

    def __init__(self, recipe: Recipe, captured: Captured) -> None:
        self.recipe, self.captured = recipe, captured
        self.schedule = Schedule(recipe.seconds)
        self.scans: dict[tuple[int, int, bool], Scan] = {}
        self._spec = None if recipe.spec.is_leaf() else recipe.spec

    def results(self, outputs: Sequence[Tensor]) -> Any:
        """The kernels' results in the function's dtypes, nested as the function nests them."""
        if self.recipe.dtypes:
            outputs = [*outputs]
            for k, dtype in self.recipe.dtypes:
                outputs[k] = outputs[k].to(dtype)
        if self._spec is None:
            return outputs[0]
        return pytree.tree_unflatten(list(outputs), self._spec)


class FusedCall(FusedObject):
    """A function of a mechanism as kernels: `torchsko.fuse` makes it.

    Call it like the function, without the mechanism. Tensors are inputs; other arguments, such as names of
    frames, are constants with a kernel for each choice. Captured tensors are inputs, and captured Python
    values are constants; see `torchsko.fuse`.

    Copies, also unpickled ones, load their kernels from the disk cache; a file of `torch.save` is read by
    ``torch.load(file, weights_only=False)``. A copy of a bound method is bound to the copy of its object;
    a function is pickled by its name, so a lambda cannot be pickled.
    """

    captured_attributes = (*FusedObject.captured_attributes, "_fn")

    def __init__(
        self,
        source: Mechanism | MechanismLayer,
        workshop: Workshop,
        fn: Eager,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        verify: bool = True,
        nonfinite: NonFiniteChoice = "ignore",
    ) -> None:
        super().__init__(source, workshop)
        self._fn, self._shapes, self._verify = fn, dict(shapes), verify
        self._nonfinite: NonFiniteChoice = nonfinite
        self._arguments = Arguments.of(fn)
        self._arguments.refuse_unknown(shapes)
        self._made: dict[Choice, _Kernels] = {}

    def prepare(self) -> FusedCall:
        """Evaluate the function with the required arguments, if their shapes are known; returns itself.

        A new function is prepared at once, since torch.compile could not make it while it traces a caller.
        """
        required = self._arguments.required
        if not self._arguments.takes_any and all(
            self._shape(name) is not None for name in required
        ):
            self._make((required, ()))
        return self

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
                random draw; a write into a captured tensor; a number that the function changes each time that
                it runs; results that differ from the function's (see ``verify`` of `torchsko.fuse`); within
                torch.compile, a changed constant.
            ShapeError: a tensor that does not fit, or an array or a list in its place.
        """
        if self.layer is not None:
            if not torch.compiler.is_compiling() and is_within((*args, *kwargs.values())):
                # Within another fused function its kernel reads all values of the layer.
                return self._fn(self.mechanism(), *args, **kwargs)
            self._follow()
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

    def scan(
        self,
        carry: Sequence[Tensor],
        series: Sequence[Tensor],
        constant: Sequence[Tensor],
        *,
        reverse: bool = False,
    ) -> tuple[Tensor, ...]:
        """Repeat the function in one kernel, once for each row of the series.

        The arguments of the function are the carry, a row of each series, and constant tensors. It returns a
        tuple: the next carry, followed by further results.

        Args:
            carry: at the start, `[*batch, *shape]`.
            series: `[*batch, steps, *shape]`.
            constant: `[*batch, *shape]`.
            reverse: from the last row to the first.

        Returns:
            The further results of each row, `[*batch, steps, *shape]`.
        """
        names, roles = self._arguments.names, (len(carry), len(series), reverse)
        function, captured = self.current(names)
        scans = self._made[names, ()].scans
        if roles not in scans:
            stacked = len(function.outputs) - len(carry)
            of_step = LoopRoles(len(carry), len(series), stacked, 0)
            scans[roles] = Scan(function, of_step, reverse=reverse)
        rank = len(function.inputs[len(carry)].shape)
        inputs = (*carry, *series, *constant, *captured, *self._parameters)
        try:
            found = scans[roles].of_length(series[0].shape[-1 - rank], 0)(*inputs)
        except ChangedConstantsError:
            self._renew()
            return self.scan(carry, series, constant, reverse=reverse)
        self.verify_scan(names, scans[roles], inputs, found)
        return tuple(found[len(carry) :])

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
        last = 0 if scan.reverse else -1
        rows = [x[last] for x in first_sample(one.outputs, one(*given))]
        sample = first_sample(one.inputs, given)
        sample[carry:stop] = [x[0] for x in sample[carry:stop]]
        made.schedule.verify(self.name, lambda x: made.function.sample(*x), sample, rows)

    def retrace(self) -> None:
        """Trace the function again at its next call, with the Python values that it reads then."""
        for choice in self._made:
            self._workshop.remove(choice)
        self._made.clear()

    def function(self, names: tuple[str, ...]) -> FusedFunction:
        """The kernels' function of these arguments, the captured tensors and the mechanism's parameters."""
        return self.current(names)[0]

    def current(self, names: tuple[str, ...]) -> tuple[FusedFunction, list[Tensor]]:
        """The function as in `function`, and the captured tensors as they are now."""
        self._follow()
        if (names, ()) not in self._made:
            self._make((names, ()))
        made, captured = self._current((names, ()))
        return made.function, captured

    def _current(self, choice: Choice) -> tuple[_Kernels, list[Tensor]]:
        """The kernels of a choice of arguments for the present Python values, and the captured tensors."""
        made, traces = self._made[choice], 0
        while isinstance(captured := made.captured.read(), Changes):
            if traces == MAX_RETRACES:
                raise FusedError(
                    f"{captured.name} changes at each read.",
                    "Kernels hold it constant, so none fits the next call.",
                    f"Pass it to {self.name} as an argument.",
                )
            made, traces = self._follow_changes(choice, made, captured), traces + 1
        # Promoted to the mechanism's dtype, as PyTorch's operators do.
        return made, [x.to(self._mech.dtype) for x in captured]

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedCall:
        other = memo[id(self)] = FusedCall.__new__(FusedCall)  # its function may hold it
        if self.layer is None and deepcopy(self._fn, memo) is self._fn:
            self._share_with(other, deepcopy(self._mech, memo))
        else:
            other.__setstate__(deepcopy(self.__getstate__(), memo))
        return other

    def _options(self) -> dict[str, Any]:
        treatment = {"verify": self._verify, "nonfinite": self._nonfinite}
        return {"fn": self._fn, "shapes": self._shapes, **treatment}

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
            _log.warning(_AGAIN, self.name, changes.name)
        self._workshop.remove(choice)
        return self._make(choice)

    def _is_same_program(self, choice: Choice, made: _Kernels) -> bool:
        """True if a new trace of the function gives the kernels' programs."""
        recipe = recipe_of(
            self._fn, self._arguments, choice, self._shapes_of(choice[0]), self._workshop
        )
        old = made.recipe
        if (recipe.spec, recipe.captures, recipe.dtypes) != (old.spec, old.captures, old.dtypes):
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
        recipe = recipe_of(self._fn, self._arguments, choice, shapes, self._workshop)
        fixed = self._workshop.constants
        captured = Captured(self._fn, recipe.captures, recipe.changing, fixed)
        for k, capture in enumerate(captured.inputs):
            shapes[f"{capture.name} ({k})"] = capture.shape  # no name of an argument
        made = _Kernels(recipe, captured)
        made.function = self._traced(choice, shapes, made)
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
            fixed = [x for _, x in made.captured.constants]
            return Watch((*self._workshop.constants, *fixed), traces=True)

        return self._workshop.make(
            choice,
            flat,
            shapes,
            made.recipe.spec.num_leaves,
            broadcasts=False,
            name=self._content_for(choice),
            around=watched,
            num_joint=len(choice[0]),
            label=self.name,
        )

    def _content_for(self, choice: Choice) -> str | None:
        """A digest of the function, of what it captures and of the choice; None for functions of the user."""
        content = digest_of_content(self._fn, choice, known={}, reads_computed=False)
        return None if content is None else content.hex()

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
