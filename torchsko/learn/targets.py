"""Names of learnable parameters, such as "link5", "link5.mass", "joint4.damping" and "gravity"."""

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
from torchsko.mechanism.fields import FIELDS, PARAMETERS
from torchsko.mechanism.flexible.mode_factors import mode_groups, modes_of
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.inertia import pack_inertial, unpack_inertial

BODY_FIELDS = {f.target: name for name, f in FIELDS.items() if f.target and f.owner == "body"}
"""Learnable fields of a body: name in a target, name in the mechanism."""

JOINT_FIELDS = {
    f.target: name for name, f in FIELDS.items() if f.target and f.owner in ("joint", "dof", "mode")
}
"""Learnable fields of a joint: name in a target, name in the mechanism."""

MECHANISM_FIELDS = {n: int(f.shape[0]) for n, f in FIELDS.items() if f.owner == "mechanism"}
"""Learnable fields of the mechanism, with their numbers of entries."""

VECTOR_FIELDS = tuple(n for n, f in FIELDS.items() if f.shape[0] != "num_bodies")
"""Fields without one entry for each body or joint: a target is a slice of their first dimension."""

MODAL_FIELDS = tuple(n for n, f in FIELDS.items() if f.owner == "mode")
"""Matrices of modal coordinates: a target is a part of their diagonal, with which their rows scale."""

NONNEGATIVE_FIELDS = tuple(name for name, field in FIELDS.items() if field.nonnegative)


@dataclass(frozen=True)
class Target:
    """A learnable parameter and its entries in the mechanism.

    Attributes:
        name: the user's name for it.
        fields: fields of the mechanism that it sets.
        start: index of its first entry along the first event dimension of each field.
        size: number of entries.
    """

    name: str
    fields: tuple[str, ...]
    start: int
    size: int

    @property
    def whole_body(self) -> bool:
        """True for all inertial parameters of a body together."""
        return len(self.fields) > 1

    @property
    def key(self) -> str:
        """Name of its module. Torch forbids dots, and a slash cannot collide with an attribute."""
        owner, _, field = self.name.rpartition(".")
        if self.whole_body:
            owner, field = self.name, "inertial"
        return f"{owner}/{field}".replace("%", "%25").replace(".", "%2E")

    def read(self, mech: Mechanism) -> Tensor:
        """Value in a mechanism, `[*batch, *event]`."""
        if self.whole_body:
            return pack_inertial(
                mech.mass[..., self.start],
                mech.com[..., self.start, :],
                mech.inertia[..., self.start, :, :],
            )
        field = self.fields[0]
        if field in MODAL_FIELDS:
            diagonal = getattr(mech, field).diagonal(dim1=-2, dim2=-1)
            return diagonal.narrow(-1, self.start, self.size)
        dim = -len(PARAMETERS[field])
        part = getattr(mech, field).narrow(dim, self.start, self.size)
        return part if field in VECTOR_FIELDS else part.squeeze(dim)

    def write(self, value: Tensor) -> dict[str, Tensor]:
        """Slices of the mechanism's fields for a value, each `[*batch, size, ...]`."""
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
    """Find the entries of a target.

    Raises:
        MechanismError: on an unknown name, or a parametrization that does not keep the value physical.
    """
    if not isinstance(parametrization, nn.Module):
        is_class = isinstance(parametrization, type) and issubclass(
            parametrization, Parametrization
        )
        example = parametrization.__name__ if is_class else "Positive"
        example += "(0.0, 10.0, init=1.0)" if example == "Bounded" else "()"
        raise MechanismError(
            f"the parametrization of {name!r} is {parametrization!r}.",
            "A parametrization is an instance of a module, not a class or a name.",
            f'Pass learn={{"{name}": ts.learn.{example}}} with parentheses, or another class of ts.learn.',
        )
    if name in mech.body_names:
        target = Target(name, ("mass", "com", "inertia"), mech.body_index(name), 1)
    else:
        target = _find_field(mech, name)
    field = target.fields[0]
    if target.whole_body != isinstance(parametrization, InertiaLogCholesky):
        _refuse_parametrization(
            mech,
            name,
            parametrization,
            "only InertiaLogCholesky() keeps mass, center of mass and inertia of a body physical together",
        )
    if (field == "joint_rotation") != isinstance(parametrization, Rotation):
        _refuse_parametrization(
            mech, name, parametrization, "only Rotation() keeps a matrix a rotation"
        )
    allows_negative = isinstance(parametrization, Free) or (
        isinstance(parametrization, Bounded) and parametrization.lower < 0
    )
    if field in NONNEGATIVE_FIELDS and allows_negative:
        _refuse_parametrization(mech, name, parametrization, "the value could become negative")
    return target


