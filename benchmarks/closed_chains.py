"""Closed chains and held feet: forward dynamics beside Pinocchio's `constraintDynamics` and MuJoCo.

    python benchmarks/closed_chains.py [--batch 4096] [--threads 2] [--passes 7]

Prints medians and ratios of one interleaved run. Pinocchio and MuJoCo run as C++ and C on the same number of
threads. Equalities of MuJoCo are soft, so its accelerations are not compared.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from cases import MissingPeerError
from peers import mujoco_c, pinocchio_cpp
from peers.native import address, array
from report import origin
from timing import Passes, interleaved, ratio
from torch import Tensor

import torchsko as ts

Point = tuple[float, float, float]


@dataclass(frozen=True)
class Pin:
    """Two points that coincide: bodies (None for the inertial frame) and positions in them [m]."""

    one: str | None
    at_one: Point
    two: str | None
    at_two: Point


class Robot:
    """A tree of revolute joints and a base, with pins."""

    def __init__(self, name: str) -> None:
        self.builder, self.pins = ts.MechanismBuilder(name), list[Pin]()

    def body(
        self, name: str, parent: str | None, at: Point, axis: Point = (0, 1, 0), kind: str = "revolute",
        **data: object,
    ) -> None:  # fmt: skip
        """Add a body of 1 kg with a joint."""
        moments = torch.diag(torch.tensor([0.05, 0.06, 0.04])).tolist()
        self.builder.link(name, mass=1.0, com=(0.05, 0.01, -0.05), inertia=moments)
        options = data | ({"axis": axis} if kind in ("revolute", "prismatic") else {})
        self.builder.joint(f"{name}_j", kind, child=name, parent=parent, position=at, **options)

    def pin(self, one: str, at_one: Point, two: str, at_two: Point) -> None:
        """Close a loop by a point."""
        self.builder.close(f"loop{len(self.pins)}", "ball", one, at_one, two, at_two)
        self.pins.append(Pin(one, at_one, two, at_two))


def four_bar() -> Robot:
    """Crank, coupler and rocker."""
    made = Robot("four-bar")
    z = (0.0, 0.0, 1.0)
    made.body("crank", None, (0, 0, 0), z)
    made.body("coupler", "crank", (0.2, 0, 0), z)
    made.body("rocker", None, (0.5, 0, 0), z)
    made.pin("coupler", (0.5, 0, 0), "rocker", (0.4, 0, 0))
    return made


def cassie() -> Robot:
    """Two legs like Cassie's, each with an achilles rod and a plantar rod, of revolute joints."""
    made = Robot("Cassie-like")
    made.body("pelvis", None, (0, 0, 0), kind="free")
    for side, y in (("l", 0.1), ("r", -0.1)):
        rows: list[tuple[str, str, Point, Point]] = [
            ("roll", "pelvis", (0, y, 0), (1, 0, 0)),
            ("yaw", "roll", (0, 0, -0.05), (0, 0, 1)),
            ("thigh", "yaw", (0, 0, -0.05), (0, 1, 0)),
            ("knee", "thigh", (0.12, 0, 0), (0, 1, 0)),
            ("shin", "knee", (0.06, 0, 0.05), (0, 1, 0)),
            ("tarsus", "shin", (0.43, 0, 0.02), (0, 1, 0)),
            ("heel", "tarsus", (-0.01, 0, -0.03), (0, 1, 0)),
            ("achilles1", "thigh", (0, 0.01, 0.05), (0, 1, 0)),
            ("achilles2", "achilles1", (0, 0, 0), (0, 0, 1)),
            ("crank", "tarsus", (0.06, 0.02, -0.03), (0, 1, 0)),
            ("plantar1", "crank", (0, 0, -0.055), (0, 1, 0)),
            ("plantar2", "plantar1", (0, 0, 0), (0, 0, 1)),
            ("foot", "tarsus", (0.4, 0.02, -0.04), (0, 1, 0)),
        ]
        for name, parent, at, axis in rows:
            made.body(
                f"{side}_{name}", parent if parent == "pelvis" else f"{side}_{parent}", at, axis
            )
        made.pin(f"{side}_achilles2", (0.35, 0, 0), f"{side}_heel", (-0.11, 0.01, 0))
        made.pin(f"{side}_plantar2", (0.35, 0, 0), f"{side}_foot", (0.01, 0, -0.05))
    return made


