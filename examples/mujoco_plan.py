"""Runs the plans of examples 24, 32 and 33 in MuJoCo, with their feedback."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import torch
from torch import Tensor

import torchsko as ts
from torchsko.control import ILQRResult


def run_in_mujoco(
    mech: ts.Mechanism,
    tree: ts.Mechanism,
    model: mujoco.MjModel,
    plan: ILQRResult,
    actuated: Sequence[str],
    dt: float,
    limit: Tensor | float = torch.inf,
) -> Tensor:
    """Configurations of the mechanism in MuJoCo, at the start and after each step of the plan.

    Args:
        mech: the mechanism of the plan.
        tree: the mechanism of the model, with loops cut.
        model: of MuJoCo; ten of its time steps are one of the plan.
        plan: of `torchsko.control.ilqr`, one sample.
        actuated: names of the dofs on which inputs act.
        dt: time step of the plan [s].
        limit: largest input.

    Returns:
        `[steps + 1, num_q]`.
    """
    order = ts.conventions("mujoco", tree, [model.joint(k).name for k in range(model.njnt)])
    driven, independent = (
        [tree.dof_names.index(name) for name in names] for names in (actuated, mech.dof_names)
    )
    model.opt.timestep, data = dt / 10, mujoco.MjData(model)
    data.qpos[:], found = order.q_to(plan.q[0]), [plan.q[0]]
    for t, (u, gains) in enumerate(zip(plan.u, plan.gains, strict=True)):
        step = ts.difference(mech, plan.q[t], plan.q[t + 1])
        for share in torch.arange(10) / 10:
            here = order.q_from(torch.tensor(data.qpos))
            rate = order.qd_from(torch.tensor(data.qpos), torch.tensor(data.qvel))[independent]
            target = ts.integrate(mech, plan.q[t], share * step)
            speed = torch.lerp(plan.qd[t], plan.qd[t + 1], share.to(u.dtype))
            x = torch.cat([ts.difference(mech, target, here), rate - speed])
            tau = torch.zeros(tree.num_dof, dtype=u.dtype)
            tau = tau.index_put((torch.tensor(driven),), torch.clamp(u + gains @ x, -limit, limit))
            data.qfrc_applied[:] = order.tau_to(here, tau)
            mujoco.mj_step(model, data)
        found.append(order.q_from(torch.tensor(data.qpos)))
    return torch.stack(found)
