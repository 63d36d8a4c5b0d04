"""What a model switches off by ``<flag>`` does not act: the forces and rows that MuJoCo counts."""

import numpy as np
import pytest
import torch

import torchsko as ts

mujoco = pytest.importorskip("mujoco")

INERTIAL = '<inertial pos="0.1 0.2 0" mass="1.5" diaginertia="0.1 0.2 0.15"/>'
MODEL = f"""<mujoco><option gravity="1 -2 -9"><flag {{}}/></option><worldbody>
  <body name="a" gravcomp="0.4"><joint name="j" axis="0 1 0" damping="1 0.3 0.2" stiffness="2"
      springref="20" frictionloss="0.5" limited="true" range="-10 10"/>{INERTIAL}
    <body name="b" pos="1 0 0" gravcomp="1"><joint name="k" damping="0.3" frictionloss="0.2"/>{INERTIAL}
      <body name="c" pos="0 1 0"><joint name="l" type="ball" stiffness="3" damping="0.2"/>{INERTIAL}
      </body></body></body></worldbody>
  <tendon><fixed name="t" stiffness="4" damping="0.6"><joint joint="j" coef="2"/><joint joint="k" coef="-1"/>
  </fixed></tendon>
  <equality><joint joint1="k" joint2="j" polycoef="0.1 0.5 0 0 0"/><weld body1="c"/></equality>
  <actuator><motor joint="j" ctrlrange="-1 1" ctrllimited="true" gear="5"/><position joint="k" kp="7"/>
  </actuator></mujoco>"""
FLAGS = ["", "spring", "damper", "frictionloss", "limit", "equality", "constraint", "actuation",
         "clampctrl", "gravity", "spring damper", "warmstart sensor"]  # fmt: skip


def flagged(flags: str) -> str:
    return MODEL.format(" ".join(f'{flag}="disable"' for flag in flags.split()))


@pytest.mark.parametrize("flags", FLAGS)
def test_what_a_flag_switches_off_does_not_act(flags):
    text = flagged(flags)
    model = mujoco.MjModel.from_xml_string(text)
    mech, data, g = ts.load(text), mujoco.MjData(model), torch.Generator().manual_seed(0)
    tree = mech.tree
    there = ts.conventions("mujoco", tree, ["j", "k", "l"])
    q, qd = tree.random_state(generator=g)
    ctrl = torch.tensor([3.0, -0.5], dtype=q.dtype)
    data.qpos[:], data.qvel[:] = there.q_to(q).numpy(), there.qd_to(q, qd).numpy()
    data.ctrl[:] = ctrl.numpy()
    mujoco.mj_forward(model, data)

    damping, _, springs, lifted, *_ = ts.passive_force_parts(tree, q, qd)
    pulled = ts.actuators.tendons_of(tree).force(tree, q, qd)
    mine = pulled - damping - springs - lifted
    assert np.abs(mine.numpy() - data.qfrc_passive).max() < 1e-12
    tau, _ = ts.actuators.actuate(tree, ts.actuators.actuators_of(tree), q, qd, ctrl=ctrl)
    assert np.abs(tau.numpy() - data.qfrc_actuator).max() < 1e-12
    welds = sum(closure.active for closure in mech.file_metadata.closures)
    assert len(mech.dependent_joint_names) + 6 * welds == data.ne
    assert int((mech.friction != 0).sum()) == data.nf
    data.qpos[:2] = 3.0  # beyond every limit
    mujoco.mj_forward(model, data)
    assert int((tree.upper < 3.0).sum()) == data.nl
    told = [str(line) for line in mech.unused if "flags" in str(line)]
    assert told == [line for line in told if "sensor, warmstart" in line]
    assert bool(told) == ("warmstart" in flags)


