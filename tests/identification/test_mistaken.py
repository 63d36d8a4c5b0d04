"""Logs that contradict the nominal robot give a finding, whose option corrects the log."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification import log_corrections as findings
from tests.identification.finding_codes import codes
from tests.identification.log_corrections import advised_words, as_log, corrected, findings_of
from torchsko.identification import Log
from torchsko.identification.diagnostics.hypothesis_search import Correction, Search
from torchsko.identification.diagnostics.log_states import States
from torchsko.identification.friction import Balancer, Coulomb, Offset, Viscous
from torchsko.identification.logs.calibration import parse_coupling
from torchsko.identification.logs.units import SI_SCALE
from torchsko.identification.preparation import prepare

TERMS = [Viscous(), Coulomb(), Offset()]

WRONG = {
    *(
        "force_scale",
        "force_unit",
        "joint_force_unit",
        "joint_force_scale",
        "negative_friction",
        "delay",
        "bursts",
    ),
    *("wrong_zero", "wrong_sign"),
}
"""Codes of findings about a log in which something is wrong."""


def panda(seed=0, n=1000):
    """The nominal robot without limits, another that is logged, and its log."""
    nominal = ts.load(ts.robots.panda)
    far = torch.full_like(nominal.lower, 1e3)
    g = torch.Generator().manual_seed(seed)

    def near(x):
        return x * (0.7 + 0.6 * torch.rand(x.shape, generator=g, dtype=x.dtype))

    truth = nominal.replace(mass=near(nominal.mass), com=near(nominal.com))
    t = torch.arange(n, dtype=truth.dtype) / 100
    q, qd, qdd = ts.identification.exciting_trajectory(truth, period=10.0, generator=g)(t)
    tau = ts.inverse_dynamics(truth, q, qd, qdd) + 0.5 * qd + 0.3 * qd.sign() + 0.2
    tau = tau + 0.1 * torch.randn(tau.shape, generator=g, dtype=tau.dtype)
    wide = nominal.replace(lower=-far, upper=far, effort_limit=1e6 * far)
    return wide, truth, Log(*(x.numpy() for x in (t, q, tau, qd)))


NOMINAL, TRUTH, LOG = panda()
NAMES = NOMINAL.joint_names


def scaled(q=1.0, tau=1.0):
    """The log with columns times factors, of all joints or of each."""
    return Log(LOG.t, LOG.q * q, LOG.tau * tau, LOG.qd * q)


def flags(*joints, value=-1.0):
    """A factor of some joints, 1 for the others."""
    return np.where(np.isin(np.arange(7), joints), value, 1.0)


def turned(zeros, q=1.0):
    """The log with other zeros, in quarter turns, and factors of the positions."""
    zero = np.zeros(7)
    for joint, quarter in zeros.items():
        zero[joint] = quarter * np.pi / 2
    return Log(LOG.t, (LOG.q + zero) * q, LOG.tau, LOG.qd * q)


FAULTS = {
    "sign of a force": ("wrong_sign", [0], scaled(tau=flags(0))),
    "sign of a position": ("wrong_sign", [3], scaled(q=flags(3))),
    "axis of a joint": ("wrong_sign", [2], scaled(q=flags(2), tau=flags(2))),
    "sign of all forces": ("force_scale", [], scaled(tau=-1.0)),
    "kgf cm": ("force_unit", [], scaled(tau=1 / SI_SCALE["kgfcm"])),
    "N cm": ("force_scale", [], scaled(tau=1 / SI_SCALE["Ncm"])),
    "mNm": ("force_scale", [], scaled(tau=1 / SI_SCALE["mNm"])),
    "kNm": ("force_scale", [], scaled(tau=1 / SI_SCALE["kNm"])),
    "N cm of one joint": ("joint_force_unit", [3], scaled(tau=flags(3, value=100.0))),
    "a zero": ("wrong_zero", [1], turned({1: 1})),
    "a zero of half a turn": ("wrong_zero", [3], turned({3: 2})),
    "zeros of two joints": ("wrong_zero", [1, 3], turned({1: 1, 3: -1})),
    "zeros of three joints": ("wrong_zero", [1, 3, 5], turned({1: 1, 3: -1, 5: 2})),
    "zeros and a sign": ("wrong_zero wrong_sign", [1, 3, 5], turned({1: 1, 3: -1}, flags(5))),
    "a zero and a sign": ("wrong_zero", [3], turned({3: -1}, flags(3))),
}  # fmt: skip


@pytest.mark.some(7)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_advised_options_correct_the_log(fault):
    code, joints, log = FAULTS[fault]
    found = [x for x in findings_of(NOMINAL, log, joint_terms=TERMS) if x.code in WRONG]
    if fault == "sign of all forces":
        found = [x for x in found if x.code != "negative_friction"]
    assert {x.code for x in found} == set(code.split()), [str(x) for x in found]
    assert {y for x in found for y in x.joints} == {NAMES[k] for k in joints}
    for each in found:
        log = corrected(NOMINAL, log, str(each))
    for mine, right in zip(as_log(log), as_log(LOG), strict=True):
        assert_close(mine, right, rtol=1e-9, atol=1e-3)


MIXED = {
    "a zero beside a force that is noise": ("--zero joint4=90deg", turned({3: 1}), [2]),
    "a zero beside two forces that are noise": ("--zero joint5=90deg", turned({4: 1}), [0, 3]),
    "a zero and a sign of other joints": (
        "--zero joint6=-90deg --sign q.joint5=-1", turned({5: -1}, flags(4)), [],
    ),
    "two zeros of a wrist and a sign": (
        "--zero joint5=-90deg --zero joint6=90deg --sign tau.joint6=-1",
        replace(turned({4: -1, 5: 1}), tau=LOG.tau * flags(5)), [],
    ),
}  # fmt: skip
"""Options that correct a log, the log, and joints whose forces are noise."""


@pytest.mark.parametrize("fault", MIXED)
def test_errors_are_found_beside_other_errors_and_no_needless_change_is_advised(fault):
    """Zeros were missed where forces of other joints were wrong, or a gear was advised in their place."""
    options, log, noisy = MIXED[fault]
    tau = np.array(log.tau)
    for j in noisy:
        tau[:, j] = 5 * np.random.default_rng(j).normal(size=len(tau))
    found = [
        x for x in findings_of(NOMINAL, replace(log, tau=tau), joint_terms=TERMS) if x.code in WRONG
    ]
    advised = [
        x for each in found if each.code != "negative_friction" for x in advised_words(str(each))
    ]
    assert sorted(zip(advised[::2], advised[1::2], strict=True)) == sorted(
        zip(options.split()[::2], options.split()[1::2], strict=True)
    )


def test_a_search_drops_corrections_that_are_not_necessary():
    chosen = findings.options(joint_terms=TERMS)
    context, _ = prepare(NOMINAL, turned({1: 1}), chosen, lambda text, share: None)
    search = Search(States.of(context.lossless, context.motions), 1.0)
    quarter = Correction(zero=np.pi / 2)
    given = {NAMES[6]: Correction(zero=np.pi), NAMES[1]: replace(quarter, tau=-1.0)}
    assert search.necessary(given) == {NAMES[1]: quarter}


def test_currents_within_a_factor_of_thirty_are_named():
    constants = np.array([12.0, 12.0, 9.5, 9.5, 9.5, 8.0, 8.0])
    log = Log(LOG.t, LOG.q, LOG.tau / constants, LOG.qd)
    (found,) = [x for x in findings_of(NOMINAL, log, joint_terms=TERMS) if x.code in WRONG]
    assert found.code == "force_unit" and "--unit tau=A" in str(found)
    fit = ts.identification.identify(
        NOMINAL, corrected(NOMINAL, log, str(found)), joint_terms=TERMS, method="ols"
    )
    assert fit.info.constants is not None
    assert_close(fit.info.constants.numpy()[:4], constants[:4], rtol=0.3, atol=0)


def test_the_fit_of_a_corrected_log_is_within_its_standard_errors():
    log = turned({1: 1})
    (found,) = [x for x in findings_of(NOMINAL, log, joint_terms=TERMS) if x.code in WRONG]
    fit = ts.identification.identify(
        NOMINAL, corrected(NOMINAL, log, str(found)), joint_terms=TERMS, method="wls"
    )
    error = (fit.value - fit.base.of(ts.inertial_parameters(TRUTH).flatten())) / fit.deviation
    assert float(error.square().mean().sqrt()) < 2.0
    assert (fit.errors["wls"] < 0.2).all()


def test_weight_that_springs_bear_is_no_error():
    tau = LOG.tau - ts.gravity_force(TRUTH, torch.as_tensor(LOG.q)).numpy()
    terms = [*TERMS, Balancer(near=0.1, far=0.6)]
    found = findings_of(NOMINAL, Log(LOG.t, LOG.q, tau, LOG.qd), joint_terms=terms)
    assert not {x.code for x in found} & WRONG


@pytest.mark.some(1)
@pytest.mark.parametrize("seed", range(4))
def test_a_nominal_robot_with_wrong_masses_gives_no_finding(seed):
    nominal, _, log = panda(seed)
    g = torch.Generator().manual_seed(100 + seed)
    part = 0.4 + 1.2 * torch.rand(nominal.mass.shape, generator=g, dtype=nominal.dtype)
    found = findings_of(nominal.replace(mass=part * nominal.mass), log, joint_terms=TERMS)
    assert not {x.code for x in found} & WRONG


def test_an_unknown_tool_gives_no_finding():
    mass, com = TRUTH.mass.clone(), TRUTH.com.clone()
    mass[-1] += 2.0
    com[-1] = -com[-1] + torch.tensor([0.0, 0.0, 0.2]).to(com)
    heavy, q = TRUTH.replace(mass=mass, com=com), torch.as_tensor(LOG.q)
    tool = ts.gravity_force(heavy, q) - ts.gravity_force(TRUTH, q)
    log = Log(LOG.t, LOG.q, LOG.tau + tool.numpy(), LOG.qd)
    assert not {x.code for x in findings_of(NOMINAL, log, joint_terms=TERMS)} & WRONG


def arm_of_six():
    """A robot with the axes and sizes of a UR5, built link by link."""
    build = ts.MechanismBuilder("ur")
    links = [
        ("pan", (0, 0, 0.0892), (0, 0, 1), 3.7, (0, -0.02, 0)),
        ("lift", (0, 0.135, 0), (0, 1, 0), 8.4, (0, 0, 0.28)),
        ("elbow", (0, -0.12, 0.425), (0, 1, 0), 2.3, (0, 0, 0.196)),
        ("wrist_1", (0, 0, 0.392), (0, 1, 0), 1.2, (0, 0.09, 0)),
        ("wrist_2", (0, 0.093, 0), (0, 0, 1), 1.2, (0, 0, 0.09)),
        ("wrist_3", (0, 0, 0.0947), (0, 1, 0), 0.19, (0, 0.06, 0.01)),
    ]
    parent = None
    for name, place, axis, mass, com in links:
        inertia = (mass * np.diag([0.03, 0.03, 0.01])).tolist()
        build.link(f"{name}_link", mass=mass, com=com, inertia=inertia)
        more = {} if parent is None else {"parent": parent}
        build.joint(name, "revolute", child=f"{name}_link", axis=axis, position=place, **more)
        parent = f"{name}_link"
    return build.build()


def waves(mech, n=800, scale=0.7, seed=1):
    """Smooth states of the joints with one coordinate."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(n, dtype=mech.dtype) / 100
    phase, rate, part = torch.rand(3, mech.num_dof, 4, generator=g, dtype=t.dtype)
    w = 2 * np.pi * (0.1 + 0.7 * rate)
    turn = w * t[:, None, None] + 6 * phase
    size = scale * (part - 0.3)
    return t, *((size * x).sum(-1) for x in (turn.sin(), w * turn.cos(), -w * w * turn.sin()))


