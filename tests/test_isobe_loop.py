"""Isobe and Yagi's structure-varying system: its closed loop, and the forces that passive joints exchange.

Links 1 to 4 (here 0 to 3) form a loop between two bases; links 1 and 2 meet links 4 and 3 in a joint without
a motor, and link 5 branches off link 2 (Fig. 6). The member length matrix knows the two open chains; the
force that the passive joint exchanges between them enters the nodal forces, here as external forces.
"""

import pytest
import torch

import torchsko as ts
from tests.planar import lagrange_torque, planar
from torchsko.verbs.parallel import parallel_inverse_dynamics

ISOBE = "Isobe and Yagi (undated), General-purpose expression"
PARENTS, LENGTHS = [-1, 0, 3, -1, 1], [0.142, 0.142, 0.142, 0.142, 0.180]
RODS, TIPS = [0.102, 0.102, 0.102, 0.102, 0.130], [0.534, 0.534, 0.534, 0.534, 0.1]
FAR = torch.tensor([0.2, 0.0], dtype=torch.float64)
METHODS = ["parallel", "newton_euler"]


def system():
    """The loop cut open at its passive joint, and where each of the numbered joints is in it."""
    mech = planar(PARENTS, LENGTHS, RODS, TIPS, {3: (float(FAR[0]), 0, 0)})
    return mech, torch.tensor([mech.joint_names.index(f"joint{k}") for k in range(5)])


def headings(angle):
    """Heading of every link from joints 0, 1 and 4: links 2 and 3 close the loop, elbow outwards."""
    first, second = angle[0], angle[0] + angle[1]
    tip = LENGTHS[0] * unit(first) + LENGTHS[1] * unit(second)
    reach = tip - FAR
    bend = torch.arccos(reach.norm() / (2 * LENGTHS[2]))  # two links of one length
    middle = torch.atan2(reach[1], reach[0])
    return torch.stack([first, second, middle + bend, middle - bend, second + angle[2]])


def unit(heading):
    return torch.stack([heading.cos(), heading.sin()])


def joints(angle):
    """The five joint angles of the two open chains."""
    h = headings(angle)
    return torch.stack([h[0], h[1] - h[0], h[2] - h[3], h[3], h[4] - h[1]])


def energy(angle, rate):
    """Kinetic energy of the closed loop and its branch, from the three independent joints alone."""

    def points(angle):
        h = headings(angle)
        u = [unit(x) for x in h]
        start = [torch.zeros(2).double(), LENGTHS[0] * u[0], FAR + LENGTHS[3] * u[3], FAR]
        start.append(start[1] + LENGTHS[1] * u[1])
        ends = [s + length * x for s, length, x in zip(start, LENGTHS, u, strict=True)]
        middles = [(s + e) / 2 for s, e in zip(start, ends, strict=True)]
        return torch.stack(middles), torch.stack(ends), h

    middle, end, spin = torch.func.jvp(points, (angle,), (rate,))[1]
    rods, tips = (torch.tensor(x, dtype=torch.float64) for x in (RODS, TIPS))
    turning = rods * torch.tensor(LENGTHS, dtype=torch.float64) ** 2 * spin**2 / 12
    return (rods @ middle.square().sum(-1) + tips @ end.square().sum(-1) + turning.sum()) / 2


def motion(t):
    """Angle, rate and acceleration of the independent joints 0, 1 and 4: a sway."""
    amount = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64)
    start = torch.tensor([2.2, -1.6, 0.5], dtype=torch.float64)
    s = torch.tensor(torch.pi * t, dtype=torch.float64)
    return (
        start + amount * s.sin(),
        amount * torch.pi * s.cos(),
        -amount * torch.pi**2 * s.sin(),
    )


def of_all_joints(t):
    """Angles, rates and accelerations of all five joints, and how rates follow from the independent."""
    angle, rate, accel = motion(t)
    velocity = lambda angle, rate: torch.func.jvp(joints, (angle,), (rate,))[1]  # noqa: E731
    qd, qdd = torch.func.jvp(velocity, (angle, rate), (rate, accel))
    return joints(angle), qd, qdd, torch.func.jacfwd(joints)(angle)


