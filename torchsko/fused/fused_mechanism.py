"""A mechanism whose verbs are kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from torchsko.algorithms import innovations
from torchsko.api.row import Options, Row, make_row
from torchsko.api.rows import FUSIBLE, ROWS
from torchsko.bridge.assemble import model_at
from torchsko.bridge.kinematics import Kinematics
from torchsko.errors import FusedError, unknown_name
from torchsko.fused.capture.arguments import exact_key
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.traits import ChangedConstantsError
from torchsko.fused.fused_call import FusedCall
from torchsko.fused.fused_held import FusedHeldMechanism
from torchsko.fused.fused_rollouts import FusedRollouts
from torchsko.fused.tracing.watch import is_within
from torchsko.fused.workshop import Eager, Workshop, check_dtype, workshop_of
from torchsko.implicit.equation import implicit_vjp
from torchsko.implicit.jacobian_products import Flags, Pullback, Tensors
from torchsko.integrators.integrators import INTEGRATORS, step_of
from torchsko.mechanism.dispatch import MechanismAttribute, MechanismLayer
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import sizes
from torchsko.mechanism.time_step import check_dt
from torchsko.verbs.dynamics import forward_dynamics, inverse_dynamics
from torchsko.verbs.held.held_mechanism import HeldMechanism


class FusedMechanism(FusedRollouts):
    """A mechanism or a layer whose verbs are kernels: `torchsko.fuse` makes it.

    Every method gives the result of the eager function of its name, with the same batch shapes and
    derivatives of any order. An option without a kernel is refused with the reason. Arguments other than
    tensors are constants, with one kernel for each choice. Gradients of forward dynamics come from the
    inverse mass matrix and the VJP of inverse dynamics; the inputs and the result are saved for the
    backward pass.

    Copies, also unpickled ones, load their kernels from the disk cache; ``torch.load(file,
    weights_only=False)`` reads a file of `torch.save`. The functions of `torchsko` accept a fused mechanism
    and run its kernels.

    Attributes:
        fused_methods: names of the methods that run compiled kernels.
    """

    fused_methods = FUSIBLE | {"advance", "trajectory"}

    def __init__(
        self, source: Mechanism | MechanismLayer, workshop: Workshop, *, verify: bool = True
    ) -> None:
        super().__init__(source, workshop)
        self._verify = verify
        # Made here, since torch.compile cannot make them while it traces a caller.
        self._positional = {
            (row.name, len(names)): self._function(row, names, tuple(row.options.items()))
            for row in (*(ROWS[name] for name in self.fused_methods & ROWS.keys()), *_OWN.values())
            for names in _choices(row)
        }

    def __repr__(self) -> str:
        inputs = ", ".join(self._workshop.parameters) or "states alone"
        return f"FusedMechanism({self._mech!r}; inputs: {inputs})"

    def retrace(self) -> None:
        """Trace controls of rollouts again, with the current Python values."""
        self._workshop.clear_recent()

    def to(self, target: torch.device | torch.dtype | str) -> FusedMechanism:
        """Kernels of the mechanism on another device, or in float32 or float64; see `Mechanism.to`.

        Raises:
            FusedError: for kernels of a layer, which moves in place.
        """
        if self.layer is not None:
            raise FusedError(
                f"kernels of a layer cannot move to {target}.",
                "They share the parameters of the layer.",
                f"Type ts.fuse(layer.to({target!r})).",
            )
        moved = self.mechanism().to(target)
        return FusedMechanism(moved, Workshop(moved, *self._workshop.choices), **self._options())

    def solve(self, q: Tensor, x: Tensor) -> Tensor:
        """The inverse mass matrix times x `[*batch, num_dof]`; see `Innovations.solve`."""
        return self._verb(_OWN["solve"], (q, x), {})

    def logdet(self, q: Tensor) -> Tensor:
        """Logarithm of the mass matrix's determinant, `[*batch]`; see `Innovations.logdet`."""
        return self._verb(_OWN["logdet"], (q,), {})

    def advance_tensors(
        self,
        q: Tensor,
        qd: Tensor,
        tau: Tensor,
        dt: float | Tensor,
        f_ext: Tensor | None = None,
        *,
        method: str = "semi_implicit_euler",
    ) -> tuple[Tensor, Tensor]:
        """One step of an integrator with constant joint forces: the next q and qd.

        Args:
            q: configuration, `[*batch, num_q]`.
            qd: velocity, `[*batch, num_dof]`.
            tau: joint forces, `[*batch, num_dof]`.
            dt: time step [s]; a tensor `[*batch]` may differ from sample to sample.
            f_ext: external forces, `[*batch, num_bodies, 6]`, constant in the body frames.
            method: a name in `torchsko.integrators.integrators.INTEGRATORS`.

        Raises:
            ShapeError: a tensor that does not fit, by name.
            FusedError: on an unknown method.
            TorchskoError: on an invalid time step.
        """
        if method not in INTEGRATORS:
            raise FusedError(*unknown_name("method", method, tuple(INTEGRATORS)))
        self._follow()
        if (
            type(dt) is float
            and 0 < dt < math.inf
            and f_ext is None
            and not self._workshop.parameters
        ):
            check_dtype(self._mech, q)
            made = self._positional[method, 4].call_native((q, qd, tau), dt)
            if made is not None:
                return cast(tuple[Tensor, Tensor], made)
        return self.advance_damped(q, qd, tau, dt, f_ext, None, method=method)

    def advance_damped(
        self,
        q: Tensor,
        qd: Tensor,
        tau: Tensor,
        dt: float | Tensor,
        f_ext: Tensor | None,
        damping: Tensor | None,
        *,
        method: str,
    ) -> tuple[Tensor, Tensor]:
        """`advance_tensors` with other damping `[*batch, num_tree_dof]`, unless None."""
        self._follow()
        if not isinstance(dt, Tensor):
            check_dt(self._mech, dt, None, backward=True)
            dt = self._mech.mass.new_full((), dt)
        states = (q, qd, tau, dt) if f_ext is None else (q, qd, tau, dt, f_ext)
        return self._verb(_OWN[method], states, {} if damping is None else {"damping": damping})

    def fuse_function(
        self, key: Hashable, fn: Eager, shapes: Mapping[str, tuple[int, ...]], num_outputs: int
    ) -> FusedFunction | None:
        """Compile a function of the mechanism and of tensors into one kernel; `torchsko.control` calls it.

        Args:
            key: identifies the kernel; equal keys stand for equal functions.
            fn: function of the mechanism and of the tensors.
            shapes: shape of each tensor for one sample, by name.
            num_outputs: number of tensors that the function returns.

        Returns:
            The kernel, a function of the tensors; None if parameters are inputs, which loops cannot read.
        """
        self._follow()
        if self._workshop.parameters:
            return None
        return self._workshop.make(key, fn, shapes, num_outputs, name=repr(key))

    def fuse_held(self, held: HeldMechanism) -> FusedHeldMechanism:
        """The constrained dynamics as kernels; `torchsko.constrain` and `torchsko.fuse` call it."""
        return FusedHeldMechanism(self, held.constraints, self._fuse_call)

    def _fuse_call(self, fn: Eager, shapes: Mapping[str, tuple[int, ...]]) -> FusedCall:
        workshop = workshop_of(self._source, *self._workshop.choices)
        return FusedCall(self._source, workshop, fn, shapes, verify=self._verify).prepare()

    def forward_dynamics_vjp(
        self, q: Tensor, qd: Tensor, tau: Tensor, cotangent: Tensor, f_ext: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Forward dynamics and its vector-Jacobian product from one kernel.

        Args:
            q: configuration, `[*batch, num_q]`.
            qd: velocity, `[*batch, num_dof]`.
            tau: joint forces, `[*batch, num_dof]`.
            cotangent: of the accelerations, `[*batch, num_dof]`.
            f_ext: as in `torchsko.forward_dynamics`.

        Returns:
            The accelerations, and the gradients of q, qd, tau, of f_ext if given, and of the
            parameters that are inputs.
        """
        self._follow()
        check_dtype(self._mech, q)
        states = (q, qd, tau) if f_ext is None else (q, qd, tau, f_ext)
        function = self._positional[_FORWARD.name, len(states)]
        both = function.value_and_vjp((True,) * len(function.inputs))
        qdd, *gradients = both(*states, *self._parameters, cotangent)
        return qdd, tuple(gradients)

    def _options(self) -> dict[str, Any]:
        return {"verify": self._verify}

    def _verb(self, row: Row, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.layer is not None:
            if not torch.compiler.is_compiling() and is_within((*args, *kwargs.values())):
                # Within another fused function its kernel reads all values of the layer.
                return row.function(self.mechanism(), *args, **kwargs)
            self._follow()
        function = None if kwargs else self._positional.get((row.name, len(args)))
        if function is not None and args[-1] is not None:  # fast path of the usual call
            check_dtype(self._mech, args[0])
            try:
                outputs = function(*args, *self._parameters)
            except ChangedConstantsError:
                self._renew()
                return self._verb(row, args, kwargs)
            return outputs[0] if row.num_outputs == 1 else row.pack(outputs)
        self._follow()
        states, options = row.split(args, kwargs)
        if error := row.refusal(options):
            raise error
        names, tensors = tuple(states), (*states.values(), *self._parameters)
        check_dtype(self._mech, tensors[0])
        if (
            torch.compiler.is_compiling()
            and self._workshop.find((row.name, names, exact_key(options))) is None
        ):
            # No kernel can be made now.
            fn = row.bound(names, options, self._mech)
            return fn(*self._workshop.split(tensors))
        outputs = self._function(row, names, options)(*tensors)
        return outputs[0] if row.num_outputs == 1 else row.pack(outputs)

    def _function(self, row: Row, names: tuple[str, ...], options: Options) -> FusedFunction:
        """The kernel of a verb for a choice of tensors and options."""
        key = row.name, names, exact_key(options)
        found = self._workshop.find(key)
        if found is not None:
            return found
        shapes = {name: sizes(self._mech, row.shapes[name]) for name in names}
        fn = row.bound(names, options, self._mech)
        pullback = _implicit_pullback(self._workshop.split) if row is _FORWARD else None
        name, label = repr((row.name, names, options)), row.name
        return self._workshop.make(
            key, fn, shapes, row.num_outputs, pullback, name=name, label=label
        )


MechanismAttribute.add_to(FusedMechanism)


def _solve(mech: Mechanism, q: Tensor, x: Tensor) -> Tensor:
    return innovations(model_at(Kinematics.of(mech, q))).solve(x)


def _logdet(mech: Mechanism, q: Tensor) -> Tensor:
    return innovations(model_at(Kinematics.of(mech, q))).logdet()


SplitInputs = Callable[[Tensors], Sequence[Any]]
"""Maps the inputs of a kernel to the mechanism with its parameters, followed by the arguments."""


@dataclass(frozen=True, eq=False)
class _DynamicsEquation:
    """Inverse dynamics minus tau equals zero; the unknown is qdd.

    Attributes:
        split: maps the inputs (q, qd, tau, [f_ext], *parameters) to (mechanism, q, qd, tau, [f_ext]).
    """

    split: SplitInputs

    def solution(self, *inputs: Tensor) -> Tensor:
        """Forward dynamics, qdd."""
        return forward_dynamics(*self.split(inputs))

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Inverse dynamics minus the joint forces."""
        mech, q, qd, tau, *f_ext = self.split(inputs)
        return inverse_dynamics(mech, q, qd, x, *f_ext) - tau

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """M^-1 rhs by the innovations factorization; M is symmetric."""
        mech, q, *_ = self.split(inputs)
        return innovations(model_at(Kinematics.of(mech, q))).solve(rhs)


def _implicit_pullback(split: SplitInputs) -> Pullback:
    """Gradients of forward dynamics at the saved acceleration; ``split`` as for `_DynamicsEquation`."""
    equation = _DynamicsEquation(split)

    def pullback(needed: Flags, inputs: Tensors, outputs: Tensors, by: Tensors) -> Tensors:
        return implicit_vjp(equation, needed, inputs, outputs[0], by[0])

    return pullback


_FORWARD = ROWS["forward_dynamics"]
_OWN = {
    "solve": make_row(_solve, tensors="q x", name="solve"),
    "logdet": make_row(_logdet, tensors="q", name="logdet"),
} | {
    name: make_row(step_of(name), 2, tensors="q qd tau dt f_ext damping", name=name)
    for name in INTEGRATORS
}
"""Rows without a public function: products with the factors at a configuration, and steps."""


def _choices(row: Row) -> list[tuple[str, ...]]:
    """Choices of tensors in usual calls: the required ones, without and with one more."""
    required = tuple(name for name in row.shapes if name in row.required)
    if len(required) < len(row.required):
        return []
    both = [required, row.tensors[: len(required) + 1]]
    return [names for names in dict.fromkeys(both) if names == row.positional[: len(names)]]
