"""Table of prediction errors as text, with a verdict for each dof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

COLUMN_WIDTH = 19
"""Width of a column [characters]."""

MAX_ERRORS: Mapping[str, float] = {"good": 0.1, "fair": 0.3}
"""Largest relative error for each verdict; above, it is "poor". An error of 0.3 is 91 % of the variance
explained, an error of 0.1 is 99 %."""


COLUMN_TITLES: Mapping[str, str] = {
    "nominal": "nominal + friction",
    "least squares": "unweighted LS",
    "with memory": "fit with memory",
}
"""Titles of the columns of models; others are methods, "fit (physical)"."""

LEGEND: Mapping[str, str] = {
    "nominal": "nominal + friction: the nominal robot with fitted viscous and dry friction and offsets.",
    "least squares": "unweighted LS: ordinary least squares without physical bounds, with this friction. All "
    "joints have equal weight, so errors of joints with small forces are large.",
}
"""Explanations of columns of models."""


def column_title(model: str) -> str:
    """Title of a model of a fit."""
    return COLUMN_TITLES.get(model, f"fit ({model})")


def error_table(
    names: Sequence[str], absolute: Mapping[str, Tensor], relative: Mapping[str, Tensor]
) -> list[str]:
    """Lines of a table of errors, with one row for each dof and one column for each model.

    The verdict is that of the last model.

    Args:
        names: names of the dofs.
        absolute: root mean square errors of each model, `[num_dof]`.
        relative: these divided by the standard deviation of the force, nan for constant forces, `[num_dof]`.
    """
    width, judged = max(map(len, names)), list(relative.values())[-1]
    heads = "".join(f"{column_title(x):>{COLUMN_WIDTH}}" for x in absolute)
    lines = [" " * width + heads + "  verdict"]
    for j, name in enumerate(names):
        cells = (_cell(relative[head][j], error[j]) for head, error in absolute.items())
        lines.append(f"{name.ljust(width)}{''.join(cells)}  {verdict(float(judged[j]))}")
    starred = any("*" in line for line in lines[1:])
    means = (f"{float(x.nanmean()):{COLUMN_WIDTH}.3f}" for x in relative.values())
    lines.append("mean".ljust(width) + "".join(means))
    limits = ", ".join(f"{name}: at most {limit}" for name, limit in MAX_ERRORS.items())
    lines.append(f"Verdict: {limits}; poor: above.")
    lines += [LEGEND[x] for x in absolute if x in LEGEND]
    if starred:
        lines.append("* constant force: error in N m or N, not in the mean")
    return lines


def verdict(error: float) -> str:
    """Verdict on a relative error, "-" for nan."""
    if error != error:
        return "-"
    return next((name for name, limit in MAX_ERRORS.items() if error <= limit), "poor")


def _cell(relative: Tensor, absolute: Tensor) -> str:
    """A relative error; an absolute one with a mark if the force is constant, "-" if it was not measured."""
    if bool(relative.isnan()) and float(absolute) == 0:
        return f"{'-':>{COLUMN_WIDTH}}"
    if bool(relative.isnan()):
        return f"{float(absolute):{COLUMN_WIDTH - 1}.3g}*"
    return f"{float(relative):{COLUMN_WIDTH}.3f}"
