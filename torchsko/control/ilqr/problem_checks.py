"""Whether what an optimal control problem is made of fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from torchsko.errors import MechanismError, ShapeError, TorchskoError, unknown_name
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import misfit
from torchsko.mechanism.validation import check_names
from torchsko.rollout.argument_checks import accepts_arguments
from torchsko.utils.concrete_values import concrete_values

Shapes = dict[str, tuple[int, ...]]
"""Names of tensors, with shapes for one sample."""


def actuated_dofs(mech: Mechanism, actuated: Sequence[str] | None) -> tuple[int, ...]:
    """Degrees of freedom on which inputs act, by names of joints; None: all.

    Raises:
        MechanismError: on an unknown joint, one that is named twice, or none.
    """
    every = range(mech.num_dof)
    if actuated is None:
        return tuple(every)
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
    dofs = tuple(k for name in names for k in every[mech.dof_slice(name)])
    if not dofs:
        raise MechanismError(
            f"actuated is {list(names)}.",
            "That is no input, and nothing could be chosen.",
            "Name a joint that moves, or leave it out for all.",
        )
    return dofs


def check_bounds(mech: Mechanism, dofs: Sequence[int], bounds: Any) -> None:
    """Refuse bounds that are no pair `[num_u]`; their values, where they can be read.

    Raises:
        ShapeError: on a type or shape.
        TorchskoError: on a lowest input above the highest, or NaN.
    """
    if bounds is None:
        return
    m = len(dofs)
    pair = list(bounds) if isinstance(bounds, (Sequence, Tensor)) else [bounds]
    if len(pair) != 2 or not all(isinstance(x, Tensor) and tuple(x.shape) == (m,) for x in pair):
        told = [list(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in pair]
        raise ShapeError(
            f"bounds hold {', '.join(map(str, told)) or 'nothing'}.",
            f"There are {m} inputs, each with a lowest and a highest value.",
            f"Pass two tensors of shape [{m}], such as (-limit, limit).",
        )
    for k, x in enumerate(pair):
        if (why := misfit(mech, f"bounds[{k}]", x, (m,))) is not None:
            raise ShapeError(why)
    wrong = concrete_values(~(pair[0] <= pair[1]))
    if wrong is not None and wrong.any():
        k = int(wrong.argmax())
        raise TorchskoError(
            f"bounds of input {k} are {pair[0][k]:g} and {pair[1][k]:g}.",
            "The lowest comes first, none above the highest, and none is NaN.",
            "Pass (lower, upper); -torch.inf and torch.inf where there is no bound.",
        )


def parse_shapes(what: str, given: Any, taken: Sequence[str]) -> Shapes:
    """Names with shapes for one sample.

    Args:
        what: "goals" or "series".
        given: the mapping, or None.
        taken: names that are none of theirs.

    Raises:
        TorchskoError: when it is no mapping of names to shapes, or a name is taken.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TorchskoError(
            f"{what} was given as {type(given).__name__}.",
            "It has the shape of each, for one sample, by name.",
            f'Pass {what}={{"target": (3,)}}, say.',
        )
    for name, shape in given.items():
        sizes = shape if isinstance(shape, Sequence) and not isinstance(shape, str) else [shape]
        if sizes is not shape or not all(isinstance(k, int) for k in sizes):
            raise TorchskoError(
                f"{what} have {name!r} with {shape!r}.",
                "The shape for one sample is a tuple of whole numbers; () is a number.",
                f'Pass {what}={{"{name}": (3,)}}, say.',
            )
        if not isinstance(name, str) or name in taken:
            raise TorchskoError(
                f"{what} have the name {name!r}.",
                "It is no text, or something else of the problem has it.",
                f'Pass {what}={{"target": {tuple(shape)}}}, say: costs are given them in order.',
            )
    return {name: tuple(shape) for name, shape in given.items()}


def check_cost(name: str, cost: Any, arguments: Sequence[str]) -> None:
    """Refuse a cost that is no function of its arguments.

    Args:
        name: "running" or "final".
        cost: what was given.
        arguments: their names.

    Raises:
        TorchskoError: says what to type.
    """
    if callable(cost) and accepts_arguments(cost, len(arguments)):
        return
    told = getattr(cost, "__name__", type(cost).__name__)
    raise TorchskoError(
        f"the cost {name!r} is {told}, which is no function of {', '.join(arguments)}.",
        "It is called with these, goals and then series in their order, and with nothing else.",
        f"Pass {name}=lambda {', '.join(arguments)}: qd, say, of which half the square counts.",
    )
