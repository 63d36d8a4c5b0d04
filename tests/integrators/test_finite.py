"""Non-finite rollouts report step, sample and joint."""

import warnings

import pytest
import torch

import torchsko as ts

NAN = float("nan")


def arm(effort=float("inf")):
    inertia = ((0.02, 0, 0), (0, 0.03, 0), (0, 0, 0.04))
    builder = ts.MechanismBuilder("two")
    builder.link("upper", mass=1.0, com=(0.1, 0, -0.3), inertia=inertia)
    builder.link("lower", mass=0.5, com=(0.1, 0, -0.2), inertia=inertia)
    builder.joint("shoulder", "revolute", child="upper", axis=(0, 1, 0), effort=effort)
    builder.joint("slide", "prismatic", child="lower", parent="upper", axis=(1, 0, 0))
    return builder.build()


def state(*batch):
    g = torch.Generator().manual_seed(0)
    return arm().random_state(*batch, generator=g)


def explosive(at):
    """Forces that are non-finite from a time on, in the third sample."""

    def control(t, q, qd):
        late = torch.tensor(t > at).expand(q.shape[0]) & (torch.arange(q.shape[0]) == 2)
        return torch.where(late[:, None], torch.tensor([0.0, NAN], dtype=q.dtype), 0.0)

    return control


def test_an_error_names_step_time_sample_and_joint():
    q, qd = state(4)
    with pytest.raises(ts.NonFiniteError) as caught:
        ts.rollout(arm(), ts.State(q, qd), explosive(0.0049), steps=9, dt=1e-3, nonfinite="raise")
    # Forces from 5 ms on act on the state of step 6.
    for words in (
        "step 6 (t = 0.006 s)",
        "sample [2]",
        "'shoulder'",
        "1 such in the batch",
        "dt=0.00025",
    ):
        assert words in str(caught.value)


def test_the_first_joint_that_is_not_finite_is_named():
    qs, qds, *_ = ts.rollout(arm(), ts.State(*state()), steps=5)
    qds[3, 1] = torch.inf
    found = ts.integrators.first_nonfinite(arm(), qs, qds)
    assert (found.step, found.sample, found.joint) == (3, (), "slide")


def test_several_batch_dimensions_are_told():
    qs, qds, *_ = ts.rollout(arm(), ts.State(*state(2, 3)), steps=5)
    qs[1, 2, 4:], qs[0, 1, 5:] = NAN, NAN
    found = ts.integrators.first_nonfinite(arm(), qs, qds)
    assert (found.step, found.sample, found.samples) == (4, (1, 2), 2)


def test_one_motion_of_positions_serves_several_of_velocities():
    qs, qds, *_ = ts.rollout(arm(), ts.State(*state()), steps=5)
    several = qds.repeat(3, 1, 1)
    several[2, 4, 0] = NAN
    found = ts.integrators.first_nonfinite(arm(), qs, several)
    assert (found.step, found.sample, found.joint) == (4, (2,), "shoulder")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda qs, qds: (qs[..., :1], qds), "qs has shape"),
        (lambda qs, qds: (qs, torch.cat([qds, qds], -1)), "qds has shape"),
        (lambda qs, qds: (qs.float(), qds), "qs is torch.float32"),
        (lambda qs, qds: (qs, qds.numpy()), "qds was given as ndarray"),
        (lambda qs, qds: (qs, qds[:3]), "qs has the batch dimensions"),
        (lambda qs, qds: (qs[0], qds[0]), "A trajectory has a dimension of steps"),
    ],
)
def test_what_is_no_trajectory_of_the_robot_is_refused_by_name(change, said):
    with pytest.raises(ts.ShapeError, match=said) as error:
        ts.integrators.first_nonfinite(
            arm(), *change(*ts.rollout(arm(), ts.State(*state()), steps=5)[:2])
        )
    assert len(str(error.value).splitlines()) == 3


def test_a_warning_is_the_default_and_points_at_the_caller():
    q, qd = state(4)
    with pytest.warns(RuntimeWarning, match="is not finite at step") as caught:
        ts.rollout(arm(), ts.State(q, qd), explosive(0.0), steps=5)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ts.rollout(arm(), ts.State(q, qd), explosive(0.0), steps=5, nonfinite="ignore")
        ts.rollout(arm(), ts.State(q, qd), steps=5)


def test_a_start_that_is_not_finite_is_told_as_such():
    q, qd = state(4)
    q = torch.where(torch.arange(4)[:, None] == 1, NAN, q)
    with pytest.raises(ts.NonFiniteError, match=r"the start of sample \[1\].*'shoulder'"):
        ts.rollout(arm(), ts.State(q, qd), steps=3, nonfinite="raise")
    with pytest.warns(RuntimeWarning, match="the start"):
        ts.rollout(arm(), ts.State(q, qd), steps=0)


