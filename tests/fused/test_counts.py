"""Upper bounds on operation counts of verbs, and agreement with eager mode."""

from functools import partial

import pytest
import torch
from torch import Tensor

import torchsko as ts
from tests.fused.evaluate import evaluate
from tests.linkages import LINKAGES
from tests.strategies import random_mechanism
from torchsko.control import Contact, posture_objective, whole_body_control
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace
from torchsko.mechanism import retraction


def humanoid() -> ts.Mechanism:
    """Thirty revolute joints in legs, waist, arms and neck, every link of general inertia.

    A limb's first joint may be placed anywhere; within a limb offsets are along the limb, with some
    sideways offset at every second joint, and axes are those of one frame: as humanoids are built.
    """
    builder = ts.MechanismBuilder("humanoid")
    g = torch.Generator().manual_seed(0)
    limbs = {"waist": (2, None), "neck": (2, "waist_1"), "left_arm": (7, "waist_1")}
    limbs |= {"right_arm": (7, "waist_1"), "left_leg": (6, None), "right_leg": (6, None)}
    for limb, (length, parent) in limbs.items():
        for k in range(length):
            name = f"{limb}_{k}"
            A = torch.randn(3, 3, generator=g, dtype=torch.float64)
            spread = A @ A.mT + torch.eye(3, dtype=torch.float64)
            inertia = spread.trace() * torch.eye(3, dtype=torch.float64) - spread
            com, position = torch.randn(2, 3, generator=g, dtype=torch.float64)
            axis = [0.0, 0.0, 0.0]
            axis[(k + length) % 3] = 1.0
            if k:
                position = position * torch.tensor([1.0 - k % 2, 0.0, 1.0])
            builder.link(name, mass=2.0, com=com.tolist(), inertia=inertia.tolist())
            builder.joint(
                f"{name}_joint", "revolute", child=name, parent=parent,
                position=position.tolist(), axis=axis,
            )  # fmt: skip
            parent = name
    return builder.build()


def forward_and_pullback(mech: ts.Mechanism, q: Tensor, qd: Tensor, tau: Tensor, cotangent: Tensor):
    """Acceleration, and its VJP by the implicit function theorem: mu = M^-1 lambda, -VJP of ID."""
    qdd = ts.forward_dynamics(mech, q, qd, tau)
    mu = ts.innovations(ts.assemble(mech, q)).solve(cotangent).detach()
    q, qd = (x.detach().requires_grad_() for x in (q, qd))
    power = (mu * ts.inverse_dynamics(mech, q, qd, qdd.detach())).sum()
    grad_q, grad_qd = torch.autograd.grad(power, (q, qd))
    return qdd, -grad_q, -grad_qd, mu


def flexible_arm() -> ts.Mechanism:
    """Two links of five shapes each, three in bending about y and two about z."""
    link = ts.FlexibleBody.beam(length=1.0, density=0.5, EI_y=20.0, EI_z=20.0, shapes=(3, 2))
    builder = ts.MechanismBuilder("arm").flexible_link("upper", link).flexible_link("lower", link)
    builder.joint("shoulder", "revolute", child="upper", axis=(0, 1, 0))
    elbow = {"parent": "upper/tip", "axis": (0, 1, 0)}
    return builder.joint("elbow", "revolute", child="lower", **elbow).build()


