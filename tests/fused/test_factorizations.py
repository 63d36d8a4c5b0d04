"""Traced factorizations and solves equal those of PyTorch, with derivatives."""

import pytest
import torch
from torch import Tensor, linalg
from torch.func import jacfwd, jacrev

import torchsko as ts
from tests.fused.evaluate import evaluate
from torchsko.control import Task, posture_objective, whole_body_control
from torchsko.control.task_space.impedance import impedance
from torchsko.errors import FusedError
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.swap import Swap
from torchsko.fused.tracing.tracer import trace
from torchsko.linalg.dense import MAX_ROWS, MIN_ROWS
from torchsko.linalg.symmetric import ldl, spd_logdet, spd_solve
from torchsko.utils.dtype import compute_dtype

N = 4


def positive(A: Tensor) -> Tensor:
    return A @ A.mT + torch.eye(N, dtype=A.dtype)


FUNCTIONS = {
    "solve": lambda A, b: linalg.solve(A, b),
    "transposed": lambda A, b: linalg.solve(A.mT, b[:, None] * b),
    "right": lambda A, b: linalg.solve(A, b[:, None] * b, left=False),
    "several": lambda A, b: linalg.solve(torch.stack([A, A.mT]), b),
    "inverse": lambda A, b: linalg.inv(A) @ b,
    "by factors": lambda A, b: linalg.lu_solve(*linalg.lu_factor(A.detach()), b[:, None]),
    "by transposed factors": lambda A, b: linalg.lu_solve(
        *linalg.lu_factor_ex(A.detach())[:2], b[None] * b[:, None], adjoint=True, left=False
    ),
    "by factors of several": lambda A, b: linalg.lu_solve(
        *linalg.lu_factor(torch.stack([A, A.mT]).detach()), b[:, None] * b
    ),
    "power": lambda A, b: linalg.matrix_power(A, -2) @ b,
    "cholesky": lambda A, b: linalg.cholesky(positive(A)) @ b,
    "upper": lambda A, b: linalg.cholesky(positive(A), upper=True) @ b,
    "cholesky_solve": lambda A, b: torch.cholesky_solve(b[:, None], linalg.cholesky(positive(A))),
    "cholesky_inverse": lambda A, b: torch.cholesky_inverse(linalg.cholesky(positive(A))) @ b,
    "determinant": lambda A, b: linalg.det(A) * b,
    "of two rows": lambda A, b: torch.det(A[2:, :2]) * A[:, 3].cumsum(0)[:2].prod() * b,
    "of three rows": lambda A, b: A[1:, 1:].det() * b,
    "of several": lambda A, b: linalg.det(torch.stack([A, A @ A])),
    "its logarithm": lambda A, b: torch.logdet(positive(A)) * b,
    "its sign": lambda A, b: torch.stack([*linalg.slogdet(A)]),
    "triangular": lambda A, b: linalg.solve_triangular(A, b[:, None], upper=True),
    "unit": lambda A, b: linalg.solve_triangular(
        A, b[None], upper=False, left=False, unitriangular=True
    ),
}
BOTH = "forward of reverse"
DERIVATIVES = {
    "value": lambda f: f,
    "reverse": lambda f: jacrev(f, (0, 1)),
    "forward": lambda f: jacfwd(f, (0, 1)),
    "second": lambda f: jacrev(jacrev(lambda x, b: f(x, b).square().sum()), (0, 1)),
    BOTH: lambda f: jacfwd(jacrev(lambda x, b: f(x, b).square().sum()), (0, 1)),
}


