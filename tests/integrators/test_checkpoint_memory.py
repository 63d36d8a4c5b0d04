"""Memory of a rollout and its backward pass with checkpointing, besides the result."""

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torchsko as ts

ROOT = Path(ts.__file__).parent.parent

# Joint losses as in most robots; without them, half of the graph consists of states.
ROD = """
rod = ts.MechanismBuilder().link("rod", mass=1.0, com=(0, 0, -1))
mech = rod.joint("hinge", "revolute", child="rod", axis=(0, 1, 0), damping=0.1, friction=0.1).build()
"""
PANDA = "mech = ts.load(ts.robots.panda)"

PROGRAM = """
import torch
import torchsko as ts

torch.set_num_threads(1)
{mechanism}
tau = torch.zeros(mech.num_dof, dtype=mech.dtype, requires_grad=True)
q, qd = mech.random_state({batch})

def peak(steps):
    options = {{"steps": steps, "checkpoint": {checkpoint}, "fused": False}}
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), tau, dt=1e-3, **options)
    qs[:, -1].sum().backward()
    # Not getrusage: a process begins there with the peak of the one that started it.
    (most,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(most) * 1024 - qs.nbytes - qds.nbytes

print(-(peak(2) - peak({steps})))
"""


def needed(mechanism: str, batch: int, steps: int, checkpoint: int | None) -> int:
    """Peak memory [bytes] besides the result, relative to a rollout of two steps."""
    program = PROGRAM.format(mechanism=mechanism, batch=batch, steps=steps, checkpoint=checkpoint)
    # A separate block for each tensor, since fragmentation of glibc's heap is random.
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "16384"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | settings, capture_output=True, text=True, timeout=3600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


class LiveBytes(TorchDispatchMode):
    """Counts live bytes of tensors made by operations inside the context, and their peak."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(x, torch.Tensor) and not func.is_view:
                self.add(x.untyped_storage())
        self.peak = max(self.peak, self.now)
        return result

    def add(self, block):
        key = block.data_ptr()
        if key and key not in self.known:
            self.known.add(key)
            self.now += block.nbytes()
            weakref.finalize(block, self.drop, key, block.nbytes())

    def drop(self, key, size):
        self.known.discard(key)
        self.now -= size


class Made(TorchDispatchMode):
    """Counts the tensors of a shape that operations inside the context make."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.count += tuple(result.shape) == self.shape
        return result


@pytest.fixture
def no_collector():
    """Tensors are freed by reference counting, without the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def rod():
    names = {"ts": ts}
    exec(ROD, names)
    return names["mech"]


@pytest.mark.usefixtures("no_collector")
def test_the_backward_pass_holds_the_tape_of_one_segment():
    mech = rod()
    q, qd = mech.random_state(64)
    tau = torch.zeros(1, dtype=q.dtype, requires_grad=True)

    def most(steps: int, checkpoint: int | None) -> int:
        with LiveBytes() as live:
            qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), tau, steps=steps, checkpoint=checkpoint)
            qs[:, -1].sum().backward()
        return live.peak - qs.nbytes - qds.nbytes

    every, some = (most(40, checkpoint) - most(2, checkpoint) for checkpoint in (None, 5))
    assert every > 5 * q.nbytes * 40
    assert some < every / 3


@pytest.mark.usefixtures("no_collector")
def test_no_tape_is_left_behind_in_cycles_of_references():
    mech = rod()
    q, qd = mech.random_state(64)
    tau = torch.zeros(1, dtype=q.dtype, requires_grad=True)
    with LiveBytes() as live:
        ts.rollout(mech, ts.State(q, qd), tau, steps=6, checkpoint=3).q.sum().backward()
    assert live.now <= tau.nbytes


def test_no_more_stays_than_the_result_and_the_starts_of_the_segments():
    mech = ts.load(ts.robots.panda)
    q, qd = mech.random_state(64)
    tau = torch.zeros(7, dtype=q.dtype, requires_grad=True)

    def alive() -> int:
        tensors = [x for x in gc.get_objects() if type(x) is torch.Tensor and x.shape[:1] == (64,)]
        blocks = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
        return sum(blocks.values())

    before = alive()
    result = ts.rollout(mech, ts.State(q, qd), tau, steps=30, checkpoint=5)[:2]
    assert alive() - before < 1.5 * sum(x.nbytes for x in result)


@pytest.mark.parametrize("series", ["control", "f_ext"])
def test_the_gradient_of_a_series_is_made_once_not_once_a_step(series):
    """Regression: the backward pass of n steps took n^2 operations."""
    mech, steps = rod(), 11
    q, qd = mech.random_state(3)
    shape = {"control": (3, steps, 1), "f_ext": (3, steps, 1, 6)}[series]
    x = torch.zeros(shape, dtype=q.dtype, requires_grad=True)
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), steps=steps, **{series: x})
    with Made(shape) as made:
        (qs.sum() + qds.sum()).backward()
    assert made.count <= 2


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize(
    ("mechanism", "batch", "steps", "checkpoint"),
    [(ROD, 16384, 100, 8), (PANDA, 512, 1000, 32)],
    ids=["rod", "panda"],
)
def test_checkpointing_needs_a_third_of_the_memory_besides_the_result(
    mechanism, batch, steps, checkpoint
):
    every, some = (needed(mechanism, batch, steps, n) for n in (None, checkpoint))
    assert every > 40e6
    assert some < every / 3
