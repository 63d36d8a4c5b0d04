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
from torchsko.fused.capture.call_kernels import CallKernels, tensor_of
from torchsko.fused.capture.captured import Captured, Changes
from torchsko.fused.capture.recipe import recipe_of
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
        self._made: dict[Choice, CallKernels] = {}

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
        found = None if kwargs else self._call_native(args)
        if found is not None:
            return found
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
        return made.results(tensors, outputs)

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the function to NumPy arrays, without gradients; small batches have no tensors in between.

        Args:
            *args: its arguments after the mechanism; arrays `[*batch, *shape]` of the mechanism's dtype.
            **kwargs: the same arguments by name.

        Returns:
            What the function returns, with arrays in place of tensors.

        Raises:
            FusedError: as for a call with tensors.
            ShapeError: an array that does not fit.

        Example:
            >>> import numpy as np, torchsko as ts
            >>> arm = ts.load(ts.robots.panda)
            >>> fast = ts.fuse(ts.inverse_dynamics, arm)
            >>> q = np.zeros(7)
            >>> type(fast.numpy(q, q, q))
            <class 'numpy.ndarray'>
        """
        found = None if kwargs else self._call_native(args)
        if found is not None:
            return found
        with torch.no_grad():
            found = self(*map(tensor_of, args), **{k: tensor_of(x) for k, x in kwargs.items()})
        return pytree.tree_map(lambda x: x.numpy(), found)

    def scan(
        self,
        carry: Sequence[Tensor],
        series: Sequence[Tensor],
        constant: Sequence[Tensor],
        *,
        reverse: bool = False,
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Repeat the function in one kernel, once for each row of the series.

        The arguments of the function are the carry, a row of each series, and constant tensors. It returns a
        tuple: the next carry, followed by further results.

        Args:
            carry: at the start, `[*batch, *shape]`.
            series: `[*batch, steps, *shape]`.
            constant: `[*batch, *shape]`.
            reverse: from the last row to the first.

        Returns:
            The last carry, `[*batch, *shape]`, and further results of each row, `[*batch, steps, *shape]`.
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
        return tuple(found[: len(carry)]), tuple(found[len(carry) :])

    def verify_scan(
        self,
        names: tuple[str, ...],
        scan: Scan,
        inputs: Sequence[Tensor],
        results: Sequence[Tensor],
    ) -> None:
        """Compare one step of a scan with the function of these arguments; see `CallKernels.verify_scan`."""
        self._made[names, ()].verify_scan(scan, inputs, results)

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

    def _call_native(self, args: tuple[Any, ...]) -> Any:
        """The results of a small call with tensors or arrays alone; None if it needs Python code."""
        made = self._made.get((self._arguments.names[: len(args)], ()))
        if made is None or self.layer is not None:
            return None
        return made.call_native(args, self._values)

    def _current(self, choice: Choice) -> tuple[CallKernels, list[Tensor]]:
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

    def _make_first(self, choice: Choice) -> CallKernels:
        """Make the function of a choice of arguments that is new."""
        if torch.compiler.is_compiling():
            raise FusedError(
                "a fused function met new optional arguments inside of torch.compile.",
                "Kernels cannot be made there.",
                "Call it once with these arguments before.",
            )
        return self._make(choice)

    def _follow_changes(self, choice: Choice, made: CallKernels, changes: Changes) -> CallKernels:
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

    def _is_same_program(self, choice: Choice, made: CallKernels) -> bool:
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

    def _make(self, choice: Choice) -> CallKernels:
        """Make the kernels of a choice of arguments."""
        names, options = choice
        self._arguments.refuse_unknown((*names, *dict(options)))
        shapes = self._shapes_of(names)
        recipe = recipe_of(self._fn, self._arguments, choice, shapes, self._workshop)
        fixed = self._workshop.constants
        captured = Captured(self._fn, recipe.captures, recipe.changing, fixed)
        for k, capture in enumerate(captured.inputs):
            shapes[f"{capture.name} ({k})"] = capture.shape  # no name of an argument
        treatment = {"verify": self._verify, "nonfinite": self._nonfinite}
        made = CallKernels(self.name, recipe, captured, **treatment)
        made.function = self._traced(choice, shapes, made)
        self._made[choice] = made
        return made

    def _traced(
        self, choice: Choice, shapes: Mapping[str, tuple[int, ...]], made: CallKernels
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
                # The results of a kernel have one dtype; `CallKernels.results` restores the others.
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
