"""Invalid arguments of control laws raise errors with a name and advice."""

import math

import pytest
import torch

import torchsko as ts
from tests.refusals import assert_refused
from torchsko import control

ARM = ts.load(ts.robots.panda)
Q, QD = ARM.random_state(generator=torch.Generator().manual_seed(0))
HAND = ARM.frame_names[-1]
POSE = ts.frame_pose(ARM, Q, HAND)
SHORT = Q[:3]


def track(**changes):
    given = {"q_target": ARM.middle(), "stiffness": 100.0, "damping": 20.0} | changes
    return control.computed_torque(ARM, Q, QD, **given)


def solve_ik(goals=None, q0=Q, **options):
    given = [control.FrameGoal(HAND, POSE)] if goals is None else goals
    return ts.inverse_kinematics(ARM, q0, given, **options)


def goal(target=POSE, frame=HAND, **options):
    return control.FrameGoal(frame, target, **options)


def adapt(**changes):
    given = {"q_target": Q, "qd_target": QD, "qdd_target": QD}
    given |= {"parameters": ts.inertial_parameters(ARM), "q": Q, "qd": QD}
    numbers = {"slope": 1.0, "gain": 1.0, "adaptation": 1.0}
    return control.adaptive_control(ARM, **(numbers | given | changes))


def command(objectives=None, contacts=(), **options):
    still = [control.posture_objective(ARM, Q, QD, Q)]
    return control.whole_body_control(ARM, Q, QD, objectives or still, contacts, **options)


def hold(**changes):
    return control.impedance(ARM, Q, QD, [control.Task(HAND, POSE, **changes)])


def move_frame(*args, weight=1.0, **task):
    return command(
        [control.frame_objective(ARM, Q, QD, control.Task(HAND, *args, **task), weight=weight)]
    )


def move_com(target=None, **options):
    return control.com_objective(ARM, Q, QD, POSE.position if target is None else target, **options)


def hold_posture(**options):
    return control.posture_objective(ARM, Q, QD, Q, **options)


Q4, QD4 = ARM.random_state(4, generator=torch.Generator().manual_seed(0))


def of_three(*shape):
    return torch.zeros(3, *shape).double()


def hold_four(*target, **changes):
    return control.impedance(ARM, Q4, QD4, [control.Task(HAND, *target, **changes)])


def command_four(rows=(7, 7), desired=(7,), **options):
    contacts = [control.Contact(HAND, **options)]
    objective = control.Objective(torch.zeros(rows).double(), torch.zeros(desired).double())
    return control.whole_body_control(ARM, Q4, QD4, [objective], contacts)


def two_contacts(*friction):
    contacts = [control.Contact(HAND, mu) for mu in friction]
    control.whole_body_control(ARM, Q, QD, [control.posture_objective(ARM, Q, QD, Q)], contacts)


def aimed_at(samples):
    return control.Task(HAND, (None, torch.zeros(samples, 3).double()))


def inertia(**options):
    ts.operational_space_inertia(ARM, Q, HAND, **options)


