"""Solvers in kernels: Newton's method in a loop that reads the robot, with implicit derivatives."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._pytree import tree_leaves

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.scan import Scan
from torchsko.fused.functions.traits import Traits
from torchsko.fused.program.program import Loop, Port, Program
from torchsko.implicit.equation import implicit
from torchsko.implicit.loop_roles import LoopRoles
from torchsko.linalg.symmetric import spd_solve
from torchsko.utils.dtype import compute_dtype

D = torch.float64
LEG = random_mechanism(["prismatic", "revolute"], [-1, 0], seed=4, passive=False)
FOOT = LEG.frame_names[-1]


class PressedLeg:
    """Motion of least acceleration energy under a force that grows with the approach of a foot.

    The acceleration x minimizes 1/2 x* M x + (bias - tau)* x + s(J x), with s(a) = sum log(1 + exp(-a)).
    This objective is strictly convex. The force on the foot is -grad s.
    """

    def __init__(self, mech: ts.Mechanism) -> None:
        self.mech = mech

    def terms(self, x: Tensor, *inputs: Tensor) -> tuple[ts.Mechanism, Tensor, Tensor]:
        mass, q, *_ = inputs
        mech = self.mech.replace(mass=mass)
        J = ts.frame_jacobian(mech, q, FOOT)[..., 3:, :]
        return mech, J, (J @ x[..., None])[..., 0]

    def solution(self, *inputs: Tensor) -> Tensor:
        """The minimum by Newton's method; the body of the loop captures its inputs."""

        def body(x: Tensor) -> Tensor:
            return x - self.solve(self.residual(x, *inputs), x, *inputs, transposed=False)

        def until(x: Tensor) -> Tensor:
            tolerance = 1e4 * torch.finfo(compute_dtype(x)).eps
            return self.residual(x, *inputs).abs().amax(-1) < tolerance

        return ts.iterate(body, torch.zeros_like(inputs[2]), 40, until=until)

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """The gradient of the objective."""
        _, q, qd, tau = inputs
        mech, J, a = self.terms(x, *inputs)
        force = torch.sigmoid(-a)[..., None]
        return ts.inverse_dynamics(mech, q, qd, x) - tau - (J.mT @ force)[..., 0]

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """The solution with the Hessian of the objective."""
        mech, J, a = self.terms(x, *inputs)
        stiffness = torch.sigmoid(a) * torch.sigmoid(-a)
        H = ts.mass_matrix(mech, inputs[1]) + J.mT @ (stiffness[..., None] * J)
        return spd_solve(H, rhs[..., None])[..., 0]


def pressed(mech: Any, q: Tensor, qd: Tensor, tau: Tensor) -> Tensor:
    return implicit(PressedLeg(mech), mech.mass, q, qd, tau)


def states(*batch: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    q, qd = LEG.random_state(*batch, generator=g)
    return [q, qd, 3 * torch.randn(qd.shape, generator=g, dtype=D)]


@pytest.fixture(scope="module")
def fast() -> Any:
    return ts.fuse(pressed, LEG, inputs=("mass",))


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.nightly)]
)
def test_a_solver_in_a_kernel_finds_the_minimum(fast, batch, dtype):
    given = [x.to(dtype) for x in states(*batch)]
    robot = LEG.to(dtype)
    found = (fast if dtype == D else ts.fuse(pressed, robot, inputs=("mass",)))(*given)
    residual = PressedLeg(robot).residual(found, robot.mass, *given)
    assert found.shape == given[1].shape
    assert float(residual.abs().max()) < 1e4 * torch.finfo(dtype).eps


def derivatives_of(mech: Any) -> list[Tensor]:
    """Jacobians by mass and force, and a second derivative, of each of two samples."""

    def fn(mass: Tensor, *state: Tensor) -> Tensor:
        return (
            pressed(mech.replace(mass=mass), *state)
            if mech is LEG
            else mech.replace(mass=mass)(*state)
        )

    first = torch.func.jacrev(fn, argnums=(0, 3))
    second = torch.func.jacfwd(torch.func.jacrev(lambda *x: fn(*x).sum(), argnums=1), argnums=0)
    given = LEG.mass, *states(2)
    return [x for f in (first, second) for x in tree_leaves(torch.vmap(f, (None, 0, 0, 0))(*given))]


def test_a_solver_in_a_kernel_has_the_derivatives_of_its_equation(fast):
    torch.testing.assert_close(derivatives_of(fast), derivatives_of(LEG), rtol=1e-9, atol=1e-9)


@pytest.mark.nightly
def test_a_solver_in_a_kernel_has_the_derivatives_of_differences(fast):
    given = [x.clone().requires_grad_() for x in (LEG.mass, *states(2))]

    def fn(mass: Tensor, *state: Tensor) -> Tensor:
        return fast.replace(mass=mass)(*state)

    assert gradcheck(fn, given)
    assert gradcheck(fn, given, check_forward_ad=True, check_backward_ad=False)
    assert gradgradcheck(fn, given)


