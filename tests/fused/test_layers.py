"""Programs of PyTorch's layers compute what the layers compute, to the second derivative."""

import pytest
import torch
from torch import nn
from torch.nn.functional import huber_loss, normalize
from torch.testing import assert_close

import torchsko as ts
from tests.fused.evaluate import evaluate
from torchsko.errors import FusedError
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace


class Cell(nn.Module):
    """One step of a recurrent cell, from a memory that its input decides on."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        memory = x.sin()[None]
        if isinstance(self.cell, nn.LSTMCell):
            return torch.cat(self.cell(x[None], (memory, memory.cos())))[1]
        return self.cell(x[None], memory)[0]


LAYERS = {
    "Linear": lambda: nn.Linear(3, 3),
    "Linear without bias": lambda: nn.Linear(3, 3, bias=False),
    "LayerNorm": lambda: nn.LayerNorm(3),
    "RMSNorm": lambda: nn.RMSNorm(3),
    "GELU by tanh": lambda: nn.GELU("tanh"),
    "Softplus": lambda: nn.Softplus(2.0, 0.5),
    "Softmax": lambda: nn.Softmax(-1),
    "LogSoftmax": lambda: nn.LogSoftmax(-1),
    "GLU": lambda: nn.Sequential(nn.Linear(3, 6), nn.GLU()),
    "GRUCell": lambda: Cell(nn.GRUCell(3, 3)),
    "LSTMCell": lambda: Cell(nn.LSTMCell(3, 3)),
    "Dropout in evaluation": lambda: nn.Dropout().eval(),
    "Sequential": lambda: nn.Sequential(
        nn.Linear(3, 4), nn.LayerNorm(4), nn.SiLU(), nn.Linear(4, 3), nn.Softplus()
    ),
    **{
        name: getattr(nn, name)
        for name in (
            "Tanh ReLU ELU SELU CELU SiLU GELU Sigmoid LogSigmoid LeakyReLU Mish Hardtanh ReLU6 "
            "Hardswish Softsign Tanhshrink PReLU Identity"
        ).split()
    },
}
FUNCTIONS = {
    "variance": lambda x: x * x.var(),
    "deviation": lambda x: x * x.std(correction=0),
    "logarithms": lambda x: torch.log2(1 + x * x) + torch.log10(2 + x * x) + torch.exp2(x),
    "hypot": lambda x: torch.hypot(x, 1 + x * x),
    "erf": torch.erf,
    "written in place": lambda x: (2 * x).sigmoid_() * (3 * x).tanh_(),
    "normalize": lambda x: normalize(x, dim=-1),
    "huber": lambda x: huber_loss(x, 2 * x) * x,
}


def weighted(fn, weights):
    return torch.func.grad(lambda x: (fn(x) * weights).sum())


@pytest.mark.parametrize("name", [*LAYERS, *FUNCTIONS])
def test_a_layer_and_its_derivatives_agree(name):
    torch.manual_seed(0)
    fn = FUNCTIONS[name] if name in FUNCTIONS else LAYERS[name]().double().requires_grad_(False)
    x = torch.tensor([0.3, -0.7, 1.4], dtype=torch.float64)
    first = weighted(fn, torch.arange(1.0, 4.0, dtype=x.dtype))
    second = weighted(first, torch.arange(3.0, 6.0, dtype=x.dtype))
    for function in (fn, first, second):
        (found,) = evaluate(trace(function, [Port("x", (3,))]), [x])
        assert_close(found, function(x), rtol=1e-12, atol=1e-12)


@pytest.mark.nightly
def test_the_kernel_of_a_network_trains_as_the_network(fast_network):
    mech, network, fast, eager = fast_network
    q, qd = mech.random_state(3, generator=torch.Generator().manual_seed(1))

    def derivatives(fn):
        y = fn(q, qd)
        weights = list(network.parameters())
        first = torch.autograd.grad(y.sin().sum(), weights, create_graph=True)
        return y, *first, *torch.autograd.grad(sum(g.square().sum() for g in first), weights)

    assert_close(derivatives(fast), derivatives(eager), rtol=1e-9, atol=1e-10)


@pytest.fixture
def fast_network():
    torch.manual_seed(0)
    mech = (
        ts.MechanismBuilder("pendulum")
        .link("rod", mass=1.0, com=[0, 0, 0.5], inertia=[[0.1, 0, 0], [0, 0.1, 0], [0, 0, 0.1]])
        .joint("hinge", "revolute", child="rod", axis=[0, 1, 0])
        .build()
    )
    activations = (nn.Tanh(), nn.ELU(), nn.SiLU(), nn.GELU(), nn.Softplus(), nn.Sigmoid())
    layers = [nn.Linear(2, 3)]
    for activation in activations:
        layers += [nn.LayerNorm(3), activation, nn.Linear(3, 3)]
    network = nn.Sequential(*layers, nn.Softmax(-1), nn.Linear(3, 1)).double()

    def step(mech, q, qd):
        return ts.forward_dynamics(mech, q, qd, network(torch.cat([q, qd], -1)))

    return mech, network, ts.fuse(step, mech), lambda q, qd: step(mech, q, qd)


def test_networks_too_large_for_a_straight_line_are_refused_with_their_size(fast_network):
    mech, *_ = fast_network
    network = nn.Sequential(nn.Linear(2, 600), nn.Tanh(), nn.Linear(600, 600), nn.Linear(600, 1))
    network.double()

    def step(mech, q, qd):
        return ts.forward_dynamics(mech, q, qd, network(torch.cat([q, qd], -1)))

    q, qd = mech.random_state(3)
    with pytest.raises(FusedError, match=r"720000 operations.*\n.*\n.*eagerly"):
        ts.fuse(step, mech)(q, qd)


def test_attention_is_not_said_to_draw_random_numbers(fast_network):
    mech, *_ = fast_network
    attention = nn.MultiheadAttention(1, 1).double().eval().requires_grad_(False)

    def step(mech, q, qd):
        tau = attention(qd[None], qd[None], qd[None], need_weights=False)[0][0]
        return ts.forward_dynamics(mech, q, qd, tau)

    with pytest.raises(FusedError, match=r"attention.*no rule.*\n.*\n.*softmax"):
        ts.fuse(step, mech)(*mech.random_state(3))


def test_what_has_no_rule_says_what_to_do_without_one():
    with pytest.raises(FusedError, match=r"no rule.*\n.*other operations.*fuse") as error:
        trace(lambda x: torch.erfinv(x), [Port("x", (3,))])
    assert "rules.py" not in str(error.value)