VERBS = {
    "inverse_dynamics": (ts.inverse_dynamics, 3),
    "forward_dynamics": (ts.forward_dynamics, 3),
    "mass_matrix": (ts.mass_matrix, 1),
    "inverse_dynamics_derivatives": (ts.inverse_dynamics_derivatives, 3),
    "forward_dynamics_derivatives": (ts.forward_dynamics_derivatives, 3),
    "forward_and_pullback": (forward_and_pullback, 4),
}
ROBOTS = {
    "panda": lambda: ts.load(ts.robots.panda),
    "humanoid": humanoid,
    "flexible arm": flexible_arm,
}


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("robot", "verb", "ceiling"),
    [
        ("panda", "inverse_dynamics", 1050),
        ("panda", "forward_dynamics", 1700),
        ("panda", "mass_matrix", 430),
        ("panda", "inverse_dynamics_derivatives", 3650),
        ("panda", "forward_dynamics_derivatives", 6450),
        ("panda", "forward_and_pullback", 3750),
        ("humanoid", "inverse_dynamics", 5000),
        ("humanoid", "forward_dynamics", 8500),
        ("humanoid", "mass_matrix", 2500),
        ("humanoid", "inverse_dynamics_derivatives", 19200),
        ("humanoid", "forward_dynamics_derivatives", 36000),
        ("humanoid", "forward_and_pullback", 18500),
        ("flexible arm", "inverse_dynamics", 1800),
        ("flexible arm", "forward_dynamics", 3700),
        ("flexible arm", "mass_matrix", 1800),
    ],
)
def test_program_is_small_and_agrees_with_eager(robot, verb, ceiling):
    mech = ROBOTS[robot]()
    fn, num_inputs = VERBS[verb]
    sizes = [mech.num_q] + 3 * [mech.num_dof]
    ports = [Port(f"x{k}", (size,)) for k, size in enumerate(sizes[:num_inputs])]
    program = trace(lambda *inputs: fn(mech, *inputs), ports)
    assert program.num_flops <= ceiling
    g = torch.Generator().manual_seed(3)
    inputs = [torch.randn(p.size, generator=g, dtype=torch.float64) for p in ports]
    eager = fn(mech, *inputs)
    for mine, theirs in zip(
        evaluate(program, inputs), eager if isinstance(eager, tuple) else (eager,), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-13, atol=1e-13 * float(theirs.abs().max()))


def test_inertial_parameters_as_inputs_cost_little():
    mech = ts.load(ts.robots.panda)
    state = [Port(name, (7,)) for name in ("q", "qd", "tau")]
    constant = trace(lambda *x: ts.forward_dynamics(mech, *x), state)

    def with_inertia(q, qd, tau, mass, com, inertia):
        return ts.forward_dynamics(mech.replace(mass=mass, com=com, inertia=inertia), q, qd, tau)

    parameters = [
        Port("mass", (7,), True),
        Port("com", (7, 3), True),
        Port("inertia", (7, 3, 3), True),
    ]
    program = trace(with_inertia, [*state, *parameters])
    assert program.num_flops < 1.25 * constant.num_flops


def count_of(fn, mech: ts.Mechanism, *sizes: int) -> int:
    return trace(lambda *x: fn(mech, *x), [Port(f"x{n}", (n,)) for n in sizes]).num_flops


@pytest.mark.parametrize("name", ["Stewart platform, pose", "Stewart platform, leg lengths"])
def test_stages_share_closing_and_dynamics(name):
    """A step of four stages has the text of two: the first one, and the function of all others."""
    mech = LINKAGES[name]()
    q, n = mech.num_q, mech.num_dof

    def step(mech: ts.Mechanism, q: Tensor, qd: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        after = ts.integrators.advance(mech, ts.State(q, qd), tau, dt=1e-3, method="rk4")
        return after.q, after.qd

    single = count_of(ts.forward_dynamics, mech, q, n, n) + count_of(ts.integrate, mech, q, n)
    assert count_of(step, mech, q, n, n) < 2 * single


def test_iterations_of_closing_do_not_multiply_text(monkeypatch):
    mech = LINKAGES["four-bar, ball"]()
    counts = []
    for steps in (3, 40):
        monkeypatch.setattr(retraction, "NEWTON_STEPS", steps)
        counts.append(count_of(ts.integrate, mech, mech.num_q, mech.num_dof))
    assert counts[0] == counts[1]


def test_iterations_of_whole_body_control_do_not_multiply_text():
    mech = random_mechanism(["free", "revolute", "revolute"], [-1, 0, 0], seed=2, passive=False)
    contact = Contact(ts.Frame(mech.body_names[1]))

    def tau(k: int, mech: ts.Mechanism, q: Tensor, qd: Tensor) -> Tensor:
        asked = [posture_objective(mech, q, qd, mech.middle())]
        return whole_body_control(mech, q, qd, asked, [contact], iterations=k).tau

    counts = [count_of(partial(tau, k), mech, mech.num_q, mech.num_dof) for k in (5, 30)]
    assert counts[0] == counts[1]