def test_a_solver_may_be_mapped_within_a_kernel():
    """One kernel computes the accelerations of several candidates for the forces."""

    def candidates(mech: Any, q: Tensor, qd: Tensor, tau: Tensor) -> Tensor:
        scales = torch.linspace(0.0, 2.0, 4, dtype=q.dtype)
        return torch.vmap(lambda s: pressed(mech, q, qd, s * tau))(scales)

    fused, given = ts.fuse(candidates, LEG, inputs=("mass",)), states(3)
    wanted = torch.stack([candidates(LEG, *x) for x in zip(*given, strict=True)])
    torch.testing.assert_close(fused(*given), wanted, rtol=1e-10, atol=1e-10)


def test_a_solver_in_a_law_is_part_of_a_whole_rollout():
    gain = torch.tensor(0.7, dtype=D, requires_grad=True)

    def law(t: Any, q: Tensor, qd: Tensor) -> Tensor:
        return gain * pressed(LEG, q, qd, -q)

    q, qd, _ = states(3)
    results = []
    for fused in (True, False):
        qs = ts.rollout(ts.fuse(LEG), ts.State(q, qd), law, steps=10, dt=1e-2, fused=fused).q
        results.append((qs.detach(), torch.autograd.grad(qs.square().sum(), gain)[0]))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


def substeps(mech: Any, mass: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
    """Substeps in a loop, each with a solution of the equation."""
    q, qd, tau = state

    def body(q: Tensor, qd: Tensor) -> tuple[Tensor, Tensor]:
        qd = qd + 0.01 * implicit(PressedLeg(mech), mass, q, qd, tau)
        return q + 0.01 * qd, qd

    return ts.iterate(body, (q, qd), 4)


def solver_loops(program: Program) -> list[Loop]:
    """Loops that end early, also those within loops: the iterations of solvers."""
    inner = [x for loop in program.loops for x in solver_loops(loop.program)]
    return [*inner, *(loop for loop in program.loops if loop.flags)]


def vjp_of_substeps(order: int = 1) -> tuple[FusedFunction, list[Tensor], list[Tensor]]:
    """The substeps as kernels, their inputs, and the gradients of a function of their results."""
    ports = [Port(name, (2,)) for name in ("mass", "q", "qd", "tau")]
    traits = Traits(num_outputs=2, order=order, batched=partial(substeps, LEG))
    fused = FusedFunction(partial(substeps, LEG), ports, traits)
    given = [x.expand(2, 2).clone().requires_grad_() for x in (LEG.mass, *states(2))]
    energy = sum(x.square().sum() for x in fused(*given))
    return fused, given, [*torch.autograd.grad(energy, given, create_graph=order > 1)]


def test_a_backward_pass_reads_the_solutions_of_the_forward_pass():
    fused, given, found = vjp_of_substeps()
    ((_, vjp),) = fused._derivatives.items()
    assert len(solver_loops(fused.program)) == 1 and not solver_loops(vjp.program)
    energy = sum(x.square().sum() for x in substeps(LEG, *given))
    torch.testing.assert_close(found, [*torch.autograd.grad(energy, given)], rtol=1e-9, atol=1e-9)


@pytest.mark.nightly
def test_second_derivatives_pass_through_stored_solutions():
    _, given, found = vjp_of_substeps(order=2)
    second = torch.autograd.grad(sum(x.sin().sum() for x in found), given)
    energy = sum(x.square().sum() for x in substeps(LEG, *given))
    wanted = torch.autograd.grad(energy, given, create_graph=True)
    wanted = torch.autograd.grad(sum(x.sin().sum() for x in wanted), given)
    torch.testing.assert_close(second, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("every", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_the_backward_pass_of_a_rollout_reads_the_solutions_of_its_steps(every):
    ports = [Port(x, (2,)) for x in ("q", "qd", "mass")]

    def step(mech: Any, q: Tensor, qd: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        qd = qd + 0.01 * implicit(PressedLeg(mech), mass, q, qd, -q)
        return q + 0.01 * qd, qd

    traits = Traits(num_outputs=2, batched=partial(step, LEG))
    scan = Scan(FusedFunction(partial(step, LEG), ports, traits), LoopRoles(2, 0, 0, 0))
    q, qd, _ = states(3)
    mass = LEG.mass.clone().requires_grad_()
    qs, _ = scan.of_length(7, every)(q, qd, mass)
    (found,) = torch.autograd.grad(qs.square().sum(), mass)
    for vjp in scan._derivatives.values():
        assert not solver_loops(vjp.step.program)
    path = [(q, qd)]
    for _ in range(7):
        path.append(step(LEG, *path[-1], mass))
    wanted = torch.stack([x for x, _ in path[::every]], 1)
    torch.testing.assert_close(qs, wanted, rtol=1e-9, atol=1e-9)
    (gradient,) = torch.autograd.grad(wanted.square().sum(), mass)
    torch.testing.assert_close(found, gradient, rtol=1e-9, atol=1e-9)
