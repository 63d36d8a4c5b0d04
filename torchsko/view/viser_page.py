"""A page that shows robots in a browser: sliders, frames, playback. Needs the extra `view` (viser)."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.joints.configuration import difference, integrate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.optional_dependencies import require
from torchsko.view.playback import Motion
from torchsko.view.server import address_of, free_port
from torchsko.view.viser_scene import Figure, look, quiet

RATE = 30.0
"""Pictures of a playback in a second."""

MOVES = {"wx": "turn x", "wy": "turn y", "wz": "turn z", "vx": "x", "vy": "y", "vz": "z"}
"""What a slider moves, by the rate of a free or spherical joint."""

TOGGLES = ("frames", "names", "center of mass", "contacts")


class Page:
    """A page that is being served; `close` ends it.

    Attributes:
        figures: the robots.
        sliders: of each robot, one for each dof, in the order of qd.
        playing: the checkbox that plays the motions; None where there are none.
        clock: the slider of time [s]; None likewise.
    """

    def __init__(
        self,
        robots: Sequence[MechanismLike],
        motions: Sequence[Motion | None] = (),
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        kind: Any = "visual",
    ) -> None:
        """Serve robots side by side, each with its motion.

        Args:
            robots: one or more.
            motions: of each; None where it has none, or all left out.
            host: who may look: this machine, or "0.0.0.0": whoever reaches it.
            port: of the page; the next one that is free.
            kind: what is drawn first: "visual", "collision" or "inertia".

        Raises:
            MissingExtraError: when viser is not installed.
            MechanismError: when there is no robot.
            TorchskoError: when the host is none of this machine's, or no port is free.
        """
        viser = require("viser", "view")
        mechs = [as_mechanism(robot) for robot in robots]
        if not mechs:
            raise MechanismError(
                "no robot was given.",
                "A page shows one or more.",
                "Pass a mechanism.",
            )
        self._motions = [*motions, *[None] * (len(mechs) - len(motions))]
        self._host = host
        self._lock, self._open, self._following = threading.RLock(), True, False
        with quiet():
            self.server = viser.ViserServer(host=host, port=free_port(host, port), verbose=False)
        self.server.scene.set_up_direction("+z")
        self.figures: list[Figure] = []
        self.sliders: list[list[Any]] = []
        self._place(mechs)
        for figure in self.figures:
            figure.draw(kind)
        self._toggles(kind)
        self.clock, self.playing = self._playback()
        for title, figure, motion in zip(_titles(mechs), self.figures, self._motions, strict=True):
            self.sliders.append(self._joints(title, figure, motion))
        self._look()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Of the page."""
        return self.server.get_port()

    @property
    def address(self) -> str:
        """What to type into the browser."""
        return address_of(self._host, self.port)

    def close(self) -> None:
        """End the page."""
        self._open = False
        self._thread.join()
        with quiet():
            self.server.stop()

    def seek(self, t: float) -> None:
        """Show all motions a time after their starts [s]."""
        with self._lock:
            for figure, motion in zip(self.figures, self._motions, strict=True):
                if motion is not None:
                    k = motion.at(float(motion.t[0]) + t)
                    points = None if motion.contacts is None else motion.contacts[k]
                    figure.move(motion.q[k], points)

    def _place(self, mechs: Sequence[Mechanism]) -> None:
        """The robots in a row along y, all on one ground."""
        for k, (mech, motion) in enumerate(zip(mechs, self._motions, strict=True)):
            ways = None if motion is None else motion.q
            figure = Figure(self.server, f"/robot{k}", mech, ways)
            if self.figures:
                figure.stand_beside(self.figures[-1])
            self.figures.append(figure)
        size = max(figure.size for figure in self.figures)
        cell = 10.0 ** math.floor(math.log10(max(size, 1e-6)))
        self.server.scene.add_grid(
            "/ground", width=20 * cell, height=20 * cell, cell_size=cell / 2, section_size=cell,
            cell_color=(228, 229, 232), section_color=(205, 207, 212), plane="xy",
            position=(0.0, 0.0, -1e-3 * size),
        )  # fmt: skip

    def _look(self) -> None:
        """The camera before the robots."""
        corners = np.concatenate([figure.corners(figure.q) for figure in self.figures])
        look(self.server, corners, aside=0.15)

    def _toggles(self, kind: str) -> None:
        gui = self.server.gui
        drawn = gui.add_dropdown("drawn", ("visual", "collision", "inertia"), initial_value=kind)

        @drawn.on_update
        def _(_: Any) -> None:
            with self._lock:
                for figure in self.figures:
                    figure.draw(drawn.value)

        for what in TOGGLES:
            self._toggle(what, gui.add_checkbox(what, False))

    def _toggle(self, what: str, box: Any) -> None:
        @box.on_update
        def _(_: Any) -> None:
            with self._lock:
                for figure in self.figures:
                    figure.show(what, box.value)

    def _joints(self, title: str, figure: Figure, motion: Motion | None) -> list[Any]:
        """A slider for each dof: displacements from the neutral configuration, and so q of most joints."""
        mech, gui, found = figure.mech, self.server.gui, []
        ways = figure.q[None] if motion is None else motion.q
        start = ways[0]
        with gui.add_folder(title, expand_by_default=len(self.figures) == 1):
            for label, low, high, value in _ranges(mech, ways):
                step = (high - low) / 1000 or 1e-3
                value = min(max(value, low), high)
                found.append(gui.add_slider(label, low, high, step, initial_value=value))

            def moved(event: Any) -> None:
                with self._lock:
                    if self._following:
                        return
                    if (
                        self.playing is not None
                        and self.playing.value
                        and event.client_id is not None
                    ):
                        self.playing.value = False
                        self._follow(besides=event.target)
                    xi = torch.tensor(
                        [float(slider.value) for slider in found],
                        dtype=mech.dtype,
                        device=mech.device,
                    )
                    figure.move(integrate(mech, mech.neutral(), xi))

            for slider in found:
                slider.on_update(moved)
            back = gui.add_button("back to the start")

            @back.on_click
            def _(_: Any) -> None:
                with self._lock:
                    if self.playing is not None:
                        self.playing.value = False
                    figure.move(start)
                    self._follow()

        return found

    def _follow(self, besides: Any = None) -> None:
        """Set the sliders to where the robots are, besides the one that is being moved."""
        with self._lock:
            self._following = True
            for figure, sliders in zip(self.figures, self.sliders, strict=True):
                values = difference(figure.mech, figure.mech.neutral(), figure.q).tolist()
                for slider, value in zip(sliders, values, strict=True):
                    if slider is not besides:
                        slider.value = min(max(value, slider.min), slider.max)
            self._following = False

    def _playback(self) -> tuple[Any, Any]:
        """The slider of time and the checkbox that plays; None of both where no robot has a motion."""
        ends = [float(motion.t[-1] - motion.t[0]) for motion in self._motions if motion is not None]
        if not ends:
            return None, None
        gui = self.server.gui
        with gui.add_folder("playback"):
            playing = gui.add_checkbox("play", False)
            clock = gui.add_slider(
                "time [s]",
                0.0,
                max(max(ends), 1e-3),
                max(max(ends), 1e-3) / 1000,
                initial_value=0.0,
            )
            self._speed = gui.add_slider("speed", 0.1, 4.0, 0.1, initial_value=1.0)

        @clock.on_update
        def _(event: Any) -> None:
            self.seek(float(clock.value))
            if event.client_id is not None:
                playing.value = False
                self._follow()

        @playing.on_update
        def _(event: Any) -> None:
            if event.client_id is not None and not playing.value:
                self._follow()

        self.seek(0.0)
        return clock, playing

    def _play(self) -> None:
        """Moves the clock while the box is checked."""
        last = time.monotonic()
        while self._open:
            time.sleep(1 / RATE)
            now = time.monotonic()
            if self.playing is not None and self.playing.value:
                t = float(self.clock.value) + float(self._speed.value) * (now - last)
                self.clock.value = 0.0 if t > self.clock.max else t
            last = now


