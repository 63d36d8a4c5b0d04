"""A layer in what PyTorch puts around layers: autocast, the meta device, export."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.states import usual_state
from tests.strategies import KINDS, random_mechanism
from torchsko.learn import Bounded, Free, InertiaLogCholesky, Positive

LOW = [torch.bfloat16, torch.float16]


def branched(dtype=torch.float32):
    """One joint of every kind on a tree."""
    return random_mechanism(list(KINDS), [-1, 0, 0, 1], seed=3).to(dtype)


def layer_of(mech):
    body, joint = mech.body_names[1], mech.joint_names[1]
    learn = {
        body: InertiaLogCholesky(),
        f"{joint}.damping": Positive(),
        f"{joint}.position": Free(),
        f"{mech.body_names[2]}.mass": Bounded(0.0, 100.0),
    }
    return ts.Dynamics(mech, learn)


VERBS = {
    "forward": lambda m, q, qd, x, f: ts.forward_dynamics(m, q, qd, x, f),
    "composite": lambda m, q, qd, x, f: ts.forward_dynamics(m, q, qd, x, f, method="composite"),
    "inverse": lambda m, q, qd, x, f: ts.inverse_dynamics(m, q, qd, x, f),
    "bias": lambda m, q, qd, x, f: ts.bias_force(m, q, qd, f),
    "mass matrix": lambda m, q, qd, x, f: ts.mass_matrix(m, q),
    "kinematics": lambda m, q, qd, x, f: ts.forward_kinematics(m, q).rotation,
    "jacobian": lambda m, q, qd, x, f: ts.frame_jacobian(m, q, m.frame_names[-1:]),
    "integrate": lambda m, q, qd, x, f: ts.integrate(m, q, x),
    "factor": lambda m, q, qd, x, f: ts.innovations(ts.assemble(m, q)).solve(x),
    "root": lambda m, q, qd, x, f: ts.innovations(ts.assemble(m, q)).sqrt(x),
    "determinant": lambda m, q, qd, x, f: ts.innovations(ts.assemble(m, q)).logdet(),
    "scan": lambda m, q, qd, x, f: ts.innovations(ts.assemble(m, q), method="scan").whiten(x),
    "rollout": lambda m, q, qd, x, f: (
        ts.rollout(m, ts.State(q, qd), x[..., None, :], steps=1, dt=0.01).qd
    ),
}


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("verb", VERBS)
def test_verbs_keep_their_type_under_autocast(verb, low):
    mech, fn = branched(), VERBS[verb]
    inputs = usual_state(mech, 3, wrench=True)
    expected = fn(mech, *inputs)
    with torch.autocast("cpu", dtype=low):
        assert torch.equal(fn(mech, *inputs), expected)


@pytest.mark.parametrize("low", LOW)
def test_a_layer_learns_under_autocast_as_without(low):
    mech = branched()
    layer, inputs = layer_of(mech), usual_state(mech, 3, wrench=True)

    def gradients():
        layer.zero_grad()
        layer(*inputs).square().sum().backward()
        return [p.grad.clone() for p in layer.parameters()]

    expected = gradients()
    with torch.autocast("cpu", dtype=low):
        assert layer(*inputs).dtype == mech.dtype
        y = layer(*inputs)
    layer.zero_grad()
    y.square().sum().backward()
    assert_close([p.grad for p in layer.parameters()], expected, rtol=0, atol=0)


def test_derivatives_of_forward_dynamics_are_computed_in_its_type():
    mech = branched()
    q, qd, tau = usual_state(mech, 3)

    def both(tau):
        slope = torch.func.jvp(lambda x: ts.forward_dynamics(mech, q, qd, x), (tau,), (tau,))[1]
        tau = tau.clone().requires_grad_()
        y = ts.forward_dynamics(mech, q, qd, tau)
        return slope, *torch.autograd.grad(y, tau, tau.detach())

    expected = both(tau)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(both(tau), expected, rtol=0, atol=0)


def test_kernels_keep_their_type_under_autocast():
    mech = branched()
    q, qd, tau = usual_state(mech, 3)
    fast = ts.fuse(mech, order=0)
    tau.requires_grad_()

    def value_and_gradient():
        y = fast.forward_dynamics(q, qd, tau)
        return y, *torch.autograd.grad(y.sin().sum(), tau)  # eager, beyond the order

    expected = value_and_gradient()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(value_and_gradient(), expected, rtol=0, atol=0)


@pytest.mark.nightly
def test_a_layer_compiles_whole_within_autocast():
    mech = branched()
    layer, inputs = layer_of(mech), usual_state(mech, 3, wrench=True)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def fn(*inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(*inputs)

    assert_close(fn(*inputs), layer(*inputs), rtol=1e-5, atol=1e-4)


def test_a_layer_on_the_meta_device_tells_shapes():
    mech = branched()
    layer, inputs = layer_of(mech), usual_state(mech, 5, 2, wrench=True)
    expected = [f(*inputs) for f in (layer, layer.inverse_dynamics)]
    expected.append(layer.mass_matrix(inputs[0]))
    layer.to("meta")
    inputs = [x.to("meta") for x in inputs]
    found = [f(*inputs) for f in (layer, layer.inverse_dynamics)]
    found.append(layer.mass_matrix(inputs[0]))
    assert [y.shape for y in found] == [y.shape for y in expected]
    assert all(y.is_meta and y.dtype == mech.dtype for y in found)


@pytest.mark.some(1)
@pytest.mark.parametrize("forces", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_layer_serves_batches_of_any_size(forces, strict):
    mech = random_mechanism(["revolute", "prismatic", "revolute"], [-1, 0, 0], seed=3)
    layer = layer_of(mech)
    batch = torch.export.Dim("batch")

    def arguments(size):
        return (
            usual_state(mech, size, wrench=True)
            if forces
            else usual_state(mech, size, wrench=True)[:3]
        )

    program = torch.export.export(
        layer, arguments(4), dynamic_shapes=({0: batch},) * (3 + forces),
        strict=strict,
    )  # fmt: skip
    for size in (2, 4, 7):
        inputs = arguments(size)
        assert_close(program.module()(*inputs), layer(*inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("verb", ["layer", "forward", "inverse", "mass matrix", "rollout"])
def test_a_trace_of_torch_jit_serves_batches_of_any_size(verb):
    mech = branched(torch.float64)
    fn = layer_of(mech) if verb == "layer" else lambda *x: VERBS[verb](mech, *x)
    traced = torch.jit.trace(fn, usual_state(mech, 4, wrench=True), check_trace=False)
    inputs = [x.requires_grad_() for x in usual_state(mech, 3, wrench=True)]
    found, expected = traced(*inputs), fn(*inputs)
    assert_close(found, expected, rtol=1e-12, atol=1e-12)
    slopes = [
        torch.autograd.grad(y.sin().sum(), inputs, allow_unused=True) for y in (found, expected)
    ]
    assert_close(*slopes, rtol=1e-9, atol=1e-9)


class Loss(torch.nn.Module):
    """What DDP wraps: a module whose forward asks the layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, q, qd, qdd):
        return self.layer.inverse_dynamics(q, qd, qdd).square().mean()


