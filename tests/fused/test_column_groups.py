"""Column groups of matrix products: each column is in one group, columns of a limb share a group."""

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
def test_columns_of_one_limb_are_in_one_group_and_all_columns_are_in_a_group(counts):
    factor = limbs(counts)
    columns = torch.cat([on_paths(factor)] * 2, 1)
    groups = group_columns(factor, columns)
    assert sorted(k for group in groups for k in group.columns) == [*range(columns.shape[1])]
    of_group = {k: i for i, group in enumerate(groups) for k in group.columns}
    first = 6
    for count in counts:
        assert len({of_group[k] for k in range(first, first + count)}) == 1
        first += count


@settings(deadline=None)
@given(n=st.integers(3, 20), m=st.integers(1, 24), density=st.floats(0, 1), seed=st.integers(0, 99))
def test_groups_contain_all_nonzero_entries(n, m, density, seed):
    g = torch.Generator().manual_seed(seed)
    factor, columns = (torch.rand(n, k, generator=g) < density for k in (n, m))
    groups = group_columns(factor, columns)
    found = [k for group in groups for k in group.columns]
    assert len(found) == len(set(found)) and {*columns.any(0).nonzero()[:, 0].tolist()} <= {*found}
    for group in groups:
        inner = columns[:, list(group.columns)].any(1)
        assert torch.equal(inner.nonzero()[:, 0], torch.tensor(group.inner, dtype=torch.int64))
        rows = factor[:, inner].any(1)
        assert torch.equal(rows.nonzero()[:, 0], torch.tensor(group.rows, dtype=torch.int64))


def test_products_over_limbs_are_an_operation_for_each_limb_with_equal_values():
    factor = on_paths(limbs([8, 8, 6, 6], base=0)).to(D)
    n = factor.shape[0]
    fn = masked(lambda w, x: w @ x, factor, torch.cat([factor] * 8, 1))
    program = trace(fn, [Port("w", (n, n)), Port("x", (n, 8 * n))])
    assert len(program.loops) >= 4
    blocks = [loop.program.block for loop in program.loops]
    products = sum(block.rows * block.inner * block.columns for block in blocks)
    assert products < 0.5 * n * n * 8 * n
    g = torch.Generator().manual_seed(0)
    inputs = [torch.randn(3, *shape, generator=g, dtype=D) for shape in ((n, n), (n, 8 * n))]
    (found,), wanted = evaluate(program, inputs), torch.vmap(fn)(*inputs)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12 * float(wanted.abs().max()))
