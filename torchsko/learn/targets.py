"""What can be learned, by name: "link5", "link5.mass", "joint4.damping", "gravity"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from torchsko.errors import MechanismError, unknown_name
from torchsko.learn.parametrizations import (
    Bounded,
    Free,
    InertiaLogCholesky,
    Parametrization,
    Rotation,
)
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism
from torchsko.spatial.inertia import pack_inertial, unpack_inertial

BODY_FIELDS = {"mass": "mass", "com": "com"}
"""Fields of one body: as written in a target, and the mechanism's field."""

JOINT_FIELDS = {
    "damping": "damping",
    "friction": "friction",
    "armature": "armature",
    "stiffness": "stiffness",
    "position": "joint_position",
    "rotation": "joint_rotation",
}
"""Fields of one joint: as written in a target, and the mechanism's field."""

VECTOR_FIELDS = ("damping", "friction", "armature", "stiffness", "gravity", "joint_parameters")
"""Fields whose entries are numbers, several to a joint: a target is a slice of them."""

NONNEGATIVE_FIELDS = ("mass", "damping", "friction", "armature")


@dataclass(frozen=True)
class Target:
    """One thing to learn and where it lies in the mechanism.

    Attributes:
        name: as the user wrote it.
        fields: fields of the mechanism that it changes.
        start: of its entries along the first dimension of each field.
        size: number of these entries.
    """

    name: str
    fields: tuple[str, ...]
    start: int
    size: int

    @property
    def whole_body(self) -> bool:
        """Whether it is all inertial parameters of a body."""
        return len(self.fields) > 1

    @property
    def key(self) -> str:
        """Name of its module: with a slash, as no attribute has, and no dot, as torch demands."""
        owner, _, field = self.name.rpartition(".")
        if self.whole_body:
            owner, field = self.name, "inertial"
        return f"{owner}/{field}".replace("%", "%25").replace(".", "%2E")

    def read(self, mech: Mechanism) -> Tensor:
        """Its value in a mechanism: `[*batch, *event]`."""
        if self.whole_body:
            return pack_inertial(
                mech.mass[..., self.start],
                mech.com[..., self.start, :],
                mech.inertia[..., self.start, :, :],
            )
        field = self.fields[0]
        dim = -len(PARAMETERS[field])
        part = getattr(mech, field).narrow(dim, self.start, self.size)
        return part if field in VECTOR_FIELDS else part.squeeze(dim)

    def write(self, value: Tensor) -> dict[str, Tensor]:
        """A value as slices of the mechanism's fields, `[*batch, size, ...]` each."""
        if self.whole_body:
            mass, com, inertia = unpack_inertial(value)
            return {
                "mass": mass[..., None],
                "com": com[..., None, :],
                "inertia": inertia[..., None, :, :],
            }
        field = self.fields[0]
        return {
            field: value if field in VECTOR_FIELDS else value.unsqueeze(-len(PARAMETERS[field]))
        }


def find_target(mech: Mechanism, name: str, parametrization: nn.Module) -> Target:
    """Where a target lies.

    Raises:
        MechanismError: on an unknown name, or a parametrization that does not keep it physical.
    """
    if not isinstance(parametrization, nn.Module):
        known = isinstance(parametrization, type) and issubclass(parametrization, Parametrization)
        meant = parametrization.__name__ if known else "Positive"
        meant += "(0.0, 10.0, init=1.0)" if meant == "Bounded" else "()"
        raise MechanismError(
            f"the parametrization of {name!r} is {parametrization!r}.",
            "It is a module: it holds what it needs to know.",
            f'Type {{"{name}": ts.learn.{meant}}}, with parentheses, or another of ts.learn.',
        )
    if name in mech.body_names:
        target = Target(name, ("mass", "com", "inertia"), mech.body_index(name), 1)
    else:
        target = _find_field(mech, name)
    field = target.fields[0]
    if target.whole_body != isinstance(parametrization, InertiaLogCholesky):
        _refuse_unfit(
            mech,
            name,
            parametrization,
            "InertiaLogCholesky() learns mass, centre of mass and inertia of a body together, and "
            "nothing else keeps them physical",
        )
    if (field == "joint_rotation") != isinstance(parametrization, Rotation):
        _refuse_unfit(
            mech, name, parametrization, "Rotation() learns a rotation, and nothing else keeps one"
        )
    below = isinstance(parametrization, Bounded) and parametrization.lower < 0
    if field in NONNEGATIVE_FIELDS and (below or isinstance(parametrization, Free)):
        _refuse_unfit(mech, name, parametrization, "the number could become negative")
    return target


