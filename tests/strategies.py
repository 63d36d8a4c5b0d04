"""Random trees, SKO models and mechanisms, and their dense definitions: the oracle of every test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace

import hypothesis.strategies as st
import torch
from hypothesis import settings
from torch import Tensor

import torchsko as ts
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.tree import Tree

BATCHES = ((), (1,), (2, 3))
seeds = st.integers(0, 2**31)
many = settings(max_examples=4 * settings().max_examples)
"""For tests without tensors, whose examples cost next to nothing: four times those of the profile."""
few = settings(max_examples=settings().max_examples // 6)
"""For tests whose examples take seconds: a sixth of those of the profile."""


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
    mixed: bool = False,
    orthonormal: bool = False,
) -> SKOModel:
    """A model of these block sizes with well-conditioned random blocks, some weights singular.

    With `mixed` every field has batch dimensions of its own that broadcast to `batch`; with
    `orthonormal` the rows of every H are, and the model says so: its E is H.
    """
    g = torch.Generator().manual_seed(seed)
    n = range(tree.num_nodes)
    whole = int(torch.randint(6, (), generator=g))  # the field that keeps every batch dimension

    def field(place: int, shapes: list[tuple[int, ...]]) -> list[Tensor]:
        keep = torch.rand(len(batch), generator=g) < 0.5
        skip = int(torch.randint(len(batch) + 1, (), generator=g))
        narrow = tuple(b if kept else 1 for b, kept in zip(batch, keep, strict=True))[skip:]
        own = narrow if mixed and place != whole else batch
        return [torch.randn(*own, *s, generator=g, dtype=torch.float64) for s in shapes]

    m, d = node_sizes, dof_sizes
    weights = field(0, [(m[max(tree.parent[k], 0)], m[k]) for k in n])
    H = field(1, [(d[k], m[k]) for k in n])
    roots = field(2, [(m[k], m[k]) for k in n])
    a, b, S = (field(place, [(s,) for s in sizes]) for place, sizes in ((3, m), (4, m), (5, d)))
    for k in range(0, tree.num_nodes, 3):  # every third weight loses its rank
        weights[k] = weights[k] * (torch.arange(m[k]) > 0)
    model = SKOModel.from_blocks(
        tree,
        [None if tree.parent[k] < 0 else weights[k] / m[k] ** 0.5 for k in n],
        [_rows(x, orthonormal) for x in H],
        [x @ x.mT / x.shape[-1] + torch.eye(x.shape[-1], dtype=x.dtype) for x in roots],
        a,
        b,
        [x.square() for x in S] if armature else None,
    )
    return replace(model, straight=model.joint_map if orthonormal else None)


@st.composite
def straightened(draw: st.DrawFn, models: st.SearchStrategy[SKOModel]) -> SKOModel:
    """A model whose E(k) is, row by row, the dual (H H*)^-1 H of H(k) or zero."""
    model = draw(models)
    H = model.joint_map
    used = ~model.layout.dofs.padding[..., None]
    gram = H @ H.mT + torch.diag_embed((~used).to(H.dtype)[..., 0])
    chosen = [draw(st.booleans()) for _ in range(used.numel())]
    rows = used & torch.tensor(chosen).reshape(used.shape)
    return replace(model, straight=torch.where(rows, torch.linalg.solve(gram, H), 0.0))


def _rows(x: Tensor, orthonormal: bool) -> Tensor:
    """A joint map of full row rank: orthonormal rows, or those mixed and stretched by up to e^(1/2)."""
    Q = torch.linalg.qr(x.mT).Q.mT
    if orthonormal or not x.shape[-2]:
        return Q
    mixed = torch.eye(x.shape[-2], dtype=x.dtype) + x[..., : x.shape[-2]].tanh().tril(-1) / 2
    return (x[..., :1].tanh() / 2).exp() * (mixed @ Q)


@st.composite
def sko_models(
    draw: st.DrawFn,
    max_nodes: int = 8,
    forests: bool = True,
    armature: bool | None = None,
    mixed: bool = False,
    min_dofs: int = 1,
    orthonormal: bool = False,
) -> SKOModel:
    """Random tree, ragged block sizes (m 2..6, d min_dofs..3), batch shapes (), (1,), (2, 3)."""
    tree = draw(trees(max_nodes, forests))
    m = [draw(st.integers(2, 6)) for _ in range(tree.num_nodes)]
    d = [draw(st.integers(min_dofs, min(mk, 3))) for mk in m]
    batch = draw(st.sampled_from(BATCHES))
    with_armature = draw(st.booleans()) if armature is None else armature
    seed = draw(seeds)
    return random_model(tree, m, d, batch, seed, with_armature, mixed, orthonormal)


@st.composite
def shared_models(
    draw: st.DrawFn,
    max_nodes: int = 8,
    min_dofs: int = 0,
    mixed: bool = False,
) -> SKOModel:
    """As `sko_models`, but siblings (bases among them) may share a hinge, and its armature is a matrix."""
    tree = draw(trees(max_nodes))
    n, m = tree.num_nodes, [draw(st.integers(2, 6)) for _ in tree.parent]
    hinge = list(range(n))
    for k in range(n):
        siblings = [j for j in range(k) if tree.parent[j] == tree.parent[k]]
        hinge[k] = hinge[draw(st.sampled_from(siblings))] if siblings and draw(st.booleans()) else k
    most = {h: min(3, *(m[k] for k in range(n) if hinge[k] == h)) for h in hinge}
    size = {h: draw(st.integers(min_dofs, top)) for h, top in most.items()}
    batch, seed = draw(st.sampled_from(BATCHES)), draw(seeds)
    model = random_model(tree, m, [size[h] for h in hinge], batch, seed, mixed=mixed)
    flat = draw(st.permutations(range(sum(size.values()))))
    start = {h: sum(list(size.values())[:i]) for i, h in enumerate(size)}
    places = [[flat[start[h] + i] for i in range(size[h])] for h in hinge]
    layout = Layout.of(tree, m, [size[h] for h in hinge], places)
    root = torch.randn(n, layout.dofs.width, layout.dofs.width, dtype=torch.float64) / 2
    root = torch.where(layout.dofs.padding[..., None], 0.0, root)
    S = root @ root.mT if draw(st.booleans()) else None
    return replace(model, layout=layout, armature=S)


def agree(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Assert equality relative to the largest entry; batch dimensions broadcast, the rest may not."""
    assert actual.shape[-2:] == expected.shape[-2:], (actual.shape, expected.shape)
    if actual.numel():
        scale = max(1.0, float(expected.abs().max()))
        assert float((actual - expected).abs().max()) <= tolerance * scale


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
    r, c = getattr(model.layout, rows).places, getattr(model.layout, cols).places
    blocks = model.layout.tree_order(packed, -3)
    out = blocks.new_zeros(*blocks.shape[:-3], len(set().union(*r)), len(set().union(*c)))
    for k, (row, col) in enumerate(zip(r, c, strict=True)):
        if row and col:
            i = torch.tensor(row)[:, None]
            out[..., i, list(col)] += blocks[..., k, : len(row), : len(col)]
    return out


