"""The papers' algorithms on an `SKOModel`."""

from torchsko.algebra.recursions.factorization import innovations as innovations
from torchsko.algorithms.composite_body import (
    composite_inertia as composite_inertia,
)
from torchsko.algorithms.composite_body import (
    composite_inverse_dynamics as composite_inverse_dynamics,
)
from torchsko.algorithms.coriolis_matrix import (
    mass_and_coriolis_matrix as mass_and_coriolis_matrix,
)
from torchsko.algorithms.forward_dynamics import (
    composite_forward_dynamics as composite_forward_dynamics,
)
from torchsko.algorithms.forward_dynamics import forward_dynamics as forward_dynamics
from torchsko.algorithms.generalized_mass_matrix import (
    mass_matrix_by_inverse_dynamics as mass_matrix_by_inverse_dynamics,
)
from torchsko.algorithms.generalized_mass_matrix import (
    mass_matrix_by_jacobian as mass_matrix_by_jacobian,
)
from torchsko.algorithms.generalized_mass_matrix import node_jacobian as node_jacobian
from torchsko.algorithms.hybrid_dynamics import hybrid_dynamics as hybrid_dynamics
from torchsko.algorithms.inverse_dynamics import bias_force as bias_force
from torchsko.algorithms.inverse_dynamics import inverse_dynamics as inverse_dynamics
from torchsko.algorithms.mass_matrix import mass_matrix as mass_matrix
from torchsko.algorithms.motion_products import (
    mass_and_motion_matrices as mass_and_motion_matrices,
)
from torchsko.algorithms.operational_space import ExtendedCompliance as ExtendedCompliance
from torchsko.algorithms.operational_space import (
    compliance_block as compliance_block,
)
from torchsko.algorithms.operational_space import extended_compliance as extended_compliance
from torchsko.algorithms.operational_space import invert_compliance as invert_compliance
from torchsko.algorithms.operational_space import reflected_compliance as reflected_compliance
from torchsko.algorithms.trace import mass_matrix_trace as mass_matrix_trace
