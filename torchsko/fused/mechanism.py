"""A mechanism whose verbs are kernels."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from torchsko.algorithms import innovations
from torchsko.bridge.assemble import assemble
from torchsko.errors import FusedError, unknown_name
from torchsko.fused.derivatives import Flags, Pullback, Tensors
from torchsko.fused.register import FusedFunction
from torchsko.fused.workshop import Eager, Workshop, check_dtype, refuse_constants
from torchsko.implicit.equation import implicit_vjp
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout.integrators import INTEGRATORS
from torchsko.verbs.dynamics import bias_force, forward_dynamics, inverse_dynamics, mass_matrix
from torchsko.verbs.frames import frame_jacobian, frame_pose
from torchsko.verbs.kinematics import Pose, forward_kinematics
from torchsko.verbs.regressors import torque_regressor


class FusedMechanism:
    """A mechanism whose verbs are kernels: `torchsko.fuse` makes it.

    Every method gives the result of the eager function of its name, with the same batch shapes and
    derivatives of any order. Copies, also unpickled ones, take their kernels from the disk cache;
    a file of `torch.save` is read by ``torch.load(file, weights_only=False)``.

    The functions of `torchsko` take it as they take a mechanism, and run these kernels where there is one.

    Attributes:
        kernels: names of the methods that are kernels.
    """

    kernels = frozenset(
        {
            "forward_dynamics",
            "inverse_dynamics",
            "bias_force",
            "mass_matrix",
            "torque_regressor",
            "forward_kinematics",
            "frame_pose",
            "frame_jacobian",
            "step",
        }
    )

    def __init__(self, workshop: Workshop, mech: Mechanism) -> None:
        self._mech = mech
        self._workshop = workshop
        self._parameters = tuple(getattr(mech, name) for name in workshop.parameters)
        self._verbs = {
            (name, has_force): _make(workshop, name, has_force)
            for name in _VERBS
            for has_force in ((False, True) if name in _WITH_FORCES else (False,))
        }

    def mechanism(self) -> Mechanism:
        """The mechanism, with the current values of the parameters that are inputs."""
        return self._mech

    def replace(self, **changes: Tensor) -> FusedMechanism:
        """The same kernels with other values of parameters that are inputs.

        Args:
            **changes: tensors by name, as in `Mechanism.replace`.

        Raises:
            FusedError: a parameter that is a constant of the kernels.
            MechanismError: a tensor that does not fit.
        """
        refuse_constants(self._workshop, changes)
        return FusedMechanism(self._workshop, self._mech.replace(**changes))

    def forward_dynamics(
        self, q: Tensor, qd: Tensor, tau: Tensor, f_ext: Tensor | None = None
    ) -> Tensor:
        """Accelerations; see `torchsko.forward_dynamics`.

        Gradients come from the mass matrix's inverse and the VJP of inverse dynamics; saved for the
        backward pass are the inputs and the result.
        """
        return self._call("forward_dynamics", f_ext, q, qd, tau)[0]

    def inverse_dynamics(
        self, q: Tensor, qd: Tensor, qdd: Tensor, f_ext: Tensor | None = None
    ) -> Tensor:
        """Joint forces; see `torchsko.inverse_dynamics`."""
        return self._call("inverse_dynamics", f_ext, q, qd, qdd)[0]

    def bias_force(self, q: Tensor, qd: Tensor, f_ext: Tensor | None = None) -> Tensor:
        """Joint forces at zero acceleration; see `torchsko.bias_force`."""
        return self._call("bias_force", f_ext, q, qd)[0]

    def torque_regressor(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Joint forces per inertial parameter of every body; see `torchsko.torque_regressor`."""
        return self._call("torque_regressor", None, q, qd, qdd)[0]

    def mass_matrix(self, q: Tensor) -> Tensor:
        """The mass matrix; see `torchsko.mass_matrix`."""
        return self._call("mass_matrix", None, q)[0]

    def solve(self, q: Tensor, x: Tensor) -> Tensor:
        """The inverse mass matrix times x `[*batch, num_dof]`; see `Innovations.solve`."""
        return self._call("solve", None, q, x)[0]

    def logdet(self, q: Tensor) -> Tensor:
        """Logarithm of the mass matrix's determinant, `[*batch]`; see `Innovations.logdet`."""
        return self._call("logdet", None, q)[0]

    def forward_kinematics(self, q: Tensor) -> Pose:
        """Pose of every body; see `torchsko.forward_kinematics`."""
        return Pose(*self._call("forward_kinematics", None, q))

    def frame_pose(self, q: Tensor, frames: str | Sequence[str]) -> Pose:
        """Pose of named frames; see `torchsko.frame_pose`. One kernel for each choice of frames."""
        return Pose(*self._of_frames(frame_pose, 2, q, frames))

    def frame_jacobian(self, q: Tensor, frames: str | Sequence[str]) -> Tensor:
        """Jacobian of named frames; see `torchsko.frame_jacobian`; one kernel for each choice."""
        return self._of_frames(frame_jacobian, 1, q, frames)[0]

    def step(
        self,
        q: Tensor,
        qd: Tensor,
        tau: Tensor,
        dt: float | Tensor,
        f_ext: Tensor | None = None,
        *,
        method: str = "semi_implicit_euler",
    ) -> tuple[Tensor, Tensor]:
        """One step of an integrator, joint forces held: the next q and qd.

        Args:
            q: configuration, `[*batch, num_q]`.
            qd: velocity, `[*batch, num_dof]`.
            tau: joint forces, `[*batch, num_dof]`.
            dt: time step [s]; a tensor `[*batch]` may differ from sample to sample.
            f_ext: external forces, `[*batch, num_bodies, 6]`, constant in the body frames.
            method: a name in `torchsko.rollout.integrators.INTEGRATORS`.
        """
        if method not in INTEGRATORS:
            raise FusedError(unknown_name("method", method, tuple(INTEGRATORS)))
        dt = dt if isinstance(dt, Tensor) else q.new_full((), dt)
        q, qd = self._call(method, f_ext, q, qd, tau, dt)
        return q, qd

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
        check_dtype(self._mech, q)
        function = self._verbs["forward_dynamics", f_ext is not None]
        states = (q, qd, tau) if f_ext is None else (q, qd, tau, f_ext)
        both = function.value_and_vjp((True,) * len(function.inputs))
        qdd, *gradients = both(*states, *self._parameters, cotangent)
        return qdd, tuple(gradients)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._mech, self._workshop.choices

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        mech, choices = state
        self.__init__(Workshop(mech, *choices), mech)

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedMechanism:
        return FusedMechanism(self._workshop, deepcopy(self._mech, memo))

    def _call(self, verb: str, f_ext: Tensor | None, *states: Tensor) -> Tensors:
        check_dtype(self._mech, states[0])
        if f_ext is None:
            return self._verbs[verb, False](*states, *self._parameters)
        return self._verbs[verb, True](*states, f_ext, *self._parameters)

    def _of_frames(
        self, fn: Eager, num_outputs: int, q: Tensor, frames: str | Sequence[str]
    ) -> Tensors:
        names = frames if isinstance(frames, str) else tuple(frames)
        check_dtype(self._mech, q)

        def of_names(mech: Mechanism, q: Tensor) -> Any:
            return fn(mech, q, names)

        function = self._workshop.find((fn, names))
        tensors = (q, *self._parameters)
        if function is None and torch.compiler.is_compiling():  # which cannot make kernels
            found = of_names(*self._workshop.split(tensors, scalar=False))
            return (found,) if isinstance(found, Tensor) else tuple(found)
        if function is None:
            shape = {"q": (self._mech.num_q,)}
            function = self._workshop.make(
                (fn, names), of_names, shape, num_outputs, name=repr((fn.__name__, names))
            )
        return function(*tensors)