@pytest.mark.parametrize(
    ("name", "derivative"),
    [
        # By day each with one of the two second derivatives, in turn.
        pytest.param(name, x, marks=[pytest.mark.nightly] if x == ("second", BOTH)[k % 2] else [])
        for k, name in enumerate(FUNCTIONS)
        for x in DERIVATIVES
    ],
)
def test_factorizations_have_the_pivots_and_values_of_pytorch(name, derivative):
    g = torch.Generator().manual_seed(0)
    x, b = torch.randn(3, N * N, generator=g).double(), torch.randn(3, N, generator=g).double()
    if name not in ("triangular", "unit"):
        x[1, 0] = x[2, [0, 1, 4]] = 0.0  # without exchanged rows these would be divided by

    def function(x: Tensor, b: Tensor) -> Tensor:
        with Swap():  # as around every function that is fused
            return FUNCTIONS[name](x.reshape(N, N), b)

    both = DERIVATIVES[derivative](function)
    found = evaluate(trace(both, [Port("x", (N * N,)), Port("b", (N,))]), (x, b))
    for k in range(3):
        expected = both(x[k], b[k])
        for one, other in zip(
            found, [expected] if derivative == "value" else expected, strict=True
        ):
            scale = other.abs().max().clamp(1.0)
            torch.testing.assert_close(one[k] / scale, other / scale, rtol=0, atol=1e-11)


@pytest.mark.nightly
def test_a_controller_that_solves_for_its_forces_is_a_kernel():
    arm = ts.load(ts.robots.panda)
    g = torch.Generator().manual_seed(0)
    q, qd = arm.random_state(5, generator=g)

    def law(mech: ts.Mechanism, q: Tensor, qd: Tensor) -> Tensor:
        """Joint forces of a downward force on the hand."""
        J, M = ts.frame_jacobian(mech, q, "flange"), ts.mass_matrix(mech, q)
        compliance = J @ linalg.solve(M, J.mT) + 1e-3 * torch.eye(6, dtype=q.dtype)
        pull = linalg.inv(compliance)[..., 5:] - J @ qd[..., None]
        return (J.mT @ pull)[..., 0]

    fast = ts.fuse(law, arm)
    states = [x.clone().requires_grad_() for x in (q, qd)]
    values = [f(*states) for f in (fast, lambda q, qd: law(arm, q, qd))]
    torch.testing.assert_close(*values, rtol=1e-9, atol=1e-9)
    weight = torch.randn(values[0].shape, generator=g, dtype=q.dtype)
    fused, eager = (torch.autograd.grad((x * weight).sum(), states) for x in values)
    for one, other in zip(fused, eager, strict=True):
        torch.testing.assert_close(one / other.abs().max(), other / other.abs().max())


def test_the_determinant_of_a_singular_matrix_has_derivatives():
    """At rank n - 1 the gradient is the adjugate; PyTorch's second derivatives are wrong there."""
    A = torch.tensor([[1.0, 2, 3, 4], [0, 1, 5, 2], [1, 3, 8, 6], [2, 0, 1, 1]]).double()
    minors = [[(-1) ** (i + j) * linalg.det(_without(A, i, j)) for j in range(4)] for i in range(4)]
    arm = ts.load(ts.robots.panda)
    fast = ts.fuse(lambda mech, A: linalg.det(A), arm, shapes={"A": (4, 4)})
    (gradient,) = torch.autograd.grad(fast(A.requires_grad_()), A)
    torch.testing.assert_close(gradient, torch.tensor(minors).double())


def _without(A: Tensor, i: int, j: int) -> Tensor:
    kept = [[k for k in range(len(A)) if k != m] for m in (i, j)]
    return A.detach()[kept[0]][:, kept[1]]


def test_what_has_no_solution_is_not_finite():
    program = trace(lambda x: linalg.solve(x.reshape(2, 2), x[:2]), [Port("x", (4,))])
    assert not evaluate(program, (torch.ones(1, 4).double(),))[0].isfinite().any()
    program = trace(lambda x: linalg.cholesky(x.reshape(2, 2)), [Port("x", (4,))])
    assert not evaluate(program, (-torch.ones(1, 4).double(),))[0][0, 0, 0].isfinite()


