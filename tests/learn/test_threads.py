"""Threads that a fit uses are its own: nobody else's change, and none stay changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from torchsko.learn.threads import cores, for_unknowns, side_by_side, threads


@pytest.fixture(autouse=True)
def three():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def elsewhere() -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def test_only_the_thread_that_asks_works_on_fewer():
    with threads(1):
        assert torch.get_num_threads() == 1
        assert elsewhere() == cores() == 3
        with threads(2):
            assert torch.get_num_threads() == 2
            assert elsewhere() == cores() == 3
        assert torch.get_num_threads() == 1
        assert elsewhere() == cores() == 3
    assert torch.get_num_threads() == elsewhere() == 3


def test_an_interrupt_sets_them_back():
    with pytest.raises(KeyboardInterrupt), threads(1):
        raise KeyboardInterrupt
    assert torch.get_num_threads() == elsewhere() == 3


def test_two_at_a_time_are_in_nobodys_way():
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


def test_pieces_come_in_order_and_share_the_cores():
    with threads(1):
        found = list(side_by_side(lambda x: (x * x, torch.get_num_threads()), range(20)))
    assert found == [(x * x, 1) for x in range(20)]


def test_large_systems_keep_all_threads():
    assert for_unknowns(70) == 1
    assert for_unknowns(400) == 3
