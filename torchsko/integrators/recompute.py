"""Checkpointing: steps whose intermediate values are recomputed in the backward pass.

If tensors alone determine the steps, they are one autograd node, which stores their initial state. Tensors
that a user's function reads are unknown: its steps keep their autograd nodes, and torch's hooks drop the
saved tensors. A function that has state may compute other values the second time. Steps that end in another
state than before are refused, since their gradients would belong to another trajectory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchsko.errors import TorchskoError
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.utils.concrete_values import concrete_values, is_vmapped

Tensors = tuple[Tensor, ...]


class Segments(Protocol):
    """Steps of a rollout; a `torchsko.integrators.simulation.Simulation` implements it."""

    @property
    def is_closed(self) -> bool:
        """True if steps depend on tensors only, not on functions."""
        ...

    def inputs_of(self, first: int, last: int) -> list[Tensor]:
        """Tensors on which a range of steps depends besides the state."""
        ...

    def with_inputs(self, first: int, last: int, inputs: Sequence[Tensor]) -> Segments:
        """The steps of a range with other tensors in place of `inputs_of`."""
        ...


Run = Callable[..., Tensors]
"""Maps (simulation, first step, last step, q, qd, memory) to the values at the end, and the states in
between."""

_UNDER_TRANSFORM = (
    "checkpoint is given inside torch.func.grad, vjp, jvp or vmap, or a control or step uses one of them.",
    "Steps cannot be recomputed there, and forward mode stores nothing anyway.",
    "Pass checkpoint=None there, or batch the states and call backward() or torch.autograd.grad. "
    "ImplicitMidpoint and Variational accept a checkpoint with forces that are tensors.",
)
_DIFFERENT_RESULT = (
    "a control, an f_ext or a step returned other values when steps were recomputed for their gradients.",
    "With checkpoint they are called again in the backward pass, so they must not have state or draw random "
    "numbers from a separate generator.",
    "Pass checkpoint=None, or a Controller, which receives its memory as an argument. Draw random numbers "
    "from torch's default generator (torch.randn_like(qd)), or before the rollout.",
)
_RECOMPUTATION_MESSAGE = "during recomputation"
"""Part of torch's error when recomputation saves another number of tensors."""

_TRANSFORM_MESSAGES = ("saved tensor hooks", "vmap support", "setup_context", "forward mode AD")
"""Parts of torch's errors when checkpointing meets a function transform; the third is that of torch 2.11."""


def recompute_in_backward(
    run: Run, simulation: Segments, first: int, last: int, q: Tensor, qd: Tensor, memory: Tensor
) -> Tensors:
    """Run steps such that the backward pass stores their initial state only."""
    span = (first, last, q, qd, memory)
    if not torch.is_grad_enabled():  # there is no backward pass
        return run(simulation, *span)
    if torch.compiler.is_compiling() or is_scalar_form():  # a trace has no graph
        return checkpoint(run, simulation, *span, use_reentrant=False)
    try:
        if not simulation.is_closed:
            # With early_stop, torch leaves recomputation by an exception from the last function that saves
            # tensors. Functions with a forward derivative then reference their output in a cycle, which
            # keeps the graph of every segment until the garbage collector runs.
            after = checkpoint(
                _CheckedRun(run), simulation, *span, use_reentrant=False, early_stop=False
            )
        else:
            tensors = simulation.inputs_of(first, last)
            after = _Recompute.apply(run, simulation, first, last, q, qd, *tensors)
            after = (*after[:2], memory, *after[2:])
    except RuntimeError as error:
        if any(words in str(error) for words in _TRANSFORM_MESSAGES):
            raise TorchskoError(*_UNDER_TRANSFORM) from error
        raise
    if torch.is_grad_enabled() and is_vmapped(after[0]):
        raise TorchskoError(*_UNDER_TRANSFORM)
    return after


class _CheckedRun:
    """Steps that must end in the same state when they are recomputed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._end: Tensors | None = None  # no extra memory: the next steps start from it

    def __call__(self, *span: Any) -> Tensors:
        try:
            after = self._run(*span)
        except RuntimeError as error:
            if self._end is not None and _RECOMPUTATION_MESSAGE in str(error):
                raise TorchskoError(*_DIFFERENT_RESULT) from error
            raise
        end = tuple(x.detach() for x in after[:2])
        if self._end is None:
            self._end = end
        elif not all(map(_agree, self._end, end)):
            raise TorchskoError(*_DIFFERENT_RESULT)
        return after


def _agree(first: Tensor, second: Tensor) -> bool:
    """True if states `[*batch, num]` agree up to rounding, sample by sample."""
    x, y = (concrete_values(state.cpu() if state.is_cuda else state) for state in (first, second))
    if x is None or y is None or not x.size:
        return True  # there are no values to compare
    tolerance = torch.finfo(first.dtype).eps ** 0.75 * np.abs(x).max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        near = np.abs(y - x) <= tolerance
    return bool((near | (x == y) | (np.isnan(x) & np.isnan(y))).all())


class _Recompute(torch.autograd.Function):
    """Steps that depend on tensors only: a function of (run, simulation, first, last, q, qd, *inputs)."""

    @staticmethod
    def forward(
        ctx: Any, run: Run, simulation: Segments, first: int, last: int, *tensors: Tensor
    ) -> Tensors:
        ctx.steps = run, simulation, first, last
        ctx.save_for_backward(*tensors)
        return _run(run, simulation, first, last, tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[4:]
        with torch.enable_grad():
            # Aliases separate the graph of these steps from the outer one, but connect second derivatives.
            inputs = [x.view_as(x) for x in ctx.saved_tensors]
            run, simulation, first, last = ctx.steps
            after = _run(run, simulation, first, last, inputs)
        outputs = [(x, g) for x, g in zip(after, grad_outputs, strict=True) if x.requires_grad]
        gradients = iter(
            torch.autograd.grad(
                [x for x, _ in outputs],
                [x for x, flag in zip(inputs, needed, strict=True) if flag],
                [g for _, g in outputs],
                create_graph=torch.is_grad_enabled(),
                allow_unused=True,
            )
        )
        return None, None, None, None, *(next(gradients) if flag else None for flag in needed)


def _run(
    run: Run, simulation: Segments, first: int, last: int, tensors: Sequence[Tensor]
) -> Tensors:
    """The state at the end and those in between; tensor controls have no memory."""
    q, qd, *inputs = tensors
    simulation = simulation.with_inputs(first, last, inputs)
    q, qd, _, *states = run(simulation, first, last, q, qd, q[..., :0])
    return q, qd, *states
