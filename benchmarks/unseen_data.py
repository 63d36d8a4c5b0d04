"""Prediction errors of the default fit on the part of a log that it did not use, beside least squares.

Usage: python benchmarks/unseen_data.py LOG [--robot robot.urdf] [--use 0.7] [--cutoff 10]
LOG is an NPZ or CSV file of a robot, by default a Panda. The first part of its duration is fitted.
The rest is judged in two ways: forces predicted for filtered states against forces that passed the same
filter once, and `Fit.test`, which filters predictions and forces alike. An error is the root mean square
error of a joint divided by the standard deviation of its force, and ratios are those of means over joints.
"""

from __future__ import annotations

import argparse

import torch
from report import origin
from torch import Tensor

import torchsko as ts
from torchsko.identification.friction import Coulomb, Offset, Viscous
from torchsko.identification.signals.cleaning import LogDefects
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.identification.signals.preprocess import filter_log


def state_errors(
    fit: ts.identification.Fit,
    log: ts.identification.Log,
    settings: FilterSettings,
    *,
    series: bool,
) -> Tensor:
    """Errors of forces for filtered states, over the spread of the filtered forces, `[num_dof]`."""
    motions = list(filter_log(fit.mechanism, log, settings, LogDefects()))
    force = torch.cat([fit.inverse_dynamics(x.q, x.qd, x.qdd, series=series) for x in motions])
    tau = torch.cat([x.tau for x in motions])
    return (force - tau).square().mean(0).sqrt() / tau.std(0)


def row(name: str, errors: Tensor, reference: Tensor) -> None:
    """Print the errors of a model and their ratio to those of a reference."""
    cells = " | ".join(f"{x:.3f}" for x in (*errors.tolist(), float(errors.mean())))
    print(f"| {name} | {cells} | {float(errors.mean() / reference.mean()):.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("log")
    parser.add_argument("--robot", default=str(ts.robots.panda))
    parser.add_argument("--use", type=float, default=0.7, help="part of the time that is fitted")
    parser.add_argument("--cutoff", type=float, help="of the filter [Hz]")
    args = parser.parse_args()
    print(origin(torch.get_num_threads()))
    mech = ts.load(args.robot)
    log = ts.identification.Log.load(args.log, mech.joint_names)
    train, test = log.part(0, args.use), log.part(args.use, 1)
    fit = ts.identification.identify(mech, train, cutoff=args.cutoff)
    plain = ts.identification.identify(
        mech, train, method="ols", joint_terms=[Viscous(), Coulomb(), Offset()], cutoff=args.cutoff
    )
    head = f"| | {' | '.join(mech.dof_names)} | mean | of least squares |"
    rule = "|---" * (len(mech.dof_names) + 3) + "|"
    settings = FilterSettings.of(fit.info.rate, fit.info.cutoff)
    reference = state_errors(plain, test, settings, series=False)
    print(f"\nForces of filtered states, cut-off {settings.cutoff:.3g} Hz\n\n{head}\n{rule}")
    row("least squares", reference, reference)
    row("memoryless", state_errors(fit, test, settings, series=False), reference)
    row("with memory", state_errors(fit, test, settings, series=True), reference)
    nrmse = fit.test(test).nrmse
    print(f"\nFit.test\n\n{head}\n{rule}")
    for name, errors in nrmse.items():
        row(name, errors, nrmse["least squares"])


if __name__ == "__main__":
    main()
