"""Load a robot and differentiate its dynamics: Jacobians of accelerations with torch.func."""

import torch
from torch.func import jacfwd, jacrev, vmap

import torchsko as ts


def main():
    arm = ts.load(ts.robots.panda)
    print(arm)
    generator = torch.Generator().manual_seed(0)
    q, qd = arm.random_state(256, generator=generator)
    tau = torch.zeros_like(qd)

    qdd = ts.forward_dynamics(arm, q, qd, tau)
    print(
        f"\n{len(q)} states in one call; accelerations of the first one, without torque [rad/s^2]:"
    )
    print(
        " ".join(
            f"{joint}: {value:.2f}" for joint, value in zip(arm.joint_names, qdd[0], strict=True)
        )
    )
    back = ts.inverse_dynamics(arm, q, qd, qdd)
    print(f"inverse dynamics returns the torques to within {(back - tau).abs().max():.1e} N m")

    def accelerate(q, qd, tau):
        return ts.forward_dynamics(arm, q, qd, tau)

    by_q, by_qd, by_tau = vmap(jacrev(accelerate, argnums=(0, 1, 2)))(q, qd, tau)
    forward = vmap(jacfwd(accelerate))(q, qd, tau)
    print(
        f"\nJacobians d qdd / d q, d qd, d tau: {[tuple(J.shape) for J in (by_q, by_qd, by_tau)]}"
    )
    print(f"reverse and forward mode agree to within {relative(forward, by_q):.1e}")

    minv = torch.linalg.inv(ts.mass_matrix(arm, q))
    print(f"d qdd / d tau is the inverse mass matrix to within {relative(by_tau, minv):.1e}")

    # Gradients to physical parameters: the effect of a heavier hand on the accelerations.
    def with_load(mass):
        return ts.forward_dynamics(arm.replace(mass=arm.mass + mass), q[0], qd[0], tau[0])

    effect = jacfwd(with_load)(torch.zeros_like(arm.mass))[:, -1]
    print("\nAcceleration of each joint per kilogram added to the last link, first state:")
    print(
        " ".join(
            f"{joint}: {value:+.2f}" for joint, value in zip(arm.joint_names, effect, strict=True)
        )
    )


def relative(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


if __name__ == "__main__":
    main()
