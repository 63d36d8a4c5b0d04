"""Shared parts of the readers and writers: numbers, sources, faults, meshes, inertias."""
