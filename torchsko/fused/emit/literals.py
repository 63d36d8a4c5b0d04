"""Constants as text of C++ and CUDA."""

from __future__ import annotations

import math
import struct


def literal(x: float, bits: int) -> str:
    """A constant as hexadecimal text, exact in double precision and rounded once in single precision."""
    if math.isnan(x):
        return "NOT_A_NUMBER"
    if bits == 32:
        try:
            x = struct.unpack("f", struct.pack("f", x))[0]
        except OverflowError:
            x = math.copysign(math.inf, x)
    if math.isinf(x):
        return "-INFINITE" if x < 0 else "INFINITE"
    return x.hex() + ("f" if bits == 32 else "")
