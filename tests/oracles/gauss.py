"""Gauss's principle on MuJoCo's tree: accelerations under exact and soft constraints from one dense system.

The acceleration minimizes :math:`|a - a_0|^2_M + |J a - r|^2_{R^{-1}}` over :math:`G a + \\gamma = 0`. M, the
bias, and the rows J, R, r of soft equalities are MuJoCo's; G is made of MuJoCo's body Jacobians, and gamma is
their change along the velocity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor

import torchsko as ts
from tests.oracles.constraint_models import Constraint


class Motion(NamedTuple):
    """Motion of MuJoCo's dofs.

    Attributes:
        accel: accelerations.
        of_soft: generalized forces of soft constraints.
        multipliers: those of least norm of all exact rows.
    """

    accel: np.ndarray
    of_soft: np.ndarray
    multipliers: np.ndarray


def soft_rows(model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    """Jacobian of MuJoCo's constraint rows."""
    J = np.zeros((data.nefc, model.nv))
    if mujoco.mj_isSparse(model):
        at = (data.efc_J_rownnz, data.efc_J_rowadr, data.efc_J_colind)
        mujoco.mju_sparse2dense(J, data.efc_J, *at)
    else:
        J[:] = data.efc_J.reshape(-1, model.nv)
    return J


class GaussOracle:
    """The dense system of a model.

    Args:
        text: MJCF text with the soft equalities.
        exact: constraints that hold exactly.
    """

    def __init__(self, text: str, exact: Sequence[Constraint]) -> None:
        self.model, self.exact = mujoco.MjModel.from_xml_string(text), tuple(exact)
        self.model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_WARMSTART)
        self.data = mujoco.MjData(self.model)

    @property
    def joint_names(self) -> list[str]:
        """Names of the joints."""
        return [self.model.joint(k).name for k in range(self.model.njnt)]

    def rows(self, qpos: np.ndarray) -> np.ndarray:
        """G at a configuration."""
        self.data.qpos[:], self.data.qvel[:] = qpos, 0
        mujoco.mj_fwdPosition(self.model, self.data)
        empty = np.zeros((0, self.model.nv))
        return np.concatenate([empty, *(self._rows(c) for c in self.exact)])

    def _rows(self, c: Constraint) -> np.ndarray:
        if isinstance(c, ts.HeldFrame):
            frame = c.frame if isinstance(c.frame, ts.Frame) else ts.Frame(c.frame)
            position = np.zeros(3) if frame.position is None else frame.position.numpy()
            J = self._jacobian(frame.body, position)[1]
            return {"point": J[3:], "weld": J, "planar": J[3:5]}[c.rows]
        if c.joints:
            one, two = (self.model.joint(name) for name in c.joints)
            x, slope = (
                self.data.qpos[two.qposadr[0]],
                np.polynomial.Polynomial(c.parameters).deriv(),
            )
            G = np.zeros((1, self.model.nv))
            G[0, one.dofadr[0]], G[0, two.dofadr[0]] = 1.0, -slope(x)
            return G
        (x1, J1), (x2, J2) = (
            self._jacobian(c.frame1, np.array(c.position1)),
            self._jacobian(c.frame2, np.array(c.position2)),
        )
        G = (J2 - J1)[3:]
        return G if c.kind == "ball" else ((x2 - x1) / np.linalg.norm(x2 - x1))[None] @ G

    def _jacobian(self, body: str | None, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Position and Jacobian [w; v] of a point of a body."""
        J = np.zeros((6, self.model.nv))
        if body is None:
            return position, J
        k = self.model.body(body).id
        x = self.data.xpos[k] + self.data.xmat[k].reshape(3, 3) @ position
        mujoco.mj_jac(self.model, self.data, J[3:], J[:3], x, k)
        return x, J

    def _drift(self, qpos: np.ndarray, qvel: np.ndarray, h: float = 3e-4) -> np.ndarray:
        """The bias gamma, by central differences of the fourth order."""
        total = 0.0
        for weight, step in ((8, h), (-8, -h), (-1, 2 * h), (1, -2 * h)):
            moved = np.array(qpos)
            mujoco.mj_integratePos(self.model, moved, qvel, step)
            total = total + weight * self.rows(moved) @ qvel
        return total / (12 * h)

    def motion(self, qpos: np.ndarray, qvel: np.ndarray, tau: np.ndarray) -> Motion:
        """The motion of MuJoCo's dofs at a state under joint forces."""
        gamma, G = self._drift(qpos, qvel), self.rows(qpos)
        data, nv = self.data, self.model.nv
        data.qpos[:], data.qvel[:] = qpos, qvel
        mujoco.mj_forward(self.model, data)
        M, J = np.zeros((nv, nv)), soft_rows(self.model, data)
        mujoco.mj_fullM(self.model, data, M)
        pull = J.T / data.efc_R[: data.nefc]
        force = tau - data.qfrc_bias + data.qfrc_passive + pull @ data.efc_aref[: data.nefc]
        # Scaled by the mass matrix, so that redundant rows are recognized.
        L = np.linalg.cholesky(M + pull @ J)
        whole = np.linalg.solve(L, G.T)
        free = np.linalg.solve(L, force)
        f = -np.linalg.pinv(whole.T @ whole, rcond=1e-11, hermitian=True) @ (whole.T @ free + gamma)
        accel = np.linalg.solve(L.T, free + whole @ f)
        soft = pull @ (data.efc_aref[: data.nefc] - J @ accel)
        return Motion(accel, soft, f)

    def motions(self, *state: Tensor) -> list[Tensor]:
        """`motion` for each sample of a batch of qpos, qvel and tau."""
        batch = state[0].shape[:-1]
        flat = [x.expand(*batch, -1).reshape(-1, x.shape[-1]).numpy() for x in state]
        found = [self.motion(*x) for x in zip(*flat, strict=True)]
        return [torch.as_tensor(np.stack(x)).reshape(*batch, -1) for x in zip(*found, strict=True)]

    def multipliers_of(self, multipliers: Tensor, chosen: Sequence[Constraint]) -> Tensor:
        """Multipliers of the rows of some constraints."""
        owners = [c for c in self.exact for _ in range(len(self._rows(c)))]
        return multipliers[..., [c in chosen for c in owners]]
