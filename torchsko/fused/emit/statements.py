"""Statements of chunks, one for each instruction, in the common subset of C++ and CUDA."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from torchsko.fused.emit.literals import literal
from torchsko.fused.emit.loop_source import function_name
from torchsko.fused.layout.schedule import COPIED, Chunk, Schedule

# All other operations call the function `v<name>` of native/vector.hpp.
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_FREE = ("const", "input")
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def chunk_lines(
    scheduled: Schedule,
    chunk: Chunk,
    bits: int,
    name: str = "",
    location: Callable[[int], str] = "in[{}]".format,
    written: Callable[[int, str], str] = "out[{}] = {};".format,
) -> Iterator[str]:
    """The statements of one chunk, with each load before its first reader and each store after its value.

    Args:
        scheduled: the program.
        chunk: one of its functions.
        bits: bits of its scalars.
        name: name of the program; the names of its loops begin with it.
        location: where an input of the program is read.
        written: the statement that writes an output of the program.
    """
    blocks = list(_blocks(scheduled, chunk))
    text = _ChunkText(scheduled, chunk, blocks, bits, name, location, written)
    for block in blocks:
        yield from text.statements(block)


Block = tuple[int | None, list[int]]
"""A condition or None, and the values that are computed if it holds in any lane."""


def _blocks(scheduled: Schedule, chunk: Chunk) -> Iterator[Block]:
    """Consecutive values of equal conditions; inputs and constants stand before their first reader."""
    free: list[int] = []
    block: Block | None = None
    for value in chunk.instrs:
        free.append(value)
        if scheduled.program.code[value].op in ("const", "input"):
            continue
        condition = scheduled.conditions.get(value)
        if block is not None and block[0] == condition:
            block[1].extend(free)
        else:
            if block is not None:
                yield block
            block = condition, free
        free = []
    if block is not None:
        yield block
    if free:
        yield None, free


class _ChunkText:
    """Prints a chunk; the arguments are those of `chunk_lines`."""

    def __init__(
        self,
        scheduled: Schedule,
        chunk: Chunk,
        blocks: Sequence[Block],
        bits: int,
        name: str,
        location: Callable[[int], str],
        written: Callable[[int, str], str],
    ) -> None:
        self._scheduled, self._bits, self._name, self._location = scheduled, bits, name, location
        self._program, self._loads = scheduled.program, dict(chunk.loads)
        self._stores = _stores(scheduled, chunk, written)
        self._pairs = _sine_cosine_pairs(scheduled, blocks)
        self._num_reads = Counter(
            x
            for value in chunk.instrs
            for x in self._program.operands(value)
            if self._program.code[value].op != "loop"
        )
        self._num_reads.update(value for _, value in chunk.outputs)
        self._num_reads.update(condition for condition, _ in blocks if condition is not None)
        self._printed: set[int] = set()
        self._declared: set[int] = set()

    def statements(self, block: Block) -> Iterator[str]:
        """The statements of a block."""
        condition, values = block
        if condition is None:
            for value in values:
                yield from self._lines(value)
            return
        reads = Counter(x for value in values for x in self._program.operands(value))
        is_shared = {x: self._num_reads[x] > reads[x] for x in (*reads, *values)}
        for x in (condition, *(x for x in reads if x in self._loads and is_shared[x])):
            yield from self._load(x)
        free = [x for x in values if self._program.code[x].op in ("const", "input")]
        for x in free:
            if is_shared[x]:
                yield from self._lines(x)
        self._declared = {x for x in values if is_shared[x] and x not in self._printed}
        if self._declared:
            yield f"V {', '.join(f'v{x} = splat(0)' for x in sorted(self._declared))};"
        yield f"if (in_any_lane(v{condition} != 0)) {{"
        for x in values:
            yield from self._lines(x)
        yield "}"

    def _load(self, x: int) -> Iterator[str]:
        """The load of a value of an earlier chunk, before its first reader."""
        if x in self._loads and x not in self._printed:
            self._printed.add(x)
            yield f"const V v{x} = s[{self._loads[x]}];"

    def _lines(self, value: int) -> Iterator[str]:
        """The statements of one value, with the loads of its operands and its stores."""
        if value in self._printed:
            return
        op, args = self._program.code[value]
        if op == "loop":
            yield from self._copied_arguments(value)
            yield from _loop_lines(self._scheduled, value, self._name, self._location)
            return  # its outputs are in the scratch array already
        is_unread = not self._num_reads[value] and not [*self._stores(value)]
        if is_unread and op in ("const", "input", "part"):
            return  # loops read it where it is, or copy it
        if op in ("const", "input", "part"):
            text = self._source(op, args[0], value)
        else:
            for x in args:
                yield from self._load(x)
            if value in self._pairs:
                yield from self._sine_and_cosine(value)
                return
            text = _expression(op, [f"v{x}" for x in args])
        self._printed.add(value)
        yield f"{'' if value in self._declared else 'const V '}v{value} = {text};"
        yield from self._stores(value)

    def _copied_arguments(self, loop: int) -> Iterator[str]:
        """Copies of values that a loop reads, those of consecutive slots by one statement."""
        copies: list[
            tuple[int, int, str, int]
        ] = []  # first slot, number, array or constant, first place
        for x, slot in self._scheduled.slots_of_arguments(loop):
            op, args = self._program.code[x]
            if op not in COPIED:
                continue
            source = self._source(op, args[0], x)
            array, _, place = source.removesuffix("]").rpartition("[")
            is_array = op != "const" and source == f"{array}[{place}]"
            is_array = is_array and place.lstrip("-").isdecimal()
            name, at = (array, int(place)) if is_array else (source, -1)
            if copies:
                first, count, last_name, start = copies[-1]
                follows = at == start + count if is_array else start == -1
                if slot == first + count and name == last_name and follows:
                    copies[-1] = first, count + 1, name, start
                    continue
            copies.append((slot, 1, name, at if is_array else -1))
        for slot, count, name, start in copies:
            source = name if start == -1 else f"{name}[{start} + i]"
            if count == 1:
                yield f"s[{slot}] = {name if start == -1 else f'{name}[{start}]'};"
            else:
                yield f"for (int i = 0; i < {count}; ++i) s[{slot} + i] = {source};"

    def _source(self, op: str, index: int, value: int) -> str:
        """A constant, an input or an output of a loop."""
        if op == "const":
            return f"splat({literal(self._program.constants[index], self._bits)})"
        if op == "input":
            return self._location(index)
        return f"s[{self._scheduled.slot_of_part(value)}]"

    def _sine_and_cosine(self, value: int) -> Iterator[str]:
        """The statements of a sine and a cosine of one argument."""
        pair = self._pairs[value]
        (x,) = self._program.operands(value)
        if new := [f"v{y}" for y in pair if y not in self._declared]:
            yield f"V {', '.join(new)};"
        yield f"vsincos(v{x}, &v{pair[0]}, &v{pair[1]});"
        self._printed.update(pair)
        for y in pair:
            yield from self._stores(y)


def _loop_lines(
    scheduled: Schedule, value: int, name: str, location: Callable[[int], str]
) -> Iterator[str]:
    """The call of the function of a loop."""
    region, invariant = scheduled.regions[value][0], scheduled.invariant_slots[value]
    if scheduled.sources[value].variable is not None:  # the region begins with the result
        region += scheduled.program.loop_of(value).num_variable
    slots = [f"s + {region}", f"s + {invariant}", f"s + {scheduled.work_slots[value]}"]
    pointers = []
    for source in scheduled.sources[value].pointers:
        slot = scheduled.slot_of_source(value, source)
        pointers.append(f"&{location(source.first)}" if slot is None else f"s + {slot}")
    if value in scheduled.lists:
        rows = scheduled.lists[value]
        slots.append(f"(const int*)(s + {rows.slot})")
        if rows.is_new:
            guard = next(x for x in scheduled.sources[value].arrays[0] if 0 in x.columns)
            array = pointers[scheduled.sources[value].pointers.index(guard)]
            first = f"{array} + {guard.offsets[guard.columns.index(0)]}"
            count = scheduled.program.loop_of(value).count
            given = f"{first}, {guard.stride}, {count}, (int*)(s + {rows.slot})"
            if rows.flag is None:
                yield f"list_active_rows({given});"
            else:
                yield f"list_unfinished_rows({given}, {location(rows.flag)});"
    slots += pointers
    yield f"{function_name(name, value)}({', '.join(slots)});"


def _stores(
    scheduled: Schedule, chunk: Chunk, written: Callable[[int, str], str]
) -> Callable[[int], Iterator[str]]:
    """The statements that store a value of a chunk to its slots and outputs."""
    slots = dict(chunk.stores)
    outputs: dict[int, list[int]] = {}
    for scalar, value in chunk.outputs:
        outputs.setdefault(value, []).append(scalar)

    def stores(value: int) -> Iterator[str]:
        if value in slots:
            yield f"s[{slots[value]}] = v{value};"
        for slot in scheduled.loop_slots.get(value, ()):
            yield f"s[{slot}] = v{value};"
        for scalar in outputs.get(value, ()):
            yield written(scalar, f"v{value}")

    return stores


def _sine_cosine_pairs(scheduled: Schedule, blocks: Sequence[Block]) -> dict[int, tuple[int, int]]:
    """Pairs (sine, cosine) of one argument in one block, keyed by both values."""
    pairs: dict[int, tuple[int, int]] = {}
    for _, values in blocks:
        value_of: dict[tuple[str, int], int] = {}
        for value in values:
            op, args = scheduled.program.code[value]
            if op in ("sin", "cos"):
                value_of[op, args[0]] = value
        for (op, x), sine in value_of.items():
            if op == "sin" and ("cos", x) in value_of:
                cosine = value_of["cos", x]
                pairs[sine] = pairs[cosine] = (sine, cosine)
    return pairs


def _expression(op: str, args: list[str]) -> str:
    if op in _INFIX:
        return f"{args[0]} {_INFIX[op]} {args[1]}"
    if op in _COMPARE:
        return f"truth({args[0]} {_COMPARE[op]} {args[1]})"
    if op == "where":
        return f"select({args[0]} != 0, {args[1]}, {args[2]})"
    if op in ("neg", "rare"):
        return f"-{args[0]}" if op == "neg" else args[0]
    if op == "recip":
        return f"1 / {args[0]}"
    return f"v{op}({', '.join(args)})"
