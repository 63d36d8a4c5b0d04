"""Dynamics of robots with flexible links: dense systems, Lagrange's equations, conservation, kernels."""

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacfwd, vmap

import torchsko as ts


def arm(floating: bool = False, **options) -> ts.Mechanism:
    """Two flexible links with bending about two axes and torsion, on a rigid base, with a tool."""

    def beam(length: float) -> ts.FlexibleBody:
        shapes = {"shapes": (2, 2, 1), "polar_inertia": 0.02}
        return ts.FlexibleBody.beam(length, 1.3, EI_y=3.0, EI_z=2.0, GJ=2.5, **shapes)

    builder = ts.MechanismBuilder("flexible arm")
    inertia = ((0.2, 0.01, 0), (0.01, 0.3, 0.02), (0, 0.02, 0.25))
    builder.link("base", mass=2.0, com=(0.1, 0.05, -0.02), inertia=inertia)
    builder.flexible_link("upper", beam(1.0).damped(0.02)).flexible_link("lower", beam(0.7))
    builder.link("tool", mass=0.4, com=(0.02, 0, 0.03), inertia=(0.002 * torch.eye(3)).tolist())
    shoulder = {"parent": "base", "axis": (0, 1, 0), "position": (0.1, 0.2, 0.3)}
    builder.joint("shoulder", "revolute", child="upper", **shoulder)
    elbow = {"parent": "upper/tip", "axis": (0, 1, 0), "second_axis": (0, 0, 1)}
    builder.joint("elbow", "universal", child="lower", **elbow)
    builder.joint("wrist", "revolute", child="tool", parent="lower/tip", axis=(1, 0, 0))
    return builder.build(floating_base=floating, **options)


def planar(shapes=(2, 0), **options) -> ts.Mechanism:
    """A flexible link on a hinge with a body at its tip."""
    beam = ts.FlexibleBody.beam(1.0, 0.8, EI_y=4.0, EI_z=4.0, shapes=shapes)
    builder = ts.MechanismBuilder("beam").flexible_link("beam", beam)
    builder.link("load", mass=0.3, inertia=(0.01 * torch.eye(3)).tolist())
    builder.joint("hub", "revolute", child="beam", axis=(0, 1, 0))
    builder.joint("wrist", "revolute", child="load", parent="beam/tip", axis=(0, 1, 0))
    return builder.build(**options)


@pytest.fixture(scope="module", params=[False, True], ids=["fixed", "floating"])
def robot(request) -> ts.Mechanism:
    return arm(request.param)


