"""Traced random functions have the values and gradients of eager calls.

A function is a text of lines ``v3 = ...``, each valid in eager mode; what has no rule is left out.
`HYPOTHESIS_PROFILE=nightly` tries some hundreds.
"""

import random
import re

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from tests.fused.evaluate import evaluate
from torchsko.errors import FusedError
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace

PORTS = [Port("x", (4,)), Port("y", (4,)), Port("A", (3, 3)), Port("s", ())]
SAMPLES = 3

OF_ONE = """
    sin() cos() tanh() abs() neg() square() sigmoid() relu() expm1() floor() ceil() round()
    trunc() frac() sign() logical_not() softmax(-1) sum() sum(-1) mean(0) prod(-1) amax(0) std(-1)
    var(0) argmax(-1) cumsum(0) cumprod(-1) norm() norm(dim=-1) flip(0) roll(1) mT unsqueeze(0)
    squeeze() reshape(-1) tril() triu(1) diff() max(0).values min(-1).values contiguous() detach()
    clone() isnan() trace() diag() logsumexp(-1) repeat(2) bool() unfold(0,2,1) expand(2,-1,-1)
    unbind()[1] split(2)[0] movedim(0,-1) det() matrix_power(2) count_nonzero(-1) clamp(-0.3,0.4)
    clamp(max=0.5) pow(3) remainder(0.7) div(0.3,rounding_mode='trunc') div(0.4,rounding_mode='floor') any(-1)
    all(0) masked_fill(torch.tensor([True,False,True]),1.5) index_fill(0,torch.tensor([1]),-0.7)
    to(torch.float64) index_select(0,torch.tensor([2,0,2])) gather(0,torch.tensor([1,1,0]))
    index_add(0,torch.tensor([0,0]),{a}[:2]) scatter(0,torch.tensor([1,0]),{a}[:2])
    scatter_add(0,torch.tensor([0,1,0]),{a}[:3]) new_full((2,),0.6)
""".split()
INDEXED = (
    "[::2] [1:] [-1] [0] [...,0] [...,None] [:,[1,0]] [[0,2,0]] [None,1:] [torch.arange(3),[2,0,1]]"
).split()
OF_TWO = """
    {a}+{b} {a}-{b} {a}*{b} {a}@{b} {a}/({b}.abs()+0.5) {a}>{b} ({a}>0)&({b}<0.5)
    ({a}>{b})==({b}>0) {a}.abs()**{b} torch.where({a}>{b},{a},{b}) torch.where({a}>0,{b},0.3)
    torch.maximum({a},{b}) torch.atan2({a},{b}) torch.hypot({a},{b}) torch.remainder({a},{b})
    torch.fmod({a},{b}) torch.cat([{a},{b}]) torch.stack([{a},{b}],-1) torch.outer({a},{b})
    torch.kron({a},{b}) torch.dot({a},{b}) torch.linalg.cross({a},{b}) {a}.lerp({b},0.3)
    torch.addcmul({a},{b},{b},value=-0.4) torch.einsum('ij,j->i',{a},{b})
    torch.einsum('...i,...i->...',{a},{b}) {a}.masked_fill({b}>0,{a}.sum())
    {a}.take_along_dim({b}.argmax(0,keepdim=True),0) ({a}<{b}).sum(-1)*{a}
    torch.linalg.solve({a}+4*torch.eye(3,dtype={a}.dtype),{b})
    torch.sub({a},{b},alpha=2) torch.func.jvp(lambda\tu,w:u*w.sin(),({a},{b}),({b},{a}))[1]
    torch.func.vmap(lambda\tu:u*{b})({a}) torch.func.vjp(lambda\tu:u.cumsum(0)*{b},{a})[1]({b})[0]
    torch.func.vmap(torch.func.grad(lambda\tr:r.prod()))({a})
""".replace("\t", "~").split()
WRITING = """
    v[1:]={b}[1:] v[0]=0.7 v[0]+={b}[1] v.mul_({b}) v[...,0]={b}[...,1] v.masked_fill_({b}>0,-1.4)
    v.copy_({b}) v.fill_(2.5) v.diagonal().fill_(0.2) v.view(-1)[::2]*=3 v.reshape(-1)[1:]*=2
    v.mT.add_({b}) v.clamp_(-0.5,0.5) v[[0,2]]={b}[[1,0]]
    v.index_add_(0,torch.tensor([0,1]),{b}[:2]) v.zero_().add_({b}) v.cumsum_(0) v.t_()
""".split()


