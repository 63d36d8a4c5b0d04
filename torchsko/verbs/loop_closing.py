"""Closed configurations of mechanisms with loops."""

from __future__ import annotations

from torch import Tensor

from torchsko.mechanism.closed_chains.nearest import Closed, closed_configuration
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism


@verb
def close_loops(mech: Mechanism, q: Tensor) -> Closed:
    """The closed configuration nearest to a configuration, in the norm of the step of all joints.

    Functions of a closed mechanism do not solve for positions: they take q as closed. `torchsko.integrate`
    and the states that a mechanism provides are closed. Use this function for a q from elsewhere.

    All joints move: the step s from q to the result is orthogonal to the motions that the loops allow there.
    Coupled joints count through the joints that they follow. Derivatives of any order, to q and to the
    parameters of the mechanism, are those of this result, by the implicit function theorem: to a closed
    configuration, the derivative to q is the orthogonal projector onto the motions of the loops. Far from
    closed configurations the result is a local minimum of the distance. Where no closed configuration is
    found, the result is open, as a second call shows.

    Returns:
        The closed configuration `[*batch, num_q]`, and the largest residual of a loop at q, `[*batch]`
        [m, or 1 for directions]; q and zero without loops.

    Reference: Nocedal, Wright 2006, Numerical Optimization, sections 10.3 (Levenberg-Marquardt) and 12.3.
    """
    return closed_configuration(mech, q)
