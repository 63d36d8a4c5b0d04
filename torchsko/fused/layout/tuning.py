"""Tuning parameters of generated code, by vector width.

With 64-byte vectors there are 32 vector registers, with shorter ones 16, and half as many
instructions process the same samples. For 32-byte vectors, functions of a few hundred operations
that each run for several vectors of samples reduce the time by a tenth to a fifth: instructions are
decoded once for several vectors, and the latency of one vector is hidden by the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_CACHE_BYTES = 1 << 19
"""Size of a typical second-level cache."""


@dataclass(frozen=True)
class Tuning:
    """Parameters of the generated code.

    Attributes:
        max_single_ops: programs of at most this many operations become one function.
        max_function_ops: bound on the operations of each function of a larger program.
        max_tiles: largest number of vectors of samples that a function processes before the next
            function runs.
    """

    max_single_ops: int
    max_function_ops: int
    max_tiles: int

    def num_tiles(self, tile_vectors: int, vector_bytes: int) -> int:
        """The number of tiles of ``tile_vectors`` scratch vectors that fit into the cache."""
        return max(1, min(self.max_tiles, _CACHE_BYTES // (tile_vectors * vector_bytes)))


# For one vector at a time, programs of 4000 operations run up to a tenth faster as one function
# than when split, and a humanoid's functions of 1000 operations a few percent faster than those of
# 2000. Larger functions compile slowly.
_MAX_SINGLE, _MAX_LARGE = 4000, 1000
_WIDE = Tuning(max_single_ops=_MAX_SINGLE, max_function_ops=_MAX_LARGE, max_tiles=1)
_NARROW = Tuning(max_single_ops=250, max_function_ops=250, max_tiles=4)
_NARROW_SCAN = replace(
    _NARROW, max_single_ops=_MAX_SINGLE, max_function_ops=_MAX_LARGE, max_tiles=1
)


def tuning_for(vector_bytes: int, *, is_scan: bool = False) -> Tuning:
    """The parameters for a vector width; a scan runs all steps for one vector of samples before the next."""
    if vector_bytes == 64:
        return _WIDE
    return _NARROW_SCAN if is_scan else _NARROW
