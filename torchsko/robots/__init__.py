"""Robot descriptions that ship with the package; each names the source of its figures."""

from pathlib import Path

panda: Path = Path(__file__).with_name("panda.urdf")
"""Franka Emika Panda, 7 joints; dynamics as identified by Gaz et al., 2019."""
