r"""Linear models of a mechanism at a state, in tangent coordinates.

A state near (q, qd) is x = [d; u]: the configuration integrate(q, d) and the velocity qd + u. Near a
trajectory the deviation obeys

.. math::
    \dot x = A x + B\, \delta\tau, \qquad
    A = \begin{bmatrix} -\mathrm{ad}_{\dot q} & 1 \\ \partial_q \ddot q & \partial_{\dot q} \ddot q
    \end{bmatrix}, \quad B = \begin{bmatrix} 0 \\ \mathcal{M}^{-1} \end{bmatrix},

with ad the bracket of SO(3) or SE(3) at spherical and free joints, whose axes rotate with the body, and zero
at all other joints.

Reference: J. Sola, J. Deray, D. Atchuthan, *A micro Lie theory for state estimation in robotics*,
arXiv 1812.01537, 2018, section IV (derivatives on Lie groups, in right-invariant coordinates).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor

from torchsko.actuators.sampled_control import SampledControl
from torchsko.contact.drive import Drive, check_activations
from torchsko.integrators.argument_checks import resolve_step
from torchsko.integrators.contact_integrator import ContactStep
from torchsko.integrators.first_order import expand_step, first_order_dynamics
from torchsko.integrators.integrators import INTEGRATORS, check_method_name
from torchsko.integrators.step import Coordinates, Dynamics, Step
from torchsko.mechanism.configuration import add_step, bracket, subtract
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism, verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State, check_is_state
from torchsko.mechanism.state import check_state
from torchsko.mechanism.time_step import check_dt
from torchsko.utils.shapes import broadcast_shapes
from torchsko.verbs.derivatives import forward_dynamics_derivatives
from torchsko.verbs.dynamics import refuse_singular

Nearby = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps a tangent step, a velocity and joint forces to a deviation of the next state."""


def linearize(
    mech: MechanismLike,
    state: State,
    inputs: Tensor | None = None,
    *,
    dt: float | Tensor | None = None,
    method: str | Step = "semi_implicit_euler",
) -> tuple[Tensor, Tensor]:
    """The linear model of a mechanism at a state, in tangent coordinates [q; qd].

    Inputs are joint forces; with a `torchsko.ContactStep` they are the controls of the actuators of the robot
    file, n in place of num_dof, and x ends with the activations of these. For the other methods the model
    with actuators is A + B dtau/dx. Compute dtau/dx of `torchsko.actuators.actuate`
    by ``torch.func.jacrev`` with respect to d at ``torchsko.integrate(mech, q, d)``. This does not hold for
    implicit actuators (``implicit=`` of `torchsko.actuators.ActuatedControl`): differentiate one step of
    `torchsko.rollout` instead.

    Args:
        mech: the mechanism. Kernels of a fused mechanism compute the model of a method by name, for a dt that
            is a number.
        state: the state.
        inputs: joint forces, `[*batch, num_dof]` [N m or N], or controls `[*batch, n]`; zero by default.
        dt: time step [s] of a discrete-time model, a number or `[*batch]`; None: continuous time, or the time
            step of the robot file with a method that is not a name.
        method: integrator of the discrete-time model, as in `torchsko.rollout`: a name, a function, or a
            `torchsko.ContactStep`, whose contacts and limits are those of the state.

    Returns:
        A `[*batch, 2 num_dof, 2 num_dof]` and B `[*batch, 2 num_dof, num_dof]`. x is the deviation from the
        trajectory through (q, qd), as `difference` of configurations and of velocities. In continuous time
        dx/dt = A x + B dtau. In discrete time A x + B dtau is the deviation at the end of the step, the
        derivative of one step of `torchsko.rollout`. In continuous time, and with "rk4" and "newmark", dry
        friction has zero derivative. The other methods treat it as damping below a speed of 1e-4 rad/s or m/s
        (`torchsko.integrators.SemiImplicitEuler`): near rest their model holds for smaller velocity
        changes only, which also applies to finite differences.

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.
        MechanismError: when a joint's hinge inertia vanishes; names the joints.
        TorchskoError: on an unknown method, or a dt that is 0 or not finite.

    Reference: Sola, Deray, Atchuthan 2018, A micro Lie theory (derivatives on Lie groups); Carpentier,
    Mansard 2018.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> A, B = ts.linearize(arm, ts.State(*arm.random_state(5)), dt=1e-3)
        >>> A.shape, B.shape
        (torch.Size([5, 14, 14]), torch.Size([5, 14, 7]))
    """
    check_is_state("state", state, "ts.linearize(mech, ts.State(q, qd), tau)")
    if isinstance(method, ContactStep):
        return _linearize_contact_step(as_mechanism(mech), state, inputs, dt, method)
    check_activations(as_mechanism(mech), state)
    q, qd = state.q, state.qd
    tau = torch.zeros_like(qd) if inputs is None else inputs
    if isinstance(method, str):
        # A time step is a constant of a kernel.
        mech = as_mechanism(mech) if isinstance(dt, Tensor) else mech
        return linear_model(mech, q, qd, tau, dt, method)
    robot, step = as_mechanism(mech), resolve_step(method)
    q, qd, tau = _checked_state(robot, q, qd, tau)
    dt = robot.file_metadata.solver.timestep if dt is None else dt
    check_dt(robot, dt, q.shape[:-1], backward=True)
    h = dt[..., None] if isinstance(dt, Tensor) else dt
    nearby = perturbed_step(robot, q, qd, tau, h, step)
    to_q, to_qd, to_tau = jacobians(nearby, torch.zeros_like(qd), qd, tau)
    return torch.cat([to_q, to_qd], -1), to_tau