def noisy(mech, q, qd, qdd, seed=2):
    """Forces with friction, gains of masses and noise."""
    g = torch.Generator().manual_seed(seed)
    truth = mech.replace(mass=mech.mass * (0.8 + 0.4 * torch.rand(mech.mass.shape, generator=g)))
    tau = ts.inverse_dynamics(truth, q, qd, qdd)
    size = tau.square().mean(0).sqrt()
    return tau + 0.1 * size * qd.sign() + 0.02 * size * torch.randn(tau.shape, generator=g)


def test_a_clean_log_of_an_arm_with_six_joints_gives_no_finding():
    mech = arm_of_six()
    t, q, qd, qdd = waves(mech)
    tau = noisy(mech, q, qd, qdd)
    log = Log(*(x.numpy() for x in (t, q, tau, qd)))
    assert not {x.code for x in findings_of(mech, log, joint_terms=TERMS)} & WRONG


def test_a_clean_log_of_a_floating_quadruped_gives_no_finding():
    mech = ts.load(ts.robots.quadruped, floating_base=True)
    t, x, qd, qdd = waves(mech, n=400, scale=0.3)
    q = [mech.neutral()]
    for k in range(len(t) - 1):
        q.append(ts.integrate(mech, q[-1], (qd[k] + qd[k + 1]) / 200))
    q = torch.cat([torch.stack(q)[:, :7], x[:, 6:]], -1)
    tau = noisy(mech, q, qd, qdd)[:, 6:]
    log = Log(*(x.numpy() for x in (t, q, tau, qd)))
    assert not {x.code for x in findings_of(mech, log)} & WRONG


