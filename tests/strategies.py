"""Random trees, SKO models and mechanisms, and their dense definitions: the oracle of every test."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from torch import Tensor

import torchsko as ts
from torchsko.algebra.model import SKOModel
from torchsko.algebra.tree import Tree

BATCHES = ((), (1,), (2, 3))


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 9, forests: bool = True) -> Tree:
    """Any tree or forest in any numbering: one body, chains, stars, and all between."""
    n = draw(st.integers(1, max_nodes))
    low = -1 if forests else 0
    grown = [-1] + [draw(st.integers(low, k - 1)) for k in range(1, n)]
    label = draw(st.permutations(range(n)))
    parents = [-1] * n
    for k, p in enumerate(grown):
        parents[label[k]] = -1 if p < 0 else label[p]
    return Tree.from_parents(parents)


def random_model(
    tree: Tree,
    node_sizes: list[int],
    dof_sizes: list[int],
    batch: tuple[int, ...] = (),
    seed: int = 0,
    armature: bool = False,
) -> SKOModel:
    """A model of these block sizes with well-conditioned random blocks, some weights singular."""
    g = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*batch, *shape, generator=g, dtype=torch.float64)

    def positive(m: int) -> Tensor:
        x = randn(m, m)
        return x @ x.mT / m + torch.eye(m, dtype=torch.float64)

    n = range(tree.num_nodes)
    weights = [
        None
        if (p := tree.parent[k]) < 0
        else randn(node_sizes[p], node_sizes[k]) / node_sizes[k] ** 0.5
        for k in n
    ]
    return SKOModel.from_blocks(
        tree,
        weights,
        [randn(dof_sizes[k], node_sizes[k]) for k in n],
        [positive(node_sizes[k]) for k in n],
        [randn(node_sizes[k]) for k in n],
        [randn(node_sizes[k]) for k in n],
        [randn(dof_sizes[k]).square() for k in n] if armature else None,
    )


@st.composite
def sko_models(
    draw: st.DrawFn, max_nodes: int = 8, forests: bool = True, armature: bool | None = None
) -> SKOModel:
    """Random tree, ragged block sizes (m 2..6, d 1..m), batch shapes (), (1,), (2, 3)."""
    tree = draw(trees(max_nodes, forests))
    m = [draw(st.integers(2, 6)) for _ in range(tree.num_nodes)]
    d = [draw(st.integers(1, min(mk, 3))) for mk in m]
    batch = draw(st.sampled_from(BATCHES))
    with_armature = draw(st.booleans()) if armature is None else armature
    return random_model(tree, m, d, batch, draw(st.integers(0, 2**31)), with_armature)


def dense_sko(model: SKOModel) -> Tensor:
    """E_A from its definition, `[*batch, M, M]` in the tree's order, M the sum of the node sizes."""
    tree, m = model.tree, model.layout.nodes.sizes
    weight = model.layout.tree_order(model.edge_weight.dense(), -3)
    offset = [sum(m[:k]) for k in range(tree.num_nodes)]
    E = weight.new_zeros(*weight.shape[:-3], sum(m), sum(m))
    for k, p in enumerate(tree.parent):
        if p >= 0:
            rows, cols = slice(offset[p], offset[p] + m[p]), slice(offset[k], offset[k] + m[k])
            E[..., rows, cols] = weight[..., k, : m[p], : m[k]]
    return E


def dense_spo(model: SKOModel) -> Tensor:
    """A = (I - E_A)^-1, by a dense inverse."""
    E = dense_sko(model)
    return torch.linalg.inv(torch.eye(E.shape[-1], dtype=E.dtype) - E)


def dense_blocks(model: SKOModel, packed: Tensor, rows: str, cols: str) -> Tensor:
    """Block-diagonal matrix of packed blocks `[*, n, r, c]`; rows, cols in {"nodes", "dofs"}."""
    r, c = getattr(model.layout, rows).sizes, getattr(model.layout, cols).sizes
    blocks = model.layout.tree_order(packed, -3)
    out = blocks.new_zeros(*blocks.shape[:-3], sum(r), sum(c))
    for k in range(model.tree.num_nodes):
        i, j = sum(r[:k]), sum(c[:k])
        out[..., i : i + r[k], j : j + c[k]] = blocks[..., k, : r[k], : c[k]]
    return out


def dense_mass_matrix(model: SKOModel) -> Tensor:
    """H A M A* H* + S from the definition."""
    A = dense_spo(model)
    H = dense_blocks(model, model.joint_map, "dofs", "nodes")
    M = dense_blocks(model, model.inertia, "nodes", "nodes")
    MM = H @ A @ M @ A.mT @ H.mT
    if model.armature is None:
        return MM
    return MM + torch.diag_embed(model.layout.dofs.unpack(model.armature)[..., 0])


def dense_bias(model: SKOModel) -> Tensor:
    """H A (M A* a + b) from the definition, `[*batch, num_dof]`."""
    A = dense_spo(model)
    H = dense_blocks(model, model.joint_map, "dofs", "nodes")
    M = dense_blocks(model, model.inertia, "nodes", "nodes")
    a, b = (model.layout.nodes.unpack(x) for x in (model.coriolis_accel, model.gyro_force))
    return (H @ A @ (M @ A.mT @ a + b))[..., 0]


def random_mechanism(
    kinds: list[str], parents: list[int], seed: int = 0, armature: bool = False, passive: bool = True
) -> ts.Mechanism:
    """A mechanism of these joints on this tree (parents before children) with random parameters."""
    g = torch.Generator().manual_seed(seed)

    def vector(scale: float) -> list[float]:
        return (scale * torch.randn(3, generator=g, dtype=torch.float64)).tolist()

    def turn() -> list[list[float]]:
        x = torch.randn(3, 3, generator=g, dtype=torch.float64)
        R = torch.linalg.qr(x).Q
        return (R * torch.linalg.det(R)).tolist()

    builder = ts.MechanismBuilder("random")
    for k, (kind, p) in enumerate(zip(kinds, parents, strict=True)):
        moments = 0.1 + torch.rand(3, generator=g, dtype=torch.float64)
        inertia = torch.diag(moments.sum() - moments)
        mass = 1 + float(torch.rand((), generator=g))
        builder.link(f"body{k}", mass=mass, com=vector(0.2), inertia=inertia.tolist(),
                     inertia_rotation=turn())  # fmt: skip
        data = dict(zip(("damping", "friction"), torch.rand(2, generator=g).tolist(), strict=True))
        if kind in ("revolute", "prismatic"):
            data |= {"stiffness": 1.5, "spring_reference": 0.2}
        data = data if passive else {}
        if armature:
            data["armature"] = 0.1 + float(torch.rand((), generator=g))
        builder.joint(
            f"joint{k}", kind, child=f"body{k}", parent=None if p < 0 else f"body{p}",
            rotation=turn(), position=vector(0.5), axis=vector(1.0), **data,
        )  # fmt: skip
    return builder.build()


KINDS = ("revolute", "prismatic", "spherical", "free")


@st.composite
def mechanisms(draw: st.DrawFn, max_bodies: int = 5, armature: bool | None = None) -> ts.Mechanism:
    """Random trees of random joints with random physical parameters."""
    n = draw(st.integers(1, max_bodies))
    parents = [-1] + [draw(st.integers(-1, k - 1)) for k in range(1, n)]
    kinds = [draw(st.sampled_from(KINDS)) for _ in range(n)]
    with_armature = draw(st.booleans()) if armature is None else armature
    return random_mechanism(kinds, parents, draw(st.integers(0, 2**31)), with_armature)
