"""Closed configurations of mechanisms with loops."""

from __future__ import annotations

from torch import Tensor

from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.loops.closed_states import Closed, closed_configuration
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state


@verb
def close(mech: Mechanism, q: Tensor) -> Closed:
    """The closed configuration nearest to a configuration, by Gauss-Newton steps of least norm.

    Functions of a closed mechanism do not solve for positions: they take q as closed. `torchsko.integrate`
    and the states that a mechanism provides are closed. Use this function for a q from elsewhere.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.

    Returns:
        The closed configuration `[*batch, num_q]`, with derivatives along the closed manifold, and the
        largest residual of a loop before, `[*batch]` [m, or 1 for directions]; q and zero without loops.

    Raises:
        ShapeError: when q does not fit the mechanism.

    Reference: Nocedal, Wright 2006, Numerical Optimization, section 10.3 (Levenberg-Marquardt).
    """
    check_state(mech, q=q)
    return closed_configuration(mech, q)
