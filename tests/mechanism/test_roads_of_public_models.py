"""Public models edited here and by MuJoCo's MjSpec: one step from reached states is the same."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.mechanism.road_models import OPTION

mujoco = pytest.importorskip("mujoco")
pytest.importorskip("gymnasium")

STATES = 10

ANGLE = 0.3

TOOL = f"""<mujoco model="tool"><compiler angle="radian"/><option {OPTION}/><worldbody>
<body name="palm">%s<geom name="palm" size=".03" mass=".1" contype="0" conaffinity="0"/>
<body name="finger" pos=".05 0 .02"><joint name="slide" type="slide" axis="0 1 0" damping="1" range="-.01 .02"
limited="true" margin=".005" solreflimit=".03 .9"/><geom name="finger" size=".02" mass=".05" friction=".6"/>
<site name="tip"/></body></body></worldbody><actuator><position name="grip" joint="slide" kp="40"/></actuator>
<keyframe><key name="open" qpos="%s .02"/></keyframe></mujoco>"""


class Edited(NamedTuple):
    """A model edited by MuJoCo, the mechanism edited here, and the joints in the model's order."""

    model: Any
    mech: ts.Mechanism
    joints: list[str]


def tight(model: Any) -> Any:
    model.opt.tolerance, model.opt.iterations = 0.0, 100
    model.opt.ls_tolerance, model.opt.ls_iterations = 1e-12, 50
    return model


def loaded_tool() -> ts.Mechanism:
    return ts.load(TOOL % ("<freejoint/>", "0 0 0 1 0 0 0"))


def append_tool(path: Path, mech: ts.Mechanism, names: list[str], body: int) -> Edited:
    """A gripper on a body."""
    spec = mujoco.MjSpec.from_file(str(path))
    spec.compile()
    place = next(b for b in spec.bodies if b.id == body)
    angle = np.array([np.cos(0.2), 0.0, 0.0, np.sin(0.2)])
    frame = place.add_frame(pos=[0.1, 0.02, 0.05], quat=angle)
    frame.attach_body(mujoco.MjSpec.from_string(TOOL % ("", "")).body("palm"), "tool_", "")
    model, rest = tight(spec.compile()), iter(names)
    joints = [
        "tool_slide" if model.joint(j).name == "tool_slide" else next(rest)
        for j in range(model.njnt)
    ]
    R = torch.zeros(9, dtype=mech.dtype)
    mujoco.mju_quat2Mat(R.numpy(), angle)
    name = model_body(path, body)
    both = mech.append(loaded_tool(), name, R.reshape(3, 3), [0.1, 0.02, 0.05], prefix="tool_")
    return Edited(model, both, joints)


def model_body(path: Path, b: int) -> str:
    return mujoco.MjModel.from_xml_path(str(path)).body(b).name or f"body{b}"


def lock_joint(path: Path, mech: ts.Mechanism, names: list[str], j: int, angle: float) -> Edited:
    """A hinge or slide locked at a displacement from its reference; its actuators and sensors go."""
    spec = mujoco.MjSpec.from_file(str(path))
    before = spec.compile()
    joint = next(x for x in spec.joints if x.id == j)
    body, b = joint.parent, int(before.jnt_bodyid[j])
    shift, turn = np.zeros(3), np.array([1.0, 0, 0, 0])
    axis, anchor = before.jnt_axis[j], before.jnt_pos[j]
    if before.jnt_type[j] == mujoco.mjtJoint.mjJNT_SLIDE:
        shift = angle * axis
    else:
        mujoco.mju_axisAngle2Quat(turn, axis, angle)
        moved = np.zeros(3)
        mujoco.mju_rotVecQuat(moved, anchor, turn)
        shift = anchor - moved
    pos, quat, placed = np.zeros(3), np.zeros(4), np.zeros(3)
    mujoco.mju_rotVecQuat(placed, shift, before.body_quat[b])
    pos = before.body_pos[b] + placed
    mujoco.mju_mulQuat(quat, before.body_quat[b], turn)
    name = joint.name
    for x in [*spec.actuators, *spec.sensors]:
        target = x.target if hasattr(x, "target") else x.objname
        if name and target == name:
            spec.delete(x)
    for key in list(spec.keys):
        spec.delete(key)
    spec.delete(joint)
    body.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
    body.pos, body.quat = pos, quat
    model = tight(spec.compile())
    value = float(before.qpos0[before.jnt_qposadr[j]]) + angle
    return Edited(model, mech.lock({names[j]: value}), [x for x in names if x != names[j]])


def heavier(path: Path, mech: ts.Mechanism, names: list[str]) -> Edited:
    """All masses and inertias one and a half times as large, and the inverse weights of these."""
    model = tight(mujoco.MjModel.from_xml_path(str(path)))
    model.body_mass[:] *= 1.5
    model.body_inertia[:] *= 1.5
    mujoco.mj_setConst(model, mujoco.MjData(model))
    changed = mech.replace(
        mass=1.5 * mech.mass,
        inertia=1.5 * mech.inertia,
        file_metadata=mech.file_metadata.without_weights(),
        geometry=mech.geometry.without_weights(),
    )
    return Edited(model, changed, names)


def lockable(model: Any) -> list[int]:
    """Hinges and slides that are the only joints of bodies, and that no tendon or equality names."""
    named = {int(x) for x in model.wrap_objid[model.wrap_type == mujoco.mjtWrap.mjWRAP_JOINT]}
    for e in range(model.neq):
        if model.eq_type[e] == mujoco.mjtEq.mjEQ_JOINT:
            named |= {int(model.eq_obj1id[e]), int(model.eq_obj2id[e])}
    kinds = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
    return [
        j
        for j in range(model.njnt)
        if int(model.jnt_type[j]) in kinds
        and model.body_jntnum[model.jnt_bodyid[j]] == 1
        and j not in named
    ]


def edits(path: Path, model: Any, mech: ts.Mechanism) -> dict[str, Any]:
    """The edits of a model, by name, as functions."""
    from torchsko.io.mujoco.mujoco_fields import all_joint_names

    names = all_joint_names(model)
    moving = [b for b in range(1, model.nbody) if model.body_weldid[b]]
    found: dict[str, Any] = {
        "append": lambda: append_tool(path, mech, names, moving[-1]),
        "append to the first": lambda: append_tool(path, mech, names, moving[0]),
        "heavier": lambda: heavier(path, mech, names),
    }
    joints = lockable(model) if model.njnt > 1 else []
    if joints:
        found |= {
            "lock": lambda: lock_joint(path, mech, names, joints[-1], 0.0),
            "lock at a value": lambda: lock_joint(
                path, mech, names, joints[len(joints) // 2], ANGLE
            ),
        }
    return found


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_steps_of_edited_public_models_equal_those_of_mujoco(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from contact_models import compare, compiled, files, read

    errors, rows = {}, []
    for name, path in files():
        model = compiled(path)
        scaled = "settotalmass" in path.read_text()  # of a tool as well
        if model is None or scaled or compare(name, model, 2).error is None:
            continue
        for edit, edited in edits(path, model, read(model)).items():
            row = compare(name, edited().model, STATES, *edited()[1:])
            rows.append(
                f"| {name} | {edit} | {row.contacts} | {row.rows} | {row.error} | {row.reason} |"
            )
            errors[name, edit] = row.error
    with capsys.disabled():
        print("\n| model | edit | contacts | rows | error | reason |", *rows, sep="\n")
    found = {key: error for key, error in errors.items() if error is not None}
    assert len(found) >= 30
    assert {key: error for key, error in found.items() if error > 1e-8} == {}