@pytest.fixture(autouse=True, scope="module")
def eager_calls_of_truths_and_counts_round_no_more_than_the_others():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Writer:
    """Writes a function line by line, running each line on one sample."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        g = torch.Generator().manual_seed(seed)
        self.inputs = [
            torch.randn(SAMPLES, *port.shape, dtype=torch.float64, generator=g) for port in PORTS
        ]
        self.values = {port.name: x[0] for port, x in zip(PORTS, self.inputs, strict=True)}
        self.lines: list[str] = []

    def written(self, count: int) -> None:
        for _ in range(20 * count):
            if len(self.lines) < count:
                self.attempt(f"v{len(self.lines)}")

    def attempt(self, name: str) -> None:
        names = [*self.values][-5:] if self.draw.random() < 0.6 else [*self.values]
        a, b = self.draw.choice(names), self.draw.choice(names)
        kind = self.draw.choice(("one", "one", "index", "two", "two", "two", "write"))
        if kind == "one":
            line = f"{name} = {{a}}.{self.draw.choice(OF_ONE)}"
        elif kind == "index":
            line = f"{name} = {{a}}{self.draw.choice(INDEXED)}"
        elif kind == "two":
            line = f"{name} = {self.draw.choice(OF_TWO)}".replace("~", " ")
        else:
            written = re.sub(r"^v\b", name, self.draw.choice(WRITING))
            line = f"{name} = {{a}}.clone(); {written}"
        line = line.format(a=a, b=b)
        scope = {"torch": torch, **self.values}
        try:
            exec(line, scope)
        except (RuntimeError, IndexError, ValueError, TypeError):
            return
        value = scope[name]
        tame = isinstance(value, Tensor) and 0 < value.numel() <= 48
        # What is nearly zero, or large, is what rounding left of it.
        size = value.double().abs() if tame else torch.ones(1)
        if tame and bool(((size == 0) | (size > 1e-6)).all()) and float(size.max()) < 1e3:
            self.values[name] = value
            self.lines.append(line)

    def text(self, name: str) -> str:
        """A function that returns one value, reduced to the lines that it needs."""
        needed, kept = {name}, []
        for line in reversed(self.lines):
            if line.split(" ")[0] in needed:
                kept.append(line)
                needed |= set(re.findall(r"\bv\d+\b", line))
        body = "".join(f"    {line}\n" for line in reversed(kept))
        return f"def fn(x, y, A, s):\n{body}    return {name}\n"


def weighted(result: Tensor) -> Tensor:
    """A scalar that depends on each entry differently."""
    return (result * torch.arange(1.0, 1 + result.numel()).reshape(result.shape).cos()).sum()


def gradient_of(fn):
    def gradient(*tensors):
        total, pull = torch.func.vjp(lambda *z: weighted(fn(*z)), *tensors)
        return pull(torch.ones_like(total))

    return gradient


def stacked(fn, inputs: list[Tensor]) -> list[Tensor]:
    """Results of eager calls, sample by sample."""
    rows = [fn(*(x[k] for x in inputs)) for k in range(SAMPLES)]
    rows = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def assert_same(fn, inputs: list[Tensor], text: str) -> bool:
    """Assert that the kernel equals the function; returns False if it cannot be traced."""
    try:
        expected = stacked(fn, inputs)
    except RuntimeError:  # PyTorch itself has no derivative of it
        return False
    try:
        found = evaluate(trace(fn, PORTS), inputs)
    except FusedError:
        return False
    g = torch.Generator().manual_seed(0)
    noise = [1e-13 * torch.randn(x.shape, dtype=x.dtype, generator=g) for x in inputs]
    near = stacked(fn, [x + dx for x, dx in zip(inputs, noise, strict=True)])
    for mine, theirs, other in zip(found, expected, near, strict=True):
        mine, other = mine.to(theirs.dtype).double(), other.double()
        # Of numbers at the edge of a jump, or without bound, rounding decides.
        tame = torch.isclose(other, theirs.double(), rtol=1e-7, atol=1e-7).all()
        if tame and bool(torch.isfinite(theirs).all()):
            torch.testing.assert_close(
                mine, theirs.double(), rtol=1e-9, atol=1e-9, msg=lambda m: f"{m}\n{text}"
            )
    return True


@pytest.mark.filterwarnings("ignore")
@given(st.integers(0, 2**32), st.integers(3, 12))
@example(22, 12)
def test_random_functions_have_the_values_and_gradients_of_eager_calls(seed, count):
    writer = Writer(seed)
    writer.written(count)
    for line in writer.lines:
        name = line.split(" ")[0]
        text = writer.text(name)
        scope = {"torch": torch}
        exec(text, scope)
        fn = scope["fn"]
        if assert_same(fn, writer.inputs, text) and writer.values[name].is_floating_point():
            assert_same(gradient_of(fn), writer.inputs, text)
