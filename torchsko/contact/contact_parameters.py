"""Weights and reference accelerations of contacts, from the parameters of their pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchsko.contact.contact_model import ContactModel
from torchsko.contact.contact_tables import ContactGroup
from torchsko.contact.cost import Cones, EllipticCones, Pyramids
from torchsko.contact.points import Contacts, select
from torchsko.contact.scalar_rows import timing_of
from torchsko.contact.shape_pairs import MIN_FRICTION
from torchsko.contact.softness import MIN_VALUE, Timing, softness
from torchsko.implicit.jacobian_products import Tensors
from torchsko.implicit.table_loop import Read, Write, table_loop
from torchsko.utils.shapes import concatenate


class ContactParameters(NamedTuple):
    """Parameters of the contacts of one dimension, `[*, C, ...]` each.

    Attributes:
        active: whether the distance is below the margin.
        distance: distance [m].
        margin: distance below which a contact exerts force [m].
        translation: sum of the inverse masses of both bodies [1/kg].
        friction: five coefficients.
        solref: reference parameters.
        solref_friction: reference parameters of friction.
        solimp: impedance parameters.
        impratio: ratio of the impedances of friction and normal force.
        timing: of the step.
    """

    active: Tensor
    distance: Tensor
    margin: Tensor
    translation: Tensor
    friction: Tensor
    solref: Tensor
    solref_friction: Tensor
    solimp: Tensor
    impratio: float
    timing: Timing

    @staticmethod
    def of(
        contact: ContactModel, points: Contacts, group: ContactGroup, active: Tensor
    ) -> ContactParameters:
        """The parameters of contacts."""
        pair, (first, second) = group.pairs, group.shapes
        inverse_mass = contact.shape_invweight[..., 0]
        return ContactParameters(
            active,
            select(points.distance, group.at, -1),
            select(contact.margin, pair, -1),
            select(inverse_mass, first, -1) + select(inverse_mass, second, -1),
            select(contact.friction, pair, -2).clamp(min=MIN_FRICTION),
            select(contact.solref, pair, -2),
            select(contact.solref_friction, pair, -2),
            select(contact.solimp, pair, -2),
            contact.options.impratio,
            timing_of(contact),
        )

    def _by_contact(
        self,
        of_rows: Callable[[ContactParameters, Tensor], Tensors],
        v: Tensor,
        dims: Sequence[int],
    ) -> Tensors:
        """Results of a loop over active contacts, with these dimensions of the contacts."""
        reads = [Read(self.active, -1)]
        own = zip(self[1:8], (-1, -1, -1, -2, -2, -2, -2), strict=True)
        reads += [Read(x, dim) for x, dim in own] + [Read(v, -2)]
        impratio, timing = self.impratio, self.timing

        def body(*rows: Tensor) -> Tensors:
            numbers: Any = (rows[0] != 0, *rows[1:8], impratio, timing)
            return of_rows(ContactParameters(*numbers), rows[8])

        writes = [Write(dim, is_sparse=k == len(dims) - 1) for k, dim in enumerate(dims)]
        return table_loop(body, reads, writes, guarded=True)

    @property
    def _depth(self) -> Tensor:
        """Distance less margin, zero where inactive [m]."""
        return torch.where(self.active, self.distance - self.margin, 0.0)

    def _normal(self) -> tuple[Tensor, Tensor, Tensor]:
        """Softness terms k d (r - m) and b, and the regularization R of the normal row."""
        soft = softness(self.solref, self.solimp, self._depth, self.timing)
        push = soft.stiffness * soft.impedance * self._depth
        return push, soft.damping, soft.regularization(self.translation)

    def _of_active(self, x: Tensor, num_dims: int) -> Tensor:
        """Values `[*batch, C, *dims]` of active contacts, zeros for others."""
        return torch.where(self.active[(..., *(None,) * num_dims)], x, 0.0)

    def pyramidal(self, first: int, points: tuple[int, ...], v: Tensor) -> tuple[Cones, Tensor]:
        """Pyramids, or contacts without friction, and their reference accelerations `[*batch, C, size]`."""
        weight, reference = self._by_contact(_pyramid, v, (-1, -2))
        mu = self.friction[..., : v.shape[-1] - 1]
        return Pyramids(first, points, weight, mu), reference

    def elliptic(self, first: int, points: tuple[int, ...], v: Tensor) -> tuple[Cones, Tensor]:
        """Elliptic cones, and their reference accelerations `[*batch, C, size]`."""
        *fields, reference = self._by_contact(_ellipse, v, (-2, -2, -1, -2))
        return EllipticCones(first, points, *fields), reference


def _pyramid(of: ContactParameters, v: Tensor) -> Tensors:
    """Weights and reference accelerations of pyramids."""
    push, damping, R = of._normal()
    mu = of.friction[..., : v.shape[-1] - 1]
    if mu.shape[-1]:
        # R is that of the first edge, whose inverse weight includes the square of the coefficient.
        square = mu[..., 0] * mu[..., 0]
        R = torch.clamp(2 * square / of.impratio * (R * (1 + square)), min=MIN_VALUE)
    return of._of_active(1 / R, 0), _reference(v, push, damping, damping)


def _ellipse(of: ContactParameters, v: Tensor) -> Tensors:
    """Fields of elliptic cones, and reference accelerations."""
    push, damping, R = of._normal()
    coefficients = of.friction[..., : v.shape[-1] - 1]
    sliding = R[..., None] / of.impratio
    square = coefficients[..., :1] * coefficients[..., :1]
    R = torch.cat([R[..., None], sliding * square / (coefficients * coefficients)], -1)
    own = (of.solref_friction != 0).any(-1, keepdim=True)
    solref = torch.where(own, of.solref_friction, of.solref)
    rate = softness(solref, of.solimp, of._depth, of.timing, friction=True).damping
    mu = coefficients[..., 0] * (R[..., 1] / R[..., 0]).sqrt()
    weight = of._of_active(1 / R, 1)
    scale = torch.cat([mu[..., None], coefficients.expand(*mu.shape, coefficients.shape[-1])], -1)
    stiffness = weight[..., 0] / (mu * mu * (1 + mu * mu))
    return weight, scale, stiffness, _reference(v, push, damping, rate)


def _reference(v: Tensor, push: Tensor, damping: Tensor, sliding: Tensor) -> Tensor:
    """Reference accelerations for velocities, with the damping of normal and sliding rows."""
    normal = -damping * v[..., 0] - push
    return concatenate((normal[..., None], -sliding[..., None] * v[..., 1:]))