def test_findings_stop_the_fit_or_are_ignored_on_request():
    log = scaled(tau=flags(0))

    def fitted(action):
        return ts.identification.identify(
            NOMINAL, log, method="ols", on_findings={"wrong_sign": action}
        )

    with pytest.raises(ts.FitError, match="sign of tau of joint 'joint1'") as error:
        fitted("raise")
    assert getattr(error.value, "code", "") == "wrong_sign"
    assert str(error.value).count("\n") == 2
    assert "wrong_sign" not in codes(fitted("ignore"))
    with pytest.raises(ts.FitError, match="no finding is named 'inconsistent'"):
        ts.identification.identify(NOMINAL, log, on_findings={"inconsistent": "ignore"})


def test_velocities_of_another_joint_are_refused_by_name():
    order = [0, 1, 2, 3, 6, 5, 4]
    other = Log(LOG.t, LOG.q, LOG.tau, LOG.qd[:, order])
    with pytest.raises(
        ts.FitError, match=r"'joint5' do not match .* in the column of joint 'joint7'"
    ):
        ts.identification.identify(NOMINAL, other, joint_terms=TERMS, method="wls")
    dead = np.where(np.arange(7) == 2, 0.01, LOG.qd)
    with pytest.raises(ts.FitError, match=r"'joint3' do not match its positions\.\n"):
        ts.identification.identify(
            NOMINAL, Log(LOG.t, LOG.q, LOG.tau, dead), joint_terms=TERMS, method="wls"
        )


