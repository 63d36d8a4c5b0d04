"""Files of logs as named arrays: CSV, NPZ and Parquet, with the units that they say themselves."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError, TorchskoError
from torchsko.identification.logs.csv_cells import in_order_of, moments, seconds, stem_of
from torchsko.identification.logs.csv_file import read_text
from torchsko.identification.logs.parquet import read_parquet

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Table:
    """What a file holds.

    Attributes:
        columns: arrays by name, of one dimension, or `[samples, joints]`.
        units: of columns, where the file says them.
        other: types of columns that are no numbers.
        orders: joints that the file itself names, by number from 0 or 1 on, for numbered columns whose names
            begin alike, and for arrays `[samples, joints]` whose names begin so, "" for all.
    """

    columns: dict[str, Array]
    units: dict[str, str] = field(default_factory=dict)
    other: dict[str, str] = field(default_factory=dict)
    orders: dict[str, dict[int, str]] = field(default_factory=dict)


def read(path: Path) -> Table:
    """What a file holds.

    Raises:
        FitError: no such file, an unknown format, or a file that is not whole; names the line.
        MissingExtraError: for Parquet, when pyarrow is not installed.
    """
    ending = path.suffix.lower()
    if ending not in (".npz", ".csv", ".txt", ".parquet"):
        raise FitError(
            f"{path}: the name says no format.",
            "A log is CSV (.csv, .txt), NumPy (.npz) or Parquet (.parquet).",
            "Give the file one of these endings, or make a ts.identification.Log of arrays.",
        )
    if not path.is_file():
        raise FitError(
            f"{path}: there is no such file.",
            "A log is read from a file.",
            "Check the path.",
        )
    try:
        if ending == ".npz":
            return _read_arrays(path)
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
            f"{path}: cannot be read: {why}.",
            f"The ending {path.suffix} says what it should hold.",
            "Check that the file is whole, or make a ts.identification.Log of arrays.",
        ) from error


def _read_arrays(path: Path) -> Table:
    """Arrays of NumPy; those of objects, which only code in the file could read, are none.

    Moments count from the first, in seconds.

    Raises:
        FitError: names of joints are objects, or differ from sample to sample: numbers would be taken in the
            robot's order.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no archive of numpy.savez")
    arrays: dict[str, Array] = {}
    units, other, order = {}, {}, {}
    with np.load(path, allow_pickle=False) as data:
        for name in data.files:
            stem = stem_of(name)
            try:
                x = np.asarray(data[name])
            except ValueError as error:
                if "allow_pickle" not in str(error):
                    raise
                if stem is not None:
                    raise _of_objects(path, name) from error
                other[name] = "objects"
                continue
            if x.dtype.kind in "US" and stem is not None and x.ndim in (1, 2):
                each = x if x.dtype.kind == "U" else np.char.decode(x, "utf-8", "replace")
                every = np.atleast_2d(each)
                others = every[(every != every[:1]).any(1)]
                order[stem] = dict(
                    enumerate(in_order_of(path, [*every[:1].tolist(), *others[:1].tolist()]))
                )
                other[name] = "words"
            elif x.dtype.kind == "U" and x.ndim == 1 and (told := moments(x.tolist())) is not None:
                arrays[name], units[name] = told, "s"
            elif x.dtype.kind in "mM" and np.datetime_data(x.dtype)[0] != "generic":
                arrays[name], units[name] = seconds(x.reshape(-1)), "s"
            else:
                arrays[name] = x
    return Table(arrays, units, other, order)


def _of_objects(path: Path, name: str) -> FitError:
    return FitError(
        f"{path}: {name!r} holds objects of Python, which only code in the file could read.",
        "Names of joints say whose the numbers are.",
        f"Save them as words, {name}=np.array(names, dtype=str), or, where joints are in the robot's order, "
        "leave them out.",
    )
