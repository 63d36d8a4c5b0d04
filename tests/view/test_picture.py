"""Pictures: a shape is seen where the eye's geometry puts it, the nearer one in front, motions as GIFs."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import torchsko as ts
from torchsko.cli.main import main
from torchsko.mechanism.geometry import Geometry, Shape
from torchsko.shapes.box import Box
from torchsko.shapes.mesh import Mesh
from torchsko.shapes.plane import Plane
from torchsko.shapes.sphere import Sphere
from torchsko.view.notebook import NotebookView
from torchsko.view.option_checks import configurations
from torchsko.view.raster import draw
from torchsko.view.render import _camera, _ground
from torchsko.view.scene import scene_of

pytest.importorskip("PIL")

RED, BLUE = (1.0, 0.0, 0.0, 1.0), (0.0, 0.0, 1.0, 1.0)


def arm(shapes=()) -> ts.Mechanism:
    return ts.load(ts.robots.panda).replace(geometry=Geometry(tuple(shapes)))


def is_tint(image, channel: int) -> np.ndarray:
    """Pixels of a pure color, whatever the light makes of it."""
    others = [k for k in range(3) if k != channel]
    return (image[..., channel] > 60) & (image[..., others].max(-1) < 10)


def test_a_ball_is_a_disc_where_the_eye_projects_its_middle():
    mech = arm([Shape(Sphere(0.4), "link7", color=RED)])
    q = mech.middle()
    image = np.asarray(ts.view.picture(mech, q, size=(400, 300)))
    rows, columns = np.nonzero(is_tint(image, 0))
    scene = scene_of(mech)
    eye = _camera(scene, configurations(scene.mech, q), (400, 300), (40.0, 20.0))
    middle = eye.project(ts.frame_pose(mech, q, "link7").position.numpy())[:2] / 2
    assert np.allclose([columns.mean() + 0.5, rows.mean() + 0.5], middle, atol=1.0)
    width, height = np.ptp(columns) + 1, np.ptp(rows) + 1
    assert abs(width - height) <= 2
    assert len(rows) == pytest.approx(np.pi / 4 * width * height, rel=0.05)


def test_the_nearer_shape_hides_the_other():
    near, far = (
        Shape(Sphere(radius), None, position=(x, 0.0, 1.0), color=color)
        for x, radius, color in ((2.0, 0.3, RED), (-2.0, 0.1, BLUE))
    )
    q = torch.zeros(7, dtype=torch.float64)
    for shapes in ((near, far), (far, near)):
        front, back = (
            np.asarray(ts.view.picture(arm(shapes), q, view=(around, 0.0)))
            for around in (0.0, 180.0)
        )
        assert is_tint(front, 0).any() and not is_tint(front, 2).any()
        assert is_tint(back, 0).any() and is_tint(back, 2).any()


def test_triangles_that_share_edges_cover_each_pixel_of_a_square():
    rng = np.random.default_rng(0)
    inner = rng.uniform(5, 45, (30, 2))
    from matplotlib.tri import Triangulation

    points = np.concatenate([[[3.0, 4.0], [47.0, 4.0], [47.0, 46.0], [3.0, 46.0]], inner])
    faces = Triangulation(*points.T).triangles
    corners = np.concatenate([points, np.ones((len(points), 1))], -1)[faces]
    pixels = np.zeros((50, 50, 3))
    draw(pixels, corners, np.ones((len(faces), 3)))
    expected = np.zeros((50, 50))
    expected[4:46, 3:47] = 1
    assert np.array_equal(pixels[..., 0], expected)


def test_what_is_behind_a_shape_is_seen_as_far_as_its_opacity_says():
    """Through one wall of two; a shape without opacity is not there, nor in the way of the eye."""
    q = torch.zeros(7, dtype=torch.float64)

    def through(*opacities: float) -> np.ndarray:
        walls = [
            Shape(Box((0.01, 9.0, 9.0)), None, position=(x, 0, 0), color=(0, 0, 1, opacity))
            for x, opacity in zip((4.0, 5.0), opacities, strict=False)
        ]
        ball = Shape(Sphere(3.0), None, color=RED)
        image = ts.view.picture(arm([*walls, ball]), q, view=(0.0, 0.0))
        return np.asarray(image).astype(float)

    def middle(image: np.ndarray) -> np.ndarray:
        return image[235:245, 315:325].mean(axis=(0, 1))

    red, blue = (middle(through(opacity)) for opacity in (0.0, 1.0))
    assert red[0] > 100 > 10 > red[2] and blue[2] > 100 > 10 > blue[0]
    assert np.allclose(middle(through(0.25)), 0.75 * red + 0.25 * blue, atol=8)
    assert np.allclose(middle(through(0.25, 0.5)), 0.375 * red + 0.625 * blue, atol=8)
    assert np.array_equal(through(0.0), through())


def test_a_motion_is_a_gif_with_its_frames(tmp_path):
    from PIL import Image

    mech = arm([Shape(Sphere(0.1), "link7", color=RED)])
    qs = mech.middle() + torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    ts.view.animate(mech, qs, tmp_path / "a.gif", dt=0.1, size=(120, 90))
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames == 5 and gif.info["duration"] == 100
        seen = []
        for k in range(5):
            gif.seek(k)
            seen.append(np.asarray(gif.convert("RGB")).astype(int))
    assert all((a != b).any() for a, b in pairwise(seen))


def rolling() -> tuple[ts.Mechanism, torch.Tensor]:
    """A red ball that rolls away over the ground, past a wall."""
    builder = ts.MechanismBuilder("ball")
    builder.link("ball", mass=1.0)
    shapes = (
        Shape(Sphere(0.1), "ball", color=RED),
        Shape(Box((0.1, 9.0, 0.1)), None, position=(9.0, 0.0, 0.1)),
        Shape(Plane((9.0, 9.0)), None),
    )
    mech = builder.joint("free", "free", child="ball").build()
    qs = mech.neutral().expand(4, -1).clone()
    qs[:, :3] = torch.tensor([[0.0, 0.0, 0.1], [1.03, 0.52, 0.1], [2.0, 0.0, 0.4], [4.1, 1.0, 0.1]])
    return mech.replace(geometry=Geometry(shapes)), qs


def test_the_camera_follows_a_frame_along_the_ground(tmp_path):
    from PIL import Image

    mech, qs = rolling()
    seen = {}
    for follow in (None, "ball"):
        ts.view.animate(mech, qs, tmp_path / "a.gif", size=(120, 90), follow=follow)
        with Image.open(tmp_path / "a.gif") as gif:
            frames = []
            for k in range(4):
                gif.seek(k)
                frames.append(np.asarray(gif.convert("RGB")).astype(int))
        balls = [image[..., 0] - image[..., 1] > 60 for image in frames]
        seen[follow] = [np.array([x.mean() for x in np.nonzero(ball)]) for ball in balls]
        assert all(ball.any() for ball in balls)
        size = min(ball.sum() for ball in balls)
        assert size > 500 if follow else size < 100
    rows, columns = np.transpose(seen["ball"])
    assert np.ptp(columns) < 1 and np.ptp(rows[[0, 1, 3]]) < 1 and rows[2] < rows[0] - 10
    assert np.ptp(np.transpose(seen[None])[1]) > 10
    with pytest.raises(ts.MechanismError, match="bowl"):
        ts.view.animate(mech, qs, tmp_path / "b.gif", follow="bowl")
    assert not (tmp_path / "b.gif").exists()


@pytest.mark.parametrize("view", [(40.0, 20.0), (200.0, 3.0), (0.0, 90.0)])
def test_tiles_of_the_ground_are_where_the_camera_projects_them(view):
    mech, qs = rolling()
    camera = _camera(scene_of(mech), qs, (200, 150), view)
    levels = _ground(camera)
    edge = 10 ** np.floor(np.log10(camera.radius)) / 2
    edge *= 1 if camera.radius / edge < 8 else 2
    middle, found = np.round(camera.target[:2] / edge), {}
    for i, j in np.ndindex(24, 24):
        place = (middle - 12 + (i + 0.5, j + 0.5)) * edge
        depth = (np.array([*place, camera.ground]) - camera.target) @ camera.rotation[2]
        if depth > 3 * camera.radius:  # beside or behind the camera
            continue
        column, row, _ = camera.project(np.array([*place, camera.ground]))
        if 0 <= column < 400 and 0 <= row < 300:
            is_dark = (middle.sum() - 24 + i + j) % 2 == 0
            away = np.hypot((i + 0.5) / 12 - 1, (j + 0.5) / 12 - 1)
            expected = 1 - (0.10 if is_dark else 0.055) * np.clip(1.15 - away, 0, 1)
            assert levels[int(row), int(column)] == pytest.approx(expected), (i, j)
            found[is_dark] = True
    assert len(found) == 2
    assert (_ground(replace(camera, rotation=camera.rotation * [[1], [1], [-1]])) == 1).all()


def test_the_command_saves_pictures_without_a_browser(tmp_path, capsys):
    log = tmp_path / "log.npz"
    mech = arm()
    np.savez(log, q=(mech.middle() + torch.linspace(0, 1, 9)[:, None]).numpy(), t=np.arange(9) / 40)
    robot = str(ts.robots.panda)
    for name, begins in (("a.png", b"\x89PNG"), ("b.gif", b"GIF8")):
        path = tmp_path / name
        assert main(["view", robot, "--log", str(log), "--picture", str(path)]) == 0
        assert path.read_bytes().startswith(begins)
    assert "panda" in capsys.readouterr().out
    assert main(["view", robot, "--log", str(log), "--log", str(log)]) == 2
    assert main(["view", robot, robot, "--picture", str(path)]) == 2
    assert main(["view", robot, "--follow", "link7"]) == 2
    still = ["view", robot, "--log", str(log), "--picture", str(path), "--follow"]
    assert main([*still, "link7"]) == 0 and main([*still, "link70"]) == 2
    assert main(["view", str(tmp_path / "none.urdf")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_omitted_shapes_are_named_with_advice(tmp_path, capsys):
    lost = [Shape(Mesh(f"lost{k}.stl"), f"link{k % 8}") for k in range(20)]
    mech = arm([*lost, Shape(Sphere(0.1), "link7")])
    q = mech.middle()
    for look in (lambda: ts.view.picture(mech, q),
                 lambda: ts.view.animate(mech, q[None], tmp_path / "a.gif")):  # fmt: skip
        with pytest.warns(ts.RobotFileWarning, match=r"(?s)panda.*lost0.*and 8 more\n") as told:
            look()
        assert len(told) == 1 and told[0].filename == __file__
        assert str(told[0].message).splitlines()[-1].startswith(("Pass mesh_path", "Type pip"))
    robot = tmp_path / "robot.urdf"
    robot.write_text(Path(ts.robots.panda).read_text().replace(
        '<link name="link3">',
        '<link name="link3"><visual><geometry><mesh filename="lost.stl"/></geometry></visual>'))  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is printed is not warned of, too
        assert main(["view", str(robot), "--picture", str(tmp_path / "a.png")]) == 0
    said, typed, *_ = capsys.readouterr().out.splitlines()
    assert said.startswith("not drawn: link3: ") and typed.startswith(
        ("Pass mesh_path", "Type pip")
    )


def test_a_gif_moves_however_its_ending_is_written(tmp_path):
    from PIL import Image

    log, path = tmp_path / "log.NPZ", tmp_path / "a.GIF"
    with log.open("wb") as file:
        np.savez(file, q=np.linspace(0, 1, 21).reshape(3, 7), t=np.arange(3) / 25)
    assert main(["view", str(ts.robots.panda), "--log", str(log), "--picture", str(path)]) == 0
    with Image.open(path) as gif:
        assert gif.n_frames == 3


def test_a_gif_without_a_log_is_refused_with_what_to_pass(tmp_path, capsys):
    """It was written, of one frame."""
    path = tmp_path / "swing.gif"
    assert main(["view", str(ts.robots.panda), "--picture", str(path)]) == 2
    said = capsys.readouterr().err
    assert "--log" in said and str(path.with_suffix(".png")) in said
    assert not path.exists()


def test_a_folder_that_is_not_there_is_refused_before_anything_is_drawn(tmp_path, capsys):
    path = tmp_path / "none" / "a.png"
    assert main(["view", str(ts.robots.panda), "--picture", str(path)]) == 2
    assert f"the folder {str(path.parent)!r} does not exist" in capsys.readouterr().err
    shown = NotebookView("<html></html>", None, "panda")
    q = arm().middle()
    for write in (shown.save, lambda path: ts.view.picture(arm(), q, path),
                  lambda path: ts.view.animate(arm(), q[None], path)):  # fmt: skip
        with pytest.raises(ts.RobotFileError, match="mkdir -p"):
            write(path)
    assert not path.parent.exists()


def test_a_log_that_does_not_fit_is_named_and_says_what_would_do(tmp_path, capsys):
    robot = ["view", str(ts.robots.panda), "--picture", str(tmp_path / "a.png"), "--log"]
    (tmp_path / "log.csv").write_text("stamp,angle\n0,1\n1,2\n")
    assert main([*robot, str(tmp_path / "log.csv")]) == 2
    said = capsys.readouterr().err
    assert "log.csv" in said and "q_joint1" in said and "'angle'" in said and "columns=" not in said
    np.savez(tmp_path / "log.npz", q=np.zeros((3, 6)))
    assert main([*robot, str(tmp_path / "log.npz")]) == 2
    said = capsys.readouterr().err
    assert "log.npz: q has shape [3, 6]" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"q": torch.full((7,), torch.nan).double()}, "first in row 0(.|\n)*Pass finite numbers"),
        ({"size": (640, 0)}, "size is"),
        ({"size": (640.5, 480)}, "size is"),
        ({"view": (0.0, torch.nan)}, "view is"),
        ({"path": "arm.picture"}, "has the ending '.picture'"),
        ({"path": "arm"}, "has no ending"),
    ],
)
def test_what_makes_no_picture_is_refused_by_name(asked, said):
    given = {"q": torch.zeros(7).double()} | asked
    with pytest.raises(ts.TorchskoError, match=said) as error:
        ts.view.picture(arm(), **given)
    assert error.value.what and error.value.advice


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"qs": torch.tensor([[0.0] * 7, [torch.inf] * 7]).double()},
            r"(?s)q is not finite, first in row 1\..*the rows before, q\[:1\]",
        ),
        ({"dt": 0.0}, "dt is 0.0"),
        ({"path": "arm.mp4"}, "A motion is written as a GIF"),
    ],
)
def test_what_makes_no_gif_is_refused_by_name(asked, said, tmp_path):
    given = {"qs": torch.zeros(2, 7).double(), "path": tmp_path / "arm.gif"} | asked
    with pytest.raises(ts.TorchskoError, match=said):
        ts.view.animate(arm(), **given)
    assert not list(tmp_path.iterdir())


def test_trajectories_and_states_are_distinguished(tmp_path):
    """The message names the field, in place of an error of torch."""
    mech = arm()
    zero = torch.zeros(7, dtype=mech.dtype)
    found = ts.rollout(mech, ts.State(mech.middle(), zero), steps=1, dt=0.01)
    for show in (ts.view.picture, lambda mech, q: ts.view.animate(mech, q, tmp_path / "a.gif")):
        with pytest.raises(ts.ShapeError, match=r"(?s)given as Trajectory.*Pass trajectory.q"):
            show(mech, found)


def test_configurations_may_be_arrays():
    q = torch.linspace(-0.5, 0.5, 7).double()
    assert ts.view.picture(arm(), q.numpy()).tobytes() == ts.view.picture(arm(), q).tobytes()


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ts.ShapeError, match=r"\[steps, 7\]"):
        ts.view.picture(arm(), torch.zeros(2, 3, 7).double())
    with pytest.raises(ts.ShapeError):
        ts.view.picture(arm(), torch.zeros(6).double())
