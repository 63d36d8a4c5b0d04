r"""Rows of constraints: residual, Jacobian and bias, one file a kind.

A kind constrains two markers. All vectors are in one set of axes that is shared by both markers. With the
velocity V = [w; v] of each marker at its origin,

.. math::
    \dot\phi = L_1 V_1 + L_2 V_2, \qquad
    \ddot\phi = L_1 A_1 + L_2 A_2 + \beta, \qquad A = [\dot w; \ddot x].

With the Jacobians J of the markers, the Jacobian of the rows is G = L_1 J_1 + L_2 J_2. With the markers'
accelerations a at qdd = 0, without gravity, the bias of the rows is L_1 a_1 + L_2 a_2 + beta. Kinds of joint
rows constrain two coordinates instead.

======== ============================================= ====================== ==========
symbol   meaning                                       code                   block
======== ============================================= ====================== ==========
phi      residual, zero when the constraint holds      ``residual``           (r,)
L1, L2   velocity of the residual per marker velocity  ``maps``               (r, 6)
beta     bias of the rows at given marker velocities   ``bias``               (r,)
G        Jacobian                                      ``jacobian``           (r, n)
gamma    Gdot qd                                       ``bias`` of the set    (r,)
======== ============================================= ====================== ==========

Reference: A. Jain, *Multibody graph transformations and analysis, Part II: Closed-chain constraint
embedding*, Nonlinear Dynamics 67(3), 2012, section 3.
"""

from torchsko.utils.public_names import lazy_names, names_in_stub

__getattr__, __dir__ = lazy_names(__name__, names_in_stub(__name__)[0])
