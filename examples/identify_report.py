"""Tables and figure of 02_identify.py; robots are {"true": ..., "start": ..., "identified": ...}."""

import torch

import torchsko as ts
from torchsko.utils.optional_dependencies import require


def table(names, groups):
    """Print groups of named columns of numbers, one row per name."""
    lines = [f"{'':8}", f"{'':8}", *(f"{name:8}" for name in names)]
    for title, columns in groups.items():
        lines[0] += "   " + f"{title:>{11 * len(columns)}}"
        lines[1] += "   " + "".join(f"{header:>11}" for header in columns)
        for row in range(len(names)):
            numbers = (f"{values[row].item():11.3f}" for values in columns.values())
            lines[row + 2] += "   " + "".join(numbers)
    print("\n" + "\n".join(lines))


def print_tables(robots, errors, base):
    """Print what is identified first: torque errors and base parameters; then single parameters."""
    truth = robots["true"]
    guesses = {name: mech for name, mech in robots.items() if name != "true"}
    table(truth.joint_names, {"torque error, held out [N m]": errors})
    print("(the error of the true robot is the sensor noise)\n")

    true = ts.inertial_parameters(truth).flatten()
    for name, mech in guesses.items():
        miss = ts.inertial_parameters(mech).flatten() - true
        percent = 100 * (base @ miss).norm() / (base @ true).norm()
        print(f"{name}: error of the identifiable parameter combinations {percent:.1f} %")
    damping = {name: mech.damping for name, mech in robots.items()}
    friction = {name: mech.friction for name, mech in robots.items()}
    table(truth.joint_names, {"damping [N m s]": damping, "dry friction [N m]": friction})
    error = {name: 1e3 * (mech.com - truth.com).norm(dim=-1) for name, mech in guesses.items()}
    mass = {name: mech.mass for name, mech in robots.items()}
    table(truth.body_names, {"mass [kg]": mass, "error of the com [mm]": error})
    print(
        f"Torques depend on {base.shape[0]} combinations of the {true.numel()} inertial parameters, and "
        "only these are identified.\nSingle masses and centers of mass, such as the mass of link1, "
        "are not identifiable and may stay wrong."
    )


def figure(path, robots, errors, held_out, moving):
    """Plot measured against predicted torque on the held-out trajectory, before and after the fit."""
    require("matplotlib", "identify").use("Agg")
    plt = require("matplotlib.pyplot", "identify")
    q, qd, qdd, tau = held_out
    looks = {"start": ("tab:orange", "before"), "identified": ("tab:blue", "after")}
    panels, axes = plt.subplots(2, 4, figsize=(13, 6.5), layout="constrained")
    for joint, ax in enumerate(axes.flat[:-1]):
        mask = moving[:, joint]
        for name, (color, label) in looks.items():
            predicted = ts.inverse_dynamics(robots[name], q, qd, qdd)[mask, joint]
            ax.plot(tau[mask, joint], predicted, ".", ms=2, alpha=0.5, color=color, label=label)
        ax.axline((0, 0), slope=1, color="black", lw=0.8)
        ax.set(title=robots["true"].joint_names[joint])
    for name, (color, label) in looks.items():
        shift = -0.2 if name == "start" else 0.2
        axes[1, 3].bar(torch.arange(1, 8) + shift, errors[name], 0.4, color=color, label=label)
    axes[1, 3].axhline(errors["true"].mean(), color="black", lw=0.8, ls="--", label="sensor noise")
    axes[1, 3].set(title="rms torque error [N m]", xlabel="joint", xticks=range(1, 8))
    axes[1, 3].legend()
    panels.suptitle("Torques on a held-out trajectory before and after identification")
    panels.supxlabel("measured torque [N m]")
    panels.supylabel("predicted torque [N m]")
    panels.savefig(path, dpi=120)
    return path