def _train(rank, world, folder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world
    )
    try:
        mech = branched(torch.float64)
        model = torch.nn.parallel.DistributedDataParallel(Loss(layer_of(mech)))
        q, qd, qdd = usual_state(mech, 6)
        mine = slice(rank * 3, rank * 3 + 3)
        model(q[mine], qd[mine], qdd[mine]).backward()
        wrapped = torch.nn.parallel.DistributedDataParallel(layer_of(mech))
        with pytest.raises(ts.MechanismError, match=r"\.module"):
            ts.bias_force(wrapped, q, qd)
        assert_close(ts.bias_force(wrapped.module, q, qd), ts.bias_force(mech, q, qd))
        torch.save([p.grad for p in model.parameters()], f"{folder}/{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


def _broadcast(rank, world, folder):
    """One process changes buffers; DDP sends them to the other, by a write that torch does not count."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world
    )
    try:
        builder = ts.MechanismBuilder("plain").link("rod", mass=1.0, com=[0.1, 0, 0.5])
        mech = builder.joint("hinge", "revolute", child="rod", axis=[0, 1, 0]).build()
        q, qd, qdd = usual_state(mech, 3)
        for fused in (False, True):
            for name in ("armature", "mass"):
                learn = {"gravity": ts.learn.Free()}
                model = torch.nn.parallel.DistributedDataParallel(
                    Loss(ts.Dynamics(mech, learn, fused=fused))
                )
                for _ in range(2):
                    model(q, qd, qdd)
                if rank == 0:
                    getattr(model.module.layer.start, name).add_(0.5)
                good = mech.replace(**{name: getattr(mech, name) + 0.5})
                expected = ts.inverse_dynamics(good, q, qd, qdd).square().mean()
                assert_close(model(q, qd, qdd), expected, rtol=1e-12, atol=1e-12)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.nightly  # by day such writes of one process: test_layer_updates.py
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_what_ddp_broadcasts_reaches_every_process(tmp_path):
    torch.multiprocessing.spawn(_broadcast, args=(2, tmp_path), nprocs=2)


@pytest.mark.nightly
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_two_processes_under_ddp_give_the_gradients_of_one(tmp_path):
    torch.multiprocessing.spawn(_train, args=(2, tmp_path), nprocs=2)
    mech = branched(torch.float64)
    q, qd, qdd = usual_state(mech, 6)
    alone = Loss(layer_of(mech))
    alone(q, qd, qdd).backward()
    for rank in range(2):
        together = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for p, grad in zip(alone.parameters(), together, strict=True):
            assert_close(grad, p.grad, rtol=1e-12, atol=1e-12)
