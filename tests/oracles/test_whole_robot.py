"""Agreement with Pinocchio on frames in three references, the whole robot, and all derivatives.

The table of every robot: `python -m tests.oracles.whole_robot`, or with `-m nightly -s` here.
"""

import pytest

pytest.importorskip("pinocchio")

from tests.oracles.pinocchio_bridge import robot_files
from tests.oracles.whole_robot import BOUND, GROUPS, errors, group_of, table

CASES = [
    ("panda_description/urdf/panda.urdf", False),
    ("talos_data/robots/talos_reduced.urdf", True),
]
STATES = 8


@pytest.mark.parametrize(("name", "floating"), CASES)
def test_frames_and_the_whole_robot_are_pinocchios(name, floating):
    found = errors(name, floating, STATES)
    print(f"\n{name}, floating={floating}, {STATES} states:")
    for quantity, worst in found.items():
        print(f"  {quantity:32s} {worst:.1e}")
    assert {group_of(quantity) for quantity in found} == {*GROUPS}
    assert {quantity: worst for quantity, worst in found.items() if not worst <= BOUND} == {}


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")
def test_every_robot_agrees_at_64_states_and_the_table_says_how_well():
    worse = {
        (name, quantity): x
        for name, found in table(64, list(robot_files()))
        for quantity, x in found.items()
        if not x <= BOUND
    }
    assert worse == {}
