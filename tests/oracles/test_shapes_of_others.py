"""Shapes against others' readers: every geom where MuJoCo has it, every URDF shape where Pinocchio has it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

import torchsko as ts
from torchsko.io.common.meshes import mesh_file
from torchsko.mechanism.geometry import Shape
from torchsko.shapes.capsule import Capsule
from torchsko.shapes.mesh import Mesh
from torchsko.shapes.plane import Plane

ROBOTS = (
    "panda_description/urdf/panda.urdf",
    "talos_data/robots/talos_reduced.urdf",
    "solo_description/robots/solo12.urdf",
    "ur_description/urdf/ur5_robot.urdf",
)


def placed(mech, shape: Shape, q):
    """Rotation and position of a shape in the inertial frame."""
    turn, shift = (torch.tensor(x, dtype=torch.float64) for x in (shape.rotation, shape.position))
    if shape.frame is None:
        return turn, shift
    pose = ts.frame_pose(mech, q, shape.frame)
    return pose.rotation @ turn, pose.rotation @ shift + pose.position


@pytest.mark.parametrize("name", ["humanoid", "ant", "half_cheetah", "hopper", "swimmer", "pusher"])
def test_geoms_are_where_mujoco_has_them(name):
    mujoco = pytest.importorskip("mujoco")
    found = importlib.util.find_spec("gymnasium")
    if found is None:
        pytest.skip("gymnasium is not installed: pip install gymnasium")
    model = mujoco.MjModel.from_xml_path(
        str(Path(found.origin).parent / f"envs/mujoco/assets/{name}.xml")
    )
    mech = ts.from_mujoco(model)
    q, _ = mech.random_state(generator=torch.Generator().manual_seed(0))
    data = mujoco.MjData(model)
    data.qpos[:] = q.numpy()
    mujoco.mj_kinematics(model, data)
    assert len(mech.geometry.shapes) == model.ngeom
    for k, shape in enumerate(mech.geometry.shapes):
        R, r = placed(mech, shape, q)
        assert np.allclose(R.numpy(), data.geom_xmat[k].reshape(3, 3), atol=1e-9)
        assert np.allclose(r.numpy(), data.geom_xpos[k], atol=1e-9)
        assert shape.surface.contype == model.geom_contype[k]
        assert shape.surface.friction == tuple(model.geom_friction[k])


def test_collision_shapes_are_hidden_where_visual_meshes_exist():
    """robosuite's convention: what touches in group 0, what is seen in group 1, and both are shown."""
    pytest.importorskip("mujoco")
    touches, looks = 'type="sphere" size="0.3" group="0"', 'mesh="m" contype="0" conaffinity="0"'
    mech = ts.load(f"""<mujoco><asset>
      <mesh name="m" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset><default><geom type="mesh"/></default>
      <worldbody><geom {touches}/><geom {looks} group="1"/>
      <body><joint/><geom {touches}/><geom {looks} group="1"/></body>
      <body><joint/><geom {touches}/><geom {looks} group="0"/></body>
      <body><joint/><geom {touches}/><geom {looks} group="3"/></body>
      <body><joint/><geom {touches}/><geom type="box" size="1 1 1" contype="0" conaffinity="0" group="1"/>
      </body></worldbody></mujoco>""")
    seen = [shape.visual for shape in mech.geometry.shapes]
    assert seen == [True, True, False, True, True, True, True, False, True, True]
    assert [shape.collision for shape in mech.geometry.shapes] == 5 * [True, False]


def heights_by_rays(mujoco, model, form):
    """Of a height field about (9, 0), by rays from above at its nodes, a little inside of its edges."""
    data, found = mujoco.MjData(model), np.zeros(form.heights.shape)
    mujoco.mj_kinematics(model, data)
    rows, columns = form.heights.shape
    for i, y in enumerate(np.linspace(-0.49999, 0.49999, rows) * form.size[1]):
        for j, x in enumerate(np.linspace(-0.49999, 0.49999, columns) * form.size[0]):
            start, hit = np.array([9 + x, y, 10.0]), np.zeros(1, dtype=np.int32)
            down = np.array([0.0, 0.0, -1.0])
            found[i, j] = 10 - mujoco.mj_ray(model, data, start, down, None, 1, -1, hit)
    return found