def stewart() -> Robot:
    """6-UPS platform."""
    made = Robot("Stewart")
    made.body("platform", None, (0, 0, 0), kind="free")
    for k in range(6):
        a, b = np.pi / 3 * k + 0.3 * (-1) ** k, np.pi / 3 * k - 0.4 * (-1) ** k
        foot = (float(np.cos(a)), float(np.sin(a)), -1.0)
        made.body(f"leg{k}", None, foot, (1, 0, 0))
        made.body(f"tilt{k}", f"leg{k}", (0, 0, 0), (0, 1, 0))
        made.body(f"rod{k}", f"tilt{k}", (0, 0, 0.9), (0, 0, 1), kind="prismatic")
        head = (float(0.5 * np.cos(b)), float(0.5 * np.sin(b)), 0.0)
        made.pin(f"rod{k}", (0, 0, 0.1), "platform", head)
    return made


@dataclass(frozen=True)
class Contest:
    """States of a tree with pins, for the peers; and torchsko's call.

    Attributes:
        name: of the robot.
        tree: the mechanism whose loops are cut.
        pins: its pins.
        states: q, qd and tau of the tree.
        call: torchsko's accelerations.
        call_float32: the same kernel in float32.
        expand: accelerations of the tree from the call's result.
    """

    name: str
    tree: ts.Mechanism
    pins: list[Pin]
    states: tuple[Tensor, Tensor, Tensor]
    call: Callable[[], object]
    call_float32: Callable[[], object]
    expand: Callable[[object], Tensor]


def closed(robot: Robot, batch: int) -> Contest:
    """A robot with embedded loops."""
    mech = robot.builder.build()
    fast, single, g = (
        ts.fuse(mech),
        ts.fuse(mech.to(torch.float32)),
        torch.Generator().manual_seed(0),
    )
    draw = torch.randn(3, batch, mech.num_dof, generator=g, dtype=torch.float64)
    q, qd, tau = ts.integrate(mech, mech.neutral(), 0.05 * draw[0]), draw[1], draw[2]
    assert mech.closing is not None
    rates = ts.expand_velocity(mech, q, qd)
    force = torch.zeros_like(rates)
    force[..., mech.closing.own] = tau

    def expand(qdd: object) -> Tensor:
        assert isinstance(qdd, Tensor)
        return ts.expand_acceleration(mech, q, qd, qdd)

    states = tuple(x.float() for x in (q, qd, tau))
    return Contest(
        mech.name, mech.tree, robot.pins, (q, rates, force), lambda: fast.forward_dynamics(q, qd, tau),
        lambda: single.forward_dynamics(*states), expand,
    )  # fmt: skip


def quadruped(batch: int) -> Contest:
    """The quadruped of torchsko with four feet held."""
    mech = ts.load(ts.robots.quadruped, floating_base=True)
    names = ("armature", "damping", "friction", "stiffness")  # Pinocchio's model has none
    mech = mech.replace(**{name: 0 * getattr(mech, name) for name in names})
    feet = [name for name in mech.frame_names if name.endswith("foot")]
    holds = [ts.HeldFrame(foot) for foot in feet]
    held, single = (ts.fuse(ts.constrain(m, holds)) for m in (mech, mech.to(torch.float32)))
    q, qd = mech.random_state(batch, generator=torch.Generator().manual_seed(0))
    qd = (held.nullspace(q) @ qd[..., None])[..., 0]
    tau = torch.randn_like(qd)
    tau[:, :6] = 0.0
    states = tuple(x.float() for x in (q, qd, tau))
    pins = []
    for foot in feet:
        i = mech.frame_index(foot)
        at = tuple(mech.frame_position[i].tolist())
        pins.append(Pin(mech.body_names[mech.frame_body[i]], at, None, (0, 0, 0)))
    return Contest(
        "quadruped, four feet held", mech, pins, (q, qd, tau),
        lambda: held.forward_dynamics(q, qd, tau), lambda: single.forward_dynamics(*states),
        lambda found: found[0],  # type: ignore[index]
    )  # fmt: skip


