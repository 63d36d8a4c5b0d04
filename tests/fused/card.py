"""Emulation of a GPU: CUDA kernels compiled as C++, each thread of a warp a thread of the CPU."""

import ctypes
import hashlib
from concurrent.futures import ThreadPoolExecutor

from torchsko.fused.build.kernel_library import BITS
from torchsko.fused.build.library_cache import load_or_build_library
from torchsko.fused.build.toolchain import find_toolchain
from torchsko.fused.emit.cuda import WARP, cuda_plan, emit_cuda
from torchsko.fused.functions.fused_function import FusedFunction

# Enough of CUDA for a C++ compiler to run the kernel.
SHIM = """
#include <cmath>
#include <pthread.h>
#define __device__
#define __shared__ static
#define __global__ __attribute__((visibility("default")))
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __noinline__
#define __restrict__ __restrict
static double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
struct Index { int x; };
static Index blockIdx;
static thread_local Index threadIdx;
static pthread_barrier_t barrier;
static void __syncwarp() { pthread_barrier_wait(&barrier); }
extern "C" __global__ void block(int k) { blockIdx.x = k; pthread_barrier_init(&barrier, 0, 32); }
extern "C" __global__ void thread(int k) { threadIdx.x = k; }
"""


def launch_on_cpu(plan, bits, roles=None):
    """A launch function that runs the kernel of a schedule, one warp after another."""
    text = SHIM + emit_cuda(plan, bits=bits, roles=roles)
    toolchain = find_toolchain()
    key = hashlib.sha256(f"{text}{toolchain.identity}".encode()).hexdigest()
    library = load_or_build_library(key, lambda: [text], toolchain)

    def launch(samples, arguments):
        words = [ctypes.c_longlong(x) for x in (samples, *arguments)]

        def run(thread):
            library.thread(thread)
            library.torchsko_kernel(*words)

        with ThreadPoolExecutor(WARP) as pool:
            for k in range(-(-samples // WARP)):
                library.block(k)
                list(pool.map(run, range(WARP)))

    return launch


def put_kernels_on_it(monkeypatch):
    """Run all kernels made from now on as emulated CUDA, on CPU tensors."""

    def load(program, identity, dtype, device, roles=None):
        return launch_on_cpu(cuda_plan(program()), BITS[dtype], roles)

    for module in ("functions.lazy_kernel", "functions.scan"):
        monkeypatch.setattr(f"torchsko.fused.{module}.load_cuda", load)
    monkeypatch.setattr(
        FusedFunction,
        "_new_kernel",
        lambda self, dtype, device, *narrow: self._cuda_kernel(dtype, device),
    )
