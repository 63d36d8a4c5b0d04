"""Size of the kernels of steps with contact: operations, and registers and local memory on a card.

Usage: python benchmarks/contact_size.py [ant humanoid "humanoid, 10 capsules" talos] [--card sm_90]
(PYTHONPATH=FOLDER for the sources of another commit)

Ant and humanoid are those of gymnasium, with one stage of a step (Euler) or RK4. TALOS stands on boxes under
its feet and has capsules as hands. With --card NVRTC compiles the float32 kernels; no card is needed.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mujoco
import torch
from cases import floating_humanoid
from contact import control_step, model_of
from report import origin

import torchsko as ts
from torchsko.fused.build.nvrtc import Nvrtc, find_nvrtc
from torchsko.fused.emit.cuda import cuda_plan, emit_cuda
from torchsko.fused.program.program import Program
from torchsko.mechanism.geometry import Shape
from torchsko.shapes.box import Box
from torchsko.shapes.capsule import Capsule
from torchsko.shapes.plane import Plane

NUM_MORE = 10
"""Capsules that are added to a humanoid."""


def gymnasium_robot(name: str, integrator: str) -> ts.Mechanism:
    """A robot of gymnasium with an integrator."""
    model = model_of(name)
    model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{integrator}")
    return ts.from_mujoco(model)


def with_capsules(mech: ts.Mechanism) -> ts.Mechanism:
    """A robot with one more capsule on each of its first bodies."""
    names = mech.body_names[:NUM_MORE]
    capsule = next(x for x in mech.geometry.shapes if x.form.kind == "capsule")
    more = [replace(capsule, frame=x, name=f"more {x}", position=(0.05, 0, 0)) for x in names]
    shapes = (*mech.geometry.shapes, *more)
    return mech.replace(geometry=replace(mech.geometry, shapes=shapes))


def talos() -> ts.Mechanism:
    """TALOS on a plane, with boxes under its feet and capsules as hands."""
    mech = floating_humanoid().mech
    feet = [
        Shape(Box((0.2, 0.13, 0.04)), frame=f"leg_{x}_6_link", position=(0, 0, -0.09))
        for x in ("left", "right")
    ]
    hands = [Shape(Capsule(0.05, 0.1), frame=f"arm_{x}_7_link") for x in ("left", "right")]
    shapes = [replace(x, collision=True) for x in (*feet, *hands, Shape(Plane()))]
    return mech.replace(geometry=replace(mech.geometry, shapes=tuple(shapes)))


ROBOTS: dict[str, Callable[[], ts.Mechanism]] = {
    "ant": lambda: gymnasium_robot("ant", "RK4"),
    "humanoid": lambda: gymnasium_robot("humanoid", "RK4"),
    "humanoid, Euler": lambda: gymnasium_robot("humanoid", "EULER"),
    "humanoid, 10 capsules": lambda: with_capsules(gymnasium_robot("humanoid", "RK4")),
    "talos": talos,
}


def programs(mech: ts.Mechanism) -> dict[str, Program]:
    """The programs of a step and of its gradient."""
    num_controls = len(mech.file_metadata.actuators.actuators) or mech.num_dof
    sizes = {"q": mech.num_q, "qd": mech.num_dof, "ctrl": num_controls, "start": mech.num_dof}
    fast: Any = ts.fuse(control_step, mech, shapes={x: (n,) for x, n in sizes.items()})
    function = fast.function(tuple(sizes))
    needed = tuple(x != "start" for x in sizes)
    needed += (False,) * (len(function.inputs) - len(needed))
    gradient = function._derivative("vjp at solutions", needed)
    return {"forward": function.program, "gradient": gradient.program}


def memory_report(nvrtc: Nvrtc, source: str, card: str) -> str:
    """Registers and local memory of the kernel, as the assembler reports them."""
    library, program = nvrtc._library, ctypes.c_void_p()
    text = source.encode("ascii")
    library.nvrtcCreateProgram(ctypes.byref(program), text, b"kernel.cu", 0, None, None)
    flags = [f"--gpu-architecture={card}".encode(), b"--ptxas-options=-v"]
    start = time.process_time()
    library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
    seconds = time.process_time() - start
    log = nvrtc._read(program, "ProgramLog").decode(errors="replace")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    registers = max(map(int, re.findall(r"Used (\d+) registers", log)), default=0)
    found = [
        re.findall(rf"(\d+) bytes {x}", log)
        for x in ("(?:cumulative )?stack", "spill stores", "spill loads")
    ]
    stack, stores, loads = (max(map(int, x), default=0) for x in found)
    return (
        f"{registers} registers, {stack} bytes of local memory, {stores} and {loads} bytes spilled "
        f"and read, {len(text) // 1000} kB of text, compiled in {seconds:.0f} s"
    )


def main() -> None:
    """Print a line for each kernel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("robots", nargs="*", default=[*ROBOTS])
    parser.add_argument("--card", help="architecture for NVRTC, such as sm_90")
    parser.add_argument("--kernels", nargs="*", default=["forward", "gradient"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(origin(1))
    nvrtc = find_nvrtc() if args.card else None
    for name in args.robots:
        found = programs(ROBOTS[name]())
        counts = ", ".join(f"{x.num_flops:,} operations {key}" for key, x in found.items())
        print(f"{name}: {counts}", flush=True)
        for key in args.kernels if nvrtc else ():
            source = emit_cuda(cuda_plan(found[key]), bits=32)
            print(f"  {key}: {memory_report(nvrtc, source, args.card)}", flush=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