def dense_operators(model: SKOModel) -> SimpleNamespace:
    """E, A, H, M, S of a model by their definitions, by the papers' letters."""
    S, dofs = model.armature, model.layout.dofs
    S = (
        torch.zeros(dofs.padding.shape[0], dofs.width, 1, dtype=model.inertia.dtype)
        if S is None
        else S
    )
    S = torch.diag_embed(S[..., 0]) if S.shape[-1] == 1 else S
    return SimpleNamespace(
        E=dense_sko(model),
        A=dense_spo(model),
        H=dense_blocks(model, model.joint_map, "dofs", "nodes"),
        M=dense_blocks(model, model.inertia, "nodes", "nodes"),
        S=dense_blocks(model, S, "dofs", "dofs"),
    )


def dense_riccati(model: SKOModel) -> SimpleNamespace:
    """The operators of `dense_operators`, and P, D, G, K, tau, tau_bar, P_plus, E_psi, psi.

    P is the fixed point of P = M + E_A P+ E_A*, reached in as many steps as E_A is nilpotent of.
    """
    dense = dense_operators(model)
    E, H, M, S = dense.E, dense.H, dense.M, dense.S
    P = M
    for _ in range(model.tree.nilpotency):
        D = H @ P @ H.mT + S
        G = P @ H.mT @ torch.linalg.inv(D)
        P_plus = P - G @ D @ G.mT
        P = M + E @ P_plus @ E.mT
    I = torch.eye(M.shape[-1], dtype=M.dtype)
    D = H @ P @ H.mT + S
    G = P @ H.mT @ torch.linalg.inv(D)
    tau_bar = I - G @ H
    riccati = {"P": P, "D": D, "G": G, "K": E @ G, "tau": G @ H, "tau_bar": tau_bar}
    psi = torch.linalg.inv(I - E @ tau_bar)
    last = {"P_plus": P - G @ D @ G.mT, "E_psi": E @ tau_bar, "psi": psi}
    return SimpleNamespace(**vars(dense), **riccati, **last)


