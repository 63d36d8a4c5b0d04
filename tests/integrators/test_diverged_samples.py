"""Samples that leave the finite numbers neither stop other samples nor change their gradients."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.integrators.test_rollout_laws import ARM, MANY, MODES, states

STEPS, DT, BAD = 6, 0.05, 2
GOOD = torch.arange(4) != BAD


@pytest.fixture(scope="module")
def fast():
    return ts.fuse(ARM, inputs=("mass", "joint_position"))


def law(mech, t, q, qd, *, scale):
    """A spring that is unstable far from its origin."""
    return ts.gravity_force(mech, q) + scale * (q**5 - q) - qd


def diverging():
    q, qd = states()
    return torch.where(GOOD[:, None], q, 1e4), qd


def masked_loss(qs, qds):
    loss = (qs.square().sum(-1) + qds.square().sum(-1)).sum(-1)
    return torch.where(loss.isfinite(), loss, 0.0).sum()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cause", ["start", "nan", "parameter", "robot"])
def test_gradients_of_shared_numbers_are_those_of_finite_samples(fast, mode, cause):
    mass = ARM.mass.clone().requires_grad_()
    position = MANY.joint_position.clone()
    (q, qd), scale = diverging() if cause == "start" else states(), torch.ones(4, 1).double()
    if cause == "nan":
        q = torch.where(GOOD[:, None], q, torch.nan)
    if cause == "parameter":
        scale = torch.where(GOOD[:, None], scale, 1e200)
    if cause == "robot":
        position[BAD] = torch.nan
    robot = ARM if mode == "eager" else fast
    rest = {"steps": STEPS, "dt": DT, "fused": MODES[mode]}

    def end(keep, nonfinite):
        many = robot.replace(mass=mass, joint_position=position[keep])
        scales = scale[keep].requires_grad_()
        options = {"params": {"scale": scales}, "nonfinite": nonfinite}
        qs, qds, _, taus, *_ = ts.rollout(many, ts.State(q[keep], qd[keep]), law, **rest, **options)
        loss = masked_loss(qs, qds) + torch.where(taus.isfinite(), taus, 0.0).square().sum()
        return (qs, *torch.autograd.grad(loss, (mass, scales)))

    with pytest.warns(RuntimeWarning, match=r"(?s)of sample \[2\] \(1 such.*gradient.*is zero"):
        qs, of_mass, of_scale = end(slice(None), "zero")
    exact, mass_exact, scale_exact = end(GOOD, "raise")
    assert not qs[BAD].isfinite().all()
    assert_close((qs[GOOD], of_mass, of_scale[GOOD]), (exact, mass_exact, scale_exact))
    assert (of_scale[BAD] == 0).all()


def test_values_captured_by_a_law_may_make_a_sample_diverge():
    gain = torch.where(GOOD, 1.0, 1e200 * GOOD.new_ones(4).double())[:, None].requires_grad_()
    with pytest.warns(RuntimeWarning, match=r"sample \[2\]"):
        found = ts.rollout(
            ARM,
            ts.State(*states()),
            lambda t, q, qd: -gain * q,
            steps=STEPS,
            dt=DT,
            nonfinite="zero",
            fused=False,
        )[:2]
    (slope,) = torch.autograd.grad(masked_loss(*found), gain)
    assert slope[GOOD].all() and slope[BAD] == 0


def test_states_whose_square_overflows_have_no_gradient():
    q, qd = states()
    qd = torch.where(GOOD[:, None], qd, 1e160).requires_grad_()
    with pytest.warns(RuntimeWarning, match=r"sample \[2\]"):
        found = ts.rollout(
            ARM, ts.State(q, qd), None, steps=2, dt=1e-3, nonfinite="zero", fused=False
        )[:2]
    (slope,) = torch.autograd.grad(masked_loss(*found), qd)
    assert slope.isfinite().all() and (slope[BAD] == 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_zero_if_all_samples_diverge(fast, mode):
    q, qd = states()
    scale = torch.ones(4, 1).double().requires_grad_()
    robot = ARM if mode == "eager" else fast
    with pytest.warns(RuntimeWarning, match="4 such in the batch"):
        found = ts.rollout(
            robot, ts.State(q + 1e4, qd), law, steps=STEPS, dt=DT,
            params={"scale": scale}, nonfinite="zero", fused=MODES[mode],
        )[:2]  # fmt: skip
    (slope,) = torch.autograd.grad(masked_loss(*found), scale)
    assert (slope == 0).all()


def test_finite_rollouts_are_not_repeated_and_have_no_warning(recwarn):
    q, qd = (x.requires_grad_() for x in states())
    evaluations = []

    def counted(t, q, qd):
        evaluations.append(t)
        return -qd

    ts.rollout(ARM, ts.State(q, qd), counted, steps=STEPS, dt=DT, nonfinite="zero", fused=False)
    assert len(evaluations) == STEPS and not recwarn


def test_unknown_choices_and_traced_values_are_refused():
    with pytest.raises(ts.TorchskoError, match="nonfinite"):
        ts.rollout(ARM, ts.State(*states()), nonfinite="none")
    with pytest.raises(ts.TorchskoError, match=r"(?s)under vmap.*ignore"):
        torch.vmap(lambda q, qd: ts.rollout(ARM, ts.State(q, qd), steps=1, nonfinite="zero")[:2])(
            *states()
        )
