"""Kernels for Arm, cross-compiled and run by an emulator, equal eager functions.

They are whole programs: the generated C++, the runtime with its threads, and a `main` that makes the call
which `Kernel` and `ScanKernel` make in a process of PyTorch. What needs Python's own headers and library,
`native/native_call.cpp`, is not among them.
"""

import math
import shutil
import struct
import subprocess
from itertools import accumulate

import pytest
import torch

import torchsko as ts
from tests.fused.evaluate import evaluate
from tests.fused.programs import every_operation, random_program
from torchsko.fused.build.toolchain import Toolchain, find_toolchain
from torchsko.fused.emit.cpp import LoopRoles, emit_cpp, native, plan
from torchsko.fused.program.program import Port, Program
from torchsko.fused.tracing.tracer import trace

COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        shutil.which(COMPILER) is None or EMULATOR is None,
        reason="needs an Arm: apt-get install g++-aarch64-linux-gnu qemu-user-static",
    ),
]

# From standard input: words of a call up to its ports, then for each port its bytes, whether it is an input,
# how many words it has besides its address, and these; then the inputs' bytes. Out come the outputs'.
MAIN = """
#include <stdio.h>
#include <stdlib.h>
struct Plan { void (*kernel)(const void*, void*, long long, long long); long long scratch_bytes; };
extern "C" int torchsko_launch(const Plan*, const void*, int);
extern "C" void torchsko_kernel(const void*, void*, long long, long long);
extern "C" const long long torchsko_scratch_bytes;
static long long next() {
  long long word = 0;
  if (fread(&word, 8, 1, stdin) != 1) exit(2);
  return word;
}
int main() {
  static long long words[256], bytes[64], is_input[64];
  static char* data[64];
  int count = 0;
  for (long long left = next(); left > 0; --left) words[count++] = next();
  const int ports = (int)next();
  for (int p = 0; p < ports; ++p) {
    bytes[p] = next();
    is_input[p] = next();
    data[p] = (char*)malloc(bytes[p] + 64);
    words[count++] = (long long)data[p];
    for (long long left = next(); left > 0; --left) words[count++] = next();
  }
  for (int p = 0; p < ports; ++p)
    if (is_input[p] && fread(data[p], 1, bytes[p], stdin) != (size_t)bytes[p]) return 2;
  const Plan plan = {torchsko_kernel, torchsko_scratch_bytes};
  if (torchsko_launch(&plan, words, 3)) return 3;
  for (int p = 0; p < ports; ++p)
    if (!is_input[p]) fwrite(data[p], 1, bytes[p], stdout);
}
"""


@pytest.fixture(scope="module")
def toolchain():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", COMPILER)
        found = find_toolchain("armv8-a")
    assert found.path.endswith(COMPILER) and found.vector_bytes == 16
    return found


def compiled(
    folder,
    toolchain: Toolchain,
    program: Program,
    dtype: torch.dtype,
    roles: LoopRoles | None = None,
):
    """Path of an executable that makes one call of the kernel."""
    bits = 64 if dtype == torch.float64 else 32
    width = toolchain.vector_bytes
    texts = emit_cpp(plan(program, width, roles), bits=bits, vector_bytes=width, roles=roles)
    texts += [native("runtime.cpp"), native("memory.cpp"), MAIN]
    sources = [folder / f"{k}.cpp" for k in range(len(texts))]
    for path, text in zip(sources, texts, strict=True):
        path.write_text(text)
    built = folder / "kernel"
    command = [toolchain.path, *toolchain.flags, "-static", *map(str, sources), "-o", str(built)]
    subprocess.run(command, check=True)
    return built


def emulated(path, head, inputs, outputs):
    """Results of a call: `inputs` are (tensor, further words), `outputs` (shape, further words)."""
    dtype = inputs[0][0].dtype
    size = dtype.itemsize
    lengths = [size * math.prod(shape) for shape, _ in outputs]
    words = [len(head), *head, len(inputs) + len(outputs)]
    for x, more in inputs:
        words += [size * x.numel(), 1, len(more), *more]
    for length, (_, more) in zip(lengths, outputs, strict=True):
        words += [length, 0, len(more), *more]
    sent = struct.pack(f"<{len(words)}q", *words)
    sent += b"".join(x.contiguous().numpy().tobytes() for x, _ in inputs)
    done = subprocess.run([EMULATOR, str(path)], input=sent, capture_output=True, check=True)
    ends = list(accumulate(lengths))
    assert len(done.stdout) == ends[-1]
    return [
        torch.frombuffer(bytearray(done.stdout[end - n : end]), dtype=dtype).reshape(shape)
        for end, n, (shape, _) in zip(ends, lengths, outputs, strict=True)
    ]


