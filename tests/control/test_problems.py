"""Invalid optimal control problems and arguments raise errors with a name and advice."""

import re

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.control.test_indefinite import pendulum
from tests.refusals import assert_refused

MECH = pendulum()
Q, QD = torch.full((1,), 0.3).double(), torch.zeros(1).double()
U, LIMIT = torch.zeros(4, 1).double(), torch.ones(1).double()


def running(mech, q, qd, u):
    return 0.1 * u.square().sum(-1)


def final(mech, q, qd):
    return (q - 0.5).square().sum(-1)


def problem(running=running, final=final, dt=0.05, steps=4, of_phase=(), **options):
    phase = ts.control.Phase(MECH, steps, dt, running, final, **dict(of_phase))
    return ts.control.optimal_control([phase], **options)


def solved(q=Q, qd=QD, u=U, of=None, **options):
    of = problem() if of is None else of
    return ts.control.ilqr(of, q, qd, u, **{"max_iterations": 1} | options)


def aimed(goal):
    of = problem(
        lambda mech, q, qd, u, aim: running(mech, q, qd, u),
        lambda mech, q, qd, aim: (q - aim).square().sum(-1),
        goals={"aim": (1,)},
    )
    return ts.control.ilqr(of, Q, QD, U, goal)


CALLS = {
    "joint twice": (
        lambda: problem(actuated=["hinge", "hinge"]),
        r"names 'hinge' twice.*Pass actuated=\['hinge'\]",
    ),
    "no joint": (lambda: problem(actuated=[]), r"actuated is \[\].*leave it out"),
    "joint by itself": (lambda: problem(actuated="hinge"), r"Pass \['hinge'\]"),
    "bounds swapped": (lambda: problem(bounds=(LIMIT, -LIMIT)), "bounds of input 0 are 1 and -1"),
    "bounds of another type": (
        lambda: problem(bounds=(-LIMIT.float(), LIMIT.float())),
        r"bounds\[0\] is torch.float32",
    ),
    "one bound": (lambda: problem(bounds=(LIMIT,)), r"bounds hold \[1\].*Pass two tensors"),
    "a limit": (lambda: problem(bounds=LIMIT), r"bounds hold \[\].*Pass two tensors"),
    "bounds in numbers": (lambda: problem(bounds=(-1.0, 1.0)), "bounds hold float, float"),
    "bounds by lists": (lambda: problem(bounds=([-1.0], [1.0])), "bounds hold list, list"),
    "bounds of NaN": (
        lambda: problem(bounds=(-LIMIT, torch.nan * LIMIT)),
        "1 and nan.*may be NaN",
    ),
    "bounds of others": (lambda: problem(bounds=(-U[:, 0], U[:, 0])), r"bounds hold \[4\], \[4\]"),
    "summed over the batch": (
        lambda: solved(of=problem(lambda mech, q, qd, u: u.square().sum())),
        r"'running' returned the shape \[\].*u.square\(\).sum\(-1\)",
    ),
    "final summed over the batch": (
        lambda: solved(of=problem(final=lambda mech, q, qd: q.square().sum())),
        r"'final' returned the shape \[\]",
    ),
    "costs without their goal": (
        lambda: problem(goals={"aim": (1,)}),
        "cost 'running' is running, which is not a function of mech, q, qd, u, aim",
    ),
    "a final cost of inputs": (
        lambda: problem(final=running),
        "cost 'final' is running.*function of mech, q, qd.*final=lambda mech, q, qd: qd",
    ),
    "a number for a cost": (lambda: problem(final=0.0), "cost 'final' is float"),  # type: ignore[arg-type]
    "no cost": (lambda: solved(of=problem(lambda *x: None)), "'running' returned NoneType"),
    "a cost in Python": (
        lambda: solved(of=problem(final=lambda *x: 0.0)),
        "'final' returned float",
    ),
    "back in time": (lambda: problem(dt=-0.05), r"dt is -0.05.*above 0"),
    "no time": (lambda: problem(dt=0), "dt is 0"),
    "NaN for time": (lambda: problem(dt=float("nan")), "dt is nan"),
    "time in words": (lambda: problem(dt="0.05"), "dt is '0.05'"),
    "time by nothing": (lambda: problem(dt=None), "dt is None"),
    "goals by names": (lambda: problem(goals=["target"]), r"goals was given as list.*goals=\{"),
    "goal by number": (
        lambda: problem(goals={"g": 2}),
        r"goals have 'g' with 2.*\{\"g\": \(3,\)\}",
    ),
    "goal with a name that is taken": (lambda: problem(goals={"qd": (1,)}), "the name 'qd'"),
    "series by names": (lambda: problem(series=["wave"]), "series was given as list"),
    "series and goal of one name": (
        lambda: problem(goals={"aim": (1,)}, series={"aim": (1,)}),
        "series have the name 'aim'",
    ),
    "goal of another type": (lambda: aimed(LIMIT.float()), "aim is torch.float32"),
    "goal by list": (lambda: aimed([1.0]), "aim was given as list.*torch.as_tensor"),
    "inputs of another type": (lambda: solved(u=U.float()), "u is torch.float32"),
    "no inputs": (lambda: solved(u=None), r"u was given as NoneType.*torch.zeros\(4, 1"),
    "inputs by list": (lambda: solved(u=[[0.0]]), "u was given as list"),
    "inputs of one step": (lambda: solved(u=U[0]), r"u has shape \[1\]"),
    "no steps": (lambda: problem(steps=0), "phase 0 has steps=0"),
    "other steps": (lambda: solved(u=U[:3]), r"u has shape \[3, 1\]"),
    "no phases": (lambda: ts.control.optimal_control([]), r"given \[\] as phases"),
    "a mechanism as phase": (
        lambda: ts.control.optimal_control(MECH),
        "given Mechanism as phases.*ts.control.Phase",
    ),
    "an impact with nothing": (
        lambda: problem(of_phase={"impact": True}),
        "phase 0 has impact=True and a Mechanism.*HeldFrame",
    ),
    "one number of inequalities": (
        lambda: problem(of_phase={"inequalities": lambda mech, q, qd, u: u.sum(-1)}),
        r"inequalities of a phase returned \[\] for one sample",
    ),
    "cones in a row": (
        lambda: problem(of_phase={"cones": lambda mech, q, qd, u: u}),
        r"cones of a phase returned \[1\] for one sample.*mu \* f",
    ),
    "inequalities of forces": (
        lambda: problem(of_phase={"inequalities": lambda mech, q, qd, u, forces: u}),
        "the cost 'inequalities'.*function of mech, q, qd, u",
    ),
    "phases of other robots": (
        lambda: ts.control.optimal_control(
            [ts.control.Phase(x, 4, 0.05, running, final) for x in (MECH, ts.load(ts.robots.panda))]
        ),
        "phase 1 has the dofs .*phase 0 .*'hinge'",
    ),
    "no velocity": (lambda: solved(qd=None), "qd was given as NoneType"),
    "start of another type": (lambda: solved(q=Q.float()), "q is torch.float32"),
    "batches": (
        lambda: solved(q=Q.expand(2, 1), u=U.expand(3, 4, 1)),
        r"q has the batch dimensions \[2\], u has \[3\].*insert a dimension",
    ),
    "states in one": (lambda: solved(states=U), "states was given as Tensor.*Pass a pair"),
    "three states": (lambda: solved(states=(U, U, U)), "states was given as 3 values"),
    "no problem": (lambda: solved(of=MECH), "ilqr was given a Mechanism.*optimal_control"),
    "no tolerance": (lambda: solved(tolerance=None), "tolerance=None"),
    "fused by a flag": (lambda: problem(fuse=True), "fuse=True.*Pass fuse=torchsko.fuse"),
    "exact in words": (lambda: solved(exact="no"), "exact='no'"),
    "exact twice": (lambda: solved(exact=2), "exact=2"),
    "early in words": (lambda: solved(stop_early="no"), "stop_early='no'"),
    "half an iteration": (lambda: solved(max_iterations=2.5), "max_iterations=2.5"),
    "NaN at the start": (
        lambda: solved(q=torch.tensor([[0.3], [torch.nan]]).double()),
        r"q is not finite in sample \[1\]",
    ),
    "NaN in the inputs": (lambda: solved(u=torch.nan * U), "u is not finite."),
}


