"""Pinocchio's C++ templates, compiled for this machine, one thread for each core.

A VJP is formed in both ways open to a user of Pinocchio: all of d qdd / d (q, v, tau) by
computeABADerivatives, times the cotangent; or mu = M^-1 lambda by Cholesky, times the derivatives of
inverse dynamics (computeRNEADerivatives), which saves the product of matrices inside the former.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import Case, Entry, MissingPeerError, tangent
from torch import Tensor

from peers.conventions import Convention
from peers.native import address, array, build

NAME = "Pinocchio C++"
DEFINES = (
    "-DBOOST_MPL_LIMIT_LIST_SIZE=30",
    "-DBOOST_MPL_LIMIT_VECTOR_SIZE=30",
    "-DBOOST_MPL_CFG_NO_PREPROCESSED_HEADERS",
    "-DBOOST_FUSION_INVOKE_MAX_ARITY=12",
)
"""What the wheel's own CMake target asks of those who include its headers."""

CALLS = (  # verb, name of the variant, number in pinocchio.cpp, world convention
    ("inverse", "", 0, 0),
    ("forward", " (LOCAL)", 1, 0),
    ("forward", " (WORLD)", 1, 1),
    ("mass_matrix", " (LOCAL)", 2, 0),
    ("mass_matrix", " (WORLD)", 2, 1),
    ("forward_vjp", " (ABA derivatives)", 3, 0),
    ("forward_vjp", " (RNEA derivatives)", 4, 0),
)


def library(dtype: torch.dtype, *defines: str) -> ctypes.CDLL:
    """The compiled program, with further definitions for its preprocessor.

    Raises:
        MissingPeerError: headers are missing, or the build failed.
    """
    try:
        import pinocchio
    except ImportError:
        raise MissingPeerError('not installed (pip install ".[bench]" in a clone)') from None
    include = Path(pinocchio.__file__).parents[4] / "include"
    flags = [*DEFINES, f"-DSCALAR={'float' if dtype == torch.float32 else 'double'}"]
    folders = (include, include / "pinocchio" / "deprecated", eigen())
    flags += [*defines, *(f"-I{folder}" for folder in folders)]
    lib = build("pinocchio.cpp", flags, pinocchio.__version__)
    lib.pin_new.restype = ctypes.c_void_p
    lib.pin_delete.argtypes = [ctypes.c_void_p]
    return lib


def eigen() -> Path:
    """Eigen's headers: the system's, or those inside the casadi wheel, which ADAM brings."""
    candidates = [Path("/usr/include/eigen3"), Path("/usr/local/include/eigen3")]
    try:
        import casadi

        candidates.append(Path(casadi.__file__).parent / "include" / "eigen3")
    except ImportError:
        pass
    for folder in candidates:
        if (folder / "Eigen" / "Core").exists():
            return folder
    raise MissingPeerError("no Eigen headers (apt install libeigen3-dev, or pip install casadi)")


class Model:
    """Pinocchio's model of a robot, with work space for every thread."""

    def __init__(self, case: Case, *defines: str) -> None:
        self._lib = library(case.dtype, *defines)
        mech, scalar = case.robot.mech, np.dtype(str(case.dtype).removeprefix("torch."))
        kinds = [
            kind(name, axis)
            for name, axis in zip(mech.joint_kinds, mech.axis.tolist(), strict=True)
        ]
        integers = [np.array(x, dtype=np.int32) for x in (mech.parents, kinds)]
        fields = ("axis", "joint_rotation", "joint_position", "mass", "com", "inertia", "gravity")
        tables = [array(getattr(mech, name)).astype(scalar) for name in fields]
        pointers = [address(x) for x in (*integers, *tables)]
        self._handle = ctypes.c_void_p(self._lib.pin_new(mech.num_bodies, *pointers, case.threads))
        if not self._handle:
            raise MissingPeerError("it refused the model")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.pin_delete(self._handle)

    def call(self, verb: int, world: int, arrays: list[np.ndarray]) -> None:
        """Run over a batch; see pin_run."""
        batch = ctypes.c_long(len(arrays[0]))
        self._lib.pin_run(self._handle, verb, world, batch, *map(address, arrays))

    def matrices(
        self, what: int, states: list[np.ndarray], joints: np.ndarray, out: np.ndarray
    ) -> None:
        """Run over a batch; see pin_matrices."""
        batch, given = ctypes.c_long(len(out)), map(address, states)
        chosen = (len(joints), address(joints), address(out))
        self._lib.pin_matrices(self._handle, what, batch, *given, *chosen)


