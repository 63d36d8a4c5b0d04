"""The page: its robots stand where `ts.frame_pose` has them; in headless Chromium it renders, sliders move
the robot, playback plays."""

from __future__ import annotations

import shutil
import socket
import time
from contextlib import contextmanager
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
import torch

import torchsko as ts
from torchsko.mechanism.geometry import Geometry, Shape
from torchsko.shapes.box import Box
from torchsko.shapes.sphere import Sphere
from torchsko.spatial.rotation import quaternion_to_matrix
from torchsko.view import server as serving
from torchsko.view.playback import motion_of

pytest.importorskip(
    "viser", reason='the page needs viser: pip install ".[view]" in a clone of torchsko'
)

TO_INSTALL = "needs a browser: pip install playwright, and apt-get install chromium"
RED = (1.0, 0.0, 0.0, 1.0)


def arm() -> ts.Mechanism:
    """The arm with a red ball at its tip and a box on each link."""
    shapes = [Shape(Box((0.08, 0.08, 0.2)), f"link{k}") for k in range(8)]
    tip = Shape(Sphere(0.15), "link7", color=RED)
    return ts.load(ts.robots.panda).replace(geometry=Geometry((*shapes, tip)))


def swing(mech, steps=40):
    """Its first joint from one side to the other in two seconds."""
    q = mech.middle().expand(steps, -1).clone()
    q[:, 0] = torch.linspace(-1.5, 1.5, steps, dtype=q.dtype)
    return motion_of(mech, q, 2.0 / steps)


@contextmanager
def page(*args, **kwargs):
    from torchsko.view.viser_page import Page

    served = Page(*args, **kwargs)
    try:
        yield served
    finally:
        served.close()


def handles(figure):
    """Poses of the page's nodes, by the numbers of their frames."""
    return {k: (np.array(h.wxyz), np.array(h.position)) for k, h in figure._bodies.items()}


def stands(figure, q):
    """Whether all nodes are where `ts.frame_pose` has their frames."""
    for k, (quat, position) in handles(figure).items():
        if k < 0:
            continue
        pose = ts.frame_pose(figure.mech, q, figure.mech.frame_names[k])
        turn = quaternion_to_matrix(torch.tensor(quat))
        if not torch.allclose(turn, pose.rotation, atol=1e-9):
            return False
        if not np.allclose(position, pose.position.numpy(), atol=1e-9):
            return False
    return True


