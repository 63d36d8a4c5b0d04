"""Report of a reader: unsupported elements and faults of a robot file."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchsko.errors import RobotFileError
from torchsko.mechanism.description import Fault, UnsupportedElement


@dataclass
class Report:
    """Unsupported elements and faults of a robot file, in file order.

    Attributes:
        strict: raise an error for a fault instead of recording it.
        unused: elements that the dynamics does not use.
        faults: errors in the file that leave the dynamics defined.
    """

    strict: bool = False
    unused: list[UnsupportedElement] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def fault(self, element: str, reason: str, error: RobotFileError) -> None:
        """Record a fault, or raise its error if the report is strict.

        Args:
            element: the element at fault, by name.
            reason: what is wrong, and how it is read instead.
            error: the error of a strict report; a recorded fault has its `why` and `advice`.

        Raises:
            RobotFileError: `error`.
        """
        if self.strict:
            raise error
        self.faults.append(Fault(element, reason, error.why, error.advice))
