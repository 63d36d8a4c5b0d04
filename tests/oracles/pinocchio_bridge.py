"""Pinocchio as an oracle: the robots of `example-robot-data`, their coordinates mapped by `ts.conventions`.

Where the two libraries differ, for one robot file:

============== ============================= ====================================
               torchsko                      Pinocchio
============== ============================= ====================================
order          file order, depth first       alphabetical among siblings
free joint q   x y z, quaternion w x y z     x y z, quaternion x y z w
free joint qd  [omega; v] in the body        [v; omega] in the body
continuous     angle                         cosine, sine
force          [moment; force]               [force; moment]
joint losses   damping and friction in tau   read from the file, not in `rnea`
============== ============================= ====================================
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pinocchio as pin
import torch

import torchsko as ts

BATCH = 256

# Some inertias no rigid body has: used as written, as in Pinocchio; the first such link of each file.
UNPHYSICAL = {
    "romeo_description/urdf/romeo_laas_small.urdf": "LShoulderYaw_link",
    "romeo_description/urdf/romeo_small.urdf": "RShoulderYawLink",
}
# All joints are fixed: nothing moves unless the base floats.
FLOATING_ONLY = {
    "hector_description/robots/quadrotor_base.urdf",
    "iris_description/robots/iris_simple.urdf",
}
# Hands of massless links: no acceleration follows from a force on a finger, this one and others.
NO_FORWARD_DYNAMICS = {
    "romeo_description/urdf/romeo.urdf": "LFinger13",
    "romeo_description/urdf/romeo_laas_small.urdf": "l_gripper_joint",
}
# Massless links, or links that are points of mass, between joints whose axes can align. Hinge
# inertias then fall to 1e-8 by cancellation, accelerations rise to 1e8 rad/s^2 and more, and
# Pinocchio's `aba` keeps fewer than ten digits there. Exact arithmetic decides those states.
ALIGNING_AXES = {
    "human_description/robots/human.urdf",
    "icub_description/robots/icub.urdf",
    "icub_description/robots/icub_reduced.urdf",
}


@functools.cache
def robot_files() -> dict[str, Path]:
    """Every URDF of `example-robot-data` that Pinocchio loads, by its path below the package."""
    folder = Path(pin.__file__).parents[4] / "share" / "example-robot-data" / "robots"
    files = sorted(folder.rglob("*.urdf"))
    return {f.relative_to(folder).as_posix(): f for f in files if _pinocchio_loads(f)}


def _pinocchio_loads(file: Path) -> bool:
    try:
        pin.buildModelFromUrdf(str(file))
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Robot:
    """One robot in both libraries.

    Attributes:
        mech: torchsko's; without joint losses unless asked for.
        model: Pinocchio's.
        there: the map between their coordinates.
    """

    mech: ts.Mechanism
    model: pin.Model
    there: ts.Conventions

    @staticmethod
    def load(file: Path, floating_base: bool, losses: bool = False, coupled: bool = False) -> Robot:
        """From a file; joints that mimic others follow them in both libraries, or in neither."""
        mech = ts.load(
            file, floating_base=floating_base, mimic="couple" if coupled else "independent"
        )
        if not losses:
            none = torch.zeros_like(mech.damping)
            mech = mech.replace(damping=none, friction=none)
        base = (pin.JointModelFreeFlyer(),) if floating_base else ()
        model = pin.buildModelFromUrdf(str(file), *base, mimic=coupled)
        return Robot.of(mech, model)

    @staticmethod
    def of(mech: ts.Mechanism, model: pin.Model) -> Robot:
        """Of two models whose joints have the same names."""
        joints = [pair for pair in zip(model.names, model.joints, strict=True) if pair[1].nv][1:]
        names = [name for name, _ in joints]
        round_ = [name for name, joint in joints if (joint.nq, joint.nv) == (2, 1)]
        return Robot(mech, model, ts.conventions("pinocchio", mech, names, cos_sin=round_))

    def states(self, batch: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
        """Random q, and three random vectors of the size of qd; q disregards limits."""
        g = torch.Generator().manual_seed(seed)
        unlimited = torch.full_like(self.mech.upper, torch.inf)
        wide = self.mech.replace(lower=-unlimited, upper=unlimited)
        q, _ = wide.random_state(batch, generator=g)
        rest = torch.randn(3, batch, self.mech.num_dof, generator=g, dtype=q.dtype)
        return (q, *rest)

    def q_to_pin(self, q: torch.Tensor) -> np.ndarray:
        """Configurations in Pinocchio's order and conventions."""
        return self.there.q_to(q).numpy()

    def to_pin(self, x: torch.Tensor) -> np.ndarray:
        """Velocities, accelerations or joint forces in Pinocchio's order; the same everywhere."""
        return self.there.qd_to(self.mech.neutral(), x).numpy()

    def from_pin(self, x: np.ndarray, axes: int = 1) -> torch.Tensor:
        """Vectors (one axis of dofs) or matrices (two) in torchsko's order."""
        back = self.there.tau_from if axes == 1 else self.there.mass_matrix_from
        return back(self.mech.neutral(), torch.from_numpy(x))

    def map(
        self, function: Callable[..., np.ndarray], q: torch.Tensor, *x: torch.Tensor, axes: int = 1
    ) -> torch.Tensor:
        """A function of Pinocchio, `function(model, data, q, *x)`, at every state of a batch."""
        data = self.model.createData()
        rows = zip(self.q_to_pin(q), *map(self.to_pin, x), strict=True)
        # Pinocchio returns views of `data`: copied before the next state overwrites them.
        return self.from_pin(np.stack([function(self.model, data, *r).copy() for r in rows]), axes)


def mass_matrix(model: pin.Model, data: pin.Data, q: np.ndarray) -> np.ndarray:
    """The whole symmetric matrix; `crba` fills one triangle."""
    upper = np.triu(pin.crba(model, data, q))
    return upper + np.triu(upper, 1).T


def worst_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest of all `state_errors`."""
    return state_errors(actual, expected).max().item()


def state_errors(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """For each state the largest difference, relative to the largest entry expected."""
    error, size = (x.flatten(1).abs().amax(1) for x in (actual - expected, expected))
    # Where nothing is expected and nothing is there, 0 / 0 is no error.
    return torch.where(error == 0, error, error / size)