_ALTERNATIVES = {
    "InertiaLogCholesky": ', or a target "{name}.mass", "{name}.com"',
    "Rotation": "",
    "Positive": ", or ts.learn.Bounded(0.0, 10.0)",
    "Free": ", or ts.learn.Bounded(-1.0, 1.0)",
}
"""Advice on alternatives, by the default parametrization of the target."""


def default_parametrization(mech: Mechanism, name: str) -> str:
    """Name of the default parametrization of a target.

    Raises:
        MechanismError: on an unknown name.
    """
    if name in mech.body_names:
        return "InertiaLogCholesky"
    field = _find_field(mech, name).fields[0]
    if field == "joint_rotation":
        return "Rotation"
    return "Positive" if field in NONNEGATIVE_FIELDS else "Free"


def _refuse_parametrization(
    mech: Mechanism, name: str, parametrization: nn.Module, why: str
) -> None:
    owner = name.rpartition(".")[0]
    default = default_parametrization(mech, name)
    advice = f'{{"{name}": ts.learn.{default}()}}' + _ALTERNATIVES[default].format(name=name)
    body = f', or {{"{owner}": ...}} for the whole body' if owner in mech.body_names else ""
    raise MechanismError(
        f"{type(parametrization).__name__} does not fit {name!r}.",
        f"Learned values have to stay physical during training: {why}.",
        f"Pass learn={advice}{body}.",
    )


def _find_field(mech: Mechanism, name: str) -> Target:
    if name in MECHANISM_FIELDS:
        return Target(name, (name,), 0, MECHANISM_FIELDS[name])
    owner, _, field = name.rpartition(".")
    if owner in mech.body_names and field in BODY_FIELDS:
        return Target(name, (BODY_FIELDS[field],), mech.body_index(owner), 1)
    if owner in mech.tree_joint_names and JOINT_FIELDS.get(field) in MODAL_FIELDS:
        return _find_modes(mech, name, owner, field)
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
            f'Pass learn={{"{owner}": ts.learn.InertiaLogCholesky()}}.',
        )
    raise MechanismError(*unknown_name("learnable parameter", name, _similar_targets(mech, owner)))


def _find_modes(mech: Mechanism, name: str, joint: str, field: str) -> Target:
    """Modes of a flexible body, or the group of a joint with a spring."""
    groups, places = mode_groups(mech), modes_of(mech, joint)
    found = Target(name, (JOINT_FIELDS[field],), groups[places[0]] if places else 0, len(places))
    if not places or not bool((found.read(mech) > 0).all()):
        raise MechanismError(
            f"{name!r} has no positive nominal value.",
            f"Learning scales the {field} of elastic joints, and those of flexible bodies, from their "
            "nominal values.",
            "Build the robot with a positive one, such as body.damped(0.01) or rotor(..., stiffness=100.0).",
        )
    return found


def _joint_parameter_names(mech: Mechanism, joint: str) -> tuple[str, ...]:
    """Parameters of the joint's type, such as a pitch, except unit vectors, which training would break."""
    kind = mech.joints.kinds[mech.joint_index(joint)]
    return tuple(parameter.name for parameter in kind.parameters if not parameter.unit)


def _similar_targets(mech: Mechanism, owner: str) -> tuple[str, ...]:
    """All learnable names; those of the named body or joint come first."""
    bodies = [f"{body}.{f}" for body in mech.body_names for f in BODY_FIELDS]
    joints = [
        f"{joint}.{f}"
        for joint in mech.tree_joint_names
        for f, field in JOINT_FIELDS.items()
        if field not in MODAL_FIELDS or modes_of(mech, joint)
    ]
    joints += [
        f"{joint}.{f}"
        for joint in mech.tree_joint_names
        for f in _joint_parameter_names(mech, joint)
    ]
    every = [*mech.body_names, *bodies, *joints, *MECHANISM_FIELDS]
    first = [name for name in every if owner and name.startswith(f"{owner}.")]
    return tuple(dict.fromkeys([*first, *every]))


def refuse_overlap(targets: Mapping[str, Target]) -> None:
    """Raise when two targets set the same entries.

    Raises:
        MechanismError: names the two targets.
    """
    owner: dict[tuple[str, int], str] = {}
    for name, target in targets.items():
        for field in target.fields:
            first = owner.setdefault((field, target.start), name)
            if first != name:
                raise MechanismError(
                    f"{first!r} and {name!r} both set the {field} of the same body.",
                    "Each value can have one parametrization.",
                    "Remove one of the two targets.",
                )
