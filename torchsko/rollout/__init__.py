"""Simulation: integrators as data, and rollouts that gradients pass through."""
