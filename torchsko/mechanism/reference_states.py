"""States that a mechanism provides: random, neutral, initial and middle configurations, and keyframes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.closed_chains.closed_states import regular_samples
from torchsko.mechanism.configuration import initial_configuration, neutral_configuration
from torchsko.mechanism.coordinates import independent_q, scatter_q
from torchsko.mechanism.data import MechanismData
from torchsko.mechanism.file_data.file_metadata import Keyframe
from torchsko.mechanism.joints.kind import Sampler
from torchsko.mechanism.simulation_state import State
from torchsko.mechanism.validation import check_batch


@dataclass(frozen=True, eq=False)
class ReferenceStates(MechanismData):
    """Base class of `Mechanism` with the methods that return states."""

    @property
    def keyframes(self) -> dict[str, Keyframe]:
        """Named states of the robot file, such as ``mech.keyframes["home"].q``."""
        return {key.name: key for key in self.file_metadata.keyframes}

    def keyframe(self, name: str, *batch: int) -> State:
        """A named state of the robot file, with the activations of its actuators and its time.

        Args:
            name: name of the keyframe.
            *batch: batch dimensions.

        Raises:
            MechanismError: on an unknown name.
            ShapeError: on a batch dimension that is not a nonnegative integer.
        """
        if name not in self.keyframes:
            raise MechanismError(*unknown_name("keyframe", name, tuple(self.keyframes)))
        check_batch(batch, f"mech.keyframe({name!r}, {{}})")
        key, names = self.keyframes[name], self.file_metadata.actuators.activation_names
        places = [key.activation_names.index(actuator) for actuator in names]
        act = key.activation[..., places]
        fields = (x.expand(*batch, x.shape[-1]).clone() for x in (key.q, key.qd, act))
        return State(*fields, t=key.q.new_full(batch, key.time))

    def random_state(
        self, *batch: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """A random state within limits.

        Joint positions are uniform between their limits, or in [-pi, pi] rad and [-1, 1] m without limits.
        Orientations are uniform over all rotations. Velocities are uniform within their limits, or within
        pi rad/s and 1 m/s without limits. With embedded loops, configurations are closed, and drawn again
        where a joint moves more than 50 times as fast as an independent one [rad or m], near singular ones.
        Closing moves the joints of loops, which may then exceed their limits.

        Args:
            *batch: batch dimensions.
            generator: source of randomness, on the mechanism's device.

        Returns:
            q `[*batch, num_q]` and qd `[*batch, num_dof]`.

        Raises:
            ShapeError: on a batch dimension that is not a nonnegative integer.
        """
        check_batch(batch)
        q = random_configuration(self, batch, generator)
        like: dict[str, Any] = {"dtype": q.dtype, "device": q.device}
        uniform = torch.rand(*batch, self.num_dof, generator=generator, **like)
        fallback = torch.tensor([x for kind in self.joint_types for x in kind.usual_speed], **like)
        if (closing := self.closing) is not None:
            fallback = fallback.index_select(0, closing.own)
        bound = torch.where(self.velocity_limit.isfinite(), self.velocity_limit, fallback)
        return q, (2 * uniform - 1) * bound

    def neutral(self) -> Tensor:
        """The configuration of zeros and identity orientations, `[num_q]`.

        It may violate limits, such as those of a knee; `middle` does not.
        """
        return neutral_configuration(self)

    def initial(self) -> Tensor:
        """Initial configuration of the robot file, `[num_q]`; the neutral one if the file has none.

        For MJCF it is ``qpos0``: floating bodies at their ``pos``, joints at their ``ref``. For SDF loaded
        with ``floating_base=True``, floating links are at their ``pose``. Named states of a file are in
        ``keyframes``.
        """
        return initial_configuration(self)

    def middle(self) -> Tensor:
        """The configuration in the middle of the limits, `[*batch, num_q]`, with the batch of the limits.

        A joint without both limits is at its neutral position, or at the one limit that excludes it.
        Orientations are the identity.
        """
        flat = [kind.vector for kind in self.joint_types for _ in range(kind.num_q)]
        bounded = self.lower.isfinite() & self.upper.isfinite()
        if self.closing is not None:
            flat = [False for _ in flat]  # the middle of all joints closes no loop
        nearest = torch.minimum(torch.maximum(self.neutral(), self.lower), self.upper)
        inside = torch.where(bounded, (self.lower + self.upper) / 2, nearest)
        return torch.where(torch.tensor(flat, device=self.lower.device), inside, self.neutral())


def random_configuration(
    mech: MechanismData, batch: tuple[int, ...], generator: torch.Generator | None
) -> Tensor:
    """Random configurations within limits, `[*batch, num_q]`."""
    low, high = (scatter_q(mech, x) for x in (mech.lower, mech.upper))

    def draw() -> Tensor:
        parts = []
        for group in mech.joints.groups:
            lower, upper = group.coordinates(low), group.coordinates(high)
            sampler = Sampler((*batch, group.bodies.shape[0]), lower, generator)
            parts.append(group.kind.random(lower, upper, sampler))
        return independent_q(mech, mech.joints.vector(parts, mech.joints.q_place))

    return draw() if mech.closing is None else regular_samples(mech, draw)
