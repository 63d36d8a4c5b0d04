"""The version, which stands in pyproject.toml alone."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path


def version() -> str:
    """The version of torchsko: as installed, or, not installed, as in the checkout it lies in."""
    try:
        return metadata.version("torchsko")
    except metadata.PackageNotFoundError:
        import tomllib  # only ever needed in a checkout

        project = Path(__file__).parents[1] / "pyproject.toml"
        return tomllib.loads(project.read_text("utf-8"))["project"]["version"]