CALLS = {
    "matrix of gains": (
        lambda: track(stiffness=100 * torch.eye(7).double()),
        r"stiffness has the batch dimensions \[7\], the states \[\].*Gain matrices are not supported",
    ),
    "gain that is none": (lambda: track(stiffness=float("nan")), "stiffness is nan"),
    "infinite gain": (
        lambda: track(damping=torch.tensor([1.0, torch.inf, 1, 1, 1, 1, 1]).double()),
        "damping is inf in one entry",
    ),
    "gain of a task that is none": (
        lambda: hold(stiffness=(1.0, float("nan"))),
        r"stiffness of the task for 'flange'\[1\] is nan",
    ),
    "gain of an axis that is none": (
        lambda: move_com(gains=(torch.tensor([1.0, 1.0, torch.nan]).double(), 1.0)),
        r"gains of the center of mass\[0\] is nan in one entry",
    ),
    "posture's gain that is infinite": (
        lambda: hold_posture(gains=(1.0, float("inf"))),
        r"gains of the posture\[1\] is inf",
    ),
    "gains by list": (lambda: track(stiffness=[1.0] * 7), "stiffness was given as list"),
    "gains of another type": (lambda: track(damping=torch.ones(7)), "damping is torch.float32"),
    "too few gains": (lambda: track(damping=QD[:3]), r"damping has shape \[3\]"),
    "target": (lambda: track(q_target=SHORT), r"q_target has shape \[3\]"),
    "target's rate": (lambda: track(qd_target=SHORT), r"qd_target has shape \[3\]"),
    "target's type": (lambda: track(qdd_target=QD.float()), "qdd_target is torch.float32"),
    "no rate": (
        lambda: control.pd_with_gravity(ARM, Q, None, Q, stiffness=1.0, damping=1.0),
        "qd was given as NoneType",
    ),
    "adaptive target": (lambda: adapt(q_target=SHORT), r"q_target has shape \[3\]"),
    "adaptive batches": (
        lambda: adapt(q_target=Q.expand(2, 7), qd_target=QD.expand(3, 7)),
        r"q_target has the batch dimensions \[2\], qd_target has \[3\]",
    ),
    "adaptive parameters": (
        lambda: adapt(parameters=None),
        "the tensor parameters has type NoneType",
    ),
    "adaptive parameters of other samples": (
        lambda: adapt(q=Q4, parameters=of_three(7, 10)),
        r"the tensor parameters has \[3\]",
    ),
    "adaptation in words": (lambda: adapt(adaptation="x"), "adaptation is 'x'"),
    "adaptation the wrong way": (lambda: adapt(adaptation=-1.0), "adaptation is -1.0"),
    "adaptation the wrong way in one entry": (
        lambda: adapt(adaptation=torch.eye(10).double()[:7] - 1e-3),
        "adaptation has an entry that is negative or not finite",
    ),
    "adaptation by body": (lambda: adapt(adaptation=Q), r"tensor adaptation has shape \[7\]"),
    "adaptive time step": (lambda: adapt(dt=0.0), r"dt is 0\.0[^$]*Pass dt=2e-3"),
    "adaptive gain": (lambda: adapt(gain=SHORT), r"gain has shape \[3\]"),
    "no tasks": (lambda: control.impedance(ARM, Q, QD, []), "tasks is empty"),
    "task's velocity": (lambda: hold(velocity=SHORT), r"velocity of the target.* has shape \[3\]"),
    "task's type": (lambda: hold(acceleration=torch.zeros(6)), "acceleration.* is torch.float32"),
    "posture": (
        lambda: control.impedance(ARM, Q, QD, [control.Task(HAND, POSE)], posture=SHORT),
        r"posture has shape \[3\]",
    ),
    "center of mass": (
        lambda: control.com_objective(ARM, Q, QD, Q[:2]),
        r"target of the center of mass has shape \[2\]",
    ),
    "center of mass bound nowhere": (
        lambda: control.com_objective(ARM, Q, QD, None),
        "target of the center of mass has type NoneType",
    ),
    "posture objective": (
        lambda: control.posture_objective(ARM, Q, QD, SHORT),
        r"q_target has shape \[3\]",
    ),
    "objective's rows": (
        lambda: command([control.Objective(torch.eye(3).double(), SHORT)]),
        r"rows of objective 0 has shape \[3, 3\]",
    ),
    "friction": (lambda: control.Contact(HAND, friction=-1.0), "the friction of the contact at"),
    "friction that is none": (
        lambda: control.Contact(HAND, friction=math.inf),
        "the friction of the contact at .* is inf",
    ),
    "friction of other samples": (
        lambda: command_four(friction=torch.ones(3).double()),
        r"the friction of the contact at '\w+' has \[3\]",
    ),
    "friction of another type": (
        lambda: command_four(friction=torch.ones(4)),
        r"friction of the contact at '\w+' is torch.float32",
    ),
    "axes": (
        lambda: command(contacts=[control.Contact(HAND, axes=SHORT)]),
        r"axes of the contact at .* has shape \[3\]",
    ),
    "undriven by itself": (lambda: command(undriven="joint1"), r"Pass \['joint1'\]"),
    "prescribed by itself": (
        lambda: ts.hybrid_dynamics(ARM, Q, QD, QD, QD, prescribed="joint4"),
        r"Pass \['joint4'\]",
    ),
    "prescribed by number": (
        lambda: ts.hybrid_dynamics(ARM, Q, QD, QD, QD, prescribed=[3]),
        "prescribed holds 3",
    ),
    "goals by name": (lambda: solve_ik({HAND: POSE}), "goals was given as dict"),
    "one weight": (lambda: goal(weight=1.0), "the weight of the goal for 'flange' is 1.0"),
    "three weights": (lambda: goal(weight=(1, 1, 1)), "the weight of .* is"),
    "axis of length zero": (
        lambda: solve_ik([control.AxisGoal(HAND, of_three(), of_three())]),
        "axis of the goal for 'flange' has the length 0",
    ),
    "posture of another robot": (
        lambda: solve_ik([control.PostureGoal(SHORT)]),
        r"the posture has shape \[3\]",
    ),
    "weight of no dof": (
        lambda: solve_ik([control.PostureGoal(Q, -QD - 1)]),
        "an entry of the weight of the posture is not valid",
    ),
    "tolerance": (lambda: solve_ik(tolerance=-1.0), "tolerance=-1.0"),
    "tolerance in words": (lambda: solve_ik(tolerance="a"), "tolerance='a'"),
    "steps in words": (lambda: solve_ik(max_iterations="a"), "max_iterations='a'"),
    "half a try": (lambda: solve_ik(restarts=0.5), "restarts=0.5"),
    "limits in words": (lambda: solve_ik(limits="yes"), "limits='yes'"),
    "a seed": (lambda: solve_ik(generator=5), r"generator=5.*torch\.Generator"),
    "no rotation": (
        lambda: goal((torch.ones(3, 3).double(), None)),
        "rotation of the target of 'flange' is not a rotation",
    ),
    "nowhere": (
        lambda: goal(torch.full((3,), float("nan")).double()),
        "position of the target of 'flange' is not finite",
    ),
    "batches": (
        lambda: solve_ik([goal(POSE.position.expand(5, 3))], Q.expand(2, 7)),
        r"q0 has the batch dimensions \[2\], the position of the target of 'flange' has \[5\]",
    ),
    "batches of two frames": (
        lambda: solve_ik([goal(), goal(of_three(3), ts.Frame("link4"))], Q.expand(2, 7)),
        r"q0 has the batch dimensions \[2\], the position of the target of Frame\('link4'\) has \[3\]",
    ),
    "gains in words": (
        lambda: hold(stiffness=("a", "b")),
        r"stiffness of the task .* is \('a', 'b'\)",
    ),
    "gains in letters": (lambda: hold(stiffness="ab"), "stiffness of the task for .* is 'ab'"),
    "no gains": (lambda: hold(damping=(None, 1.0)), r"damping of the task .* is \(None, 1.0\)"),
    "gains by names": (lambda: hold(damping={0: 1.0, 1: 2.0}), "damping of the task for"),
    "gains of five axes": (
        lambda: hold(stiffness=(torch.ones(5).double(), 1.0)),
        r"stiffness of the task for 'flange'\[0\] has shape \[5\]",
    ),
    "turned by no rotation": (
        lambda: control.Task(HAND, (2 * POSE.rotation, None)),
        "rotation of the target of 'flange' is not a rotation",
    ),
    "axes that are no rotation": (
        lambda: control.Contact(HAND, axes=2 * POSE.rotation),
        "axes of the contact at 'flange' is not a rotation",
    ),
    "positions of others": (
        lambda: hold_four((None, of_three(3))),
        r"the position of the target of 'flange' has \[3\].*insert a dimension of 1\.$",
    ),
    "rotations of others": (
        lambda: hold_four((torch.eye(3).double().expand(3, 3, 3), None)),
        r"the rotation of the target of 'flange' has \[3\]",
    ),
    "velocities of others": (
        lambda: hold_four(POSE, velocity=of_three(6)),
        r"the velocity of the target of 'flange' has \[3\]",
    ),
    "gains of others": (
        lambda: hold_four(POSE, damping=(1.0, of_three(3))),
        r"damping of the task for 'flange'\[1\] has \[3\]",
    ),
    "no task": (
        lambda: control.frame_objective(ARM, Q, QD, HAND),
        r"task was given as str.*Pass Task\(",
    ),
    "weight in words": (lambda: move_frame(POSE, weight="a"), "weight of objective 0 is 'a'"),
    "weight below zero": (lambda: move_frame(POSE, weight=-1.0), "weight of objective 0 is -1.0"),
    "weights below zero": (
        lambda: move_frame(POSE, weight=torch.tensor([1.0, -1.0]).double()),
        "weight of objective 0 is tensor",
    ),
    "weights of another type": (
        lambda: move_frame(POSE, weight=torch.ones(2)),
        "weight of objective 0 is torch.float32",
    ),
    "no weight": (lambda: move_frame(POSE, weight=None), "weight of objective 0 is None"),
    "center's gains": (lambda: move_com(gains=("a", "b")), "gains of the center of mass is"),
    "one gain of the center": (
        lambda: move_com(gains=100.0),
        "gains of the center of mass is 100.0",
    ),
    "three gains of the center": (lambda: move_com(gains=(1.0, 2.0, 3.0)), "gains of the center"),
    "no center": (
        lambda: control.com_objective(ARM, Q, QD, None),
        "target of the center of mass has type",
    ),
    "centers of others": (
        lambda: control.com_objective(ARM, Q4, QD4, of_three(3)),
        r"the target of the center of mass has \[3\]",
    ),
    "one gain of the posture": (lambda: hold_posture(gains=100.0), "gains of the posture is 100.0"),
    "posture's gains": (lambda: hold_posture(gains=("a", 1.0)), "gains of the posture is"),
    "posture's gains of five": (
        lambda: hold_posture(gains=(torch.ones(5).double(), 1.0)),
        r"gains\[0\] has shape \[5\]",
    ),
    "iterations in words": (lambda: command(iterations="a"), "iterations is 'a'"),
    "no iterations": (lambda: command(iterations=0), "iterations is 0"),
    "half iterations": (lambda: command(iterations=2.5), "iterations is 2.5"),
    "rows of others": (
        lambda: command_four(rows=(3, 7, 7)),
        r"the rows of objective 0 has \[3\]",
    ),
    "desired of others": (
        lambda: command_four(desired=(3, 7)),
        r"the desired of objective 0 has \[3\]",
    ),
    "no rows": (
        lambda: command([control.Objective(None, SHORT)]),
        "rows of objective 0 has type",
    ),
    "friction of others at one frame": (
        lambda: two_contacts(torch.ones(2).double(), torch.ones(3).double()),
        r"friction of the contact at 'flange' has the batch.*\[2\], the friction .* \(repeated\) has \[3\]",
    ),
    "a task of other samples than the first": (
        lambda: control.impedance(ARM, Q, QD, [aimed_at(2), aimed_at(3)]),
        r"target of 'flange' has the batch.*\[2\], the position .* \(repeated\) has \[3\]",
    ),
    "a posture of other samples than the task": (
        lambda: control.impedance(ARM, Q, QD, [aimed_at(2)], posture=QD.expand(3, 7)),
        r"posture has the batch dimensions \[3\], the position of the target of 'flange' has \[2\]",
    ),
    "axes of others": (
        lambda: command_four(axes=torch.eye(3).double().expand(3, 3, 3)),
        r"the axes of the contact at 'flange' has \[3\]",
    ),
    "damped by nothing": (
        lambda: inertia(singular=("damped",)),
        r"singular=\('damped',\) is no rule",
    ),
    "damped below zero": (lambda: inertia(singular=("damped", -1.0)), "damping is positive"),
    "damped in words": (
        lambda: inertia(singular=("damped", "a")),
        "is no rule for singular samples",
    ),
    "damped twice": (lambda: inertia(singular=("damped", 1e-3, 1e-3)), "is no rule for singular"),
    "damped tensor": (
        lambda: inertia(singular=("damped", torch.zeros(()).double())),
        "damping is positive",
    ),
    "damping of nobody": (
        lambda: ts.operational_space_inertia(
            ARM, Q4, HAND, singular=("damped", torch.ones(6).double())
        ),
        r"damping of singular samples has shape \[6\], the samples \[4\]",
    ),
    "damping of another type": (
        lambda: ts.operational_space_inertia(ARM, Q4, HAND, singular=("damped", torch.ones(4))),
        r"damping of singular samples is torch.float32 on cpu",
    ),
    "no rule": (lambda: inertia(singular=()), r"singular=\(\) is no rule"),
    "ranks of nobody": (
        lambda: ts.operational_space_inertia(
            ARM, Q4, HAND, rank_tolerance=torch.full((3,), 1e-9).double()
        ),
        r"rank_tolerance has shape \[3\], the samples \[4\]",
    ),
    "rank in words": (lambda: inertia(rank_tolerance="x"), "rank_tolerance is 'x'"),
    "rank below zero": (lambda: inertia(rank_tolerance=-1.0), "rank_tolerance is -1.0"),
    "no rank": (lambda: inertia(rank_tolerance=float("nan")), "rank_tolerance is nan"),
    "tasks damped by nothing": (
        lambda: control.impedance(ARM, Q, QD, [control.Task(HAND, POSE)], singular=("damped",)),
        "is no rule for singular samples",
    ),
    "parts by list": (
        lambda: ts.manipulability(ARM, Q, HAND, part=["position"]),
        r"no part of a Jacobian is named \['position'\]",
    ),
    "coordinates by list": (
        lambda: ts.frame_coordinates(ARM, Q, HAND, rotation=["rpy"]),
        r"no kind of coordinates is named \['rpy'\]",
    ),
    "frame by number": (lambda: ts.frame_jacobian(ARM, Q, 3), "frames holds 3"),
    "no frame": (lambda: ts.frame_jacobian(ARM, Q, None), "frames holds None"),
    "step in words": (lambda: ts.linearize(ARM, ts.State(Q, QD), QD, dt="0.1"), "dt is '0.1'"),
    "no step": (lambda: ts.linearize(ARM, ts.State(Q, QD), QD, dt=0.0), "dt is 0.0"),
    "steps of nobody": (
        lambda: ts.linearize(ARM, ts.State(Q, QD), QD, dt=torch.ones(3).double()),
        r"dt has shape \[3\]",
    ),
    "heights": (
        lambda: ts.zero_moment_point(ARM, Q, QD, QD, height=torch.zeros(2)),
        "height is tensor",
    ),
    "locked by list": (lambda: ARM.lock(["joint1"]), "lock got a list"),
    "locked in words": (lambda: ARM.lock({"joint1": "0.3"}), "cannot be locked at '0.3'"),
    "locked nowhere": (lambda: ARM.lock({"joint1": float("nan")}), "cannot be locked at nan"),
    "appended by path": (lambda: ARM.append("x.urdf", HAND), "a str"),
}


