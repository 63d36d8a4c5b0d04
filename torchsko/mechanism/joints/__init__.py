"""Joints as objects: an interface (`kind`), one file a kind, a registry; and all joints as data.

========== ===== ===== ======================================= ================================
kind       num_q d     q                                       qd (child frame)
========== ===== ===== ======================================= ================================
revolute   1     1     angle [rad]                             rate about the axis [rad/s]
prismatic  1     1     displacement [m]                        rate along the axis [m/s]
spherical  4     3     unit quaternion `w x y z`               omega [rad/s]
free       7     6     `x y z` [m], unit quaternion `w x y z`  [omega; v] [rad/s, m/s]
========== ===== ===== ======================================= ================================
"""
