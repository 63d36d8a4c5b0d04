"""Actuators: from controls to joint forces."""
