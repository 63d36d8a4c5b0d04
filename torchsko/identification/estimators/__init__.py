"""Estimators of inertial and friction parameters."""
