"""Samples of a rollout that leave the finite numbers, without gradients.

In reverse mode, zero times a derivative that is not finite is nan, also where a mask excludes the sample from
the loss. The rollout is therefore repeated: `mask_diverged` ends each diverged sample before it leaves the
finite numbers, and `drop_diverged` replaces its inputs by those of a finite sample. States that the second
rollout lacks are constants in the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from torchsko.actuators.law import LawInputs
from torchsko.errors import TorchskoError
from torchsko.integrators.early_termination import take_samples
from torchsko.integrators.external import CheckedWrenches
from torchsko.integrators.simulation import Simulation
from torchsko.integrators.step import Coordinates
from torchsko.mechanism.fields import PARAMETERS
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import are_broadcastable

Run = Callable[[Simulation, Tensor, Tensor], tuple[list[Tensor], Tensor]]
"""Maps (simulation, q, qd) to states and forces, and the last memory."""


def drop_diverged(
    run: Run, simulation: Simulation, start: Coordinates, found: list[Tensor], memory: Tensor
) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Remove the gradients of samples whose last state is not finite, or whose square overflows.

    Args:
        run: runs a rollout.
        simulation: the rollout.
        start: configuration and velocity at its start.
        found: its states and forces.
        memory: its last memory.

    Returns:
        States and forces, and the last memory; then the states with infinite values where squares overflow.

    Raises:
        TorchskoError: when values cannot be read.
    """
    limit = torch.finfo(found[0].dtype).max ** 0.5
    bounded = [torch.where(x.detach().abs() < limit, x.detach(), torch.inf) for x in found[:2]]
    good = (
        bounded[0][..., -1, :].isfinite() & bounded[1][..., -1, :].isfinite().all(-1, True)
    ).all(-1)
    values = concrete_values(good.cpu() if good.is_cuda else good)
    if values is None:
        raise TorchskoError(
            'nonfinite="zero" was given under vmap or a compiler.',
            "The samples that diverge are found by their values.",
            'Pass nonfinite="ignore" there.',
        )
    if values.all() or not torch.is_grad_enabled():
        return found, memory, bounded
    if values.any():
        batch = good.shape
        finite = good.reshape(-1).nonzero()[0]
        index = torch.arange(good.numel(), device=good.device)
        index = torch.where(good.reshape(-1), index, finite)
        other = _with_samples(simulation, index, len(bounded[0].shape) - 2)
        q, qd = (take_samples(x, index, batch, 1) for x in start)
        again, last = run(_ended(other, good), q, qd)
    else:
        again, last = _at_rest(simulation, start, good)
    kept = [_where(good, new, old.detach()) for new, old in zip(again, found, strict=True)]
    return kept, _where(good, last, memory.detach()), bounded


def mask_diverged(
    run: Run, simulation: Simulation, start: Coordinates, found: list[Tensor], memory: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Make states that are not finite, and the results of the steps to them, constants.

    Gradients of finite states are unchanged, also in samples that diverge later.

    Args:
        run: runs a rollout, without a kernel of all steps.
        simulation: the rollout.
        start: configuration and velocity at its start.
        found: its states and results.
        memory: its last memory.

    Returns:
        States and results, and the last memory.
    """
    if not any(x.requires_grad for x in (*found, memory)):
        return found, memory
    finite = (found[0].isfinite().all(-1) & found[1].isfinite().all(-1)).to(torch.int64).cumprod(-1)
    values = concrete_values(finite)
    if values is None or values.all():
        return found, memory
    count, batch = finite.sum(-1), finite.shape[:-1]
    runs, valid = count > 1, finite > 0  # the samples of which a step is finite
    if not values.sum(-1).max() > 1:
        again, last = _at_rest(simulation, start, runs)
        shown = torch.zeros_like(valid[..., 1:])
        pairs = zip(again, found, strict=True)
        again = [torch.cat([x] * old.shape[len(batch)], len(batch)) for x, old in pairs]
    else:
        first = runs.reshape(-1).nonzero()[0]
        index = torch.arange(runs.numel(), device=runs.device)
        index = torch.where(runs.reshape(-1), index, first)
        lengths = torch.where(runs, (count - 1) * simulation.every, 0)
        if simulation.lengths is not None:
            lengths = torch.minimum(lengths, simulation.lengths)
        other = replace(_with_samples(simulation, index, len(batch)), lengths=lengths)
        again, last = run(other, *(take_samples(x, index, batch, 1) for x in start))
        shown = valid[..., 1:]
    kept = []
    for k, (new, old) in enumerate(zip(again, found, strict=True)):
        if k < 2:  # states, the start included
            rest = (x.narrow(len(batch), 1, x.shape[len(batch)] - 1) for x in (new, old.detach()))
            # The start itself: a part of `old` would send zeros through the diverged steps.
            lead = start[k].unsqueeze(len(batch))
            kept.append(torch.cat([lead, _where(shown, *rest)], len(batch)))
        else:
            kept.append(_where(shown, new, old.detach()))
    return kept, _where(valid[..., -1], last, memory.detach())


def _at_rest(
    simulation: Simulation, start: Coordinates, good: Tensor
) -> tuple[list[Tensor], Tensor]:
    """One state and result of samples at rest that end at once, with zero gradients."""
    robot = simulation.robot
    q = robot.neutral().expand_as(start[0])
    one = replace(_ended(replace(simulation, fast=robot), good), every=1, truncate=None)
    again, last = one.unbound().run(q, torch.zeros_like(start[1]), 1, None)
    return [x[..., -1:, :] for x in again], last


def _ended(simulation: Simulation, good: Tensor) -> Simulation:
    """A rollout that ends diverged samples at the start if functions may read their tensors elsewhere."""
    if simulation.fast is not simulation.robot:
        return simulation
    lengths = simulation.lengths
    if lengths is None:
        lengths = torch.full_like(good, torch.iinfo(torch.int32).max, dtype=torch.int64)
    return replace(simulation, lengths=torch.where(good, lengths, torch.zeros_like(lengths)))


def _with_samples(simulation: Simulation, index: Tensor, lead: int) -> Simulation:
    """The rollout of other samples."""
    batch = simulation.forces.batch

    def pick(x: Any, rank: int) -> Any:
        return take_samples(x, index, batch, rank) if isinstance(x, Tensor) else x

    robot, forces, f_ext = simulation.robot, simulation.forces, simulation.f_ext
    changes = {
        name: pick(getattr(robot, name), len(shape))
        for name, shape in PARAMETERS.items()
        if getattr(robot, name).ndim > len(shape)
    }
    other = robot.replace(**changes) if changes else robot
    fast = simulation.fast
    if changes:
        fast = cast(Any, fast).replace(**changes) if fast is not robot else other
    forces = replace(
        forces,
        mech=other,
        source=pick(forces.source, 2),
        first=None if forces.first is None else take_samples(forces.first, index, batch),
    )
    if isinstance(f_ext, CheckedWrenches):
        f_ext = replace(f_ext, mech=other)
    inputs = LawInputs(
        *(
            {name: take_samples(x, index, batch) for name, x in tensors.items()}
            for tensors in (simulation.inputs.params, simulation.inputs.series)
        )
    )
    return replace(
        simulation,
        fast=fast,
        robot=other,
        forces=forces,
        f_ext=pick(f_ext, 3),
        lengths=pick(simulation.lengths, 0),
        inputs=inputs,
    )


def _where(mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Select samples; a tensor without batch dimensions stays."""
    if not are_broadcastable(tuple(x.shape[: mask.ndim]), tuple(mask.shape)):
        return x
    return torch.where(mask[(..., *[None] * (x.ndim - mask.ndim))], x, y)
