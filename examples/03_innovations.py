"""Factor the mass matrix once, then solve, compute its determinant and whiten velocities.

The innovations factorization M = [I + H A K] D [I + H A K]* costs O(N) and never forms M. H is the joint
map, A the propagation along the tree, K the shifted gain, D the hinge inertias (Jain 2011, Part II, Lemma
11).
"""

import torch

import torchsko as ts


def relative(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def main():
    arm = ts.load(ts.robots.panda)
    q, qd = arm.random_state(64, generator=torch.Generator().manual_seed(0))
    factor = ts.innovations(ts.assemble(arm, q, qd))
    M = ts.mass_matrix(arm, q)  # for comparison

    print(f"{arm.name}: mass matrices of {len(q)} configurations, factored in one pass")
    rhs = torch.ones_like(qd)
    print(
        f"  solve against a dense solve:     {relative(factor.solve(rhs), dense_solve(M, rhs)):.1e}"
    )
    print(f"  log det against torch.logdet:    {relative(factor.logdet(), torch.logdet(M)):.1e}")
    columns = torch.eye(arm.num_dof, dtype=q.dtype)
    W = factor.sqrt(columns, columns=True)
    print(f"  W W* against M:                  {relative(W @ W.mT, M):.1e}")

    # Whitened rates: velocities in which the kinetic energy is a sum of squares.
    rates = factor.sqrt_transpose(qd)
    kinetic = (qd[:, None] @ M @ qd[..., None]).flatten() / 2
    print(f"  |rates|^2 / 2 against energy:    {relative(rates.square().sum(-1) / 2, kinetic):.1e}")
    shares = rates[0].square() / rates[0].square().sum()
    print("\nKinetic energy of the first state, by whitened rate:")
    for joint, share in zip(arm.joint_names, shares, strict=True):
        print(f"  {joint} {100 * share:5.1f} % " + "#" * round(50 * share.item()))

    # sqrt(det M) is the volume element of configuration space; its gradient follows by autograd.
    def log_volume(q):
        return ts.innovations(ts.assemble(arm, q)).logdet() / 2

    slope = torch.func.grad(lambda q: log_volume(q).sum())(q)
    print("\nGradient of log sqrt(det M) at the first configuration:")
    print(
        " ",
        " ".join(f"{joint}: {s:+.3f}" for joint, s in zip(arm.joint_names, slope[0], strict=True)),
    )
    print(
        f"  The first is zero, since rotating the whole arm does not change M: {slope[:, 0].abs().max():.1e}"
    )

    # Samples of momentum p ~ N(0, M), as Hamiltonian Monte Carlo needs them.
    noise = torch.randn(
        20_000, arm.num_dof, dtype=q.dtype, generator=torch.Generator().manual_seed(1)
    )
    first = ts.innovations(ts.assemble(arm, q[0]))
    momenta = first.sqrt(noise)
    print(
        f"\nCovariance of 20000 samples sqrt(M) z against M: {relative(momenta.T.cov(), M[0]):.3f}"
    )


def dense_solve(M, x):
    return torch.linalg.solve(M, x[..., None])[..., 0]


if __name__ == "__main__":
    main()
