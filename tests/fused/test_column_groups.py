"""Column groups of matrix-product loops: each column is in one group, those of a limb in the same."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fused.evaluate import evaluate
from tests.fused.test_matrix_products import masked
from torchsko.fused.program.column_groups import group_columns
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace

D = torch.float64


def limbs(counts, base=6):
    """Nonzero pattern of a triangular factor of a mass matrix, for limbs on a common base."""
    n = base + sum(counts)
    factor = torch.zeros(n, n, dtype=torch.bool)
    factor[:base, :base] = torch.ones(base, base).triu().bool()
    first = base
    for count in counts:
        own = slice(first, first + count)
        factor[own, own] = torch.ones(count, count).triu().bool()
        factor[:base, own] = True
        first += count
    return factor


def on_paths(factor):
    return factor | factor.mT


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_columns_of_one_limb_are_together_and_none_is_left_out(counts):
    factor = limbs(counts)
    columns = torch.cat([on_paths(factor)] * 2, 1)
    groups = group_columns([factor.mT, factor], columns)
    assert sorted(k for group in groups for k in group.columns) == [*range(columns.shape[1])]
    of_group = {k: i for i, group in enumerate(groups) for k in group.columns}
    first = 6
    for count in counts:
        assert len({of_group[k] for k in range(first, first + count)}) == 1
        first += count


@settings(deadline=None)
@given(n=st.integers(3, 20), m=st.integers(1, 24), density=st.floats(0, 1), seed=st.integers(0, 99))
def test_groups_hold_all_that_is_not_zero_and_cost_no_more_than_all_columns_alike(
    n, m, density, seed
):
    g = torch.Generator().manual_seed(seed)
    factor, columns = (torch.rand(n, k, generator=g) < density for k in (n, m))
    groups = group_columns([factor], columns)
    found = [k for group in groups for k in group.columns]
    assert len(found) == len(set(found)) and {*columns.any(0).nonzero()[:, 0].tolist()} <= {*found}
    for group in groups:
        rows = columns[:, group.columns].any(1)
        assert group.products_per_column == int(factor[:, rows].sum())
        assert group.products >= group.products_per_column * len(group.columns)
    assert sum(group.products_in_code for group in groups) <= 4 * int(factor.sum()) * max(
        1, len(groups)
    )


def test_products_over_limbs_are_a_loop_a_limb_with_fewer_products_and_the_same_values():
    factor = limbs([8, 8, 6, 6])
    n = factor.shape[0]
    fn = masked(
        lambda w, x: w.mT @ (w @ x), factor.to(D), torch.cat([on_paths(factor).to(D)] * 2, 1)
    )
    program = trace(fn, [Port("w", (n, n)), Port("x", (n, 2 * n))])
    assert len(program.loops) >= 4
    done = sum(
        loop.count * sum(op == "mul" for op, _ in loop.program.code) for loop in program.loops
    )
    assert done < 0.7 * 2 * int(factor.sum()) * 2 * n  # those of all columns alike
    # All read the same matrix, which is in one place.
    stays = {
        code.args[1 + program.loop_of(k).num_variable :]
        for k, code in enumerate(program.code)
        if code.op == "loop"
    }
    assert len(stays) == 1
    g = torch.Generator().manual_seed(0)
    inputs = [torch.randn(3, *shape, generator=g, dtype=D) for shape in ((n, n), (n, 2 * n))]
    (found,), wanted = evaluate(program, inputs), torch.vmap(fn)(*inputs)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12 * float(wanted.abs().max()))
