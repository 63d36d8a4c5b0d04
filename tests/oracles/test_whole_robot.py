"""Agreement with Pinocchio on frames in three references, the whole robot, and all derivatives.

The table of every robot: `python -m tests.oracles.whole_robot`, or with `-m nightly -s` here.
"""

import mpmath
import pytest
import torch

import torchsko as ts

pytest.importorskip("pinocchio")

from tests.oracles.pinocchio_bridge import Robot, robot_files, state_errors
from tests.oracles.whole_robot import BOUND, GROUPS, ILL_CONDITIONED, errors, group_of, table

CASES = [
    ("panda_description/urdf/panda.urdf", False),
    ("talos_data/robots/talos_reduced.urdf", True),
]
STATES = 8


@pytest.mark.parametrize(("name", "floating"), CASES)
def test_frames_momenta_and_energies_equal_those_of_pinocchio(name, floating):
    found = errors(name, floating, STATES)
    print(f"\n{name}, floating={floating}, {STATES} states:")
    for quantity, worst in found.items():
        print(f"  {quantity:32s} {worst:.1e}")
    assert {group_of(quantity) for quantity in found} == {*GROUPS}
    assert {quantity: worst for quantity, worst in found.items() if not worst <= BOUND} == {}


@pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")
def test_where_pinocchio_keeps_nine_digits_of_an_inverse_ours_is_that_of_sixty():
    both = Robot.load(robot_files()[ILL_CONDITIONED], True)
    q = both.states(64)[0][:4]
    found, M = ts.innovations(ts.assemble(both.mech, q)).inverse(), ts.mass_matrix(both.mech, q)
    with mpmath.workdps(60):
        exact = [[[float(x) for x in row] for row in inverse(m)] for m in M.tolist()]
    assert state_errors(found, torch.tensor(exact, dtype=M.dtype)).max() < 1e-12


def inverse(rows: list[list[float]]) -> list:
    return (mpmath.matrix(rows) ** -1).tolist()


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
