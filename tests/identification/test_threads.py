"""Threads that a fit uses are its own: nobody else's change, and none stay changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

import torchsko as ts
from torchsko.identification.regression.physical_least_squares import (
    EntropicPrior,
    entropic_least_squares,
)
from torchsko.identification.selection.forward_selection import SubsetScores
from torchsko.identification.workers import (
    MIN_THREADED_UNKNOWNS,
    cores,
    for_unknowns,
    side_by_side,
    threads,
)


@pytest.fixture(autouse=True)
def three():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def elsewhere() -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def test_only_the_calling_thread_uses_fewer_threads():
    with threads(1):
        assert torch.get_num_threads() == 1
        assert elsewhere() == cores() == 3
        with threads(2):
            assert torch.get_num_threads() == 2
            assert elsewhere() == cores() == 3
        assert torch.get_num_threads() == 1
        assert elsewhere() == cores() == 3
    assert torch.get_num_threads() == elsewhere() == 3


def test_an_interrupt_restores_the_number_of_threads():
    with pytest.raises(KeyboardInterrupt), threads(1):
        raise KeyboardInterrupt
    assert torch.get_num_threads() == elsewhere() == 3


def test_two_fits_at_a_time_keep_the_number_of_threads():
    both = Barrier(2)

    def one(count: int) -> list[int]:
        seen = [torch.get_num_threads()]
        both.wait()
        with threads(count):
            both.wait()
            seen.append(torch.get_num_threads())
            both.wait()
        both.wait()
        return [*seen, torch.get_num_threads()]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(one, (1, 2))) == [[3, 1, 3], [3, 2, 3]]
    assert torch.get_num_threads() == elsewhere() == 3


def test_many_fits_at_a_time_keep_the_number_of_threads():
    def one(count: int) -> None:
        for _ in range(50):
            with threads(1 + count % 3):
                pass

    for _ in range(2):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, range(16)))
        assert torch.get_num_threads() == elsewhere() == 3


def test_pieces_come_in_order_and_share_the_cores():
    with threads(1):
        found = list(side_by_side(lambda x: (x * x, torch.get_num_threads()), range(20)))
    assert found == [(x * x, 1) for x in range(20)]


def test_large_systems_keep_all_threads():
    assert for_unknowns(70) == 1
    assert for_unknowns(400) == 3


def test_a_robot_of_many_bodies_is_solved_on_several_threads():
    """LU of a batch of matrices as large as these finds no pivots on several threads of MKL, torch 2.13."""
    g = torch.Generator().manual_seed(0)
    arm = ts.load(ts.robots.panda)
    nominal = ts.inertial_parameters(arm).repeat(MIN_THREADED_UNKNOWNS // 70 + 1, 1)
    n = nominal.numel()
    every = torch.eye(n, dtype=nominal.dtype)
    prior = EntropicPrior.at(nominal, every)
    Y = torch.randn(3, 2 * n, n, generator=g, dtype=torch.float64)
    true = prior.nominal.flatten()
    A = Y.mT @ Y / len(Y[0])
    c = (A @ true[:, None])[..., 0]
    assert for_unknowns(n) == 3
    phi, _ = entropic_least_squares(A, c, prior, 1e-3, 1.1 * true.expand_as(c))
    torch.testing.assert_close(phi, true.expand_as(c))
    normal = torch.randn(3, 3 * n, n + 3, generator=g, dtype=torch.float64)
    G = normal.mT @ normal / len(normal[0])
    Q = torch.eye(n + 1, dtype=torch.float64).expand(3, -1, -1)
    many = SubsetScores.of(G, G, A, c, every, Q, torch.ones((), dtype=torch.float64))
    with threads(1):
        one = SubsetScores.of(G, G, A, c, every, Q, torch.ones((), dtype=torch.float64))
    torch.testing.assert_close(many.M, one.M)
    torch.testing.assert_close(many.E, one.E)
