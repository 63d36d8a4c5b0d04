"""States that a mechanism provides: random, neutral, initial and middle configurations, and keyframes."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.file_data.file_metadata import FileMetadata, Keyframe
from torchsko.mechanism.joints.configuration import neutral_configuration, random_configuration
from torchsko.mechanism.numbering import Numbering
from torchsko.mechanism.simulation_state import State
from torchsko.mechanism.validation import check_batch


class ReferenceStates(Numbering):
    """Base class of `Mechanism` with the methods that return states.

    Attributes:
        lower: lower position limits, `[num_q]`.
        upper: upper position limits, `[num_q]`.
        velocity_limit: largest speeds, `[num_dof]`.
        file_metadata: named states of the robot file.
    """

    lower: Tensor
    upper: Tensor
    velocity_limit: Tensor
    file_metadata: FileMetadata

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

        Args:
            *batch: batch dimensions.
            generator: source of randomness, on the mechanism's device.

        Returns:
            q `[*batch, num_q]` and qd `[*batch, num_dof]`.

        Raises:
            ShapeError: on a batch dimension that is not a nonnegative integer.
        """
        check_batch(batch)
        q = random_configuration(cast(Any, self), batch, generator)
        like: dict[str, Any] = {"dtype": q.dtype, "device": q.device}
        uniform = torch.rand(*batch, self.num_dof, generator=generator, **like)
        fallback = torch.tensor([x for kind in self.joint_types for x in kind.usual_speed], **like)
        if (closing := cast(Any, self).closing) is not None:
            fallback = fallback.index_select(0, closing.own)
        bound = torch.where(self.velocity_limit.isfinite(), self.velocity_limit, fallback)
        return q, (2 * uniform - 1) * bound

    def neutral(self) -> Tensor:
        """The configuration of zeros and identity orientations, `[num_q]`.

        It may violate limits, such as those of a knee; `middle` does not.
        """
        return neutral_configuration(cast(Any, self))

    def initial(self) -> Tensor:
        """Initial configuration of the robot file, `[num_q]`; the neutral one if the file has none.

        For MJCF it is ``qpos0``: floating bodies at their ``pos``, joints at their ``ref``. For SDF loaded
        with ``floating_base=True``, floating links are at their ``pose``. Named states of a file are in
        ``keyframes``.
        """
        initial = self.file_metadata.initial
        return (
            self.neutral() if initial is None else initial.clone()
        )  # users may change it in place

    def middle(self) -> Tensor:
        """The configuration in the middle of the limits, `[*batch, num_q]`, with the batch of the limits.

        A joint without both limits is at its neutral position, or at the one limit that excludes it.
        Orientations are the identity.
        """
        flat = [kind.vector for kind in self.joint_types for _ in range(kind.num_q)]
        bounded = self.lower.isfinite() & self.upper.isfinite()
        if cast(Any, self).closing is not None:
            flat = [False for _ in flat]  # the middle of all joints closes no loop
        nearest = torch.minimum(torch.maximum(self.neutral(), self.lower), self.upper)
        inside = torch.where(bounded, (self.lower + self.upper) / 2, nearest)
        return torch.where(torch.tensor(flat, device=self.lower.device), inside, self.neutral())
