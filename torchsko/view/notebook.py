"""A robot, or its motion, in a notebook: a page of its own that needs no server. Needs the extra `view`."""

from __future__ import annotations

import html
import io
import os
from pathlib import Path

from torch import Tensor

from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.utils.optional_dependencies import require
from torchsko.view.argument_checks import tensor_of
from torchsko.view.output_files import check_folder
from torchsko.view.playback import motion_of
from torchsko.view.render import picture
from torchsko.view.scene import Kind
from torchsko.view.viser_scene import Figure, look, quiet

HEIGHT = 420
"""Of what a cell shows, in pixels."""


class Shown:
    """What a cell shows: a page to turn, and to play where it is a motion; a picture where no page can be.

    Attributes:
        page: the page's source, some 800 kB and what is drawn; `save` writes it to a file.
    """

    def __init__(self, page: str, still: bytes | None, told: str) -> None:
        self.page, self._still, self._told = page, still, told

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file that any browser opens.

        Raises:
            RobotFileError: when its folder is not there.
        """
        check_folder(path)
        Path(path).write_text(self.page, encoding="utf-8")

    def __repr__(self) -> str:
        return self._told

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> dict[str, object]:
        frame = (
            f'<iframe srcdoc="{html.escape(self.page)}" width="100%" height="{HEIGHT}" '
            'frameborder="0"></iframe>'
        )
        found: dict[str, object] = {"text/plain": self._told, "text/html": frame}
        if self._still is not None:
            found["image/png"] = self._still
        return found


def show(
    mech: MechanismLike,
    qs: Tensor | None = None,
    *,
    dt: float = 0.02,
    kind: Kind = "visual",
) -> Shown:
    """A robot in a notebook, to be turned by the mouse; as the last line of a cell.

    Args:
        mech: the robot.
        qs: a configuration `[num_q]`, or a motion `[steps, num_q]`, which plays; the neutral one, or the
            nearest that limits allow, when left out.
        dt: time between two configurations of a motion [s].
        kind: "visual" or "collision" shapes, or "inertia".

    Returns:
        What the cell shows; `Shown.save` writes it to a file.

    Raises:
        MissingExtraError: when viser is not installed.
        ShapeError: when qs does not fit.

    A `RobotFileWarning` names shapes that cannot be drawn, such as meshes that are not there.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> page = ts.show(arm)  # doctest: +SKIP
        >>> page.save("panda.html")  # doctest: +SKIP
    """
    viser = require("viser", "view")
    mech = as_mechanism(mech)
    with quiet():
        server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
        try:
            server.scene.set_up_direction("+z")
            rows = None if qs is None else tensor_of(mech, qs)
            rows = rows[None] if rows is not None and rows.ndim == 1 else rows
            motion = None if rows is None else motion_of(mech, rows, dt)
            figure = Figure(server, "/robot", mech, None if motion is None else motion.q)
            figure.draw(kind)
            motion = motion or motion_of(mech, figure.q[None], dt)
            look(server, figure.corners(motion.q))
            recording = server.get_scene_serializer()
            if len(motion.q) > 1:
                for row in motion.q:
                    figure.move(row)
                    recording.insert_sleep(dt)
            page = recording.as_html()
        finally:
            server.stop()
    still = io.BytesIO()
    picture(mech, motion.q[len(motion.q) // 2], kind=kind).save(still, format="png")
    told = f"{mech.name}: {len(motion.q)} configurations" if len(motion.q) > 1 else mech.name
    return Shown(page, still.getvalue(), told)