def test_a_joint_at_rest_in_the_noise_of_its_encoder_has_velocities_of_no_other():
    rng = np.random.default_rng(0)
    q = LOG.q.copy()
    q[:, 3] = -1.5
    qd = np.gradient(q, LOG.t, axis=0)
    qdd = np.gradient(qd, LOG.t, axis=0)
    tau = ts.inverse_dynamics(TRUTH, *map(torch.from_numpy, (q, qd, qdd))).numpy() + 0.2
    noisy_q = q + 1e-4 * rng.normal(size=q.shape)
    log = Log(LOG.t, noisy_q, tau, qd + 1e-3 * rng.normal(size=qd.shape))
    ts.identification.identify(NOMINAL, log, joint_terms=TERMS, method="wls")


@pytest.mark.some(1)
@pytest.mark.parametrize("log", [scaled(tau=flags(6)), scaled(q=flags(6))], ids=["tau", "q"])
def test_a_last_joint_whose_friction_would_drive_it_is_named_with_the_sign(log):
    """Its rigid force is so small that only friction has a sign."""
    found = [
        x for x in findings_of(NOMINAL, log, joint_terms=TERMS) if x.code == "negative_friction"
    ]
    assert found[0].joints == ("joint7",)
    mended = corrected(NOMINAL, log, str(found[0]))
    left = findings_of(NOMINAL, mended, joint_terms=TERMS)
    assert not {x.code for x in left} & WRONG


@pytest.mark.some(1)
@pytest.mark.parametrize("first", [0, 200, 400])
def test_a_short_log_in_which_joints_hardly_reverse_gives_no_finding(first):
    log = LOG.pick(slice(first, first + 250))
    assert not {x.code for x in findings_of(NOMINAL, log, joint_terms=TERMS)} & WRONG


def test_a_calibration_maps_drives_to_joints_with_the_power_of_the_drives():
    mech, rng = NOMINAL, np.random.default_rng(0)
    log = Log(LOG.t, *(rng.normal(size=LOG.q.shape) for _ in range(3)))
    couple = {"joint6": parse_coupling("joint6 - joint5"), "joint7": {"joint7": 0.5, "joint1": 0.2}}
    joint = log.calibrate(
        mech,
        couple=couple,
        ratio={"joint2": 50.0},
        sign={"joint3": -1.0},
        order={"q": NAMES[::-1], "tau": NAMES[::-1]},
    )
    assert log.qd is not None and joint.qd is not None
    np.testing.assert_allclose((joint.tau * joint.qd).sum(1), (log.tau * log.qd).sum(1))
    np.testing.assert_allclose(joint.q[:, 5], log.q[:, 1] - log.q[:, 2])
    np.testing.assert_allclose(joint.q[:, 1], log.q[:, 5] / 50)
    zero = log.calibrate(mech, zero={"joint1": 0.3}, gain={"joint1": 2.0}, sign={"q.joint1": -1})
    np.testing.assert_allclose(zero.q[:, 0], -log.q[:, 0] - 0.3)
    np.testing.assert_allclose(zero.tau[:, 0], 2 * log.tau[:, 0])


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"sign": {"joint8": -1}}, "no joint is named 'joint8'"),
        ({"gain": {"q.joint1": 2}}, "no joint is named"),
        ({"ratio": {"joint1": 0}}, "ratio of joint1 is 0"),
        ({"couple": {"joint1": {"joint2": 1.0}}}, "is singular"),
        ({"order": {"q": NAMES[:3]}}, "must contain each joint"),
        ({"delay": {"q": 0.1}}, "a delay is given for 'q'"),
    ],
)
def test_invalid_calibrations_are_refused(given, match):
    with pytest.raises(ts.FitError, match=match):
        LOG.calibrate(NOMINAL, **given)
