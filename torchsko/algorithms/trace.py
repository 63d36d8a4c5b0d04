r"""The trace of the mass matrix, without the matrix.

.. math:: \mathrm{tr}\, \mathcal{M} = \sum_k \mathrm{tr}\, H(k) R(k) H^*(k) + \sum_k \mathrm{tr}\, S(k)

The other two terms of the mass matrix have zero diagonal blocks and do not contribute.

Reference: A. Jain, *Spatial Operator Algebra 9: Multibody Graph Generalizations*, JPL DARTS Lab slides,
2024, trace of the general mass matrix.
"""

from __future__ import annotations

from torch import Tensor

from torchsko.algebra.operators.hinge import armature_diagonal
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.topology.gathering import join
from torchsko.algorithms.composite_body import composite_inertia


def mass_matrix_trace(model: SKOModel) -> Tensor:
    """Trace of the mass matrix, O(N).

    Args:
        model: an SKO model.

    Returns:
        `[*batch]`; kg m^2 and kg are added where joints of both kinds occur.

    Reference: Jain 2024, SOA slides 9, trace of the general mass matrix.
    """
    H, R = model.joint_map, join(list(composite_inertia(model)))
    trace = ((H @ R) * H).sum((-3, -2, -1))
    return (
        trace
        if model.armature is None
        else trace + armature_diagonal(model.armature).sum((-3, -2, -1))
    )
