"""Actuators and tendons: from controls to joint forces."""
