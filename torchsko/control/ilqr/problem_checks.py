"""Validation of the definition of an optimal control problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from torchsko.errors import MechanismError, ShapeError, TorchskoError, unknown_name
from torchsko.integrators.argument_checks import accepts_arguments, resolve_step
from torchsko.integrators.contact_integrator import ContactStep
from torchsko.integrators.implicit import ImplicitEuler
from torchsko.integrators.step import Step
from torchsko.mechanism.dispatch import as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import misfit
from torchsko.mechanism.time_step import check_dt
from torchsko.mechanism.validation import check_names
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.numbers import as_integer
from torchsko.verbs.held.held_mechanism import HeldMechanism

Shapes = dict[str, tuple[int, ...]]
"""Names of tensors, with shapes for one sample."""


def check_phases(phases: Any, kind: type) -> tuple[list[Mechanism], list[Step]]:
    """Check a sequence of phases; the mechanism and the integrator of each."""
    listed = isinstance(phases, Sequence)
    if not listed or not phases or not all(isinstance(x, kind) for x in phases):
        what = [type(x).__name__ for x in phases] if listed else type(phases).__name__
        raise TorchskoError(
            f"optimal_control was given {what} as phases.",
            "A problem is a sequence of ts.control.Phase objects, at least one.",
            "Pass [ts.control.Phase(mech, steps, dt, running, final)], say.",
        )
    robots, steps = [], []
    for k, phase in enumerate(phases):
        held = isinstance(phase.mech, HeldMechanism)
        robot = phase.mech.mech() if held else as_mechanism(phase.mech)
        _check_phase(k, phase, robot, held)
        if robot.dof_names != (robots or [robot])[0].dof_names:
            raise MechanismError(
                f"phase {k} has the dofs {list(robot.dof_names)}, phase 0 {list(robots[0].dof_names)}.",
                "The state at the end of a phase is that at the start of the next.",
                "Pass the same robot in each phase, held or free.",
            )
        robots.append(robot)
        steps.append(resolve_step(phase.method))
    return robots, steps


def _check_phase(k: int, phase: Any, robot: Mechanism, held: bool) -> None:
    """Check the number of steps, the time step, the integrator and the impact of phase k."""
    count = as_integer(phase.steps)
    if count is None or count < 1:
        raise TorchskoError(
            f"phase {k} has steps={phase.steps!r}.",
            "A phase has at least one time step.",
            f"Pass {type(phase).__name__}(mech, 20, dt, running), say.",
        )
    check_dt(robot, phase.dt, None, backward=False)
    step = resolve_step(phase.method)
    if held and isinstance(step, ImplicitEuler | ContactStep):
        raise TorchskoError(
            f"phase {k} of a held mechanism has method={phase.method!r}.",
            "Its steps do not keep the constraints.",
            'Pass method="semi_implicit_euler", or a free mechanism.',
        )
    if not isinstance(phase.impact, bool) or (phase.impact and not held):
        raise TorchskoError(
            f"phase {k} has impact={phase.impact!r} and a {type(phase.mech).__name__}.",
            "An impact stops the frames that the phase holds.",
            "Pass impact=True with ts.constrain(mech, [ts.HeldFrame(frame)]), or impact=False.",
        )


def actuated_dofs(mech: Mechanism, actuated: Sequence[str] | None) -> tuple[int, ...]:
    """Degrees of freedom on which inputs act, by names of joints; None: all."""
    all_dofs = range(mech.num_dof)
    if actuated is None:
        return tuple(all_dofs)
    names = check_names("actuated", actuated, mech.joint_names[0])
    for k, name in enumerate(names):
        if name not in mech.joint_names:
            raise MechanismError(*unknown_name("joint", name, mech.joint_names))
        if name in names[:k]:
            raise MechanismError(
                f"actuated names {name!r} twice.",
                "Each joint has one input for each of its dofs.",
                f"Pass actuated={list(dict.fromkeys(names))}.",
            )
    dofs = tuple(k for name in names for k in all_dofs[mech.dof_slice(name)])
    if not dofs:
        raise MechanismError(
            f"actuated is {list(names)}.",
            "The problem has no inputs.",
            "Name at least one moving joint, or leave it out for all.",
        )
    return dofs


def check_bounds(mech: Mechanism, dofs: Sequence[int], bounds: Any) -> None:
    """Check that bounds are a pair `[num_u]`, and their order where values can be read."""
    if bounds is None:
        return
    m = len(dofs)
    pair = list(bounds) if isinstance(bounds, (Sequence, Tensor)) else [bounds]
    if len(pair) != 2 or not all(isinstance(x, Tensor) and tuple(x.shape) == (m,) for x in pair):
        kinds = [list(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in pair]
        raise ShapeError(
            f"bounds hold {', '.join(map(str, kinds)) or 'nothing'}.",
            f"There are {m} inputs, each with a lower and an upper bound.",
            f"Pass two tensors of shape [{m}], such as (-limit, limit).",
        )
    for k, x in enumerate(pair):
        if (why := misfit(mech, f"bounds[{k}]", x, (m,))) is not None:
            raise ShapeError(*why)
    wrong = concrete_values(~(pair[0] <= pair[1]))
    if wrong is not None and wrong.any():
        k = int(wrong.argmax())
        raise TorchskoError(
            f"bounds of input {k} are {pair[0][k]:g} and {pair[1][k]:g}.",
            "The lower bound must not exceed the upper, and neither may be NaN.",
            "Pass (lower, upper), with -torch.inf and torch.inf where there is no bound.",
        )


def parse_shapes(what: str, mapping: Any, reserved: Sequence[str]) -> Shapes:
    """Check a mapping of names to shapes for one sample."""
    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping):
        raise TorchskoError(
            f"{what} was given as {type(mapping).__name__}.",
            "It maps names to shapes for one sample.",
            f'Pass {what}={{"target": (3,)}}, say.',
        )
    for name, shape in mapping.items():
        sizes = shape if isinstance(shape, Sequence) and not isinstance(shape, str) else [shape]
        if sizes is not shape or not all(isinstance(k, int) for k in sizes):
            raise TorchskoError(
                f"{what} have {name!r} with {shape!r}.",
                "A shape is a tuple of integers; () stands for a number.",
                f'Pass {what}={{"{name}": (3,)}}, say.',
            )
        if not isinstance(name, str) or name in reserved:
            raise TorchskoError(
                f"{what} have the name {name!r}.",
                "It is not a string, or another argument has the same name.",
                f'Pass {what}={{"target": {tuple(shape)}}}, say; costs receive them in order.',
            )
    return {name: tuple(shape) for name, shape in mapping.items()}


def check_cost(name: str, cost: Any, arguments: Sequence[str]) -> None:
    """Check that a cost is a function of the expected arguments."""
    if callable(cost) and accepts_arguments(cost, len(arguments)):
        return
    label = getattr(cost, "__name__", type(cost).__name__)
    raise TorchskoError(
        f"the cost {name!r} is {label}, which is not a function of {', '.join(arguments)}.",
        "It is called with exactly these arguments: the state, then goals, then series.",
        f"Pass {name}=lambda {', '.join(arguments)}: qd, say, for the cost |qd|^2 / 2.",
    )
