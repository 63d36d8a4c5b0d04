r"""Model predictive path integral control: plans from weighted random inputs, without derivatives.

Samples of inputs about the plan u,

.. math:: v_{kt} = u_t + \sigma \epsilon_{kt}, \qquad \epsilon_{kt} \sim N(0, 1),

are rolled out from the present state. With the cost S_k of sample k,

.. math:: w_k = \frac{\exp(-S_k / \lambda)}{\sum_j \exp(-S_j / \lambda)}, \qquad
    u_t \leftarrow \sum_k w_k v_{kt}.

Reference: G. Williams, N. Wagener, B. Goldfain, P. Drews, J. Rehg, B. Boots, E. Theodorou, *Information
theoretic MPC for model-based reinforcement learning*, ICRA 2017, Algorithm 2. DEPARTS: the base distribution
is the one that is sampled (alpha = 1 there), so effort counts as the problem's costs state, and no further
term of the inputs is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchsko.control.ilqr.problem import OptimalControl
from torchsko.control.ilqr.repeat import repeat
from torchsko.control.ilqr.start_checks import check_problem, check_start
from torchsko.control.ilqr.trajectory import final_cost
from torchsko.control.normal_numbers import start_states
from torchsko.errors import NonFiniteError, TorchskoError
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.numbers import as_integer, as_number


class MPPIResult(NamedTuple):
    """Result of `mppi`.

    Attributes:
        u: the new plan, `[*batch, steps, num_u]` [N m or N].
        cost: cost of each sample, `[*batch, samples]`.
        weights: weight of each sample, `[*batch, samples]`; they sum to one.
        inputs: inputs of each sample, `[*batch, samples, steps, num_u]` [N m or N].
    """

    u: Tensor
    cost: Tensor
    weights: Tensor
    inputs: Tensor


def mppi(
    problem: OptimalControl,
    q: Tensor,
    qd: Tensor,
    u: Tensor,
    *goals: Tensor,
    deviation: Tensor,
    temperature: float,
    samples: int,
    seed: int,
) -> MPPIResult:
    """One update of a plan by model predictive path integral control (Williams et al. 2017).

    Costs need no derivatives. One kernel of a compiled problem draws, clamps and rolls out the samples of a
    phase, and adds up their costs. For predictive control shift the plan by a step between calls, and count
    the seed up.

    Args:
        problem: of `torchsko.control.optimal_control`, without inequalities and cones; held phases, impacts
            and steps with contact included. A cost of residuals is half their squared norm.
        q: present configurations, `[*batch, num_q]`.
        qd: present velocities, `[*batch, num_dof]` [rad/s or m/s].
        u: the plan, `[*batch, steps, num_u]` [N m or N]; samples are clamped to the bounds.
        *goals: in the order of the problem, `[*batch, *shape]`, followed by its series,
            `[*batch, steps + 1, *shape]`.
        deviation: standard deviations of the inputs, `[*batch, num_u]` [N m or N].
        temperature: lambda, in units of the cost, positive. The lower it is, the more weight have the best
            samples.
        samples: number of samples of each problem.
        seed: any integer. Samples depend on it, on the index of the problem in the batch and on the index of
            the sample alone; kernels and eager functions draw the same ones.

    Returns:
        See `MPPIResult`; results carry no derivatives. Samples whose cost is not finite have no weight.

    Raises:
        ShapeError: when a tensor does not fit, or a cost returns neither `[*batch]` nor `[*batch, r]`.
        NonFiniteError: on NaN in the state or the plan, or if no sample of a problem has a finite cost, on a
            CPU.
        TorchskoError: on an option out of range, or a problem with inequalities or a batch of mechanisms.

    Example:
        >>> import torchsko as ts, torch
        >>> arm = ts.load(ts.robots.panda)
        >>> def running(mech, q, qd, u, aim):
        ...     return torch.cat([10 * (q - aim), 0.1 * qd, 0.01 * u], -1)
        >>> reach = ts.control.Phase(arm, 10, 0.02, running)
        >>> problem = ts.control.optimal_control([reach], goals={"aim": (7,)})
        >>> q, aim = torch.zeros(2, 7).double()
        >>> u = ts.gravity_force(arm, q).expand(10, -1)
        >>> options = {"deviation": torch.full((7,), 5.0).double(), "temperature": 1.0}
        >>> found = ts.control.mppi(problem, q, 0 * q, u, aim, samples=32, seed=0, **options)
        >>> found.u.shape, round(float(found.weights.sum()), 6)
        (torch.Size([10, 7]), 1.0)
    """
    check_problem("mppi", problem)
    _check_options(problem, temperature, samples, seed)
    further = {"deviation": (deviation, (problem.num_u,))}
    batch, shapes, tensors = check_start("mppi", problem, (q, qd, u), goals, further)
    with torch.no_grad():
        rows = [_for_samples(x, shapes[name], batch, samples) for name, x in tensors.items()]
        cost, inputs = _roll_out(problem, rows, start_states(seed, batch, samples, q))
        finite = torch.where(cost.isfinite(), cost, torch.inf)
        weights = (-finite / temperature).softmax(-1)
        plan = weights[..., None, :] @ inputs.flatten(-2)
    _refuse_nonfinite(finite)
    return MPPIResult(plan.reshape(*batch, *u.shape[-2:]), cost, weights, inputs)


def _for_samples(x: Tensor, shape: Sequence[int], batch: Sequence[int], samples: int) -> Tensor:
    """A tensor `[*batch, samples, *shape]`, expanded without a copy: kernels read one row for all samples."""
    return x.unsqueeze(x.ndim - len(shape)).expand(*batch, samples, *shape)


def _roll_out(
    problem: OptimalControl, rows: Sequence[Tensor], random: Tensor
) -> tuple[Tensor, Tensor]:
    """Costs `[*batch, samples]` and inputs `[*batch, samples, steps, num_u]` of random rollouts.

    Args:
        problem: the problem.
        rows: configuration, velocity, plan, standard deviation, goals and series, `[*batch, samples, ...]`.
        random: states of the random numbers, `[*batch, samples, 3]`.
    """
    (q, qd, u, deviation), given = rows[:4], rows[4:]
    constant, lead = list(given[: len(problem.goals)]), q.ndim - 1
    u, *series = (x.movedim(lead, 0) for x in (u, *given[len(problem.goals) :]))
    ends = [x.expand(problem.num_steps + 1, *x.shape) for x in constant] + series
    total, inputs = torch.zeros_like(q[..., 0]), list[Tensor]()
    for segment in problem.segments:
        timed = (x[segment.rows] for x in (u, *series))
        carry = q, qd, total, random
        (q, qd, total, random), (found,) = repeat(
            segment.sample, carry, (*timed,), (deviation, *constant)
        )
        total = total + final_cost(segment, q, qd, ends)
        inputs.append(found.movedim(0, lead))
    return total, inputs[0] if len(inputs) == 1 else torch.cat(inputs, lead)


def _check_options(problem: OptimalControl, temperature: Any, samples: Any, seed: Any) -> None:
    """Check the options of `mppi`."""
    number, count = as_number(temperature), as_integer(samples)
    if number is None or not number > 0 or count is None or count < 1:
        raise TorchskoError(
            f"mppi was given temperature={temperature}, samples={samples}.",
            "The temperature is a positive number, the number of samples an integer of at least 1.",
            "Pass temperature=1.0 and samples=1024, say.",
        )
    if as_integer(seed) is None:
        raise TorchskoError(
            f"mppi was given seed={seed!r}.",
            "It is an integer; equal seeds give equal samples.",
            "Pass the number of the control step, say.",
        )
    if problem.num_rows or problem.is_batched:
        what = "inequalities or cones" if problem.num_rows else "a batch of mechanisms"
        raise TorchskoError(
            f"mppi was given a problem with {what}.",
            "Its samples are those of one mechanism, weighted by the costs.",
            "Add a cost of violations to running, or solve one problem for each mechanism.",
        )


def _refuse_nonfinite(cost: Tensor) -> None:
    """Refuse problems none of whose samples has a finite cost, where values can be read.

    Raises:
        NonFiniteError: names the first such problem.
    """
    values = concrete_values(cost)
    if values is None or np.isfinite(values).any(-1).all():
        return
    problem = np.argwhere(~np.isfinite(values).any(-1))[0].tolist()
    raise NonFiniteError(
        f"no sample has a finite cost{f' in problem {problem}' if problem else ''}.",
        "All rollouts left the finite numbers, or the cost is not finite at any sample.",
        "Lower the deviation or the time step, and check the goals and series.",
    )