def test_contact_settings_of_a_model_are_kept():
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_string("""<mujoco>
      <asset><mesh name="m" vertex="0 0 0 2 0 0 0 2 0 0 0 2"/><material name="red" rgba="1 0 0 1"/>
        <hfield name="h" nrow="2" ncol="3" size="3 2 0.5 0.1" elevation="0 1 2 3 4 5"/></asset>
      <worldbody><geom type="plane" size="4 5 1" group="1"/>
        <geom name="hill" type="hfield" hfield="h" pos="9 0 0"/>
        <body name="a"><joint/><geom name="ball" size="0.1" condim="4" friction="2 0.1 0.2" margin="0.3"
          gap="0.1" solref="0.03 0.8" priority="2" material="red"/></body>
        <body name="b"><joint/><geom name="seen" type="mesh" mesh="m" pos="1 2 3" contype="0"
          conaffinity="0"/><geom name="hidden" type="capsule" fromto="0 0 0 0 0 1" size="0.2" group="3"/>
        </body></worldbody>
      <contact><exclude body1="a" body2="b"/><pair geom1="ball" geom2="hidden" condim="1"
        friction="0.7 0.7 0.01 0.02 0.02"/></contact></mujoco>""")
    mech = ts.from_mujoco(model)
    floor, hill, ball, seen, hidden = mech.geometry.shapes
    assert floor.form == Plane((8.0, 10.0)) and floor.frame is None
    assert hill.form.size == (6.0, 4.0)
    assert np.allclose(hill.form.heights, heights_by_rays(mujoco, model, hill.form), atol=1e-4)
    assert (ball.surface.condim, ball.surface.friction) == (4, (2.0, 0.1, 0.2))
    assert (ball.surface.margin, ball.surface.gap, ball.surface.priority) == (0.3, 0.1, 2)
    assert ball.surface.solref == (0.03, 0.8) and ball.color == (1.0, 0.0, 0.0, 1.0)
    assert seen.visual and not seen.collision and hidden.collision and not hidden.visual
    assert hidden.form == Capsule(0.2, 1.0)
    q = mech.neutral()
    R, r = placed(mech, seen, q)
    corners = torch.tensor(seen.form.vertices, dtype=torch.float64) @ R.mT + r
    written = torch.tensor([[1.0, 2, 3], [3, 2, 3], [1, 4, 3], [1, 2, 5]], dtype=torch.float64)
    near = torch.cdist(corners, written).min(dim=0).values
    assert near.max() < 1e-6
    (pair,) = mech.geometry.pairs
    assert (pair.first, pair.second, pair.surface.condim) == (2, 4, 1)
    assert pair.surface.friction == (0.7, 0.01, 0.02)
    assert {frozenset(bodies) for bodies in mech.geometry.excluded} == {frozenset("ab")}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ROBOTS)
def test_urdf_shapes_are_where_pinocchio_has_them(name):
    pin = pytest.importorskip("pinocchio")
    share = Path(pin.__file__).parents[4] / "share"
    path = share / "example-robot-data/robots" / name
    mech, model = ts.load(path).tree, pin.buildModelFromUrdf(str(path))
    data, q = model.createData(), mech.neutral()
    there = ts.conventions("pinocchio", mech).q_to(q).numpy()
    for kind, ours in (
        (pin.VISUAL, mech.geometry.visual),
        (pin.COLLISION, mech.geometry.collision),
    ):
        shapes = pin.buildGeomFromUrdf(model, str(path), kind, package_dirs=[str(share)])
        places = pin.GeometryData(shapes)
        pin.updateGeometryPlacements(model, data, shapes, places, there)
        theirs: dict[str, list] = {}
        for k, item in enumerate(shapes.geometryObjects):
            frame = model.frames[item.parentFrame].name
            theirs.setdefault(frame, []).append((item, places.oMg[k]))
        assert sum(map(len, theirs.values())) == len(ours)
        for shape in ours:
            item, placement = theirs[shape.frame].pop(0)
            R, r = placed(mech, shape, q)
            assert np.allclose(R.numpy(), placement.rotation, atol=1e-11)
            assert np.allclose(r.numpy(), placement.translation, atol=1e-11)
            if isinstance(shape.form, Mesh):
                assert mesh_file(shape.form).samefile(item.meshPath)
                assert shape.form.scale == tuple(item.meshScale)
