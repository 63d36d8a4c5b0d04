"""Friction terms follow their published models, and fits recover their coefficients."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.finding_codes import texts
from tests.identification.test_fit import arm
from tests.identification.test_measurement_bias import arm as swinging
from tests.identification.test_measurement_bias import measured
from torchsko.identification.friction import (
    Balancer,
    Coulomb,
    Dahl,
    Loaded,
    LuGre,
    Offset,
    Periodic,
    RotorInertia,
    SmoothCoulomb,
    Stribeck,
    Term,
    TermInput,
    Viscous,
    term_classes,
)
from torchsko.identification.term_syntax import parse_joint_terms

integrate = pytest.importorskip("scipy.integrate")


def swing(n=4001, seconds=4.0):
    """A motion that reverses ever faster, and starts at rest."""
    t = np.linspace(0, seconds, n)
    q = 0.3 * t * np.sin(2 * t)
    return t, q, 0.3 * np.sin(2 * t) + 0.6 * t * np.cos(2 * t)


def term_input(q, qd, ordered=True):
    q, qd = (torch.from_numpy(np.asarray(x))[:, None] for x in (q, qd))
    return TermInput(q, qd, 0 * q, 0 * q, ordered=ordered)


def test_lugre_solves_its_differential_equation():
    t, q, qd = swing()
    term = LuGre(distance=0.02, speed=0.2, ratio=1.6, time=0.01)

    def slope(s, z):
        v = np.interp(s, t, qd)
        g = 1 + (term.ratio - 1) * np.exp(-((v / term.speed) ** 2))
        return v / term.distance * (1 - z * np.sign(v) / g)

    solved = integrate.solve_ivp(
        slope, (0, 4), [0.0], t_eval=t, rtol=1e-8, atol=1e-10, max_step=1e-3
    )
    z = solved.y[0]
    force = z + term.time * np.array([slope(*x) for x in zip(t, z, strict=True)])
    mine = term.basis(term_input(q, qd))[:, 0]
    assert_close(mine, torch.from_numpy(force), rtol=0, atol=5e-3)
    assert z.max() > 1.2  # it sticks, more than it slides


def test_lugre_without_stribeck_and_damping_is_dahl():
    _, q, qd = swing()
    motion = term_input(q, qd)
    assert_close(LuGre(0.03, ratio=1.0).basis(motion), Dahl(0.03).basis(motion))


def test_friction_with_hysteresis_converges_to_its_steady_state():
    v = torch.tensor([-0.8, -0.05, 0.05, 0.8], dtype=torch.float64)
    way = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
    motion = TermInput(way * v, v.expand(2001, 4), 0 * way * v, 0 * way * v)
    still = TermInput(motion.q, motion.qd, motion.qdd, motion.load, ordered=False)
    for term in (LuGre(0.005, speed=0.1, ratio=1.5, time=0.01), Dahl(0.005)):
        assert_close(term.basis(motion)[-1], term.basis(still)[-1], rtol=1e-3, atol=0)


@pytest.mark.parametrize("free", [0.0, 0.3])
def test_the_torque_of_a_balancer_is_the_derivative_of_its_energy(free):
    term = Balancer(near=0.2, far=0.6, zero=0.4, free=free)
    q = torch.linspace(-2, 2, 40, dtype=torch.float64, requires_grad=True)
    away = torch.stack([0.2 * (q - 0.4).cos() - 0.6, 0.2 * (q - 0.4).sin()]).norm(dim=0)
    energy = (away - free).square().sum() / 2
    (slope,) = torch.autograd.grad(energy, q)
    q = q.detach()[:, None]
    assert_close(term.basis(TermInput(q, q, q, q))[:, 0], slope, rtol=1e-12, atol=1e-12)


def test_a_balancer_of_zero_free_length_is_a_sine_and_a_cosine():
    q = torch.linspace(-2, 2, 40, dtype=torch.float64)[:, None]
    motion = TermInput(q, q, q, q)
    pair = torch.cat([Periodic(1.0, 0.0).basis(motion), Periodic(1.0, 0.25).basis(motion)], -1)
    wanted = Balancer(0.2, 0.6, 0.4).basis(motion)
    numbers = torch.linalg.lstsq(pair, wanted).solution
    assert_close(pair @ numbers, wanted, rtol=1e-12, atol=1e-12)


def log_with(robot, law, rate):
    """A log of 20 s of excitation without noise, with given friction."""
    motion = ts.identification.exciting_trajectory(
        robot, generator=torch.Generator().manual_seed(0)
    )
    t = torch.arange(20 * rate, dtype=robot.dtype) / rate
    q, qd, qdd = motion(t)
    rigid = ts.inverse_dynamics(robot, q, qd, qdd)
    state = TermInput(q, qd, qdd, rigid)
    tau = rigid + sum(x * term.basis(state) for term, x in law.items())
    return ts.identification.Log(t.numpy(), q.numpy(), tau.numpy(), qd.numpy())


@pytest.mark.parametrize(
    "law",
    [
        {SmoothCoulomb(0.05): 0.5, Stribeck(0.2, 0.05): 0.4},
        {Periodic(24.0, 0.25): 0.3},
        {Coulomb(): 0.5},  # a jump lies between two states
    ],
)
@pytest.mark.parametrize("cutoff", [4.0, 10.0])
def test_friction_coefficients_are_unbiased_by_the_filter(law, cutoff):
    """Measured forces are filtered once more than nonlinear terms of filtered states."""
    truth, nominal = arm()
    law = {Viscous(): 0.3, Offset(): 0.2, **law}
    log = log_with(truth, law, rate=400)
    fit = ts.identification.identify(
        nominal, log, joint_terms=list(law), method="ols", cutoff=cutoff
    )
    for terms, numbers in zip(fit.terms, fit.numbers, strict=True):
        true = numbers.new_tensor([law[term] for term in terms])
        assert_close(numbers, true, rtol=0.02, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coulomb_friction_averaged_over_a_step_is_zero_at_rest(dtype):
    still = torch.zeros(3, 1, dtype=dtype)
    column = Coulomb().basis(TermInput(still, still, still, still, step=1e-3))
    assert column.dtype == dtype and torch.equal(column, still)


def test_terms_are_selected_for_forces_without_noise():
    """The effect of the prior is then below the rounding errors of the sums of squares."""
    truth, nominal = arm()
    law = {Viscous(): 0.3, Offset(): 0.2, SmoothCoulomb(0.05): 0.5}
    fit = ts.identification.identify(
        nominal, log_with(truth, law, rate=400), cutoff=10.0, prior=1e-3
    )
    q, qd, qdd = ts.identification.exciting_trajectory(
        truth, generator=torch.Generator().manual_seed(3)
    )(torch.linspace(0, 10, 500, dtype=truth.dtype))
    friction = sum(x * term.basis(TermInput(q, qd, qdd, 0 * q)) for term, x in law.items())
    tau = ts.inverse_dynamics(truth, q, qd, qdd) + friction
    assert (fit.inverse_dynamics(q, qd, qdd) - tau).std() < 1e-4 * tau.std()


def test_load_dependent_friction_has_a_note_and_a_second_fit_corrects_it():
    truth, nominal = arm()
    law = {Viscous(): 0.3, SmoothCoulomb(0.05): 0.5, Loaded(0.05): 0.1}
    log = log_with(truth, law, rate=200)
    found = ts.identification.identify(nominal, log, joint_terms=list(law), prior=1e-5)
    assert any("load-dependent friction" in note for note in texts(found, "term_remark"))
    again = ts.identification.identify(found.mechanism, log, joint_terms=list(law), prior=1e-5)
    for terms, once, twice in zip(found.terms, found.numbers, again.numbers, strict=True):
        k = terms.index(Loaded(0.05))
        assert abs(twice[k] - 0.1) < 0.05 * abs(once[k] - 0.1)


@pytest.mark.parametrize(("method", "true"), [("wls", 0.04), ("physical", 0.04), ("physical", 0.0)])
def test_a_rotor_inertia_below_the_nominal_one_is_found(method, true):
    """A named rotor inertia replaces the one of the nominal robot."""
    mech = swinging()
    rotors = mech.armature.new_tensor([0.0, 0.0, true])
    log = measured(mech.replace(armature=rotors), 1e-5, seconds=10)
    nominal = mech.replace(armature=rotors.new_tensor([0.0, 0.0, 0.3]))
    terms = [Viscous(), Coulomb()]
    learn = {"j1": terms, "j2": terms, "slide": [*terms, RotorInertia()]}
    fit = ts.identification.identify(nominal, log, joint_terms=learn, method=method)
    assert float(fit.mechanism.armature[2]) == pytest.approx(true, abs=0.01)
    q, qd = (
        x[::50]
        for x in (torch.as_tensor(log.q), torch.as_tensor(np.gradient(log.q, log.t, axis=0)))
    )
    qdd = torch.ones_like(qd)
    told = fit.inverse_dynamics(q, qd, qdd) - fit.inverse_dynamics(q, qd, 0 * qdd)
    right = mech.replace(armature=rotors)
    need = ts.inverse_dynamics(right, q, qd, qdd) - ts.inverse_dynamics(right, q, qd, 0 * qdd)
    torch.testing.assert_close(told, need, rtol=0, atol=0.03)
    # The error of the nominal robot is computed with the best rotor inertia and friction.
    assert fit.errors["nominal"][2] < 0.1


def test_a_term_that_is_defined_elsewhere_is_found_by_its_name():
    @dataclass(frozen=True)
    class CubicSpring(Term):
        """Spring that stiffens."""

        def basis(self, motion):
            return motion.q**3

    assert term_classes()["CubicSpring"] is CubicSpring
    mech = arm()[1]
    wanted = {name: [CubicSpring()] for name in mech.joint_names}
    assert parse_joint_terms(mech, ["CubicSpring"]) == wanted
