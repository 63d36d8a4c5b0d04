"""Synthesis of a four-bar linkage: closure points by gradients, so that a coupler point follows a line.

Run ``python examples/19_four_bar_synthesis.py``.
"""

import torch

import torchsko as ts


def linkage() -> ts.Mechanism:
    builder = ts.MechanismBuilder("four-bar")
    for child, parent, x in (("crank", None, 0.0), ("rod", "crank", 0.2), ("rocker", None, 0.5)):
        builder.link(child, mass=1.0, com=(0.1, 0, 0), inertia=(0.01 * torch.eye(3)).tolist())
        builder.joint(f"{child}_joint", "revolute", child=child, parent=parent, position=(x, 0, 0))
    builder.close(
        "loop", "planar", "rod", (0.5, 0, 0), "rocker", (0.4, 0, 0), independent=["crank_joint"]
    )
    return builder.build()


def coupler_curve(bar: ts.Mechanism, points: torch.Tensor, steps: int = 12) -> torch.Tensor:
    """Positions of the middle of the rod for a range of crank angles, `[steps, 2]`."""
    robot = bar.replace(frame_position=points)
    q, tracer = bar.neutral(), ts.Frame("rod", position=points.new_tensor([0.25, 0.15, 0.0]))
    angle, curve = torch.full((1,), 0.08, dtype=points.dtype), []
    for _ in range(steps):
        q = ts.integrate(robot, q, angle)
        curve.append(ts.frame_pose(robot, q, tracer).position[:2])
    return torch.stack(curve)


def main(rounds: int = 30) -> tuple[float, float]:
    bar = linkage()
    points = bar.frame_position.clone().requires_grad_()
    optimizer = torch.optim.Adam([points], lr=3e-3)
    errors = []
    for _ in range(rounds):
        curve = coupler_curve(bar, points)
        error = (curve[:, 1] - curve[:, 1].mean()).square().mean().sqrt()
        errors.append(error.item())
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
    print(
        f"deviation from a horizontal line: {1e3 * errors[0]:.2f} mm -> {1e3 * errors[-1]:.2f} mm"
    )
    return errors[0], errors[-1]


if __name__ == "__main__":
    main()