def _step(method: str) -> Eager:
    def step(
        mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor, dt: Any, f_ext: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        def accelerate(
            mech: Mechanism, t: float, q: Tensor, qd: Tensor, force: Tensor | None = None
        ) -> Tensor:
            return forward_dynamics(mech, q, qd, tau if force is None else tau + force, f_ext)

        # A trailing axis, so that steps of single samples meet their vectors.
        return INTEGRATORS[method](mech, accelerate, 0.0, q, qd, dt[..., None])

    return step


def _solve(mech: Mechanism, q: Tensor, x: Tensor) -> Tensor:
    return innovations(assemble(mech, q)).solve(x)


def _logdet(mech: Mechanism, q: Tensor) -> Tensor:
    return innovations(assemble(mech, q)).logdet()


_VERBS: dict[str, tuple[Eager, tuple[str, ...], int]] = {
    "forward_dynamics": (forward_dynamics, ("q", "qd", "tau"), 1),
    "inverse_dynamics": (inverse_dynamics, ("q", "qd", "qdd"), 1),
    "bias_force": (bias_force, ("q", "qd"), 1),
    "torque_regressor": (torque_regressor, ("q", "qd", "qdd"), 1),
    "mass_matrix": (mass_matrix, ("q",), 1),
    "solve": (_solve, ("q", "x"), 1),
    "logdet": (_logdet, ("q",), 1),
    "forward_kinematics": (forward_kinematics, ("q",), 2),
} | {name: (_step(name), ("q", "qd", "tau", "dt"), 2) for name in INTEGRATORS}
_WITH_FORCES = {"forward_dynamics", "inverse_dynamics", "bias_force", *INTEGRATORS}


@dataclass(frozen=True, eq=False)
class _Balance:
    """Forward dynamics as an equation, of (q, qd, tau, [f_ext], *parameters); see `torchsko.implicit`."""

    workshop: Workshop

    def solution(self, *inputs: Tensor) -> Tensor:
        """Qdd."""
        return forward_dynamics(*self.workshop.split(inputs, scalar=True))

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Inverse dynamics less the joint forces."""
        mech, q, qd, tau, *f_ext = self.workshop.split(inputs, scalar=True)
        return inverse_dynamics(mech, q, qd, x, *f_ext) - tau

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """M^-1 rhs."""
        mech, q, *_ = self.workshop.split(inputs, scalar=True)
        return _solve(mech, q, rhs)


def _identity(workshop: Workshop) -> Pullback:
    """Gradients of forward dynamics by its equation, at the acceleration that is saved."""
    equation = _Balance(workshop)

    def pullback(needed: Flags, inputs: Tensors, outputs: Tensors, by: Tensors) -> Tensors:
        return implicit_vjp(equation, needed, inputs, outputs[0], by[0])

    return pullback


def _make(workshop: Workshop, name: str, has_force: bool) -> FusedFunction:
    """A verb, with or without external forces."""
    fn, arguments, num_outputs = _VERBS[name]
    names = (*arguments, "f_ext") if has_force else arguments
    shapes = {n: cast(tuple, workshop.shape(n)) for n in names}
    pullback = _identity(workshop) if name == "forward_dynamics" else None
    return workshop.make((name, has_force), fn, shapes, num_outputs, pullback, name=name)