def called(path, program, inputs, block=8):
    """One call of a kernel, with a batch in all inputs."""
    batch = len(inputs[0])
    return emulated(
        path,
        [batch, block],
        [(x, [port.size]) for x, port in zip(inputs, program.inputs, strict=True)],
        [((batch, *port.shape), [port.size]) for port in program.outputs],
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_every_operation_agrees_with_torch_on_special_values_too(tmp_path, toolchain, dtype):
    program = every_operation()
    special = [0.0, -0.0, 0.3, -0.7, 1.0, 2.5, -40.0, 1e4, math.inf, -math.inf, math.nan]
    x, y = torch.tensor([(a, b) for a in special for b in special], dtype=dtype).unbind(-1)
    inputs = [x, y, (torch.arange(len(x)) % 3 - 1).to(dtype)]
    (mine,) = called(compiled(tmp_path, toolchain, program, dtype), program, inputs)
    tolerance = 1e-12 if dtype == torch.float64 else 3e-5
    (theirs,) = evaluate(program, inputs)
    torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("batch", [1, 2, 3, 67])
def test_batches_and_threads_agree(tmp_path, toolchain, batch):
    program = random_program(0, num_ops=300)
    g = torch.Generator().manual_seed(batch)
    inputs = [
        torch.randn(batch, *p.shape, generator=g, dtype=torch.float64) for p in program.inputs
    ]
    path = compiled(tmp_path, toolchain, program, torch.float64)
    for mine, theirs in zip(called(path, program, inputs), evaluate(program, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def panda(dtype: torch.dtype):
    mech = ts.load(ts.robots.panda)
    q, qd = mech.random_state(29, generator=torch.Generator().manual_seed(0))
    return mech, [x.to(dtype) for x in (q, qd, 10 * torch.sin(7 * q))]


# Rounding of single precision, times what a mass matrix of this arm amplifies.
BOUND = {torch.float64: 1e-11, torch.float32: 1e-3}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_forward_dynamics_of_an_arm_is_that_of_the_eager_function(tmp_path, toolchain, dtype):
    mech, inputs = panda(dtype)
    ports = [Port(name, (mech.num_dof,)) for name in ("q", "qd", "tau")]
    program = trace(lambda *x: (ts.forward_dynamics(mech, *x),), ports)
    (mine,) = called(compiled(tmp_path, toolchain, program, dtype), program, inputs)
    theirs = ts.forward_dynamics(mech, *(x.double() for x in inputs))
    scale = theirs.abs().max(-1, keepdim=True).values
    assert ((mine - theirs) / scale).abs().max() < BOUND[dtype]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_steps_of_an_arm_in_one_kernel_are_those_of_the_eager_rollout(tmp_path, toolchain, dtype):
    mech, (q, qd, _) = panda(dtype)
    steps, dt = 11, 1e-3

    def step(mech, q, qd, tau):
        qd = qd + dt * ts.forward_dynamics(mech, q, qd, tau)
        return q + dt * qd, qd

    batch, n = q.shape
    tau = torch.cos(torch.arange(batch * steps * n).reshape(batch, steps, n).to(dtype))
    ports = [Port(name, (n,)) for name in ("q", "qd", "tau")]
    program = trace(lambda *x: step(mech, *x), ports)
    path = compiled(tmp_path, toolchain, program, dtype, LoopRoles(2, 1, 0, 0))
    rows = (batch, steps + 1, n)
    found = emulated(
        path,
        [batch, 4, steps, 1, 0],
        [(q, [n, 0]), (qd, [n, 0]), (tau, [steps * n, n])],
        [(rows, [(steps + 1) * n, 0])] * 2,
    )
    state = q.double(), qd.double()
    for t in range(steps + 1):
        for mine, theirs in zip(found, state, strict=True):
            assert ((mine[:, t] - theirs).abs() / theirs.abs().clamp(min=1)).max() < BOUND[dtype]
        if t < steps:
            state = step(mech, *state, tau[:, t].double())
