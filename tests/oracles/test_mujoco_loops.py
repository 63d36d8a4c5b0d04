"""Loops of MJCF: rigid closures against MuJoCo's `connect`, which is soft."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

import torchsko as ts

BODY = '<inertial pos="{} 0.02 0.01" mass="{}" diaginertia="0.05 0.05 0.06"/>'
HARD = 'solref="0.004 1" solimp="0.9999 0.9999 0.001 0.5 2"'


def chain(loop: str, hinge: str = "") -> str:
    """Crank, rod and rocker, whose ends an equality connects."""
    a, b, c = (BODY.format(0.1, m) for m in (1.3, 1.6, 1.9))
    return f"""<mujoco><option gravity="0.5 -9 -2"><flag eulerdamp="disable"/></option><worldbody>
      <body><joint name="crank" axis="0 0 1"/>{a}
        <body pos="0.2 0 0"><joint name="rod" axis="0 0 1"/>{hinge}{b}
          <site name="end" pos="0.5 0 0"/></body></body>
      <body pos="0.5 0 0"><joint name="rocker" axis="0 0 1"/>{c}<site name="pin" pos="0.4 0 0"/></body>
      </worldbody><equality>{loop}</equality></mujoco>"""


@pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")
@pytest.mark.parametrize("hinge", ["", '<joint name="twist" axis="1 0 0"/>'])
def test_a_hard_connect_accelerates_as_the_closed_chain(hinge: str) -> None:
    text = chain(f'<connect site1="end" site2="pin" {HARD}/>', hinge)
    mech = ts.load(text, closures="embed")
    model = mujoco.MjModel.from_xml_string(text)
    model.opt.solver, model.opt.tolerance = mujoco.mjtSolver.mjSOL_NEWTON, 1e-15
    data = mujoco.MjData(model)
    g = torch.Generator().manual_seed(0)
    for _ in range(5):
        step, qd, tau = torch.randn(3, mech.num_dof, generator=g, dtype=torch.float64)
        q = ts.integrate(mech, mech.initial(), 0.2 * step)
        data.qpos[:], data.qvel[:] = q.numpy(), ts.expand_velocity(mech, q, qd).numpy()
        force = torch.zeros(model.nv, dtype=torch.float64)
        force[mech.closing.own] = tau  # type: ignore[union-attr]
        data.qfrc_applied[:] = force.numpy()
        mujoco.mj_forward(model, data)
        qdd = ts.expand_acceleration(mech, q, qd, ts.forward_dynamics(mech, q, qd, tau))
        scale = max(np.abs(data.qacc).max(), np.abs(data.qacc_smooth).max())
        assert np.abs(data.qacc - qdd.numpy()).max() < 2e-4 * scale
