"""MuJoCo's C library, one thread for each core; double precision only, no derivatives.

A free joint's linear velocity is that of the inertial frame there.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import torch
from cases import Case, Entry, MissingPeerError
from torch import Tensor

from peers.conventions import Convention
from peers.native import address, array, build

NAME = "MuJoCo C"
VERBS = ("inverse", "forward", "mass_matrix")  # numbered as in mujoco.cpp


def library() -> ctypes.CDLL:
    """The compiled program.

    Raises:
        MissingPeerError: MuJoCo is not installed, or the build failed.
    """
    try:
        import mujoco
    except ImportError:
        raise MissingPeerError('not installed (pip install ".[bench]" in a clone)') from None
    folder = Path(mujoco.__file__).parent
    found = sorted(folder.glob("libmujoco.so*"))
    if not found:
        raise MissingPeerError(f"no libmujoco.so in {folder}")
    flags = [f"-I{folder / 'include'}", str(found[0]), f"-Wl,-rpath,{folder}"]
    lib = build("mujoco.cpp", flags, mujoco.__version__)
    lib.mjc_new.restype = ctypes.c_void_p
    for name in ("mjc_qpos", "mjc_dof"):
        getattr(lib, name).argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return lib


class Model:
    """MuJoCo's model of a robot, with work space for every thread."""

    def __init__(self, case: Case) -> None:
        self._lib, mech = library(), case.robot.mech
        error = ctypes.create_string_buffer(1000)
        path, gravity = str(case.robot.path_with_joint).encode(), array(mech.gravity)
        handle = self._lib.mjc_new(path, address(gravity), case.threads, error, len(error))
        if not handle:
            raise MissingPeerError(f"it refused the URDF: {error.value.decode()[:200]}")
        self._handle = ctypes.c_void_p(handle)
        self.q_places = self._places(case, "mjc_qpos", mech.q_slice, mech.num_q)
        self.places = self._places(case, "mjc_dof", mech.dof_slice, mech.num_dof)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.mjc_delete(self._handle)

    def call(self, verb: int, arrays: list[np.ndarray]) -> None:
        """Run over a batch; see mjc_run."""
        batch = ctypes.c_long(len(arrays[0]))
        self._lib.mjc_run(self._handle, verb, batch, *map(address, arrays))

    def _places(self, case: Case, query: str, ours: object, size: int) -> Tensor:
        """For each of MuJoCo's coordinates its place in torchsko's."""
        places = torch.full((size,), -1)
        for name in case.robot.mech.joint_names:
            span = ours(name)  # type: ignore[operator]
            start = getattr(self._lib, query)(self._handle, name.encode())
            if start < 0:
                raise MissingPeerError(f"it lost joint {name!r}")
            places[start : start + span.stop - span.start] = torch.arange(span.start, span.stop)
        return places


def enter(case: Case) -> list[Entry]:
    """Inverse and forward dynamics and the mass matrix."""
    if case.dtype != torch.float64:
        raise MissingPeerError("double precision only")
    model, convention = Model(case), Convention(case, world=True)
    dofs = model.places
    back = torch.argsort(dofs)

    def entry(verb: str) -> Entry:
        x = convention.accel if verb == "inverse" else convention.force
        given = (case.q[:, model.q_places], convention.velocity[:, dofs], x[:, dofs])
        inputs = [array(part) for part in given]
        n = len(dofs)
        out = np.empty((case.batch, n, n) if verb == "mass_matrix" else (case.batch, n))

        def run() -> np.ndarray:
            model.call(VERBS.index(verb), [*inputs, out])
            return out

        def ours(result: object) -> tuple[Tensor, ...]:
            y = torch.from_numpy(out)[case.checked][..., back]
            if verb == "mass_matrix":
                y = y[:, back]
            return getattr(convention, verb)(y)

        return Entry(NAME, verb, run, ours)

    return [entry(verb) for verb in VERBS]
