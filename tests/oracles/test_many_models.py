"""Every MJCF model of the packages that are installed: dynamics, actuators and tendons against MuJoCo's.

What a model uses that is not covered is in a report, compared here with MuJoCo's own fields, and then taken
out of MuJoCo's model: all the rest agrees.
"""

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.oracles.test_mjcf import WITHOUT, error, names_of_joints

mujoco = pytest.importorskip("mujoco")

PACKAGES = (
    "gymnasium",
    "dm_control",
    "brax",
    "robosuite",
    "gymnasium_robotics",
    "mujoco_playground",
)
"""Packages with models, as far as they are installed; none needs to be imported, nor what it depends on.

``pip install --no-deps --target FOLDER dm_control brax robosuite gymnasium-robotics`` and PYTHONPATH=FOLDER
are enough. The wheel of mink has no models.
"""

CLOSE = 1e-9


def files() -> list[Path]:
    """Every XML file of these packages whose outermost element is <mujoco>."""
    found = []
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            paths = sorted(Path(spec.origin).parent.rglob("*.xml"))
            found += [p for p in paths if "<mujoco" in p.read_text(errors="replace")]
    return found


def compiled(path: Path):
    """The model in a file; None for a part of one, and for what stands still."""
    try:
        model = mujoco.MjModel.from_xml_path(str(path))
    except ValueError:
        return None
    return model if model.nv else None


def some(x) -> bool:
    return bool(np.any(np.asarray(x)))


def check_report(
    model, mech: ts.Mechanism, drive: ts.actuators.Actuators, tendons: ts.actuators.Tendons
) -> None:
    """What is said not to be covered is what MuJoCo's fields hold of it."""
    told = [str(line) for line in (*mech.unused, *drive.unused, *tendons.unused)]

    def count(phrase: str) -> int:
        return sum(int(x.split()[0]) for x in told if phrase in x and x.split()[0].isdigit())

    floating = np.array(model.jnt_type) == 0
    linear = ((model.eq_type == 2) | (model.eq_type == 3)) & (model.eq_active0 != 0)
    expected = {
        " geoms:": model.ngeom,
        " actuators:": len(model.actuator_trntype),
        " tendons:": model.ntendon,
        " sensors (": model.nsensor - len(mech.file_metadata.sensors),
        " flexible bodies (": model.nflex,
        " mocap bodies:": model.nmocap,
        " contact pairs and excludes:": model.npair + model.nexclude,
        " free joints with nonlinear damping (": sum(
            some(model.dof_dampingpoly[model.jnt_dofadr[j]]) for j in np.flatnonzero(floating)
        ),
    }
    assert {phrase: count(phrase) for phrase in expected} == {
        k: int(v) for k, v in expected.items()
    }
    assert len(mech.keyframes) == model.nkey
    loops = [c for c in mech.closures if c.kind in ("connect", "weld")]
    assert len(loops) == int(np.isin(model.eq_type, (0, 1)).sum())
    broken = sum(line.startswith("equality ") for line in told) + len(mech.closures)
    assert mech.num_dependent == model.neq - broken and mech.num_dependent <= int(linear.sum())
    through_space = [t for t in range(model.ntendon) if model.wrap_type[model.tendon_adr[t]] != 1]
    assert len(tendons.names) == model.ntendon - len(through_space)
    assert len(drive.names) + sum(x.startswith("actuator '") for x in told) == len(
        model.actuator_trntype
    )


def take_out(model, drive: ts.actuators.Actuators, tendons: ts.actuators.Tendons) -> None:
    """Leave in MuJoCo's model what is covered."""
    model.opt.disableflags |= int(WITHOUT) & ~int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)
    model.jnt_actgravcomp[:] = False  # gravcomp is passive here
    on_tendons = np.array(model.actuator_trntype) == int(mujoco.mjtTrn.mjTRN_TENDON)
    model.tendon_armature[:], model.actuator_armature[on_tendons] = 0.0, 0.0
    loose = np.array(model.jnt_type)[model.dof_jntid] == 0
    model.dof_dampingpoly[loose] = 0.0
    for t in range(model.ntendon):
        if (model.tendon(t).name or f"tendon{t}") not in tendons.names:
            drives = on_tendons & (model.actuator_trnid[:, 0] == t)
            for field in ("stiffness", "damping", "stiffnesspoly", "dampingpoly"):
                getattr(model, f"tendon_{field}")[t] = 0.0
            model.actuator_damping[drives], model.actuator_dampingpoly[drives] = 0.0, 0.0
    for i in range(len(model.actuator_trntype)):
        if (model.actuator(i).name or f"actuator{i}") not in drive.names:
            model.actuator_gear[i] = 0.0
            model.actuator_gaintype[i], model.actuator_biastype[i] = 0, 0
            model.actuator_gainprm[i], model.actuator_biasprm[i] = 0.0, 0.0
    mujoco.mj_setConst(model, mujoco.MjData(model))  # masses of bodies by themselves stand in it


