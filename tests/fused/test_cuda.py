"""CUDA kernels: compiled as C++ for the CPU, compiled by NVRTC, and run on a GPU if there is one."""

import ctypes
import shutil
import struct
import subprocess
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torchsko as ts
from tests.fused import test_scan
from tests.fused.card import launch_on_cpu, put_kernels_on_it
from tests.fused.evaluate import evaluate
from tests.fused.programs import (
    every_operation,
    random_program,
    special_constants,
    with_rare_conditions,
)
from tests.strategies import random_mechanism
from tests.transforms.verbs import OF_ROWS, mixed_tree, sample
from torchsko.api.rows import FUSIBLE
from torchsko.errors import CompilerError, ShapeError
from torchsko.fused.build import nvrtc
from torchsko.fused.calls.cuda_kernel import (
    CudaKernel,
    LaunchError,
    cubin,
    cuda_launcher,
    load_cuda,
)
from torchsko.fused.calls.kernel import common_batch
from torchsko.fused.emit.cpp import ENTRY
from torchsko.fused.emit.cuda import cuda_plan, emit_cuda
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.scan import Scan
from torchsko.fused.functions.traits import Traits
from torchsko.fused.layout.schedule import schedule
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace
from torchsko.implicit.loop_roles import LoopRoles

ARM = ts.load(ts.robots.panda)
TWO = random_mechanism(["revolute", "revolute"], [-1, 0], seed=4)


