r"""Cost of soft constraints as a function of J qdd - aref, its gradient and its Hessian.

The forces of the constraints are minus the gradient. With D = 1 / R,

- rows of unilateral constraints cost :math:`\tfrac12 D x^2` where x < 0;
- rows of dry friction :math:`\tfrac12 D x^2` up to the largest force, and linear beyond it (Huber);
- rows of elliptic cones as a function of :math:`u = (\mu x_0, \mu_1 x_1, ...)` and
  :math:`T = |(u_1, ...)|`: nothing in the dual cone, :math:`\tfrac12 x^* D x` in the polar cone, and
  :math:`\tfrac12 D_0 (u_0 - \mu T)^2 / (\mu^2 (1 + \mu^2))` between.

Reference: MuJoCo documentation, "Computation", Constraint model (primal problem).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.linalg.symmetric import mirror
from torchsko.utils.shapes import norm


@dataclass(frozen=True, eq=False)
class Cones:
    """Elliptic cones with forces of one dimension.

    Attributes:
        first: index of the first row of all cones.
        weight: D of the rows, `[*batch, C, size]`; zero where the contact is inactive.
        scale: factors of the rows in u: the regularised friction coefficient mu of the normal row, then the
            coefficients of the others, `[*batch, C, size]`.
        stiffness: weight between both cones, D_0 / (mu^2 (1 + mu^2)), `[*batch, C]`.
    """

    first: int
    weight: Tensor
    scale: Tensor
    stiffness: Tensor

    @staticmethod
    def of(first: int, weight: Tensor, mu: Tensor, friction: Tensor) -> Cones:
        """Cones with regularised coefficients mu `[*batch, C]` and coefficients `[*, C, size - 1]`."""
        others = friction.expand(*mu.shape, friction.shape[-1])
        stiffness = weight[..., 0] / (mu * mu * (1 + mu * mu))
        return Cones(first, weight, torch.cat([mu[..., None], others], -1), stiffness)

    @property
    def size(self) -> int:
        """Dimension of the force, 3, 4 or 6."""
        return self.weight.shape[-1]

    @property
    def mu(self) -> Tensor:
        """Regularised friction coefficients, `[*batch, C]`."""
        return self.scale[..., 0]

    def select(self, x: Tensor) -> Tensor:
        """The rows of the cones, `[*batch, r]` to `[*batch, C, size]`."""
        count = self.weight.shape[-2]
        rows = x[..., self.first : self.first + count * self.size]
        return rows.reshape(*rows.shape[:-1], count, self.size)

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient `[*batch, C, size]` and Hessian `[*batch, C, size, size]` of the cost."""
        mu, scale = self.mu, self.scale
        u = scale * x
        normal, sliding = u[..., 0], u[..., 1:]
        T = norm(sliding)
        polar, dual = mu * normal + T <= 0, normal >= mu * T
        between = ~(polar | dual)
        direction = sliding / torch.where(T > 0, T, 1.0)[..., None]
        gradient_u = torch.cat([torch.ones_like(T)[..., None], -mu[..., None] * direction], -1)
        factor = torch.where(between, self.stiffness, 0.0)
        excess = normal - mu * T
        gradient = (factor * excess)[..., None] * gradient_u * scale
        eye = torch.eye(self.size - 1, dtype=x.dtype, device=x.device)
        turning = torch.where(between, -mu * excess / torch.where(T > 0, T, 1.0), 0.0)
        inner = turning[..., None, None] * (eye - direction[..., :, None] * direction[..., None, :])
        H = gradient_u[..., :, None] * gradient_u[..., None, :]
        H = factor[..., None, None] * (H + torch.nn.functional.pad(inner, (1, 0, 1, 0)))
        H = H * scale[..., :, None] * scale[..., None, :]
        stick = torch.where(polar[..., None], self.weight, 0.0)
        return gradient + stick * x, H + torch.diag_embed(stick)


@dataclass(frozen=True, eq=False)
class Rows:
    """Linear constraints J qdd - aref of a mechanism at a state.

    The first rows are those of dry friction, then unilateral ones, then those of cones.

    Attributes:
        jacobian: J, `[*batch, r, num_dof]`.
        reference: aref, `[*batch, r]`.
        weight: D of dry friction and unilateral rows, `[*batch, s]`; zero where inactive.
        loss: largest forces of dry friction, `[*, F]` [N m or N].
        cones: elliptic cones.
        moving: whether each dof can have an entry in each row of J, `[r, num_dof]`, bool.
    """

    jacobian: Tensor
    reference: Tensor
    weight: Tensor
    loss: Tensor
    cones: tuple[Cones, ...]
    moving: Tensor

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Gradient `[*batch, r]`, diagonal Hessian of the first rows, and Hessians of cones."""
        num_scalar, num_loss = self.weight.shape[-1], self.loss.shape[-1]
        scalar = x[..., :num_scalar]
        slope = self.weight * scalar
        loss, sided = slope[..., :num_loss], slope[..., num_loss:]
        bound = self.loss.expand_as(loss)
        gradient = [torch.minimum(torch.maximum(loss, -bound), bound)]
        quadratic = [(loss.abs() < bound)]
        negative = scalar[..., num_loss:] < 0
        gradient.append(torch.where(negative, sided, 0.0))
        quadratic.append(negative)
        diagonal = torch.where(torch.cat(quadratic, -1), self.weight, 0.0)
        hessians = []
        for cone in self.cones:
            g, H = cone.derivatives(cone.select(x))
            gradient.append(g.flatten(-2))
            hessians.append(H)
        return torch.cat(gradient, -1), diagonal, tuple(hessians)

    def curvature(self, diagonal: Tensor, hessians: tuple[Tensor, ...], *, scalar: bool) -> Tensor:
        """J* H J, `[*batch, num_dof, num_dof]`; see `torchsko.linalg.symmetric` for ``scalar``."""
        J = self.jacobian
        first = J[..., : diagonal.shape[-1], :]
        total = first.mT @ (diagonal[..., None] * first)
        for cone, H in zip(self.cones, hessians, strict=True):
            rows = cone.select(J.mT).movedim(-3, -1)  # [*batch, C, size, num_dof]
            total = total + (rows.mT @ (H @ rows)).sum(-3)
        return mirror(total, scalar=scalar)
