"""HTML report of a fit, with figures, in one file."""

from __future__ import annotations

import html
import io
import os
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torchsko.errors import FitError
from torchsko.identification.diagnostics.findings import Severity
from torchsko.identification.friction import Offset, TermInput
from torchsko.identification.results.error_table import column_title
from torchsko.identification.results.result import Fit
from torchsko.identification.results.scores import Scores
from torchsko.identification.results.summary import (
    FINDINGS,
    header,
    numbers,
    results,
    unused_section,
)
from torchsko.utils.optional_dependencies import require

STYLE = "body{font:15px sans-serif;max-width:70em;margin:2em auto}img{max-width:100%}pre{overflow-x:auto}"

MAX_DOFS = 40
"""Number of dofs with their own axes."""


def write_report(fit: Fit, path: str | os.PathLike[str], scores: Scores | None = None) -> None:
    """Write an HTML report: prediction errors, findings, figures and numbers, in one file.

    Args:
        fit: from `torchsko.identification.identify`.
        path: of the HTML file, which is replaced if it exists.
        scores: prediction errors on a log that the fit did not use.

    Raises:
        MissingExtraError: when matplotlib is not installed.
        FitError: when the file cannot be written.
    """
    figure = require("matplotlib.figure", "identify")
    name = html.escape(fit.mechanism.name)
    figures = (
        f"<h2>{html.escape(title)}</h2>\n<p>{html.escape(_caption(text, fit, draw))}</p>\n"
        f"{_image(figure, draw, fit) if _pictured(fit, draw) else ''}"
        for title, text, draw in FIGURES
    )
    errors, text, unused = (
        _preformatted(x) for x in (results(fit, scores), numbers(fit), [unused_section(fit)])
    )
    parts = [
        f"<!doctype html><meta charset='utf-8'><title>{name}</title><style>{STYLE}</style>",
        f"<h1>Identification of {name}</h1>",
        *(f"<p>{html.escape(line)}</p>" for line in header(fit)),
        errors,
        *(_findings(fit, title, level) for title, level in FINDINGS),
        *figures,
        f"<h2>Numbers</h2>\n{text}",
        unused,
    ]
    try:
        Path(path).write_text("\n".join(parts) + "\n", "utf-8")
    except OSError as error:
        raise FitError(
            f"{os.fspath(path)} cannot be written: {error.strerror or error}.",
            "",
            "Pass a path in an existing folder.",
        ) from error


def _preformatted(sections: Sequence[Sequence[str]]) -> str:
    """Sections of lines as preformatted text; empty if there are none."""
    text = "\n\n".join("\n".join(lines) for lines in sections if lines)
    return f"<pre>{html.escape(text)}</pre>" if text else ""


def _findings(fit: Fit, title: str, severity: Severity) -> str:
    """A list of the findings of one severity."""
    items = "\n".join(
        f"<li>{html.escape(str(x))} <code>{x.code}</code></li>"
        for x in fit.findings
        if x.severity == severity
    )
    return f"<h2>{title}</h2>\n<ul>\n{items}\n</ul>" if items else ""


def _image(module: ModuleType, draw: Callable[[Any, Fit], None], fit: Fit) -> str:
    # Without pyplot there is no global state. Margins are set by hand, because automatic layout draws twice.
    figure = module.Figure()
    draw(figure, fit)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=90)
    return f"<img src='data:image/png;base64,{b64encode(data.getvalue()).decode()}'>\n"


WIDTH = 12.0
"""Width of figures [in]."""


def _sized(figure: Any, height: float, left: float, bottom: float, top: float = 0.1) -> None:
    """Set the size of a figure and its margins [in]."""
    figure.set_size_inches(WIDTH, height)
    figure.subplots_adjust(left / WIDTH, bottom / height, 1 - 0.1 / WIDTH, 1 - top / height)


def _longest(names: Sequence[str], points: float) -> float:
    """Approximate printed length of the longest name [in]."""
    return max(map(len, names)) * 0.6 * points / 72


def _pictured(fit: Fit, draw: Callable[[Any, Fit], None]) -> list[int]:
    """Dofs with their own axes; for friction, those with a term other than an offset."""
    some = [any(not isinstance(term, Offset) for term in terms) for terms in fit.terms]
    return [j for j, has in enumerate(some) if has or draw is not draw_friction]


def _caption(text: str, fit: Fit, draw: Callable[[Any, Fit], None]) -> str:
    """Caption of a figure, with the dofs that it leaves out."""
    names, rest = fit.row_names, _pictured(fit, draw)[MAX_DOFS:]
    if not _pictured(fit, draw):
        return "No joint has friction terms."
    if not rest or draw not in (draw_forces, draw_friction):
        return text
    return f"{text} The first {MAX_DOFS} dofs; not shown: {', '.join(names[j] for j in rest)}."


