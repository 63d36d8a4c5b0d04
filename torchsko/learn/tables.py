"""Files of logs as named arrays: CSV, NPZ and Parquet, with the units that they say themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError, TorchskoError
from torchsko.learn.parquet import read_parquet
from torchsko.learn.texts import read_text

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Table:
    """What a file holds.

    Attributes:
        columns: arrays by name, of one dimension, or `[samples, joints]`.
        units: of columns, where the file says them.
        other: types of columns that are no numbers.
    """

    columns: dict[str, Array]
    units: dict[str, str] = field(default_factory=dict)
    other: dict[str, str] = field(default_factory=dict)


def read(path: Path) -> Table:
    """What a file holds.

    Raises:
        FitError: no such file, an unknown format, or a file that is not whole; names the line.
        MissingExtraError: for Parquet, when pyarrow is not installed.
    """
    ending = path.suffix.lower()
    if ending not in (".npz", ".csv", ".txt", ".parquet"):
        raise FitError(
            f"{path}: the name says no format.\n"
            "A log is CSV (.csv, .txt), NumPy (.npz) or Parquet (.parquet).\n"
            "Give the file one of these endings, or make a ts.learn.Log of arrays."
        )
    if not path.is_file():
        raise FitError(
            f"{path}: there is no such file.\nA log is read from a file.\nCheck the path."
        )
    try:
        if ending == ".npz":
            with np.load(path, allow_pickle=False) as data:
                return Table({name: np.asarray(data[name]) for name in data.files})
        if ending == ".parquet":
            return Table(*read_parquet(path))
        return Table(*read_text(path))
    except (OSError, EOFError, ValueError, KeyError) as error:
        if isinstance(error, TorchskoError):
            raise
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, UnicodeError):
            why = f"its encoding is not the one of its first lines ({why})"
        raise FitError(
            f"{path}: cannot be read: {why}.\n"
            f"The ending {path.suffix} says what it should hold.\n"
            "Check that the file is whole, or make a ts.learn.Log of arrays."
        ) from error
