"""Public MuJoCo models through files of torchsko: motions beside those of the original.

Usage: python benchmarks/saved_models.py [--packages gymnasium dm_control]
(> benchmarks/results/saved_models.txt)

Roads: a new file; a copy of the file with other masses (like=); a new file with other masses; a new file of
the robot with a locked joint. MuJoCo's own edits are the reference: scaled masses with mj_setConst, a joint
deleted in MjSpec. The error of a road is the largest difference of coordinates and velocities over 20
steps of MuJoCo from reached states, relative to the largest speed. The last column compares 20 steps of
torchsko. A motion is compared until a mesh or an ellipsoid touches: MuJoCo iterates their distances, and
stores vertices in single precision.
"""

from __future__ import annotations

import argparse
import copy
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
import torch
from contact_models import PACKAGES, compiled, files, refusal
from report import origin

import torchsko as ts

STEPS, STATES = 20, 3
MAX_SECONDS = 0.3
"""Longest random motion before a state."""

FACTOR = 1.1
"""Factor of all masses and inertias."""

ITERATIVE = (mujoco.mjtGeom.mjGEOM_MESH, mujoco.mjtGeom.mjGEOM_ELLIPSOID)
"""Kinds of shapes whose distances MuJoCo iterates."""

ROADS = ("new", "like", "heavier", "locked")


class Row(NamedTuple):
    """Errors of one model by road, a reason for each road that was refused, and what the file lacks."""

    name: str
    errors: dict[str, float]
    refused: dict[str, str]
    lacks: str


def compare(name: str, path: Path, package: Path, steps: bool = True) -> Row | None:
    """All roads of one file; None for parts of models, and models at rest.

    Args:
        name: of the model.
        path: of its file.
        package: folder with all files to which it refers.
        steps: whether steps of torchsko are compared too.
    """
    model = compiled(path)
    if model is None:
        return None
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore", ts.RobotFileWarning)
        mech = ts.from_mujoco(model, mimic="independent")
        row, new = Row(name, {}, {}, _lacks(mech)), Path(folder) / "new.xml"
        heavier = mech.replace(mass=FACTOR * mech.mass, inertia=FACTOR * mech.inertia)

        def like() -> Any:
            copies = Path(folder) / "copies"
            shutil.copytree(package, copies)  # with the files that it includes
            written = copies / path.relative_to(package).with_name("written.xml")
            ts.save(heavier, written, like=copies / path.relative_to(package))
            return compiled(written), _heavier(model)

        def saved(robot: ts.Mechanism) -> Any:
            ts.save(robot, new, overwrite=True)
            return compiled(new)

        def locked() -> Any:
            joint, reference = _without_joint(path, model)
            start = mech.initial()[mech.q_slice(joint)]
            return saved(mech.lock({joint: start})), reference

        roads: dict[str, Callable[[], Any]] = {
            "new": lambda: (saved(mech), model),
            "like": like,
            "heavier": lambda: (saved(heavier), _heavier(model)),
            "locked": locked,
        }
        for road, made in roads.items():
            try:
                pair = made()
                row.errors[road] = max(_difference(*pair, seed) for seed in range(STATES))
            except (ts.errors.TorchskoError, ValueError) as error:
                row.refused[road] = str(error).splitlines()[0]
        if steps and "new" in row.errors:
            saved(mech)
            again = ts.from_mujoco(compiled(new), mimic="independent")
            if reason := refusal(mech, ts.ContactModel.of(mech)):
                row.refused["ts.step"] = reason
            else:
                row.errors["ts.step"] = _step_difference(mech, again)
    return row


