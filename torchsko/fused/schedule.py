"""Order a scalar program for few live values and split it into functions of bounded size.

A compiler's time grows faster than the size of a function, and a straight-line program of ten
thousand operations spills whatever it does. So the program is cut into chunks of a few hundred
operations, each a function of its own; values that cross a cut travel through numbered slots of a
scratch array (one vector of samples a slot), as in any linear-scan register allocator.

Rules that a code generator can rely on:

* Inputs and constants are read where they are needed: they appear in ``instrs`` of every chunk that
  reads them and never occupy a slot.
* Every value that an instruction reads is, in that chunk, either loaded or computed before.
* Within one chunk no slot is both loaded and stored, so loads and stores may be printed anywhere
  between the ends of the chunk; a load is best printed just before its first reader (``loads`` is
  listed in that order) and a store just after its value.
* Output scalars are written in the chunk that computes them (``outputs``).
"""

from __future__ import annotations

from dataclasses import dataclass

from torchsko.fused.program import Program


@dataclass(frozen=True)
class Chunk:
    """One function of the generated source.

    Attributes:
        loads: pairs (value, slot) read from scratch, in order of first use.
        instrs: numbers of the values computed here, in order; ``const`` and ``input`` included.
        stores: pairs (value, slot) written to scratch, in order of computation.
        outputs: pairs (output scalar, value): positions in ``Program.results`` written here.
    """

    loads: tuple[tuple[int, int], ...]
    instrs: tuple[int, ...]
    stores: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Schedule:
    """A program with the order and the cuts in which it is to be printed.

    Attributes:
        program: the program.
        order: all arithmetic values in order of computation (no ``const``, no ``input``).
        chunks: the functions, in calling order.
        num_slots: size of the scratch array, in vectors.
    """

    program: Program
    order: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    num_slots: int
