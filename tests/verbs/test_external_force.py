"""External forces on frames: their work, their derivatives, and Pinocchio's."""

import numpy as np
import pinocchio as pin
import pytest
import torch
from hypothesis import given
from torch.func import jacrev

import torchsko as ts
from tests.states import normal_state
from tests.strategies import agree, any_mechanisms, seeds

each_reference = pytest.mark.parametrize("reference", ["world", "mixed", "body"])


def moving(mech: ts.Mechanism) -> str:
    return next(n for n, k in zip(mech.frame_names, mech.frame_body, strict=True) if k >= 0)


@each_reference
@given(any_mechanisms(4, 4), seeds)
def test_the_joint_forces_do_the_work_of_the_force(reference, mech, seed):
    q, qd, _ = normal_state(mech, seed=seed)
    f = torch.randn(6, generator=torch.Generator().manual_seed(seed), dtype=q.dtype)
    frame = ts.Frame(moving(mech), position=f[:3])
    f_ext = ts.external_force(mech, q, frame, f, reference=reference)
    tau = ts.bias_force(mech, q, qd) - ts.bias_force(mech, q, qd, f_ext)
    J = ts.frame_jacobian(mech, q, frame, reference=reference)
    agree(tau[..., None, :], (J.mT @ f)[..., None, :], 1e-9)


@each_reference
@given(any_mechanisms(4, 4), seeds)
def test_derivatives_of_a_constant_force_add_its_turning(reference, mech, seed):
    q, qd, qdd = normal_state(mech, seed=seed)
    f = torch.randn(6, generator=torch.Generator().manual_seed(seed), dtype=q.dtype)
    frame, options = ts.Frame(moving(mech), position=f[:3]), {"reference": reference}

    def torque(step: torch.Tensor) -> torch.Tensor:
        at = ts.integrate(mech, q, step)
        f_ext = ts.external_force(mech, at, frame, f, **options)
        return ts.bias_force(mech, at, qd, f_ext) + 0 * qdd

    f_ext = ts.external_force(mech, q, frame, f, **options)
    found = ts.inverse_dynamics_derivatives(mech, q, qd, 0 * qdd, f_ext)[0]
    found = found - ts.external_force_derivative(mech, q, frame, f, **options)
    agree(found, jacrev(torque)(torch.zeros_like(qd)), 1e-8)


def test_it_is_pinocchios_force_on_a_joint():
    """Pinocchio takes forces in the axes of joints: one in LOCAL_WORLD_ALIGNED is turned by hand."""
    mech = ts.load(ts.robots.panda)
    mech = mech.replace(damping=0 * mech.damping, friction=0 * mech.friction)
    model = pin.buildModelFromUrdf(str(ts.robots.panda))
    data, k = model.createData(), model.getFrameId("link5")
    q, qd, qdd = (
        x[0] for x in torch.randn(3, 1, 7, generator=torch.Generator().manual_seed(0)).double()
    )
    f = torch.tensor([0.1, -0.4, 0.3, 2.0, -1.0, 3.0], dtype=torch.float64)
    pin.framesForwardKinematics(model, data, q.numpy())
    place = data.oMf[k].copy()
    turned = pin.SE3(place.rotation, np.zeros(3)).actInv(pin.Force(f[3:].numpy(), f[:3].numpy()))
    forces = [pin.Force.Zero() for _ in model.joints]
    frame = model.frames[k]
    forces[frame.parentJoint] = frame.placement.act(turned)
    f_ext = ts.external_force(mech, q, "link5", f, reference="mixed")
    agree(
        ts.inverse_dynamics(mech, q, qd, qdd, f_ext)[None],
        torch.tensor(pin.rnea(model, data, q.numpy(), qd.numpy(), qdd.numpy(), forces))[None],
        1e-11,
    )


def test_a_frame_that_does_not_move_is_named():
    arm = ts.load(ts.robots.panda)
    still = next(n for n, k in zip(arm.frame_names, arm.frame_body, strict=True) if k < 0)
    with pytest.raises(ts.MechanismError, match=f"the frame '{still}' does not move"):
        ts.external_force(arm, arm.middle(), still, torch.zeros(6).double())