def exchanged(q, place, force):
    """The force on link 1's tip, and its opposite on link 2's, each in the body's frame at its origin."""
    f_ext = torch.zeros(5, 6, dtype=torch.float64)
    for k, heading, sign in ((1, q[0] + q[1], 1.0), (2, q[3] + q[2], -1.0)):
        c, s = heading.cos(), heading.sin()
        along, across = sign * (c * force[0] + s * force[1]), sign * (c * force[1] - s * force[0])
        zero = torch.zeros((), dtype=torch.float64)
        wrench = torch.stack([zero, zero, LENGTHS[k] * across, along, across, zero])
        f_ext = f_ext.index_put((place[k],), wrench)
    return f_ext


def torques(t, force, method):
    """Torques of all five joints when the passive joint hands over this force."""
    mech, place = system()
    q, qd, qdd, _ = of_all_joints(t)
    states = [torch.zeros_like(x).index_put((place,), x) for x in (q, qd, qdd)]
    return ts.inverse_dynamics(mech, *states, exchanged(q, place, force), method=method)[place]


def force_that_relieves(t, passive, method):
    """The exchanged force at which these joints need no torque; torques are affine in it."""
    none, axes = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    at_none = torques(t, none, method)
    slope = torch.stack([torques(t, axis, method) - at_none for axis in axes], -1)
    return torch.linalg.solve(slope[passive], -at_none[passive])


@pytest.mark.shows(ISOBE, "Fig. 6", ts.inverse_dynamics)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("t", [0.0, 0.3, 0.8])
def test_the_closed_loop_of_figure_6_has_the_torques_of_its_lagrangian(t, method):
    force = force_that_relieves(t, [2, 3], method)
    tau = torques(t, force, method)
    expected = lagrange_torque(energy, *motion(t))
    torch.testing.assert_close(tau[[0, 1, 4]], expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(tau[[2, 3]], torch.zeros(2).double(), rtol=0, atol=1e-11)


@pytest.mark.shows(ISOBE, "section II.B", parallel_inverse_dynamics)
@pytest.mark.parametrize("t", [0.0, 0.3, 0.8])
def test_forces_at_the_passive_joint_move_torques_between_the_chains_and_do_no_work(t):
    X = of_all_joints(t)[3]
    expected = lagrange_torque(energy, *motion(t))
    found = []
    for force in ([0.0, 0.0], [3.0, -1.0], [-2.0, 5.0]):
        tau = torques(t, torch.tensor(force, dtype=torch.float64), "parallel")
        torch.testing.assert_close(X.mT @ tau, expected, rtol=1e-9, atol=1e-11)
        found.append(tau)
    tau = torch.stack(found)
    assert (tau[0] - tau[1:])[:, :4].abs().min() > 1e-3  # every joint of the two chains feels it
    torch.testing.assert_close(tau[1:, 4], tau[0, 4].expand(2))  # the branch does not


@pytest.mark.shows(ISOBE, "section II.B", parallel_inverse_dynamics)
@pytest.mark.parametrize("passive", range(5))
def test_a_passive_joint_of_the_open_system_moves_as_it_must_to_need_no_torque(passive):
    mech, place = system()
    g = torch.Generator().manual_seed(passive)
    q, qd, wanted = torch.randn(3, 4, 5, generator=g, dtype=torch.float64)
    none = torch.zeros_like(q)
    driven = [f"joint{k}" for k in range(5) if k != passive]
    qdd, tau = ts.hybrid_dynamics(mech, q, qd, none, wanted, driven)
    at = int(place[passive])
    assert (tau[:, at] == 0).all()
    found = ts.inverse_dynamics(mech, q, qd, qdd, method="parallel")
    torch.testing.assert_close(found, tau, rtol=1e-10, atol=1e-11)
    others = torch.arange(5) != at
    assert torch.equal(qdd[:, others], wanted[:, others])
