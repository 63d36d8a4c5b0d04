"""Fields of MuJoCo's ``mjData`` that tasks of Gymnasium observe, for all links of the file.

Links without joints, which the mechanism merges into bodies, are listed like the others, in the order of the
file. Spatial vectors have the axes of the inertial frame; their point is the center of mass of the robot.

Reference: MuJoCo documentation, "API reference", ``mjData``: ``cinert``, ``cvel``, ``cfrc_ext``, ``xipos``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.contact.contact_step import Evaluation
from torchsko.mechanism.mechanism import Mechanism
from torchsko.sensing.contact_wrenches import contact_wrenches
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import matvec
from torchsko.verbs.frames import frame_pose, frame_velocity


class Links(NamedTuple):
    """All links of a robot at an evaluation.

    Attributes:
        evaluation: the evaluation.
        names: of the links.
        mass: `[L]` [kg].
        inertia: about the centers of mass, in inertial axes, `[L, 3, 3]` [kg m^2].
        center: centers of mass, `[L, 3]` [m].
        origin: center of mass of the robot, `[3]` [m].
    """

    evaluation: Evaluation
    names: tuple[str, ...]
    mass: Tensor
    inertia: Tensor
    center: Tensor
    origin: Tensor

    @staticmethod
    def at(evaluation: Evaluation) -> Links:
        """The links at an evaluation, with masses in the proportion of the file within each body."""
        mech = evaluation.drive.mech
        links = mech.file_metadata.links
        names = tuple(link.name for link in links)
        factor = _mass_factors(mech)
        tensor = mech.mass.new_tensor
        mass = tensor([link.mass for link in links]) * factor
        of_file = [tensor(link.inertia_rotation) @ tensor(link.inertia) @ tensor(link.inertia_rotation).mT
                   for link in links]  # fmt: skip
        inertia = torch.stack(of_file) * factor[:, None, None]
        R, r = frame_pose(mech, evaluation.state.q, names)
        center = r + matvec(R, tensor([link.com for link in links]))
        origin = (mass[:, None] * center).sum(-2) / mass.sum()
        return Links(evaluation, names, mass, R @ inertia @ R.mT, center, origin)

    def inertias(self) -> Tensor:
        """``cinert``: xx, yy, zz, xy, xz, yz, first moments and mass, `[L, 10]` [kg m^2, kg m, kg]."""
        offset = self.center - self.origin
        eye = torch.eye(3, dtype=offset.dtype, device=offset.device)
        square = offset.square().sum(-1)[..., None, None] * eye
        I = self.inertia + self.mass[:, None, None] * (
            square - offset[..., :, None] * offset[..., None, :]
        )
        rows, columns = [0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]
        moments = torch.stack([I[..., i, j] for i, j in zip(rows, columns, strict=True)], -1)
        return torch.cat([moments, self.mass[:, None] * offset, self.mass[:, None]], -1)

    def velocities(self) -> Tensor:
        """``cvel``: [omega; v] of each link at the point, `[L, 6]` [rad/s, m/s]."""
        drive, state, _ = self.evaluation
        r = frame_pose(drive.mech, state.q, self.names).position
        found = frame_velocity(drive.mech, state.q, state.qd, self.names, reference="mixed")
        omega, v = found.split(3, -1)
        return torch.cat([omega, v + cross(omega, self.origin - r)], -1)

    def contact_forces(self) -> Tensor:
        """``cfrc_ext`` of contacts: [moment; force] on each link at the point, `[L, 6]` [N m, N]."""
        drive, state, qdd = self.evaluation
        options = {"qdd": qdd, "actuators": drive.actuators, "contact": drive.contact}
        wrench = contact_wrenches(drive.mech, state, drive.ctrl, links=self.names, **options)
        moment, force = wrench.split(3, -1)
        return torch.cat([moment - cross(self.origin.expand_as(force), force), force], -1)


def _mass_factors(mech: Mechanism) -> Tensor:
    """Mass of the body of each link, relative to the file, `[L]`."""
    bodies = [mech.frame_body[mech.frame_names.index(x.name)] for x in mech.file_metadata.links]
    total = [0.0] * mech.num_bodies
    for body, link in zip(bodies, mech.file_metadata.links, strict=True):
        total[body] += link.mass
    return torch.stack([mech.mass[..., body] / total[body] for body in bodies], -1)
