"""Tendons of a compiled MuJoCo model whose lengths are sums over joint coordinates."""

from __future__ import annotations

from typing import Any

from torchsko.actuation.tendons import Tendons
from torchsko.io.mjcf.read_mjcf import model_of
from torchsko.io.mujoco.mujoco_tendons import read_tendons
from torchsko.mechanism.dispatch import MechanismLike


def tendons_of(source: Any, mech: MechanismLike) -> Tendons:
    """The tendons of an MJCF file, or of a compiled model, that act on joints.

    Args:
        source: path of a file, its text, or ``mujoco.MjModel``.
        mech: the mechanism loaded from the same source.

    Returns:
        The tendons, in the order of the file. Its ``unused`` lists spatial tendons and fields that are not
        modelled.

    Raises:
        RobotFileError: when the file is not readable; see `torchsko.load`.
        MechanismError: when the mechanism lacks joints of the file.
    """
    tendons, unused = read_tendons(model_of(source))
    return Tendons.of(mech, tendons, unused=unused)