def pinocchio(contest: Contest, threads: int) -> tuple[Callable[[], None], Callable[[], Tensor]]:
    """Pinocchio's call, and its accelerations in torchsko's order."""
    mech = contest.tree
    case = SimpleNamespace(robot=SimpleNamespace(mech=mech), dtype=torch.float64, threads=threads)
    model = pinocchio_cpp.Model(case, "-DCONSTRAINTS")  # type: ignore[arg-type]
    there = ts.conventions("pinocchio", mech)
    q, qd, tau = contest.states
    inputs = [array(x) for x in (there.q_to(q), there.qd_to(q, qd), there.qd_to(q, tau))]
    out = np.empty_like(inputs[1])
    bodies = [
        np.array([-1 if x is None else mech.body_index(x) for x in ends], dtype=np.int32)
        for ends in zip(*((p.one, p.two) for p in contest.pins), strict=True)
    ]
    points = [
        np.array(ends, dtype=np.float64)
        for ends in zip(*((p.at_one, p.at_two) for p in contest.pins), strict=True)
    ]
    arrays = (*bodies, *points)

    def run() -> None:
        model._lib.pin_constrained(
            model._handle, len(contest.pins), *map(address, arrays), ctypes.c_long(len(q)),
            *map(address, (*inputs, out)),
        )  # fmt: skip

    return run, lambda: there.qd_from(q, torch.from_numpy(out))


def mujoco(contest: Contest, threads: int, folder: Path) -> Callable[[], None]:
    """MuJoCo's mj_forward with equalities."""
    import mujoco

    closures = tuple(
        ts.constraints.Closure(f"pin{k}", "ball", p.one, p.two, p.at_one, p.at_two)
        for k, p in enumerate(contest.pins)
    )
    mech = contest.tree
    metadata = replace(mech.file_metadata, closures=closures, initial=None)
    path = folder / f"{contest.name.split(',')[0]}.xml"
    lean = mech.replace(
        file_metadata=metadata, damping=0 * mech.damping, friction=0 * mech.friction
    )
    ts.save(lean, path, overwrite=True)
    model = mujoco.MjModel.from_xml_path(str(path))
    names = [model.joint(j).name for j in range(model.njnt)]
    there = ts.conventions("mujoco", mech, names)
    q, qd, tau = contest.states
    inputs = [array(x) for x in (there.q_to(q), there.qd_to(q, qd), there.qd_to(q, tau))]
    out = np.empty_like(inputs[1])
    lib = mujoco_c.library()
    error = ctypes.create_string_buffer(1000)
    gravity = array(mech.gravity)
    made = lib.mjc_new(str(path).encode(), address(gravity), threads, error, len(error))
    if not made:
        raise MissingPeerError(error.value.decode()[:200])
    handle = ctypes.c_void_p(made)

    def run() -> None:
        lib.mjc_run(handle, 3, ctypes.c_long(len(q)), *map(address, (*inputs, out)))

    return run


def print_times(title: str, seconds: Mapping[str, Passes], batch: int) -> None:
    """Microseconds a sample, and ratios to torchsko."""
    ours = seconds["torchsko"]
    parts = [
        f"{name} {statistics.median(x) / batch * 1e6:.3g} us"
        + ("" if name == "torchsko" else f" ({ratio(x, ours)})")
        for name, x in seconds.items()
    ]
    print(f"{title}: {', '.join(parts)}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passes", type=int, default=7)
    options = parser.parse_args()
    batch, threads = options.batch, options.threads
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", ts.RobotFileWarning)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        bar = closed(four_bar(), batch)
        tree = ts.fuse(bar.tree)
        print(origin(threads))
        print(f"batch {batch}, float64 unless float32 is named")
        calls = {"torchsko": bar.call, "open chain": lambda: tree.forward_dynamics(*bar.states)}
        seconds = interleaved(calls, options.passes, 0.1)
        print(
            f"four-bar against its open chain: {ratio(seconds['torchsko'], seconds['open chain'])}"
        )
        for contest in (bar, closed(cassie(), batch), quadruped(batch), closed(stewart(), batch)):
            calls = {"torchsko": contest.call, "float32": contest.call_float32}
            try:
                calls["Pinocchio C++"], answer = pinocchio(contest, threads)
                calls["Pinocchio C++"]()
                mine = contest.expand(contest.call())
                error = float((answer() - mine).abs().max() / mine.abs().max())
                print(f"{contest.name}: difference from Pinocchio {error:.1e}")
            except MissingPeerError as reason:
                print(f"{contest.name}: no Pinocchio ({reason})")
            calls["MuJoCo C"] = mujoco(contest, threads, Path(folder))
            print_times(contest.name, interleaved(calls, options.passes, 0.1), batch)
        one = quadruped(1)
        (single,) = interleaved({"torchsko": one.call}, 2 * options.passes, 0.02).values()
        print(
            f"quadruped, four feet held, one state: {statistics.median(single) * 1e6:.3g} us a call"
        )


if __name__ == "__main__":
    main()
