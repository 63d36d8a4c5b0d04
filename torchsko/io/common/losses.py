"""Parts of a robot that a new file lacks, collected for one message."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torchsko.errors import MechanismError, RobotFileWarning, caller_stack_level, name_list


@dataclass
class Losses:
    """Parts of a robot that a file lacks.

    Attributes:
        robot: name of the robot.
        format: "MJCF" or "URDF".
        like: whether the file is a copy of the robot's own file.
        parts: descriptions of the parts.
        fields: tensors of the mechanism that differ in the file.
    """

    robot: str
    format: str
    like: bool = False
    parts: list[str] = field(default_factory=list)
    fields: set[str] = field(default_factory=set)

    def add(self, part: str, names: Sequence[str] = (), fields: Iterable[str] = ()) -> None:
        """Add a part, and the names of the elements that have it."""
        self.parts.append(f"{part} {name_list(names)}" if names else part)
        self.fields |= set(fields)

    def add_if(self, names: Sequence[str], part: str, fields: Iterable[str] = ()) -> None:
        """Add a part if an element has it."""
        if names:
            self.add(part, names, fields)

    def refuse(self) -> None:
        """Raise an error if there is a part.

        Raises:
            MechanismError: names all parts.
        """
        if self.parts:
            raise MechanismError(*self._message())

    def warn(self) -> None:
        """Warn if there is a part."""
        if self.parts:
            warnings.warn(
                "\n".join(self._message()), RobotFileWarning, stacklevel=caller_stack_level()
            )

    def _message(self) -> tuple[str, str, str]:
        lines = "\n".join(f"  {part}" for part in self.parts)
        other = "Save to MJCF (.xml)" if self.format == "URDF" else "Pass like=FILE"
        other = "Leave like out" if self.like else other
        return (
            f"the {self.format} file of {self.robot!r} lacks:\n{lines}",
            f"{self.format} cannot express them, or torchsko does not write them.",
            f"{other} to preserve more; strict=True refuses to leave parts out.",
        )
