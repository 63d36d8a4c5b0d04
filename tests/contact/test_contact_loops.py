"""Kernels of robots with many candidate contacts, which are rows of loops."""

import pytest
import torch

import torchsko as ts
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace
from torchsko.mechanism.dispatch import in_traced_dtype

pytestmark = pytest.mark.filterwarnings("ignore::torchsko.errors.RobotFileWarning")

LINK = """<body pos=".22 0 0"><joint axis="0 1 .2" damping=".1"/>
  <geom type="capsule" fromto="0 0 0 .2 0 0" size=".04"/>{pads}{child}</body>"""
PAD = '<geom type="capsule" fromto="{0} -.02 0 {0} .02 0" size=".01"/>'
CHAIN = """<mujoco><option cone="{cone}" timestep=".002"/><worldbody><geom type="plane" size="9 9 1"/>
<body pos="0 0 .05"><freejoint/><geom type="capsule" fromto="0 0 0 .2 0 0" size=".04"/>{child}</body>
</worldbody></mujoco>"""


def chain(cone, num_pads=0):
    """Five capsules, which touch the floor in 10 points at most, and each other in 12."""
    pads = [""] * 4
    for k in range(num_pads):
        pads[k % 4] += PAD.format(0.05 + 0.01 * k)
    child = ""
    for pad in pads:
        child = LINK.format(pads=pad, child=child)
    return ts.load(CHAIN.format(cone=cone, child=child))


def step(mech, q, qd):
    after = ts.step(mech, ts.State(q, qd))
    return after.q, after.qd


@pytest.mark.nightly
@pytest.mark.parametrize("cone", ["elliptic", "pyramidal"])
def test_kernels_of_many_contacts_equal_eager_mode(cone):
    """At states on the floor, of chains that are curled, and in flight."""
    mech = chain(cone)
    g = torch.Generator().manual_seed(0)
    q = mech.initial() + 0.1 * torch.randn(24, mech.num_q, generator=g, dtype=mech.dtype)
    q[::3, -4:] = torch.tensor([2.2, 2.2, 2.2, 0.3], dtype=mech.dtype)
    q[::2, 2] += 0.6
    qd = torch.randn(24, mech.num_dof, generator=g, dtype=mech.dtype)
    points = ts.contacts(mech, q)
    of_limbs = torch.tensor([k >= 5 for k in points.pair])  # the first pairs are those of the floor
    for group in (of_limbs, ~of_limbs):
        assert points.active[:, group].sum() > 10
        assert not points.active[:, group].any(-1).all()
    fast = ts.fuse(step, mech, shapes={"qd": (mech.num_dof,)}, verify=False)
    leaves = [x.clone().requires_grad_() for x in (q, qd)]
    mine, theirs = fast(*leaves), step(mech, *leaves)
    weights = [torch.randn(x.shape, generator=g, dtype=x.dtype) for x in theirs]
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    for a, b in zip(
        *(torch.autograd.grad(x, leaves, weights) for x in (mine, theirs)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


def test_programs_hardly_grow_with_shapes():
    def operations(num_pads):
        mech = chain("pyramidal", num_pads)
        ports = [Port("q", (mech.num_q,)), Port("qd", (mech.num_dof,))]
        return trace(lambda q, qd: step(in_traced_dtype(mech, q), q, qd), ports).num_flops

    few, many = operations(4), operations(12)
    assert many < 1.05 * few
