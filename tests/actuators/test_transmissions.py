"""Transmissions of URDF files: motors and gears, as data and as actuators."""

import re

import pytest
import torch

import torchsko as ts
from tests.io.urdf_texts import joint, robot

ROTOR = "<rotor_inertia>2e-5</rotor_inertia>"
DIALECTS = {
    "ros": """<transmission name="t"><type>transmission_interface/SimpleTransmission</type>
      <joint name="j"><hardwareInterface>EffortJointInterface</hardwareInterface></joint>
      <actuator name="m"><mechanicalReduction> 50 </mechanicalReduction>
      <rotorInertia>2e-5</rotorInertia></actuator></transmission>""",
    "pr2": f"""<transmission name="t" type="pr2_mechanism_model/SimpleTransmission"><actuator name="m"/>
      <joint name="j"/><mechanicalReduction>50</mechanicalReduction>{ROTOR}</transmission>""",
    "ros2_control": f"""<transmission name="t"><plugin>x</plugin><actuator name="m" role="a"/>
      <joint name="j" role="j"><mechanical_reduction>50.0</mechanical_reduction>{ROTOR}</joint>
      </transmission>""",
    "drake": """<transmission name="t"><joint name="j"/><actuator name="m"><drake:gear_ratio value="50"/>
      <drake:rotor_inertia value="2e-5"/></actuator></transmission>""",
}
HINGED = joint('<axis xyz="0 1 0"/>', kind="continuous")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_gear_and_its_rotor_are_read_in_every_dialect(dialect, tmp_path):
    (tmp_path / "robot.urdf").write_text(robot(HINGED, more=DIALECTS[dialect]))
    for source in (robot(HINGED, more=DIALECTS[dialect]), tmp_path / "robot.urdf"):
        (found,) = ts.actuators.transmissions_of(source)
        assert found == ts.actuators.Transmission("t", "j", "m", 50.0, 2e-5)
        assert found.armature == pytest.approx(0.05, rel=1e-15)


def test_a_motor_on_a_gear_accelerates_rotor_and_link_by_newtons_law():
    """(I + n^2 J) qdd = n u, about an axis through the center of mass."""
    text = robot(HINGED, more=DIALECTS["ros"])
    (gear,) = ts.actuators.transmissions_of(text)
    mech = ts.load(text, gravity=(0, 0, 0))
    assert float(mech.armature) == pytest.approx(gear.armature)
    drive = ts.actuators.Actuators.of(mech, [gear.motor])
    assert drive.names == ("m",)
    q = torch.zeros(1, dtype=torch.float64)
    tau, _ = ts.actuators.actuate(mech, drive, q, q, ctrl=q + 0.3)
    inertia = float(mech.inertia[0, 1, 1])
    qdd = ts.forward_dynamics(mech, q, q, tau)
    assert float(qdd) == pytest.approx(50 * 0.3 / (inertia + 50**2 * 2e-5), rel=1e-14)


def test_transmissions_of_several_joints_or_none_are_reported():
    two = '<transmission name="d"><joint name="j"/><joint name="k"/><actuator name="m"/></transmission>'
    none = '<transmission name="n"><joint name="no"/></transmission>'
    text = robot(HINGED, more=two + none)
    with pytest.warns(
        ts.RobotFileWarning, match="transmission 'd': it has 2 joints and 1 actuators"
    ):
        (found,) = ts.actuators.transmissions_of(text)
    with pytest.raises(ts.MechanismError, match="no moving joint is named 'no'"):
        ts.actuators.Actuators.of(ts.load(text), [found.motor])


def test_texts_that_are_not_numbers_are_refused_by_name():
    refused = {
        DIALECTS["ros"].replace(" 50 ", "nan"): "transmission 't' <mechanicalReduction>",
        DIALECTS["ros"].replace(" 50 ", "0"): "has the reduction 0.0",
        DIALECTS["drake"].replace("2e-5", "-2e-5"): "rotor inertia -2e-05",
        DIALECTS["ros"].replace("</actuator>", "</actuator><mechanicalReduction>7</mechanicalReduction>"):
            "has 2 numbers in <mechanicalReduction>: 7, 50",
        DIALECTS["ros"].replace('name="j"', ""): "attribute 'name' of <joint>",
    }  # fmt: skip
    for text, said in refused.items():
        with pytest.raises(ts.RobotFileError, match=re.escape(said)):
            ts.actuators.transmissions_of(robot(HINGED, more=text))
        with pytest.raises(ts.RobotFileError, match=re.escape(said)):
            ts.load(robot(HINGED, more=text), strict=True)
        mech = ts.load(robot(HINGED, more=text))
        assert not mech.armature.any() and "Rotor inertias are not used" in str(mech.report[0])