def test_pivots_are_pytorchs():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20, N * N, generator=g).double()
    function = lambda x: linalg.lu_factor(x.reshape(N, N))  # noqa: E731
    found = evaluate(trace(function, [Port("x", (N * N,))]), (x,))
    for one, other in zip(found, linalg.lu_factor(x.reshape(-1, N, N)), strict=True):
        torch.testing.assert_close(one, other.double(), rtol=0, atol=1e-12)


def test_factors_of_a_constant_matrix_solve_as_pytorchs_do():
    g = torch.Generator().manual_seed(0)
    A, b = torch.randn(3, N, N, generator=g).double(), torch.randn(5, N, generator=g).double()
    LU, pivots = linalg.lu_factor(A)
    assert (pivots != torch.arange(1, N + 1)).any()

    def function(b: Tensor) -> Tensor:
        return linalg.lu_solve(LU, pivots, b[:, None])

    (found,) = evaluate(trace(function, [Port("b", (N,))]), (b,))
    for k in range(5):
        torch.testing.assert_close(found[k], function(b[k]), rtol=0, atol=1e-12)


def test_derivatives_of_the_factors_themselves_are_refused_with_what_to_type():
    function = torch.func.grad(lambda x: linalg.lu_factor(x.reshape(2, 2))[0].sum())
    with pytest.raises(FusedError, match=r"torch\.linalg\.solve"):
        trace(function, [Port("x", (4,))])


@pytest.mark.nightly  # by day with contacts in control/test_whole_body.py
def test_a_whole_body_law_of_an_arm_is_a_kernel_with_gradients():
    arm = ts.load(ts.robots.panda)
    g = torch.Generator().manual_seed(0)
    q, qd = arm.random_state(5, generator=g)
    home = torch.zeros(7, dtype=q.dtype, requires_grad=True)

    def law(mech: ts.Mechanism, q: Tensor, qd: Tensor) -> Tensor:
        asked = [posture_objective(mech, q, qd, home)]
        return whole_body_control(mech, q, qd, asked, iterations=4).tau

    fast = ts.fuse(law, arm)
    states = [x.clone().requires_grad_() for x in (q, qd)]
    values = [f(*states) for f in (fast, lambda q, qd: law(arm, q, qd))]
    torch.testing.assert_close(*values, rtol=1e-8, atol=1e-8)
    weight = torch.randn(values[0].shape, generator=g, dtype=q.dtype)
    fused, eager = (torch.autograd.grad((x * weight).sum(), [*states, home]) for x in values)
    for one, other in zip(fused, eager, strict=True):
        scale = other.abs().max()
        torch.testing.assert_close(one / scale, other / scale, rtol=1e-7, atol=1e-7)


LARGE = MIN_ROWS + 1
FACTORIZED = {
    "solve": lambda A, b: linalg.solve(A, b),
    "solve from the right": lambda A, b: linalg.solve(A, b.mT, left=False),
    "inverse": lambda A, b: linalg.inv(A),
    "Cholesky": lambda A, b: torch.cholesky_solve(b, linalg.cholesky(A @ A.mT)),
    "definite": lambda A, b: spd_solve(A @ A.mT, b),
    "logarithm": lambda A, b: spd_logdet(A @ A.mT),
    "LDL": lambda A, b: torch.stack(ldl(A @ A.mT).pivots),
    "LDL solve": lambda A, b: (lambda f: f.backward(f.scaled(f.forward(b))))(ldl(A @ A.mT)),
}


@pytest.mark.parametrize("fn", FACTORIZED.values(), ids=FACTORIZED.keys())
def test_large_factorizations_are_instructions_with_derivatives(fn):
    """Values, gradients and forward derivatives of gradients are those of eager mode."""
    g = torch.Generator().manual_seed(0)
    A, b = (torch.randn(2, LARGE, k, generator=g, dtype=torch.float64) for k in (LARGE, 2))
    A = A + 8 * torch.eye(LARGE, dtype=A.dtype)

    def gradient(A, b):
        return torch.func.grad(lambda A: fn(A, b).sin().sum())(A)

    def curvature(A, b):
        return torch.func.jvp(lambda A: gradient(A, b), (A,), (A.cos(),))[1]

    ports = [Port("A", (LARGE, LARGE)), Port("b", (LARGE, 2))]
    for of in (fn, gradient, curvature):
        program = trace(of, ports)
        assert any(loop.program.block for loop in program.loops)
        (found,), expected = evaluate(program, (A, b)), torch.vmap(of)(A, b)
        scale = float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 * scale)


