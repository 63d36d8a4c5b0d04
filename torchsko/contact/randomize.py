"""Random variation of robots, their contact and their actuators, for a batch: `torchsko.randomize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar, overload

import torch
from torch import Tensor

from torchsko.actuators.actuators import Actuators
from torchsko.contact.contact_model import ContactModel
from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.validation import check_batch
from torchsko.utils.concrete_values import concrete_values
from torchsko.verbs.randomize import Range, Uniform, bounds_of, vary_mechanism

OF_CONTACT = ("contact_friction",)
"""Names of factors of a contact model."""

OF_ACTUATORS = ("kp", "kv", "gear")
"""Names of factors of actuators."""


Contact = TypeVar("Contact", bound=ContactModel | None)
Gains = TypeVar("Gains", bound=Actuators | None)


class RandomRobots(NamedTuple, Generic[Contact, Gains]):
    """Robots with random parameters, as `torchsko.randomize` returns them with ``contact`` or ``actuators``.

    Attributes:
        mech: the mechanism, with tensors of n robots.
        contact: its contact model; None if none was passed.
        actuators: its actuators; None if none were passed.
    """

    mech: Mechanism
    contact: Contact
    actuators: Gains


@overload
def randomize(
    mech: MechanismLike, n: int, ranges: Mapping[str, Range], generator: torch.Generator | None = None,
) -> Mechanism: ...  # fmt: skip
@overload
def randomize(
    mech: MechanismLike, n: int, ranges: Mapping[str, Range], generator: torch.Generator | None = None,
    *, contact: ContactModel, update_weights: bool = False,
) -> RandomRobots[ContactModel, None]: ...  # fmt: skip
@overload
def randomize(
    mech: MechanismLike, n: int, ranges: Mapping[str, Range], generator: torch.Generator | None = None,
    *, actuators: Actuators,
) -> RandomRobots[None, Actuators]: ...  # fmt: skip
@overload
def randomize(
    mech: MechanismLike, n: int, ranges: Mapping[str, Range], generator: torch.Generator | None = None,
    *, contact: ContactModel, actuators: Actuators, update_weights: bool = False,
) -> RandomRobots[ContactModel, Actuators]: ...  # fmt: skip


def randomize(
    mech: MechanismLike,
    n: int,
    ranges: Mapping[str, Range],
    generator: torch.Generator | None = None,
    *,
    contact: ContactModel | None = None,
    actuators: Actuators | None = None,
    update_weights: bool = False,
) -> Mechanism | RandomRobots[Any, Any]:
    """A batch of robots with random parameters, for a rollout with a different robot per sample.

    A name is a tensor of `Mechanism`, such as "mass", or one entry of it, such as "link5.mass",
    "elbow.damping" and "tool.frame_position". Every entry is drawn independently and uniformly:

    - nonnegative factors: mass, inertia, damping, higher_damping, joint_friction, armature, stiffness,
      gravcomp, coupling_ratio, velocity_limit, effort_limit; modal_stiffness and modal_damping, with a factor
      of each mode of a flexible body and of all joints connected by springs;
    - offsets in SI units: com, joint_position, frame_position, coupling_offset, lower, upper, gravity;
    - components of a rotation vector [rad]: joint_rotation, frame_rotation, axis.

    With ``contact``, "contact_friction" is a factor of all coefficients of each pair of shapes, and
    "floor.contact_friction" one of all pairs of the shape "floor". With ``actuators``, "kp" and "kv" are
    factors of the gains of servos, "gear" of the transmission of each actuator, and "servo.kp" of one.

    Robots stay physical. A factor of a mass multiplies the inertia of the body as well. Three factors of an
    inertia stretch the body along its axes: they multiply the second moments of mass about the center of
    mass, so that moments of inertia keep the triangle inequality.

    Args:
        mech: the nominal robot.
        n: number of robots.
        ranges: lower and upper bound by name. Tensors have gradients, as have the parameters of `mech`.
        generator: source of randomness, on the mechanism's device. The result does not depend on the order of
            the names.
        contact: contact model whose parameters vary.
        actuators: actuators whose parameters vary, such as ``Actuators.of_file`` of those of the file.
        update_weights: whether the softness of ``contact`` is that of the random masses
            (`ContactModel.with_weights_of`) instead of the nominal ones.

    Returns:
        A mechanism whose named tensors have the leading dimension n. ``ts.fuse`` takes them as inputs. With
        ``contact`` or ``actuators`` a `torchsko.contact.RandomRobots` (mech, contact, actuators),
        with None for what was not passed.

    Raises:
        MechanismError: on an unknown name, such as "friction", which may be that of joints or of contact; on
            bounds that are not a pair, in the wrong order, or negative factors.
        ShapeError: on an n that is not a nonnegative integer.

    Example:
        >>> import torch, torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> g = torch.Generator().manual_seed(0)
        >>> ranges = {"mass": (0.8, 1.2), "joint_friction": (0.5, 2.0), "joint_position": (-0.002, 0.002)}
        >>> many = ts.randomize(arm, 64, ranges, g)
        >>> many.mass.shape, many.inertia.shape
        (torch.Size([64, 7]), torch.Size([64, 7, 3, 3]))
        >>> q, qd = arm.random_state(64, generator=g)
        >>> ts.rollout(many, ts.State(q, 0 * qd), steps=5).q.shape
        torch.Size([64, 6, 7])
        >>> servos = [ts.actuators.Actuator.position(j, j, kp=100.0, kv=10.0) for j in arm.joint_names]
        >>> drive = ts.actuators.Actuators.of(arm, servos)
        >>> robots, _, drives = ts.randomize(arm, 64, {"kp": (0.9, 1.1)}, g, actuators=drive)
        >>> drives.gain.shape
        torch.Size([64, 7, 3])
    """
    robot = as_mechanism(mech)

    def uniform(shape: Sequence[int]) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=robot.dtype, device=robot.device)

    check_batch((n,))
    robots = vary_robots(robot, (n,), ranges, uniform, contact, actuators)
    if contact is None and actuators is None:
        return robots.mech
    if robots.contact is not None and update_weights:
        robots = robots._replace(contact=robots.contact.with_weights_of(robots.mech))
    return robots


def vary_robots(
    mech: Mechanism,
    lead: Sequence[int],
    ranges: Mapping[str, Range],
    uniform: Uniform,
    contact: ContactModel | None,
    actuators: Actuators | None,
) -> RandomRobots[Any, Any]:
    """A batch of robots with random parameters; see `randomize`.

    Args:
        mech: the nominal robot.
        lead: batch dimensions of the result.
        ranges: lower and upper bound by name.
        uniform: draws uniform numbers of a shape.
        contact: contact model whose parameters vary.
        actuators: actuators whose parameters vary.
    """
    others = {x: ranges[x] for x in ranges if x.rpartition(".")[2] in (*OF_CONTACT, *OF_ACTUATORS)}
    own = {name: x for name, x in ranges.items() if name not in others}
    robots = vary_mechanism(mech, lead, own, uniform, (*OF_CONTACT, *OF_ACTUATORS))
    batch = {
        ContactModel: contact.friction.shape[:-2] if contact is not None else (),
        Actuators: actuators.gain.shape[:-2] if actuators is not None else (),
    }
    for name in sorted(others):
        low, high = bounds_of(name, others[name], True)
        owner, _, last = name.rpartition(".")
        target = contact if last in OF_CONTACT else actuators
        if target is None:
            what = "contact" if last in OF_CONTACT else "actuators"
            raise MechanismError(
                f"the range of {name!r} was passed without {what}=.",
                f"It is a parameter of {what}, not of the mechanism.",
                f"Pass {what}= as well.",
            )
        draws = _Draws((*lead, *batch[type(target)]), low, high, uniform)
        if isinstance(target, ContactModel):
            contact = _with_friction(target, owner, draws)
        else:
            actuators = _with_gains(target, owner, last, draws)
    return RandomRobots(robots, contact, actuators)


class _Draws(NamedTuple):
    """A uniform distribution for a batch of robots."""

    batch: tuple[int, ...]
    low: float | Tensor
    high: float | Tensor
    uniform: Uniform

    def among(self, count: int, chosen: Sequence[int], *, shared: bool) -> Tensor:
        """Factors `[*batch, count]`, 1 for entries that are not chosen."""
        shape = (*self.batch, 1 if shared else count)
        u = self.uniform(shape)
        is_chosen = torch.tensor([k in chosen for k in range(count)], device=u.device)
        return torch.where(is_chosen, self.low + (self.high - self.low) * u, 1.0)


def _with_friction(contact: ContactModel, shape: str, draws: _Draws) -> ContactModel:
    """Contact with factors of the friction of all pairs, or one factor for the pairs of one shape."""
    if shape and shape not in contact.shape_names:
        raise MechanismError(*unknown_name("shape in contact", shape, contact.shape_names))
    pairs = [k for k, pair in enumerate(contact.pair_names) if not shape or shape in pair]
    factor = draws.among(len(contact.pair_shapes), pairs, shared=bool(shape))
    return contact.replace(friction=contact.friction * factor[..., None])


def _with_gains(actuators: Actuators, name: str, last: str, draws: _Draws) -> Actuators:
    """Actuators with factors of gains or transmissions, of all or of one."""
    if name and name not in actuators.names:
        raise MechanismError(*unknown_name("actuator", name, actuators.names))
    chosen = [k for k, x in enumerate(actuators.names) if not name or x == name]
    factor = draws.among(len(actuators.names), chosen, shared=False)
    if last == "gear":
        # The number of joints of each actuator stays the same.
        return replace(actuators, transmission=actuators.transmission * factor[..., None])
    gain, bias = actuators.gain, actuators.bias
    k = 1 if last == "kp" else 2
    is_servo = (gain[..., 0] == -bias[..., k]) & ((bias[..., 1] == 0) | (k == 1))
    values = concrete_values(bias[..., chosen, k])
    if values is not None and not values.any():
        raise MechanismError(
            f"{last} of {[actuators.names[x] for x in chosen]} is zero.",
            f"A factor of {last} changes servos only.",
            "Pass 'gear', which multiplies the forces of motors, or name a servo.",
        )
    of_gain = torch.where(is_servo, factor, 1.0)
    one = torch.ones_like(factor)
    of_bias = [one, factor, one] if last == "kp" else [one, one, factor]
    return actuators.replace(
        gain=gain * torch.stack([of_gain, one, one], -1), bias=bias * torch.stack(of_bias, -1)
    )
