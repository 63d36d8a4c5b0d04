"""Automatic use of kernels, once they pay for their build.

A build takes seconds. An eager call takes as long as `FIXED` samples more, and after `PAYS` samples, so
counted, eager calls have taken about as long as a build; `benchmarks/auto.py` measures both. From then on
kernels run where a compiler is installed. A layer counts all its calls and rollouts. Each rollout of a
mechanism counts alone; its kernels are kept as long as the mechanism. Tensors that `Mechanism.replace` was
given are inputs of the kernels, so robots made in a loop share one build. The logger ``torchsko`` reports a
build; ``fused=False`` declines.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchsko.errors import CompilerError, FusedError, TorchskoError
from torchsko.integrators import rollout as rollouts
from torchsko.integrators.integrators import INTEGRATORS
from torchsko.mechanism.dispatch import (
    MechanismLayer,
    MechanismLike,
    MechanismSource,
    as_mechanism,
    fused_methods_of,
)
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.utils.concrete_values import is_vmapped
from torchsko.verbs.held.held_mechanism import HeldMechanism

if TYPE_CHECKING:
    from torchsko.fused.fused_mechanism import FusedMechanism

P = ParamSpec("P")
R = TypeVar("R")

FIXED, PAYS = 500, 150_000

_log = logging.getLogger("torchsko")


def cost(calls: int, batch: int) -> int:
    """Cost of eager calls in samples."""
    return calls * (FIXED + batch)


def kernels_for(given: MechanismLike, *, log_build: bool = True) -> FusedMechanism | TorchskoError:
    """The kernels of a mechanism or a layer on a CPU; or the error that explains their absence.

    Parameters that require gradients, or were replaced, are inputs.

    Args:
        given: the mechanism or the layer.
        log_build: log when kernels are built.
    """
    from torchsko.fused.build.toolchain import find_toolchain
    from torchsko.fused.fuse import kernels_of_robot
    from torchsko.fused.tracing.clean import hidden_from_saved_tensor_hooks

    with hidden_from_saved_tensor_hooks():
        robot = as_mechanism(given)
    if robot.device.type != "cpu":
        return _elsewhere(robot.device)
    try:
        find_toolchain()
        changing = robot.replaced if given is robot else ()
        inputs = [n for n in PARAMETERS if n in changing or getattr(robot, n).requires_grad]
        around = _BuildLog(robot.name) if log_build else nullcontext
        if given is not robot:
            return kernels_of_robot(given, inputs, around=around)
        known = _kernels().get(robot)
        if known is None or known[0] != inputs:
            # Of a copy, since kernels that refer to their key would keep it alive.
            known = inputs, kernels_of_robot(replace(robot), inputs, around=around)
            _kernels()[robot] = known
        return known[1]
    except (CompilerError, FusedError) as error:
        return error.with_traceback(None)


@cache
def _kernels() -> WeakKeyDictionary[Mechanism, tuple[list[str], FusedMechanism]]:
    """Kernels of mechanisms, and the parameters that are inputs."""
    return WeakKeyDictionary()


def _elsewhere(device: torch.device) -> FusedError:
    """The error that explains why kernels are not automatic on a device other than the CPU."""
    if device.type == "meta":
        return FusedError(
            "its tensors are on 'meta', and have no numbers.",
            "Kernels are made for a robot that has some.",
            "Type layer.to_empty(device='cpu') and load_state_dict, or fused=False.",
        )
    return FusedError("it is on a GPU.", "Kernels are not automatic there.", "Use ts.fuse(mech).")


def log_automatic_build(name: str) -> None:
    """Log that kernels of a robot are built automatically."""
    _log.warning(
        "kernels of %r are built and run from now on, since they pay for their build; fused=False declines",
        name,
    )


class _BuildLog:
    """Context of traces that logs the first one: kernels that the disk cache has are not traced."""

    def __init__(self, name: str) -> None:
        self._name, self._logged = name, False

    def __call__(self) -> AbstractContextManager:
        if not self._logged:
            log_automatic_build(self._name)
        self._logged = True
        return nullcontext()


def _with_kernels(
    fn: Callable[Concatenate[MechanismLike | HeldMechanism, P], R],
) -> Callable[Concatenate[MechanismLike | HeldMechanism, P], R]:
    """A rollout that builds kernels where they pay."""
    signature = inspect.signature(fn)

    @wraps(fn)
    def call(mech: MechanismLike | HeldMechanism, *args: P.args, **kwargs: P.kwargs) -> R:
        if isinstance(mech, HeldMechanism):
            return fn(mech, *args, **kwargs)
        if "trajectory" not in fused_methods_of(mech) and not torch.compiler.is_compiling():
            bound = signature.bind(mech, *args, **kwargs)
            bound.apply_defaults()
            layer = mech if isinstance(mech, MechanismLayer) else None
            asked = bound.arguments["fused"] and layer is not None and layer.fused is not False
            if asked or _pays(mech, bound.arguments):
                fast = kernels_for(mech) if layer is None else layer.fused_mechanism()
                if asked and isinstance(fast, TorchskoError):
                    raise FusedError(fast.what, fast.why, fast.advice)
                mech = mech if isinstance(fast, TorchskoError) else fast
        elif isinstance(mech, MechanismLayer) and mech.fused and torch.compiler.is_compiling():
            fast = mech.fused_mechanism()  # each of its steps is one operator
            mech = mech if isinstance(fast, TorchskoError) else fast
        return fn(mech, *args, **kwargs)

    return call


def _pays(mech: MechanismLike, given: Mapping[str, Any]) -> bool:
    """True if a rollout has kernels, of all steps or of each step, and takes longer than their build.

    Controls that are functions run as they are, with their side effects. A layer counts its eager work.
    """
    state, control, steps, method = (given[x] for x in ("state", "control", "steps", "method"))
    plain = given["limits"] is None and isinstance(method, str) and method in INTEGRATORS
    if (
        given["fused"] is not None
        or (isinstance(mech, MechanismSource) and mech.fused is False)
        or not plain
    ):
        return False
    if not isinstance(state, State) or not isinstance(state.q, Tensor) or type(steps) is not int:
        return False
    q = state.q
    batch = q.numel() // max(1, q.shape[-1]) if q.ndim else 0
    if isinstance(control, Tensor) and control.ndim:  # the rollout refuses a number
        batch = max(batch, control.numel() // max(1, steps * control.shape[-1]))
    samples, layer = cost(steps, batch), mech if isinstance(mech, MechanismLayer) else None
    if batch == 0 or (samples < PAYS and layer is None):
        return False
    robot = as_mechanism(mech)
    read = [q, state.qd, control, *(getattr(robot, name) for name in PARAMETERS)]
    if any(is_vmapped(x) for x in read if isinstance(x, Tensor)):
        return False
    # The eager work of a layer adds up.
    return samples >= PAYS or (layer is not None and layer.should_fuse(samples))


rollout = _with_kernels(rollouts.rollout)
