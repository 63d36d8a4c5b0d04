"""The parallel solution scheme (Isobe and Yagi): its matrix, its example, connectivity as data, float32."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchsko as ts
from tests.batteries import CountOperations
from tests.planar import lagrange_torque, lagrangian, planar, turn
from tests.states import usual_state
from tests.strategies import BATCHES, KINDS, agree, mechanisms, random_mechanism, seeds, trees
from torchsko.algebra.topology.tree import Tree
from torchsko.errors import ShapeError
from torchsko.verbs.parallel import parallel_inverse_dynamics

# The member length matrix


@pytest.mark.shows(
    "Isobe and Yagi (undated), General-purpose expression",
    "Fig. 3",
    ts.algebra.member_length_matrix,
)
@pytest.mark.shows("Jain 2011, Part II", "section 2", ts.algebra.member_length_operator)
@given(trees(12), st.sampled_from(BATCHES))
def test_rows_added_up_are_the_spo_of_identity_weights_times_the_lengths(tree, batch):
    lengths = torch.rand(*batch, tree.num_nodes, dtype=torch.float64)
    L = ts.algebra.member_length_matrix(tree, lengths)
    agree(L, ts.algebra.member_length_operator(tree, lengths).to_dense())
    below = [[j == i or tree.is_ancestor(i, j) for j in range(tree.num_nodes)]
             for i in range(tree.num_nodes)]  # fmt: skip
    assert torch.equal(L, torch.tensor(below) * lengths[..., None, :])


@given(trees(8), st.integers(1, 3), st.data())
def test_member_lengths_may_be_blocks(tree, rows, data):
    widths = [data.draw(st.integers(1, 3)) for _ in range(tree.num_nodes)]
    blocks = [torch.randn(rows, c, dtype=torch.float64) for c in widths]
    L = ts.algebra.member_length_matrix(tree, blocks)
    agree(L, ts.algebra.member_length_operator(tree, blocks).to_dense())
    x = torch.randn(sum(widths), 2, dtype=torch.float64)
    agree(ts.algebra.member_length_operator(tree, blocks) @ x, L @ x)


@pytest.mark.shows(
    "Isobe and Yagi (undated), General-purpose expression",
    "Eqs. 4-6",
    ts.algebra.member_length_matrix,
    ts.algebra.member_length_operator,
)
def test_the_printed_matrices_of_serial_parallel_and_branched_systems():
    l1, l2, l3, l4 = lengths = torch.tensor([0.1, 0.2, 0.3, 0.4])
    o = torch.tensor(0.0)
    expected = {
        (-1, 0, 1, 2): [[l1, l2, l3, l4], [o, l2, l3, l4], [o, o, l3, l4], [o, o, o, l4]],  # Eq. 4
        (-1, 0, -1, 2): [[l1, l2, o, o], [o, l2, o, o], [o, o, l3, l4], [o, o, o, l4]],  # Eq. 5
        (-1, 0, 0, 2): [[l1, l2, l3, l4], [o, l2, o, o], [o, o, l3, l4], [o, o, o, l4]],  # Eq. 6
    }
    for parents, rows in expected.items():
        tree, printed = Tree.from_parents(parents), torch.stack([torch.stack(r) for r in rows])
        assert torch.equal(ts.algebra.member_length_matrix(tree, lengths), printed)
        assert torch.equal(ts.algebra.member_length_operator(tree, lengths).to_dense(), printed)


def test_member_lengths_that_fit_no_link_are_refused():
    tree = Tree.from_parents([-1, 0])
    with pytest.raises(ShapeError, match=r"3 links|2 links"):
        ts.algebra.member_length_matrix(tree, torch.ones(3))
    with pytest.raises(ShapeError, match="the same r"):
        ts.algebra.member_length_operator(tree, [torch.ones(2, 1), torch.ones(1, 1)])


# The paper's example: 0.5 pi in 1.0 s in the horizontal plane, two links on the tip of a third

LENGTH, ROD, TIP = 0.4, 0.215, 0.5


@pytest.mark.parametrize("t", [0.0, 0.15, 0.35, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("method", ["parallel", "newton_euler"])
def test_the_papers_multibranch_torques_are_those_of_the_lagrangian(t, method):
    system = ([-1, 0, 0], [LENGTH] * 3, [ROD] * 3, [0.0, TIP, TIP])
    start = torch.tensor([0.0, 0.3, -0.4], dtype=torch.float64)
    angle, rate, accel = (x.expand(3) for x in turn(t))
    expected = lagrange_torque(lagrangian(*system), start + angle, rate, accel)
    tau = ts.inverse_dynamics(planar(*system), start + angle, rate, accel, method=method)
    torch.testing.assert_close(tau, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.shows(
    "Isobe and Yagi (undated), General-purpose expression",
    "Eq. 2",
    parallel_inverse_dynamics,
    ts.inverse_dynamics,
)
def test_torques_are_member_lengths_times_the_forces_across_the_links_eq_2():
    # Massless links with tip masses: forces act at nodes only, and Eq. 2 reads as printed.
    parents, lengths, tips = [-1, 0, 0, 2], [0.4, 0.3, 0.5, 0.2], [0.5, 0.2, 0.3, 0.1]
    mech, tree = planar(parents, lengths, [0.0] * 4, tips), Tree.from_parents(parents)
    q, qd, qdd = usual_state(mech, seed=4)
    heading = [sum(q[j] for j in (k, *tree.ancestors(k))) for k in range(4)]

    def nodes(q):
        found = []
        for k, p in enumerate(parents):
            h = sum(q[j] for j in (k, *tree.ancestors(k)))
            at = found[p] if p >= 0 else torch.zeros(2, dtype=q.dtype)
            found.append(at + lengths[k] * torch.stack([h.cos(), h.sin()]))
        return torch.stack(found)

    velocity = lambda q, qd: torch.func.jvp(nodes, (q,), (qd,))[1]  # noqa: E731
    accel = torch.func.jvp(velocity, (q, qd), (qd, qdd))[1]
    force = torch.tensor(tips, dtype=torch.float64)[:, None] * accel
    outboard = torch.stack([sum(force[j] for j in (k, *tree.descendants(k))) for k in range(4)])
    across = torch.stack([-f[0] * h.sin() + f[1] * h.cos()
                          for f, h in zip(outboard, heading, strict=True)])  # fmt: skip
    L = ts.algebra.member_length_matrix(tree, torch.tensor(lengths, dtype=torch.float64))
    tau = ts.inverse_dynamics(mech, q, qd, qdd, method="parallel")
    torch.testing.assert_close(tau, L @ across, rtol=1e-10, atol=1e-12)


# Equal to the sweeps


@pytest.mark.shows(
    "Isobe and Yagi (undated), General-purpose expression", "Eq. 2", parallel_inverse_dynamics
)
@given(mechanisms(7), st.sampled_from(BATCHES), st.booleans())
def test_parallel_inverse_dynamics_eq_2_equals_the_sweeps(mech, batch, pushed):
    q, qd, qdd, f_ext = usual_state(mech, *batch, wrench=True)
    f_ext = f_ext if pushed else None
    expected = ts.inverse_dynamics(mech, q, qd, qdd, f_ext)
    tau = ts.inverse_dynamics(mech, q, qd, qdd, f_ext, method="parallel")
    assert tau.shape == expected.shape
    agree(tau[..., None], expected[..., None])


@pytest.mark.parametrize("parents", [[-1], [-1, 0, 0, 0], [-1, -1, 1, 0], [-1, 0, 1, 2]])
@pytest.mark.parametrize("kind", KINDS)
def test_every_joint_kind_on_every_shape_of_tree(parents, kind):
    mech = random_mechanism([kind] * len(parents), parents, seed=1)
    q, qd, qdd, f_ext = usual_state(mech, 2, wrench=True)
    expected = ts.inverse_dynamics(mech, q, qd, qdd, f_ext)
    agree(ts.inverse_dynamics(mech, q, qd, qdd, f_ext, method="parallel"), expected)


@pytest.mark.parametrize("name", ["mass", "com", "inertia", "joint_position", "joint_rotation",
                                  "gravity", "armature", "f_ext", "q", "qd", "qdd"])  # fmt: skip
@pytest.mark.parametrize("batch", [(2,), (2, 3)])
def test_every_tensor_may_have_batch_dimensions_of_its_own(name, batch):
    mech = mixed()
    inputs = dict(zip(("q", "qd", "qdd", "f_ext"), usual_state(mech, wrench=True), strict=True))
    value = inputs.get(name, getattr(mech, name, None))
    turns = name in ("q", "joint_rotation")  # no scale keeps these on their manifold
    scale = torch.ones(batch) if turns else 1 + torch.arange(math.prod(batch)).reshape(batch) / 4
    value = value * scale.reshape(*batch, *[1] * value.ndim).double()
    if name in inputs:
        inputs[name] = value
    else:
        mech = mech.replace(**{name: value})
    expected = ts.inverse_dynamics(mech, **inputs)
    tau = ts.inverse_dynamics(mech, **inputs, method="parallel")
    assert tau.shape == expected.shape == (*batch, mech.num_dof)
    agree(tau, expected)
    inputs["tau"] = inputs.pop("qdd")
    agree(
        ts.forward_dynamics(mech, **inputs, method="scan"),
        ts.forward_dynamics(mech, **inputs),
        1e-9,
    )


def mixed():
    return random_mechanism(["revolute", "spherical", "free", "prismatic"], [-1, 0, 0, 2], 3, True)


@pytest.mark.nightly
@pytest.mark.parametrize("as_data", [False, True])
def test_derivatives_vmap_and_compile(as_data):
    mech = mixed()
    parents = torch.tensor(mech.parents) if as_data else None
    q, qd, qdd, f_ext = usual_state(mech, 3, wrench=True)

    def torque(step, qd, qdd, f_ext, mass, com, place):
        changed = mech.replace(mass=mass, com=com, joint_position=place)
        q1 = ts.integrate(mech, q[0], step)
        return ts.inverse_dynamics(changed, q1, qd, qdd, f_ext, method="parallel", parents=parents)

    first = (0.1 * qd, qd, qdd, f_ext)
    fixed = (mech.mass, mech.com, mech.joint_position)
    leaves = [x.clone().requires_grad_() for x in (*(x[0] for x in first), *fixed)]
    assert torch.autograd.gradcheck(torque, leaves, check_forward_ad=True, fast_mode=True)
    expected = torque(*first, *fixed)
    mapped = torch.vmap(torque, in_dims=(0,) * 4 + (None,) * 3)(*first, *fixed)
    torch.testing.assert_close(mapped, expected)
    torch._dynamo.reset()
    compiled = torch.compile(torque, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*first, *fixed), expected)


def serial(links):
    return random_mechanism(["revolute"] * links, [*range(-1, links - 1)], seed=2)


def test_operations_do_not_grow_with_depth_but_for_the_doubling_of_rotations():
    counts = []
    for links in (4, 16, 64):
        mech = serial(links)
        q, qd, qdd = usual_state(mech)
        with torch.no_grad(), CountOperations() as count:
            ts.inverse_dynamics(mech, q, qd, qdd, method="parallel")
        counts.append(count.total)
    per_doubling = (counts[1] - counts[0]) / 2
    assert counts[2] - counts[1] == counts[1] - counts[0]
    assert per_doubling <= 16 < counts[0] / 8


# Far from the origin


def float32_error(mech, q, qd, qdd, method):
    single = [x.float() for x in (q, qd, qdd)]
    tau = ts.inverse_dynamics(mech.to(torch.float32), *single, method=method).double()
    exact = mech.to(torch.float32).to(torch.float64)
    expected = ts.inverse_dynamics(exact, *(x.double() for x in single))
    return float(((tau - expected).abs().amax(-1) / expected.abs().amax(-1)).max())


@pytest.mark.parametrize("free", [True, False])
def test_float32_is_as_accurate_a_kilometer_away_as_at_the_origin(free):
    kinds = ["free" if free else "revolute", *["revolute"] * 5, "spherical"]
    mech = random_mechanism(kinds, [-1, 0, 1, 2, 0, 4, 5], seed=6)
    q, qd, qdd = usual_state(mech, 64)
    near = float32_error(mech, q, qd, qdd, "parallel")
    if free:
        q = torch.cat([q[:, :3] + 1000.0, q[:, 3:]], -1)
    else:
        offset = torch.tensor([[1000.0, 1000.0, 1000.0]] + [[0.0] * 3] * 6, dtype=torch.float64)
        mech = mech.replace(joint_position=mech.joint_position + offset)
    far = float32_error(mech, q, qd, qdd, "parallel")
    assert near < 5e-6
    assert far < 2 * near


# Connectivity as data

# Fig. 6: links 1 to 4 of 0.142 m form the loop, link 5 of 0.180 m is the branch on link 2. Opened, the
# loop leaves either a chain of four (Link 3 and Link 5 both depend on Link 2, as the text says), or,
# with the passive joint between links 2 and 3, two chains that start from the two ends of the loop.
FIG_6_LENGTHS = [0.142, 0.142, 0.142, 0.142, 0.180]
FIG_6_RODS, FIG_6_TIPS = [0.102, 0.102, 0.102, 0.102, 0.130], [0.534, 0.534, 0.534, 0.534, 0.1]
FIG_6_OPEN = {"branched": [-1, 0, 1, 2, 1], "two chains": [-1, 0, 3, -1, 1]}
FAR_END = {3: (0.3, 0.0, 0.0)}


def placements(parents):
    """Joint placements that a connectivity asks for: at the tip of whatever link supports each."""
    rows = [(FIG_6_LENGTHS[p], 0, 0) if p >= 0 else FAR_END.get(k, (0, 0, 0))
            for k, p in enumerate(parents)]  # fmt: skip
    return torch.tensor(rows, dtype=torch.float64)


def fig_6(parents):
    """Built anew; its bodies are in depth-first order, so joints are matched by name."""
    mech = planar(parents, FIG_6_LENGTHS, FIG_6_RODS, FIG_6_TIPS, FAR_END)
    return mech, [mech.joint_names.index(f"joint{k}") for k in range(5)]


def test_both_open_systems_of_figure_6_follow_from_data_in_one_batch():
    template, place = fig_6(FIG_6_OPEN["branched"])
    assert place == [0, 1, 2, 3, 4]
    q, qd, qdd = usual_state(template, 2)
    parents = torch.tensor(list(FIG_6_OPEN.values()))
    changed = template.replace(
        joint_position=torch.stack([placements(p) for p in FIG_6_OPEN.values()])
    )
    tau = ts.inverse_dynamics(changed, q, qd, qdd, method="parallel", parents=parents)
    for k, case in enumerate(FIG_6_OPEN.values()):
        mech, place = fig_6(case)
        order = torch.argsort(torch.tensor(place))
        expected = ts.inverse_dynamics(mech, *(x[k].index_select(0, order) for x in (q, qd, qdd)))
        torch.testing.assert_close(tau[k], expected[place], rtol=1e-10, atol=1e-12)
    assert (tau[0] - tau[1]).abs().max() > 1e-3


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6), seeds, st.data())
def test_any_connectivity_of_the_same_bodies_is_a_tensor_away(kinds, seed, data):
    n = len(kinds)
    parents = [-1] + [data.draw(st.integers(-1, k - 1)) for k in range(1, n)]
    first = random_mechanism(kinds, parents, seed, armature=True)
    names = [first.joint_names.index(f"joint{k}") for k in range(n)]
    chain = random_mechanism(kinds, [*range(-1, n - 1)], seed, armature=True)
    q, qd, qdd, f_ext = usual_state(chain, 2, wrench=True)
    tau = ts.inverse_dynamics(
        chain, q, qd, qdd, f_ext, method="parallel", parents=torch.tensor(parents)
    )

    def to_first(x, slices):
        return torch.cat([x[..., slices(f"joint{names.index(k)}")] for k in range(n)], -1)

    order = [names.index(k) for k in range(n)]
    q1 = to_first(q, chain.q_slice)
    qd1, qdd1 = (to_first(x, chain.dof_slice) for x in (qd, qdd))
    expected = ts.inverse_dynamics(first, q1, qd1, qdd1, f_ext[..., order, :])
    agree(to_first(tau, chain.dof_slice), expected)


def test_a_cycle_in_the_data_gives_nan_for_its_sample_only():
    mech = serial(3)
    q, qd, qdd = usual_state(mech, 2)
    parents = torch.tensor([[-1, 0, 1], [-1, 2, 1]])
    tau = ts.inverse_dynamics(mech, q, qd, qdd, method="parallel", parents=parents)
    torch.testing.assert_close(tau[0], ts.inverse_dynamics(mech, q[0], qd[0], qdd[0]))
    assert tau[1].isnan().all()


def test_parents_that_do_not_fit_are_refused():
    mech = serial(3)
    q, qd, qdd = usual_state(mech)
    for parents in (torch.tensor([-1, 0]), torch.tensor([-1.0, 0, 1])):
        with pytest.raises(ShapeError, match=r"int64 tensor of shape \[\*batch, 3\]"):
            ts.inverse_dynamics(mech, q, qd, qdd, method="parallel", parents=parents)
    with pytest.raises(ShapeError, match='Pass method="parallel"'):
        ts.inverse_dynamics(mech, q, qd, qdd, parents=torch.tensor([-1, 0, 1]))
    with pytest.raises(ShapeError, match="'newton_euler', 'composite', 'parallel'"):
        ts.inverse_dynamics(mech, q, qd, qdd, method="serial")
