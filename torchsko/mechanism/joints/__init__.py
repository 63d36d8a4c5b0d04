"""Joint types: their interface (`kind`), one module for each type, the registry, and joints by group.

=========== ===== === ======================================== ==================================
type        num_q d   q                                        qd
=========== ===== === ======================================== ==================================
revolute    1     1   angle [rad]                              its rate
prismatic   1     1   displacement [m]                         its rate
helical     1     1   angle [rad]                              its rate
cylindrical 2     2   angle [rad], displacement [m]            their rates
universal   2     2   angle and second angle [rad]             their rates
planar      3     3   `x y` in the plane [m], angle [rad]      their rates
translation 3     3   `x y z` in the joint frame [m]           their rates
spherical   4     3   quaternion `w x y z`                     omega in the child frame [rad/s]
free        7     6   `x y z` [m], quaternion `w x y z`        [omega; v] in the child frame
compound    n     n   one angle or displacement per motion     their rates
=========== ===== === ======================================== ==================================

Every function normalizes quaternions, so the gradient with respect to a quaternion is orthogonal to it. A
quaternion shorter than 1e-15 stands for the identity, as in MuJoCo, and has a zero gradient.
"""
