"""Learned values as modules, and the assembly of a mechanism's fields from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchsko.errors import MechanismError
from torchsko.learn.targets import MODAL_FIELDS, Target
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.flexible.mode_factors import scaled
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import concatenate


class ParametrizedValue(nn.Module):
    """One learned value, as an offset from its initial value in the coordinates of a parametrization.

    The value is ``parametrization(reference + offset)``. The buffer ``reference`` holds the coordinates of
    the initial value. The parameter ``offset`` starts at zero, so weight decay pulls the value towards the
    initial one. A parametrization of several tensors has ``reference0``, ``offset0``, and so on.

    Args:
        value: initial physical value.
        parametrization: module with ``forward`` and ``right_inverse``.
    """

    def __init__(self, value: Tensor, parametrization: nn.Module) -> None:
        super().__init__()
        self.parametrization = parametrization
        coordinates = self._coordinates(value)
        self._suffixes = (
            [""] if len(coordinates) == 1 else [str(k) for k in range(len(coordinates))]
        )
        for suffix, x in zip(self._suffixes, coordinates, strict=True):
            self.register_buffer(f"reference{suffix}", x.detach().clone())
            self.register_parameter(f"offset{suffix}", nn.Parameter(torch.zeros_like(x)))

    def forward(self) -> Tensor:
        """The physical value, differentiable with respect to the offset."""
        pairs = (
            (getattr(self, f"reference{k}"), getattr(self, f"offset{k}")) for k in self._suffixes
        )
        return self.parametrization(*(reference + offset for reference, offset in pairs))

    @torch.no_grad()
    def assign(self, value: Tensor) -> None:
        """Set the offset so that `forward` returns a physical value.

        Raises:
            MechanismError: when the value is outside of the parametrization's domain.
        """
        for suffix, x in zip(self._suffixes, self._coordinates(value), strict=True):
            getattr(self, f"offset{suffix}").copy_(x - getattr(self, f"reference{suffix}"))

    def _coordinates(self, value: Tensor) -> tuple[Tensor, ...]:
        inverse: Any = self.parametrization.right_inverse
        found = inverse(value)
        return (found,) if isinstance(found, Tensor) else tuple(found)


def parametrize_target(
    mech: Mechanism, target: Target, parametrization: nn.Module
) -> ParametrizedValue:
    """Make the learned value of a target, at its initial value.

    Args:
        mech: mechanism with the initial values.
        target: the learned entries.
        parametrization: module that keeps the value physical. Its method ``start``, if there is one, maps the
            mechanism's value to the initial value.

    Raises:
        MechanismError: when the initial value is outside of the parametrization's domain; names the target.
    """
    value = target.read(mech).detach().clone()
    start = getattr(parametrization, "start", None)
    try:
        return ParametrizedValue(value if start is None else start(value), parametrization)
    except MechanismError as error:
        raise error.located(f"{target.name!r} cannot be learned") from None


def assembly_plan(
    targets: Mapping[str, Target], mech: Mechanism
) -> dict[str, tuple[tuple[int, str | None], ...]]:
    """Divide each learned field into runs of entries: the length of a run, and its target or None.

    Args:
        targets: learned targets by name; they do not overlap.
        mech: mechanism that has the fields.
    """
    plan: dict[str, tuple[tuple[int, str | None], ...]] = {}
    for field in dict.fromkeys(field for target in targets.values() for field in target.fields):
        learned = sorted(
            (t.start, t.size, name) for name, t in targets.items() if field in t.fields
        )
        runs, end = [], 0
        for start, size, name in learned:
            runs += [(start - end, None), (size, name)]
            end = start + size
        total = getattr(mech, field).shape[-len(PARAMETERS[field])]
        plan[field] = tuple(run for run in [*runs, (total - end, None)] if run[0])
    return plan


def assemble_field(
    field: str,
    start: Tensor,
    runs: tuple[tuple[int, str | None], ...],
    parts: Mapping[str, dict[str, Tensor]],
    groups: list[int],
) -> Tensor:
    """Build a field of the mechanism from its fixed and its learned runs.

    Rows and columns of modal matrices scale with their diagonal.

    Args:
        field: name of the field.
        start: values of the entries that are not learned, `[*batch, *shape]`.
        runs: lengths and targets, from `assembly_plan`.
        parts: slices of fields by target, from `Target.write`; their batches broadcast.
        groups: of modes with one factor, from `mode_groups`.
    """
    modal = field in MODAL_FIELDS
    dim = -1 if modal else -len(PARAMETERS[field])
    entries = start.diagonal(dim1=-2, dim2=-1) if modal else start
    fixed = entries.split([size for size, _ in runs], dim)
    pieces = [
        piece if name is None else parts[name][field]
        for piece, (_, name) in zip(fixed, runs, strict=True)
    ]
    found = concatenate(pieces, dim)
    if not modal:
        return found
    zero = entries == 0
    factors = torch.where(zero, 1.0, found / torch.where(zero, 1.0, entries))
    return scaled(start, factors, groups)
