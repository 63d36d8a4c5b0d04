"""What is drawn stands where `ts.frame_pose` has it, and has the volume, color and inertia it should."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import torchsko as ts
from torchsko.mechanism.geometry import Geometry, Shape
from torchsko.shapes.box import Box
from torchsko.shapes.capsule import Capsule
from torchsko.shapes.cylinder import Cylinder
from torchsko.shapes.ellipsoid import Ellipsoid
from torchsko.shapes.height_field import HeightField
from torchsko.shapes.mesh import Mesh, triangles_of
from torchsko.shapes.plane import Plane
from torchsko.shapes.sphere import Sphere
from torchsko.view.playback import motion_of, read_log
from torchsko.view.scene import scene_of, start_of
from torchsko.view.viser_scene import ground_contacts


def volume(triangles) -> float:
    """Inside a closed surface whose faces look outwards: the divergence theorem."""
    a, b, c = (np.asarray(triangles.vertices)[triangles.faces[:, k]] for k in range(3))
    return float(np.einsum("ij,ij->", a, np.cross(b, c))) / 6


@pytest.mark.parametrize(
    ("form", "exact"),
    [
        (Box((1.0, 2.0, 3.0)), 6.0),
        (Sphere(0.7), 4 / 3 * math.pi * 0.7**3),
        (Cylinder(0.5, 2.0), 2 * math.pi * 0.25),
        (Capsule(0.5, 2.0), 2 * math.pi * 0.25 + 4 / 3 * math.pi * 0.125),
        (Ellipsoid((1.0, 2.0, 0.5)), 4 / 3 * math.pi),
    ],
)
def test_forms_as_triangles_are_closed_look_outwards_and_have_their_volume(form, exact):
    triangles = triangles_of(form)
    assert volume(triangles) == pytest.approx(exact, rel=0.03)
    corners = np.unique(triangles.vertices.round(9), axis=0, return_inverse=True)[1].reshape(-1)
    faces = corners[triangles.faces]
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    back = {tuple(edge) for edge in edges[:, ::-1].tolist()}
    assert {tuple(edge) for edge in edges.tolist()} == back and len(back) == len(edges)


def test_a_field_of_heights_passes_through_them():
    heights = np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    corners = triangles_of(HeightField((4.0, 2.0), heights)).vertices
    assert {tuple(x) for x in corners.tolist()} == {
        (x, y, heights[i, j])
        for i, y in enumerate((-1.0, 1.0))
        for j, x in enumerate((-2.0, 0.0, 2.0))
    }


def arm(shapes=()) -> ts.Mechanism:
    return ts.load(ts.robots.panda).replace(geometry=Geometry(tuple(shapes)))


def test_nodes_stand_where_frame_pose_has_their_frames():
    R = ((0.0, -1.0, 0.0), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    mech = arm([Shape(Box((0.1, 0.2, 0.3)), "link5", R, (0.1, 0.2, 0.3)),
                Shape(Sphere(0.1), None, position=(1.0, 0.0, 0.0))])  # fmt: skip
    q, _ = mech.random_state(2, 3, generator=torch.Generator().manual_seed(0))
    scene = scene_of(mech)
    turns, shifts = scene.poses(q)
    box, ball = scene.nodes[:2]
    pose = ts.frame_pose(mech, q, "link5")
    local = torch.tensor([0.05, 0.1, 0.15], dtype=q.dtype)
    there = torch.tensor(R, dtype=q.dtype) @ local + torch.tensor([0.1, 0.2, 0.3], dtype=q.dtype)
    seen = pose.position + pose.rotation @ there
    drawn = np.einsum("...ij,nj->...ni", turns[..., box.frame, :, :], box.triangles.vertices)
    drawn = drawn + shifts[..., None, box.frame, :]
    assert np.abs(drawn - seen.numpy()[..., None, :]).max(-1).min(-1).max() < 1e-12
    assert ball.frame == -1 and np.allclose(
        ball.triangles.vertices.mean(0), [1.0, 0.0, 0.0], atol=1e-2
    )
    assert np.allclose(turns[..., -1, :, :], np.eye(3)) and not shifts[..., -1, :].any()


def test_a_body_without_shapes_is_the_ellipsoid_of_its_inertia():
    mech = arm([Shape(Sphere(0.1), "link1")])
    scene = scene_of(mech)
    lumps = [node for node in scene.nodes if "inertia" in node.name]
    assert {node.name for node in lumps} == {f"link{k}: inertia" for k in range(2, 8)}
    for node in lumps:
        k = mech.body_index(node.name.split(":")[0])
        a, b, c = (node.triangles.vertices[node.triangles.faces[:, i]] for i in range(3))
        # Of the solid whose surface this is: density times the integral of x x* over its tetrahedra.
        sixth = np.einsum("ij,ij->i", a, np.cross(b, c)) / 6
        corners = np.stack([a, b, c], 1) - mech.com[k].numpy()
        total = corners.sum(1)
        outer = np.einsum("nki,nkj->nij", corners, corners) + total[:, :, None] * total[:, None]
        second = np.einsum("n,nij->ij", sixth, outer) / 20 * mech.mass[k].item() / sixth.sum()
        inertia = np.trace(second) * np.eye(3) - second
        found, true = np.linalg.eigvalsh(inertia), np.linalg.eigvalsh(mech.inertia[k].numpy())
        assert np.allclose(found, true, rtol=0.08, atol=0.03 * true.max())


def test_a_dummys_inertia_hides_no_other_body():
    """Inertias of 1 kg m^2 for want of better, as files have them: of a ball of 10 kg, a meter across."""
    I = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    builder = ts.MechanismBuilder("wheeled")
    builder.link("suspension", mass=10.0, inertia=I).link("wheel", mass=1.0, inertia=I)
    builder.joint("rocker", "revolute", child="suspension", axis=(0, 1, 0))
    builder.joint("axle", "revolute", parent="suspension", child="wheel", axis=(0, 1, 0))
    bare = builder.build()
    mech = bare.replace(geometry=Geometry((Shape(Cylinder(0.1, 0.05), "wheel"),)))

    def size(mech, kind):
        (ball,) = (n for n in scene_of(mech, kind).nodes if n.name == "suspension: inertia")
        return ball.triangles.vertices

    assert np.ptp(size(mech, "visual"), axis=0) == pytest.approx(0.267, rel=0.02)  # 10 l of water
    for whole in (size(mech, "inertia"), size(bare, "visual")):
        assert np.ptp(whole, axis=0) == pytest.approx(1.0, rel=0.02)


def test_a_missing_mesh_is_named_and_the_collision_shape_stands_in():
    mech = arm([Shape(Mesh("nowhere.stl"), "link3"),
                Shape(Sphere(0.1), "link3", visual=False, collision=True),
                Shape(Sphere(0.2), "link4"),
                Shape(Sphere(0.3), "link4", visual=False, collision=True)])  # fmt: skip
    scene = scene_of(mech)
    (line,) = scene.missing
    (typed,) = scene.advice
    assert "mesh_path" in typed or "pip install" in typed
    assert "link3" in line and ("nowhere.stl" in line or "trimesh" in line)
    assert [n.name for n in scene.nodes if "sphere" in n.name] == ["link4: sphere", "link3: sphere"]
    assert len([n for n in scene_of(mech, "collision").nodes if "sphere" in n.name]) == 2
    with pytest.raises(ts.MechanismError, match="visual"):
        scene_of(mech, "wireframe")


def test_points_on_the_ground_are_those_of_moving_shapes_that_reach_it():
    mech = arm([Shape(Box((0.2, 0.2, 0.2)), "link0", collision=True)])
    q = torch.zeros(7, dtype=torch.float64)
    heights = ts.frame_pose(mech, q, "link1").position[2].item()
    foot = Shape(Box((0.2, 0.2, 2 * heights)), "link1", collision=True)
    assert not len(ground_contacts(scene_of(mech, "collision"), -10.0, q))
    both = mech.replace(geometry=Geometry((*mech.geometry.shapes, foot)))
    scene = scene_of(both, "collision")
    scene = type(scene)(both, tuple(node for node in scene.nodes if "box" in node.name))
    points = ground_contacts(scene, 0.0, q)
    corners = [[x, y, 0.0] for x in (-0.1, 0.1) for y in (-0.1, 0.1)]
    assert np.allclose(points, corners, atol=1e-6)


def test_logs_are_read_and_what_is_none_is_refused(tmp_path):
    mech, q = arm(), torch.rand(5, 7, dtype=torch.float64)
    np.savez(tmp_path / "a.npz", q=q.numpy(), t=np.arange(5) * 0.1)
    torch.save({"q": q, "t": torch.arange(5) * 0.1}, tmp_path / "a.pt")
    torch.save(q, tmp_path / "b.pt")
    for name in ("a.npz", "a.pt", "b.pt"):
        motion = read_log(mech, tmp_path / name)
        assert torch.equal(motion.q, q)
    assert [read_log(mech, tmp_path / "a.npz").at(t) for t in (-1.0, 0.0, 0.15, 0.4, 9.0)] == [
        0, 0, 1, 4, 4,
    ]  # fmt: skip
    np.savez(tmp_path / "none.npz", x=q.numpy())
    np.savez(tmp_path / "objects.npz", q=np.array([object()]))
    (tmp_path / "bad.pt").write_bytes(b"rubbish")
    (tmp_path / "bad.npz").write_bytes(b"rubbish")
    for name in ("none.npz", "objects.npz", "bad.pt", "bad.npz", "missing.pt"):
        with pytest.raises(ts.RobotFileError, match="cannot be read as a motion"):
            read_log(mech, tmp_path / name)


def test_a_log_that_a_fit_takes_can_be_looked_at(tmp_path):
    """Columns in any order, beside others, are found by their joints' names."""
    mech, q, t = arm(), torch.rand(5, 7, dtype=torch.float64), np.arange(5) * 0.1
    names = ["tau_joint1", *(f"q_{joint}" for joint in reversed(mech.joint_names)), "time"]
    rows = np.column_stack([t, q.flip(-1).numpy(), t])
    np.savetxt(
        tmp_path / "log.csv", rows, delimiter=",", header=",".join(names), comments="", fmt="%.17g"
    )
    motion = read_log(mech, tmp_path / "log.csv")
    assert torch.equal(motion.q, q) and np.array_equal(motion.t, t)
    (tmp_path / "none.csv").write_text("t,tau_joint1\n0,1\n1,2\n")
    with pytest.raises(ts.FitError, match="no column is a position"):
        read_log(mech, tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("q", "t"),
    [
        (torch.zeros(7), None),
        (torch.zeros(3, 6), None),
        (torch.zeros(3, 7), [0.0, 1.0]),
        (torch.zeros(3, 7), [0.0, 1.0, 0.5]),
        (torch.zeros(3, 7), [0.0, "1", None]),
        ((torch.zeros(3, 7), torch.zeros(3, 7)), None),
        (torch.full((3, 7), math.nan), None),
        (torch.zeros(0, 7), None),
    ],
)
def test_motions_that_do_not_fit_are_refused(q, t):
    with pytest.raises(ts.ShapeError):
        motion_of(arm(), q, t)


