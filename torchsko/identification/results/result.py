"""The result of a fit: its numbers, tests on other logs, reports and files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from torchsko.errors import FitError
from torchsko.identification.logs.log import Log
from torchsko.identification.results.fit_result import FitResult
from torchsko.identification.results.robot_file import (
    missing_from_mechanism,
    robot_file,
    save_robot,
)
from torchsko.identification.results.scores import Scores, score
from torchsko.identification.results.serialization import load_fit, write_fit
from torchsko.identification.results.summary import report
from torchsko.mechanism.dispatch import MechanismLike


class Fit(FitResult):
    """An identified robot, from `torchsko.identification.identify`.

    Its attributes are those of `torchsko.identification.results.fit_result.FitResult`.
    """

    @property
    def missing_from_mechanism(self) -> tuple[str, ...]:
        """Texts that name the parts of the memoryless model that `mechanism` does not have."""
        return missing_from_mechanism(self)

    def test(self, log: Log) -> Scores:
        """Prediction errors on a log that the fit did not use.

        The log passes a filter with the cut-off frequency of the fit. The nominal robot and least squares
        are scored beside the fit, with friction from the fitted log.

        Args:
            log: measurements of the same robot. Motor currents are converted by the torque constants of the
                fit.

        Returns:
            Errors by model, `[num_dof]`, also relative to the standard deviation of the force (`nrmse`).

        Raises:
            FitError: a log that does not fit the robot, or is too short.
        """
        return score(self, log)

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        like: Any = None,
        file_format: str | None = None,
        mesh_path: Sequence[str | os.PathLike[str]] | None = None,
    ) -> str | None:
        """Write the fit into a folder: its numbers (fit.pt) and the robot.

        fit.pt is always written, first. The robot file is ``robot.urdf`` or ``robot.xml``. It is a copy of
        the file `like` with the identified numbers, or a new file if `like` has another format. Existing
        files of these names are replaced. Meshes and included files of MJCF are copied too, unless they exist
        already or lie outside of the folder of `like`; the new file then has their full paths.

        One `RobotFileWarning` names all that the robot file does not have, such as constant joint forces,
        rotor inertia in URDF, friction that differs between the dofs of a joint, or `missing_from_mechanism`.
        If the format cannot represent the robot at all, such as joints that follow several others, the
        warning says why, and there is no robot file.

        Args:
            folder: output folder; created if it does not exist.
            like: the file that the nominal robot was loaded from, or its text.
            file_format: "urdf" or "mjcf"; by default that of `like`, and URDF for SDF and new files.
            mesh_path: further trusted folders for MJCF, as in `torchsko.load`.

        Returns:
            The name of the robot file; None if there is none.

        Raises:
            FitError: when the folder cannot be created, or the format is unknown.
            RobotFileError: when the robot file cannot be written, or cannot be loaded from there.
        """
        folder = Path(folder)
        robot_file(like, file_format)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FitError(
                f"{folder} cannot be created: {error.strerror or error}.",
                "A fit is saved into a folder.",
                "Pass the path of a writable folder.",
            ) from error
        write_fit(self, folder / "fit.pt")
        return save_robot(self, folder, like, file_format, mesh_path)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        robot: MechanismLike | None = None,
        mesh_path: Sequence[str | os.PathLike[str]] | None = None,
    ) -> Self:
        """Load a fit that `save` wrote. No code in the file is executed.

        Args:
            folder: the folder of the fit.
            robot: the robot that was identified, in place of the robot file.
            mesh_path: further trusted folders of the robot file, as in `torchsko.load`.

        Raises:
            FitError: when the folder has no valid fit, or no robot file and `robot` is left out.
            RobotFileError: when the robot file cannot be read.
        """
        return load_fit(cls, Path(folder), robot, mesh_path)

    def __str__(self) -> str:
        """The summary of the fit."""
        return report(self)
