"""Robots dropped on a plane for one second keep finite states and gradients."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torchsko as ts
from tests.oracles.pinocchio_bridge import robot_files
from torchsko.mechanism.geometry import Plane, Shape, Sphere

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("mujoco")

MODELS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
SHIPPED = {Path(f).stem: f for f in (ts.robots.quadruped, ts.robots.humanoid, ts.robots.panda)}
INSTALLED = {name.split("/")[0]: f for name, f in robot_files().items()}
FILES = {f.name: f for f in sorted(MODELS.glob("*.xml"))} | SHIPPED | INSTALLED
STEPS = 500


def on_a_plane(mech):
    """The robot 1 cm above a plane, with a sphere at each leaf if no shape of it touches a plane."""
    shapes = mech.geometry.shapes

    def with_plane(height, *more):
        floor = Shape(Plane(), position=(0.0, 0.0, height), collision=True)
        geometry = replace(mech.geometry, shapes=(*shapes, *more, floor))
        return mech.replace(geometry=geometry)

    feet = [
        Shape(Sphere(0.02), mech.body_names[k], collision=True)
        for k in set(range(mech.num_bodies)) - set(mech.parents)
    ]
    more = () if "plane" in ts.ContactModel.of(with_plane(0.0)).shape_kinds else feet
    robot = with_plane(0.0, *more)
    contact = ts.ContactModel.of(robot)
    planar = ["plane" in (contact.shape_kinds[k] for k in pair) for pair in contact.pair_shapes]
    points = ts.contacts(robot, robot.neutral(), contact)
    heights = points.distance[torch.tensor([planar[k] for k in points.pair])]
    return with_plane(float(heights.min()) - 0.01, *more)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")
@pytest.mark.parametrize("name", FILES)
def test_a_robot_dropped_on_a_plane_has_finite_states_and_gradients(name):
    file = FILES[name]
    if Path(file).suffix == ".xml":
        mech = ts.load(file)
    else:
        mech = on_a_plane(ts.load(file, floating_base=True, mimic="independent"))
    initial = mech.file_metadata.initial
    q = (mech.neutral() if initial is None else initial).clone().requires_grad_()
    contact = ts.ContactModel.of(mech).at_timestep(0.002)
    state = ts.State(q, q.new_zeros(mech.num_dof))
    for _ in range(STEPS):
        state = ts.step(mech, state, contact=contact, dt=0.002, integrator="Euler")
    (gradient,) = torch.autograd.grad(state.q.sum() + state.qd.sum(), q)
    for x in (state.q, state.qd, state.residual, gradient):
        assert torch.isfinite(x).all()
