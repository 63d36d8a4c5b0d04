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

from torchsko.contact.collision import norm


@dataclass(frozen=True, eq=False)
class Cones:
    """Elliptic cones with forces of one dimension.

    Attributes:
        first: index of the first row of all cones.
        size: dimension of the force, 3, 4 or 6.
        weight: D of the rows, `[*batch, C, size]`; zero where the contact is inactive.
        mu: regularised friction coefficient of the normal row, `[*batch, C]`.
        friction: coefficients of the other rows, `[*, C, size - 1]`.
    """

    first: int
    size: int
    weight: Tensor
    mu: Tensor
    friction: Tensor

    def select(self, x: Tensor) -> Tensor:
        """The rows of the cones, `[*batch, r]` to `[*batch, C, size]`."""
        count = self.weight.shape[-2]
        rows = x[..., self.first : self.first + count * self.size]
        return rows.reshape(*rows.shape[:-1], count, self.size)

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient `[*batch, C, size]` and Hessian `[*batch, C, size, size]` of the cost."""
        mu, D = self.mu, self.weight
        scale = torch.cat([mu[..., None], self.friction.expand(*mu.shape, self.size - 1)], -1)
        u = scale * x
        normal, sliding = u[..., 0], u[..., 1:]
        T = norm(sliding)
        polar = mu * normal + T <= 0
        dual = normal >= mu * T
        between = ~(polar | dual)
        direction = sliding / torch.where(T > 0, T, 1.0)[..., None]
        gradient_u = torch.cat([torch.ones_like(T)[..., None], -mu[..., None] * direction], -1)
        factor = torch.where(between, D[..., 0] / (mu * mu * (1 + mu * mu)), 0.0)
        excess = normal - mu * T
        gradient = (factor * excess)[..., None] * gradient_u * scale
        eye = torch.eye(self.size - 1, dtype=x.dtype, device=x.device)
        turning = torch.where(between, -mu * excess / torch.where(T > 0, T, 1.0), 0.0)
        inner = turning[..., None, None] * (eye - direction[..., :, None] * direction[..., None, :])
        H = gradient_u[..., :, None] * gradient_u[..., None, :]
        H = factor[..., None, None] * (H + torch.nn.functional.pad(inner, (1, 0, 1, 0)))
        H = H * scale[..., :, None] * scale[..., None, :]
        stick = torch.where(polar[..., None], D, 0.0)
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

    def curvature(self, diagonal: Tensor, hessians: tuple[Tensor, ...]) -> Tensor:
        """J* H J, `[*batch, num_dof, num_dof]`."""
        J = self.jacobian
        scalar = J[..., : diagonal.shape[-1], :]
        total = scalar.mT @ (diagonal[..., None] * scalar)
        for cone, H in zip(self.cones, hessians, strict=True):
            rows = cone.select(J.mT).movedim(-3, -1)  # [*batch, C, size, num_dof]
            total = total + (rows.mT @ (H @ rows)).sum(-3)
        return total

    def second_derivative(
        self, diagonal: Tensor, hessians: tuple[Tensor, ...], x: Tensor
    ) -> Tensor:
        """The quadratic form x* H x of rows x, `[*batch, r]` to `[*batch]`."""
        scalar = x[..., : diagonal.shape[-1]]
        total = (diagonal * scalar * scalar).sum(-1)
        for cone, H in zip(self.cones, hessians, strict=True):
            rows = cone.select(x)[..., None]
            total = total + (rows * (H @ rows)).sum((-3, -2, -1))
        return total
