"""The simulated arm of 02_identify.py: MuJoCo moves it with parameters that the fit does not use."""

import numpy as np
import torch

import torchsko as ts
from torchsko.utils.optional_dependencies import require

mujoco = require("mujoco", "identify")


def secret_parameters(mech, generator):
    """A robot like `mech` with randomly changed masses, centers of mass, inertias, damping and friction."""
    layer = ts.Dynamics(mech, {name: ts.learn.InertiaLogCholesky() for name in mech.body_names})
    size = torch.tensor([0.15] + 3 * [0.2] + 3 * [0.01] + 3 * [0.02], dtype=mech.dtype)
    with torch.no_grad():
        for theta in layer.parameters():
            theta += size * torch.randn(10, generator=generator, dtype=mech.dtype)
        inside = layer.mechanism()
    damping, friction = torch.rand(2, mech.num_dof, generator=generator, dtype=mech.dtype)
    return inside.replace(damping=0.1 + damping, friction=0.2 + 0.6 * friction)


def mujoco_model(urdf, mech):
    """MuJoCo model of a URDF file with the physical parameters of `mech`."""
    spec = mujoco.MjSpec.from_file(str(urdf))
    spec.option.timestep = 1e-3
    for k, name in enumerate(mech.body_names):
        body, (xx, xy, xz, _, yy, yz, _, _, zz) = (
            spec.body(name),
            mech.inertia[k].flatten().tolist(),
        )
        body.mass, body.ipos = mech.mass[k].item(), mech.com[k].tolist()
        body.fullinertia = [xx, yy, zz, xy, xz, yz]
    for k, name in enumerate(mech.joint_names):
        joint = spec.joint(name)
        joint.damping = [mech.damping[k].item(), 0, 0]
        joint.frictionloss = mech.friction[k].item()
        # MuJoCo's dry friction is a soft constraint; at this stiffness it is Coulomb friction, except at
        # rest.
        joint.solref_friction, joint.solimp_friction = [4e-3, 1], [0.99, 0.99, 1e-3, 0.5, 2]
    return spec.compile()


def measure(model, trajectory, noise, rng, every=2):
    """Follow a trajectory with a controller; return q, qd, qdd and motor torque with sensor noise."""
    data = mujoco.MjData(model)
    steps = round(trajectory.period / model.opt.timestep)
    times = torch.arange(steps, dtype=torch.float64) * model.opt.timestep
    q, qd, qdd = (x.numpy() for x in trajectory(times))
    data.qpos[:], data.qvel[:] = q[0], qd[0]
    log, tau = np.zeros((steps, 4, model.nv)), np.zeros(model.nv)
    for k in range(steps):
        mujoco.mj_forward(model, data)
        wanted = qdd[k] + 2500 * (q[k] - data.qpos) + 100 * (qd[k] - data.qvel)
        mujoco.mj_mulM(model, data, tau, wanted)
        data.qfrc_applied[:] = tau + data.qfrc_bias
        log[k, 0], log[k, 1] = data.qpos, data.qvel
        mujoco.mj_step(model, data)
        log[k, 2], log[k, 3] = data.qacc, data.qfrc_applied
    log = log[steps // 50 :: every]
    log = log + rng.standard_normal(log.shape) * np.array(noise)[:, None]
    return torch.from_numpy(log).unbind(1)
