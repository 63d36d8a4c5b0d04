"""Files of logs: CSV, NPZ, Parquet and ROS 2 bags, read as tables of named columns."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError, TorchskoError
from torchsko.identification.logs.csv_file import read_csv
from torchsko.identification.logs.parquet import LEROBOT_INFO, read_parquet
from torchsko.identification.logs.ros_bag import read_bag
from torchsko.identification.logs.table import Table, joint_array_prefix, unique_order
from torchsko.identification.logs.timestamps import seconds_of_dates, seconds_of_texts

Array = NDArray[np.floating[Any]]


def read_table(path: Path, layout: str | None = None, joints: Sequence[str] = ()) -> Table:
    """Read a CSV, NPZ or Parquet file, or a ROS 2 bag.

    Args:
        path: a file, or the folder of a ROS 2 bag or of a LeRobot dataset.
        layout: columns of a CSV file without a header, see `csv_file.expand_layout`.
        joints: names in the robot's order; of the messages of a bag, those with most of these are read.

    Raises:
        FitError: if there is no such file, its format is unknown, or it is invalid; names the line.
        MissingExtraError: for Parquet and bags, if their reader is not installed.
    """
    if layout is not None and path.suffix.lower() not in (".csv", ".txt"):
        raise FitError(
            f"{path}: a list of all columns is given.",
            "Only CSV files without a header need one.",
            'Select columns by name, columns={"q": ["a", "b"]} or --column q=a,b.',
        )
    readers: dict[str, Callable[[Path], Table]] = {
        ".csv": lambda x: read_csv(x, layout),
        ".txt": lambda x: read_csv(x, layout),
        ".npz": _read_npz,
        ".parquet": read_parquet,
        ".mcap": lambda x: read_bag(x, joints),
        ".db3": lambda x: read_bag(x, joints),
    }
    reader = readers.get(path.suffix.lower())
    if (path / "metadata.yaml").is_file():
        reader = readers[".mcap"]
    elif (path / LEROBOT_INFO).is_file():
        reader = read_parquet
    if reader is None:
        raise FitError(
            f"{path}: the file name has no known extension.",
            "A log is CSV (.csv, .txt), NumPy (.npz), Parquet (.parquet), a ROS 2 bag (.mcap, .db3 or its "
            "folder) or the folder of a LeRobot dataset.",
            "Rename the file, or make a ts.identification.Log from arrays.",
        )
    if not path.exists():
        raise FitError(
            f"{path}: there is no such file.", "A log is read from a file.", "Check the path."
        )
    try:
        return reader(path)
    except TorchskoError:
        raise
    except (OSError, EOFError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FitError(
            f"{path}: cannot be read: {reason}.",
            f"The content must have the format of the extension, {path.suffix}.",
            "Check that the file is complete, or make a ts.identification.Log from arrays.",
        ) from error


def _read_npz(path: Path) -> Table:
    """Read the arrays of an NPZ file; dates become seconds from the first one.

    Raises:
        FitError: if joint names are Python objects, or differ between samples.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not an archive of numpy.savez")
    columns: dict[str, Array] = {}
    units, other, orders = {}, {}, {}
    with np.load(path, allow_pickle=False) as data:
        for name in data.files:
            prefix = joint_array_prefix(name)
            try:
                x = np.asarray(data[name])
            except ValueError as error:
                if "allow_pickle" not in str(error):
                    raise
                if prefix is not None:
                    raise FitError(
                        f"{path}: {name!r} contains Python objects.",
                        "They are not read, because that would run code from the file.",
                        f"Save the names as text, {name}=np.array(names, dtype=str), or leave them out if "
                        "joints are in the robot's order.",
                    ) from error
                other[name] = "objects"
                continue
            if x.dtype.kind in "US" and prefix is not None and x.ndim in (1, 2):
                texts = x if x.dtype.kind == "U" else np.char.decode(x, "utf-8", "replace")
                rows = np.atleast_2d(texts)
                different = rows[(rows != rows[:1]).any(1)]
                order = unique_order(path, [*rows[:1].tolist(), *different[:1].tolist()])
                orders[prefix] = dict(enumerate(order))
                other[name] = "text"
            elif (
                x.dtype.kind == "U"
                and x.ndim == 1
                and (t := seconds_of_texts(x.tolist())) is not None
            ):
                columns[name], units[name] = t, "s"
            elif x.dtype.kind in "mM" and np.datetime_data(x.dtype)[0] != "generic":
                columns[name], units[name] = seconds_of_dates(x.reshape(-1)), "s"
            else:
                columns[name] = x
    return Table(columns, units, other, orders)
