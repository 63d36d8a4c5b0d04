"""Dense linear algebra as single instructions of a program: blocks of matrices in rolled loops.

Spelled out in scalars, a factorization of 36 rows is 16 000 instructions, which run at the speed of the
instruction fetch and compile for half a minute. A block is one instruction on arrays of the scratch memory
(`native/dense.hpp`). In a program it is a loop of one iteration without carry: the *variable* matrix is its
streamed input, the *fixed* matrix, which several blocks may share, its invariant input, and the result its
stacked output. Matrices are stored by rows, triangles as *packed* rows of the lower half, *sparse* matrices
without their zeros, by groups of rows with entries in the same columns.

================= =============== ================ =============================================
kind              variable        fixed            result
================= =============== ================ =============================================
ldl               A packed                         L D L* = A, packed: L below the diagonal, D
                                                   on it
cholesky          A packed                         L L* = A, packed
lu                A                                L and U in one matrix, then the order of rows
reorder           B               order            rows of B in this order; ``reorder_back`` is
                                                   the inverse
forward           B               L packed         X with L X = B
backward          B               L packed         X with L* X = B
product           B               A                A B; ``adjoint_product`` stores A by columns
qr                A                                reflections of A = Q R below the diagonal, R
                                                   on and above it, then their factors
fit               B               result of ``qr`` X that minimizes |A X - B|
lift              Y               result of ``qr`` A (A* A)^-1 Y
store             x                                x in consecutive memory, for other operations
symmetric         x               A packed         A x
sparse            x               A sparse         A x; ``sparse_adjoint`` A* x
gram              weights w       A sparse         A* w A + ``shift``, packed; with ``adds`` the
                                                   packed matrix behind A is added
sparse_forward    A sparse        L packed         X with L X = A*
================= =============== ================ =============================================

Reference: G. Golub, C. Van Loan, *Matrix Computations*, 4th edition, algorithms 3.4.1, 4.1.2, 4.2.1 and
5.2.1.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DenseBlock:
    """One operation on dense matrices.

    Attributes:
        kind: its name in the table of this module.
        rows: rows of the matrix A or L; columns of a sparse A; scalars in ``store``.
        inner: rows of a sparse A; columns of A in ``product``, ``adjoint_product``, ``qr``, ``fit`` and
            ``lift``; else 0.
        columns: columns of B, else 0.
        unit: whether the diagonal of L is one in ``forward`` and ``backward``, whatever is stored there.
        least: in ``ldl``, the largest ratio of a pivot to the diagonal entry of A for which that entry
            replaces the pivot; below 0 no pivot is replaced.
        groups: of a sparse matrix, the columns of the entries and the rows of each group.
        shift: in ``gram``, added to the diagonal.
        adds: in ``gram``, whether a matrix is added.
    """

    kind: str
    rows: int
    inner: int = 0
    columns: int = 0
    unit: bool = False
    least: float = -1.0
    groups: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    shift: float = 0.0
    adds: bool = False

    @property
    def num_entries(self) -> int:
        """Number of stored entries of a sparse matrix."""
        return sum(len(columns) * len(rows) for columns, rows in self.groups)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of scalars of the variable matrix, the fixed matrix and the result."""
        n, k, c = self.rows, self.inner, self.columns
        packed, entries = n * (n + 1) // 2, self.num_entries
        return {
            "ldl": (packed, 0, packed),
            "cholesky": (packed, 0, packed),
            "lu": (n * n, 0, n * n + n),
            "forward": (n * c, packed, n * c),
            "backward": (n * c, packed, n * c),
            "reorder": (n * c, n, n * c),
            "reorder_back": (n * c, n, n * c),
            "product": (k * c, n * k, n * c),
            "adjoint_product": (k * c, n * k, n * c),
            "gram": (k, entries + packed * self.adds, packed),
            "store": (n, 0, n),
            "symmetric": (n, packed, n),
            "sparse": (n, entries, k),
            "sparse_adjoint": (k, entries, n),
            "sparse_forward": (entries, packed, n * k),
            "qr": (n * k, 0, n * k + k),
            "fit": (n * c, n * k + k, k * c),
            "lift": (k * c, n * k + k, n * c),
        }[self.kind]

    @property
    def cost(self) -> int:
        """Time for one vector of samples, in additions."""
        n, k, c = self.rows, self.inner, self.columns
        products = {
            "ldl": n**3 // 6,
            "cholesky": n**3 // 6,
            "lu": n**3,
            "forward": n * n * c // 2,
            "backward": n * n * c // 2,
            "reorder": n * n * c,
            "reorder_back": n * n * c,
            "product": n * k * c,
            "adjoint_product": n * k * c,
            "gram": sum(len(x) ** 2 * len(y) // 2 for x, y in self.groups),
            "store": 0,
            "symmetric": n * n,
            "sparse": self.num_entries,
            "sparse_adjoint": self.num_entries,
            "sparse_forward": n * n * k // 2,
            "qr": 2 * n * k * k,
            "fit": 2 * n * k * c,
            "lift": 2 * n * k * c,
        }
        return products[self.kind] + sum(self.sizes)