def test_a_newton_round_of_36_rows_is_a_short_program():
    def newton(G, weights, x):
        return x - spd_solve(torch.eye(36) + G.mT @ (weights[:, None] * G), x[:, None])[:, 0]

    ports = [Port("G", (36, 36)), Port("weights", (36,)), Port("x", (36,))]
    assert trace(newton, ports).num_flops < 3000


def test_what_would_fill_a_kernel_or_has_no_rule_is_refused_with_what_to_type():
    n = MAX_ROWS + 1
    with pytest.raises(FusedError, match=rf"a matrix of {n} rows(.|\n)*cholesky_solve"):
        trace(lambda x: linalg.solve(x.reshape(n, n), x[:n]), [Port("x", (n * n,))])
    with pytest.raises(FusedError, match=r"without ts\.fuse or fused=True"):
        trace(lambda x: linalg.lu_factor(x.reshape(n, n)), [Port("x", (n * n,))])
    with pytest.raises(FusedError, match="a pseudo-inverse solve with"):
        trace(lambda x: linalg.pinv(x.reshape(2, 2)), [Port("x", (4,))])
    with pytest.raises(FusedError, match=r"torch\.linalg\.solve, inv"):
        trace(lambda x: linalg.qr(x.reshape(2, 2))[0], [Port("x", (4,))])


def test_impedance_is_a_kernel_as_its_refusal_says():
    arm = ts.load(ts.robots.panda)
    q, qd = arm.random_state(5, generator=torch.Generator().manual_seed(0))
    place = torch.tensor([0.5, 0.1, 0.4], dtype=q.dtype)

    def law(singular, mech: ts.Mechanism, q: Tensor, qd: Tensor) -> Tensor:
        return impedance(mech, q, qd, [Task("flange", (None, place))], singular=singular)

    with pytest.raises(FusedError, match=r'singular=\("damped", 1e-4\)'):
        ts.fuse(lambda mech, q, qd: law("pinv", mech, q, qd), arm)(q, qd)
    damped = ("damped", 1e-4)
    fast = ts.fuse(lambda mech, q, qd: law(damped, mech, q, qd), arm)
    expected = law(damped, arm, q, qd)
    torch.testing.assert_close(fast(q, qd), expected, rtol=1e-9, atol=1e-9)


def test_a_function_reads_the_dtype_of_its_kernel():
    """Near a singular configuration a float32 kernel decides as eager float32 does."""
    arm = ts.load(ts.robots.panda).to(torch.float32)
    near = 1e-4 * torch.tensor([[1.0, -1, 1, 2, -1, 1, 0.5]])

    def inertia(mech: ts.Mechanism, q: Tensor) -> Tensor:
        return ts.operational_space_inertia(mech, q, "flange")

    assert inertia(arm, near).isnan().all()
    assert ts.fuse(inertia, arm)(near).isnan().all()


def test_the_type_of_a_kernel_is_told_within_transforms_and_loops():
    def rounding(x: Tensor) -> Tensor:
        return x * torch.finfo(compute_dtype(x)).eps

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return ts.iterate(rounding, x, 2), torch.func.vmap(jacrev(rounding))(x), jacfwd(rounding)(x)

    x = torch.ones(1, 2, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        eps = torch.finfo(dtype).eps
        within, backward, forward = evaluate(trace(function, [Port("x", (2,))], dtype), (x,))
        assert (within == eps**2).all() and (backward == eps).all()
        assert (forward.diagonal(0, -2, -1) == eps).all()
