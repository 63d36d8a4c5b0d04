"""Stiffness, damping and shapes of flexible bodies and elastic joints: learned, and random."""

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.flexible.test_elastic_joints import RATIO, actuator, arm
from tests.flexible.test_flexible_dynamics import planar
from tests.refusals import assert_refused


def damped() -> ts.Mechanism:
    beam = ts.FlexibleBody.beam(1.0, 0.8, EI_y=4.0, EI_z=4.0, shapes=(2, 1)).damped(0.02)
    builder = ts.MechanismBuilder("beam").flexible_link("beam", beam)
    return builder.joint("hub", "revolute", child="beam", axis=(0, 1, 0)).build()


def test_learned_modes_scale_rows_and_columns():
    mech = damped()
    names = {
        f"beam_modes.{name}": ts.learn.Positive() for name in ("modal_stiffness", "modal_damping")
    }
    layer = ts.Dynamics(mech, names)
    assert torch.equal(layer.mechanism().modal_stiffness, mech.modal_stiffness)
    factors = torch.tensor([2.0, 0.5, 3.0]).double()
    with torch.no_grad():
        for learned in layer.learned.values():
            learned.offset.copy_(factors.log())
    root = factors.sqrt()
    for name in ("modal_stiffness", "modal_damping"):
        nominal, found = getattr(mech, name), getattr(layer.mechanism(), name)
        assert torch.allclose(found, root[:, None] * nominal * root, rtol=1e-13)
        assert torch.equal(found, found.mT) or name == "modal_stiffness"
        assert torch.linalg.eigvalsh(found).min() > -1e-12


def test_the_joints_of_a_spring_have_one_learned_stiffness():
    """The gear keeps its ratio, and other springs their stiffness."""
    mech = arm(200.0)
    for joint in ("upper_joint", "upper_joint_rotor"):
        layer = ts.Dynamics(mech, {f"{joint}.modal_stiffness": ts.learn.Positive()})
        with torch.no_grad():
            next(layer.parameters()).fill_(np.log(3.0))
        q = torch.tensor([0.01, -0.02, 0.5, 0.7]).double()
        both = [ts.passive_force_parts(m, q, 0 * q).springs for m in (mech, layer.mechanism())]
        factors = both[1] / both[0]
        own = [mech.dof_slice(f"upper_joint{x}").start for x in ("", "_rotor")]
        assert torch.allclose(factors[own], torch.tensor(3.0).double(), rtol=1e-12)
        others = [i for i in range(4) if i not in own]
        assert torch.equal(factors[others], torch.ones(2).double())


@pytest.mark.nightly
def test_the_stiffness_and_damping_of_an_elastic_gear_are_learned_from_its_motion():
    truth = actuator(150.0, damping=3.0)
    layer = ts.Dynamics(
        actuator(60.0, damping=8.0),
        {f"axle.{name}": ts.learn.Positive() for name in ("modal_stiffness", "modal_damping")},
        fused=False,
    )
    start = ts.State(torch.tensor([0.0, 2.0]).double(), torch.zeros(2).double())
    options = {"steps": 40, "dt": 5e-3, "method": "rk4", "fused": False}
    measured = ts.rollout(truth, start, **options).q
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=40, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        error = (ts.rollout(layer.mechanism(), start, **options).q - measured).square().mean()
        (1e6 * error).backward()
        return 1e6 * error.detach()

    optimizer.step(loss)
    with torch.no_grad():
        found = layer.mechanism()
    assert abs(float(found.modal_stiffness[0, 0]) / 150 - 1) < 1e-3
    assert abs(float(found.modal_damping[0, 0]) / 3 - 1) < 1e-3
    ratio = found.modal_stiffness / found.modal_stiffness[0, 0]
    assert torch.allclose(ratio, torch.tensor([[1, -1 / RATIO], [-1 / RATIO, RATIO**-2]]).double())


def test_shapes_are_joint_parameters_of_points():
    mech = damped()
    layer = ts.Dynamics(mech, {"beam/1.shape": ts.learn.Free()}, fused=False)
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(0))
    layer(q, qd, torch.zeros_like(qd)).square().sum().backward()
    (parameter,) = layer.parameters()
    assert parameter.shape == (9,) and parameter.grad.abs().max() > 1e-6


def test_values_without_a_nominal_one_are_refused():
    layer = lambda mech, name: lambda: ts.Dynamics(mech, {name: ts.learn.Positive(init=1.0)})  # noqa: E731
    assert_refused(layer(planar(), "beam_modes.modal_damping"), "no positive nominal.*damped")
    assert_refused(layer(planar(), "hub.modal_stiffness"), "'hub.modal_stiffness' has no positive")
    free = lambda: ts.Dynamics(damped(), {"beam_modes.modal_stiffness": ts.learn.Free()})  # noqa: E731
    assert_refused(free, "could become negative")


@pytest.mark.parametrize("mech", [damped(), arm(200.0)], ids=["beam", "gears"])
def test_random_stiffness_stays_symmetric_and_positive_semidefinite(mech):
    g = torch.Generator().manual_seed(0)
    K = ts.randomize(mech, 20, {"modal_stiffness": (0.5, 2.0)}, generator=g).modal_stiffness
    scale = K.abs().max()
    assert (K - K.mT).abs().max() < 1e-15 * scale
    assert torch.linalg.eigvalsh(K).min() > -1e-13 * scale
    factors = K.diagonal(dim1=-2, dim2=-1) / mech.modal_stiffness.diagonal()
    assert ((factors > 0.5) & (factors < 2.0)).all()
    assert factors[:, 0].std() > 0.2


def test_one_joint_of_a_spring_can_be_randomized():
    mech = arm(200.0)
    K = ts.randomize(mech, 5, {"upper_joint.modal_stiffness": (3.0, 3.0)}).modal_stiffness
    factors = K[0] / torch.where(mech.modal_stiffness == 0, 1.0, mech.modal_stiffness)
    assert sorted(set(factors.flatten().round(decimals=12).tolist())) == [0.0, 1.0, 3.0]