@pytest.mark.parametrize(("call", "what"), CALLS.values(), ids=CALLS)
def test_invalid_arguments_are_refused_by_name(call, what):
    assert_refused(call, what)


def test_gains_may_differ_from_sample_to_sample_and_dof_to_dof():
    q, qd = ARM.random_state(3, generator=torch.Generator().manual_seed(1))
    gains = torch.linspace(1, 9, 21).double().reshape(3, 7)
    tau = control.pd_with_gravity(ARM, q, qd, Q, stiffness=gains, damping=gains)
    for k in range(3):
        alone = control.pd_with_gravity(ARM, q[k], qd[k], Q, stiffness=gains[k], damping=gains[k])
        torch.testing.assert_close(tau[k], alone, rtol=1e-12, atol=1e-12)


def test_a_task_may_be_stiff_along_one_axis_and_soft_along_another():
    q, qd = ARM.random_state(3, generator=torch.Generator().manual_seed(1))
    soft, stiff = torch.tensor([10.0, 0.0, 500.0]).double(), torch.tensor([0.0, 90.0, 0.0]).double()
    target = POSE.position + 0.1

    def law(gains, k=slice(None)):
        task = control.Task(HAND, target, stiffness=(1.0, gains), damping=(0.0, 0.0))
        return control.impedance(ARM, q[k], qd[k], [task])

    still = law(0.0)
    # The law is affine in its gains, so forces of springs along axes add up.
    both = law(soft) - still + law(stiff) - still
    torch.testing.assert_close(law(soft + stiff) - still, both, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        law(torch.full((3,), 70.0).double()), law(70.0), rtol=1e-9, atol=1e-9
    )
    each = torch.stack([soft, stiff, soft + stiff])
    for k in range(3):
        torch.testing.assert_close(law(each)[k], law(each[k], k), rtol=1e-9, atol=1e-9)


def test_weights_of_objectives_may_differ_from_sample_to_sample_and_have_gradients():
    weights = torch.tensor([0.0, 0.5, 2.0, 20.0]).double()

    def law(weight, k=slice(None)):
        task = control.frame_objective(ARM, Q4[k], QD4[k], control.Task(HAND, POSE), weight=weight)
        posture = control.posture_objective(ARM, Q4[k], QD4[k], Q, weight=1.0)
        return control.whole_body_control(ARM, Q4[k], QD4[k], [task, posture]).qdd

    for k, weight in enumerate(weights.tolist()):
        torch.testing.assert_close(law(weights)[k], law(weight, k), rtol=1e-6, atol=1e-6)
    at, push = weights[1:].clone().requires_grad_(), torch.linspace(-1, 1, 7).double()
    samples = slice(1, None)
    (slope,) = torch.autograd.grad((law(at, samples) @ push).sum(), at)
    step = 1e-4
    ahead, behind = (law(weights[1:] + x, samples) @ push for x in (step, -step))
    torch.testing.assert_close(slope, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-6)
