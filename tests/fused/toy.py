"""A random serial arm in plain torch, for tests of the tracer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.utils.traced_tensor import mark_regular


def skew(v: Tensor) -> Tensor:
    zero = v.new_zeros(())
    x, y, z = v.unbind(-1)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero]).reshape(3, 3)


def mirror(P: Tensor) -> Tensor:
    return torch.triu(P) + torch.triu(P, 1).mT


def cross_motion(v: Tensor) -> Tensor:
    w, u = skew(v[:3]), skew(v[3:])
    return torch.cat([torch.cat([w, torch.zeros_like(w)], 1), torch.cat([u, w], 1)])


@dataclass(frozen=True)
class Arm:
    """Serial chain of hinges about the local z axis."""

    placement: Tensor  # [n, 6, 6] motion transform from the parent to the joint frame
    inertia: Tensor  # [n, 6, 6]

    def edges(self, q: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Constant placement and joint rotation of every link."""
        edges = []
        for k in range(len(self.placement)):
            c, s, zero, one = torch.cos(q[k]), torch.sin(q[k]), q.new_zeros(()), q.new_ones(())
            R = torch.stack([c, s, zero, -s, c, zero, zero, zero, one]).reshape(3, 3)
            blank = torch.zeros_like(R)
            J = torch.cat([torch.cat([R, blank], 1), torch.cat([blank, R], 1)])
            edges.append((self.placement[k], J))
        return edges

    def velocities(self, edges, qd: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        h = torch.eye(6, dtype=qd.dtype)[2]
        v, V, a, b = qd.new_zeros(6), [], [], []
        for k, (X, J) in enumerate(edges):
            v = J @ (X @ v) + h * qd[k]
            V.append(v)
            a.append(cross_motion(v) @ (h * qd[k]))
            b.append(-cross_motion(v).mT @ (self.inertia[k] @ v))
        return V, a, b


def random_arm(num_links: int, seed: int = 0) -> Arm:
    g = torch.Generator().manual_seed(seed)
    placement, inertia = [], []
    for k in range(num_links):
        # Quarter turns, as most industrial arms have: exact zeros and ones.
        R = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]], dtype=torch.float64)
        R = torch.eye(3, dtype=torch.float64) if k == 0 else R if k % 2 else R.mT
        r = torch.randn(3, generator=g, dtype=torch.float64)
        if k % 3 == 0:
            r = r * torch.tensor([0.0, 0.0, 1.0])
        zero = torch.zeros(3, 3, dtype=torch.float64)
        placement.append(torch.cat([torch.cat([R, zero], 1), torch.cat([-R @ skew(r), R], 1)]))
        m = 1 + torch.rand((), generator=g, dtype=torch.float64)
        c = torch.randn(3, generator=g, dtype=torch.float64)
        A = torch.randn(3, 3, generator=g, dtype=torch.float64)
        S = m * skew(c)
        rotational = A @ A.mT + 3 * torch.eye(3) - skew(c) @ S
        inertia.append(
            torch.cat([torch.cat([rotational, S], 1), torch.cat([S.mT, m * torch.eye(3)], 1)])
        )
    return Arm(torch.stack(placement), torch.stack(inertia))


GRAVITY = torch.tensor([0.0, 0, 0, 0, 0, 9.81], dtype=torch.float64)


def inverse_dynamics(arm: Arm, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
    edges = arm.edges(q)
    h = torch.eye(6, dtype=qd.dtype)[2]
    _, a, b = arm.velocities(edges, qd)
    alpha, forces = GRAVITY, []
    for k, (X, J) in enumerate(edges):
        alpha = J @ (X @ alpha) + h * qdd[k] + a[k]
        forces.append(arm.inertia[k] @ alpha + b[k])
    f, tau = None, []
    for k in reversed(range(len(edges))):
        f = forces[k] if f is None else forces[k] + f
        tau.append(f[2])
        X, J = edges[k]
        f = X.mT @ (J.mT @ f)
    return torch.stack(tau[::-1])


def forward_dynamics(arm: Arm, q: Tensor, qd: Tensor, tau: Tensor) -> Tensor:
    edges = arm.edges(q)
    h = torch.eye(6, dtype=qd.dtype)[2]
    _, a, b = arm.velocities(edges, qd)
    n = len(edges)
    P_plus, z_plus = qd.new_zeros(6, 6), qd.new_zeros(6)
    G, nu = [None] * n, [None] * n
    for k in reversed(range(n)):
        P = mirror(arm.inertia[k] + P_plus)
        U = P @ h
        D = U @ h
        mark_regular(D)
        G[k] = U / D
        z = z_plus + P @ a[k] + b[k]
        eps = tau[k] - z @ h
        nu[k] = eps / D
        z = z + U * nu[k]
        P = mirror(P - torch.outer(G[k], U))
        X, J = edges[k]
        P_plus = mirror(X.mT @ mirror(J.mT @ P @ J) @ X)
        z_plus = X.mT @ (J.mT @ z)
    alpha, qdd = GRAVITY, []
    for k, (X, J) in enumerate(edges):
        alpha = J @ (X @ alpha)
        qdd.append(nu[k] - G[k] @ alpha)
        alpha = alpha + h * qdd[k] + a[k]
    return torch.stack(qdd)


def vjp_by_identity(arm: Arm, q: Tensor, qd: Tensor, tau: Tensor, cotangent: Tensor):
    """Acceleration, and its VJP by the implicit function theorem."""
    qdd = forward_dynamics(arm, q, qd, tau)
    rest = torch.zeros_like(qd)
    mu = forward_dynamics(arm, q, rest, cotangent + inverse_dynamics(arm, q, rest, rest))
    _, pullback = torch.func.vjp(lambda q, qd: inverse_dynamics(arm, q, qd, qdd), q, qd)
    grad_q, grad_qd = pullback(mu)
    return qdd, -grad_q, -grad_qd, mu
