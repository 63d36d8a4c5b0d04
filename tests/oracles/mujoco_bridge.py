"""MuJoCo as an oracle: a mechanism as a MuJoCo model without contacts, and the map of states.

Where the two libraries differ, for one mechanism:

============== ============================= ====================================
               torchsko                      MuJoCo
============== ============================= ====================================
free joint qd  [omega; v], both in the body  [v in the world; omega in the body]
friction       part of the dynamics          a soft constraint: left out, or put in as damping
several dofs   one joint                     joints stacked on the body
limits         not enforced                  left out
free joint     on any body                   on bodies of the world only
============== ============================= ====================================
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
import torch
from torch import Tensor

import torchsko as ts
from torchsko.integrators.integrators import SEMI_IMPLICIT_EULER

KINDS = {
    "revolute": mujoco.mjtJoint.mjJNT_HINGE,
    "prismatic": mujoco.mjtJoint.mjJNT_SLIDE,
    "spherical": mujoco.mjtJoint.mjJNT_BALL,
    "free": mujoco.mjtJoint.mjJNT_FREE,
}


UNSTABLE = (
    mujoco.mjtWarning.mjWARN_BADQPOS,
    mujoco.mjtWarning.mjWARN_BADQVEL,
    mujoco.mjtWarning.mjWARN_BADQACC,
)
"""Warnings after which MuJoCo starts again from its neutral state."""


@dataclass(frozen=True)
class Twin:
    """One mechanism in both libraries.

    Attributes:
        mech: torchsko's.
        model: MuJoCo's: Euler with implicit damping, nothing that constrains.
    """

    mech: ts.Mechanism
    model: mujoco.MjModel

    @staticmethod
    def of(mech: ts.Mechanism, dt: float = 2e-3) -> Twin:
        spec = mujoco.MjSpec()
        spec.option.timestep = dt
        spec.option.gravity = mech.gravity.tolist()
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_EULER
        spec.compiler.degree = False
        # Massless links get what changes nothing at the accuracy asked for: MuJoCo takes no zeros.
        spec.compiler.boundmass = spec.compiler.boundinertia = 1e-14
        for k in range(mech.num_bodies):
            _add_body(spec, mech, k)
        return Twin(mech, spec.compile())

    def set(self, data: mujoco.MjData, q: Tensor, qd: Tensor) -> None:
        """Put one state into MuJoCo."""
        data.qpos[:] = q.numpy()
        data.qvel[:] = self.there.qd_to(q, qd).numpy()

    def read(self, data: mujoco.MjData) -> tuple[Tensor, Tensor]:
        """MuJoCo's state in torchsko's conventions."""
        q = torch.tensor(data.qpos)
        return q, self.there.qd_from(q, torch.tensor(data.qvel))

    def trajectory(self, q: Tensor, qd: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """`mj_step` from one state, the start included: `[steps + 1, num_q]`, `[steps + 1, num_dof]`.

        Dry friction, of joints that do not float, is damping that changes from step to step: f over the
        speed, or over the creep where that is larger, by the root of their squares. Shorter where MuJoCo
        finds a state that it calls unstable.
        """
        data, damping = mujoco.MjData(self.model), self.model.dof_damping.copy()
        friction, creep = self._friction(), SEMI_IMPLICIT_EULER.creep
        self.set(data, q, qd)
        states = [self.read(data)]
        for _ in range(steps):
            self.model.dof_damping[:] = damping + friction / np.sqrt(data.qvel**2 + creep**2)
            mujoco.mj_step(self.model, data)
            if any(data.warning[kind].number for kind in UNSTABLE):
                break
            states.append(self.read(data))
        self.model.dof_damping[:] = damping
        return torch.stack([q for q, _ in states]), torch.stack([qd for _, qd in states])

    def _friction(self) -> np.ndarray:
        """Dry friction in MuJoCo's order."""
        out = np.zeros(self.model.nv)
        for name, kind in zip(self.mech.joint_names, self.mech.joint_kinds, strict=True):
            ours = self.mech.friction[self.mech.dof_slice(name)].numpy()
            assert kind != "free" or not ours.any()
            first = self.model.joint(f"{name}.0").dofadr[0]
            out[first : first + len(ours)] = ours
        return out

    @property
    def there(self) -> ts.Conventions:
        """The map between their coordinates."""
        return ts.conventions("mujoco", self.mech)


def _add_body(spec: mujoco.MjSpec, mech: ts.Mechanism, k: int) -> None:
    parent = mech.parents[k]
    above = spec.worldbody if parent < 0 else spec.body(mech.body_names[parent])
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, mech.joint_rotation[k].flatten().numpy())
    kind = mech.joint_kinds[k]
    placed = {} if kind == "free" else {"pos": mech.joint_position[k].tolist(), "quat": quat}
    I = mech.inertia[k].tolist()
    full = [I[0][0], I[1][1], I[2][2], I[0][1], I[0][2], I[1][2]]
    body = above.add_body(name=mech.body_names[k], mass=mech.mass[k].item(),
                          ipos=mech.com[k].tolist(), fullinertia=full, explicitinertial=True,
                          **placed)  # fmt: skip
    name = mech.joint_names[k]
    dof, at = mech.dof_slice(name).start, mech.q_slice(name).start
    for i, (type_, axis, point) in enumerate(_stack(mech, k)):
        one = mech.joints.kinds[k].vector
        body.add_joint(
            name=f"{name}.{i}", type=type_, axis=axis, pos=point,
            damping=[mech.damping[dof + i].item(), 0, 0], armature=mech.armature[dof + i].item(),
            stiffness=[mech.stiffness[dof + i].item(), 0, 0],
            springref=mech.spring_reference[at + i].item() if one else 0.0,
        )  # fmt: skip


def _stack(mech: ts.Mechanism, k: int) -> list[tuple[mujoco.mjtJoint, list[float], list[float]]]:
    """Type, axis and point of the joints that MuJoCo stacks on a body for one joint of ours."""
    hinge, slide = mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE
    name, kind, axis, origin = mech.joint_names[k], mech.joint_kinds[k], mech.axis[k], [0.0] * 3

    def own(what: str) -> Tensor:
        return mech.joint_parameters[mech.parameter_slice(name, what)].reshape(-1, 3)

    if kind in KINDS:
        return [(KINDS[kind], axis.tolist(), origin)]
    if kind == "cylindrical":
        return [(hinge, axis.tolist(), origin), (slide, axis.tolist(), origin)]
    if kind == "translation":
        return [(slide, row, origin) for row in torch.eye(3).tolist()]
    if kind == "universal":
        axes = [axis, *own("second_axis")]
        return [(hinge, one.tolist(), origin) for one in axes]
    if kind == "planar":
        (x,) = own("direction")
        y = torch.linalg.cross(axis, x)
        slides = [(slide, one.tolist(), origin) for one in (x, y)]
        return [*slides, (hinge, axis.tolist(), origin)]
    assert kind == "compound", f"MuJoCo has no {kind} joint"
    names = mech.joints.kinds[k].coordinates
    types = [hinge if one.startswith("turn") else slide for one in names]
    return list(zip(types, own("axes").tolist(), own("points").tolist(), strict=True))
