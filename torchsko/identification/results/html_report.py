"""A fit as a page for the browser: one file, figures inside."""

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
from torchsko.identification.friction import Offset, TermInput
from torchsko.identification.results.result import Fit
from torchsko.identification.results.summary import page
from torchsko.utils.optional_dependencies import require

STYLE = "body{font:15px sans-serif;max-width:70em;margin:2em auto}img{max-width:100%}pre{overflow-x:auto}"

SHOWN = 40
"""Dofs that have a picture of their own at most."""


def write_report(fit: Fit, path: str | os.PathLike[str]) -> None:
    """Write a fit's report: figures of forces, errors, friction and base parameters, and the text.

    Args:
        fit: from `torchsko.learn.fit`.
        path: of the HTML file; replaced where there is one.

    Raises:
        MissingExtraError: when matplotlib is not installed.
        FitError: when the file cannot be written.
    """
    figure = require("matplotlib.figure", "identify")
    parts = [
        f"<h2>{html.escape(title)}</h2>\n<p>{html.escape(_told(text, fit, draw))}</p>\n"
        f"{_image(figure, draw, fit) if _pictured(fit, draw) else ''}"
        for title, text, draw in FIGURES
    ]
    name = html.escape(fit.mechanism.name)
    told = html.escape(page(fit))
    head = f"<!doctype html><meta charset='utf-8'><title>{name}</title><style>{STYLE}</style>"
    body = f"{head}\n<h1>{name}, identified</h1>\n{''.join(parts)}\n<h2>Numbers</h2>\n<pre>{told}</pre>\n"
    try:
        Path(path).write_text(body, "utf-8")
    except OSError as error:
        raise FitError(
            f"{os.fspath(path)} cannot be written: {error.strerror or error}.",
            "A report is one file, in a folder that is there.",
            "Pass another path.",
        ) from error


def _image(module: ModuleType, draw: Callable[[Any, Fit], None], fit: Fit) -> str:
    # A figure without pyplot: no window system, no state. Its margins are ours: a layout that is solved for
    # draws everything twice.
    figure = module.Figure()
    draw(figure, fit)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=90)
    return f"<img src='data:image/png;base64,{b64encode(data.getvalue()).decode()}'>\n"


WIDTH = 12.0
"""Of figures [in]."""


def _sized(figure: Any, height: float, left: float, bottom: float, top: float = 0.1) -> None:
    """Set the size of a figure and its margins [in]."""
    figure.set_size_inches(WIDTH, height)
    figure.subplots_adjust(left / WIDTH, bottom / height, 1 - 0.1 / WIDTH, 1 - top / height)


def _longest(names: Sequence[str], points: float) -> float:
    """About how long the longest of some names is in print [in]."""
    return max(map(len, names)) * 0.6 * points / 72


def _pictured(fit: Fit, draw: Callable[[Any, Fit], None]) -> list[int]:
    """Dofs that are told of in pictures of their own: of friction those that have some."""
    some = [any(not isinstance(term, Offset) for term in terms) for terms in fit.terms]
    return [j for j, has in enumerate(some) if has or draw is not draw_friction]


def _told(text: str, fit: Fit, draw: Callable[[Any, Fit], None]) -> str:
    """What a figure shows, and which dofs it leaves out."""
    names, rest = fit.mechanism.dof_names, _pictured(fit, draw)[SHOWN:]
    if not _pictured(fit, draw):
        return "No joint has any."
    if not rest or draw not in (draw_forces, draw_friction):
        return text
    return f"{text} The first {SHOWN}; left out: {', '.join(names[j] for j in rest)}."


