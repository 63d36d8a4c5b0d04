"""Memory of large results is reused, but never while a tensor refers to it."""

from __future__ import annotations

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import torchsko as ts
from torchsko.fused.build.kernel_library import MIN_POOLED_BYTES

STATES = 70_000


def resident() -> int:
    """Resident memory of this process, in bytes."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def some(arm, seed, n=STATES):
    q = arm.random_state(n, generator=torch.Generator().manual_seed(seed))[0]
    return q, ts.mass_matrix(arm, q[:100])


def test_a_result_that_is_alive_keeps_its_memory(arm, fast):
    q, expected = some(arm, 0)
    first = fast.mass_matrix(q)
    assert first.nbytes > MIN_POOLED_BYTES / 2
    kept = [fast.mass_matrix(some(arm, seed, 90_000)[0])[:100] for seed in (1, 2, 3)]  # views alone
    for seed, found in zip((1, 2, 3), kept, strict=True):
        torch.testing.assert_close(found, some(arm, seed, 90_000)[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(first[:100], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [1_500, 5_000, 12_000, 20_000, 43_000, 90_000])
def test_the_memory_of_a_freed_result_is_used_again(arm, fast, n):
    q = some(arm, 0, n)[0]
    before = fast.mass_matrix(q)
    assert before.nbytes > MIN_POOLED_BYTES
    place = before.data_ptr()
    again = fast.mass_matrix(q)
    assert again.data_ptr() != place
    del before
    gc.collect()
    less = n - n // 50
    smaller = fast.mass_matrix(q[:less])
    assert smaller.data_ptr() == place
    torch.testing.assert_close(smaller, again[:less], rtol=0, atol=0)


def test_gradients_and_writes_are_those_of_any_tensor(arm, fast):
    q = some(arm, 5, 90_000)[0].requires_grad_()
    M = fast.mass_matrix(q)
    (gradient,) = torch.autograd.grad(M.square().sum(), q)
    short = q[:50].detach().requires_grad_()
    (expected,) = torch.autograd.grad(ts.mass_matrix(arm, short).square().sum(), short)
    torch.testing.assert_close(gradient[:50], expected, rtol=1e-10, atol=1e-10)
    M = M.detach()
    M += 1
    torch.testing.assert_close(M[:50] - 1, ts.mass_matrix(arm, q[:50]), rtol=1e-12, atol=1e-12)


def test_result_vectors_behave_as_tensors_of_fixed_size(arm, fast):
    """As documented, results in pooled memory cannot be resized."""
    q = some(arm, 7, 20_000)[0]
    expected = fast.mass_matrix(q)
    shared = pickle.loads(pickle.dumps(fast.mass_matrix(q).share_memory_()))
    assert torch.equal(shared, expected)
    assert torch.equal(torch.mul(expected, 2, out=fast.mass_matrix(q)), 2 * expected)
    with pytest.raises(RuntimeError, match="not resizable"):
        fast.mass_matrix(q).resize_(len(q) + 1, 7, 7)
    assert fast.mass_matrix(q).clone().resize_(len(q) + 1, 7, 7).shape[0] == len(q) + 1


def test_threads_share_the_pool(arm, fast):
    def work(seed):
        q, expected = some(arm, seed, 90_000)
        for _ in range(5):
            torch.testing.assert_close(fast.mass_matrix(q)[:100], expected, rtol=1e-12, atol=1e-12)
        return True

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(work, range(4)))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
@pytest.mark.nightly
def test_the_pool_is_bounded(arm, fast):
    q = some(arm, 0, 60_000)[0]
    fast.mass_matrix(q)
    before = resident()
    held = [fast.mass_matrix(q) for _ in range(40)]
    size = held[0].nbytes
    assert resident() - before > 30 * size
    del held
    gc.collect()
    assert resident() - before < 2**29 + 2 * size