@pytest.mark.parametrize(("call", "what"), CALLS.values(), ids=CALLS)
def test_invalid_problems_are_refused_by_name(call, what):
    assert_refused(call, what)


def test_a_bound_may_be_infinite_and_the_lowest_input_the_highest():
    free = ts.control.ilqr(problem(), Q, QD, U, tolerance=1e-9)
    none = torch.full_like(LIMIT, torch.inf)
    wide = ts.control.ilqr(problem(bounds=(-none, none)), Q, QD, U, tolerance=1e-9)
    torch.testing.assert_close(wide.u, free.u)
    held = ts.control.ilqr(problem(bounds=(LIMIT, LIMIT)), Q, QD, U)
    assert held.converged and (held.u == 1).all()


def test_numbers_of_numpy_are_numbers():
    of = problem()
    given = {"tolerance": np.float32(1e-3), "max_iterations": np.int64(5)}
    found = ts.control.ilqr(of, Q, QD, U, **given)
    assert torch.equal(found.u, ts.control.ilqr(of, Q, QD, U, tolerance=1e-3, max_iterations=5).u)


def test_a_problem_is_made_and_solved_under_vmap():
    def used(limit, q):
        of = problem(bounds=(-limit, limit))
        return ts.control.ilqr(of, q, QD, U, stop_early=False, max_iterations=3).u

    limits = torch.tensor([[0.1], [9.0]]).double()
    starts = torch.tensor([[0.3], [0.9]]).double()
    both = torch.func.vmap(used)(limits, starts)
    for k in range(2):
        torch.testing.assert_close(both[k], used(limits[k], starts[k]), rtol=1e-9, atol=1e-9)