_INSTEAD = {
    "InertiaLogCholesky": ', or a target "{name}.mass", "{name}.com"',
    "Rotation": "",
    "Positive": ", or ts.learn.Bounded(0.0, 10.0)",
    "Free": ", or ts.learn.Bounded(-1.0, 1.0)",
}
"""What else would do, by what is usual."""


def default_parametrization(mech: Mechanism, name: str) -> str:
    """The parametrization that is usual for a target.

    Raises:
        MechanismError: on an unknown name.
    """
    if name in mech.body_names:
        return "InertiaLogCholesky"
    field = _find_field(mech, name).fields[0]
    if field == "joint_rotation":
        return "Rotation"
    return "Positive" if field in NONNEGATIVE_FIELDS else "Free"


def _refuse_unfit(mech: Mechanism, name: str, parametrization: nn.Module, why: str) -> None:
    owner = name.rpartition(".")[0]
    usual = default_parametrization(mech, name)
    advice = f'{{"{name}": ts.learn.{usual}()}}' + _INSTEAD[usual].format(name=name)
    body = f', or {{"{owner}": ...}} for the whole body' if owner in mech.body_names else ""
    raise MechanismError(
        f"{type(parametrization).__name__} does not fit {name!r}.",
        f"Learned numbers stay physical by construction: {why}.",
        f"Type {advice}{body}.",
    )


def _find_field(mech: Mechanism, name: str) -> Target:
    if name == "gravity":
        return Target(name, ("gravity",), 0, 3)
    owner, _, field = name.rpartition(".")
    if owner in mech.body_names and field in BODY_FIELDS:
        return Target(name, (BODY_FIELDS[field],), mech.body_index(owner), 1)
    if owner in mech.tree_joint_names and field in JOINT_FIELDS:
        place = mech.tree_dof_slice(owner)
        if field in VECTOR_FIELDS:
            return Target(name, (JOINT_FIELDS[field],), place.start, place.stop - place.start)
        return Target(name, (JOINT_FIELDS[field],), mech.joint_index(owner), 1)
    if owner in mech.tree_joint_names and field in _joint_parameter_names(mech, owner):
        place = mech.parameter_slice(owner, field)
        return Target(name, ("joint_parameters",), place.start, place.stop - place.start)
    if owner in mech.body_names and field == "inertia":
        raise MechanismError(
            f"{name!r} cannot be learned by itself.",
            "An inertia is physical only together with its mass.",
            f'Type {{"{owner}": ts.learn.InertiaLogCholesky()}}.',
        )
    raise MechanismError(*unknown_name("learnable parameter", name, _similar_targets(mech, owner)))


def _joint_parameter_names(mech: Mechanism, joint: str) -> tuple[str, ...]:
    """What a kind of joint has besides, such as a pitch; directions would not stay unit vectors."""
    kind = mech.joints.kinds[mech.joint_index(joint)]
    return tuple(parameter.name for parameter in kind.parameters if not parameter.unit)


def _similar_targets(mech: Mechanism, owner: str) -> tuple[str, ...]:
    """Everything that can be learned; the targets of a body or joint that exists come first."""
    bodies = [f"{body}.{f}" for body in mech.body_names for f in BODY_FIELDS]
    joints = [f"{joint}.{f}" for joint in mech.tree_joint_names for f in JOINT_FIELDS]
    joints += [
        f"{joint}.{f}"
        for joint in mech.tree_joint_names
        for f in _joint_parameter_names(mech, joint)
    ]
    every = [*mech.body_names, *bodies, *joints, "gravity"]
    own = [name for name in every if owner and name.startswith(f"{owner}.")]
    return tuple(dict.fromkeys([*own, *every]))


def refuse_overlap(targets: Mapping[str, Target]) -> None:
    """Refuse two targets that change the same numbers.

    Raises:
        MechanismError: names both.
    """
    owner: dict[tuple[str, int], str] = {}
    for name, target in targets.items():
        for field in target.fields:
            first = owner.setdefault((field, target.start), name)
            if first != name:
                raise MechanismError(
                    f"{first!r} and {name!r} both set the {field} of the same body.",
                    "One number follows one parameter.",
                    "Leave one of them out.",
                )
