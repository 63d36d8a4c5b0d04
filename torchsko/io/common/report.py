"""What a reader notes beside the robot: what it leaves unused, and the faults it got over."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchsko.errors import RobotFileError
from torchsko.mechanism.description import Fault, UnsupportedElement


@dataclass
class Report:
    """The notes of one reading, in file order.

    Attributes:
        strict: whether faults are refused.
        unused: what the file holds and the dynamics does not use.
        faults: what is wrong in it, and what was done about that.
    """

    strict: bool = False
    unused: list[UnsupportedElement] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def fault(self, element: str, done: str, error: str) -> None:
        """Note a fault, or refuse it.

        Args:
            element: what is at fault and where, by name.
            done: what is wrong, and how it is read.
            error: the message where faults are refused.

        Raises:
            RobotFileError: `error`, when the reading is strict.
        """
        if self.strict:
            raise RobotFileError(error)
        self.faults.append(Fault(element, done))
