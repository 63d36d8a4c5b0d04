"""Conversion of compiled MuJoCo models to descriptions."""