def _grid(figure: Any, fit: Fit, height: float, dofs: Sequence[int]) -> list[tuple[int, Any]]:
    """Dofs, and an axis of each."""
    rows = max(1, -(-len(dofs) // 2))
    _sized(figure, height * rows + 0.6, left=0.9, bottom=0.6, top=0.3)
    # Room for titles and numbers, in parts of an axis.
    room = {"hspace": 0.55 / (height - 0.55), "wspace": 0.14}
    axes = list(figure.subplots(rows, 2, squeeze=False, gridspec_kw=room).flat)
    for ax in axes[len(dofs) :]:
        ax.set_axis_off()
    names = fit.mechanism.dof_names
    for j, ax in zip(dofs, axes, strict=False):
        ax.set_title(names[j])
    return list(zip(dofs, axes, strict=False))


def _label(figure: Any, x: str, y: str) -> None:
    """Name what all axes of a grid share."""
    figure.supxlabel(x, y=0.1 / figure.get_size_inches()[1], va="bottom")
    figure.supylabel(y, x=0.1 / WIDTH, ha="left")


def draw_forces(figure: Any, fit: Fit) -> None:
    """Measured and predicted forces of each joint, and what is left."""
    left = fit.residuals
    for j, ax in _grid(figure, fit, 2.0, _pictured(fit, draw_forces)[:SHOWN]):
        ax.plot(left.t, left.tau[:, j], lw=1, label="measured")
        ax.plot(left.t, left.tau[:, j] + left.error[:, j], lw=0.8, label="predicted")
        ax.plot(left.t, left.error[:, j], lw=0.8, color="black", label="error")
    figure.axes[0].legend(fontsize="small")
    _label(figure, "time [s]", "force [N m or N]")


def draw_errors(figure: Any, fit: Fit) -> None:
    """Errors in stretches left out, beside the nominal robot's and least squares'."""
    names = fit.mechanism.dof_names
    # Bars that lie: names may be as long as they are, and joints as many.
    _sized(figure, 1.0 + 0.45 * len(names), left=0.3 + _longest(names, 10), bottom=0.6)
    ax = figure.subplots()
    width = 0.8 / len(fit.errors)
    for k, (head, error) in enumerate(fit.errors.items()):
        place = torch.arange(len(names)) + width * (k - (len(fit.errors) - 1) / 2)
        ax.barh(place, fit.residuals.relative(error), width, label=head)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlabel("error / spread of the force")
    ax.legend()


def draw_friction(figure: Any, fit: Fit) -> None:
    """Forces of the terms at each speed, at the middle of the joints' ranges and no load."""
    for j, ax in _grid(figure, fit, 1.8, _pictured(fit, draw_friction)[:SHOWN]):
        top = _top_speed(fit, j)
        v = torch.linspace(-top, top, 401, dtype=fit.phi.dtype)[:, None]
        nothing = torch.zeros_like(v)
        motion = TermInput(nothing, v, nothing, nothing, ordered=False)
        total = torch.zeros_like(v)
        for term, x in zip(fit.terms[j], fit.numbers[j], strict=True):
            if not isinstance(term, Offset):
                total = total + x * term.basis(motion)
        ax.plot(v[:, 0], total[:, 0])
        ax.grid(alpha=0.3)
    _label(figure, "velocity [rad/s or m/s]", "force [N m or N]")


def _top_speed(fit: Fit, dof: int) -> float:
    """Up to which speed a picture goes: that of the log, beyond which nobody saw friction.

    A robot's limit is no measure of it: files say 0 where nobody knew, or a number that is never reached.
    """
    seen = fit.residuals.speed
    top = fit.nominal.velocity_limit[dof] if seen is None else seen[dof]
    return float(top) if bool((top > 0) & top.isfinite()) else 2.0


def draw_base(figure: Any, fit: Fit) -> None:
    """Base parameters over their standard deviation by the data, with those of the nominal robot."""
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
    ax.plot((fit.least_squares - fit.value) / scale, rows, "+", label="least squares")
    ax.set_xscale("symlog", linthresh=3)
    ax.set_yticks(rows, names, fontsize=7)
    ax.invert_yaxis()  # in the order of the text below
    ax.set_xlabel("away from the fit, in standard deviations by the data")
    ax.legend()


FIGURES: tuple[tuple[str, str, Callable[[Any, Fit], None]], ...] = (
    ("Forces", "Filtered, of the whole log.", draw_forces),
    ("Errors in time left out", "By cross-validation, over the spread of each force.", draw_errors),
    (
        "Friction",
        "What the terms give at each speed that the log has, offsets left out.",
        draw_friction,
    ),
    (
        "Base parameters",
        "Combinations that forces depend on, named by the number that leads.",
        draw_base,
    ),
)
