r"""Cost of soft constraints as a function of J qdd - aref, its gradient and its Hessian.

The forces of the constraints are minus the gradient. With D = 1 / R,

- rows of unilateral constraints and edges of pyramidal cones cost :math:`\tfrac12 D x^2` where x < 0;
- rows of dry friction :math:`\tfrac12 D x^2` up to the largest force, and linear beyond it (Huber);
- rows of elliptic cones as a function of :math:`u = (\mu x_0, \mu_1 x_1, ...)` and
  :math:`T = |(u_1, ...)|`: nothing in the dual cone, :math:`\tfrac12 x^* D x` in the polar cone, and
  :math:`\tfrac12 D_0 (u_0 - \mu T)^2 / (\mu^2 (1 + \mu^2))` between.

The edges of a pyramid are :math:`x_0 \pm \mu_k x_k`, and :math:`x_0` alone without friction.

Reference: MuJoCo documentation, "Computation", Constraint model (primal problem).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor

from torchsko.contact.body_motions import BodyMotions
from torchsko.linalg.symmetric import mirror
from torchsko.utils.shapes import concatenate, matvec, norm
from torchsko.utils.traced_tensor import is_traced, mark_rare

MAX_SUPPORTS = 8
"""Largest number of pairs of bodies of which all are expected to touch, such as four feet and the floor."""


def of_touching(x: Tensor, active: Tensor, pairs: Sequence[int], num_dims: int) -> Tensor:
    """Values of contacts of pairs of bodies that touch, and zeros for others, which kernels do not compute.

    Of few pairs all may touch, and eager mode skips nothing: the values are returned as they are.

    Args:
        x: values, zero or without effect for contacts that are not active, `[*batch, C, *dims]`.
        active: whether each contact is active, `[*batch, C]`, bool.
        pairs: number of the pair of bodies of each contact.
        num_dims: number of the dimensions after C.
    """
    if len(set(pairs)) <= MAX_SUPPORTS or not is_traced(active):
        return x
    number = torch.tensor(pairs, device=active.device)
    is_equal = (number[:, None] == number).to(x.dtype)
    touches = (active.to(x.dtype) @ is_equal) > 0
    mark_rare(touches)
    return torch.where(touches[(..., *(None,) * num_dims)], x, 0.0)


@dataclass(frozen=True, eq=False)
class Cones:
    """Friction cones with forces of one dimension; their rows are motions along and about contact axes.

    Attributes:
        first: index of the first row of all cones.
        points: contact point of each cone.
        pairs: number of the pair of bodies of each cone.
    """

    first: int
    points: tuple[int, ...]
    pairs: tuple[int, ...]

    @property
    def size(self) -> int:
        """Dimension of the force, 1, 3, 4 or 6."""
        raise NotImplementedError

    @property
    def active(self) -> Tensor:
        """Mask of active contacts, `[*batch, C]`, bool."""
        raise NotImplementedError

    def of_touching(self, x: Tensor, num_dims: int) -> Tensor:
        """Values `[*batch, C, *dims]` of pairs of bodies that touch, as by the function `of_touching`."""
        return of_touching(x, self.active, self.pairs, num_dims)

    def select(self, x: Tensor) -> Tensor:
        """The rows of the cones, `[*batch, r]` to `[*batch, C, size]`."""
        count = len(self.points)
        rows = x[..., self.first : self.first + count * self.size]
        return rows.reshape(*rows.shape[:-1], count, self.size)

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient `[*batch, C, size]` and Hessian `[*batch, C, size, size]` of the cost."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class EllipticCones(Cones):
    """Elliptic cones.

    Attributes:
        weight: D of the rows, `[*batch, C, size]`; zero where the contact is inactive.
        scale: factors of the rows in u: the regularised friction coefficient mu of the normal row, then the
            coefficients of the others, `[*batch, C, size]`.
        stiffness: weight between both cones, D_0 / (mu^2 (1 + mu^2)), `[*batch, C]`.
    """

    weight: Tensor
    scale: Tensor
    stiffness: Tensor

    @staticmethod
    def of(
        first: int,
        points: tuple[int, ...],
        pairs: tuple[int, ...],
        weight: Tensor,
        mu: Tensor,
        friction: Tensor,
    ) -> EllipticCones:
        """Cones with regularised coefficients mu `[*batch, C]` and coefficients `[*, C, size - 1]`."""
        others = friction.expand(*mu.shape, friction.shape[-1])
        stiffness = weight[..., 0] / (mu * mu * (1 + mu * mu))
        scale = torch.cat([mu[..., None], others], -1)
        return EllipticCones(first, points, pairs, weight, scale, stiffness)

    @property
    def size(self) -> int:
        """Dimension of the force, 3, 4 or 6."""
        return self.weight.shape[-1]

    @property
    def active(self) -> Tensor:
        """Mask of active contacts, `[*batch, C]`, bool."""
        return self.weight[..., 0] > 0

    @property
    def mu(self) -> Tensor:
        """Regularised friction coefficients, `[*batch, C]`."""
        return self.scale[..., 0]

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
class Pyramids(Cones):
    """Pyramidal cones, and contacts without friction, whose size is 1.

    Attributes:
        weight: D of the edges, `[*batch, C]`; zero where the contact is inactive.
        friction: coefficients, `[*, C, size - 1]`.
    """

    weight: Tensor
    friction: Tensor

    @property
    def size(self) -> int:
        """Dimension of the force, 1, 3, 4 or 6."""
        return 1 + self.friction.shape[-1]

    @property
    def active(self) -> Tensor:
        """Mask of active contacts, `[*batch, C]`, bool."""
        return self.weight > 0

    def edges(self, x: Tensor) -> Tensor:
        """Motion along the edges, `[*batch, C, edges]`, those of one sign first."""
        if self.size == 1:
            return x
        normal, sliding = x[..., :1], self.friction * x[..., 1:]
        return torch.cat([normal + sliding, normal - sliding], -1)

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient `[*batch, C, size]` and Hessian `[*batch, C, size, size]` of the cost."""
        edges, weight, mu = self.edges(x), self.weight[..., None], self.friction
        is_pushed = edges < 0
        slope, diagonal = (torch.where(is_pushed, y, 0.0) for y in (weight * edges, weight))
        total, bend = slope.sum(-1, keepdim=True), diagonal.sum(-1, keepdim=True)
        if self.size == 1:
            return total, bend[..., None]
        (up, down), (stiff_up, stiff_down) = (y.chunk(2, -1) for y in (slope, diagonal))
        mixed = mu * (stiff_up - stiff_down)
        first = torch.cat([bend, mixed], -1)[..., None, :]
        others = torch.diag_embed(mu * mu * (stiff_up + stiff_down))
        H = torch.cat([first, torch.cat([mixed[..., None], others], -1)], -2)
        return torch.cat([total, mu * (up - down)], -1), H


