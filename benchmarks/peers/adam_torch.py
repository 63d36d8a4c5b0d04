"""ADAM's batched PyTorch library. Its base is always free: a fixed base is read off its blocks.

Inverse dynamics is M qdd + h there (it has no full Newton-Euler pass); forward dynamics is its ABA on
a free base, and the joints' block of M, solved by Cholesky, on a fixed one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import Case, Entry, MissingPeerError
from torch import Tensor

from peers.conventions import Convention
from torchsko.spatial.rotation import quaternion_to_matrix

NAME = "ADAM (PyTorch)"


def enter(case: Case) -> list[Entry]:
    """All verbs; the VJP by autograd, to the base's pose as well."""
    try:
        from adam import Representations
        from adam.pytorch import KinDynComputationsBatch
    except ImportError:
        raise MissingPeerError('not installed (pip install ".[bench]" in a clone)') from None
    mech, free = case.robot.mech, case.robot.floating_base
    names = [name for name in mech.joint_names if name != "root_joint" or not free]
    gravity = torch.cat([mech.gravity, torch.zeros(3, dtype=torch.float64)])
    kindyn = KinDynComputationsBatch(
        str(case.robot.path), names, device=torch.device("cpu"), dtype=case.dtype, gravity=gravity
    )
    kindyn.set_frame_velocity_representation(Representations.BODY_FIXED_REPRESENTATION)
    convention, base = Convention(case), 6 if free else 0
    pose = _pose(case)
    joints = case.q[:, 7 if free else 0 :].contiguous()
    velocity, accel, force = (
        x.to(case.dtype) for x in (convention.velocity, convention.accel, convention.force)
    )
    rest = torch.zeros(case.batch, 6, dtype=case.dtype)
    base_velocity = velocity[:, :6] if free else rest
    state = (pose, joints, base_velocity.contiguous(), velocity[:, base:].contiguous())
    drop = 0 if free else 6

    def mass_matrix(pose: Tensor, q: Tensor, *_: Tensor) -> Tensor:
        return kindyn.mass_matrix(pose, q)[:, drop:, drop:]

    def bias(*state: Tensor) -> Tensor:
        return kindyn.bias_force(*state)[:, drop:]

    def inverse(*inputs: Tensor) -> Tensor:
        *state, qdd = inputs
        return (mass_matrix(*state) @ qdd.unsqueeze(-1)).squeeze(-1) + bias(*state)

    def forward(*inputs: Tensor) -> Tensor:
        if free:
            return kindyn.aba(*inputs)
        *state, tau = inputs
        factor = torch.linalg.cholesky(mass_matrix(*state))
        return torch.cholesky_solve((tau - bias(*state)).unsqueeze(-1), factor).squeeze(-1)

    def plain(verb: str, fn: Callable[..., Tensor], *inputs: Tensor) -> Entry:
        def run() -> Tensor:
            with torch.no_grad():
                return fn(*inputs)

        back = getattr(convention, verb)
        return Entry(NAME, verb, run, lambda y: back(_checked(case, y)))

    cotangent = convention.cotangent.to(case.dtype)
    torques = force[:, base:].contiguous()

    def run_vjp() -> list[Tensor]:
        inputs = [x.detach().requires_grad_() for x in (*state, torques)]
        qdd = forward(*inputs)
        wanted = inputs if free else [inputs[1], *inputs[3:]]
        return [qdd.detach(), *torch.autograd.grad(qdd, wanted, cotangent)]

    vjp = Entry(NAME, "forward_vjp", run_vjp, lambda y: _gradients(case, convention, y), True)
    return [
        plain("inverse", inverse, *state, accel),
        plain("forward", forward, *state, torques),
        plain("mass_matrix", mass_matrix, *state),
        vjp,
    ]


def _pose(case: Case) -> Tensor:
    pose = torch.eye(4, dtype=case.dtype).repeat(case.batch, 1, 1)
    if case.robot.floating_base:
        pose[:, :3, :3] = quaternion_to_matrix(case.q[:, 3:7])
        pose[:, :3, 3] = case.q[:, :3]
    return pose


def _gradients(case: Case, convention: Convention, results: Any) -> tuple[Tensor, ...]:
    """On a free base the right answers stand where ADAM has none: base torque."""
    qdd, *found = (_checked(case, x) for x in results)
    if not case.robot.floating_base:
        return (qdd, *found)
    by_pose, by_q, by_base, by_joints, by_tau = found
    right = case.answers["forward_vjp"]
    R = quaternion_to_matrix(case.q[case.checked].double()[:, 3:7])
    # d pose = pose * [step]: the tangent [omega; v] of the gradient to a pose.
    by_R, by_p = by_pose[:, :3, :3], by_pose[:, :3, 3:]
    W = R.mT @ by_R
    turn = torch.stack(
        [W[:, 2, 1] - W[:, 1, 2], W[:, 0, 2] - W[:, 2, 0], W[:, 1, 0] - W[:, 0, 1]], -1
    )
    move = (R.mT @ by_p).squeeze(-1)
    (by_velocity,) = convention.inverse(torch.cat([by_base, by_joints], -1))
    by_force = torch.cat([right[3][:, :6], by_tau], -1)
    return (*convention.forward(qdd), torch.cat([turn, move, by_q], -1), by_velocity, by_force)


def _checked(case: Case, x: Any) -> Tensor:
    return x.detach()[case.checked].double()