def _lacks(mech: ts.Mechanism) -> str:
    """What a new file lacks; empty without losses."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ts.RobotFileWarning)
        try:
            ts.save(mech, Path(folder) / "new.xml")
        except ts.errors.TorchskoError as error:
            return str(error).splitlines()[0]
    return "; ".join(
        line.strip() for x in found for line in str(x.message).splitlines() if line.startswith("  ")
    )


def _heavier(model: Any) -> Any:
    """A copy of a model with scaled masses, by MuJoCo."""
    other = copy.copy(model)
    other.body_mass[:] *= FACTOR
    other.body_inertia[:] *= FACTOR
    mujoco.mj_setConst(other, mujoco.MjData(other))
    return other


def _without_joint(path: Path, model: Any) -> tuple[str, Any]:
    """The last joint without which MjSpec compiles the model, and that model."""
    for j in reversed(range(model.njnt)):
        name = model.joint(j).name
        alone = int(model.body_jntnum[model.jnt_bodyid[j]]) == 1
        if int(model.jnt_type[j]) < 2 or not name or not alone or model.nv < 2 or model.nkey:
            continue
        spec = mujoco.MjSpec.from_file(str(path))
        joint = spec.joint(name)
        if joint is None:
            continue
        spec.delete(joint)
        try:
            other = spec.compile()
        except ValueError:
            continue
        other.opt.tolerance, other.opt.iterations = 0.0, 100
        other.opt.ls_tolerance, other.opt.ls_iterations = 1e-12, 50
        return name, other
    raise ValueError("no joint can be deleted alone")


def _difference(model: Any, reference: Any, seed: int) -> float:
    """Largest difference of both motions."""
    if (model.nq, model.nv, model.na) != (reference.nq, reference.nv, reference.na):
        raise ValueError("the models have different sizes")
    rng, one, two = np.random.default_rng(seed), mujoco.MjData(model), mujoco.MjData(reference)
    two.qvel[:] = 0.1 * rng.normal(size=model.nv)
    for _ in range(rng.integers(1, max(2, int(MAX_SECONDS / reference.opt.timestep)))):
        two.ctrl[:] = rng.uniform(-1, 1, reference.nu)
        mujoco.mj_step(reference, two)
    one.qpos[:], one.qvel[:], one.act[:] = two.qpos, two.qvel, two.act
    error = 0.0
    for _ in range(STEPS):
        two.ctrl[:] = rng.uniform(-1, 1, reference.nu)
        one.ctrl[:] = two.ctrl[: model.nu] if model.nu == reference.nu else 0.0
        for m, data in ((model, one), (reference, two)):
            mujoco.mj_step(m, data)
        if np.isin(reference.geom_type[[two.contact.geom1, two.contact.geom2]], ITERATIVE).any():
            break
        speed = 1 + np.abs(two.qvel).max()
        parts = (one.qpos - two.qpos, one.qvel - two.qvel)
        error = max(error, *(np.abs(x).max() / speed for x in parts))
    return float(error)


def _step_difference(mech: ts.Mechanism, other: ts.Mechanism) -> float:
    """Largest difference of motions of `torchsko.step`."""
    qd = 0.1 * torch.from_numpy(np.random.default_rng(0).normal(size=mech.num_dof))
    robots = [(x, ts.ContactModel.of(x)) for x in (mech, other)]
    states, error = [ts.State(x.initial(), qd) for x, _ in robots], 0.0
    num = len(mech.file_metadata.actuators.actuators)
    for k in range(STEPS):
        ctrl = torch.sin(0.3 * k + torch.arange(num, dtype=mech.dtype)) if num else None
        states = [
            ts.step(x, state, ctrl, contact=contact)
            for (x, contact), state in zip(robots, states, strict=True)
        ]
        a, b = states
        scale = 1 + float(a.qd.abs().max())
        error = max(error, *(float(x.abs().max()) / scale for x in (a.q - b.q, a.qd - b.qd)))
    return error


def folder_of(name: str, path: Path) -> Path:
    """The folder of a model within its package, as dm_control/suite."""
    depth = len(Path(name).parts)
    return path.parents[max(0, depth - 3)]


def line(row: Row) -> str:
    """A row of the table."""
    columns = [
        f"{row.errors[road]:.0e}" if road in row.errors else "-" for road in (*ROADS, "ts.step")
    ]
    reasons = [f"{road}: {reason}" for road, reason in row.refused.items()]
    notes = "; ".join([*reasons, *([f"lacks {row.lacks}"] if row.lacks else [])])
    return f"| {row.name} | {' | '.join(columns)} | {notes} |"


HEADER = f"| model | {' | '.join((*ROADS, 'ts.step'))} | notes |\n|{' --- |' * (len(ROADS) + 3)}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", nargs="*", default=PACKAGES)
    options = parser.parse_args()
    print(origin(1))
    print(f"\n{HEADER}")
    for name, path in files(tuple(options.packages)):
        row = compare(name, path, folder_of(name, path))
        if row is not None:
            print(line(row), flush=True)


if __name__ == "__main__":
    main()