@dataclass(frozen=True, eq=False)
class Grounded:
    """Placement of cones between one body each and the inertial frame.

    Attributes:
        bodies: body of each cone.
        placement: X, rows per velocity of the body in `torchsko.contact.body_motions`,
            `[*batch, C, size, 6]`.
    """

    bodies: tuple[int, ...]
    placement: Tensor

    def at_bodies(self, x: Tensor, dim: int) -> Tensor:
        """Entries of the bodies of the cones."""
        return x.index_select(dim, torch.tensor(self.bodies, device=x.device))

    def motion(self, velocity: Tensor) -> Tensor:
        """Rows for the velocities of all bodies, `[*batch, C, size]`."""
        return matvec(self.placement, self.at_bodies(velocity, -2))

    def total(self, of_cones: Tensor, num_bodies: int) -> Tensor:
        """Sums of `[*batch, C, n]` over the cones of each body, then zero, `[*batch, num_bodies + 1, n]`."""
        eye = torch.eye(num_bodies + 1, dtype=of_cones.dtype, device=of_cones.device)
        return self.at_bodies(eye, 1) @ of_cones


@dataclass(frozen=True, eq=False)
class SoftRows:
    """Linear constraints J qdd - aref of a mechanism at a state.

    The first rows are those of dry friction, then unilateral ones, then those of cones. J is explicit but for
    the last cones, which are grounded.

    Attributes:
        jacobian: J of the explicit rows, `[*batch, e, num_dof]`.
        reference: aref, `[*batch, r]`.
        weight: D of dry friction and unilateral rows, `[*batch, s]`; zero where inactive.
        loss: largest forces of dry friction, `[*, F]` [N m or N].
        cones: friction cones.
        grounded: placements of the last cones.
        bodies: motion of the bodies of grounded cones.
        moving: whether each dof can have an entry in each row of J, `[r, num_dof]`, bool.
        has_small_friction: see `ContactModel`.
    """

    jacobian: Tensor
    reference: Tensor
    weight: Tensor
    loss: Tensor
    cones: tuple[Cones, ...]
    grounded: tuple[Grounded, ...]
    bodies: BodyMotions
    moving: Tensor
    has_small_friction: bool

    def motion(self, rates: Tensor) -> Tensor:
        """J x of `[*batch, num_dof]`, `[*batch, r]`."""
        parts = [matvec(self.jacobian[..., : self.weight.shape[-1], :], rates)]
        for cone, J in self._explicit_cones():
            parts.append(cone.of_touching(matvec(J, rates[..., None, :]), 1).flatten(-2))
        velocity = self.bodies.velocities(rates) if self.grounded else rates
        for cone, x in self._placed_cones():
            parts.append(cone.of_touching(x.motion(velocity), 1).flatten(-2))
        return concatenate(parts)

    def generalised_forces(self, forces: Tensor) -> Tensor:
        """J* f of `[*batch, r]`, `[*batch, num_dof]`."""
        num = self.weight.shape[-1]
        total = matvec(self.jacobian[..., :num, :].mT, forces[..., :num])
        for cone, J in self._explicit_cones():
            total = total + cone.of_touching(matvec(J.mT, cone.select(forces)), 1).sum(-2)
        if not self.grounded:
            return total
        count = self.bodies.moves.shape[0] - 1
        of_bodies = [
            x.total(cone.of_touching(matvec(x.placement.mT, cone.select(forces)), 1), count)
            for cone, x in self._placed_cones()
        ]
        return total + self.bodies.generalised_forces(reduce(add, of_bodies))

    def _explicit_cones(self) -> Iterable[tuple[Cones, Tensor]]:
        """The cones with explicit rows, and these rows, `[*batch, C, size, num_dof]`."""
        for cone in self.cones[: len(self.cones) - len(self.grounded)]:
            yield cone, cone.select(self.jacobian.mT).movedim(-3, -1)

    def _placed_cones(self) -> Iterable[tuple[Cones, Grounded]]:
        return zip(self.cones[len(self.cones) - len(self.grounded) :], self.grounded, strict=True)

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
            gradient.append(cone.of_touching(g, 1).flatten(-2))
            hessians.append(H)
        return torch.cat(gradient, -1), diagonal, tuple(hessians)

    def curvature(self, diagonal: Tensor, hessians: tuple[Tensor, ...]) -> Tensor:
        """J* H J, `[*batch, num_dof, num_dof]`."""
        J = self.jacobian
        first = J[..., : diagonal.shape[-1], :]
        total = first.mT @ (diagonal[..., None] * first)
        num_explicit = len(self.cones) - len(self.grounded)
        for (cone, rows), H in zip(self._explicit_cones(), hessians, strict=False):
            total = total + cone.of_touching(rows.mT @ (H @ rows), 2).sum(-3)
        total = mirror(total)
        if not self.grounded:
            return total
        of_bodies = []
        for (cone, x), H in zip(self._placed_cones(), hessians[num_explicit:], strict=True):
            # The half that is read has no product of linear rows, which are constant on a level plane.
            stiffness = mirror((x.placement.mT @ (H @ x.placement)).mT)
            stiffness = cone.of_touching(stiffness, 2).flatten(-2)
            of_bodies.append(x.total(stiffness, self.bodies.moves.shape[0] - 1))
        return total + self.bodies.stiffness(reduce(add, of_bodies).unflatten(-1, (6, 6)))
