"""A robot with two dofs, whose kernels compile quickly, and states of it."""

import torch

import torchsko as ts


def slider():
    """A pole on a cart on a rail."""
    return (
        ts.MechanismBuilder("slider")
        .link("cart", mass=1.0, inertia=[[0.1, 0, 0], [0, 0.1, 0], [0, 0, 0.1]])
        .joint("rail", "prismatic", child="cart", axis=[1, 0, 0])
        .link("pole", mass=0.5, com=[0, 0, 0.4], inertia=[[0.1, 0, 0], [0, 0.1, 0], [0, 0, 0.1]])
        .joint("hinge", "revolute", child="pole", parent="cart", axis=[0, 1, 0])
        .build()
    )


def four_states():
    """Four states (q, qd) of the slider."""
    return slider().random_state(4, generator=torch.Generator().manual_seed(0))


def driven(policy):
    """One step under a policy, as users write it."""

    def step(mech, q, qd):
        tau = policy(torch.cat([q, qd], -1))
        return qd + 0.01 * ts.forward_dynamics(mech, q, qd, tau)

    return step
