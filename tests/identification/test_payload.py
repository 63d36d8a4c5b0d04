"""A payload's numbers, with error bars that hold."""

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.identification.test_measurement_bias import TERMS, arm, measured


def with_payload(mech, body, mass=0.4):
    """The arm with a box attached to a body, and the box's own numbers at the body's origin."""
    com, inertia = np.array([0.05, -0.03, 0.02]), np.diag([0.004, 0.005, 0.003])
    k = mech.body_names.index(body)
    about = inertia + mass * ((com @ com) * np.eye(3) - np.outer(com, com))
    order = [(0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2)]
    own = torch.tensor([mass, *(mass * com), *(about[x] for x in order)]).to(mech.mass)
    phi = ts.inertial_parameters(mech).clone()
    phi[k] = phi[k] + own
    m = phi[:, 0]
    c = phi[:, 1:4] / m[:, None]
    full = phi[:, [4, 5, 7, 5, 6, 8, 7, 8, 9]].reshape(-1, 3, 3)
    eye = torch.eye(3).to(c)
    away = (c * c).sum(-1)[:, None, None] * eye - c[:, :, None] * c[:, None, :]
    return mech.replace(mass=m, com=c, inertia=full - m[:, None, None] * away), own


def fitted(nominal, mech):
    return ts.identification.identify(
        nominal, measured(mech, 1e-5, seconds=20), joint_terms=TERMS, method="wls"
    )


@pytest.fixture(scope="module")
def unloaded():
    mech = arm()
    return mech, fitted(mech, mech)


def test_parameters_of_a_payload_lie_within_their_standard_errors(
    unloaded,
):
    """`identify` fits a body's numbers alone, and says of none how sure it is."""
    mech, without = unloaded
    loaded, own = with_payload(mech, "b")
    torch.testing.assert_close(
        ts.inertial_parameters(loaded).sum(0) - own, ts.inertial_parameters(mech).sum(0)
    )
    fit = fitted(mech, loaded)
    for before in (None, without):
        found = ts.identification.payload(fit, "b", before)
        told = found.deviation.isfinite()
        # The arm is plane: of what turns about other axes nothing is told.
        assert told.nonzero().flatten().tolist() == [0, 1, 3, 6]
        assert ((found.change - own) / found.deviation)[told].abs().max() < 3
        assert found.deviation[0] < 0.02 * own[0]
        assert found.misfit < 3
        torch.testing.assert_close(
            found.com[[0, 2]], (own[1:4] / own[0])[[0, 2]], rtol=0, atol=0.01
        )


def test_a_payload_at_another_body_shows_in_the_misfit_and_widens_deviations():
    mech = arm()
    fit = fitted(mech, with_payload(mech, "a", mass=1.0)[0])
    wrong, right = (ts.identification.payload(fit, name) for name in "ba")
    assert wrong.misfit > 100 > 3 > right.misfit
    assert (wrong.deviation[0] > 3 * right.deviation[0]) or right.deviation[0].isinf()


def test_invalid_payloads_are_refused(unloaded):
    mech, fit = unloaded
    longer = mech.replace(joint_position=1.5 * mech.joint_position)
    other = fitted(longer, longer)
    for call, match in (
        (lambda: ts.identification.payload(fit, "tool"), "no body 'tool'"),
        (lambda: ts.identification.payload(fit, "b", other), "has other base parameters"),
    ):
        with pytest.raises(ts.FitError, match=match) as caught:
            call()
        assert str(caught.value).count("\n") == 2
