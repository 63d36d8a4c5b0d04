"""The law of physical inertias holds for rigid bodies, not for the links they are made of."""

import numpy as np
import pytest

import torchsko as ts
from torchsko.mechanism.description import JointDescription, LinkDescription
from torchsko.mechanism.inertia_checks import unphysical_links
from torchsko.mechanism.robot_description import RobotDescription

EVERY_ENTRY_ALIKE = ((1e-3, 1e-3, 1e-3),) * 3
HEAVY = LinkDescription("arm", 2.0, inertia=((1.0, 0, 0), (0, 1.0, 0), (0, 0, 1.0)))
DUMMY = LinkDescription("dummy", 0.1, (0.1, 0.2, 0.3), EVERY_ENTRY_ALIKE)
HINGE = JointDescription("hinge", "revolute", "base", "arm")


def with_dummy(kind) -> RobotDescription:
    links = (LinkDescription("base"), HEAVY, DUMMY)
    return RobotDescription("r", links, (HINGE, JointDescription("j", kind, "arm", "dummy")))


def test_a_welded_dummy_inertia_builds_and_adds_to_its_body():
    mech = ts.build_mechanism(with_dummy("fixed"))
    assert mech.mass.tolist() == [2.1]


def test_a_moving_dummy_inertia_is_refused_by_name():
    with pytest.raises(ts.MechanismError, match=r"'dummy'.*triangle"):
        ts.build_mechanism(with_dummy("revolute"))


def test_a_weld_to_the_inertial_frame_excuses_nothing():
    weld = JointDescription("w", "fixed", "somewhere", "dummy")
    (bad,) = unphysical_links([DUMMY], [weld])
    assert bad.members == ("dummy",) and not bad.excused
    np.testing.assert_allclose(bad.moments, (3e-3, 0, 0), atol=1e-15)
