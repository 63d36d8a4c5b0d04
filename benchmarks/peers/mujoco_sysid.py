"""MuJoCo's own identification, `mujoco.sysid`: windows of a log, simulated, fitted by least squares.

Its extra is installed by ``pip install "mujoco[sysid]"``. Pseudo-inertias of all links that move, viscous and
dry friction and an offset of each joint are fitted to positions and velocities; derivatives are differences.
"""

from __future__ import annotations

import io
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import mujoco
import numpy as np

import torchsko as ts
from torchsko.identification.signals.preprocess import FilteredMotion

STEP = 8e-3
"""Of Runge and Kutta's method, about [s]: so many as go into a sample."""

WINDOW = 0.1
"""Seconds. Over longer ones the wrist, light as it is, is carried away by small errors of torque."""


def missing() -> str | None:
    """Reason why it cannot run here."""
    try:
        from mujoco import sysid
    except ImportError as error:
        return f"{error}"
    return None if hasattr(sysid, "optimize") else 'pip install "mujoco[sysid]"'


def spec_of(mech: ts.Mechanism) -> mujoco.MjSpec:
    """The robot with a motor at each joint."""
    with tempfile.TemporaryDirectory() as folder:
        ts.save(mech, Path(folder) / "robot.xml")
        spec = mujoco.MjSpec.from_file(str(Path(folder) / "robot.xml"))
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_RK4
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
                stretch_bound_mult=np.array(
                    [0.1, 10.0]
                ),  # as the mass; half to twice is too narrow
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


@dataclass(frozen=True, eq=False)
class Ended:
    """A fit.

    Attributes:
        model: the robot.
        told: how many iterations it took, and which criterion of its own ended it.
    """

    model: mujoco.MjModel
    told: str


def fitted(mech: ts.Mechanism, motion: FilteredMotion, iterations: int) -> Ended:
    """The model that explains a motion, after so many iterations at most.

    Three of its defaults are not for logs of real robots, and are replaced by its own options for that:
    a simulated sensor shows the state before the step it is stamped with, so states are compared; torques
    are held for a step, so each step is given the one at its middle; and errors, which it divides by the
    signal window by window, are weighed sensor by sensor, by what the robot at first leaves over.
    """
    from absl import logging
    from mujoco import sysid

    logging.set_verbosity(logging.ERROR)  # it warns of each window that the model has no sensors
    zero = 0 * mech.damping
    spec = spec_of(mech.replace(damping=zero, friction=zero))
    t, q, qd, tau = (x.numpy() for x in (motion.t, motion.q, motion.qd, motion.tau))
    period = float(np.diff(t).mean())
    each = max(1, round(period / STEP))
    spec.option.timestep = period / each
    sequences = windows(spec, t, np.concatenate([q, qd], -1), tau, each)
    first, build = parameters(spec), remembering(spec)

    def compare(params, predicted, measured, model, everything, state, weight=1.0):
        at = measured.times[1:]
        shown = sysid.TimeSeries(at, state[each - 1 :: each, 1:], measured.signal_mapping)
        seen = sysid.TimeSeries(at, measured.data[1:], measured.signal_mapping)
        return weight * (seen.data - shown.data), shown, seen

    def residual_with(weight):
        return sysid.build_residual_fn(
            models_sequences=[sequences],
            build_model=build,
            modify_residual=partial(compare, weight=weight),
            resample_true=False,
        )

    left = np.concatenate(residual_with(1.0)(first.as_vector(), first)[0])
    spread = np.sqrt(np.square(left.reshape(-1, 2 * tau.shape[1])).mean(0))
    said = io.StringIO()
    found, _ = sysid.optimize(
        first, residual_with(1 / spread), verbose=False, max_iters=iterations, output=said
    )
    ending = next(line for line in said.getvalue().splitlines() if line.startswith("Terminated"))
    return Ended(build(found, spec), ending.split(" y:")[0])


def windows(spec: mujoco.MjSpec, t: np.ndarray, states: np.ndarray, tau: np.ndarray, each: int):
    """Pieces of a motion, so many steps of simulation between two samples."""
    from mujoco import sysid

    model, step, n = spec.compile(), spec.option.timestep, max(2, round(WINDOW / (t[1] - t[0])))
    middle = (np.arange((len(t) - 1) * each) + 0.5) / each
    held = np.stack([np.interp(middle, np.arange(len(t)), x) for x in tau.T], -1)
    mapping = {"states": (sysid.SignalType.CustomObs, np.arange(states.shape[1]))}
    starts, controls, measured = [], [], []
    for a in range(0, len(t) - n, n):
        starts.append(sysid.create_initial_state(model, *np.split(states[a], 2)))
        force = held[a * each : (a + n) * each]
        force = np.concatenate([force, force[-1:]])  # the last is not used
        controls.append(sysid.TimeSeries(step * np.arange(len(force)), force))
        rows = slice(a, a + n + 1)
        measured.append(sysid.TimeSeries(t[rows] - t[a], states[rows], mapping))
    names = [f"window_{k}" for k in range(len(starts))]
    return sysid.ModelSequences("arm", spec, names, starts, controls, measured, True)


def remembering(spec: mujoco.MjSpec):
    """Its builder of models, asked once for the same numbers and not for each window."""
    from mujoco import sysid

    known: dict[bytes, mujoco.MjModel] = {}

    def build(parameters, spec=spec):
        key = parameters.as_vector().tobytes()
        if key not in known:
            if len(known) > 2 * parameters.size:
                known.clear()
            known[key] = sysid.apply_param_modifiers(parameters, spec)
        return known[key]

    return build


def forces(model: mujoco.MjModel, motion: FilteredMotion) -> np.ndarray:
    """Joint forces of motors that cause a motion."""
    data, found = mujoco.MjData(model), []
    for state in zip(*(x.numpy() for x in (motion.q, motion.qd, motion.qdd)), strict=True):
        data.qpos, data.qvel, data.qacc = state
        mujoco.mj_inverse(model, data)
        found.append(data.qfrc_inverse - model.actuator_biasprm[:, 0])
    return np.array(found)
