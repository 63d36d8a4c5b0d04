"""One time step of a mechanism with actuators, contact and other soft constraints: `torchsko.step`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor

from torchsko.actuators.actuators import Actuators
from torchsko.contact.contact_fields import PARAMETER_DIMS
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.drive import Drive
from torchsko.contact.smooth_contact import SmoothContact
from torchsko.contact.step_integrators import INTEGRATORS, StepResult, smooth_step
from torchsko.contact.value_checks import check_mechanism
from torchsko.errors import MechanismError, TorchskoError, unknown_name
from torchsko.implicit.jacobian_products import Tensors
from torchsko.implicit.loop import repeat
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import RANKS, State, check_is_state
from torchsko.mechanism.state import check_state, shared_batch
from torchsko.mechanism.time_step import check_dt
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.numbers import as_integer
from torchsko.utils.shapes import is_expandable

Advance = Callable[[Drive, State], StepResult]


class Evaluation(NamedTuple):
    """A state at which accelerations were evaluated, with what acts on the mechanism.

    Attributes:
        drive: the mechanism with its actuators, controls and contact.
        state: the state.
        qdd: acceleration, `[*batch, num_dof]`.
    """

    drive: Drive
    state: State
    qdd: Tensor

    @property
    def constraint_force(self) -> Tensor:
        """Joint forces of contact and other soft constraints, `[*batch, num_dof]` [N m or N]."""
        start = self.drive.constrained(self.drive.at(self.state.q, self.state.qd))
        tau = self.drive.forces(start.kinematics, self.state.act)[0]
        return start.balance_error(self.qdd, tau)

    @property
    def actuator_force(self) -> Tensor:
        """Joint forces of the actuators, `[*batch, num_dof]` [N m or N]."""
        return self.drive.forces(self.drive.at(self.state.q, self.state.qd), self.state.act)[3]


def step(
    mech: MechanismLike,
    state: State,
    ctrl: Tensor | None = None,
    actuators: Actuators | None = None,
    *,
    contact: ContactModel | SmoothContact | None = None,
    f_ext: Tensor | None = None,
    dt: float | Tensor | None = None,
    integrator: str | None = None,
    substeps: int = 1,
) -> State:
    """Advance a mechanism with contact by one control step, as MuJoCo does.

    Contacts beyond ``max_contacts`` of their pair exert no force. A step does not count them:
    `torchsko.contacts` at its start returns their number, ``dropped``.

    Args:
        mech: the mechanism.
        state: at the start.
        ctrl: controls of the actuators, `[*batch, n]`, constant over the step; zero by default. For a robot
            file without actuators joint forces, `[*batch, num_dof]` [N m or N]; they are refused if the
            file has actuators and none of them is modeled.
        actuators: by default those of the robot file, `torchsko.actuators.actuators_of`.
        contact: shapes and parameters of contact; by default `ContactModel.of` of the mechanism, which each
            call makes anew: a loop of steps makes it once.
            `SmoothContact` selects smooth forces and a linearly implicit step.
        f_ext: external force on each body, `[*batch, num_bodies, 6]`, in the body frame at its origin.
        dt: time step of the integrator [s], a number or a tensor `[]`; by default that of the robot file.
        integrator: "Euler" (implicit in the damping of joints), "implicitfast" (implicit in the velocity of
            passive and actuator forces), "discrete" (constraints, springs and dampers at the end of the step)
            or "RK4"; by default that of the robot file.
        substeps: number of time steps.

    Returns:
        The state after the steps, with gradients to all inputs, and the largest residual of the steps. A
        sample that is not finite after the steps has zero gradients where its values can be read: in eager
        mode on a CPU, not under vmap.

    Raises:
        MechanismError: on an unknown integrator, or one with smooth contact. On controls of a robot whose
            actuators are not modeled. When the contact model belongs to another robot, or its batch
            dimensions fit no state.
        ShapeError: when the state is no `State`, and when a shape or dtype does not fit the mechanism.
        TorchskoError: on a time step that is not positive, or a number of steps below 1.

    Reference: MuJoCo documentation, "Computation", Numerical integration.

    Example:
        >>> import torchsko as ts
        >>> text = '''<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 0.1"><freejoint/>
        ...   <geom size="0.1"/></body></worldbody></mujoco>'''
        >>> ball = ts.load(text)
        >>> state, contact = ts.initial_state(ball), ts.ContactModel.of(ball)
        >>> for _ in range(5):
        ...     state = ts.step(ball, state, contact=contact)
        >>> round(float(state.q[2]), 3)
        0.1
    """
    drive, state, advance_once = _prepared(
        mech, state, ctrl, actuators, contact, f_ext, dt, integrator, substeps
    )
    return _advance_finite(advance_once, drive, state, substeps)


def step_with_evaluation(
    mech: MechanismLike,
    state: State,
    ctrl: Tensor | None = None,
    actuators: Actuators | None = None,
    *,
    contact: ContactModel | None = None,
    f_ext: Tensor | None = None,
    integrator: str | None = None,
    substeps: int = 1,
) -> tuple[State, Evaluation]:
    """The result of `step`, and the last evaluation of accelerations in it.

    The data of MuJoCo after ``mj_step`` are those of this evaluation: poses and forces at the start of the
    last time step, or at the last stage of a Runge-Kutta step. Samples that are not finite have no finite
    gradients.
    """
    drive, state, advance_once = _prepared(
        mech, state, ctrl, actuators, contact, f_ext, None, integrator, substeps
    )
    after, last, qdd = _advance_substeps(advance_once, drive, state, substeps)
    return after, Evaluation(drive, last, qdd)


def _prepared(
    mech: MechanismLike,
    state: State,
    ctrl: Tensor | None,
    actuators: Actuators | None,
    contact: ContactModel | SmoothContact | None,
    f_ext: Tensor | None,
    dt: float | Tensor | None,
    integrator: str | None,
    substeps: int,
) -> tuple[Drive, State, Advance]:
    """Checked arguments of a step: what acts, the state with all activations, and the integrator."""
    check_is_state("state", state, "ts.step(mech, ts.State(q, qd), ctrl)")
    mech = as_mechanism(mech)
    check_state(mech, q=state.q, qd=state.qd, f_ext=f_ext, warmstart=state.warmstart)
    if (as_integer(substeps) or 0) < 1:
        raise TorchskoError(
            f"substeps is {substeps!r}.",
            "It is an integer of at least 1.",
            "Pass substeps=1, say.",
        )
    smooth = contact if isinstance(contact, SmoothContact) else None
    contact = ContactModel.of(mech) if contact is None else contact
    shapes = cast(ContactModel, contact if smooth is None else smooth.shapes)
    batches = {"q": state.q.shape[:-1], "qd": state.qd.shape[:-1], "mech": mech.batch_shape}
    check_contact(mech, shapes, shared_batch(batches))
    if dt is not None:
        check_dt(mech, dt, None, backward=False)
    step_length = cast(float, shapes.options.timestep if dt is None else dt)
    advance_once = _advance_once(smooth, integrator, shapes.options.integrator)
    shapes = shapes.at_timestep(step_length)
    return *Drive.of(mech, state, ctrl, actuators, shapes, f_ext, step_length), advance_once


def _advance_once(smooth: SmoothContact | None, integrator: str | None, of_file: str) -> Advance:
    """The integrator by name, or that of smooth contact."""
    if smooth is None:
        return integrator_of(of_file if integrator is None else integrator)
    if integrator is not None:
        raise MechanismError(
            f"the integrator {integrator!r} was passed with smooth contact.",
            "Smooth contact has one integrator, the linearly implicit step.",
            "Leave integrator out, or pass a ContactModel.",
        )
    return partial(smooth_step, contact=smooth)


def integrator_of(name: str) -> Advance:
    """An integrator of `INTEGRATORS` by name.

    Raises:
        MechanismError: on an unknown name.
    """
    if name not in INTEGRATORS:
        raise MechanismError(*unknown_name("integrator of a step", name, tuple(INTEGRATORS)))
    return INTEGRATORS[name]


def _advance_substeps(
    advance_once: Advance, drive: Drive, state: State, substeps: int
) -> tuple[State, State, Tensor]:
    """The state after some steps, with the largest residual; the last evaluation and its accelerations."""

    def body(*tensors: Tensor) -> Tensors:
        before = State(*tensors)
        after = advance_once(drive, before)
        residual = torch.maximum(before.residual, after.state.residual)
        return (
            *after.state._replace(residual=residual),
            after.last.q,
            after.last.qd,
            after.last.act,
            after.last_qdd,
        )

    state = state._replace(residual=torch.zeros_like(state.residual))
    found = repeat(body, state, substeps, 4)
    return State(*found[:6]), State(*found[6:9]), found[9]


def _advance_finite(advance_once: Advance, drive: Drive, state: State, substeps: int) -> State:
    """`_advance_substeps`, without gradients of samples that are not finite afterwards.

    In reverse mode, zero times a derivative that is not finite is nan, also where a mask excludes the sample
    from the loss. The step is therefore repeated from finite inputs in these samples.
    """
    after, *_ = _advance_substeps(advance_once, drive, state, substeps)
    finite = after.q.isfinite().all(-1) & after.qd.isfinite().all(-1) & after.act.isfinite().all(-1)
    read = concrete_values(finite)
    if read is None or read.all() or not torch.is_grad_enabled():
        return after
    ctrl, f_ext = drive.ctrl, drive.f_ext
    rest = drive.mech.initial()
    # A sample that stays finite is the safest start; the initial configuration if there is none.
    state = State(
        _finite_rows(finite, state.q, 1, rest),
        *(
            _finite_rows(finite, x, RANKS[name])
            for name, x in state._asdict().items()
            if name != "q"
        ),
    )
    drive = drive._replace(
        ctrl=None if ctrl is None else _finite_rows(finite, ctrl, 1),
        f_ext=None if f_ext is None else _finite_rows(finite, f_ext, 2),
    )
    again, *_ = _advance_substeps(advance_once, drive, state, substeps)
    pairs = zip(again, after, RANKS.values(), strict=True)
    return State(*(torch.where(_rows(finite, rank), x, y.detach()) for x, y, rank in pairs))


def _rows(mask: Tensor, rank: int) -> Tensor:
    """A mask of samples that broadcasts with tensors of some dimensions for each sample."""
    return mask[(..., *[None] * rank)]


def _finite_rows(finite: Tensor, x: Tensor, rank: int, rest: Tensor | None = None) -> Tensor:
    """A tensor whose samples that are not finite are replaced by the first finite one, else by a constant."""
    shape = x.shape[x.ndim - rank :]
    x = x.expand(*finite.shape, *shape)
    flat = x.detach().reshape(finite.numel(), *shape)
    first = finite.reshape(-1).to(torch.int8).argmax()
    rest = torch.zeros_like(flat[0]) if rest is None else rest
    safe = torch.where(finite.any(), flat.index_select(0, first[None])[0], rest)
    return torch.where(_rows(finite, rank), x, safe)


def check_contact(mech: Mechanism, contact: ContactModel, batch: Sequence[int]) -> None:
    """Check that a contact model belongs to a mechanism, and that states include its batch dimensions.

    Args:
        mech: the mechanism.
        contact: the contact model.
        batch: batch dimensions of the states.

    Raises:
        MechanismError: names the type, the shape, or the tensor and its batch dimensions.
    """
    if not isinstance(contact, ContactModel):
        raise MechanismError(
            f"the contact model is a {type(contact).__name__}.",
            "It contains the shapes and the parameters of soft constraints.",
            "Pass contact=ts.ContactModel.of(mech); ts.step also accepts ts.contact.SmoothContact.of(mech).",
        )
    check_mechanism(contact, mech)
    for name, dims in PARAMETER_DIMS.items():
        x = getattr(contact, name)
        lead, shape = tuple(x.shape[: x.ndim - dims]), list(x.shape[x.ndim - dims :])
        if not is_expandable(lead, tuple(batch)):
            raise MechanismError(
                f"{name} of the contact model has batch dimensions {list(lead)}, the states have "
                f"{list(batch)}.",
                "Each sample has one contact model; a function of ts.fuse and a kernel see one sample.",
                f"Expand the states to the batch of {name}; in ts.fuse pass {name} as an argument, with "
                f"shapes={{{name!r}: {tuple(shape)}}}, to a fused rollout as params={{{name!r}: tensor}}.",
            )