def until(true, seconds=60.0):
    """Whether it becomes true within a time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.05)
    return bool(true())


def test_sliders_and_the_clock_move_the_robots():
    mech = arm()
    floating = ts.load(ts.robots.panda, floating_base=True)
    motion = swing(mech)
    with page([mech, floating], [motion], port=9100) as served:
        first, second = served.robots
        assert stands(first, motion.q[0]) and stands(second, second.q)
        assert len(served.sliders[0]) == 7 and len(served.sliders[1]) == 13
        lower, upper = mech.lower.tolist(), mech.upper.tolist()
        assert [(s.min, s.max) for s in served.sliders[0]] == list(zip(lower, upper, strict=True))
        served.sliders[0][3].value = -1.0
        assert until(lambda: abs(first.q[3].item() + 1.0) < 1e-9)
        assert stands(first, first.q)
        served.sliders[1][0].value = 0.5  # the base turns about x
        assert until(lambda: abs(second.q[4].item() - np.sin(0.25)) < 1e-9)
        assert stands(second, second.q)
        served.clock.value = 1.0
        assert until(lambda: torch.equal(first.q, motion.q[motion.at(1.0)]))
        served.playing.value = True
        t = served.clock.value
        assert until(lambda: served.clock.value > t)
        apart = second._offset[1] - first._offset[1]
        assert apart > np.ptp(first.scene.corners(first.q)[:, 1]) / 2


def test_a_log_plays_from_its_own_start_and_sliders_reach_where_it_goes():
    mech = arm()
    motion = swing(mech)
    late = motion_of(
        mech, motion.q + 2.0, 1.7e9 + motion.t
    )  # beyond limits, by the clock on the wall
    assert (late.q > mech.upper).any()
    with page([mech], [late], port=9100) as served:
        (figure,), (sliders,) = served.robots, served.sliders
        assert served.clock.max == pytest.approx(late.t[-1] - late.t[0])
        for slider, way in zip(sliders, late.q.T, strict=True):
            assert slider.min <= way.min() and slider.max >= way.max()
        served.playing.value = True
        assert until(lambda: not torch.equal(figure.q, late.q[0]))
        served.playing.value = False
        served._update_sliders()
        assert [slider.value for slider in sliders] == pytest.approx(figure.q.tolist())
        # A slider alone moves its joint alone from where playback has left the robot.
        there = figure.q.clone()
        sliders[2].value = 0.25
        assert until(lambda: abs(figure.q[2].item() - 0.25) < 1e-9)
        assert torch.allclose(figure.q[[0, 1, 3, 4, 5, 6]], there[[0, 1, 3, 4, 5, 6]], atol=1e-9)


def test_a_joint_whose_limits_meet_has_a_slider_that_moves_it():
    mech = arm()
    with page([mech.replace(lower=0 * mech.lower, upper=0 * mech.upper)], port=9100) as served:
        assert all(slider.min < 0 < slider.max for slider in served.sliders[0])


def test_robots_of_one_name_have_panels_of_their_own(monkeypatch):
    """Both were called "panda", and which sliders moved which robot was to be tried."""
    from viser import GuiApi

    add, seen = GuiApi.add_folder, []

    def noted(self, label, *args, **kwargs):
        seen.append(label)
        return add(self, label, *args, **kwargs)

    monkeypatch.setattr(GuiApi, "add_folder", noted)
    with page([arm(), ts.load(ts.robots.quadruped), arm()], port=9100):
        assert seen == ["panda (1)", "quadruped", "panda (3)"]


def test_robots_stand_on_one_ground_and_apart():
    hanging = ts.load(ts.robots.quadruped)  # its body fixed, legs below
    small = Shape(Sphere(0.05), "link7")
    robots = [arm(), hanging, ts.load(ts.robots.quadruped, floating_base=True)]
    robots.append(robots[0].replace(geometry=Geometry((small,))))
    with page(robots, port=9100) as served:
        boxes = [figure.corners(figure.q)[:, 1] for figure in served.robots]
        for one, other in pairwise(boxes):
            assert one.max() < other.min()
        for figure in served.robots[1:3]:
            lowest = figure.scene.lowest(figure.q) + figure._base.position[2]
            assert lowest == pytest.approx(0.0, abs=1e-12)
        assert not served.robots[0]._base.position[2]  # it stands on its own base


def test_what_swings_below_its_base_has_the_ground_below_all_of_its_motion():
    """A ground through an arm hides what of it is seen through."""
    mech = arm()
    dive = swing(mech, 60)
    dive.q[:, 1] = torch.linspace(0.0, 1.76, 60, dtype=mech.dtype)
    with page([mech], [dive], port=9100) as served:
        (figure,) = served.robots
        lowest = min(figure.scene.lowest(q) for q in dive.q)
        assert lowest < -0.1
        assert lowest + figure._base.position[2] == pytest.approx(0.0, abs=1e-12)
    # One that floats sinks into the ground on which it starts.
    dog = ts.load(ts.robots.quadruped, floating_base=True)
    q = dog.neutral().expand(30, -1).clone()
    q[:, 2] = torch.linspace(1.0, 0.1, 30, dtype=q.dtype)
    with page([dog], [motion_of(dog, q)], port=9100) as served:
        assert served.robots[0].scene.lowest(q[-1]) < 0.0
        assert served.robots[0]._base.position[2] == 0.0


@pytest.mark.parametrize("length", [2e-3, 1.0, 1e3])
def test_a_robot_of_any_size_is_between_the_planes_of_the_camera(length):
    builder = ts.MechanismBuilder("fly or crane")
    builder.link("wing", mass=1.0, com=(0.0, 0.0, length))
    builder.joint("hinge", "revolute", child="wing", axis=(1.0, 0.0, 0.0))
    wing = Shape(Box((length, length, 2 * length)), "wing")
    mech = builder.build().replace(geometry=Geometry((wing,)))
    with page([mech], port=9100) as served:
        camera, (figure,) = served.server.initial_camera, served.robots
        away = np.linalg.norm(figure.corners(figure.q) - camera.position, axis=-1)
        assert camera.near < 0.1 * away.min() and away.max() < 0.1 * camera.far
        assert camera.far < 1e6 * camera.near  # or depths are too coarse to tell surfaces apart


def test_what_is_shown_can_be_chosen():
    with page([arm()], port=9100) as served:
        (figure,) = served.robots
        com = ts.center_of_mass(figure.mech, figure.q).numpy()
        assert np.allclose(figure._com.position, com) and not figure._com.visible
        for what, handle in (("center of mass", figure._com), ("frames", figure._axes)):
            figure.show(what, True)
            assert handle.visible
            assert all(mesh.opacity < 1 for mesh, _ in figure._meshes)  # it lies inside
        figure.show("names", True)
        assert all(label.visible for label in figure._labels)
        figure.draw("inertia")
        assert len(figure.scene.nodes) > 7 and stands(figure, figure.q)
        tip = ts.frame_pose(figure.mech, figure.q, "link7").position[2].item()
        for what in ("center of mass", "frames"):
            figure.show(what, False)
        figure.draw("visual")
        assert all(mesh.opacity is None for mesh, _ in figure._meshes)
        figure.show("contacts", True)
        assert not len(figure._contacts.points)
        figure.move(figure.q, np.array([[0.0, 0.0, tip], [np.nan] * 3]))
        assert np.allclose(figure._contacts.points, [[0.0, 0.0, tip]])


@pytest.mark.parametrize(
    "host, port, said",
    [
        ("127.0.0.1", 65536, "port 65536"),
        ("127.0.0.1", -1, "port -1"),
        ("192.0.2.1", 9100, "host '192.0.2.1'"),  # an address for documentation: nobody has it
        ("no.such.host.invalid", 9100, "host 'no.such.host.invalid'"),
    ],
)
def test_a_place_where_nothing_can_be_served_is_refused_by_name(host, port, said):
    with pytest.raises(ts.TorchskoError, match=said) as told, page([arm()], host=host, port=port):
        pass
    assert len(str(told.value).splitlines()) == 3


def test_a_port_that_is_taken_gives_the_next_one_and_of_the_last_one_a_refusal(monkeypatch):
    with page([arm()], port=9100) as one, page([arm()], port=one.port) as other:
        assert other.port > one.port
    with socket.create_server(("127.0.0.1", 0)) as taken:
        last = taken.getsockname()[1]
        monkeypatch.setattr(serving, "MAX_PORT", last)
        with pytest.raises(ts.TorchskoError, match=f"no port from {last}"):
            serving.free_port("127.0.0.1", last)


@pytest.mark.parametrize(
    "host, told", [("0.0.0.0", "localhost"), ("192.0.2.7", "192.0.2.7"), ("fd00::1", "[fd00::1]")]
)
def test_the_printed_address_serves_the_page(host, told):
    assert serving.address_of(host, 9100) == f"http://{told}:9100"


def test_a_page_prints_nothing(capfd):
    with page([arm()], port=9100):
        pass
    assert capfd.readouterr() == ("", "")


def test_a_notebook_shows_a_page_of_its_own(tmp_path):
    mech = arm()
    shown = ts.show(mech, swing(mech, 5).q)
    bundle = shown._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG") and "<iframe srcdoc=" in bundle["text/html"]
    assert repr(shown) == bundle["text/plain"] == "panda: 5 configurations"
    shown.save(tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    assert text.lstrip().lower().startswith("<!doctype html") and "http://127" not in text
    with pytest.raises(ts.ShapeError):
        ts.show(mech, torch.zeros(3, 6))


@contextmanager
def browser():
    """A page of a headless browser, its GPU emulated."""
    api = pytest.importorskip("playwright.sync_api", reason=TO_INSTALL)
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
    options = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader",
               "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"]  # fmt: skip
    with api.sync_playwright() as play:
        try:
            chromium = play.chromium.launch(executable_path=found, args=options)
        except api.Error:
            pytest.skip(TO_INSTALL)
        tab = chromium.new_page(viewport={"width": 720, "height": 420})
        tab.set_default_timeout(240_000)
        try:
            yield tab
        finally:
            chromium.close()


def red(tab, width=400) -> np.ndarray:
    """Which pixels of the scene are the red ball, beside the panel."""
    from PIL import Image

    clip = {"x": 0, "y": 0, "width": width, "height": 420}
    with Image.open(BytesIO(tab.screenshot(clip=clip, timeout=240_000))) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    return (pixels[..., 0] > 90) & (pixels[..., 1:].max(-1) < 0.35 * pixels[..., 0])


def place(mask) -> np.ndarray:
    """Middle of the pixels; far away where there are none, as when it has moved behind the panel."""
    return np.argwhere(mask).mean(0) if mask.any() else np.full(2, -1e3)


@pytest.mark.nightly
def test_in_a_browser_it_renders_a_slider_moves_the_robot_and_playback_plays():
    mech = arm()
    with page([mech], [swing(mech)], port=9100) as served, browser() as tab:
        (figure,) = served.robots
        tab.goto(served.address)
        assert until(lambda: red(tab).sum() > 200, 240), "the ball is not seen"
        before, q = place(red(tab)), figure.q.clone()
        slider = tab.get_by_role("slider").nth(3)  # after time, speed and joint 1
        tab.wait_for_timeout(1000)
        slider.focus()
        for key in ("Home", "ArrowRight"):
            slider.press(key)
        assert until(lambda: not torch.equal(figure.q, q)), "the slider does not reach the robot"
        assert (figure.q != q).sum() == 1 and stands(figure, figure.q)
        assert until(lambda: np.linalg.norm(place(red(tab)) - before) > 5, 120)
        tab.get_by_label("play").check()
        assert until(lambda: served.clock.value > 0.2)
        seen = [place(red(tab))]
        assert until(
            lambda: np.linalg.norm((seen.append(place(red(tab))) or seen[-1]) - seen[0]) > 5, 120
        )
        assert served.playing.value


def balls(tab) -> list[np.ndarray]:
    """Middles of the red balls from the left, an empty column between them; the axes are smaller."""
    mask = red(tab, 900)
    ends = np.flatnonzero(np.diff(np.pad(mask.any(0), 1).astype(int)))
    parts = [np.argwhere(mask[:, a:b]) + (0, a) for a, b in ends.reshape(-1, 2)]
    return [part.mean(0) for part in parts if len(part) > 150]


@pytest.mark.nightly
def test_in_a_browser_two_robots_stand_side_by_side_and_the_one_that_has_a_motion_moves():
    mech = arm()
    with page([mech, mech], [swing(mech), None], port=9100) as served, browser() as tab:
        tab.set_viewport_size({"width": 1240, "height": 420})
        tab.goto(served.address)
        assert until(lambda: len(balls(tab)) == 2, 240), "two balls are not seen"
        tab.wait_for_timeout(1000)
        before = balls(tab)

        def ways() -> list[float]:
            return [np.linalg.norm(a - b) for a, b in zip(balls(tab), before, strict=True)]

        assert max(ways()) < 1
        served.clock.value = 0.4
        assert until(lambda: max(ways()) > 5, 120), "neither has moved"
        assert min(ways()) < 1, "both have moved"


@pytest.mark.nightly
def test_in_a_browser_what_a_notebook_shows_renders_and_plays_by_itself(tmp_path):
    mech = arm()
    ts.show(mech, swing(mech).q, dt=0.1).save(tmp_path / "a.html")
    with browser() as tab:
        tab.goto((tmp_path / "a.html").as_uri())
        assert until(lambda: red(tab).sum() > 200, 240)
        before = place(red(tab))
        assert until(lambda: np.linalg.norm(place(red(tab)) - before) > 5, 120)
