"""Excitation trajectories: random and optimal periodic motions within the limits of a robot."""
