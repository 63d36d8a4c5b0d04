"""Reader of the matrices that CalculiX stores as text.

A step ``*FREQUENCY, SOLVER=MATRIXSTORAGE`` of ``job.inp`` writes three files beside it: ``job.sti`` and
``job.mas`` have a line "row column value" for each entry of one triangle of the stiffness and mass matrix,
and ``job.dof`` has a line "node.direction" for each row. Positions and sets of nodes are those of the input
file, which may include files of its folder. Files are untrusted: sizes are bounded, and errors name the line.

Source of the format: G. Dhondt, *CalculiX CrunchiX user's manual*, sections *FREQUENCY, *NODE, *NSET.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from torchsko.errors import RobotFileError
from torchsko.io.common.numbers import number
from torchsko.io.common.source import naming
from torchsko.io.finite_elements.finite_element_model import FiniteElementModel

MAX_FILE_BYTES = 512 * 2**20
"""Largest size of a file."""

MAX_ROWS = 12_000
"""Largest number of rows, whose dense matrices have 1.2 GB each."""

MAX_NODES = 2_000_000
"""Largest number of nodes in a file or a set."""

MATRICES = {"stiffness": ".sti", "mass": ".mas"}
"""Ending of the file of each matrix."""


def load_finite_elements(path: str | os.PathLike[str]) -> FiniteElementModel:
    r"""Load the matrices, positions and node sets of a CalculiX model.

    The input file ends with a step ``*FREQUENCY, SOLVER=MATRIXSTORAGE``; after CalculiX has run, the files
    ``.sti``, ``.mas`` and ``.dof`` stand beside it. It needs no boundary conditions, because the root of a
    flexible body holds nodes. Use consistent units: m, kg, s, N.

    Args:
        path: input file of CalculiX, ``job.inp``.

    Raises:
        RobotFileError: if a file is missing, too large or malformed, a node has no position or not three
            displacements, or a file outside of the folder is included. The message names file and line.

    Example:
        >>> import tempfile, pathlib, torchsko as ts
        >>> job = pathlib.Path(tempfile.mkdtemp()) / "job.inp"
        >>> _ = job.write_text("*NODE, NSET=ALL\n1, 0, 0, 0\n2, 0, 0, 0.5\n")
        >>> _ = job.with_suffix(".dof").write_text("".join(f"{n}.{i}\n" for n in (1, 2) for i in (1, 2, 3)))
        >>> for ending in (".sti", ".mas"):
        ...     text = "".join(f"{k} {k} 2.0\n" for k in range(1, 7))
        ...     _ = job.with_suffix(ending).write_text(text)
        >>> model = ts.load_finite_elements(job)
        >>> model.mass.shape, model.indices("all")
        ((6, 6), [0, 1])
    """
    path = Path(path)
    deck = _Deck(path.resolve().parent)
    with naming(path):
        deck.read(path)
    files = {name: path.with_suffix(ending) for name, ending in MATRICES.items()}
    with naming(path.with_suffix(".dof")):
        rows = _rows(path.with_suffix(".dof"))
        order, nodes = _order(rows)
        missing = [node for node in nodes if node not in deck.positions]
        if missing:
            raise RobotFileError(
                f"node {missing[0]} has no position in {path.name}.",
                "CalculiX expands shells and beams to solids with nodes of their own.",
                "Mesh the body by solid elements.",
            )
    matrices = {}
    for name, file in files.items():
        with naming(file):
            matrices[name] = _matrix(file, len(rows))[np.ix_(order, order)]
    positions = np.array([deck.positions[node] for node in nodes])
    sets = {name: tuple(dict.fromkeys(numbers)) for name, numbers in deck.sets.items()}
    return FiniteElementModel(matrices["mass"], matrices["stiffness"], positions, nodes, sets)


@dataclass
class _Deck:
    """Positions and sets of nodes of an input file."""

    folder: Path
    positions: dict[int, tuple[float, ...]] = field(default_factory=dict)
    sets: dict[str, list[int]] = field(default_factory=dict)

    def read(self, path: Path, depth: int = 0) -> None:
        """Read a file, and those that it includes."""
        card, options = "", {}
        for line, text in _lines(path):
            words = [word.strip() for word in text.split(",")]
            if text.startswith("**") or not text:
                continue
            if text.startswith("*"):
                card, options = words[0].upper(), _options(words[1:])
                if card == "*INCLUDE":
                    self._include(options.get("INPUT", ""), line, depth)
            elif card == "*NODE":
                self._node(words, options.get("NSET", "").upper(), line)
            elif card == "*NSET":
                self._set(words, options, line)

    def _include(self, name: str, line: int, depth: int) -> None:
        target = (self.folder / name).resolve()
        if not name or target.parent != self.folder or depth:
            raise RobotFileError(
                f"line {line}: *INCLUDE of {name!r}.",
                "A file may include files of its own folder. Included files include no others.",
                "Copy the file into that folder, or insert its text.",
            )
        self.read(target, depth + 1)

    def _node(self, words: list[str], name: str, line: int) -> None:
        node = _integer(words[0], line)
        values = [number(word, f"line {line}: a coordinate") for word in words[1:4] if word]
        self.positions[node] = (*values, *[0.0] * (3 - len(values)))
        if name:
            self.sets.setdefault(name, []).append(node)
        if len(self.positions) > MAX_NODES:
            raise _too_large(f"line {line}: there are more than {MAX_NODES} nodes.")

    def _set(self, words: list[str], options: dict[str, str], line: int) -> None:
        members = self.sets.setdefault(options.get("NSET", "").upper(), [])
        words = [word for word in words if word]
        if "GENERATE" in options:
            members += self._range([_integer(word, line) for word in words], len(members), line)
            return
        for word in words:
            members += self.sets.get(word.upper()) or [_integer(word, line)]
        if len(members) > MAX_NODES:
            raise _too_large(f"line {line}: a set has more than {MAX_NODES} nodes.")

    @staticmethod
    def _range(numbers: list[int], count: int, line: int) -> range:
        """Numbers of a generated set that has `count` nodes so far."""
        if len(numbers) not in (2, 3) or numbers[2:] == [0]:
            raise RobotFileError(
                f"line {line}: {numbers} is no range of a set.",
                "A generated set has the first and the last node, and a positive step.",
                "Correct that line.",
            )
        first, last, *step = numbers
        found = range(first, last + 1, *step or (1,))
        if len(found) + count > MAX_NODES:
            raise _too_large(f"line {line}: a set has more than {MAX_NODES} nodes.")
        return found


def _options(words: list[str]) -> dict[str, str]:
    """Parameters of a card, by upper-case name."""
    pairs = (word.partition("=") for word in words)
    return {name.strip().upper(): value.strip() for name, _, value in pairs}


def _rows(path: Path) -> list[tuple[int, int]]:
    """Node and direction, 1 to 3, of each row."""
    rows = []
    for line, text in _lines(path):
        node, _, direction = text.partition(".")
        if direction not in ("1", "2", "3"):
            raise RobotFileError(
                f"line {line}: {text!r} is not a displacement of a node.",
                "Rows are node.direction, with the directions 1, 2 and 3.",
                "Leave rotations and temperatures out of the model.",
            )
        rows.append((_integer(node, line), int(direction)))
        if len(rows) > MAX_ROWS:
            raise _too_large(f"line {line}: there are more than {MAX_ROWS} rows.")
    return rows


def _order(rows: list[tuple[int, int]]) -> tuple[list[int], tuple[int, ...]]:
    """Rows ordered by node and direction, and the nodes."""
    place = {row: i for i, row in enumerate(rows)}
    nodes = tuple(sorted({node for node, _ in rows}))
    for row in ((node, direction) for node in nodes for direction in (1, 2, 3)):
        if row not in place:
            raise RobotFileError(
                f"node {row[0]} has no row of direction {row[1]}.",
                "Boundary conditions and constraint equations remove rows.",
                "Leave them out of the file: the root holds nodes of a flexible body.",
            )
    if len(place) < len(rows) or not rows:
        raise RobotFileError(
            f"the file has {len(rows)} rows, of which {len(place)} differ.",
            "Each displacement of a node has one row.",
            "Run CalculiX again.",
        )
    return [place[node, direction] for node in nodes for direction in (1, 2, 3)], nodes


def _matrix(path: Path, size: int) -> np.ndarray:
    """A symmetric matrix, of which the file has one triangle."""
    A = np.zeros((size, size))
    for line, text in _lines(path):
        words = text.split()
        if len(words) != 3:
            raise RobotFileError(
                f"line {line}: {text[:80]!r} is no entry of a matrix.",
                "Each line has a row, a column and a value.",
                "Run CalculiX again.",
            )
        i, j = (_integer(word, line) for word in words[:2])
        if not (0 < i <= size and 0 < j <= size):
            raise RobotFileError(
                f"line {line}: row {i} and column {j} are outside of the matrix.",
                f"The .dof file has {size} rows.",
                "Run CalculiX again, so that all files are those of one run.",
            )
        A[i - 1, j - 1] = A[j - 1, i - 1] = number(words[2], f"line {line}: the value")
    return A


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbers and text of lines."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
                raise _too_large(f"it is no regular file of at most {MAX_FILE_BYTES >> 20} MiB.")
            for line, text in enumerate(file, start=1):
                yield line, text.strip()
    except OSError as error:
        raise RobotFileError(
            f"it cannot be read: {error.strerror}.",
            "CalculiX writes .sti, .mas and .dof beside the input file.",
            "Run CalculiX with *FREQUENCY, SOLVER=MATRIXSTORAGE as the last step.",
        ) from error


def _integer(word: str, line: int) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 12):
        raise RobotFileError(
            f"line {line}: {word[:80]!r} is not the number of a node or row.",
            "Numbers of nodes and rows are positive integers; names of sets stand before their use.",
            "Correct that line.",
        )
    return int(word)


def _too_large(what: str) -> RobotFileError:
    return RobotFileError(
        what,
        "Matrices are computed as dense ones.",
        "Reduce the model: a coarser mesh, or a superelement.",
    )
