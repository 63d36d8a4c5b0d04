"""How the text of a kernel is laid out for vectors of a width.

Where there are vectors of 64 bytes there are 32 registers of them, twice as many as of shorter ones, and half
as many instructions serve as many samples. What is best for the one is not for the other: functions of a few
hundred operations, each run for some vectors of samples before the next, take a tenth to a fifth of the time
away where vectors have 32 bytes. Their instructions are decoded once for all of these vectors, and while one
vector waits for a result another one is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_CACHE_BYTES = 1 << 19  # a second-level cache of today


@dataclass(frozen=True)
class Layout:
    """What depends on the width of the vectors.

    Attributes:
        whole_ops: programs of at most so many operations are one function.
        function_ops: bound on the operations of a function, of larger ones.
        tiles: how many vectors of samples a function is run for at most, before the next one.
        registers: how many values rounds of products hold in registers.
        sums: how many sums of a round of products grow at once; 0: as many as are written so.
    """

    whole_ops: int
    function_ops: int
    tiles: int
    registers: int
    sums: int

    def tiles_of(self, vectors: int, vector_bytes: int) -> int:
        """How many vectors of samples, if each takes so many vectors of scratch: as many as the cache has."""
        return max(1, min(self.tiles, _CACHE_BYTES // (vectors * vector_bytes)))


def layout_of(vector_bytes: int, *, repeated: bool = False) -> Layout:
    """The layout for vectors of a width; ``repeated``: of a step, which is run for one vector to its end."""
    if vector_bytes == 64:
        return _WIDE
    return replace(_NARROW, whole_ops=_WHOLE, function_ops=_LARGE, tiles=1) if repeated else _NARROW


# Run for one vector of samples, programs of 4000 operations are up to a tenth faster as one function than
# cut, and a humanoid's functions of a thousand some percent faster than of two. Larger ones compile for long.
_WHOLE, _LARGE = 4000, 1000
_WIDE = Layout(whole_ops=_WHOLE, function_ops=_LARGE, tiles=1, registers=28, sums=0)
_NARROW = Layout(whole_ops=250, function_ops=250, tiles=4, registers=13, sums=8)
