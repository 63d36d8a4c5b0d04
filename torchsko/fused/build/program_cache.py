"""Cache of traced programs on disk, so that a cached kernel needs no tracing.

Programs are cached where everything that their trace depends on is known: the values of the mechanism, the
source of this package, and a verb or a function of this package with what it captures, such as the control
step of an environment. Functions of the user are traced in each process, since they may read anything.
"""

from __future__ import annotations

import hashlib
import marshal
import sys
from collections.abc import Iterable
from dataclasses import astuple, fields, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from torchsko.fused.build.library_cache import read_cached, write_cached
from torchsko.fused.program.dense_block import DenseBlock
from torchsko.fused.program.program import Instr, Loop, Port, Program, RowAccess
from torchsko.fused.tracing.content import digest_of_content
from torchsko.mechanism.geometry import NO_SHAPES
from torchsko.mechanism.mechanism import Mechanism


class Outline(NamedTuple):
    """Parts of a program and its cost, for calls of its kernel.

    Attributes:
        outputs: the output ports.
        stored: see `Program`.
        cost: time for one vector of samples, in additions.
    """

    outputs: tuple[Port, ...]
    stored: tuple[tuple[int, ...], ...]
    cost: int


def identity_of(mech: Mechanism, *choices: object) -> str | None:
    """A digest of a mechanism, of options and of the source of this package.

    Returns:
        The digest; None if an object has no content (`torchsko.fused.tracing.content`), such as a joint type
        or a function of the user.
    """
    # Programs do not depend on shapes, nor on the history of the mechanism.
    bare = mech.replace(geometry=NO_SHAPES, replaced=())
    content = digest_of_content(
        bare, choices, str(torch.__version__), sys.version, known={}, reads_computed=False
    )
    return None if content is None else hashlib.sha256(content + _source_digest()).hexdigest()


@cache  # the imported source does not change within a process, and hashing 430 files takes 30 ms
def _source_digest() -> bytes:
    """Digest of the source of this package."""
    total = hashlib.sha256()
    for source in sorted(Path(__file__).parents[2].rglob("*.py")):
        total.update(hashlib.sha256(source.read_bytes()).digest())
    return total.digest()


def digest(*parts: object) -> str:
    """A digest of objects, by their ``repr``."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def load_outline(identity: str) -> Outline | None:
    """The outline of the program saved under an identity, or None."""
    content = read_cached(f"{identity}.ports")
    if content is None:
        return None
    outputs, stored, cost = marshal.loads(content)
    return Outline(_ports(outputs), stored, cost)


def load_program(identity: str) -> Program | None:
    """The program saved under an identity, or None."""
    content = read_cached(f"{identity}.program")
    if content is None:
        return None
    return _program(marshal.loads(content))


def _program(content: tuple) -> Program:
    inputs, outputs, code, constants, results, loops, block, stored = content
    return Program(
        _ports(inputs),
        _ports(outputs),
        tuple(map(Instr._make, code)),
        constants,
        results,
        tuple(map(_loop, loops)),
        block and DenseBlock(*block),
        stored,
    )


def _loop(content: tuple) -> Loop:
    program, *numbers, reads, writes, guarded = content
    loop = Loop(_program(program), *numbers)
    reads, writes = (tuple(RowAccess(*x) for x in every) for every in (reads, writes))
    return replace(loop, reads=reads, writes=writes, guarded=guarded)


def _content(program: Program) -> tuple:
    """A program as nested tuples, the inverse of `_program`."""
    inputs, outputs = (
        tuple((p.name, p.shape, p.shared) for p in ports)
        for ports in (program.inputs, program.outputs)
    )
    code = tuple((op, args) for op, args in program.code)
    loops = tuple(map(_content_of_loop, program.loops))
    block = program.block and astuple(program.block)
    tables = program.constants, program.results, loops
    return inputs, outputs, code, *tables, block, program.stored


def _content_of_loop(loop: Loop) -> tuple:
    numbers = [getattr(loop, field.name) for field in fields(loop)[1:-3]]
    accesses = (tuple(map(astuple, every)) for every in (loop.reads, loop.writes))
    return _content(loop.program), *numbers, *accesses, loop.guarded


def save_program(identity: str, program: Program, cost: int) -> None:
    """Save a program and, separately, its outline; does nothing if the cache is not writable."""
    content = _content(program)
    write_cached(f"{identity}.program", marshal.dumps(content))
    write_cached(f"{identity}.ports", marshal.dumps((content[1], program.stored, cost)))


def _ports(ports: Iterable[tuple[str, tuple[int, ...], bool]]) -> tuple[Port, ...]:
    return tuple(Port(*port) for port in ports)