def test_no_samples_are_no_motions():
    found = solved(q=Q.expand(0, 1))
    assert found.u.shape == (0, 4, 1) and found.cost.shape == (0,)


def weighed(mech, q, qd, u, weight):
    return torch.cat([weight[..., None] * (q - 1), u], -1)


def rooted(mech, q, qd, u, weight):
    """A cost without derivative at zero velocity."""
    return (u * u).sum(-1) + weight * (qd * qd).sum(-1).sqrt()


@pytest.mark.parametrize(
    ("cost", "weight", "push", "said"),
    [
        (weighed, 1.0, 1e300, r"not finite at step \d, at joint 'hinge'.*dt"),
        (weighed, torch.nan, 0.0, r"the cost of the trajectory is nan.*goals"),
        (rooted, 1.0, 0.0, r"gradient of the cost is not finite.*roots"),
    ],
)
@pytest.mark.parametrize("stop_early", [True, False])
def test_a_sample_that_leaves_the_finite_numbers_is_named_and_spoils_no_other(
    cost, weight, push, said, stop_early
):
    of = problem(cost, lambda mech, q, qd, weight: q - 1, goals={"weight": ()})
    options = {"stop_early": stop_early, "max_iterations": 5}
    weights = torch.tensor([1.0, weight, 2.0]).double()
    begin, speed = torch.tensor([[0.3], [0.0], [0.3]]).double(), torch.zeros(3, 1).double()
    speed[::2], u = 0.1, U + torch.zeros(3, 1, 1)
    u[1] = push
    with pytest.warns(RuntimeWarning, match=r"sample \[1\] \(1 such in the batch\).*") as told:
        found = ts.control.ilqr(of, begin, speed, u, weights, **options)
    assert re.search(said, str(told[0].message), re.DOTALL) and not found.converged[1]
    # A failed sample does not delay the end of the others.
    assert (found.iterations[1] < 5) == stop_early
    for k in (0, 2):
        alone = ts.control.ilqr(of, begin[k], speed[k], u[k], weights[k], **options)
        torch.testing.assert_close(found.u[k], alone.u)
        assert found.converged[k] == alone.converged
