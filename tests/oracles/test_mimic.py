"""Mimic joints of real robot files, exactly: Pinocchio's mimic models, and its plain ones through X."""

import functools

import pytest
import torch

import torchsko as ts

pytest.importorskip("pinocchio")

import pinocchio as pin

from tests.oracles.pinocchio_bridge import (
    NO_FORWARD_DYNAMICS,
    Robot,
    mass_matrix,
    robot_files,
    worst_error,
)

pytestmark = pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")

# It names joints of the left and of the right hand without their prefix.
UNKNOWN_JOINTS = "alex_description/urdf/alex_psyonic_hands.urdf"
# A finger follows one that Pinocchio, which sorts joints by name, has not read yet: it refuses the file.
LATER_JOINTS = {
    "romeo_description/urdf/romeo.urdf",
    "talos_data/robots/talos_full_v2.urdf",
    "talos_data/robots/talos_full_v2_box.urdf",
}


@functools.cache
def files():
    """Files in which a joint that moves mimics another."""
    found = {n: f for n, f in robot_files().items() if b"<mimic" in f.read_bytes()}
    return {n: f for n, f in found.items() if n == UNKNOWN_JOINTS or ts.load(f).num_dependent}


CASES = [(name, floating) for name in sorted(files()) for floating in (False, True)]
CASES = [case for case in CASES if case[0] != UNKNOWN_JOINTS]


def test_eight_robots_have_joints_that_follow_others():
    assert len(CASES) >= 16 and {name for name, _ in CASES} >= LATER_JOINTS
    for name in LATER_JOINTS:
        with pytest.raises(ValueError, match="not in the kinematic tree"):
            pin.buildModelFromUrdf(str(files()[name]), mimic=True)


def test_a_mimic_tag_that_names_no_joint_is_reported_and_its_joint_moves_by_itself():
    file = files()[UNKNOWN_JOINTS]
    with pytest.raises(ts.RobotFileError, match=r"named 'index_q1'(.*\n)*.*independent"):
        ts.load(file, strict=True)
    with pytest.warns(
        ts.RobotFileWarning, match="'Left_index_q2' <mimic>: refers to the unknown joint"
    ):
        mech = ts.load(file)
    assert mech.num_dof == ts.load(file, mimic="independent").num_dof == 39
    assert len(mech.report) == 8 and mech.num_dependent == 0


@pytest.mark.some(9)
@pytest.mark.parametrize(("name", "floating"), CASES)
def test_dynamics_are_those_of_pinocchios_tree_through_x(name, floating):
    both = Robot.load(files()[name], floating)
    mech = ts.load(files()[name], floating_base=floating)
    mech = mech.replace(damping=both.mech.damping, friction=both.mech.friction)
    q, _ = mech.random_state(8, generator=torch.Generator().manual_seed(0))
    qd, qdd = torch.randn(2, 8, mech.num_dof, dtype=q.dtype)
    tree_q, X = (
        ts.expand(mech, q),
        ts.expand_velocity(mech, q[0], torch.eye(mech.num_dof, dtype=q.dtype)).mT,
    )
    M = both.map(mass_matrix, tree_q, axes=2)
    assert worst_error(ts.mass_matrix(mech, q), X.mT @ M @ X) < 1e-12
    tau = both.map(pin.rnea, tree_q, qd @ X.mT, qdd @ X.mT) @ X
    assert worst_error(ts.inverse_dynamics(mech, q, qd, qdd), tau) < 1e-12
    if name not in NO_FORWARD_DYNAMICS:
        bias = ts.bias_force(mech, q, qd)
        solved = torch.linalg.solve(X.mT @ M @ X, (tau - bias)[..., None])[..., 0]
        assert worst_error(ts.forward_dynamics(mech, q, qd, tau), solved) < 1e-8


@pytest.mark.parametrize(("name", "floating"), [c for c in CASES if c[0] not in LATER_JOINTS])
def test_dynamics_and_poses_are_those_of_pinocchios_mimic_model(name, floating):
    both = Robot.load(files()[name], floating, coupled=True)
    mech = both.mech
    assert (mech.num_dof, mech.num_tree_dof) == (both.model.nv, both.model.nvExtended)
    q, qd, qdd, _ = both.states(8)
    assert worst_error(ts.mass_matrix(mech, q), both.map(mass_matrix, q, axes=2)) < 1e-12
    tau = both.map(pin.rnea, q, qd, qdd)
    assert worst_error(ts.inverse_dynamics(mech, q, qd, qdd), tau) < 1e-12
    names = [n for n in mech.frame_names if both.model.existFrame(n)]
    numbers = [both.model.getFrameId(n, pin.FrameType.BODY) for n in names]
    data = both.model.createData()
    poses = ts.frame_pose(mech, q, names)
    for k, row in enumerate(both.q_to_pin(q)):
        pin.framesForwardKinematics(both.model, data, row)
        theirs = torch.stack([torch.from_numpy(data.oMf[i].translation.copy()) for i in numbers])
        assert worst_error(poses.position[k], theirs) < 1e-12
