"""Invalid options of a rollout raise errors with a name and advice."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.integrators.test_integrators import robot
from torchsko.integrators.adaptive_steps import AdaptiveRungeKutta, dormand_prince
from torchsko.integrators.binomial import Binomial
from torchsko.integrators.limit_springs import LimitSprings
from torchsko.integrators.midpoint import ImplicitMidpoint, Variational

MECH = robot(("revolute", "revolute"))
Q, QD = MECH.random_state(3, generator=torch.Generator().manual_seed(0))
WRENCH = torch.zeros(5, MECH.num_bodies, 6).double()

REFUSED = {
    "steps": ("2", 2.0, -1, True, None, torch.tensor(True)),
    "every": (0, 1.5, True),
    "truncate": (0, 2.5),
    "checkpoint": ("sqrt", 2.5, True, 0, Binomial(1.5), Binomial(-1)),  # type: ignore[arg-type]
    "dt": ("0.1", True, 0.0, torch.inf, torch.nan, [], torch.ones(3), torch.tensor(-0.1)),
    "method": (None, dormand_prince, ImplicitMidpoint, AdaptiveRungeKutta, lambda q, qd: q),
    "limits": (True, LimitSprings(-1.0), LimitSprings(damping=torch.tensor(-1.0))),
    "control": (
        *(lambda t, q, qd: qd[:2], lambda t, q, qd: qd.expand(2, 3, 2)),
        *(lambda q, qd: -qd, torch.nn.Linear(2, 2), ts.actuators.ActuatedControl, torch.nn.Tanh),
    ),
    "f_ext": (
        [[0.0] * 6] * 2,
        *(lambda t, q, qd: None, lambda t, q, qd: WRENCH, lambda q, qd: WRENCH),
    ),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, all_ in REFUSED.items() for value in all_]
)
def test_invalid_options_are_named_with_advice(name, value):
    options = {"steps": 2, name: value}
    with pytest.raises(ts.TorchskoError) as error:
        ts.rollout(MECH, ts.State(Q, QD), **options)
    what, _, advice = str(error.value).split("\n")
    assert name in what and advice.startswith(("Pass ", "Return ", "Expand "))


def test_a_method_that_was_not_called_is_refused_with_advice():
    with pytest.raises(ts.TorchskoError, match=r"Pass method=dormand_prince\(\)"):
        ts.rollout(MECH, ts.State(Q, QD), steps=1, method=dormand_prince)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers():
    given = {"steps": np.int64(4), "dt": np.float64(0.01), "every": np.int32(2)}
    ours = ts.rollout(MECH, ts.State(Q, QD), **given, checkpoint=np.int64(2), truncate=np.int8(3))[
        :2
    ]
    assert_close(ours, ts.rollout(MECH, ts.State(Q, QD), steps=4, dt=0.01, every=2)[:2])


@pytest.fixture(scope="module")
def kernels():
    return ts.fuse(MECH)


@pytest.mark.parametrize(
    ("method", "fused"),
    [
        pytest.param("semi_implicit_euler", False, id="euler-eager"),
        pytest.param("semi_implicit_euler", True, id="euler-fused"),
        pytest.param(Variational(), False, id="variational-eager"),
        pytest.param(Variational(), True, id="variational-fused", marks=pytest.mark.nightly),
    ],
)
def test_a_time_step_that_is_a_tensor_is_differentiable(kernels, fused, method):
    control = (
        None if isinstance(method, str) else lambda t, q, qd: -qd + t
    )  # as its kernels require

    def end(dt):
        given = {"steps": 3, "dt": dt, "method": method, "fused": fused}
        return ts.rollout(kernels, ts.State(Q, QD), control, **given).q[:, -1].sum()

    step = torch.tensor(0.02).double().requires_grad_()
    (slope,) = torch.autograd.grad(end(step), step)
    assert_close(slope, (end(0.02 + 1e-6) - end(0.02 - 1e-6)) / 2e-6, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dt", [0.0, torch.inf, torch.nan, -torch.inf])
def test_linear_models_refuse_a_step_of_no_length_as_number_or_tensor(dt):
    for given in (dt, torch.tensor(dt).double(), torch.full((3,), dt).double()):
        with pytest.raises(ts.TorchskoError, match=r"(?s)^dt is.*Pass dt="):
            ts.linearize(MECH, ts.State(Q, QD), QD, dt=given)


def test_linear_models_name_the_time_step_of_another_type():
    with pytest.raises(ts.ShapeError, match=r"(?s)^dt is torch.float32.*dt.to\(torch.float64\)"):
        ts.linearize(MECH, ts.State(Q, QD), QD, dt=torch.tensor(0.1))


def test_rollouts_name_the_time_step_of_another_type_as_their_kernels_do():
    with pytest.raises(ts.ShapeError, match=r"(?s)^dt is torch.float32.*dt.to\(torch.float64\)"):
        ts.rollout(MECH, ts.State(Q, QD), None, steps=3, dt=torch.tensor(0.1), fused=False)


def test_optimal_control_names_what_is_no_step():
    cost = lambda *state: state[1].square().sum(-1)  # noqa: E731
    phase = ts.control.Phase(MECH, 4, 0.1, cost, cost, method=dormand_prince)  # type: ignore[arg-type]
    with pytest.raises(ts.TorchskoError, match="not a step") as error:
        ts.control.optimal_control([phase])
    assert "'rk4'" in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("options", [{"tolerance": 0.0}, {"tolerance": -1.0}, {"substeps": 0}])
def test_pairs_that_meet_no_tolerance_are_refused(options):
    with pytest.raises(ts.TorchskoError, match=rf"(?s)^{next(iter(options))} is.*Pass "):
        dormand_prince(**options)


def test_a_warning_tells_what_the_method_takes():
    """For an adaptive pair the advice concerns sub-steps and the tolerance, not limits."""
    fast = 40 * QD
    with pytest.warns(RuntimeWarning, match="is not finite at") as told:
        ts.rollout(MECH, ts.State(Q, fast), steps=1, dt=0.5, method=dormand_prince(1e-9, 3))
    words = str(told[0].message)
    assert "substeps=12" in words and "tolerance=1e-07" in words and "limits=" not in words
    for method in ("rk4", "implicit"):
        with pytest.warns(RuntimeWarning, match="is not finite at") as told:
            ts.rollout(
                MECH, ts.State(Q, QD), lambda t, q, qd: qd * torch.nan, steps=1, method=method
            )
        assert ("limits=" in str(told[-1].message)) == (method == "implicit")
