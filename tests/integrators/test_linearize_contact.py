"""Linear models of steps with contact equal central differences of the step."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts

TEXT = """<mujoco><option timestep=".002" integrator="{}" cone="elliptic"/><worldbody>
<geom type="plane" size="5 5 1" friction=".6"/>
<body pos="0 0 .0985"><freejoint/><geom type="box" size=".1 .1 .1" mass="1"/>
<body pos="0 0 .2"><joint name="a" axis="0 1 0" range="-20 20" damping=".1"/>
<geom size=".05" pos=".1 0 0" mass=".2"/></body></body></worldbody>
<actuator><position name="servo" joint="a" kp="30" kv="2"/>
<general name="slow" joint="a" dyntype="filter" dynprm=".05" gainprm="2"/></actuator></mujoco>"""
"""A crate on the ground with an arm at its limit, a servo and a filter."""

EPS = 1e-5


def sliding_crate(integrator):
    mech = ts.load(TEXT.format(integrator))
    q = torch.stack([mech.initial(), mech.initial()])
    q[:, 7] = torch.tensor([0.36, 0.1])  # beyond the limit, and within
    qd = torch.linspace(-0.2, 0.3, 14, dtype=q.dtype).reshape(2, 7)
    act = torch.tensor([[0.4], [-0.2]], dtype=q.dtype)
    return mech, ts.State(q, qd, act=act), torch.tensor([[0.2, 0.5], [0.3, -1.0]], dtype=q.dtype)


@pytest.mark.some(1)
@pytest.mark.parametrize("integrator", ["Euler", "implicitfast", "RK4"])
def test_linear_models_of_steps_with_contact_equal_differences(integrator):
    mech, state, ctrl = sliding_crate(integrator)
    A, B = ts.linearize(mech, state, ctrl, method=ts.ContactStep())
    assert A.shape == (2, 15, 15) and B.shape == (2, 15, 2)
    end = ts.step(mech, state, ctrl).q

    def moved(x, u):
        """The deviation at the end of a step that starts with deviations x, under u."""
        d, rate, act = x.split((7, 7, 1), -1)
        start = state._replace(
            q=ts.integrate(mech, state.q, d), qd=state.qd + rate, act=state.act + act
        )
        after = ts.step(mech, start, ctrl + u)
        return torch.cat([ts.difference(mech, end, after.q), after.qd, after.act], -1)

    zero = torch.zeros(2, 17, dtype=A.dtype)
    columns = []
    for k in range(17):
        x = zero.index_fill(1, torch.tensor([k]), EPS)
        sides = [moved(y[:, :15], y[:, 15:]) for y in (x, -x)]
        columns.append((sides[0] - sides[1]) / (2 * EPS))
    expected = torch.stack(columns, -1)
    assert_close(torch.cat([A, B], -1), expected, rtol=1e-5, atol=1e-6)
    free = ts.linearize(mech, state, torch.zeros_like(state.qd), dt=0.002)[0]
    assert (A[:, :14, :14] - free).abs().max() > 0.1  # contact and servos act


def test_the_linear_model_of_a_fused_mechanism_includes_contact():
    mech, state, ctrl = sliding_crate("Euler")
    options = {"dt": 0.001, "method": ts.ContactStep(integrator="implicitfast")}
    found = ts.linearize(ts.fuse(mech), state, ctrl, **options)
    assert_close(found, ts.linearize(mech, state, ctrl, **options), rtol=1e-12, atol=1e-12)
    with pytest.raises(ts.ShapeError, match="state was given as Tensor"):
        ts.linearize(mech, state.q, ctrl, **options)
    with pytest.raises(ts.ShapeError, match=r"ctrl has shape \[2, 7\]"):
        ts.linearize(mech, state, state.qd, **options)
