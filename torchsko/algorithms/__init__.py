"""The papers' algorithms on an `SKOModel`, one file per result."""

from torchsko.algorithms.forward_dynamics import forward_dynamics as forward_dynamics
from torchsko.algorithms.inverse_dynamics import bias_force as bias_force
from torchsko.algorithms.inverse_dynamics import inverse_dynamics as inverse_dynamics
from torchsko.algorithms.mass_matrix import composite_inertia as composite_inertia
from torchsko.algorithms.mass_matrix import mass_matrix as mass_matrix
