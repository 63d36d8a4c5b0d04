"""Simplification: equal expressions are merged, zeros vanish, and values do not change."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fused.evaluate import evaluate
from torchsko.fused.program.graph import Graph
from torchsko.fused.program.lower import lower
from torchsko.fused.program.program import Port

BINARY = ["add", "sub", "mul", "div", "min", "max", "atan2"]
UNARY = ["neg", "sin", "cos", "tanh", "abs", "atan", "sign"]


@pytest.fixture
def graph() -> Graph:
    return Graph()


@pytest.fixture
def x(graph: Graph) -> int:
    return graph.input(0)


@pytest.fixture
def y(graph: Graph) -> int:
    return graph.input(1)


def ops(graph: Graph, *outputs: int) -> list[str]:
    program = lower(graph, outputs, [Port("x", (4,))], [Port("y", (len(outputs),))])
    return [instr.op for instr in program.code if instr.op not in ("const", "input")]


@pytest.mark.parametrize("op", ["add", "mul", "min", "max", "eq", "ne"])
def test_commuting_operands_give_one_expression(graph, x, y, op):
    assert graph.binary(op, x, y) == graph.binary(op, y, x)


@pytest.mark.parametrize("op", ["add", "mul"])
def test_identity_element_vanishes(graph, x, op):
    identity = graph.const(0.0 if op == "add" else 1.0)
    assert graph.binary(op, x, identity) == graph.binary(op, identity, x) == x


def test_structural_zero_annihilates(graph, x):
    assert graph.mul(x, 0) == 0


def test_the_number_zero_as_a_factor_stays(graph, x):
    """Its product with nan is nan."""
    zero = graph.factor(0.0)
    for product in (graph.mul(zero, x), graph.mul(graph.mul(graph.const(2.0), x), zero)):
        program = lower(graph, [product], [Port("x", ())], [Port("y", ())])
        (result,) = evaluate(program, [torch.tensor([1.0, math.nan], dtype=torch.float64)])
        assert result[0] == 0 and result[1].isnan()
    assert graph.mul(zero, graph.const(3.0)) == graph.mul(zero, 1) == 0


def test_difference_with_itself_is_zero(graph, x):
    assert graph.sub(x, x) == 0


def test_differences_of_both_orders_are_one_node(graph, x, y):
    assert graph.sub(x, y) == -graph.sub(y, x)


def test_subtracting_a_negation_adds(graph, x, y):
    assert graph.sub(x, -y) == graph.add(x, y)


def test_negations_move_out_of_products(graph, x, y):
    assert graph.mul(-x, y) == graph.mul(x, -y) == -graph.mul(x, y)


@pytest.mark.parametrize("op", ["sin", "tan", "tanh", "atan", "recip"])
def test_odd_functions_pass_the_sign(graph, x, op):
    assert graph.unary(op, -x) == -graph.unary(op, x)


@pytest.mark.parametrize("op", ["cos", "abs"])
def test_even_functions_drop_the_sign(graph, x, op):
    assert graph.unary(op, -x) == graph.unary(op, x)


def test_product_with_the_inverse_is_one_for_a_regular_expression(graph, x, y):
    assert graph.mul(y, graph.recip(y)) != 1
    graph.mark_regular([x])
    assert graph.mul(x, graph.recip(x)) == 1
    assert graph.div(-x, x) == -1


def test_regular_denominator_cancels_inside_a_product(graph, x, y):
    graph.mark_regular([x])
    assert graph.mul(graph.div(y, x), x) == y


def test_projected_inertia_vanishes_along_the_hinge(graph, x, y):
    # P+ = P - U U* / D with U = P h and h a coordinate axis: U is a column of P, D is on it.
    U, D = y, x
    graph.mark_regular([D])
    assert graph.sub(U, graph.mul(graph.div(D, D), U)) == 0
    assert graph.sub(U, graph.mul(graph.div(U, D), D)) == 0


def test_constant_factors_merge(graph, x):
    inner = graph.mul(graph.const(3.0), x)
    assert graph.mul(graph.const(-2.0), inner) == graph.mul(x, graph.const(-6.0))


def test_canceled_constants_become_exact_zero(graph):
    noise = graph.sub(graph.add(graph.const(0.1), graph.const(0.2)), graph.const(0.3))
    assert noise == 0


def test_quarter_turns_become_exact(graph):
    angle = graph.const(math.pi / 2)
    assert (graph.unary("cos", angle), graph.unary("sin", angle)) == (0, 1)


def test_small_constants_are_kept(graph):
    tiny = graph.mul(graph.const(1e-12), graph.const(1e-9))
    assert graph.value(tiny) == 1e-12 * 1e-9
    assert graph.value(graph.unary("sin", tiny)) == graph.value(tiny)


def test_infinity_times_zero_stays_undefined(graph, x):
    assert math.isnan(graph.value(graph.mul(graph.const(math.inf), 0)))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 8, -1, -3, 0.5, -0.5, 1.5, -2.5, 0.3, 11])
def test_power_with_constant_exponent(graph, x, exponent):
    power = graph.pow(x, graph.const(float(exponent)))
    program = lower(graph, [power], [Port("x", ())], [Port("y", ())])
    base = torch.tensor([0.3, 1.7], dtype=torch.float64)
    torch.testing.assert_close(evaluate(program, [base])[0], base**exponent, rtol=1e-14, atol=0)


def test_shared_denominator_is_inverted_once_and_a_single_one_divides(graph, x, y):
    z = graph.input(2)
    assert sorted(ops(graph, graph.div(x, z), graph.div(y, z))) == ["mul", "mul", "recip"]
    graph = Graph()
    assert ops(graph, graph.div(graph.input(0), graph.input(1))) == ["div"]


def test_negative_results_need_no_negation_where_a_sum_can_turn(graph, x, y):
    difference = graph.sub(x, y)
    assert ops(graph, -difference) == ["sub"]
    assert ops(graph, -graph.mul(x, graph.const(3.0))) == ["mul"]
    assert ops(graph, -graph.add(graph.mul(difference, x), y)) == ["sub", "mul", "sub"]


def test_dead_code_is_dropped(graph, x, y):
    graph.mul(x, y)
    assert ops(graph, graph.add(x, y)) == ["add"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*BINARY, *UNARY, "where"]), st.integers(0, 99), st.integers(0, 99)
        ),
        min_size=1,
        max_size=24,
    ),
    st.integers(0, 2**31),
)
def test_simplification_keeps_values(recipe, seed):
    graph = Graph()
    noise = torch.Generator().manual_seed(seed)
    inputs = torch.randn(16, 4, dtype=torch.float64, generator=noise)
    constants = (0.0, 1.0, -1.0, 2.0)
    expressions = [graph.input(k) for k in range(4)] + [graph.const(c) for c in constants]
    exact = [*inputs.unbind(-1), *(torch.full((16,), c, dtype=torch.float64) for c in constants)]
    shaken = list(exact)
    for op, i, j in recipe:
        i, j = i % len(exact), j % len(exact)
        value = function(op)(exact[i], exact[j])
        # Away from poles and jumps, where rounding alone decides the value.
        is_tame = ((value.abs() > 0.05) & (value.abs() < 20)).all()
        if is_tame and (op not in ("where", "sign") or (exact[i] - exact[j]).abs().min() > 0.05):
            expressions.append(expression(graph, op, expressions[i], expressions[j]))
            exact.append(value)
            shake = 1 + 1e-9 * torch.randn(16, dtype=torch.float64, generator=noise)
            shaken.append(function(op)(shaken[i], shaken[j]) * shake)
    program = lower(graph, expressions, [Port("x", (4,))], [Port("y", (len(exact),))])
    error = evaluate(program, [inputs])[0] - torch.stack(exact, -1)
    sensitivity = (torch.stack(shaken, -1) - torch.stack(exact, -1)).abs().amax(0) / 1e-9
    assert (error.abs() <= 1e-13 + 1e-14 * sensitivity).all()


def expression(graph: Graph, op: str, a: int, b: int) -> int:
    if op == "where":
        return graph.where(graph.binary("lt", a, b), a, b)
    return graph.unary(op, a) if op in UNARY else graph.binary(op, a, b)


def function(op: str):
    if op == "where":
        return lambda x, y: torch.where(x < y, x, y)
    if op in UNARY:
        return lambda x, y: getattr(torch, op)(x)
    return {"min": torch.minimum, "max": torch.maximum, "div": torch.true_divide}.get(
        op, getattr(torch, op, None)
    )
