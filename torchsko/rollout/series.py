"""What is held over each step of a rollout, as a tensor for each."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Series:
    """Tensors of steps that follow one another.

    Attributes:
        rows: one for each step, or one for all.
        first: the step of the first of them.
    """

    rows: tuple[Tensor, ...]
    first: int = 0

    @classmethod
    def of(cls, x: Tensor, dim: int) -> Series:
        """A tensor taken apart at once: rows taken one by one have gradients as long as it is."""
        return cls(x.unbind(dim))

    def at(self, step: int) -> Tensor:
        """What is held over a step."""
        return self.rows[step - self.first if len(self.rows) > 1 else 0]

    def part(self, first: int, last: int) -> tuple[Tensor, ...]:
        """The rows of some steps, which with `first` are a series of these."""
        return (
            self.rows[first - self.first : last - self.first] if len(self.rows) > 1 else self.rows
        )