def differences(model, seed: int = 0) -> dict[str, float]:
    """Largest relative difference of each quantity, over three states."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ts.RobotFileWarning)
        mech = ts.from_mujoco(model)
    tree = mech.tree
    drive, tendons = ts.actuators.actuators_of(tree), ts.actuators.tendons_of(tree)
    check_report(model, mech, drive, tendons)
    take_out(model, drive, tendons)
    tree = tree.replace(friction=torch.zeros_like(tree.friction))  # a constraint of MuJoCo's
    nothing = torch.zeros_like(tree.damping)
    free = tree.replace(
        damping=nothing, stiffness=nothing, has_higher_damping=False, has_gravcomp=False,
        has_higher_stiffness=False, has_fluid=False,
    )  # fmt: skip
    g, data = torch.Generator().manual_seed(seed), mujoco.MjData(model)
    there = ts.conventions("mujoco", tree, names_of_joints(model))
    strings = [
        t for t in range(model.ntendon) if (model.tendon(t).name or f"tendon{t}") in tendons.names
    ]
    names = [model.actuator(i).name or f"actuator{i}" for i in range(len(model.actuator_trntype))]
    places = [names.index(name) for name in drive.names]
    lively = [int(model.actuator_actadr[names.index(n)]) for n in drive.activation_names]
    worst: dict[str, float] = {}
    for _ in range(3):
        q, _ = tree.random_state(generator=g)
        rates = torch.randn(2, tree.num_dof, generator=g, dtype=q.dtype)
        act = torch.randn(len(lively), generator=g, dtype=q.dtype)
        ctrl = torch.randn(len(places), generator=g, dtype=q.dtype)
        (qd, qdd), M = rates, np.zeros((model.nv, model.nv))
        data.qpos[:], data.qvel[:] = there.q_to(q).numpy(), there.qd_to(q, qd).numpy()
        data.ctrl[places] = ctrl.numpy()
        data.act[lively] = act.numpy()
        mujoco.mj_forward(model, data)
        mujoco.mj_fullM(model, data, M)
        pull = tendons.force(tree, q, qd)
        drives, _ = ts.actuators.actuate(tree, drive, q, qd, act, ctrl=ctrl, dt=model.opt.timestep)
        passive = ts.passive_force(tree.replace(has_armature=False), q, qd)
        bias = ts.bias_force(free, q, qd)
        theirs = {name: torch.tensor(getattr(data, name)) for name in (
            "qfrc_passive", "qfrc_bias", "qfrc_actuator", "qacc_smooth")}  # fmt: skip
        pairs = {
            "mass matrix": (ts.mass_matrix(tree, q), there.mass_matrix_from(q, torch.tensor(M))),
            "passive": (pull - passive, there.tau_from(q, theirs["qfrc_passive"])),
            "bias": (bias, bias_of(tree, there, q, qd, theirs["qfrc_bias"], M)),
            "actuators": (drives, there.tau_from(q, theirs["qfrc_actuator"])),
            "acceleration": (
                ts.forward_dynamics(tree, q, qd, drives + pull),
                there.qdd_from(q, qd, theirs["qacc_smooth"]),
            ),
            "tendon lengths": (tendons.length(tree, q), torch.tensor(data.ten_length[strings])),
        }
        data.qacc[:] = there.qdd_to(q, qd, qdd).numpy()
        mujoco.mj_inverse(model, data)
        inverse = ts.inverse_dynamics(tree, q, qd, qdd) - pull
        pairs["inverse"] = inverse, there.tau_from(q, torch.tensor(data.qfrc_inverse))
        for name, (mine, other) in pairs.items():
            if mine.numel():
                worst[name] = max(worst.get(name, 0.0), error(mine, other))
    return worst


def bias_of(tree, there, q, qd, theirs, M):
    """Their bias force as ours: free joints accelerate in other axes, so what is no acceleration differs."""
    drift = there.qdd_to(q, qd, torch.zeros_like(qd))
    return there.tau_from(q, theirs + torch.tensor(M) @ drift)


@pytest.mark.nightly
def test_at_least_40_models_of_other_packages_equal_mujoco():
    """With figures: run with -s to see them."""
    count, bad = 0, {}
    for path in files():
        model = compiled(path)
        if model is None:
            continue
        label = f"{path.parent.parent.name}/{path.parent.name}/{path.name}"
        worst = differences(model)
        figures = ", ".join(f"{name} {x:.0e}" for name, x in worst.items())
        print(f"{label}: {model.nv} dofs, {figures}", flush=True)
        count += 1
        if not max(worst.values()) < CLOSE:
            bad[label] = worst
    if count < 40:
        pytest.skip(f"{count} models are installed; pip install --no-deps dm_control brings more")
    assert not bad, bad
    print(f"{count} models")
