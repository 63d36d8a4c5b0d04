"""Mass and stiffness matrices of a beam and of a block, as a finite-element program has them."""

import numpy as np

Model = tuple[np.ndarray, np.ndarray, np.ndarray]


def cantilever(
    count: int = 40, *, rho: float = 1.0, EA: float = 1e4, GJ: float = 1.0, polar: float = 1e-3
) -> Model:
    """Matrices and node positions of Euler-Bernoulli elements along x, consistent mass, length and EI 1."""
    h = 1.0 / count
    bend = np.array([[12, 6 * h, -12, 6 * h], [6 * h, 4 * h**2, -6 * h, 2 * h**2],
                     [-12, -6 * h, 12, -6 * h], [6 * h, 2 * h**2, -6 * h, 4 * h**2]]) / h**3  # fmt: skip
    inert = np.array([[156, 22 * h, 54, -13 * h], [22 * h, 4 * h**2, 13 * h, -3 * h**2],
                      [54, 13 * h, 156, -22 * h], [-13 * h, -3 * h**2, -22 * h, 4 * h**2]])  # fmt: skip
    M, K = np.zeros((2, 6 * (count + 1), 6 * (count + 1)))
    for start in range(0, 6 * count, 6):
        for rows, sign in (((1, 5, 7, 11), 1.0), ((2, 4, 8, 10), -1.0)):
            at, flip = np.ix_(*[start + np.array(rows)] * 2), np.array([1, sign, 1, sign])
            M[at] += rho * h / 420 * inert * np.outer(flip, flip)
            K[at] += bend * np.outer(flip, flip)
        for rows, density, stiffness in (((0, 6), rho, EA), ((3, 9), polar, GJ)):
            at = np.ix_(*[start + np.array(rows)] * 2)
            M[at] += density * h / 6 * np.array([[2, 1], [1, 2]])
            K[at] += stiffness / h * np.array([[1, -1], [-1, 1]])
    x = np.linspace(0, 1, count + 1)
    return M, K, np.stack([x, 0 * x, 0 * x], -1)


CORNERS = np.array([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])


def block(
    counts: tuple[int, int, int] = (4, 2, 2),
    h: float = 0.1,
    E: float = 1e4,
    moved: np.ndarray | None = None,
) -> Model:
    """Matrices and node positions of cubes with nodes at corners, consistent mass, density 1.

    With displacements, the stiffness is the geometric stiffness of their stress.
    """
    lame, shear = E * 0.3 / (1.3 * 0.4), E / 2.6
    C = np.diag([2 * shear] * 3 + [shear] * 3)
    C[:3, :3] += lame
    grid = np.array(counts) + 1
    positions = h * np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), -1).reshape(-1, 3)
    M, K = np.zeros((2, positions.size, positions.size))
    for cell in np.ndindex(*counts):
        at = np.array(np.ravel_multi_index(tuple((CORNERS + cell).T), tuple(grid)))
        rows = (3 * at[:, None] + np.arange(3)).reshape(-1)
        Me, Ke = _cube(h, C, None if moved is None else moved[rows])
        M[np.ix_(rows, rows)] += Me
        K[np.ix_(rows, rows)] += Ke
    return M, K, positions


def _cube(h: float, C: np.ndarray, moved: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    signs = 2 * CORNERS - 1
    Me, Ke = np.zeros((24, 24)), np.zeros((24, 24))
    for gauss in signs / np.sqrt(3.0):
        terms = 1 + signs * gauss
        N = terms.prod(-1) / 8
        D = np.stack([signs[:, i] * np.delete(terms, i, 1).prod(-1) for i in range(3)]) / (4 * h)
        B = np.zeros((6, 8, 3))
        for i in range(3):
            B[i, :, i] = D[i]
        for row, (i, j) in enumerate(((0, 1), (1, 2), (0, 2)), start=3):
            B[row, :, i], B[row, :, j] = D[j], D[i]
        B = B.reshape(6, 24)
        Me += (h / 2) ** 3 * np.kron(np.outer(N, N), np.eye(3))
        if moved is None:
            Ke += (h / 2) ** 3 * B.T @ C @ B
        else:
            xx, yy, zz, xy, yz, xz = C @ B @ moved
            stress = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
            Ke += (h / 2) ** 3 * np.kron(D.T @ stress @ D, np.eye(3))
    return Me, Ke