@pytest.mark.nightly
def test_traced_and_mapped_rollouts_look_at_no_value():
    q, qd = state(4)
    mech = arm()

    def end(q, qd):
        return ts.rollout(mech, ts.State(q, qd), torch.tensor([NAN, 0.0]).double(), steps=2).q[
            ..., -1, :
        ]

    def fused_end(mech, q, qd):
        return ts.rollout(mech, ts.State(q, qd), qd / (q - q), steps=1).qd

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        fused = ts.fuse(fused_end, mech)  # evaluates it on numbers, to see what it returns
        assert torch.vmap(end)(q, qd).isnan().all()
        assert not fused(q, qd)[:, -1].isfinite().any()
    torch._dynamo.reset()
    compiled = torch.compile(end, fullgraph=True, backend="aot_eager")
    assert compiled(q, qd).isnan().all()
    torch._dynamo.reset()


def test_forces_act_beyond_their_limit_unless_they_are_clamped():
    q, qd = state(3)
    tau = torch.tensor([[5.0, 1.0], [-5.0, 1.0], [1.5, 1.0]], dtype=q.dtype)
    held = torch.tensor([[2.0, 1.0], [-2.0, 1.0], [1.5, 1.0]], dtype=q.dtype)
    mech = arm(effort=2.0)
    free = ts.rollout(arm(), ts.State(q, qd), tau, steps=4)[:2]
    torch.testing.assert_close(
        ts.rollout(mech, ts.State(q, qd), tau, steps=4)[:2], free, rtol=0, atol=0
    )
    clamped = ts.rollout(arm(), ts.State(q, qd), held, steps=4)[:2]
    fast = ts.fuse(mech)
    for control in (tau, tau[:, None], lambda t, q, qd: tau):
        for robot in (mech, ts.Dynamics(mech), fast):
            there = ts.rollout(robot, ts.State(q, qd), control, steps=4, effort="clamp")[:2]
            torch.testing.assert_close(there, clamped)
    for method in ("rk4", "newmark"):
        torch.testing.assert_close(
            ts.rollout(
                mech, ts.State(q, qd), lambda t, q, qd: tau, steps=2, method=method, effort="clamp"
            )[:2],
            ts.rollout(arm(), ts.State(q, qd), held, steps=2, method=method)[:2],
        )


def test_a_series_saturates_at_the_limits_of_each_robot():
    q, qd = state(2)
    limits = torch.tensor([[2.0, 9.0], [1.0, 3.0]], dtype=q.dtype)
    tau = torch.tensor(
        [[5.0, -7.0], [-5.0, 1.5]], dtype=q.dtype
    )  # as many steps as robots and dofs
    fleet = arm(effort=2.0).replace(effort_limit=limits)
    series = tau.expand(2, 2, 2)
    applied = ts.rollout(fleet, ts.State(q, qd), series, steps=2, effort="clamp").forces
    bounds = limits[:, None].expand_as(series)
    torch.testing.assert_close(applied, series.clamp(-bounds, bounds))


def test_saturated_forces_have_no_gradient_others_the_full_one():
    q, qd = state(3)
    mech = arm(effort=2.0)
    gradients = []
    for first in (5.0, 1.5):
        tau = torch.tensor([first, 1.0], dtype=q.dtype, requires_grad=True)
        end = ts.rollout(mech, ts.State(q, qd), tau, steps=3, effort="clamp").qd[:, -1].sum()
        (gradient,) = torch.autograd.grad(end, tau)
        gradients.append(gradient)
    assert gradients[0][0] == 0 and gradients[0][1] != 0
    unlimited = torch.tensor([1.5, 1.0], dtype=q.dtype, requires_grad=True)
    end = ts.rollout(arm(), ts.State(q, qd), unlimited, steps=3).qd[:, -1].sum()
    torch.testing.assert_close(gradients[1], torch.autograd.grad(end, unlimited)[0])
    push = torch.func.jvp(
        lambda x: ts.rollout(mech, ts.State(q, qd), x, steps=3, effort="clamp").qd[:, -1].sum(),
        (torch.tensor([5.0, 1.0], dtype=q.dtype),), (torch.ones(2, dtype=q.dtype),),
    )[1]  # fmt: skip
    torch.testing.assert_close(push, gradients[0].sum())


def test_a_policy_with_saturation_is_one_kernel():
    q, qd = state(3)
    mech = arm(effort=2.0)

    def end(mech, q, qd):
        return ts.rollout(
            mech, ts.State(q, qd), lambda t, q, qd: -9 * qd, steps=2, effort="clamp"
        ).qd

    torch.testing.assert_close(ts.fuse(end, mech)(q, qd), end(mech, q, qd))


def test_other_choices_of_effort_are_refused():
    with pytest.raises(ts.TorchskoError, match="effort='limit' is not a choice"):
        ts.rollout(arm(), ts.State(*state()), effort="limit")
