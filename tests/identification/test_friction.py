"""Terms of joints obey the laws they are named after."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.test_fit import arm
from tests.identification.test_noise import arm as swinging
from tests.identification.test_noise import measured
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
from torchsko.identification.selection.stepwise import stepwise_search
from torchsko.identification.term_syntax import learn_of

integrate = pytest.importorskip("scipy.integrate")


def swing(n=4001, seconds=4.0):
    """A motion that turns back and forth, ever faster, and stands still at first."""
    t = np.linspace(0, seconds, n)
    q = 0.3 * t * np.sin(2 * t)
    return t, q, 0.3 * np.sin(2 * t) + 0.6 * t * np.cos(2 * t)


def series(q, qd, ordered=True):
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
    mine = term.basis(series(q, qd))[:, 0]
    assert_close(mine, torch.from_numpy(force), rtol=0, atol=5e-3)
    assert z.max() > 1.2  # it sticks, more than it slides


def test_lugre_is_dahls_without_stribeck_and_damping():
    _, q, qd = swing()
    motion = series(q, qd)
    assert_close(LuGre(0.03, ratio=1.0).basis(motion), Dahl(0.03).basis(motion))


def test_friction_with_memory_tends_to_its_law_of_steady_motion():
    v = torch.tensor([-0.8, -0.05, 0.05, 0.8], dtype=torch.float64)
    way = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
    motion = TermInput(way * v, v.expand(2001, 4), 0 * way * v, 0 * way * v)
    still = TermInput(motion.q, motion.qd, motion.qdd, motion.load, ordered=False)
    for term in (LuGre(0.005, speed=0.1, ratio=1.5, time=0.01), Dahl(0.005)):
        assert_close(term.basis(motion)[-1], term.basis(still)[-1], rtol=1e-3, atol=0)


@pytest.mark.parametrize("free", [0.0, 0.3])
def test_a_balancers_torque_is_the_slope_of_its_energy(free):
    term = Balancer(near=0.2, far=0.6, zero=0.4, free=free)
    q = torch.linspace(-2, 2, 40, dtype=torch.float64, requires_grad=True)
    away = torch.stack([0.2 * (q - 0.4).cos() - 0.6, 0.2 * (q - 0.4).sin()]).norm(dim=0)
    energy = (away - free).square().sum() / 2
    (slope,) = torch.autograd.grad(energy, q)
    q = q.detach()[:, None]
    assert_close(term.basis(TermInput(q, q, q, q))[:, 0], slope, rtol=1e-12, atol=1e-12)


def test_a_balancer_of_no_free_length_is_a_turn_of_sine_and_cosine():
    q = torch.linspace(-2, 2, 40, dtype=torch.float64)[:, None]
    motion = TermInput(q, q, q, q)
    pair = torch.cat([Periodic(1.0, 0.0).basis(motion), Periodic(1.0, 0.25).basis(motion)], -1)
    wanted = Balancer(0.2, 0.6, 0.4).basis(motion)
    numbers = torch.linalg.lstsq(pair, wanted).solution
    assert_close(pair @ numbers, wanted, rtol=1e-12, atol=1e-12)


def log_with(robot, law, rate):
    """Twenty seconds of exciting motion without noise, friction as by a law."""
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
def test_friction_is_found_as_large_as_it_is_whatever_a_filter_takes_of_its_edges(law, cutoff):
    """The filter of states takes edges of measured forces, none of a law's that is computed of its states."""
    truth, nominal = arm()
    law = {Viscous(): 0.3, Offset(): 0.2, **law}
    log = log_with(truth, law, rate=400)
    fit = ts.identification.identify(
        nominal, log, learn=list(law), method="ols", cutoff=cutoff, prior=1e-3
    )
    for terms, numbers in zip(fit.terms, fit.numbers, strict=True):
        true = numbers.new_tensor([law[term] for term in terms])
        assert_close(numbers, true, rtol=0.02, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sharp_friction_at_rest_is_zero_over_a_step_too(dtype):
    still = torch.zeros(3, 1, dtype=dtype)
    column = Coulomb().basis(TermInput(still, still, still, still, step=1e-3))
    assert column.dtype == dtype and torch.equal(column, still)


def test_terms_are_chosen_of_forces_without_noise():
    """Their squares are so large that how the prior changes is below the rounding of their sum."""
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


def test_friction_by_load_is_told_to_be_the_nominal_robots_and_is_right_from_the_robot_found():
    truth, nominal = arm()
    law = {Viscous(): 0.3, SmoothCoulomb(0.05): 0.5, Loaded(0.05): 0.1}
    log = log_with(truth, law, rate=200)
    found = ts.identification.identify(nominal, log, learn=list(law), prior=1e-5)
    assert any("load-dependent friction" in note for note in found.found.notes)
    again = ts.identification.identify(found.mechanism, log, learn=list(law), prior=1e-5)
    for terms, once, twice in zip(found.terms, found.numbers, again.numbers, strict=True):
        k = terms.index(Loaded(0.05))
        assert abs(twice[k] - 0.1) < 0.05 * abs(once[k] - 0.1)


@pytest.mark.parametrize(("sharp", "wanted"), [(1.001, Coulomb()), (1.1, SmoothCoulomb(0.02))])
def test_friction_is_sharp_where_the_shortest_way_saves_next_to_nothing(sharp, wanted):
    """Noise says which is better by so little, and unfiltered forces are off by the jump at each turn."""
    terms = (Offset(), Coulomb(), SmoothCoulomb(0.02), SmoothCoulomb(0.05))
    error = {(0, 1): sharp, (0, 2): 1.0, (0, 3): 1.2}
    scores: Any = lambda sets: [error.get(some, 2.0) for some in sets]  # noqa: E731
    chosen = stepwise_search(scores, (0, 3), range(4), terms)
    assert [terms[k] for k in chosen] == [Offset(), wanted]


@pytest.mark.parametrize(("method", "true"), [("wls", 0.04), ("physical", 0.04), ("physical", 0.0)])
def test_a_rotor_that_the_nominal_robot_has_too_large_is_found_as_it_is(method, true):
    """It could only grow: the fit's robot kept the rotor of its file, whatever the log said."""
    mech = swinging()
    rotors = mech.armature.new_tensor([0.0, 0.0, true])
    log = measured(mech.replace(armature=rotors), 1e-5, seconds=10)
    nominal = mech.replace(armature=rotors.new_tensor([0.0, 0.0, 0.3]))
    terms = [Viscous(), Coulomb()]
    learn = {"j1": terms, "j2": terms, "slide": [*terms, RotorInertia()]}
    fit = ts.identification.identify(nominal, log, learn=learn, method=method)
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
    # What a nominal robot's error is counts its rotor as well as it may be, as its friction.
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
    assert learn_of(mech, ["CubicSpring"]) == wanted