def dense_mass_matrix(model: SKOModel) -> Tensor:
    """H A M A* H* + S from the definition."""
    x = dense_operators(model)
    return x.H @ x.A @ x.M @ x.A.mT @ x.H.mT + x.S


def dense_bias(model: SKOModel) -> Tensor:
    """H A (M A* a + b) from the definition, `[*batch, num_dof]`."""
    x = dense_operators(model)
    a, b = (model.layout.nodes.unpack(v) for v in (model.coriolis_accel, model.gyro_force))
    bias = (x.H @ x.A @ (x.M @ x.A.mT @ a + b))[..., 0]
    return (
        bias
        if model.hinge_bias is None
        else bias + model.layout.dofs.collect(model.hinge_bias)[..., 0]
    )


def _second_axis(axis: list[float], vector: Callable[[float], list[float]], _: int) -> dict:
    return {"second_axis": torch.linalg.cross(*torch.tensor([axis, vector(1.0)]).double()).tolist()}


def _motions(_: list[float], vector: Callable[[float], list[float]], count: int) -> dict:
    turns = [vector(1.0)[0] > -0.5 for _ in range(count)]
    return {
        "motions": [
            ts.Turn(vector(1.0), vector(0.5)) if t else ts.Slide(vector(1.0)) for t in turns
        ]
    }


OWN_DATA = {
    "helical": lambda axis, vector, _: {"pitch": vector(0.3)[0]},
    "universal": _second_axis,
    "planar": lambda axis, vector, _: {"direction": vector(1.0)},
    "compound": _motions,
}
"""What kinds of joints need besides an axis: from the axis, random vectors and a number of motions."""


def with_fluid(
    mech: ts.Mechanism, bodies: tuple[int, ...], generator: torch.Generator
) -> ts.Mechanism:
    """The mechanism with ellipsoids and boxes in a fluid, alternately, on these bodies."""
    n = len(bodies)

    def near(x: float, *shape: int) -> Tensor:
        return x + 0.1 * torch.rand(*shape, generator=generator, dtype=mech.dtype)

    turns = torch.linalg.qr(torch.randn(n, 3, 3, generator=generator, dtype=mech.dtype))[0]
    return replace(
        mech,
        fluid_bodies=bodies,
        fluid_models=("ellipsoid", "box", "ellipsoid", "box")[:n],
        fluid_rotation=turns * torch.linalg.det(turns)[:, None, None],
        fluid_position=near(0.1, n, 3),
        fluid_size=near(0.1, n, 3),
        fluid_coefficients=near(0.4, n, 12),
        medium=near(0.1, 2),
        wind=near(0.1, 3),
        has_fluid=True,
    )


def random_mechanism(
    kinds: list[str],
    parents: list[int],
    seed: int = 0,
    armature: bool = False,
    passive: bool = True,
    couplings: Mapping[int, Mapping[int, float]] | None = None,
) -> ts.Mechanism:
    """A mechanism of these joints on this tree (parents before children) with random parameters.

    Joints in `couplings` follow others, with these coefficients and random offsets.
    """
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
        axis = vector(1.0)
        if kind in OWN_DATA:
            data |= OWN_DATA[kind](axis, vector, int(torch.randint(1, 4, (), generator=g)))
        if armature:
            data["armature"] = 0.1 + float(torch.rand((), generator=g))
        builder.joint(
            f"joint{k}", kind, child=f"body{k}", parent=None if p < 0 else f"body{p}",
            rotation=turn(), position=vector(0.5), axis=axis, **data,
        )  # fmt: skip
    for k, row in (couplings or {}).items():
        terms = {f"joint{j}": c for j, c in row.items()}
        builder.couple(f"joint{k}", terms, vector(0.3)[0])
    return builder.build()


KINDS = ("revolute", "prismatic", "spherical", "free")
MORE_KINDS = ("helical", "cylindrical", "universal", "planar", "translation", "compound")
ALL_KINDS = (*KINDS, *MORE_KINDS)


ONE_DOF = ("revolute", "prismatic", "helical")
"""Kinds of joints that couplings join."""


