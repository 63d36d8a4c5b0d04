r"""Dynamics under bilateral constraints: frames that are held, loops that are cut.

With the rows G qdd + gamma = 0 of all constraints and their multipliers f,

.. math::
    \begin{bmatrix} \mathcal{M} & -G^* \\ G & 0 \end{bmatrix}
    \begin{bmatrix} \ddot q \\ f \end{bmatrix} =
    \begin{bmatrix} \tau - \mathcal{C} \\ -\gamma \end{bmatrix} .

The multipliers follow from the acceleration without constraints.

.. math::
    f = -W^+ (G \ddot q_f + \gamma), \quad W = G \mathcal{M}^{-1} G^*, \quad
    \ddot q = \ddot q_f + \mathcal{M}^{-1} G^* f .

W is V* V with V = D^(-1/2) [I - H psi K] G*, so the inverse of the mass matrix is not formed. Where rows are
redundant, f is the multiplier of least norm; G* f and qdd do not depend on that choice.

======== ============================================= ================== ===========
symbol   meaning                                       code               block
======== ============================================= ================== ===========
qdd_f    acceleration without constraints              ``free``           (n,)
G        Jacobian of the rows                          ``jacobian``       (r, n)
gamma    Gdot qd, and stabilization                    ``bias``           (r,)
W        operational-space compliance of the rows      ``compliance``     (r, r)
f        multipliers: forces on the mechanism          ``forces``         (r,)
======== ============================================= ================== ===========

References: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System Dynamics
26(3), 2011, section 6.2; J. Carpentier, R. Budhiraja, N. Mansard, *Proximal and sparse resolution of
constrained dynamic equations*, Robotics: Science and Systems 2021.
"""
