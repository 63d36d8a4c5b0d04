"""MJX and MuJoCo Warp: forward dynamics of a batch, contact and constraints switched off."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from cases import Case
from torch import Tensor

Peer = tuple[Callable[[], object], Callable[[], Tensor]]
"""What is timed, and its accelerations [num_dof] of all states, after it ran."""


def smooth_model(case: Case, mujoco: ModuleType) -> object:
    """MuJoCo's model of the robot, forces and inertia alone."""
    model = mujoco.MjModel.from_xml_path(str(case.robot.path_with_joint))
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
    return model


def states(case: Case) -> list[Tensor]:
    """Arguments q, qd and tau in MuJoCo's order: its free joint has linear velocity first, in world axes."""
    q, qd, tau = case.q, case.qd, case.tau
    if case.robot.floating_base:
        R = rotation(q[:, 3:7])
        linear = torch.einsum("bij,bj->bi", R, qd[:, 3:6])
        qd = torch.cat([linear, qd[:, :3], qd[:, 6:]], -1)
        tau = torch.cat([tau[:, 3:6], tau[:, :3], tau[:, 6:]], -1)  # zero on the base
    return [x.float().contiguous() for x in (q, qd, tau)]


def ours(case: Case, qacc: Tensor) -> Tensor:
    """Accelerations of MuJoCo's joints, in torchsko's order and frames."""
    if not case.robot.floating_base:
        return qacc
    q, qd = case.q.to(qacc), case.qd.to(qacc)
    R = rotation(q[:, 3:7])
    # Of the world's velocity; in the body frame the frame's own turning is left out.
    linear = torch.einsum("bji,bj->bi", R, qacc[:, :3]) - torch.linalg.cross(qd[:, :3], qd[:, 3:6])
    return torch.cat([qacc[:, 3:6], linear, qacc[:, 6:]], -1)


def rotation(quaternion: Tensor) -> Tensor:
    """Of unit quaternions w x y z, `[*batch, 3, 3]`."""
    w, x, y, z = (quaternion / quaternion.norm(dim=-1, keepdim=True)).unbind(-1)
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]  # fmt: skip
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def mjx(case: Case) -> Peer:
    """MJX, compiled by XLA.

    Raises:
        ImportError: it is not installed.
    """
    import jax
    import jax.numpy as jnp
    import mujoco
    import numpy as np
    from mujoco import mjx as library

    model = smooth_model(case, mujoco)
    on_device, blank = library.put_model(model), library.make_data(model)
    given = [jnp.asarray(x.numpy()) for x in states(case)]

    @jax.jit
    @jax.vmap
    def forward(q, v, tau):  # type: ignore[no-untyped-def]
        data = blank.replace(qpos=q, qvel=v, qfrc_applied=tau)
        return library.forward(on_device, data).qacc

    found = []

    def run() -> None:
        found[:] = [jax.block_until_ready(forward(*given))]

    return run, lambda: ours(case, torch.from_numpy(np.array(found[0])))


def warp(case: Case) -> Peer:
    """MuJoCo Warp; on a GPU a captured graph, as its authors time it.

    Raises:
        ImportError: it is not installed.
    """
    import mujoco
    import mujoco_warp as library
    import warp as wp

    wp.config.quiet = True
    model = smooth_model(case, mujoco)
    with wp.ScopedDevice("cuda" if wp.is_cuda_available() else "cpu"):
        on_device = library.put_model(model)
        data = library.make_data(model, nworld=case.batch, nconmax=1, njmax=1)
        for target, x in zip((data.qpos, data.qvel, data.qfrc_applied), states(case), strict=True):
            wp.copy(target, wp.array(x.numpy(), dtype=wp.float32))
        library.forward(on_device, data)  # compiled
        if not wp.is_cuda_available():
            return lambda: library.forward(on_device, data), lambda: _read(case, data)
        with wp.ScopedCapture() as capture:
            library.forward(on_device, data)

    def run() -> None:
        wp.capture_launch(capture.graph)
        wp.synchronize()

    return run, lambda: _read(case, data)


def _read(case: Case, data: object) -> Tensor:
    return ours(case, torch.from_numpy(data.qacc.numpy().copy()))  # type: ignore[attr-defined]


PEERS = {"MJX": mjx, "MuJoCo Warp": warp}