@pytest.mark.parametrize(
    ("program", "max_ops"),
    [
        (every_operation(), 500),
        (trace(with_rare_conditions, [Port("x", (4,)), Port("y", (5,))]), 200),
        (special_constants(), 500),
        (random_program(0), 500),
        (random_program(1), 9),
    ],
)
def test_the_text_computes_the_program(program, max_ops):
    g = torch.Generator().manual_seed(0)
    inputs = [torch.randn(70, *p.shape, generator=g, dtype=torch.float64) for p in program.inputs]
    launch = launch_on_cpu(schedule(program, max_ops), 64)
    kernel = CudaKernel(program.inputs, program.outputs, torch.float64, launch)
    for mine, theirs in zip(kernel(inputs), evaluate(program, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("every", [0, 1, 3])
@pytest.mark.parametrize(
    ("steps", "leads"),
    [(0, [(2,)] * 5), (1, [()] * 5), (7, [(2, 3), (3,), (1,), (2, 1), ()])],
)
def test_the_text_of_a_step_is_the_loop_over_it(monkeypatch, steps, leads, every):
    put_kernels_on_it(monkeypatch)
    outputs = 4 if every > 1 else 5  # sums are of all steps
    step = lambda *x: test_scan.step(*x)[:outputs]  # noqa: E731
    function = FusedFunction(step, test_scan.PORTS, Traits(num_outputs=outputs, order=2))
    loop = Scan(function, LoopRoles(2, 2, 2, outputs - 4)).of_length(steps, every)
    given = test_scan.inputs(steps, leads)
    mine = loop(*given)
    theirs = [y.expand(x.shape) for x, y in zip(mine, loop.eager(*given), strict=True)]
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
    if steps >= max(every, 1):  # backward is a scan of its own, from the last step to the first
        marks = [torch.randn_like(y) for y in mine]
        pulled = [torch.autograd.grad(outputs, given, marks) for outputs in (mine, theirs)]
        for x, y in zip(*pulled, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-11)


@pytest.mark.nightly
@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("mech", [TWO, ARM], ids=["two joints", "panda"])
def test_a_rollout_on_the_card_is_the_rollout(monkeypatch, mech, every):
    q, qd = mech.random_state(2, generator=torch.Generator().manual_seed(0))
    tau = torch.randn(20, mech.num_dof, dtype=q.dtype)
    laws = {"series": tau[None], "law": lambda t, q, qd: -3.0 * q - qd}
    expected = {}
    for name, law in laws.items():
        a = [x.clone().requires_grad_() for x in (q, qd)]
        rows = ts.rollout(mech, ts.State(*a), law, steps=20, dt=1e-3, fused=False)[:2]
        rows = [x[..., ::every, :] for x in rows]
        expected[name] = (*rows, *torch.autograd.grad(rows[0].sin().sum(), a))
    put_kernels_on_it(monkeypatch)
    fast = ts.fuse(mech)
    for name, law in laws.items():
        a = [x.clone().requires_grad_() for x in (q, qd)]
        rows = ts.rollout(fast, ts.State(*a), law, steps=20, dt=1e-3, every=every, fused=True)[:2]
        found = (*rows, *torch.autograd.grad(rows[0].sin().sum(), a))
        for x, y in zip(found, expected[name], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


def test_a_parameter_and_its_gradient_on_the_card(monkeypatch):
    put_kernels_on_it(monkeypatch)
    fast = ts.fuse(ARM, inputs=("mass", "damping"))
    q, qd = ARM.random_state(70, generator=torch.Generator().manual_seed(1))
    tau = torch.randn_like(qd)
    mass = ARM.mass.clone().requires_grad_()
    mine = fast.replace(mass=mass).forward_dynamics(q, qd, tau)
    theirs = ts.forward_dynamics(ARM.replace(mass=mass), q, qd, tau)
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    pulled = [torch.autograd.grad(y.sin().sum(), mass)[0] for y in (mine, theirs)]
    torch.testing.assert_close(*pulled, rtol=1e-9, atol=1e-9)


@pytest.mark.some(1)
@pytest.mark.parametrize("name", sorted(OF_ROWS.keys() & FUSIBLE))
def test_every_verb_and_its_gradient_on_the_card(monkeypatch, name):
    put_kernels_on_it(monkeypatch)
    mech, verb = mixed_tree(), OF_ROWS[name]
    fast, g = ts.fuse(mech), torch.Generator().manual_seed(2)
    given = {x: sample(mech, x, (2,), g).requires_grad_() for x in verb.states}
    found = []
    for robot in (fast, mech):
        result = verb.call(robot, **given)
        result = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        loss = sum(y.sin().sum() for y in result)
        pulled = torch.autograd.grad(loss, list(given.values()), materialize_grads=True)
        found.append((*result, *pulled))
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def compiler():
    return nvrtc.find_nvrtc()


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("program", [every_operation(), special_constants(), random_program(0)])
def test_nvrtc_compiles_it_without_headers(compiler, program, bits):
    module = compiler.compile(emit_cuda(schedule(program, 500), bits=bits), "sm_80")
    assert module.startswith(b"\x7fELF")
    assert ENTRY.encode() in module


def test_what_nvrtc_says_is_told(compiler):
    with pytest.raises(CompilerError, match=r"sm_90[^$]*nonsense"):
        compiler.compile("nonsense", "sm_90")


def test_machine_code_is_compiled_once(compiler, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHSKO_CACHE", str(tmp_path))
    program = random_program(0)
    made = [cubin(lambda: program, "aa", torch.float32, arch) for arch in ("sm_80", "sm_90")]
    assert made[0] != made[1]

    def refuse(*_):
        raise AssertionError("traced or compiled again")

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", refuse)
    assert cubin(refuse, "aa", torch.float32, "sm_80") == made[0]
    (first,) = (x for x in tmp_path.glob("*.cubin") if x.read_bytes()[64:] == made[0])
    first.write_bytes(first.read_bytes()[:-9] + b"something")  # a disk that forgets
    with pytest.raises(AssertionError, match="again"):
        cubin(lambda: program, "aa", torch.float32, "sm_80")


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(["libnothing.so"]))
    with pytest.raises(CompilerError, match="pip install nvidia-cuda-nvrtc"):
        nvrtc.find_nvrtc()


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("verb", ["inverse_dynamics", "forward_dynamics", "mass_matrix", "rollout"])
def test_nvrtc_compiles_every_kernel_of_a_humanoid_and_its_derivative(compiler, verb, dtype):
    pin = pytest.importorskip("pinocchio")  # example-robot-data installs beside it
    robots = Path(pin.__file__).parents[4] / "share" / "example-robot-data" / "robots"
    path = robots / "talos_data" / "robots" / "talos_reduced.urdf"
    fast = ts.fuse(ts.load(path, floating_base=True).to(dtype))
    if verb == "rollout":
        scan = Scan(fast._positional["semi_implicit_euler", 4], LoopRoles(2, 1, 0, 0))
        back = scan.vjp_scan((True, False), all_states=True)
        both = [(scan.step, scan.roles), (back.step, back.roles)]
    else:
        function = fast._positional[verb, 1 if verb == "mass_matrix" else 3]
        needed = (True,) * len(function.inputs)
        both = [(function, None), (function.value_and_vjp(needed), None)]
    for function, roles in both:
        source = cuda_plan(function.program)
        text = emit_cuda(source, bits=32 if dtype == torch.float32 else 64, roles=roles)
        assert ENTRY.encode() in compiler.compile(text, "sm_90")


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
    launch = load_cuda(lambda: program, None, dtype, torch.device("cuda"))
    kernel = CudaKernel(program.inputs, program.outputs, dtype, launch)
    inputs = [torch.randn(1000, *p.shape, dtype=dtype, device="cuda") for p in program.inputs]
    tolerance = 1e-12 if dtype == torch.float64 else 3e-5
    for args in (inputs, [inputs[0], inputs[1][0], inputs[2][:1]]):
        for mine, theirs in zip(kernel(args), evaluate(program, args), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def arms_on_gpu(samples):
    """An arm on the GPU, its kernels, and random states."""
    arm = ARM.to("cuda")
    return arm, ts.fuse(arm), *arm.random_state(samples)


@pytest.mark.cuda
def test_dynamics_on_a_gpu_agree_with_eager_also_in_a_cuda_graph():
    arm, fast, q, qd = arms_on_gpu(64)
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


@pytest.mark.cuda
@pytest.mark.parametrize("every", [1, 5])
def test_a_rollout_on_a_gpu_is_one_launch_and_the_rollout(every):
    steps, (arm, fast, q, qd) = 20, arms_on_gpu(300)
    tau = torch.randn(1, steps, 7, dtype=q.dtype, device="cuda")
    found = []
    for mech, fused in ((arm, False), (fast, None)):
        a = [x.clone().requires_grad_() for x in (q, qd)]
        rows = ts.rollout(mech, ts.State(*a), tau, steps=steps, dt=1e-3, fused=fused)[:2]
        rows = [x[..., ::every, :] for x in rows]
        found.append((*rows, *torch.autograd.grad(rows[0].sin().sum(), a)))
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)
    with torch.no_grad(), torch.profiler.profile() as seen:
        ts.rollout(fast, ts.State(q, qd), tau, steps=steps, dt=1e-3, nonfinite="ignore")
        torch.cuda.synchronize()
    assert sum(x.count for x in seen.key_averages() if x.key == ENTRY) == 1


@pytest.mark.cuda
def test_nothing_waits_for_the_gpu():
    arm, fast, q, qd = arms_on_gpu(64)
    tau = torch.zeros_like(qd)

    def calls():
        for mech in (arm, fast):
            a = [x.clone().requires_grad_() for x in (q, qd, tau)]
            out = ts.forward_dynamics(mech, *a).sum() + ts.inverse_dynamics(mech, *a).sum()
            (out + ts.mass_matrix(mech, a[0]).sum()).backward()

    calls()  # kernels are loaded, which waits
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        calls()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
def test_a_step_of_training_replays_as_a_cuda_graph():
    layer = ts.Dynamics(ARM, learn={"joint4.damping": ts.learn.Positive()}).to("cuda")
    q, qd = ARM.to("cuda").random_state(64)
    tau = torch.randn_like(qd)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = layer.forward_dynamics(q, qd, tau).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(5):
        graph.replay()
        losses.append(loss.item())
    before = [p.detach().clone() for p in layer.parameters()]
    assert all(torch.isfinite(p).all() for p in before)
    assert len(set(losses)) == 5


def test_a_failed_launch_warns_once_and_runs_eagerly():
    fused = FusedFunction(lambda x: 2 * x, [Port("x", (3,))], Traits())

    def refused(inputs, summed=None):
        raise LaunchError("out of memory")

    x = torch.ones(4, 3, dtype=torch.float64)
    key = fused._kernel_key([x])
    fused._kernels[key] = fused._launched(refused, key)
    with pytest.warns(UserWarning, match=r"no kernel of .*\(x\): .*out of memory"):
        assert torch.equal(fused(x)[0], 2 * x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(fused(x)[0], 2 * x)


def test_inputs_on_two_devices_are_refused():
    ports = [Port("x", (3,)), Port("y", (3,))]
    with FakeTensorMode():
        inputs = [torch.empty(3, device=f"cuda:{k}") for k in range(2)]
        with pytest.raises(ShapeError, match=r"y is torch.float32 on cuda:1"):
            common_batch(ports, torch.float32, inputs[0].device, inputs)


def test_launches_open_the_driver_once_and_pass_all_arguments(monkeypatch):
    opened, passed = [], []

    def launch(function, *sizes_and_arguments):
        *sizes, stream, _, extra = sizes_and_arguments
        size = ctypes.c_size_t.from_address(extra[3]).value
        passed.append((sizes, stream.value, struct.unpack("@3q", ctypes.string_at(extra[1], size))))
        return 0

    def open_driver():
        opened.append(1)
        return SimpleNamespace(cuLaunchKernel=launch)

    monkeypatch.setattr("torch.cuda._utils._get_gpu_runtime_library", open_driver)
    stream = lambda index: 100 + index  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", stream, raising=False)
    run, x = cuda_launcher(SimpleNamespace(func=None)), torch.zeros(3)
    for _ in range(3):
        run(2, 70, [x.data_ptr(), -1])
    assert len(opened) == 1
    assert passed == 3 * [([3, 1, 1, 32, 1, 1, 0], 102, (70, x.data_ptr(), -1))]