@verb(check=None)
def linear_model(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    tau: Tensor,
    dt: float | Tensor | None = None,
    method: str = "semi_implicit_euler",
) -> tuple[Tensor, Tensor]:
    """`linearize` for joint forces and an integrator by name, from closed-form derivatives.

    Args:
        dt: see `linearize`.
        method: see `linearize`.
    """
    check_method_name(method, "linearize")
    q, qd, tau = _checked_state(mech, q, qd, tau)
    if dt is not None:
        check_dt(mech, dt, q.shape[:-1], backward=True)
        return linearize_step(mech, q, qd, tau, dt, INTEGRATORS[method])

    # Axes that rotate with the body rotate deviations backwards: the bracket with each unit vector.
    unit = torch.eye(mech.num_dof, dtype=q.dtype, device=q.device)
    turning = bracket(mech, qd[..., None, :], unit).mT
    to_q, to_qd, to_tau = forward_dynamics_derivatives(mech, q, qd, tau)
    blocks = [[-turning, unit], [to_q, to_qd]]
    A = [torch.cat([x.expand_as(to_q) for x in row], -1) for row in blocks]
    return torch.cat(A, -2), torch.cat([torch.zeros_like(to_tau), to_tau], -2)


def _checked_state(
    mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A state and joint forces with all batch dimensions, after their checks."""
    check_state(mech, q=q, qd=qd, tau=tau)
    refuse_singular(mech)
    batch = broadcast_shapes(q.shape[:-1], qd.shape[:-1], tau.shape[:-1], mech.batch_shape)
    q, qd, tau = (x.expand(*batch, x.shape[-1]) for x in (q, qd, tau))
    return q, qd, tau


def linearize_step(
    mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor, dt: float | Tensor, step: Step
) -> tuple[Tensor, Tensor]:
    """Discrete-time linear model of any integrator step, see `linearize`."""
    h = dt[..., None] if isinstance(dt, Tensor) else dt
    nearby = _first_order_step(mech, q, qd, tau, h, step)
    to_q, to_qd, to_tau = jacobians(nearby, torch.zeros_like(qd), qd, tau)
    return torch.cat([to_q, to_qd], -1), to_tau


def _linearize_contact_step(
    mech: Mechanism,
    state: State,
    ctrl: Tensor | None,
    dt: float | Tensor | None,
    method: ContactStep,
) -> tuple[Tensor, Tensor]:
    """`linearize` of a step with contact: A of [q; qd; act], and B of the controls."""
    check_state(mech, q=state.q, qd=state.qd)
    step = method.resolve(mech)
    if dt is None:
        dt = step.contact.options.timestep
    check_dt(mech, dt, None, backward=False)
    q, qd, h = state.q, state.qd, cast(float, dt)
    drive, state = Drive.of(mech, state, ctrl, step.actuators, step.contact, None, h)
    ctrl = torch.zeros_like(qd) if drive.ctrl is None else drive.ctrl
    batch = broadcast_shapes(q.shape[:-1], qd.shape[:-1], ctrl.shape[:-1], mech.batch_shape)
    q, qd, act, ctrl = (x.expand(*batch, x.shape[-1]) for x in (q, qd, state.act, ctrl))

    def after(q: Tensor, qd: Tensor, act: Tensor, ctrl: Tensor) -> State:
        control = SampledControl(ctrl, step.actuators, act, act[..., :0])
        return step.advance(mech, control, q, qd, h, None, {}).state

    end = after(q, qd, act, ctrl).q

    def nearby(d: Tensor, rate: Tensor, act: Tensor, ctrl: Tensor) -> Tensor:
        found = after(add_step(mech, q, d), rate, act, ctrl)
        return torch.cat([subtract(mech, end, found.q), found.qd, found.act], -1)

    *to_state, to_ctrl = jacobians(nearby, torch.zeros_like(qd), qd, act, ctrl)
    return torch.cat(to_state, -1), to_ctrl


def evaluate_step(
    mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor, dt: float | Tensor, step: Step
) -> tuple[Tensor, Tensor]:
    """One integrator step under constant joint forces: the next q and qd."""
    return step(mech, Dynamics.constant(tau), 0.0, q, qd, dt)[:2]  # type: ignore[arg-type]


def perturbed_step(
    mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor, dt: float | Tensor, step: Step
) -> Nearby:
    """The deviation after a step as a function of the perturbations before it.

    Args:
        mech: the mechanism.
        q: `[*batch, num_q]`.
        qd: `[*batch, num_dof]`.
        tau: joint forces, `[*batch, num_dof]`.
        dt: time step [s], a number or `[*batch, 1]`.
        step: the integrator.

    Returns:
        A function of a tangent step of q, a velocity and joint forces. It returns the difference of the
        configuration to that of the unperturbed step, and the velocity, `[*batch, 2 num_dof]`.
    """
    end, _ = evaluate_step(mech, q, qd, tau, dt, step)

    def nearby(d: Tensor, rate: Tensor, force: Tensor) -> Tensor:
        q_end, qd_end = evaluate_step(mech, add_step(mech, q, d), rate, force, dt, step)
        return torch.cat([subtract(mech, end, q_end), qd_end], -1)

    return nearby


def _first_order_step(
    mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor, dt: float | Tensor, step: Step
) -> Nearby:
    """`perturbed_step` to first order, with the closed-form derivatives of forward dynamics."""

    def after(q: Tensor, qd: Tensor, accelerate: Dynamics) -> Coordinates:
        return step(mech, accelerate, 0.0, q, qd, dt)  # type: ignore[arg-type]

    expansions = expand_step(partial(after, q, qd), tau)
    end, _ = after(q, qd, first_order_dynamics(expansions, tau))

    def nearby(d: Tensor, rate: Tensor, force: Tensor) -> Tensor:
        q_end, qd_end = after(add_step(mech, q, d), rate, first_order_dynamics(expansions, force))
        return torch.cat([subtract(mech, end, q_end), qd_end], -1)

    return nearby


def jacobians(f: Callable[..., Tensor], *at: Tensor) -> tuple[Tensor, ...]:
    """Derivatives of a function with respect to its arguments, row by row.

    Args:
        f: function of tensors `[*batch, k_i]`; returns `[*batch, m]`.
        *at: its arguments.

    Returns:
        With respect to each argument `[*batch, m, k_i]`.
    """
    out, pull = torch.func.vjp(f, *at)[:2]
    m = out.shape[-1]
    rows = torch.eye(m, dtype=out.dtype, device=out.device)
    rows = rows.reshape(m, *[1] * (out.ndim - 1), m).expand(m, *out.shape)
    return tuple(x.movedim(0, -2) for x in torch.func.vmap(pull)(rows))
