"""Interactive views of robots and motions in notebooks. Needs the extra `view`."""

from __future__ import annotations

import html
import io
import os
from pathlib import Path

from torch import Tensor

from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.utils.optional_dependencies import require
from torchsko.view.option_checks import check_folder, tensor_of
from torchsko.view.playback import motion_of
from torchsko.view.render import picture
from torchsko.view.scene import Kind
from torchsko.view.viser_scene import ViserRobot, place_camera, silence_viser

CELL_HEIGHT = 420
"""Height of the view in a notebook cell, in pixels."""


class NotebookView:
    """An interactive page for a notebook cell, with a picture for viewers that show no HTML.

    Attributes:
        page: HTML source, about 800 kB and the shapes; `save` writes it to a file.
    """

    def __init__(self, page: str, picture: bytes | None, text: str) -> None:
        self.page, self._picture, self._text = page, picture, text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to an HTML file.

        Raises:
            RobotFileError: if the folder does not exist.
        """
        check_folder(path)
        Path(path).write_text(self.page, encoding="utf-8")

    def __repr__(self) -> str:
        return self._text

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> dict[str, object]:
        frame = (
            f'<iframe srcdoc="{html.escape(self.page)}" width="100%" height="{CELL_HEIGHT}" '
            'frameborder="0"></iframe>'
        )
        bundle: dict[str, object] = {"text/plain": self._text, "text/html": frame}
        if self._picture is not None:
            bundle["image/png"] = self._picture
        return bundle


def show(
    mech: MechanismLike,
    qs: Tensor | None = None,
    *,
    dt: float = 0.02,
    kind: Kind = "visual",
) -> NotebookView:
    """Show a robot or a motion in a notebook; call it in the last line of a cell.

    Args:
        mech: the robot.
        qs: a configuration `[num_q]`, or a motion `[steps, num_q]` to play. When left out: the initial
            configuration of the file, moved into the joint limits.
        dt: time between two configurations of a motion [s].
        kind: "visual" or "collision" shapes, or "inertia".

    Returns:
        The view; `NotebookView.save` writes it to an HTML file.

    Raises:
        MissingExtraError: if viser is not installed.
        ShapeError: if the shape of qs does not fit.

    A `RobotFileWarning` names shapes that cannot be drawn, such as missing meshes.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> page = ts.show(arm)  # doctest: +SKIP
        >>> page.save("panda.html")  # doctest: +SKIP
    """
    viser = require("viser", "view")
    mech = as_mechanism(mech)
    with silence_viser():
        server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
        try:
            server.scene.set_up_direction("+z")
            rows = None if qs is None else tensor_of(mech, qs)
            rows = rows[None] if rows is not None and rows.ndim == 1 else rows
            motion = None if rows is None else motion_of(mech, rows, dt)
            robot = ViserRobot(server, "/robot", mech, None if motion is None else motion.q)
            robot.draw(kind)
            motion = motion or motion_of(mech, robot.q[None], dt)
            place_camera(server, robot.corners(motion.q))
            recording = server.get_scene_serializer()
            if len(motion.q) > 1:
                for row in motion.q:
                    robot.move(row)
                    recording.insert_sleep(dt)
            page = recording.as_html()
        finally:
            server.stop()
    png = io.BytesIO()
    picture(mech, motion.q[len(motion.q) // 2], kind=kind).save(png, format="png")
    text = f"{mech.name}: {len(motion.q)} configurations" if len(motion.q) > 1 else mech.name
    return NotebookView(page, png.getvalue(), text)
