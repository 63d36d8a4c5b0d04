"""Steps of which no tape is kept: they are computed again in the backward pass.

Where tensors alone decide on them, they are one node of autograd's graph, which keeps the state that they
start from. What a function reads cannot be known: its steps leave their nodes, and torch's hooks let go what
these would save. A function that remembers what it did is then in another state than it was: steps that end
elsewhere than they did are refused, since their gradients are another motion's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchsko.errors import TorchskoError
from torchsko.mechanism.mechanism import PARAMETERS
from torchsko.rollout.series import Series
from torchsko.utils.concrete_values import concrete_values, is_vmapped

if TYPE_CHECKING:
    from torchsko.rollout.simulation import Simulation

Tensors = tuple[Tensor, ...]

Run = Callable[..., Tensors]
"""(simulation, first step, last step, q, qd, memory) to these at the end, and the states on the way."""

_NOT_AGAIN = (
    "checkpoint is given inside of torch.func.grad, vjp, jvp or vmap, or around one in a control or a step.\n"
    "What is computed there cannot be computed again later, and forward mode saves nothing anyway.\n"
    "Pass checkpoint=None there, or batch the states and call backward() or torch.autograd.grad; "
    "ImplicitMidpoint and Variational take one with forces that are tensors."
)
_OTHER_STEPS = (
    "a control, an f_ext or a step gave other numbers when steps were computed again for their gradients.\n"
    "With checkpoint they are called once more in the backward pass: what they remember of earlier calls, "
    "and random numbers of a generator of their own, are others then.\n"
    "Pass checkpoint=None, or a controller, whose start and act hand its memory on; draw random numbers by "
    "torch's own generator (torch.randn_like(qd)), or all of them before."
)
_RECOMPUTED = "during recomputation"
"""What torch says where another number of tensors is saved."""

_SAID = ("saved tensor hooks", "vmap support", "setup_context", "forward mode AD")
"""What torch says then; of a vmap torch 2.11 says that its own function has no rule for it."""


def recompute_in_backward(
    run: Run, simulation: Simulation, first: int, last: int, q: Tensor, qd: Tensor, memory: Tensor
) -> Tensors:
    """What `run` gives, of which the backward pass keeps the start alone.

    Args:
        run: steps of a simulation.
        simulation: what steps.
        first: the first step.
        last: the step after the last.
        q: configuration at the start, `[*batch, num_q]`.
        qd: velocity there, `[*batch, num_dof]`.
        memory: of the control, `[*batch, ...]`.

    Raises:
        TorchskoError: inside of torch.func, or in forward mode; in the backward pass, when steps end
            elsewhere.
    """
    span = (first, last, q, qd, memory)
    if not torch.is_grad_enabled():  # there is no backward pass
        return run(simulation, *span)
    if torch.compiler.is_compiling() or simulation.robot.scalar:  # a trace keeps no tape
        return checkpoint(run, simulation, *span, use_reentrant=False)
    try:
        if not simulation.known:
            after = _by_hooks(run, simulation, *span)
        else:
            tensors = _read(simulation, first, last)
            after = _Recompute.apply(run, simulation, first, last, q, qd, *tensors)
            after = (*after[:2], memory, *after[2:])
    except RuntimeError as error:
        if any(words in str(error) for words in _SAID):
            raise TorchskoError(_NOT_AGAIN) from error
        raise
    if torch.is_grad_enabled() and is_vmapped(after[0]):
        raise TorchskoError(_NOT_AGAIN)
    return after


def _by_hooks(run: Run, *span: Any) -> Tensors:
    """Steps that are computed again to their end.

    By default torch leaves them early, by an exception out of the last function that saves anything.
    Functions with a forward derivative, as forward dynamics is, then hold their own output: a cycle of
    references, which kept the tape of every segment until the garbage collector ran.
    """
    return checkpoint(_Repeated(run), *span, use_reentrant=False, early_stop=False)


class _Repeated:
    """Steps that are to end where they ended when they were run first."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._end: Tensors | None = None  # held anyway: the next steps start there

    def __call__(self, *span: Any) -> Tensors:
        try:
            after = self._run(*span)
        except RuntimeError as error:
            if self._end is not None and _RECOMPUTED in str(error):
                raise TorchskoError(_OTHER_STEPS) from error
            raise
        end = tuple(x.detach() for x in after[:2])
        if self._end is None:
            self._end = end
        elif not all(map(_same, self._end, end)):
            raise TorchskoError(_OTHER_STEPS)
        return after


def _same(first: Tensor, again: Tensor) -> bool:
    """Whether states `[*batch, num]` are the same but for rounding, sample by sample."""
    x, y = (concrete_values(state.cpu() if state.is_cuda else state) for state in (first, again))
    if x is None or y is None or not x.size:
        return True  # there are no numbers to look at
    room = torch.finfo(first.dtype).eps ** 0.75 * np.abs(x).max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        near = np.abs(y - x) <= room
    return bool((near | (x == y) | (np.isnan(x) & np.isnan(y))).all())


class _Recompute(torch.autograd.Function):
    """Steps on which tensors alone decide, of (run, simulation, first, last, q, qd, *read)."""

    @staticmethod
    def forward(
        ctx: Any, run: Run, simulation: Simulation, first: int, last: int, *tensors: Tensor
    ) -> Tensors:
        ctx.steps = run, simulation, first, last
        ctx.save_for_backward(*tensors)
        return _run(run, simulation, first, last, tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[4:]
        with torch.enable_grad():
            # Aliases end the tape of these steps, and lead on where gradients of gradients are wanted.
            own = [x.view_as(x) for x in ctx.saved_tensors]
            run, simulation, first, last = ctx.steps
            after = _run(run, simulation, first, last, own)
        both = [(x, by) for x, by in zip(after, grad_outputs, strict=True) if x.requires_grad]
        found = iter(
            torch.autograd.grad(
                [x for x, _ in both],
                [x for x, flag in zip(own, needed, strict=True) if flag],
                [by for _, by in both],
                create_graph=torch.is_grad_enabled(),
                allow_unused=True,
            )
        )
        return None, None, None, None, *(next(found) if flag else None for flag in needed)


def _run(
    run: Run, simulation: Simulation, first: int, last: int, tensors: Sequence[Tensor]
) -> Tensors:
    """The state at the end and those on the way, without a memory: tensors have none."""
    q, qd, *read = tensors
    other = _with(simulation, first, last, read)
    end, rate, _, qs, qds = run(other, first, last, q, qd, q[..., :0])
    return end, rate, qs, qds


def _read(simulation: Simulation, first: int, last: int) -> list[Tensor]:
    """Whatever some steps read besides the state."""
    series = [x for x in (simulation.forces.rows, simulation.f_ext) if isinstance(x, Series)]
    held = [row for x in series for row in x.part(first, last)]
    return [*(getattr(simulation.robot, name) for name in PARAMETERS), *held]


def _with(simulation: Simulation, first: int, last: int, read: Sequence[Tensor]) -> Simulation:
    """The simulation for these steps with other tensors in the places of `_read`."""
    rest = iter(read)
    robot = replace(simulation.robot, **{name: next(rest) for name in PARAMETERS})

    def part(series: Any) -> Any:
        if not isinstance(series, Series):
            return series
        return Series(tuple(next(rest) for _ in series.part(first, last)), first)

    rows = part(simulation.forces.rows)
    forces = replace(simulation.forces, mech=robot, rows=rows)
    return replace(
        simulation, given=robot, robot=robot, forces=forces, f_ext=part(simulation.f_ext)
    )
