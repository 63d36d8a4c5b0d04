"""Apply the dynamics algorithms to a model that is not a robot: the temperatures of a heat sink.

The recipe of Jain 2011, Part II, section 8.1, for a tree of metal nodes connected by bars to a cold wall:

1. The tree has the metal nodes. The "velocity" V(k) is the temperature above ambient [K].
2. The "inertia" M(k) is the heat loss to the air [W/K].
3. The "rate" qd(k) is the temperature drop along the bar to the parent, V(k) = V(p) + qd(k), so A(p, k) =
    H(k) = 1.
   The conductance of the bar [W/K] acts as an armature S(k).
4. The "gyroscopic force" b(k) is the negative power into the node [W].

Then T = MM qd + C is the heat balance of each bar, where T is the power of a heat pump in the bar [W].
"""

import torch

import torchsko as ts
from torchsko.algebra.recursions.articulated import compose, operators

PARENTS = {"stem": None, "plate": "stem", "fin1": "plate", "tip1": "fin1", "fin2": "plate"}


def heat_sink(leak, bar, power):
    """The model from leaks, bar conductances [W/K] and powers [W], each `[*batch, 5]`."""
    one = [torch.ones(1, 1, dtype=torch.float64)] * len(PARENTS)
    M, S, b = (x.split(1, dim=-1) for x in (leak, bar, -power))
    return ts.algebra.SKOModel.from_blocks(
        ts.algebra.Tree.from_names(PARENTS),
        one,
        one,
        [m[..., None] for m in M],
        gyro_force=b,
        armature=S,
    )


def temperatures(model, drop):
    """V = A* H* qd [K above ambient], `[*batch, 5]`."""
    ops = operators(model)
    return compose(ops.spo.T, ops.joint_map.T).act(drop[..., None])[..., 0]


def kirchhoff(leak, bar, power):
    """The same temperatures from the dense conductance matrix of the network."""
    tree = ts.algebra.Tree.from_names(PARENTS)
    ends = [[float(k == i) - float(p == i) for k, p in enumerate(tree.parent)] for i in range(5)]
    B = torch.tensor(ends, dtype=torch.float64)  # +1 at the bar's node, -1 at its parent
    L = torch.diag_embed(leak) + B @ torch.diag_embed(bar) @ B.T
    return torch.linalg.solve(L, power[..., None])[..., 0], L


def main():
    air = torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64)  # still air to a strong fan
    leak = air * torch.tensor([0.1, 0.2, 0.3, 0.3, 0.5], dtype=torch.float64)
    bar = torch.tensor([4.0, 3.0, 2.0, 1.0, 2.0], dtype=torch.float64).requires_grad_()
    power = torch.tensor([0.0, 20.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    model = heat_sink(leak, bar, power)
    nothing = torch.zeros(5, dtype=torch.float64)

    drop = ts.algorithms.forward_dynamics(model, nothing)  # O(N), all fan speeds at once
    theta, (expected, L) = temperatures(model, drop), kirchhoff(leak, bar, power)
    print("temperatures above ambient [K], one row per fan speed:", ", ".join(PARENTS))
    print(theta.detach().numpy().round(2))
    print(f"against Kirchhoff:             {(theta - expected).abs().max():.1e}")

    omega = ts.algorithms.compliance_block(model, 3, 4)[..., 0, 0]  # O(N) as well
    print(
        f"resistance tip1 - fin2 [K/W]:  {(omega - torch.linalg.inv(L)[:, 3, 4]).abs().max():.1e}"
    )
    logdet = ts.innovations(model).logdet()
    print(f"log det of the network:        {(logdet - torch.logdet(L)).abs().max():.1e}")
    merged = ts.algebra.aggregate(model, ["plate", "fin1", "fin2"])
    same = ts.algorithms.forward_dynamics(merged, nothing)
    print(f"plate and fins as one node:    {(same - drop).abs().max():.1e}")

    hold = nothing.index_fill(0, torch.tensor(1), -5.0)  # the plate held 5 K below the stem
    _, pump = ts.algorithms.hybrid_dynamics(model, nothing, hold, prescribed=["plate"])
    print("power of the heat pump [W]:", pump[:, 1].detach().numpy().round(2))
    slope = torch.autograd.grad(theta[0, 1], bar)[0]
    print("plate temperature per bar conductance [K per W/K]:", slope.numpy().round(3))


if __name__ == "__main__":
    main()
