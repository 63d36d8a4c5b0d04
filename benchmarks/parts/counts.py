"""Item 0: scalar operations of the fused programs after simplification."""

from __future__ import annotations

from collections.abc import Callable

import torch
from cases import Robot, fixed_humanoid, floating_humanoid, link_chain, panda
from report import Options, Section, at_most
from torch import Tensor

import torchsko as ts
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace

VERBS = ("inverse", "forward", "mass_matrix", "forward and VJP")
WANTED = {
    ("panda", "inverse"): 1100,
    ("panda", "forward"): 1900,
    ("panda", "forward and VJP"): 4300,
    ("humanoid30", "forward"): 9000,
    ("humanoid30", "forward and VJP"): 20000,
}


def run(options: Options) -> Section:
    """Count every program."""
    section, rows = Section("Operation counts"), []
    robots = [panda(), fixed_humanoid()]
    if options.quick:
        robots = robots[:1]
    else:
        robots += [floating_humanoid(), link_chain(64)]
    for robot in robots:
        counts = {verb: count(robot, verb) for verb in VERBS}
        rows.append([robot.name, *(f"{counts[verb]:,}" for verb in VERBS)])
        for (name, verb), wanted in WANTED.items():
            if name == robot.name:
                what = f"operations, {name}, {verb}"
                section.demands.append(at_most("0", what, wanted, counts[verb], ""))
    section.lines.append(
        "Additions, multiplications, divisions, roots, sines and cosines of one sample; the VJP as the "
        "fused kernels form it, mu = M^-1 lambda and the VJP of inverse dynamics."
    )
    section.table(["operations", *VERBS], rows)
    return section


def count(robot: Robot, verb: str) -> int:
    """Operations of one program."""
    mech = robot.mech
    sizes = {"q": mech.num_q, "qd": mech.num_dof, "x": mech.num_dof, "cotangent": mech.num_dof}
    ports = [Port(name, (size,)) for name, size in sizes.items()]
    verbs: dict[str, tuple[Callable[..., object], int]] = {
        "inverse": (lambda q, qd, x: ts.inverse_dynamics(mech, q, qd, x), 3),
        "forward": (lambda q, qd, x: ts.forward_dynamics(mech, q, qd, x), 3),
        "mass_matrix": (lambda q: ts.mass_matrix(mech, q), 1),
        "forward and VJP": (lambda *x: _value_and_vjp(mech, *x), 4),
    }
    fn, number = verbs[verb]
    return trace(fn, ports[:number]).num_flops


def _value_and_vjp(
    mech: ts.Mechanism, q: Tensor, qd: Tensor, tau: Tensor, cotangent: Tensor
) -> tuple[Tensor, ...]:
    qdd = ts.forward_dynamics(mech, q, qd, tau)
    mu = ts.innovations(ts.assemble(mech, q)).solve(cotangent).detach()
    q, qd = (x.detach().requires_grad_() for x in (q, qd))
    power = (mu * ts.inverse_dynamics(mech, q, qd, qdd.detach())).sum()
    by_q, by_qd = torch.autograd.grad(power, (q, qd))
    return qdd, -by_q, -by_qd, mu
