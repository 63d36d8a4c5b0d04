"""Rotations, rigid transforms, spatial vectors and inertias; nothing here knows about trees."""
