"""Numbers that are learned: how one is kept and pickled, and how a mechanism's fields are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils import parametrize

from torchsko.errors import MechanismError
from torchsko.learn.targets import Target
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism
from torchsko.utils.shapes import concatenate

_VALUE = "parametrizations.value"  # where torch keeps what a learned value is computed from


class ParametrizedValue(nn.Module):
    """One learned value, with a parametrization registered on it by `torch.nn.utils.parametrize`.

    Args:
        value: to start from.
        parametrization: module with ``forward`` and ``right_inverse``.

    Attributes:
        value: the physical value, computed from the parameter.
    """

    value: Tensor

    def __init__(self, value: Tensor, parametrization: nn.Module) -> None:
        super().__init__()
        self.register_parameter("value", nn.Parameter(value))
        parametrize.register_parametrization(self, "value", parametrization)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # Registering a parametrization makes a class at run time, which pickle refuses.
        kept = dict(self.named_parameters())
        parametrization = self.get_submodule(f"{_VALUE}.0")
        return _restore, (parametrization, kept, self.training)


class _Restored(nn.Module):
    """A parametrization whose numbers are kept: at the edge of its domain its inverse finds none."""

    def __init__(self, parametrization: nn.Module, kept: Any) -> None:
        super().__init__()
        self.parametrization, self.kept = parametrization, kept

    def forward(self, *own: Tensor) -> Tensor:
        """Its value."""
        return self.parametrization(*own)

    def right_inverse(self, _: Tensor) -> Any:
        """What was kept, a tensor or several, whatever the value."""
        return self.kept


def _restore(
    parametrization: nn.Module, kept: Mapping[str, nn.Parameter], training: bool
) -> ParametrizedValue:
    # The value is computed here: another process takes over shared memory of what still exists.
    own = [p.detach() for name, p in kept.items() if name.startswith(f"{_VALUE}.original")]
    one = f"{_VALUE}.original" in kept
    made = ParametrizedValue(
        parametrization(*own).detach(), _Restored(parametrization, own[0] if one else own)
    )
    cast(nn.ModuleList, made.get_submodule(_VALUE))[0] = parametrization
    for name, parameter in kept.items():
        path, _, leaf = name.rpartition(".")
        made.get_submodule(path).register_parameter(leaf, parameter)
    return made.train(training)


def parametrize_target(
    mech: Mechanism, target: Target, parametrization: nn.Module
) -> ParametrizedValue:
    """The learned value of a target, at its start.

    Args:
        mech: to start from.
        target: what is learned of it.
        parametrization: that keeps it physical; one with a ``start`` says where it begins itself.

    Raises:
        MechanismError: when the start is outside of the parametrization's domain; names the target.
    """
    value = target.read(mech).detach().clone()
    start = getattr(parametrization, "start", None)
    try:
        return ParametrizedValue(value if start is None else start(value), parametrization)
    except MechanismError as fault:
        raise MechanismError(f"{target.name!r} cannot be learned: {fault}") from None


def assembly_plan(
    targets: Mapping[str, Target], mech: Mechanism
) -> dict[str, tuple[tuple[int, str | None], ...]]:
    """For each learned field its entries in order, as runs: a length, and the target or None.

    Args:
        targets: what is learned, by name; none sets what another does.
        mech: whose fields they are.
    """
    plan: dict[str, tuple[tuple[int, str | None], ...]] = {}
    for field in dict.fromkeys(field for target in targets.values() for field in target.fields):
        mine = sorted((t.start, t.size, name) for name, t in targets.items() if field in t.fields)
        runs, at = [], 0
        for start, size, name in mine:
            runs += [(start - at, None), (size, name)]
            at = start + size
        total = getattr(mech, field).shape[-len(PARAMETERS[field])]
        plan[field] = tuple(run for run in [*runs, (total - at, None)] if run[0])
    return plan


def assemble_field(
    field: str,
    start: Tensor,
    runs: tuple[tuple[int, str | None], ...],
    parts: Mapping[str, dict[str, Tensor]],
) -> Tensor:
    """A field of the mechanism, its learned runs in place of the start's.

    Args:
        field: its name.
        start: its values where nothing is learned, `[*batch, *shape]`.
        runs: of `assembly_plan`.
        parts: of each target, the slices of the fields that it sets; of batches that broadcast.
    """
    dim = -len(PARAMETERS[field])
    kept = start.split([size for size, _ in runs], dim)
    pieces = [
        piece if name is None else parts[name][field]
        for piece, (_, name) in zip(kept, runs, strict=True)
    ]
    return concatenate(pieces, dim)
