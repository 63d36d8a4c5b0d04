"""A chain longer than Python's recursion limit: every call works on it, or refuses it by name."""

import copy
import io
import pickle
import sys
import time

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torchsko as ts
from tests.strategies import random_model
from torchsko.algebra.theory.path_induced import is_path_induced
from torchsko.algebra.topology.embedding_plan import embedding_plan
from torchsko.algebra.topology.layout import Layout

N = 1100


def chain(n: int) -> ts.Mechanism:
    builder = ts.MechanismBuilder("chain")
    for k in range(n):
        builder.link(f"l{k}", mass=1.0, com=(0.05, 0.0, 0.0))
        builder.joint(
            f"j{k}", "revolute", child=f"l{k}", parent=f"l{k - 1}" if k else None,
            axis=(0.0, 0.0, 1.0), position=(0.1, 0.0, 0.0), armature=1.0,
        )  # fmt: skip
    return builder.build()


MECH = chain(N)
TREE = MECH.layout.tree
Q = torch.full((N,), 1e-3, dtype=torch.float64)
ZERO = torch.zeros_like(Q)
TIP = f"l{N - 1}"


def saved() -> ts.Mechanism:
    file = io.BytesIO()
    torch.save(MECH, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def gradient() -> torch.Tensor:
    q = Q.clone().requires_grad_()
    ts.inverse_dynamics(MECH, q, ZERO, ZERO).sum().backward()
    return q.grad


MODEL = ts.assemble(MECH, Q, ZERO)

CALLS = {
    "forward dynamics": lambda: ts.forward_dynamics(MECH, Q, ZERO, ZERO),
    "scan": lambda: ts.forward_dynamics(MECH, Q, ZERO, ZERO, method="scan"),
    "inverse dynamics": lambda: ts.inverse_dynamics(MECH, Q, ZERO, ZERO),
    "parallel": lambda: ts.inverse_dynamics(MECH, Q, ZERO, ZERO, method="parallel"),
    "hybrid dynamics": lambda: ts.hybrid_dynamics(MECH, Q, ZERO, ZERO, ZERO, ["j7"])[0],
    "frame": lambda: ts.frame_pose(MECH, Q, TIP).position,
    "jacobian": lambda: ts.frame_jacobian(MECH, Q, TIP),
    "operational space": lambda: ts.operational_space_compliance(MECH, Q, TIP),
    "logdet": lambda: ts.innovations(MODEL).logdet(),
    "gradient": gradient,
    "rollout": lambda: ts.rollout(MECH, ts.State(Q, ZERO), steps=2, dt=1e-4).q,
    "layer": lambda: ts.Dynamics(MECH, {"l5.mass": ts.learn.Positive()})(Q, ZERO, ZERO),
    "pickle": lambda: pickle.loads(pickle.dumps(MECH)).mass,
    "deep copy": lambda: copy.deepcopy(MECH).mass,
    "save": lambda: saved().mass,
    "single": lambda: MECH.float().mass,
    "partition": lambda: ts.algebra.partition(MODEL, [1, 2, 3]).selected.inertia,
    "aggregate": lambda: ts.algebra.aggregate(MODEL, [1, 2, 3]).inertia,
}


@pytest.mark.some(4)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_chain_longer_than_the_recursion_limit_is_like_any_other(call):
    limit = sys.getrecursionlimit()  # torch's compiler raises it for the whole process
    sys.setrecursionlimit(N - 100)
    try:
        assert call().isfinite().all()
    finally:
        sys.setrecursionlimit(limit)


class Written(TorchDispatchMode):
    """Counts the numbers that operations write."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.count += sum(x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor))
        return result


@pytest.mark.parametrize("verb", [ts.forward_dynamics, ts.inverse_dynamics])
def test_a_gradient_writes_in_proportion_to_the_length_of_the_chain(verb):
    """Cutting a level at a time from all of them would not: such a cut's gradient is as long as the chain."""
    written = []
    for n in (40, 80):
        mech, (q, qd, x) = chain(n), torch.zeros(3, n, dtype=torch.float64).requires_grad_()
        result = verb(mech.replace(mass=mech.mass.clone().requires_grad_()), q, qd, x)
        with Written() as counter:
            result.sum().backward()
        written.append(counter.count)
    assert 1.9 < written[1] / written[0] < 2.1


def test_texts_of_a_long_chain_are_short():
    assert len(repr(MECH)) < 200
    with pytest.raises(ts.TorchskoError) as error:
        ts.innovations(MODEL).solve(Q[:-1])
    assert len(str(error.value)) < 400


def test_the_mass_matrix_of_a_robot_whose_pairs_are_not_kept():
    assert MECH.layout.kept_pairs is None
    M, x = ts.mass_matrix(MECH, Q), torch.linspace(-1, 1, N, dtype=torch.float64)
    assert torch.equal(M, M.mT)
    force = ts.inverse_dynamics(MECH.replace(gravity=0 * MECH.gravity), Q, ZERO, x)
    torch.testing.assert_close(M @ x, force, rtol=1e-10, atol=1e-8)


def test_nodes_whose_dense_blocks_would_not_fit_are_refused_by_name():
    layout = Layout.of(ts.algebra.Tree.from_parents(range(-1, 4999)), [1] * 5000, [1] * 5000)
    with pytest.raises(ts.ShapeError, match=r"5000 members that share 5000 dofs(.|\n)*GB"):
        embedding_plan(layout, [range(5000)])


def test_a_figure_of_more_nodes_than_it_can_show_is_refused_by_name():
    with pytest.raises(ts.TreeError, match=f"{N} nodes") as error:
        ts.plot.sparsity_figure(TREE)
    advice = str(error.value).rpartition("Draw a part of it: ")[2].removesuffix(".")
    part = advice.removeprefix("torchsko.plot.sparsity_figure(").removesuffix(")")
    assert eval(part, {"torchsko": ts, "tree": TREE}).num_nodes < N


def test_sets_of_nodes_of_a_long_chain_take_linear_time():
    start = time.process_time()
    tree = ts.algebra.Tree.from_parents(range(-1, 4999))
    assert ts.algebra.path_induced_nodes(tree, [0, 4999]) == tuple(range(5000))
    assert is_path_induced(tree, range(2500))
    assert ts.algebra.aggregation_subgraph(tree, range(1, 5000)) == tuple(range(1, 5000))
    with pytest.raises(ts.TreeError, match="leaves the set"):
        ts.algebra.aggregate(random_model(tree, [1] * 5000, [1] * 5000), range(0, 5000, 2))
    assert time.process_time() - start < 5