def _titles(mechs: Sequence[Mechanism]) -> list[str]:
    """A name for each robot: its own, and the place in the row where another has that, too."""
    names = [mech.name for mech in mechs]
    return [f"{name} ({k})" if names.count(name) > 1 else name for k, name in enumerate(names, 1)]


def _ranges(mech: Mechanism, ways: Tensor) -> list[tuple[str, float, float, float]]:
    """Of each dof its label, lower and upper end of its slider, and where it starts.

    Sliders go from limit to limit, and on where the robot goes; limits that meet, as files write none, count
    as none.

    Args:
        mech: the robot.
        ways: where it starts, and where it goes, `[steps, num_q]`.
    """
    at, found = difference(mech, mech.neutral(), ways), []
    least, most = at.amin(0).tolist(), at.amax(0).tolist()
    for name in mech.joint_names:
        kind = mech.joints.kinds[mech.joint_index(name)]
        q, dofs, parts = mech.q_slice(name), mech.dof_slice(name), name.split("+")
        for i, (rate, reach) in enumerate(zip(kind.rates, kind.usual_speed, strict=True)):
            low, high = -reach, reach
            if kind.vector:
                own = [float(x[q][i]) for x in (mech.lower, mech.upper)]
                if own[0] < own[1]:
                    ends = zip(own, (low, high), strict=True)
                    low, high = (x if math.isfinite(x) else y for x, y in ends)
            k = dofs.start + i
            label = name if kind.num_dof == 1 else f"{name} {MOVES.get(rate, rate)}"
            label = parts[i] if len(parts) == kind.num_dof > 1 else label
            found.append((label, min(low, least[k]), max(high, most[k]), float(at[0, k])))
    return found