def test_times_of_a_motion_are_as_exact_as_they_are_given():
    """In float32 a clock's seconds were 128 apart, and multiples of a step fell behind the time asked for."""
    q, clock = torch.zeros(20, 7, dtype=torch.float64), [1.7e9 + 0.5 * k for k in range(20)]
    assert motion_of(arm(), q, clock).t.tolist() == clock
    steps = motion_of(arm(), q, 0.1)
    assert [steps.at(0.1 * k) for k in range(20)] == list(range(20))


def test_a_robot_that_floats_starts_on_the_ground():
    mech = ts.load(ts.robots.panda, floating_base=True)
    for height in (None, 0.7):
        floor = () if height is None else (Shape(Plane(), None, position=(0.0, 0.0, height)),)
        scene = scene_of(mech.replace(geometry=Geometry(floor)))
        R, r = scene.poses(start_of(scene))
        low = min(
            (node.triangles.vertices @ R[node.frame].T + r[node.frame])[:, 2].min()
            for node in scene.nodes
            if not node.floor
        )
        assert low == pytest.approx(height or 0.0, abs=1e-12)


def test_a_robot_is_drawn_where_its_file_starts_it():
    """A free body of MJCF that the file raises stood on the ground."""
    pytest.importorskip("mujoco")
    skin = '<geom size="0.1"/>'
    body = f'<freejoint/>{skin}<body><joint name="j" ref="1.5" range="0 2"/>{skin}</body>'
    world = '<mujoco><compiler angle="radian"/><worldbody><body pos="0 0 2">{}</body></worldbody></mujoco>'
    mech = ts.load(world.format(body))
    q = start_of(scene_of(mech))
    assert torch.equal(q, mech.initial()) and q[2] == 2.0 and q[mech.q_slice("j")] == 1.5
