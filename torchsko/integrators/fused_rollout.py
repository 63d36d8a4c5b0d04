"""Rollouts in which all steps are one kernel."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, cast

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.integrators.argument_checks import step_names
from torchsko.integrators.binomial import Binomial
from torchsko.integrators.contact_integrator import ContactStep
from torchsko.integrators.controls import (
    BoundController,
    Controller,
    Effort,
    Forces,
    Policy,
    bind_control,
)
from torchsko.integrators.early_termination import EarlyTermination, mask_forces, select_running
from torchsko.integrators.external import CheckedWrenches, Wrenches, check_wrenches
from torchsko.integrators.limit_springs import LimitSprings
from torchsko.integrators.simulation import Simulation
from torchsko.integrators.step import Step, StepWithResults
from torchsko.mechanism.dispatch import fused_methods_of
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.product_count import ProductCount
from torchsko.utils.traced_tensor import TracedTensor

MAX_CONTROL_PRODUCTS = 8192
"""Largest number of multiply-add operations of a control in a kernel, per sample and step.

Measured with gradients for the Panda (100 steps, 256 samples, one thread): networks of 1696, 5440 and 11232
operations in a kernel take 0.5, 1.0 and 2.1 times as long as outside. Their builds take 17, 35 and 78 s.
"""

INPUT = "inputs."
"""Prefix of the names of tensors that laws take by name, among the inputs of a kernel."""


class WideControlError(FusedError):
    """The control of a rollout is faster outside of the kernel."""

    def __init__(self, products: int) -> None:
        super().__init__(
            f"the control has {products} multiply-add operations, more than {MAX_CONTROL_PRODUCTS}.",
            "PyTorch evaluates such a network faster than a kernel does, which also builds slowly.",
            "Leave fused=True out: each step is a kernel then.",
        )


def has_trajectory_kernel(simulation: Simulation, steps: int) -> bool:
    """True if all steps are one kernel by default: no function takes part in the rollout."""
    return (
        steps > 1
        and simulation.truncate != 1
        and simulation.limits is None
        and isinstance(simulation.method, str)
        and isinstance(simulation.forces.source, Tensor)
        and not isinstance(simulation.f_ext, CheckedWrenches)
        and "trajectory" in fused_methods_of(simulation.fast)
        and not torch.compiler.is_compiling()
    )


def run_fused(
    simulation: Simulation, q: Tensor, qd: Tensor, steps: int, checkpoint: int | Binomial | None
) -> tuple[list[Tensor], Tensor]:
    """All states and results from one kernel, whose backward pass recomputes steps between checkpoints.

    With truncated gradients each window is a call of that kernel. The last memory is the second result. A
    control that is too wide for a kernel runs outside of it; each step is a kernel then.
    """
    try:
        return _run_windows(simulation, q, qd, steps, checkpoint)
    except WideControlError:
        return simulation.unbound().run(q, qd, steps, checkpoint)


def _run_windows(
    simulation: Simulation, q: Tensor, qd: Tensor, steps: int, checkpoint: int | Binomial | None
) -> tuple[list[Tensor], Tensor]:
    """States, results and memory from one kernel for each window."""
    window, every = simulation.truncate or max(steps, 1), simulation.every
    if isinstance(checkpoint, int):
        every = gcd(checkpoint, every)
    if window < steps:
        every = gcd(window, every)  # the end of each window is needed
    memory = simulation.forces.memory(q, qd)
    termination, parts = simulation.from_state(q, qd, memory).termination, []
    for first in range(0, max(steps, 1), window):
        if first:
            q, qd, memory = q.detach(), qd.detach(), memory.detach()
        span = (first, min(first + window, steps))
        *series, memory = _window(simulation, (q, qd, memory), span, every, termination)
        parts.append([x if k > 1 or not first else x[..., 1:, :] for k, x in enumerate(series)])
        q, qd = (x[..., -1, :] for x in series[:2])
    lead = len(simulation.forces.batch)
    series = parts[0] if len(parts) == 1 else [torch.cat(x, lead) for x in zip(*parts, strict=True)]
    if every == simulation.every:
        return series, memory
    stride = simulation.every // every
    count = steps // simulation.every * stride
    rows = (slice(0, count + 1, stride), slice(stride - 1, count, stride))
    return [x[(slice(None),) * lead + (rows[k > 1],)] for k, x in enumerate(series)], memory


def _window(
    simulation: Simulation,
    state: tuple[Tensor, Tensor, Tensor],
    span: tuple[int, int],
    every: int,
    termination: EarlyTermination | None,
) -> tuple[Tensor, ...]:
    """Every so many states and results of a range of steps, and the memory at its end."""
    forces, method, limits = simulation.forces, simulation.method, simulation.limits
    fast, f_ext, (first, last) = cast(Any, simulation.fast), simulation.f_ext, span
    options: dict[str, Any] = {
        "every": every,
        "ends": termination and replace(termination, lengths=termination.lengths - first),
    }
    lead, steps = len(forces.batch), last - first
    tensors = {f"{INPUT}{name}": (x, lead) for name, x in simulation.inputs.series.items()}
    if isinstance(f_ext, Tensor):
        tensors["f_ext"] = f_ext, f_ext.dim() - 3
    source = forces.source
    tau = source if isinstance(source, Tensor) else None
    if tau is not None:
        tensors["tau"] = tau, tau.dim() - 2
    streamed, constant = {}, {f"{INPUT}{k}": x for k, x in simulation.inputs.params.items()}
    for name, (x, dim) in tensors.items():
        if x.shape[dim] == 1:
            constant[name] = x.select(dim, 0)
        else:
            streamed[name] = x.narrow(dim, first, steps)
    constant["dt"] = torch.as_tensor(simulation.dt, dtype=state[0].dtype, device=state[0].device)
    options |= {"series": streamed, "constant": constant}
    if isinstance(method, str) and limits is None and isinstance(source, Tensor):
        if not isinstance(f_ext, CheckedWrenches):
            q, qd, memory = state
            return *fast.trajectory(q, qd, steps, method=method, **options), memory
    function = source.controller if isinstance(source, BoundController) else None
    step = ControlledStep(
        function if function is not None else getattr(source, "function", None),
        forces.effort,
        method,
        simulation.step,
        limits,
        f_ext.law.function if isinstance(f_ext, CheckedWrenches) else None,
        simulation.records_forces,
    )
    if termination is not None:
        constant["t_rest"] = torch.as_tensor(simulation.t0).to(constant["dt"])
    t = simulation.t0 + constant["dt"] * torch.arange(
        *span, dtype=state[0].dtype, device=state[0].device
    )
    return fast.driven(step, state, t, **options)


@dataclass(frozen=True, eq=False)
class IdentityKey:
    """Key for an object that is not hashable, such as a mutable dataclass: equal to itself only.

    Attributes:
        of: the object.
    """

    of: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.of is other.of

    def __hash__(self) -> int:
        return id(self.of)


def is_hashable(x: object) -> bool:
    """True if an object can be a key of a dict; a frozen dataclass that holds a list cannot."""
    try:
        hash(x)
    except TypeError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class ControlledStep:
    """A step of one sample under a control: the body of a rollout kernel.

    Attributes:
        control: function or controller; None for forces that are tensors.
        effort: see `rollout`.
        method: see `rollout`.
        step: integrator of the method.
        limits: see `rollout`.
        f_ext: see `rollout`, if it is a function.
        records_forces: whether the joint forces are a further result.
    """

    control: Policy | Controller | None
    effort: Effort
    method: str | Step | StepWithResults
    step: Step | StepWithResults
    limits: LimitSprings | None
    f_ext: Wrenches | None
    records_forces: bool

    @property
    def key(self) -> tuple[Any, ...]:
        """Cache key: equal for steps with the same control and options."""
        fields = (
            *(self.control, self.effort, self.method, self.limits, self.f_ext),
            self.records_forces,
        )
        return tuple(x if is_hashable(x) else IdentityKey(x) for x in fields)

    def __call__(
        self, mech: Mechanism, q: Tensor, qd: Tensor, memory: Tensor, **tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """The next state and memory, perhaps the joint forces, and further results of the step.

        Raises:
            WideControlError: the control has more than `MAX_CONTROL_PRODUCTS` operations.

        Args:
            mech: the mechanism.
            q: configuration.
            qd: velocity.
            memory: memory of the control.
            **tensors: time "t", time step "dt", forces "tau" and "f_ext" that are tensors, tensors that laws
                take by name with the prefix `INPUT`. With early termination also "going" (1 for a running
                sample, 0 for an ended one), and the state and time "t_rest" after the end, see
                `EarlyTermination`.
        """
        state = (q, qd, memory)
        if "going" not in tensors:
            return self._after(mech, state, tensors)
        running = tensors["going"] > 0
        now = select_running(running, state, [tensors[f"{x}_rest"] for x in ("q", "qd", "memory")])
        tensors["t"] = torch.where(running, tensors["t"], tensors["t_rest"])
        after = self._after(mech, now, tensors, running)
        return *select_running(running, after[:3], state), *after[3:]

    def _after(
        self,
        mech: Mechanism,
        state: tuple[Tensor, Tensor, Tensor],
        tensors: dict[str, Tensor],
        running: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        (q, qd, memory), t, dt = state, cast(Any, tensors["t"]), cast(Any, tensors["dt"])
        inputs = {k.removeprefix(INPUT): x for k, x in tensors.items() if k.startswith(INPUT)}
        names, batch = tuple(inputs), torch.Size()
        wrenches: Any = tensors.get("f_ext")
        if self.f_ext is not None:
            law, _ = check_wrenches(mech, self.f_ext, 1, batch, names)
            wrenches = CheckedWrenches(mech, cast(Any, law), batch).with_inputs(inputs)
        source = tensors["tau"] if "tau" in tensors else bind_control(mech, self.control, names)
        contact_step = self.step if isinstance(self.step, ContactStep) else None
        forces = Forces(mech, source, batch, dt, self.effort, contact_step=contact_step).resolved()
        simulation = Simulation(
            mech, mech, forces, dt, self.method, self.step, self.limits,
            records_forces=self.records_forces, step_names=step_names(self.step, names),
        )  # fmt: skip
        is_traced = isinstance(torch.func.debug_unwrap(q, recurse=True), TracedTensor)
        with nullcontext() if is_traced else ProductCount() as count:
            control, memory = forces.evaluate(t, q, qd, memory, inputs)
            if count is not None and callable(control):
                control(t, q, qd)
        if count is not None and count.total > MAX_CONTROL_PRODUCTS:
            raise WideControlError(count.total)
        if running is not None:
            control, wrenches = mask_forces(running, control), mask_forces(running, wrenches, 2)
        return simulation.advance(t, q, qd, memory, control, wrenches, inputs)
