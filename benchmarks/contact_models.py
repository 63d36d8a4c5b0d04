"""One step of public MuJoCo models with contact beside mj_step.

Usage: python benchmarks/contact_models.py [--states 50] [--packages gymnasium dm_control]
(> benchmarks/results/contact_models.txt)

Every XML file of the installed packages that MuJoCo compiles and that moves is one row. The states are
reached by random controls. The error is the largest difference of coordinates and velocities after one step,
relative to the largest acceleration times the time step. Models with other shapes, forces or integrators than
those of `torchsko.step` have the reason instead. A package can lie in a folder: pip install --no-deps
--target FOLDER dm_control, and PYTHONPATH=FOLDER.
"""

from __future__ import annotations

import argparse
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
import torch
from report import origin

import torchsko as ts

PACKAGES = ("gymnasium", "dm_control")
SECONDS = 0.5
"""Longest random motion before a state."""

BORDER = 1e-12
"""Distance from the margin below which rounding decides whether a contact is active [m]."""


class Row(NamedTuple):
    """Result of one model; without an error the model is refused for the reason."""

    name: str
    contacts: int
    rows: int
    error: float | None
    reason: str


def files(packages: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, Path]]:
    """Every XML file of the packages whose outermost element is <mujoco>, with a name."""
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parent
            for path in sorted(folder.rglob("*.xml")):
                if "<mujoco" in path.read_text(errors="replace"):
                    yield f"{package}/{path.relative_to(folder)}", path


def compiled(path: Path) -> Any:
    """The model of a file with a solver that iterates to rounding; None for parts and for models at rest."""
    try:
        model = mujoco.MjModel.from_xml_path(str(path))
    except ValueError:
        return None
    model.opt.tolerance, model.opt.iterations = 0.0, 100
    model.opt.ls_tolerance, model.opt.ls_iterations = 1e-12, 50
    return model if model.nv else None


def refusal(mech: ts.Mechanism, contact: ts.ContactModel) -> str:
    """The first reason why `torchsko.step` differs from the file; empty without one."""
    absent = [x for x in mech.unused if x.changes_dynamics and not x.in_step]
    absent += mech.file_metadata.actuators.unused
    return next((str(x) for x in (*contact.unsupported, *absent)), "")


def read(model: Any) -> ts.Mechanism:
    """The mechanism of a model, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ts.RobotFileWarning)
        return ts.from_mujoco(model, mimic="independent")


def compare(
    name: str,
    model: Any,
    num: int,
    mech: ts.Mechanism | None = None,
    joints: list[str] | None = None,
) -> Row:
    """One step from reached states.

    Args:
        name: of the model.
        model: of MuJoCo.
        num: number of states.
        mech: its mechanism; by default the model is read.
        joints: names of its joints in the model's order; by default the order of the mechanism.
    """
    mech = read(model) if mech is None else mech
    contact = ts.ContactModel.of(mech)
    reason = refusal(mech, contact)
    if reason:
        return Row(name, 0, 0, None, reason)
    rng, data, convert = (
        np.random.default_rng(0),
        mujoco.MjData(model),
        ts.conventions("mujoco", mech, joints),
    )
    before, after, most = [], [], [0, 0]
    for _ in range(num):
        mujoco.mj_resetData(model, data)
        data.qvel[:] = 0.1 * rng.normal(size=model.nv)
        for _ in range(rng.integers(1, max(2, int(SECONDS / model.opt.timestep)))):
            data.ctrl[:] = rng.uniform(-1, 1, model.nu)
            mujoco.mj_step(model, data)
        found = [np.array(x) for x in (data.qpos, data.qvel, data.act, data.ctrl)]
        mujoco.mj_step(model, data)
        points = ts.contacts(mech, convert.q_from(torch.tensor(found[0])), contact=contact)
        margin = contact.margin[list(points.pair)]
        if bool(((points.distance - margin).abs() < BORDER).any()):
            continue
        before.append(found)
        most = [max(most[0], data.ncon), max(most[1], data.nefc)]
        after.append([np.array(x) for x in (data.qpos, data.qvel, data.qacc)])
    if not before:
        return Row(name, *most, None, "its contacts have distance zero up to rounding")
    qpos, qvel, act, ctrl = (torch.tensor(np.array(x)) for x in zip(*before, strict=True))
    q = convert.q_from(qpos)
    state = ts.State(q, convert.qd_from(q, qvel), act if model.na else None)
    try:
        state = ts.step(mech, state, ctrl if model.nu else None, contact=contact)
    except ts.MechanismError as refused:
        return Row(name, *most, None, str(refused).splitlines()[0])
    qpos, qvel, qacc = (torch.tensor(np.array(x)) for x in zip(*after, strict=True))
    found = (convert.q_to(state.q) - qpos, convert.qd_to(state.q, state.qd) - qvel)
    scale = 1 + model.opt.timestep * float(qacc.abs().max())
    return Row(name, *most, max(float(x.abs().max()) for x in found) / scale, "")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=50)
    parser.add_argument("--packages", nargs="*", default=PACKAGES)
    options = parser.parse_args()
    print(origin(1))
    print(
        "\n| model | contacts | rows | error | reason of refusal |\n| --- | --- | --- | --- | --- |"
    )
    for name, path in files(tuple(options.packages)):
        model = compiled(path)
        if model is not None:
            row = compare(name, model, options.states)
            error = "-" if row.error is None else f"{row.error:.1e}"
            print(f"| {name} | {row.contacts} | {row.rows} | {error} | {row.reason} |", flush=True)


if __name__ == "__main__":
    main()