@pytest.mark.parametrize("flags", ["spring", "damper", "constraint", "spring damper"])
def test_a_robot_saved_like_its_file_keeps_the_flags(flags, tmp_path):
    text = flagged(flags)
    mech = ts.load(text)
    ts.save(mech, tmp_path / "same.xml", like=text)
    assert (tmp_path / "same.xml").read_text() == text
    ts.save(mech.replace(mass=2 * mech.mass), tmp_path / "new.xml", like=text)
    again = ts.load(tmp_path / "new.xml")
    q, qd = mech.random_state()
    doubled = mech.replace(mass=2 * mech.mass)
    assert torch.equal(
        ts.inverse_dynamics(again, q, qd, qd), ts.inverse_dynamics(doubled, q, qd, qd)
    )
    if "spring" in flags:
        with pytest.raises(ts.MechanismError, match="stiffness"):
            ts.save(mech.replace(stiffness=mech.stiffness + 1), tmp_path / "x.xml", like=text)
        assert not (tmp_path / "x.xml").exists()


def test_forces_that_differ_from_mujoco_are_reported():
    text = f"""<mujoco><worldbody><body><freejoint name="f"/>{INERTIAL}
      <body><joint name="j" actuatorfrcrange="-1 3" actuatorfrclimited="true"/>{INERTIAL}</body></body>
      <body><joint type="free" frictionloss="0.3"/>{INERTIAL}</body></worldbody>
      <tendon><fixed armature="0.2"><joint joint="j" coef="1"/></fixed></tendon>
      <actuator><motor joint="j"/></actuator></mujoco>"""
    told = "\n".join(map(str, ts.load(text).unused))
    for words in ("1 asymmetric ranges of actuator forces", "1 free joints with dry friction",
                  "1 tendons with armature: armature of tendons acts in ts.step"):  # fmt: skip
        assert words in told
    assert ts.load(text.replace('type="free" frictionloss="0.3"', ""), strict=True).num_dof == 8
    assert "asymmetric" not in "\n".join(map(str, ts.load(text.replace("-1 3", "-3 3")).unused))


@pytest.mark.skipif(
    not hasattr(mujoco.MjsJoint, "springyield"), reason="this MuJoCo's springs never yield"
)
def test_yielding_springs_are_reported():
    """MuJoCo moves their reference in a step; ours stays, and so does theirs where springs are off."""
    text = f"""<mujoco><option><flag spring="able"/></option><worldbody><body>
      <joint stiffness="5" springyield="0.2"/><joint axis="0 1 0" stiffness="5"/>{INERTIAL}</body>
      </worldbody></mujoco>"""
    for flag in ("enable", "disable"):
        told = [str(x) for x in ts.load(text.replace("able", flag, 1)).unused if "yield" in str(x)]
        assert told == ["1 joints with springyield: yielding of springs is not modeled"] * (
            flag == "enable"
        )


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ('<option noslip_iterations="5"/>', "noslip_iterations"),
        ('<option><flag override="enable"/></option>', "override"),
        ('<option><flag sleep="enable"/></option>', "sleep"),
    ],
)
def test_options_that_change_contact_are_reported_and_refused_if_strict(option, name):
    text = f"<mujoco>{option}<worldbody><body><joint/>{INERTIAL}</body></worldbody></mujoco>"
    assert [name in str(x) for x in ts.load(text).unused] == [True]
    with pytest.raises(ts.RobotFileError, match=name):
        ts.load(text, strict=True)
    assert not ts.load(text.replace(option, ""), strict=True).unused


def test_actuators_of_disabled_groups_exert_no_force():
    text = f"""<mujoco><option actuatorgroupdisable="2"/><worldbody><body><joint name="j"/>{INERTIAL}</body>
      </worldbody><actuator><motor joint="j" group="2"/><motor joint="j" gear="3"/></actuator></mujoco>"""
    model, mech = mujoco.MjModel.from_xml_string(text), ts.load(text)
    data, drives = mujoco.MjData(model), ts.actuators.actuators_of(mech)
    data.ctrl[:] = 1.0
    mujoco.mj_forward(model, data)
    q, qd = mech.random_state()
    tau, _ = ts.actuators.actuate(mech, drives, q, qd, ctrl=torch.ones(1, dtype=q.dtype))
    assert tau.tolist() == data.qfrc_actuator.tolist() == [3.0]
    assert [str(x) for x in drives.unused] == [
        "actuator 'actuator0': actuatorgroupdisable contains its group 2"
    ]