def state(mech: ts.Mechanism, *batch: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    q, qd = mech.random_state(*batch, generator=g)
    return q, qd, torch.randn(*batch, mech.num_dof, generator=g, dtype=q.dtype)


def test_modal_coordinates_are_named_entries_of_q():
    mech = planar((2, 1))
    names = ("hub", "beam_modes.y1", "beam_modes.y2", "beam_modes.z1", "wrist")
    assert mech.coordinate_names == names and mech.num_modes == 3
    assert mech.q_slice("beam_modes_y2") == slice(2, 3) == mech.dof_slice("beam_modes_y2")
    assert mech.modal_stiffness.shape == (3, 3)


def test_forward_dynamics_is_the_solution_of_the_dense_system(robot):
    q, qd, tau = state(robot, 6)
    dense = torch.linalg.solve(ts.mass_matrix(robot, q), tau - ts.bias_force(robot, q, qd))
    for method in ("articulated", "composite"):
        found = ts.forward_dynamics(robot, q, qd, tau, method=method)
        assert (found - dense).abs().max() < 1e-12 * dense.abs().max()
    assert (ts.inverse_dynamics(robot, q, qd, dense) - tau).abs().max() < 1e-9
    factors = ts.innovations(ts.assemble(robot, q))
    assert torch.allclose(factors.logdet(), torch.linalg.slogdet(ts.mass_matrix(robot, q))[1])


def test_the_bias_is_that_of_lagrange_equations():
    mech = arm()
    q, qd, _ = state(mech)
    M_q = jacfwd(lambda q: ts.mass_matrix(mech, q))(q)
    coriolis = torch.einsum("ijk,k,j->i", M_q, qd, qd) - torch.einsum("jki,j,k->i", M_q, qd, qd) / 2
    conservative = grad(lambda q: ts.potential_energy(mech, q))(q)
    modes = mech.joints.modes[1]
    damping = torch.zeros_like(qd).index_copy(0, modes, mech.modal_damping @ qd[modes])
    expected = coriolis + conservative + damping
    assert (ts.bias_force(mech, q, qd) - expected).abs().max() < 1e-12 * expected.abs().max()


def test_energy_and_momenta_are_conserved_to_fourth_order():
    beam = ts.FlexibleBody.beam(1.0, 1.3, EI_y=3.0, EI_z=2.0, shapes=(1, 1))
    builder = ts.MechanismBuilder("satellite").flexible_link("panel", beam)
    builder.link("hub", mass=2.0, com=(0.1, 0.05, 0), inertia=(0.2 * torch.eye(3)).tolist())
    builder.link("load", mass=0.3, com=(0.1, 0, 0.02), inertia=(0.01 * torch.eye(3)).tolist())
    builder.joint("hinge", "revolute", child="panel", parent="hub", axis=(0, 1, 0))
    builder.joint("wrist", "revolute", child="load", parent="panel/tip", axis=(0, 1, 1))
    mech = builder.build(floating_base=True, gravity=(0, 0, 0))
    q, qd, _ = state(mech)

    def kept(q: Tensor, qd: Tensor) -> Tensor:
        """Energy, and momenta about the center of mass, which is at rest in inertial axes."""
        energy = ts.total_energy(mech, q, qd)
        return torch.cat([energy[None], ts.centroidal_momentum(mech, q, qd)])

    errors = []
    for steps in (40, 80):
        start = ts.State(q, 0.5 * qd)
        run = ts.rollout(mech, start, steps=steps, dt=0.4 / steps, method="rk4", fused=False)
        change = kept(run.q[-1], run.qd[-1]) - kept(*start[:2])
        errors.append(torch.stack([x.abs().max() for x in change.split([1, 3, 3])]))
    assert (errors[0] / errors[1] > 12).all() and (errors[0] < 1e-3).all()


def test_velocities_and_jacobians_at_markers_are_rates_of_their_poses():
    mech = arm(True)
    q, qd, _ = state(mech)
    zero = torch.zeros((), dtype=q.dtype)
    for name in ("upper/tip", "lower/tip", "tool"):

        def pose_at(t: Tensor, name: str = name) -> tuple[Tensor, ...]:
            return tuple(ts.frame_pose(mech, ts.integrate(mech, q, t * qd), name))

        pose, rate = torch.func.jvp(pose_at, (zero,), (torch.ones_like(zero),))
        V = ts.frame_velocity(mech, q, qd, name, reference="mixed")
        spin = rate[0] @ pose[0].mT
        turning = torch.stack([spin[2, 1], spin[0, 2], spin[1, 0]])
        assert (V - torch.cat([turning, rate[1]])).abs().max() < 1e-12
        J = ts.frame_jacobian(mech, q, name, reference="mixed")
        assert (J @ qd - V).abs().max() < 1e-12


def test_a_kernel_is_the_eager_function():
    mech = planar((2, 1))
    fast = ts.fuse(mech)
    q, qd, tau = state(mech, 16)
    for verb in ("forward_dynamics", "inverse_dynamics"):
        found, expected = getattr(fast, verb)(q, qd, tau), getattr(ts, verb)(mech, q, qd, tau)
        assert (found - expected).abs().max() < 1e-11 * expected.abs().max()


def test_batches_and_vmap_are_single_calls(robot):
    q, qd, tau = state(robot, 3)
    single = [ts.forward_dynamics(robot, *x) for x in zip(q, qd, tau, strict=True)]
    batched = ts.forward_dynamics(robot, q, qd, tau)
    mapped = vmap(lambda *x: ts.forward_dynamics(robot, *x))(q, qd, tau)
    scale = 1e-12 * batched.abs().max()
    assert (batched - torch.stack(single)).abs().max() < scale
    assert (batched - mapped).abs().max() < scale


FIELDS = ("modal_stiffness", "modal_damping", "joint_parameters", "joint_position", "mass")


def test_gradients_reach_states_stiffness_shapes_and_placements():
    mech = planar((1, 1))
    q, qd, tau = state(mech)

    def accelerate(q, qd, tau, *values):
        changed = mech.replace(**dict(zip(FIELDS, values, strict=True)))
        return ts.forward_dynamics(changed, q, qd, tau)

    inputs = [x.clone().requires_grad_() for x in (q, qd, tau, *(getattr(mech, x) for x in FIELDS))]
    assert torch.autograd.gradcheck(accelerate, inputs, atol=1e-4, rtol=1e-5)


@pytest.mark.nightly
def test_second_derivatives_reach_states_and_stiffness():
    mech = planar((1, 0))
    q, qd, tau = state(mech)

    def accelerate(q, qd, stiffness, shapes):
        changed = mech.replace(modal_stiffness=stiffness, joint_parameters=shapes)
        return ts.forward_dynamics(changed, q, qd, tau)

    inputs = [q, qd, mech.modal_stiffness, mech.joint_parameters]
    inputs = [x.clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradgradcheck(accelerate, inputs, atol=1e-4, rtol=1e-4)


def test_closed_form_derivatives_are_those_of_the_dynamics(robot):
    q, qd, tau = state(robot)
    step = torch.zeros_like(qd)
    expected = (
        jacfwd(lambda s: ts.forward_dynamics(robot, ts.integrate(robot, q, s), qd, tau))(step),
        jacfwd(lambda qd: ts.forward_dynamics(robot, q, qd, tau))(qd),
        torch.linalg.inv(ts.mass_matrix(robot, q)),
    )
    found = ts.forward_dynamics_derivatives(robot, q, qd, tau)
    for x, y in zip(found, expected, strict=True):
        assert (x - y).abs().max() < 1e-9 * y.abs().max()


@pytest.mark.nightly
def test_the_implicit_midpoint_rule_is_stable_for_stiff_modes():
    """A step of half a radian of the slowest mode, where explicit steps diverge."""
    mech = planar((2, 0), gravity=(0, 0, 0))
    mech = mech.replace(modal_stiffness=1e4 * mech.modal_stiffness)
    q = torch.tensor([0.1, 1e-4, 1e-5, 0.2], dtype=torch.float64)
    start = ts.State(q, torch.tensor([1.0, 0, 0, -0.5], dtype=torch.float64))
    energy = ts.total_energy(mech, start.q, start.qd)
    method = ts.integrators.ImplicitMidpoint()
    run = ts.rollout(mech, start, steps=50, dt=0.01, method=method)
    assert (ts.total_energy(mech, run.q[-1], run.qd[-1]) / energy - 1).abs() < 1e-2
    steps = ts.rollout(mech, start, steps=50, dt=0.01, method="rk4", nonfinite="ignore")
    assert not (steps.q[-1].abs() < 1e3).all()


def test_locked_modes_make_a_rigid_robot_and_appended_robots_keep_their_modes():
    mech = planar((2, 1))
    q, qd, qdd = state(mech)
    modes, rest = mech.dof_slice("beam_modes"), [0, 4]
    still = [x.clone() for x in (qd, qdd)]
    for x in still:
        x[modes] = 0
    left = mech.lock({"beam_modes": q[modes]})
    assert left.num_modes == 0 and left.joint_names == ("hub", "wrist")
    expected = ts.inverse_dynamics(mech, q, *still)[rest]
    found = ts.inverse_dynamics(left, q[rest], qd[rest], qdd[rest])
    assert (found - expected).abs().max() < 1e-12
    both = mech.append(planar((1, 0)), "load", prefix="b_")
    assert (
        both.num_modes == 4 and both.modal_stiffness[3, 3] == planar((1, 0)).modal_stiffness[0, 0]
    )
    q, qd, tau = state(both)
    dense = torch.linalg.solve(ts.mass_matrix(both, q), tau - ts.bias_force(both, q, qd))
    assert torch.allclose(ts.forward_dynamics(both, q, qd, tau), dense, rtol=1e-9)