@st.composite
def coupled_mechanisms(
    draw: st.DrawFn, max_bodies: int = 6, armature: bool | None = None
) -> ts.Mechanism:
    """Random trees of random joints, one to three of which follow one or two others."""
    n = draw(st.integers(2, max_bodies))
    parents = [-1] + [draw(st.integers(-1, k - 1)) for k in range(1, n)]
    chosen = [draw(st.sampled_from((*ONE_DOF, *ALL_KINDS))) for _ in range(n)]
    first, second = draw(st.permutations(range(n)))[:2]
    chosen[first], chosen[second] = "revolute", draw(st.sampled_from(ONE_DOF))
    able = draw(st.permutations([k for k, kind in enumerate(chosen) if kind in ONE_DOF]))
    dependent = able[: draw(st.integers(1, min(3, len(able) - 1)))]
    numbers = st.floats(-2.0, 2.0).filter(lambda x: abs(x) > 0.1)
    couplings = {}
    for i, k in enumerate(dependent):  # what follows may follow another
        others = draw(st.permutations(able[i + 1 :]))[: draw(st.integers(1, 2))]
        couplings[k] = {j: draw(numbers) for j in others}
    with_armature = draw(st.booleans()) if armature is None else armature
    seed = draw(seeds)
    return random_mechanism(chosen, parents, seed, with_armature, couplings=couplings)


@st.composite
def mechanisms(
    draw: st.DrawFn,
    max_bodies: int = 5,
    armature: bool | None = None,
    kinds: tuple[str, ...] = ALL_KINDS,
) -> ts.Mechanism:
    """Random trees of random joints with random physical parameters."""
    n = draw(st.integers(1, max_bodies))
    parents = [-1] + [draw(st.integers(-1, k - 1)) for k in range(1, n)]
    chosen = [draw(st.sampled_from(kinds)) for _ in range(n)]
    with_armature = draw(st.booleans()) if armature is None else armature
    return random_mechanism(chosen, parents, draw(seeds), with_armature)


@st.composite
def flexible_mechanisms(draw: st.DrawFn, max_bodies: int = 2) -> ts.Mechanism:
    """Random trees with a flexible link on a body, which carries another body at its tip."""
    mech = draw(mechanisms(max_bodies=max_bodies))
    return with_flexible_link(mech, mech.body_names[draw(st.integers(0, mech.num_bodies - 1))])


def with_flexible_link(mech: ts.Mechanism, frame: str) -> ts.Mechanism:
    """The mechanism with a flexible link on a hinge of a frame, and a body on a hinge of its tip."""
    beam = ts.FlexibleBody.beam(
        0.5, 0.8, EI_y=0.7, EI_z=0.5, GJ=0.4, shapes=(2, 1, 1), polar_inertia=0.03
    )
    builder = ts.MechanismBuilder("flexible").flexible_link("beam", beam.damped(0.05))
    builder.joint("swing", "revolute", child="beam", axis=(1, 2, 0), position=(0.1, 0, 0.2))
    builder.link("tip", mass=0.3, com=(0.1, 0.02, 0), inertia=(0.02 * torch.eye(3)).tolist())
    builder.joint("turn", "revolute", child="tip", parent="beam/tip", axis=(0, 1, 1))
    return mech.append(builder.build(), frame)


def any_mechanisms(max_bodies: int = 5, max_coupled: int = 6) -> st.SearchStrategy[ts.Mechanism]:
    """Mechanisms without and with couplings."""
    return mechanisms(max_bodies=max_bodies) | coupled_mechanisms(max_bodies=max_coupled)


def ill_scaled_mechanism(seed: int, robots: int = 16, bodies: int = 6) -> ts.Mechanism:
    """Robots on one random tree whose masses and inertias lie side by side at ratios up to 1e6.

    A random tree of revolute, prismatic and spherical joints; `robots` of them in one batch, with
    masses from 1e-4 to 1e2 kg, and damping and dry friction from 0.03 to 30 at every joint.
    """
    g = torch.Generator().manual_seed(seed)
    parents = [int(torch.randint(-1, k, (), generator=g)) if k else -1 for k in range(bodies)]
    kinds = [KINDS[int(torch.randint(0, 3, (), generator=g))] for _ in range(bodies)]
    mech = random_mechanism(kinds, parents, seed)

    def spread(low: float, decades: float, *shape: int) -> Tensor:
        return low * 10 ** (decades * torch.rand(*shape, generator=g, dtype=torch.float64))

    mass = spread(1e-4, 6, robots, bodies)
    damping, friction = spread(0.03, 3, 2, robots, mech.num_dof)
    return mech.replace(
        mass=mass,
        # As wide as 3 to 30 cm, so that tiny links have tiny inertias.
        inertia=(mass * spread(1e-3, 2, robots, bodies))[..., None, None] * mech.inertia,
        damping=damping,
        friction=friction,
    )
