"""Files of logs: CSV, NPZ and ROS 2 bags, read as tables of named columns."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError, TorchskoError
from torchsko.identification.logs.column_names import match_joint, prefixed_joints
from torchsko.identification.logs.columns import apply_file_units, extra_columns, match_columns
from torchsko.identification.logs.csv_file import Table, joint_as_value, read_csv
from torchsko.identification.logs.ros_bag import read_bag
from torchsko.identification.logs.units import Units, to_si

Array = NDArray[np.floating[Any]]


def load_fields(
    path: Path,
    joints: tuple[str, ...],
    units: Units,
    columns: Mapping[str, Sequence[str]] | str,
    rate: float | None = None,
) -> dict[str, Any]:
    """The arguments t, q, tau, qd, name and others of the `Log` of a file; see `Log.load`.

    Args:
        path: of the file.
        joints: names of the columns, in the robot's order.
        units: declared by the user.
        columns: names of columns by quantity, or the layout of a file without a header.
        rate: sampling rate of a file without times [Hz].

    Raises:
        FitError: if a quantity is missing.
    """
    layout, chosen = (columns, {}) if isinstance(columns, str) else (None, columns)
    table = apply_file_units(path, read_table(path, layout, joints), joints, units)
    arrays = match_columns(path, table, joints, chosen, units, rate=rate)
    if absent := [name for name in units if name not in arrays]:
        raise FitError(
            f"a unit is given for {absent[0]!r}, which the log does not have.",
            f"It has {', '.join(sorted(arrays))}.",
            "Remove this unit.",
        )
    arrays = {name: to_si(name, x, units.get(name), joints) for name, x in arrays.items()}
    others = extra_columns(table.columns, joints, units)
    return {**arrays, "name": path.name, "others": others}


def read_table(path: Path, layout: str | None = None, joints: Sequence[str] = ()) -> Table:
    """Read a CSV or NPZ file, or a ROS 2 bag.

    Args:
        path: a file, or the folder of a ROS 2 bag.
        layout: columns of a CSV file without a header, see `csv_file.expand_layout`.
        joints: names in the robot's order; of the messages of a bag, those with most of these are read.

    Raises:
        FitError: if there is no such file, its format is unknown, or it is invalid; names the line.
        MissingExtraError: for bags, if their reader is not installed.
    """
    if layout is not None and path.suffix.lower() not in (".csv", ".txt"):
        raise FitError(
            f"{path}: a list of all columns is given.",
            "Only CSV files without a header need one.",
            'Select columns by name, columns={"q": ["a", "b"]} or --column q=a,b.',
        )
    readers: dict[str, Callable[[], Table]] = {
        ".csv": lambda: read_csv(path, layout, joints),
        ".txt": lambda: read_csv(path, layout, joints),
        ".npz": lambda: _read_npz(path, joints),
        ".mcap": lambda: Table(read_bag(path, joints), {}),
        ".db3": lambda: Table(read_bag(path, joints), {}),
    }
    is_bag = (path / "metadata.yaml").is_file()
    reader = readers.get(".mcap" if is_bag else path.suffix.lower())
    if reader is None:
        raise FitError(
            f"{path}: the file name has no known extension.",
            "A log is CSV (.csv, .txt), NumPy (.npz) or a ROS 2 bag (.mcap, .db3 or its folder).",
            "Read other files with pandas, and pass arrays: ts.identification.Log(t, q, tau, qd).",
        )
    if not path.exists():
        raise FitError(
            f"{path}: there is no such file.", "A log is read from a file.", "Check the path."
        )
    try:
        return reader()
    except TorchskoError:
        raise
    except (OSError, EOFError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FitError(
            f"{path}: cannot be read: {reason}.",
            f"The content must have the format of the extension, {path.suffix}.",
            "Check that the file is complete, or make a ts.identification.Log from arrays.",
        ) from error


def _read_npz(path: Path, joints: Sequence[str]) -> Table:
    """Read the arrays of an NPZ file, whose columns are in the robot's order.

    Raises:
        FitError: if an array contains names of joints in another order.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not an archive of numpy.savez")
    columns: dict[str, Array] = {}
    invalid: dict[str, str] = {}
    with np.load(path, allow_pickle=False) as data:
        for name in data.files:
            try:
                x = np.asarray(data[name])
            except ValueError as error:
                if "allow_pickle" not in str(error):
                    raise
                invalid[name] = "Python objects"
                continue
            columns[name] = x
            if x.dtype.kind not in "fiub":
                invalid[name] = f"values of type {x.dtype}"
            texts = [str(y) for y in x.flat] if x.dtype.kind == "U" else []
            order = prefixed_joints(set(texts), joints)
            known = [order.get(y, match_joint(y, joints)) for y in texts]
            if any(known) and known != [*joints]:
                raise joint_as_value(path, name, texts[0])
    return Table(columns, invalid)
