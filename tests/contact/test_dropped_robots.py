"""Robots dropped on a plane keep finite states and gradients."""

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
SAMPLES, STEPS, DT = 8, 40, 0.002
CANNOT_FALL = {
    *("inverted_double_pendulum.xml", "inverted_pendulum.xml", "point.xml", "pusher.xml"),
    *("pusher_v5.xml", "reacher.xml", "swimmer.xml"),
}
"""Models without a joint that lets the base fall."""


def on_a_plane(mech):
    """The robot 1 cm above a plane, with a sphere at each leaf if no shape of it touches a plane."""
    shapes = [x for x in mech.geometry.shapes if not isinstance(x.form, Plane)]

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
    points = ts.contacts(robot, robot.initial(), contact)
    heights = points.distance[torch.tensor([planar[k] for k in points.pair])]
    return with_plane(float(heights.min()) - 0.01, *more)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")
@pytest.mark.parametrize("name", FILES)
def test_robots_that_hit_a_plane_have_finite_states_and_gradients(name):
    """One robot starts at rest, the others tumble, some of them already in the plane."""
    file = FILES[name]
    options = {"floating_base": True, "mimic": "independent"}
    mech = on_a_plane(ts.load(file, **({} if Path(file).suffix == ".xml" else options)))
    g = torch.Generator().manual_seed(0)
    rest = mech.initial().expand(SAMPLES, -1)
    is_moved = (torch.arange(SAMPLES) > 0).to(rest)[:, None]
    turn, speed = torch.randn(2, SAMPLES, mech.num_dof, generator=g, dtype=rest.dtype) * is_moved
    q = ts.integrate(mech, rest, 0.1 * turn).requires_grad_()
    qd = (0.5 * speed).requires_grad_()
    contact = ts.ContactModel.of(mech).at_timestep(DT)
    state, pushed = ts.State(q, qd), torch.zeros(SAMPLES, dtype=torch.bool)
    for _ in range(STEPS):
        state = ts.step(mech, state, contact=contact, dt=DT, integrator="Euler")
        points = ts.contacts(mech, state.q.detach(), contact)
        pushed = pushed | (points.active & (points.distance < 0)).any(-1)
    gradients = torch.autograd.grad(state.q.sum() + state.qd.sum(), (q, qd))
    for x in (state.q, state.qd, state.residual, *gradients):
        assert torch.isfinite(x).all()
    assert name in CANNOT_FALL or pushed.any()
