"""Robots dropped on a plane keep finite states and gradients."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

import torchsko as ts
from tests.oracles.pinocchio_bridge import robot_files
from torchsko.mechanism.geometry import Shape, Surface
from torchsko.shapes.plane import Plane
from torchsko.shapes.sphere import Sphere

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("mujoco")

MODELS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
SHIPPED = {Path(f).stem: f for f in (ts.robots.quadruped, ts.robots.humanoid, ts.robots.panda)}
INSTALLED = {name.split("/")[0]: f for name, f in robot_files().items()}
FILES = {f.name: f for f in sorted(MODELS.glob("*.xml"))} | SHIPPED | INSTALLED
SAMPLES, STEPS, DT, MAX_ROWS = 8, 500, 0.002, 5000
CANNOT_FALL = {
    *("inverted_double_pendulum.xml", "inverted_pendulum.xml", "point.xml", "pusher.xml"),
    *("pusher_v5.xml", "reacher.xml", "swimmer.xml"),
}
"""Models without a joint that lets the base fall."""
DAMPING = {"kinova_description": 0.02}
"""Damping of joints of robots whose light wrists otherwise turn by radians in a time step [N m s/rad]."""


def on_a_plane(mech):
    """The robot 1 cm above a plane, with a sphere at each leaf if no shape of it touches a plane.

    Shapes of robots with many candidate contacts touch the plane alone, so that a kernel holds a step.
    """
    shapes = [x for x in mech.geometry.shapes if not isinstance(x.form, Plane)]

    def with_plane(height, shapes):
        floor = Shape(Plane(), position=(0.0, 0.0, height), collision=True)
        return mech.replace(geometry=replace(mech.geometry, shapes=(*shapes, floor)))

    if "plane" not in ts.ContactModel.of(with_plane(0.0, shapes)).shape_kinds:
        leaves = set(range(mech.num_bodies)) - set(mech.parents)
        shapes += [Shape(Sphere(0.02), mech.body_names[k], collision=True) for k in leaves]
    robot = with_plane(0.0, shapes)
    if len(ts.contacts(robot, robot.initial()).pair) * mech.num_dof > MAX_ROWS:
        shapes = [replace(x, surface=Surface(contype=0)) for x in shapes]
        robot = with_plane(0.0, shapes)
    contact = ts.ContactModel.of(robot)
    planar = ["plane" in (contact.shape_kinds[k] for k in pair) for pair in contact.pair_shapes]
    points = ts.contacts(robot, robot.initial(), contact=contact)
    heights = points.distance[torch.tensor([planar[k] for k in points.pair])]
    return with_plane(float(heights.min()) - 0.01, shapes)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")
@pytest.mark.parametrize(
    ("name", "dtype"), [*product(FILES, [torch.float64]), *product(SHIPPED, [torch.float32])]
)
def test_robots_dropped_on_a_plane_for_a_second_have_finite_states_and_gradients(name, dtype):
    """One robot starts at rest, the others tumble, some of them already in the plane."""
    file = FILES[name]
    options = {"floating_base": True, "mimic": "independent"}
    mech = on_a_plane(ts.load(file, **({} if Path(file).suffix == ".xml" else options))).to(dtype)
    mech = mech.replace(damping=mech.damping + DAMPING.get(name, 0.0))
    g = torch.Generator().manual_seed(0)
    rest = mech.initial().expand(SAMPLES, -1)
    is_moved = (torch.arange(SAMPLES) > 0).to(rest)[:, None]
    turn, speed = torch.randn(2, SAMPLES, mech.num_dof, generator=g, dtype=dtype) * is_moved
    q = ts.integrate(mech, rest, 0.1 * turn).requires_grad_()
    qd = (0.5 * speed).requires_grad_()
    contact = ts.ContactModel.of(mech).at_timestep(DT)
    found = ts.rollout(
        ts.fuse(mech),
        ts.State(q, qd),
        None,
        steps=STEPS,
        dt=DT,
        method=ts.ContactStep(contact),
        fused=True,
    )[:2]
    gradients = torch.autograd.grad(found[0][:, -1].sum() + found[1][:, -1].sum(), (q, qd))
    for x in (*found, *gradients):
        assert torch.isfinite(x).all()
    points = ts.contacts(mech, found[0].detach(), contact=contact)
    pushed = (points.active & (points.distance < 0)).any()
    assert name in CANNOT_FALL or pushed
