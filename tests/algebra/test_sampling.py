"""The innovations factorization as a tool: samples, log-determinants, certificates."""

import math

import pytest
import torch
from hypothesis import given

import torchsko as ts
from tests.batteries import CountOperations, branched_model
from tests.strategies import (
    BATCHES,
    agree,
    dense_mass_matrix,
    dense_riccati,
    random_model,
    sko_models,
)
from torchsko.algebra.recursions.innovations import Innovations
from torchsko.algebra.topology.tree import Tree

N = 20_000


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def covariance(model, inverse):
    MM = dense_mass_matrix(model)
    return torch.linalg.inv(MM) if inverse else MM


@pytest.mark.shows("Jain 2011, Part II", "Lemma 11", Innovations.sample)
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("armature", [False, True])
def test_samples_have_the_covariance_promised(inverse, armature):
    """Whitened by the dense covariance, N samples are white within six standard errors."""
    model = branched_model((2,), armature)
    x = ts.innovations(model).sample(N, generator=generator(), inverse=inverse).movedim(0, -2)
    L = torch.linalg.cholesky(covariance(model, inverse))
    white = torch.linalg.solve_triangular(L, x.mT, upper=False)
    d = model.num_dof
    assert white.mean(-1).abs().max() < 6 / math.sqrt(N)
    second = white @ white.mT / N
    # The variance of a product of two independent normals is 1, that of a square 2.
    error = (second - torch.eye(d, dtype=second.dtype)).abs()
    assert error.max() < 6 * math.sqrt(2 / N)


def distance_to_chi_square(x, covariance):
    """Kolmogorov-Smirnov distance between the squared Mahalanobis lengths and chi-square."""
    length = (x * torch.linalg.solve(covariance, x.mT).mT).sum(-1).sort().values
    half = torch.tensor(x.shape[-1] / 2, dtype=x.dtype)
    below = torch.special.gammainc(half, length / 2)
    rank = torch.arange(1, N + 1, dtype=x.dtype) / N
    return float(torch.maximum((rank - below).max(), (below - rank + 1 / N).max()))


CRITICAL = math.sqrt(-math.log(1e-6 / 2) / 2 / N)
"""That distance is exceeded by chance once in a million (Massart's bound)."""


@pytest.mark.parametrize("inverse", [False, True])
def test_mahalanobis_lengths_of_samples_follow_the_chi_square_distribution(inverse):
    model = branched_model()
    x = ts.innovations(model).sample(N, generator=generator(1), inverse=inverse)
    assert distance_to_chi_square(x, covariance(model, inverse)) < CRITICAL


def test_the_chi_square_test_finds_samples_five_per_cent_too_long():
    model = branched_model()
    x = 1.05 * ts.innovations(model).sample(N, generator=generator(1))
    assert distance_to_chi_square(x, covariance(model, False)) > CRITICAL


@pytest.mark.shows("Jain 2011, Part II", "Lemma 11", Innovations.sample)
@given(sko_models(mixed=True, min_dofs=0))
def test_samples_are_the_square_root_of_white_noise(model):
    fac = ts.innovations(model)
    shape = (3, *model.batch_shape, model.num_dof)
    noise = torch.randn(shape, generator=generator(), dtype=torch.float64)
    assert torch.equal(fac.sample(3, generator=generator()), fac.sqrt(noise))
    drawn = fac.sample(3, generator=generator(), inverse=True)
    assert drawn.shape == shape and torch.equal(drawn, fac.whiten_transpose(noise))


def test_samples_follow_their_generator():
    fac = ts.innovations(branched_model((2, 3)))
    first, again, other = (fac.sample(2, generator=generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_samples_compile_without_a_generator_and_map_with_different_noise():
    model = branched_model((3,))

    fac = ts.innovations(model)
    torch._dynamo.reset()
    compiled = torch.compile(fac.sample, fullgraph=True, backend="aot_eager")
    assert compiled(2).shape == (2, 3, model.num_dof)
    mapped = torch.vmap(lambda _: fac.sample(2), randomness="different")(torch.zeros(4))
    assert mapped.shape == (4, 2, 3, model.num_dof) and not torch.equal(mapped[0], mapped[1])


@pytest.mark.shows("Jain 2011, Part II", "Lemma 11", Innovations.hinge_certificate)
@given(sko_models(max_nodes=12, mixed=True))
def test_the_certificate_is_the_smallest_eigenvalue_of_every_hinge_inertia(model):
    certificate = ts.innovations(model).hinge_certificate()
    assert certificate.shape == (*model.batch_shape, model.tree.num_nodes)
    D = dense_riccati(model).D
    for k, places in enumerate(model.layout.dofs.places):
        smallest = torch.linalg.eigvalsh(D[..., list(places), :][..., list(places)])[..., 0]
        agree(certificate[..., k, None, None], smallest[..., None, None], 1e-9)


@given(sko_models(max_nodes=12, min_dofs=0))
def test_the_certificate_of_a_node_without_freedom_is_infinite(model):
    certificate = ts.innovations(model).hinge_certificate()
    for k, places in enumerate(model.layout.dofs.places):
        assert certificate[..., k].isinf().all() == (not places)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_hinges_with_one_freedom_multiply_to_the_determinant(batch):
    model = random_model(Tree.from_parents([-1, 0, 0, 1]), [3, 4, 3, 2], [1] * 4, batch)
    certificate = ts.innovations(model).hinge_certificate()
    torch.testing.assert_close(certificate.prod(-1), torch.linalg.det(dense_mass_matrix(model)))


def test_a_hinge_without_inertia_has_the_certificate_zero_and_others_keep_theirs():
    one = torch.eye(2, dtype=torch.float64)
    tree = Tree.from_parents([-1, 0])
    heavy = torch.stack([one, one])
    tip = torch.stack([one, 0 * one])
    model = ts.algebra.SKOModel.from_blocks(tree, [None, one], [one[:1], one], [heavy, tip])
    certificate = ts.innovations(model).hinge_certificate()
    assert certificate[0].min() > 0.5
    assert not certificate[1, 1] > 0


def test_the_gradient_of_the_log_determinant_is_that_of_the_dense_one():
    arm = ts.load(ts.robots.panda)
    q, mass = arm.random_state(2)[0].requires_grad_(), arm.mass.clone().requires_grad_()
    mech = arm.replace(mass=mass)
    mine = ts.innovations(ts.assemble(mech, q)).logdet().sum()
    dense = torch.logdet(ts.mass_matrix(mech, q)).sum()
    for x, y in zip(
        torch.autograd.grad(mine, [q, mass]), torch.autograd.grad(dense, [q, mass]), strict=True
    ):
        torch.testing.assert_close(x, y)


def test_the_log_determinant_takes_operations_with_levels_and_not_with_nodes():
    def operations(width):
        tree = Tree.from_parents([-1] + [0] * width + list(range(1, width + 1)))
        n = tree.num_nodes
        model = random_model(tree, [3] * n, [1] * n)
        model.inertia.requires_grad_()
        with CountOperations() as count:
            ts.innovations(model).logdet().backward()
        return count.total

    assert operations(3) == operations(40)
