"""Browser page with robots, sliders, frames and playback. Needs the extra `view` (viser)."""

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
from torchsko.mechanism.manifold import difference, integrate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.optional_dependencies import require
from torchsko.view.playback import Motion
from torchsko.view.server import address_of, free_port
from torchsko.view.viser_scene import ViserRobot, place_camera, silence_viser

FRAME_RATE = 30.0
"""Frames per second of a playback."""

RATE_LABELS = {"wx": "turn x", "wy": "turn y", "wz": "turn z", "vx": "x", "vy": "y", "vz": "z"}
"""Labels of sliders by the rates of free and spherical joints."""

TOGGLES = ("frames", "names", "center of mass", "contacts")


class Page:
    """A served page; `close` ends it.

    Attributes:
        robots: the robots on the page.
        sliders: for each robot its sliders, one for each dof in the order of qd.
        playing: checkbox that plays the motions; None without motions.
        clock: slider of the time [s]; None without motions.
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
            robots: one or more robots.
            motions: motion of each robot, or None; may be shorter than `robots`.
            host: address to serve at; "0.0.0.0" admits other machines.
            port: first port to try.
            kind: shapes to draw at first: "visual", "collision" or "inertia".

        Raises:
            MissingExtraError: if viser is not installed.
            MechanismError: if there is no robot.
            TorchskoError: if the host is not an address of this machine, or no port is free.
        """
        viser = require("viser", "view")
        mechs = [as_mechanism(robot) for robot in robots]
        if not mechs:
            raise MechanismError(
                "the list of robots is empty.",
                "A page shows one or more robots.",
                "Pass a list with a mechanism.",
            )
        self._motions = [*motions, *[None] * (len(mechs) - len(motions))]
        self._host = host
        # _updating is True while code, not the user, sets the sliders.
        self._lock, self._open, self._updating = threading.RLock(), True, False
        with silence_viser():
            self.server = viser.ViserServer(host=host, port=free_port(host, port), verbose=False)
        self.server.scene.set_up_direction("+z")
        self.robots: list[ViserRobot] = []
        self.sliders: list[list[Any]] = []
        self._place_robots(mechs)
        for robot in self.robots:
            robot.draw(kind)
        self._add_toggles(kind)
        self.clock, self.playing = self._add_playback()
        for title, robot, motion in zip(_titles(mechs), self.robots, self._motions, strict=True):
            self.sliders.append(self._add_sliders(title, robot, motion))
        self._place_camera()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Port of the page."""
        return self.server.get_port()

    @property
    def address(self) -> str:
        """URL of the page."""
        return address_of(self._host, self.port)

    def close(self) -> None:
        """Stop serving the page."""
        self._open = False
        self._thread.join()
        with silence_viser():
            self.server.stop()

    def seek(self, t: float) -> None:
        """Show all motions at time t after their starts [s]."""
        with self._lock:
            for robot, motion in zip(self.robots, self._motions, strict=True):
                if motion is not None:
                    k = motion.at(float(motion.t[0]) + t)
                    points = None if motion.contacts is None else motion.contacts[k]
                    robot.move(motion.q[k], points)

    def _place_robots(self, mechs: Sequence[Mechanism]) -> None:
        """Place the robots in a row along y on a common ground."""
        for k, (mech, motion) in enumerate(zip(mechs, self._motions, strict=True)):
            path = None if motion is None else motion.q
            robot = ViserRobot(self.server, f"/robot{k}", mech, path)
            if self.robots:
                robot.stand_beside(self.robots[-1])
            self.robots.append(robot)
        size = max(robot.size for robot in self.robots)
        cell = 10.0 ** math.floor(math.log10(max(size, 1e-6)))
        self.server.scene.add_grid(
            "/ground", width=20 * cell, height=20 * cell, cell_size=cell / 2, section_size=cell,
            cell_color=(228, 229, 232), section_color=(205, 207, 212), plane="xy",
            position=(0.0, 0.0, -1e-3 * size),
        )  # fmt: skip

    def _place_camera(self) -> None:
        """Place the camera in front of the robots."""
        corners = np.concatenate([robot.corners(robot.q) for robot in self.robots])
        place_camera(self.server, corners, aside=0.15)

    def _add_toggles(self, kind: str) -> None:
        gui = self.server.gui
        drawn = gui.add_dropdown("drawn", ("visual", "collision", "inertia"), initial_value=kind)

        @drawn.on_update
        def _(_: Any) -> None:
            with self._lock:
                for robot in self.robots:
                    robot.draw(drawn.value)

        for what in TOGGLES:
            self._add_toggle(what, gui.add_checkbox(what, False))

    def _add_toggle(self, what: str, box: Any) -> None:
        @box.on_update
        def _(_: Any) -> None:
            with self._lock:
                for robot in self.robots:
                    robot.show(what, box.value)

    def _add_sliders(self, title: str, robot: ViserRobot, motion: Motion | None) -> list[Any]:
        """Add a slider for each dof: the displacement from the neutral configuration, q for most joints."""
        mech, gui, sliders = robot.mech, self.server.gui, []
        path = robot.q[None] if motion is None else motion.q
        start = path[0]
        with gui.add_folder(title, expand_by_default=len(self.robots) == 1):
            for label, low, high, value in _slider_ranges(mech, path):
                step = (high - low) / 1000 or 1e-3
                value = min(max(value, low), high)
                sliders.append(gui.add_slider(label, low, high, step, initial_value=value))

            def on_slider(event: Any) -> None:
                with self._lock:
                    if self._updating:
                        return
                    if (
                        self.playing is not None
                        and self.playing.value
                        and event.client_id is not None
                    ):
                        self.playing.value = False
                        self._update_sliders(except_slider=event.target)
                    xi = torch.tensor(
                        [float(slider.value) for slider in sliders],
                        dtype=mech.dtype,
                        device=mech.device,
                    )
                    robot.move(integrate(mech, mech.neutral(), xi))

            for slider in sliders:
                slider.on_update(on_slider)
            reset = gui.add_button("reset")

            @reset.on_click
            def _(_: Any) -> None:
                with self._lock:
                    if self.playing is not None:
                        self.playing.value = False
                    robot.move(start)
                    self._update_sliders()

        return sliders

    def _update_sliders(self, except_slider: Any = None) -> None:
        """Set the sliders to the robots' configurations, except the one that the user moves."""
        with self._lock:
            self._updating = True
            for robot, sliders in zip(self.robots, self.sliders, strict=True):
                values = difference(robot.mech, robot.mech.neutral(), robot.q).tolist()
                for slider, value in zip(sliders, values, strict=True):
                    if slider is not except_slider:
                        slider.value = min(max(value, slider.min), slider.max)
            self._updating = False

    def _add_playback(self) -> tuple[Any, Any]:
        """Add the slider of the time and the checkbox that plays; both None without motions."""
        durations = [float(x.t[-1] - x.t[0]) for x in self._motions if x is not None]
        if not durations:
            return None, None
        gui, end = self.server.gui, max(*durations, 1e-3)
        with gui.add_folder("playback"):
            playing = gui.add_checkbox("play", False)
            clock = gui.add_slider("time [s]", 0.0, end, end / 1000, initial_value=0.0)
            self._speed = gui.add_slider("speed", 0.1, 4.0, 0.1, initial_value=1.0)

        @clock.on_update
        def _(event: Any) -> None:
            self.seek(float(clock.value))
            if event.client_id is not None:
                playing.value = False
                self._update_sliders()

        @playing.on_update
        def _(event: Any) -> None:
            if event.client_id is not None and not playing.value:
                self._update_sliders()

        self.seek(0.0)
        return clock, playing

    def _play(self) -> None:
        """Advance the clock while the box is checked."""
        last = time.monotonic()
        while self._open:
            time.sleep(1 / FRAME_RATE)
            now = time.monotonic()
            if self.playing is not None and self.playing.value:
                t = float(self.clock.value) + float(self._speed.value) * (now - last)
                self.clock.value = 0.0 if t > self.clock.max else t
            last = now


