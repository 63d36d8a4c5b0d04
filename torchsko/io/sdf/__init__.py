"""Read SDF models."""
