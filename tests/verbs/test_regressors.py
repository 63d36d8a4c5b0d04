"""Joint forces are linear in ten numbers a body, and the regressor is that linear map."""

import pytest
import torch
from hypothesis import given
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import torchsko as ts
from tests.states import usual_state
from tests.strategies import BATCHES, mechanisms, random_mechanism
from torchsko.spatial.inertia import force_regressor, inertial_vector, spatial_inertia
from torchsko.spatial.motion import cross_force


def test_a_body_s_force_is_the_regressor_times_its_inertial_vector():
    g = torch.Generator().manual_seed(0)
    V, alpha = torch.randn(2, 50, 6, 1, generator=g, dtype=torch.float64)
    mass, com = torch.rand(50, generator=g).double(), torch.randn(50, 3, generator=g).double()
    inertia = torch.randn(50, 3, 3, generator=g).double()
    M = spatial_inertia(mass, com, inertia)
    force = force_regressor(V, alpha) @ inertial_vector(mass, com, inertia)[..., None]
    assert_close(force, M @ alpha + cross_force(V, M @ V))


@pytest.mark.parametrize("batch", BATCHES)
@given(mechanisms())
def test_joint_forces_are_the_regressor_times_the_parameters_and_what_joints_do(batch, mech):
    q, qd, qdd = usual_state(mech, *batch)
    Y = ts.torque_regressor(mech, q, qd, qdd)
    assert Y.shape == (*batch, mech.num_dof, mech.num_bodies, 10)
    inertial = (Y * ts.inertial_parameters(mech)).sum((-2, -1))
    at_joints = ts.passive_force(mech, q, qd) + mech.armature * qdd
    assert_close(inertial + at_joints, ts.inverse_dynamics(mech, q, qd, qdd))


def test_parameters_with_a_batch_of_their_own_meet_every_state():
    mech = random_mechanism(["revolute", "free", "prismatic"], [-1, 0, 0], seed=2)
    g = torch.Generator().manual_seed(1)
    shift = torch.randn(4, 1, mech.num_bodies, 3, generator=g, dtype=mech.dtype)
    many = mech.replace(
        com=mech.com + shift,
        mass=mech.mass * torch.rand(4, 1, 3, generator=g, dtype=mech.dtype),
        joint_position=mech.joint_position + shift,
    )
    q, qd, qdd = usual_state(mech, 5)
    phi = ts.inertial_parameters(many)
    assert phi.shape == (4, 1, 3, 10)
    inertial = (ts.torque_regressor(many, q, qd, qdd) * phi[..., None, :, :]).sum((-2, -1))
    tau = ts.inverse_dynamics(many, q, qd, qdd) - ts.passive_force(many, q, qd)
    assert tau.shape == (4, 5, mech.num_dof)
    assert_close(inertial, tau)


@given(mechanisms())
def test_the_regressor_does_not_depend_on_the_inertial_parameters(mech):
    q, qd, qdd = usual_state(mech, 2)
    other = mech.replace(mass=mech.mass + 1, com=mech.com + 0.5, inertia=2 * mech.inertia)
    Y = ts.torque_regressor(mech, q, qd, qdd)
    assert torch.equal(ts.torque_regressor(other, q, qd, qdd), Y)


@given(mechanisms())
def test_joint_forces_depend_on_the_bodies_beyond_the_joint_only(mech):
    Y = ts.torque_regressor(mech, *usual_state(mech, 3))
    tree = mech.layout.tree
    for joint in range(mech.num_bodies):
        rows = Y[:, mech.dof_slice(mech.joint_names[joint])]
        for body in range(mech.num_bodies):
            carried = joint == body or joint in tree.ancestors(body)
            assert bool((rows[..., body, :] != 0).any()) == carried


def test_panda_s_torques_depend_on_43_combinations_of_its_inertial_parameters():
    # The rank for this arm's kinematics: Gaz et al. 2019 count the same base parameters.
    arm = ts.load(ts.robots.panda)
    Y = ts.torque_regressor(arm, *usual_state(arm, 40)).flatten(-2).flatten(0, 1)
    assert torch.linalg.matrix_rank(Y, rtol=1e-9) == 43


class CountBytes(TorchDispatchMode):
    """Bytes of all tensors that operations make inside it."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.total += result.nbytes
        return result


def test_the_regressor_makes_few_tensors_besides_itself():
    arm = ts.load(ts.robots.panda)
    given = usual_state(arm, 1000)
    with CountBytes() as made:
        Y = ts.torque_regressor(arm, *given)
    assert made.total < 16 * Y.nbytes


@pytest.mark.parametrize("batch", BATCHES)
def test_the_fused_regressor_is_the_eager_one(batch):
    mech = random_mechanism(["free", "revolute", "spherical", "prismatic"], [-1, 0, 0, 1], seed=3)
    given = usual_state(mech, *batch)
    Y = ts.torque_regressor(mech, *given)
    assert_close(ts.fuse(mech).torque_regressor(*given), Y, rtol=1e-12, atol=1e-12)


def test_gradients_pass_through_the_fused_regressor_to_states_and_placements():
    mech = random_mechanism(["revolute", "prismatic"], [-1, 0], seed=3)
    leaves = [x.requires_grad_() for x in (*usual_state(mech, 3), mech.joint_position.clone())]
    fast = ts.fuse(mech.replace(joint_position=leaves[-1]), inputs=("joint_position",))
    slow = mech.replace(joint_position=leaves[-1])
    g = torch.Generator().manual_seed(0)
    by = torch.randn(3, mech.num_dof, mech.num_bodies, 10, generator=g, dtype=mech.dtype)
    gradients = [
        torch.autograd.grad((by * Y).sum(), leaves)
        for Y in (fast.torque_regressor(*leaves[:3]), ts.torque_regressor(slow, *leaves[:3]))
    ]
    assert_close(*gradients, rtol=1e-11, atol=1e-11)


def test_a_state_that_does_not_fit_is_refused():
    arm = ts.load(ts.robots.panda)
    q, qd, qdd = usual_state(arm, 3)
    with pytest.raises(ts.ShapeError, match="qdd has shape"):
        ts.torque_regressor(arm, q, qd, qdd[:, :6])