def _grid(figure: Any, fit: Fit, height: float, dofs: Sequence[int]) -> list[tuple[int, Any]]:
    """A grid of axes, one for each dof."""
    rows = max(1, -(-len(dofs) // 2))
    _sized(figure, height * rows + 0.6, left=0.9, bottom=0.6, top=0.3)
    # Space for titles and tick labels, in fractions of an axis.
    room = {"hspace": 0.55 / (height - 0.55), "wspace": 0.14}
    axes = list(figure.subplots(rows, 2, squeeze=False, gridspec_kw=room).flat)
    for ax in axes[len(dofs) :]:
        ax.set_axis_off()
    names = fit.row_names
    for j, ax in zip(dofs, axes, strict=False):
        ax.set_title(names[j])
    return list(zip(dofs, axes, strict=False))


def _label(figure: Any, x: str, y: str) -> None:
    """Label the axes of a grid."""
    figure.supxlabel(x, y=0.1 / figure.get_size_inches()[1], va="bottom")
    figure.supylabel(y, x=0.1 / WIDTH, ha="left")


def draw_forces(figure: Any, fit: Fit) -> None:
    """Draw measured and predicted forces of each joint, and their difference."""
    left = fit.residuals
    for j, ax in _grid(figure, fit, 2.0, _pictured(fit, draw_forces)[:MAX_DOFS]):
        ax.plot(left.t, left.tau[:, j], lw=1, label="measured")
        ax.plot(left.t, left.tau[:, j] + left.error[:, j], lw=0.8, label="predicted")
        ax.plot(left.t, left.error[:, j], lw=0.8, color="black", label="error")
    figure.axes[0].legend(fontsize="small")
    _label(figure, "time [s]", "force [N m or N]")


def draw_errors(figure: Any, fit: Fit) -> None:
    """Draw prediction errors of the fit, the nominal robot and least squares."""
    names = fit.row_names
    # Horizontal bars leave space for long names and many joints.
    _sized(figure, 1.0 + 0.45 * len(names), left=0.3 + _longest(names, 10), bottom=0.6)
    ax = figure.subplots()
    width = 0.8 / len(fit.errors)
    for k, (head, error) in enumerate(fit.errors.items()):
        place = torch.arange(len(names)) + width * (k - (len(fit.errors) - 1) / 2)
        ax.barh(place, fit.residuals.relative(error), width, label=column_title(head))
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlabel("error / spread of the force")
    ax.legend()


def draw_friction(figure: Any, fit: Fit) -> None:
    """Draw the force of the terms against speed, at position 0 and without load, and measured points."""
    for j, ax in _grid(figure, fit, 1.8, _pictured(fit, draw_friction)[:MAX_DOFS]):
        top = _top_speed(fit, j)
        v = torch.linspace(-top, top, 401, dtype=fit.phi.dtype)[:, None]
        nothing = torch.zeros_like(v)
        motion = TermInput(nothing, v, nothing, nothing, ordered=False)
        total = torch.zeros_like(v)
        for term, x in zip(fit.terms[j], fit.numbers[j], strict=True):
            if not isinstance(term, Offset):
                total = total + x * term.basis(motion)
        ax.plot(v[:, 0], total[:, 0], label="fit", zorder=3)
        if fit.residuals.rates is not None:
            # Residuals of the whole model are those of friction if the rigid robot is right.
            rate, error = fit.residuals.rates[:, j], fit.residuals.error[:, j]
            place = (rate * (len(v) - 1) / (2 * top) + len(v) // 2).round().long()
            near = (place >= 0) & (place < len(v))
            points = total[place[near], 0] - error[near]
            ax.plot(rate[near], points, ".", ms=2, alpha=0.4, color="tab:gray", label="measured")
        ax.grid(alpha=0.3)
    if fit.residuals.rates is not None:
        figure.axes[0].legend(fontsize="small")
    _label(figure, "velocity [rad/s or m/s]", "force [N m or N]")


def _top_speed(fit: Fit, dof: int) -> float:
    """Largest speed of a figure: that of the log. Velocity limits of robot files are often 0 or too large."""
    seen = fit.residuals.speed
    top = fit.nominal.velocity_limit[dof] if seen is None else seen[dof]
    return float(top) if bool((top > 0) & top.isfinite()) else 2.0


def draw_base(figure: Any, fit: Fit) -> None:
    """Draw nominal and least-squares base parameters relative to the fit, in standard errors."""
    count = len(fit.base)
    names = [name.split(" + ")[0].split(" - ")[0] for name in fit.base.names]
    _sized(figure, max(4.0, 0.22 * count), left=0.2 + _longest(names, 7), bottom=0.5)
    ax = figure.subplots()
    rows = torch.arange(count)
    scale = fit.deviation.clamp_min(1e-300)
    nominal = fit.base.of(fit.nominal_numbers)
    ax.axvspan(-3, 3, alpha=0.1)
    ax.plot(torch.zeros(count), rows, "o", label="fit")
    ax.plot((nominal - fit.value) / scale, rows, "x", label="nominal")
    ax.plot((fit.least_squares - fit.value) / scale, rows, "+", label="unweighted least squares")
    ax.set_xscale("symlog", linthresh=3)
    ax.set_yticks(rows, names, fontsize=7)
    ax.invert_yaxis()  # in the order of the text
    ax.set_xlabel("difference from the fit, in standard errors")
    ax.legend()


FIGURES: tuple[tuple[str, str, Callable[[Any, Fit], None]], ...] = (
    ("Forces", "Filtered forces over the log.", draw_forces),
    (
        "Prediction errors",
        "In time intervals that the fit did not use, divided by the standard deviation of the force.",
        draw_errors,
    ),
    (
        "Friction",
        "Force of the joint terms against speed, without offsets, and measured forces without those of the "
        "identified rigid robot.",
        draw_friction,
    ),
    (
        "Base parameters",
        "Combinations of inertial parameters that determine forces, named by their first parameter.",
        draw_base,
    ),
)
"""Title, caption and drawing function of each figure."""
