"""The CUDA of a program: its text as C++ on the CPU, compiled by nvcc, and run where a GPU is."""

import ctypes
import shutil
import subprocess

import pytest
import torch

import torchsko as ts
from tests.fused.programs import every_operation, random_program, special_constants
from torchsko.fused.build import compile_library
from torchsko.fused.cpp import ENTRY
from torchsko.fused.cuda import build_cuda_kernel, emit_cuda
from torchsko.fused.evaluate import evaluate
from torchsko.fused.schedule import schedule
from torchsko.fused.toolchain import find_toolchain

# Enough of CUDA for a C++ compiler to run the kernel, one thread after another.
SHIM = """
#include <cmath>
#define __device__
#define __global__ __attribute__((visibility("default")))
#define __forceinline__ inline
#define __noinline__
static double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
struct Index { int x; };
static Index blockIdx, blockDim = {1}, threadIdx;
extern "C" __global__ void lane(int k) { threadIdx.x = k; }
"""


def run_on_cpu(program, inputs, max_ops):
    """The kernel on one sample after another."""
    text = SHIM + emit_cuda(schedule(program, max_ops), bits=64)
    library = compile_library(f"ca{abs(hash(text)):x}", [text], find_toolchain())
    batch = len(inputs[0])
    outputs = [torch.empty(batch, *p.shape, dtype=torch.float64) for p in program.outputs]
    arguments = [ctypes.c_int(batch)]
    for x, port in zip(inputs, program.inputs, strict=True):
        arguments += [ctypes.c_void_p(x.data_ptr()), ctypes.c_int(port.size)]
    arguments += [ctypes.c_void_p(y.data_ptr()) for y in outputs]
    for k in range(batch):
        library.lane(k)
        library.torchsko_kernel(*arguments)
    return outputs


@pytest.mark.parametrize(
    ("program", "max_ops"),
    [
        (every_operation(), 500),
        (special_constants(), 500),
        (random_program(0), 500),
        (random_program(1), 9),
    ],
)
def test_the_text_computes_the_program(program, max_ops):
    g = torch.Generator().manual_seed(0)
    inputs = [torch.randn(5, *p.shape, generator=g, dtype=torch.float64) for p in program.inputs]
    expected = evaluate(program, inputs)
    for mine, theirs in zip(run_on_cpu(program, inputs, max_ops), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.skipif(torch.version.cuda is None, reason="this PyTorch brings no NVRTC")
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("program", [every_operation(), special_constants(), random_program(0)])
def test_nvrtc_compiles_it_without_headers(program, bits):
    text = emit_cuda(schedule(program, 500), bits=bits)
    built, name = torch.cuda._utils._nvrtc_compile(text, ENTRY, "80")
    assert name == ENTRY and ENTRY in str(built)


@pytest.mark.some(3)
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on this machine")
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("max_ops", [500, 9])
def test_nvcc_compiles_it(tmp_path, bits, max_ops):
    source = tmp_path / "kernel.cu"
    source.write_text(emit_cuda(schedule(every_operation(), max_ops), bits=bits))
    command = ["nvcc", "-arch=sm_80", "-ptx", str(source), "-o", str(tmp_path / "kernel.ptx")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ".entry torchsko_kernel" in (tmp_path / "kernel.ptx").read_text()


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_gpu_computes_the_program(dtype, seed):
    program = random_program(seed)
    kernel = build_cuda_kernel(program, dtype, torch.device("cuda"))
    inputs = [torch.randn(1000, *p.shape, dtype=dtype, device="cuda") for p in program.inputs]
    tolerance = 1e-12 if dtype == torch.float64 else 3e-5
    for args in (inputs, [inputs[0], inputs[1][0], inputs[2][:1]]):
        for mine, theirs in zip(kernel(args), evaluate(program, args), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.cuda
def test_dynamics_on_a_gpu_agree_with_eager_also_in_a_cuda_graph():
    arm = ts.load(ts.robots.panda).to("cuda")
    fast = ts.fuse(arm)
    q, qd = arm.random_state(64)
    tau = torch.randn_like(qd)
    expected = ts.forward_dynamics(arm, q, qd, tau)
    torch.testing.assert_close(fast.forward_dynamics(q, qd, tau), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = fast.forward_dynamics(q, qd, tau)
    graph.replay()
    torch.testing.assert_close(captured, expected)
    a = [x.clone().requires_grad_() for x in (q, qd, tau)]
    b = [x.clone().requires_grad_() for x in (q, qd, tau)]
    mine = torch.autograd.grad(fast.forward_dynamics(*a).sin().sum(), a)
    theirs = torch.autograd.grad(ts.forward_dynamics(arm, *b).sin().sum(), b)
    torch.testing.assert_close(mine, theirs)
