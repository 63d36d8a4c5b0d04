"""MuJoCo's own identification, `mujoco.sysid`: windows of a log, simulated, fitted by least squares.

Its extra is installed by ``pip install "mujoco[sysid]"``. Pseudo-inertias of all links that move, viscous and
dry friction and an offset of each joint are fitted to positions and velocities; derivatives are differences.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import mujoco
import numpy as np

import torchsko as ts
from torchsko.learn.motion import Motion

STEP = 2e-3
WINDOW = 0.4


def missing() -> str | None:
    """What keeps it from running here."""
    try:
        from mujoco import sysid
    except ImportError as error:
        return f"{error}"
    return None if hasattr(sysid, "optimize") else 'pip install "mujoco[sysid]"'


def spec_of(mech: ts.Mechanism) -> mujoco.MjSpec:
    """The robot with a motor and sensors at each joint."""
    with tempfile.TemporaryDirectory() as folder:
        ts.save(mech, Path(folder) / "robot.xml")
        spec = mujoco.MjSpec.from_file(str(Path(folder) / "robot.xml"))
    spec.option.timestep = STEP
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_LIMIT
    for joint in spec.joints:
        motor = spec.add_actuator(
            name=f"{joint.name}_motor",
            target=joint.name,
            trntype=mujoco.mjtTrn.mjTRN_JOINT,
            gaintype=mujoco.mjtGain.mjGAIN_FIXED,
            biastype=mujoco.mjtBias.mjBIAS_AFFINE,
        )
        motor.gainprm[0] = 1.0
        kinds = {"pos": mujoco.mjtSensor.mjSENS_JOINTPOS, "vel": mujoco.mjtSensor.mjSENS_JOINTVEL}
        for what, kind in kinds.items():
            spec.add_sensor(
                name=f"{joint.name}_{what}",
                type=kind,
                objtype=mujoco.mjtObj.mjOBJ_JOINT,
                objname=joint.name,
            )
    return spec


def parameters(spec: mujoco.MjSpec):
    """All that is fitted, from the nominal robot without friction."""
    from mujoco import sysid

    found, model = sysid.ParameterDict(), spec.compile()
    for body in spec.bodies[1:]:
        if model.body(body.name).dofnum[0]:
            name = f"{body.name}_inertia"
            found[name] = sysid.body_inertia_param(
                spec,
                model,
                body.name,
                inertia_type=sysid.InertiaType.Pseudo,
                param_name=name,
                modifier=lambda spec, p, name=body.name: set_inertia(spec.body(name), p.value),
            )

    def of_joint(joint: str, what: str, first: float, least: float, most: float):
        def modify(spec, parameter):
            if what == "offset":
                spec.actuator(f"{joint}_motor").biasprm[0] = -parameter.value[0]
            elif what == "damping":
                spec.joint(joint).damping[0] = parameter.value[0]  # then square and cubic ones
            else:
                spec.joint(joint).frictionloss = parameter.value[0]

        return sysid.Parameter(f"{joint}_{what}", [first], [least], [most], modifier=modify)

    for joint in spec.joints:
        for what, *numbers in (
            ("damping", 0.1, 0.0, 5.0),
            ("frictionloss", 0.1, 0.0, 5.0),
            ("offset", 0.0, -3.0, 3.0),
        ):
            parameter = of_joint(joint.name, what, *numbers)
            found[parameter.name] = parameter
    return found


def set_inertia(body: mujoco.MjsBody, theta: np.ndarray) -> None:
    """A body's inertia of the ten numbers of Rucker and Wensing 2022; MuJoCo's own does not compile here."""
    alpha, d1, d2, d3, s12, s23, s13, *t = theta
    U = np.eye(4)
    U[:3, :3] = [[np.exp(d1), s12, s13], [0, np.exp(d2), s23], [0, 0, np.exp(d3)]]
    U[:3, 3] = t
    J = np.exp(2 * alpha) * U @ U.T
    body.mass, body.ipos = J[3, 3], J[:3, 3] / J[3, 3]
    S = J[:3, :3] - body.mass * np.outer(body.ipos, body.ipos)
    moments, axes = np.linalg.eigh(np.trace(S) * np.eye(3) - S)
    axes[:, 2] *= np.linalg.det(axes)
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, axes.flatten())
    body.inertia, body.iquat = moments, quaternion
    body.fullinertia = np.full((6, 1), np.nan)


def fitted(mech: ts.Mechanism, motion: Motion, iterations: int) -> mujoco.MjModel:
    """The model that explains a motion."""
    from mujoco import sysid

    zero = 0 * mech.damping
    spec = spec_of(mech.replace(damping=zero, friction=zero))
    model = spec.compile()
    t, q, qd, tau = (x.numpy() for x in (motion.t, motion.q, motion.qd, motion.tau))
    n = max(3, round(WINDOW / float(np.median(np.diff(t)))))
    pieces = [slice(a, a + n + 1) for a in range(0, len(t) - n, n)]
    both = np.stack([q, qd], -1).reshape(
        len(t), -1
    )  # sensors: position and velocity, joint by joint
    sequences = sysid.ModelSequences(
        "arm",
        spec,
        [f"window_{k}" for k in range(len(pieces))],
        [sysid.create_initial_state(model, q[p.start], qd[p.start]) for p in pieces],
        [sysid.TimeSeries(t[p] - t[p.start], tau[p]) for p in pieces],
        [sysid.TimeSeries.from_names(t[p] - t[p.start], both[p], model) for p in pieces],
    )
    residual = sysid.build_residual_fn(models_sequences=[sequences])
    found, _ = sysid.optimize(
        parameters(spec), residual, optimizer="mujoco", verbose=False, max_iters=iterations
    )
    return sysid.apply_param_modifiers_spec(found, spec).compile()


def forces(model: mujoco.MjModel, motion: Motion) -> np.ndarray:
    """Joint forces of motors that cause a motion."""
    data, found = mujoco.MjData(model), []
    for state in zip(*(x.numpy() for x in (motion.q, motion.qd, motion.qdd)), strict=True):
        data.qpos, data.qvel, data.qacc = state
        mujoco.mj_inverse(model, data)
        found.append(data.qfrc_inverse - model.actuator_biasprm[:, 0])
    return np.array(found)
