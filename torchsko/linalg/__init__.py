"""Small dense linear algebra that traces to scalars: symmetric blocks, elimination without pivots."""
