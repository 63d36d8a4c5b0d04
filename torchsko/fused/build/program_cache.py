"""Traced programs on disk, so that a kernel from the cache needs no tracing either.

Only functions that this package can name completely are kept: its own verbs of a mechanism. The key
holds all that a trace depends on: the mechanism, bit for bit, the verb, and the package's source.
"""

from __future__ import annotations

import hashlib
import marshal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import torch
from torch import Tensor

from torchsko.fused.build.libraries import read_cached, write_cached
from torchsko.fused.program.program import Instr, Loop, Port, Program
from torchsko.mechanism.geometry import NO_SHAPES
from torchsko.mechanism.mechanism import Mechanism


def identity_of(mech: Mechanism, *choices: object) -> str | None:
    """A digest of a mechanism, of choices made for it and of the package's source.

    Returns:
        None where something has no faithful text; nothing is saved then.
    """
    total = hashlib.sha256()
    try:
        # No program depends on how a robot looks, or was made.
        bare = mech.replace(geometry=NO_SHAPES, replaced=())
        for part in _texts((bare, choices, torch.__version__, sys.version)):
            total.update(part)
            total.update(b";")
    except TypeError:
        return None
    root = Path(__file__).parents[2]
    for source in sorted(root.rglob("*.py")):
        total.update(hashlib.sha256(source.read_bytes()).digest())
    return total.hexdigest()


def digest(*parts: object) -> str:
    """A digest of objects with a faithful ``repr``."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _texts(x: object) -> Iterator[bytes]:
    """All that an object of frozen dataclasses, tuples and tensors is made of."""
    yield type(x).__qualname__.encode()
    if isinstance(x, Tensor):
        yield repr((x.dtype, tuple(x.shape))).encode()
        yield x.detach().cpu().contiguous().numpy().tobytes()
    elif is_dataclass(x):
        if not type(x).__module__.startswith("torchsko."):
            raise TypeError  # a joint of the user's own: its source is not in the digest
        for field in fields(x):
            yield from _texts(getattr(x, field.name))
    elif isinstance(x, (tuple, list)):
        yield str(len(x)).encode()
        for part in x:
            yield from _texts(part)
    elif x is None or isinstance(x, (bool, int, float, str)):
        yield repr(x).encode()
    else:
        raise TypeError


def load_ports(identity: str) -> tuple[Port, ...] | None:
    """The output ports of the program saved under an identity, or None."""
    content = read_cached(f"{identity}.ports")
    return None if content is None else _ports(marshal.loads(content))


def load_program(identity: str) -> Program | None:
    """The program saved under an identity, or None."""
    content = read_cached(f"{identity}.program")
    if content is None:
        return None
    return _program(marshal.loads(content))


def _program(content: tuple) -> Program:
    inputs, outputs, code, constants, results, loops = content
    return Program(
        _ports(inputs),
        _ports(outputs),
        tuple(map(Instr._make, code)),
        constants,
        results,
        tuple(Loop(_program(inner), *rest) for inner, *rest in loops),
    )


def _content(program: Program) -> tuple:
    """A program as nested tuples; `_program` reads them."""
    inputs, outputs = (
        tuple((p.name, p.shape, p.shared) for p in ports)
        for ports in (program.inputs, program.outputs)
    )
    code = tuple((op, args) for op, args in program.code)
    loops = tuple(
        (_content(loop.program), *(getattr(loop, field.name) for field in fields(loop)[1:]))
        for loop in program.loops
    )
    return inputs, outputs, code, program.constants, program.results, loops


def save_program(identity: str, program: Program) -> None:
    """Keep a program, and its output ports by themselves; without a writable cache nothing happens."""
    content = _content(program)
    write_cached(f"{identity}.program", marshal.dumps(content))
    write_cached(f"{identity}.ports", marshal.dumps(content[1]))


def _ports(ports: Iterable[tuple[str, tuple[int, ...], bool]]) -> tuple[Port, ...]:
    return tuple(Port(*port) for port in ports)
