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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add

import torch
from torch import Tensor

from torchsko.contact.body_motions import BodyMotions
from torchsko.contact.row_placements import Between, Grounded
from torchsko.implicit.jacobian_products import Tensors
from torchsko.implicit.table_loop import Read, Write, table_loop
from torchsko.linalg.symmetric import mirror
from torchsko.utils.shapes import concatenate, matvec, norm


@dataclass(frozen=True, eq=False)
class Cones:
    """Friction cones with forces of one dimension; their rows are motions along and about contact axes.

    Attributes:
        first: index of the first row of all cones.
        points: contact point of each cone.
    """

    first: int
    points: tuple[int, ...]

    @property
    def size(self) -> int:
        """Dimension of the force, 1, 3, 4 or 6."""
        raise NotImplementedError

    @property
    def active(self) -> Tensor:
        """Mask of active contacts, `[*batch, C]`, bool."""
        raise NotImplementedError

    @property
    def guard(self) -> Tensor:
        """A number that is zero for contacts that are not active, `[*batch, C]`, without derivatives."""
        raise NotImplementedError

    @property
    def dims(self) -> Mapping[str, int]:
        """The dimension of the cones of each field that is a tensor."""
        raise NotImplementedError

    def by_cone(
        self,
        body: Callable[..., Sequence[Tensor]],
        reads: Sequence[Read],
        writes: Sequence[Write],
    ) -> Tensors:
        """The results of a loop over active cones (`torchsko.implicit.table_loop`).

        Args:
            body: a function of these cones, with the rows of the iterations, and of the other rows.
            reads: other tensors.
            writes: the results.
        """
        names = [*self.dims]
        own = [Read(getattr(self, name), dim) for name, dim in self.dims.items()]
        bare = replace(self, **dict.fromkeys(names))  # tensors in the closure would be captured

        def of_rows(_: Tensor, *rows: Tensor) -> Sequence[Tensor]:
            mine = replace(bare, **dict(zip(names, rows, strict=False)))
            return body(mine, *rows[len(names) :])

        guard = Read(self.guard, -1)
        return table_loop(of_rows, [guard, *own, *reads], writes, guarded=True)

    def select(self, x: Tensor) -> Tensor:
        """The rows of the cones, `[*batch, r]` to `[*batch, C, size]`."""
        count = len(self.points)
        rows = x[..., self.first : self.first + count * self.size]
        return rows.reshape(*rows.shape[:-1], count, self.size)

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient `[*batch, C, size]` and Hessian `[*batch, C, size, size]` of the cost."""
        writes = [Write(-2, is_sparse=True), Write(-3, is_sparse=True)]
        gradient, hessian = self.by_cone(
            lambda own, x: own.derivatives_of_rows(x), [Read(x, -2)], writes
        )
        return gradient, hessian

    def derivatives_of_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`derivatives`, of all cones at once."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class EllipticCones(Cones):
    """Elliptic cones.

    Attributes:
        weight: D of the rows, `[*batch, C, size]`; zero where the contact is inactive.
        scale: factors of the rows in u: the regularized friction coefficient mu of the normal row, then the
            coefficients of the others, `[*batch, C, size]`.
        stiffness: weight between both cones, D_0 / (mu^2 (1 + mu^2)), `[*batch, C]`.
    """

    weight: Tensor
    scale: Tensor
    stiffness: Tensor

    @property
    def size(self) -> int:
        """Dimension of the force, 3, 4 or 6."""
        return self.weight.shape[-1]

    @property
    def active(self) -> Tensor:
        """Mask of active contacts, `[*batch, C]`, bool."""
        return self.guard > 0

    @property
    def guard(self) -> Tensor:
        """D of the normal rows, `[*batch, C]`, without derivatives."""
        return self.weight[..., 0].detach()

    @property
    def dims(self) -> Mapping[str, int]:
        """The dimension of the cones of each field that is a tensor."""
        return {"weight": -2, "scale": -2, "stiffness": -1}

    @property
    def mu(self) -> Tensor:
        """Regularized friction coefficients, `[*batch, C]`."""
        return self.scale[..., 0]

    def derivatives_of_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
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
        return self.guard > 0

    @property
    def guard(self) -> Tensor:
        """D of the edges, `[*batch, C]`, without derivatives."""
        return self.weight.detach()

    @property
    def dims(self) -> Mapping[str, int]:
        """The dimension of the cones of each field that is a tensor."""
        return {"weight": -1, "friction": -2}

    def edges(self, x: Tensor) -> Tensor:
        """Motion along the edges, `[*batch, C, edges]`, those of one sign first."""
        if self.size == 1:
            return x
        normal, sliding = x[..., :1], self.friction * x[..., 1:]
        return torch.cat([normal + sliding, normal - sliding], -1)

    def derivatives_of_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
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
class SoftRows:
    """Linear constraints J qdd - aref of a mechanism at a state.

    The first rows are those of dry friction, then unilateral ones, then those of cones. In a kernel, rows of
    contacts that are not active have no value; they are read by loops over active contacts alone.

    Attributes:
        jacobian: J of the first rows, `[*batch, s, num_dof]`.
        reference: aref, `[*batch, r]`.
        weight: D of dry friction and unilateral rows, `[*batch, s]`; zero where inactive.
        loss: largest forces of dry friction, `[*, F]` [N m or N].
        cones: friction cones.
        placements: J of the rows of each group of cones.
        bodies: motion of the bodies of grounded cones.
        moving: whether each dof can have an entry in each row of J, `[r, num_dof]`, bool.
        has_small_friction: see `ContactModel`.
    """

    jacobian: Tensor
    reference: Tensor
    weight: Tensor
    loss: Tensor
    cones: tuple[Cones, ...]
    placements: tuple[Grounded | Between, ...]
    bodies: BodyMotions
    moving: Tensor
    has_small_friction: bool

    @property
    def _num_bodies(self) -> int:
        return self.bodies.moves.shape[0] - 1

    def _placed(self) -> Iterable[tuple[Cones, Grounded | Between]]:
        return zip(self.cones, self.placements, strict=True)

    def motion(self, rates: Tensor, *less: Tensor) -> Tensor:
        """J x of `[*batch, num_dof]`, `[*batch, r]`; ``less``, of the same shape, is subtracted."""
        is_grounded = any(isinstance(x, Grounded) for x in self.placements)
        velocity = self.bodies.velocities(rates) if is_grounded else rates
        first = matvec(self.jacobian, rates)
        parts = [first - less[0][..., : first.shape[-1]] if less else first]
        for cone, x in self._placed():
            moved = velocity if isinstance(x, Grounded) else rates
            own = (cone.select(y) for y in less)
            parts.append(x.motion(cone.guard, moved, *own).flatten(-2))
        return concatenate(parts)

    def advance(self, x: Tensor, length: Tensor, along: Tensor) -> Tensor:
        """Rows x + length * along `[*batch, r]`, for lengths `[*batch, 1]`."""
        num = self.weight.shape[-1]
        parts = [x[..., :num] + length * along[..., :num]]
        for cone in self.cones:
            reads = [Read(cone.guard, -1), Read(cone.select(x), -2), Read(cone.select(along), -2)]
            of_rows = partial(_advanced, length[..., None])
            writes = [Write(-2, is_sparse=True)]
            parts.append(table_loop(of_rows, reads, writes, guarded=True)[0].flatten(-2))
        return concatenate(parts)

    def generalized_forces(self, forces: Tensor) -> Tensor:
        """J* f of `[*batch, r]`, `[*batch, num_dof]`."""
        total = matvec(self.jacobian.mT, forces[..., : self.weight.shape[-1]])
        of_bodies = []
        for cone, x in self._placed():
            if isinstance(x, Grounded):
                of_bodies.append(x.wrenches(cone.guard, cone.select(forces), self._num_bodies))
            else:
                total = total + x.forces(cone.guard, cone.select(forces), total.shape[-1])
        if not of_bodies:
            return total
        return total + self.bodies.generalized_forces(reduce(add, of_bodies))

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
        total = mirror(J.mT @ (diagonal[..., None] * J))
        of_bodies = []
        for (cone, x), H in zip(self._placed(), hessians, strict=True):
            if isinstance(x, Grounded):
                of_bodies.append(x.stiffness(cone.guard, H, self._num_bodies))
            else:
                total = total + x.stiffness(cone.guard, H, J.shape[-1])
        if not of_bodies:
            return total
        return total + self.bodies.stiffness(reduce(add, of_bodies))


def _advanced(length: Tensor, _: Tensor, x: Tensor, along: Tensor) -> tuple[Tensor]:
    return (x + length * along,)
