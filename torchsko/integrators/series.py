"""Series of tensors that are constant over each step of a rollout."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Series:
    """Tensors of consecutive steps.

    Attributes:
        rows: one tensor for each step, or one for all.
        first: number of the step of the first row.
    """

    rows: tuple[Tensor, ...]
    first: int = 0

    @classmethod
    def of(cls, x: Tensor, dim: int) -> Series:
        """Split a tensor at once; the gradient of a row indexed alone has the size of the tensor."""
        return cls(x.unbind(dim))

    def at(self, step: int) -> Tensor:
        """The tensor of a step."""
        return self.rows[step - self.first if len(self.rows) > 1 else 0]

    def part(self, first: int, last: int) -> tuple[Tensor, ...]:
        """The rows of a range of steps; with `first` they form a series."""
        return (
            self.rows[first - self.first : last - self.first] if len(self.rows) > 1 else self.rows
        )