def _titles(mechs: Sequence[Mechanism]) -> list[str]:
    """A title for each robot: its name, with its position in the row if the name is not unique."""
    names = [mech.name for mech in mechs]
    return [f"{name} ({k})" if names.count(name) > 1 else name for k, name in enumerate(names, 1)]


def _slider_ranges(mech: Mechanism, path: Tensor) -> list[tuple[str, float, float, float]]:
    """For each dof the label of its slider, its lower and upper end, and its initial value.

    The range covers the joint limits and the motion. Equal lower and upper limits, a placeholder in some
    files, count as no limits.

    Args:
        mech: the robot.
        path: configurations of its motion, `[steps, num_q]`.
    """
    displacement, ranges = difference(mech, mech.neutral(), path), []
    lowest, highest = displacement.amin(0).tolist(), displacement.amax(0).tolist()
    for name in mech.joint_names:
        kind = mech.joints.kinds[mech.joint_index(name)]
        q, dofs, parts = mech.q_slice(name), mech.dof_slice(name), name.split("+")
        for i, (rate, reach) in enumerate(zip(kind.rates, kind.usual_speed, strict=True)):
            low, high = -reach, reach
            if kind.vector:
                limits = [float(x[q][i]) for x in (mech.lower, mech.upper)]
                if limits[0] < limits[1]:
                    ends = zip(limits, (low, high), strict=True)
                    low, high = (x if math.isfinite(x) else y for x, y in ends)
            k = dofs.start + i
            label = name if kind.num_dof == 1 else f"{name} {RATE_LABELS.get(rate, rate)}"
            label = parts[i] if len(parts) == kind.num_dof > 1 else label
            start = float(displacement[0, k])
            ranges.append((label, min(low, lowest[k]), max(high, highest[k]), start))
    return ranges
