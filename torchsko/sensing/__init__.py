"""Sensors of a mechanism: readings of joints, actuators, frames, contacts and subtrees."""
