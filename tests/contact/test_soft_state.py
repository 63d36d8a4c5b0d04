"""One evaluation of a mechanism at a state in a step; constraint forces from the balance of forces."""

from collections import Counter

import pytest
import torch

import torchsko as ts
from tests.contact.models import MODELS
from torchsko.bridge import kinematics
from torchsko.bridge.kinematics import Kinematics
from torchsko.contact import soft_rows, soft_state
from torchsko.contact.soft_state import SoftState
from torchsko.mechanism import coordinates

BALL = """<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 .0999"><freejoint/>
  <geom size=".1" mass="1"/><body pos=".1 0 0"><joint name="hinge" axis="0 1 0" damping=".01"/>
  <geom type="capsule" size=".03" fromto="0 0 0 .2 0 0" mass=".3"/></body></body></worldbody>
  <tendon><fixed name="cable" stiffness="1" damping=".1" armature=".01"><joint joint="hinge" coef="1"/>
  </fixed></tendon><actuator><position joint="hinge" kp="1"/></actuator></mujoco>"""

EVALUATED = {
    "tree_q": coordinates,
    "body_poses": kinematics,
    "edge_weights": kinematics,
    "model_at": soft_state,
    "soft_rows": soft_state,
    "contact_points": soft_rows,
}


@pytest.mark.parametrize("integrator", ["Euler", "implicitfast", "discrete"])
def test_a_step_evaluates_each_quantity_of_its_state_once(monkeypatch, integrator):
    mech = ts.load(BALL)
    contact, calls = ts.ContactModel.of(mech), Counter()
    for name, module in EVALUATED.items():
        original = getattr(module, name)

        def counted(*args, name=name, original=original, **kwargs):
            calls[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)
    state = ts.State(mech.initial(), 0.1 * torch.ones(7, dtype=torch.float64))
    once = dict.fromkeys(EVALUATED, 1)
    ts.step(mech, state, torch.ones(1).double(), contact=contact, integrator=integrator)
    assert calls == once


@pytest.mark.parametrize("name", ["pile", "welded", "four-bar", "tendons"])
def test_forces_of_the_balance_are_those_of_the_rows(name):
    """ID(qdd) - tau = J* f, with the residual as the largest difference."""
    mech = ts.load(MODELS[name]())
    generator = torch.Generator().manual_seed(0)
    d, qd, tau = torch.randn(3, 5, mech.num_dof, dtype=mech.dtype, generator=generator)
    q = ts.integrate(mech, mech.initial().expand(5, -1), 0.01 * d)
    found = ts.contact.contact_dynamics(mech, q, qd, tau)
    state = SoftState(Kinematics.of(mech, q, qd), ts.ContactModel.of(mech))
    of_rows = state.constraint_force(found.qdd)
    assert (of_rows != 0).any(-1).all()
    scale = float(of_rows.abs().max())
    torch.testing.assert_close(found.forces, of_rows, rtol=0, atol=1e-9 * scale)
    error = (found.forces - of_rows).abs().amax(-1)
    torch.testing.assert_close(found.residual, error, rtol=0, atol=1e-11 * scale)
