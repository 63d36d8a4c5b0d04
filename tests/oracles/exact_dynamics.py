"""Forward dynamics in fifty digits, straight from ``M qdd = tau - h``: the judge between libraries.

Slow and simple: Newton-Euler in link coordinates, once for each column of the mass matrix, on
arrays of arbitrary-precision numbers; then Gaussian elimination. It shares a mechanism's numbers
with the library, and nothing else.
"""

from __future__ import annotations

import mpmath as mp
import numpy as np
import torch

import torchsko as ts

DIGITS = 50


def forward_dynamics(
    mech: ts.Mechanism, q: torch.Tensor, qd: torch.Tensor, tau: torch.Tensor
) -> torch.Tensor:
    """Acceleration of one state, `[num_dof]`, rounded to float64 only at the end."""
    with mp.workdps(DIGITS):
        M, h = _equations_of_motion(mech, _exact(q), _exact(qd))
        qdd = mp.lu_solve(mp.matrix(M.tolist()), mp.matrix((_exact(tau) - h).tolist()))
        return torch.tensor([float(x) for x in qdd], dtype=torch.float64)


def _equations_of_motion(
    mech: ts.Mechanism, q: np.ndarray, qd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mass matrix and bias force: columns of accelerations are propagated all at once."""
    n = mech.num_dof
    gravity = np.concatenate([_exact(torch.zeros(3)), -_exact(mech.gravity)])
    X, S, V, force = [], [], [], []
    for k, name in enumerate(mech.joint_names):
        parent, dofs = mech.parents[k], mech.dof_slice(name)
        X.append(_shift(mech, k, q[mech.q_slice(name)]))
        S.append(_joint_map(mech, k))
        rate = S[k] @ qd[dofs]
        V.append(rate if parent < 0 else X[k] @ V[parent] + rate)
        if parent < 0:
            carried = np.concatenate([_zeros(6, n), gravity[:, None]], 1)
        else:
            carried = force[parent][1]
        accel = X[k] @ carried
        accel[:, dofs] = accel[:, dofs] + S[k]
        accel[:, n] = accel[:, n] + _cross(V[k]) @ rate
        inertia = _spatial_inertia(mech, k)
        wrench = inertia @ accel
        wrench[:, n] = wrench[:, n] - _cross(V[k]).T @ (inertia @ V[k])
        force.append((wrench, accel))
    rows = _zeros(n, n + 1)
    total = [wrench for wrench, _ in force]
    for k in reversed(range(mech.num_bodies)):
        rows[mech.dof_slice(mech.joint_names[k])] = S[k].T @ total[k]
        if (parent := mech.parents[k]) >= 0:
            total[parent] = total[parent] + X[k].T @ total[k]
    return rows[:, :n], rows[:, n]


def _exact(x: torch.Tensor) -> np.ndarray:
    return np.vectorize(mp.mpf, otypes=[object])(x.numpy())


def _zeros(rows: int, columns: int) -> np.ndarray:
    return _exact(torch.zeros(rows, columns))


def _skew(v: np.ndarray) -> np.ndarray:
    zero = mp.mpf(0)
    return np.array([[zero, -v[2], v[1]], [v[2], zero, -v[0]], [-v[1], v[0], zero]])


def _cross(v: np.ndarray) -> np.ndarray:
    """Spatial cross product of motions [omega; v]."""
    w = _skew(v[:3])
    return np.block([[w, _zeros(3, 3)], [_skew(v[3:]), w]])


def _shift(mech: ts.Mechanism, k: int, q: np.ndarray) -> np.ndarray:
    """Motions in the parent's coordinates to motions in the child's."""
    R, p = _exact(mech.joint_rotation[k]), _exact(mech.joint_position[k])
    axis, kind = _exact(mech.axis[k]), mech.joint_kinds[k]
    if kind == "prismatic":
        p = p + R @ axis * q[0]
    elif kind == "revolute":
        along, one = np.outer(axis, axis), _exact(torch.eye(3))
        R = R @ (along + mp.cos(q[0]) * (one - along) + mp.sin(q[0]) * _skew(axis))
    else:
        assert kind == "free"
        p, R = p + R @ q[:3], R @ _from_quaternion(q[3:])
    return np.block([[R.T, _zeros(3, 3)], [-R.T @ _skew(p), R.T]])


def _from_quaternion(wxyz: np.ndarray) -> np.ndarray:
    w, *v = wxyz / mp.sqrt((wxyz * wxyz).sum())
    x = _skew(np.array(v))
    return _exact(torch.eye(3)) + 2 * w * x + 2 * x @ x


def _joint_map(mech: ts.Mechanism, k: int) -> np.ndarray:
    if mech.joint_kinds[k] == "free":
        return _exact(torch.eye(6))
    axis, zero = mech.axis[k], torch.zeros_like(mech.axis[k])
    order = (axis, zero) if mech.joint_kinds[k] == "revolute" else (zero, axis)
    return _exact(torch.cat(order))[:, None]


def _spatial_inertia(mech: ts.Mechanism, k: int) -> np.ndarray:
    m, c = mp.mpf(mech.mass[k].item()), _skew(_exact(mech.com[k]))
    corner = _exact(mech.inertia[k]) - m * c @ c
    return np.block([[corner, m * c], [-m * c, m * _exact(torch.eye(3))]])