MATRICES = (
    "forward_derivatives",
    "inverse_derivatives",
    "jacobians",
    "centroidal",
    "regressor",
    "step",
)
"""What pin_matrices computes, by number."""


def matrices(
    case: Case, joints: list[int]
) -> dict[str, tuple[Callable[[], None], Callable[[], Tensor]]]:
    """For each of `MATRICES` a call, and its last result: matrices as Pinocchio lays them out.

    Args:
        case: whose `tau` serves forward dynamics, `qdd` the others.
        joints: whose frames have Jacobians taken.
    """
    model, convention = Model(case, "-DKINEMATICS"), Convention(case)
    q = case.q
    if case.robot.floating_base:
        q = torch.cat([q[:, :3], q[:, 4:7], q[:, 3:4], q[:, 7:]], -1)
    q, v = array(q), array(convention.velocity.to(case.dtype))
    n, bodies = case.robot.mech.num_dof, case.robot.mech.num_bodies
    shapes = [(3, n, n), (3, n, n), (len(joints), n, 6), (n, 6), (10 * bodies, n), (3 * n, 2 * n)]
    chosen = np.array(joints, dtype=np.int32)

    def entry(what: int) -> tuple[Callable[[], None], Callable[[], Tensor]]:
        x = array((convention.force if what in (0, 5) else convention.accel).to(case.dtype))
        out = np.empty((case.batch, *shapes[what]), dtype=q.dtype)

        def run() -> None:
            model.matrices(what, [q, v, x], chosen, out)

        return run, lambda: torch.from_numpy(out).mT  # columns lie together

    return {name: entry(what) for what, name in enumerate(MATRICES)}


def kind(name: str, axis: list[float]) -> int:
    """Joint types by number, as in pinocchio.cpp."""
    if name == "free":
        return 4
    if name != "revolute":
        raise MissingPeerError(f"its trimmed build has no {name} joint")
    unit = [k for k in range(3) if axis[k] == 1.0]
    return unit[0] if unit else 3


def enter(case: Case) -> list[Entry]:
    """Both conventions where the algorithm has them."""
    model, convention = Model(case), Convention(case)
    q = case.q
    if case.robot.floating_base:  # quaternions come x y z w
        q = torch.cat([q[:, :3], q[:, 4:7], q[:, 3:4], q[:, 7:]], -1)

    def entry(verb: str, variant: str, number: int, world: int) -> Entry:
        x = convention.accel if verb == "inverse" else convention.force
        given = (q, convention.velocity, x, convention.cotangent)
        inputs = [array(part.to(case.dtype)) for part in given]
        n = case.robot.mech.num_dof
        shape = (case.batch, n, n) if verb == "mass_matrix" else (case.batch, n)
        out = np.empty(shape, dtype=inputs[0].dtype)
        gradients = [np.empty_like(inputs[1]) for _ in range(3 if verb == "forward_vjp" else 0)]
        results = [out, *(gradients or [out] * 3)]

        def run() -> list[np.ndarray]:
            model.call(number, world, [*inputs, *results])
            return results

        return Entry(NAME + variant, verb, run, _back(case, convention, verb))

    return [entry(*call) for call in CALLS]


def _back(case: Case, convention: Convention, verb: str) -> Callable[[Any], tuple[Tensor, ...]]:
    def ours(results: Any) -> tuple[Tensor, ...]:
        found = [torch.from_numpy(x)[case.checked].double() for x in results]
        if verb != "forward_vjp":
            return getattr(convention, verb)(found[0])
        none = torch.zeros_like(case.q[case.checked], dtype=torch.float64)
        more_q, dqd, dtau = convention.gradients(none, found[2], found[3])
        (step,) = convention.inverse(found[1])  # a tangent, ordered as velocities are
        q = case.q[case.checked].double()
        return (
            *convention.forward(found[0]), step + tangent(case.robot.mech, q, more_q), dqd, dtau
        )  # fmt: skip

    return ours
