r"""Tendons on joints: lengths that are sums over joint coordinates, with springs and dampers.

.. math::
    l = \sum_j c_j q_j, \quad x = l - l_r, \quad f = -(k + k_2 x + k_3 x^2)\, x
    - (d + d_2 |\dot l| + d_3 \dot l^2)\, \dot l, \quad \tau_j = c_j f,

The spring is relaxed from l_0 to l_1: l_r is l clamped to that range.

Reference: MuJoCo documentation, "XML reference" (tendon/fixed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from torchsko.actuators.actuators import as_tensor, check_changes, q_of_dof, saturate, scalar_dof
from torchsko.actuators.implicit_forces import ForceSlopes
from torchsko.bridge.kinematics import Kinematics
from torchsko.errors import name_list
from torchsko.mechanism.coordinates import closed_matrix, tree_rates
from torchsko.mechanism.description import UnsupportedElement
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.file_data.tendon import Tendon
from torchsko.mechanism.state import check_state
from torchsko.utils.shapes import matvec

PARAMETERS = (
    "transmission",
    "stiffness",
    "damping",
    "relaxed",
    "limits",
    "higher_stiffness",
    "higher_damping",
)
"""Tensor fields that are parameters."""


@dataclass(frozen=True, eq=False)
class Tendons:
    """The tendons of a mechanism: immutable tensors, which may carry leading batch dimensions.

    Attributes:
        names: of the tendons.
        transmission: rates of lengths over rates of all joints, `[n, num_tree_dof]`.
        stiffness: `[n]` [N/m or N m/rad].
        damping: `[n]` [N s/m or N m s/rad].
        relaxed: `[n, 2]` [m or rad].
        limits: `[n, 2]`, infinite without limits [m or rad].
        higher_stiffness: k_2 and k_3, `[n, 2]` [N/m^2, N/m^3; N m/rad^2, N m/rad^3].
        higher_damping: d_2 and d_3, `[n, 2]` [N s^2/m^2, N s^3/m^3; N m s^2/rad^2, N m s^3/rad^3].
        q_of_dof: index of the coordinate of each dof of the tree, int64.
        unused: elements of a file that are not modeled.
    """

    names: tuple[str, ...]
    transmission: Tensor
    stiffness: Tensor
    damping: Tensor
    relaxed: Tensor
    limits: Tensor
    higher_stiffness: Tensor
    higher_damping: Tensor
    q_of_dof: Tensor
    unused: tuple[UnsupportedElement, ...] = ()

    def __repr__(self) -> str:
        return f"Tendons({len(self.names)}: {name_list(self.names)})"

    @staticmethod
    def of(
        mech: MechanismLike, tendons: Sequence[Tendon], *, unused: Sequence[UnsupportedElement] = ()
    ) -> Tendons:
        """The tendons of a mechanism.

        Args:
            mech: the mechanism.
            tendons: in the order of lengths.
            unused: see the class.

        Raises:
            MechanismError: on an unknown joint, or a joint whose coordinate is not a number.

        Example:
            >>> import torchsko as ts
            >>> arm = ts.load(ts.robots.panda)
            >>> belt = ts.actuators.Tendon("belt", {"joint1": 0.5, "joint2": -0.5}, stiffness=10.0)
            >>> tendons = ts.actuators.Tendons.of(arm, [belt])
            >>> tendons.length(arm, arm.middle() + 0.2).shape
            torch.Size([1])
        """
        mech = as_mechanism(mech)
        rows = [[0.0] * mech.num_tree_dof for _ in tendons]
        for row, tendon in zip(rows, tendons, strict=True):
            for joint, coefficient in tendon.joints.items():
                row[scalar_dof(mech, joint, tendon.name)] += coefficient
        numbers = partial(as_tensor, mech)

        return Tendons(
            names=tuple(tendon.name for tendon in tendons),
            transmission=numbers(rows, mech.num_tree_dof),
            stiffness=numbers([t.stiffness for t in tendons]),
            damping=numbers([t.damping for t in tendons]),
            relaxed=numbers([t.relaxed for t in tendons], 2),
            limits=numbers([t.limits for t in tendons], 2),
            higher_stiffness=numbers([t.higher_stiffness for t in tendons], 2),
            higher_damping=numbers([t.higher_damping for t in tendons], 2),
            q_of_dof=torch.tensor(q_of_dof(mech), dtype=torch.int64, device=mech.device),
            unused=tuple(unused),
        )

    def replace(self, **changes: Tensor) -> Tendons:
        """A copy with some tensors changed, with any leading batch dimensions.

        Raises:
            ShapeError: when the last dimensions of a tensor change.
        """
        check_changes(self, changes, "tendons", PARAMETERS)
        return replace(self, **changes)

    def length(self, mech: MechanismLike, q: Tensor) -> Tensor:
        """Lengths at q `[*batch, num_q]`, `[*batch, n]` [m or rad].

        Raises:
            ShapeError: when q does not fit the mechanism.
        """
        mech = as_mechanism(mech)
        check_state(mech, q=q)
        return self._length(Kinematics.of(mech, q))

    def velocity(self, mech: MechanismLike, qd: Tensor, q: Tensor | None = None) -> Tensor:
        """Rates of lengths at qd `[*batch, num_dof]`, `[*batch, n]` [m/s or rad/s]; loops need q as well.

        Raises:
            ShapeError: when qd does not fit the mechanism.
        """
        mech = as_mechanism(mech)
        check_state(mech, qd=qd)
        if q is not None:
            return matvec(self.transmission, Kinematics.of(mech, q, qd).tree_qd)
        return matvec(self.transmission, tree_rates(mech, closed_matrix(mech, None), qd))

    def force(self, mech: MechanismLike, q: Tensor, qd: Tensor) -> Tensor:
        """Joint forces of springs and dampers at q and qd, `[*batch, num_dof]` [N m or N].

        Raises:
            ShapeError: when q or qd does not fit the mechanism.
        """
        mech = as_mechanism(mech)
        check_state(mech, q=q, qd=qd)
        return self.gen_force(Kinematics.of(mech, q, qd))

    def gen_force(self, state: Kinematics) -> Tensor:
        """`force` at a state that is known to fit."""
        return state.independent_forces(self.joint_force(state))

    def joint_force(self, state: Kinematics) -> Tensor:
        """Force of springs and dampers on all joints of the tree, `[*batch, num_tree_dof]` [N m or N]."""
        length, speed = self._length(state), matvec(self.transmission, state.tree_qd)
        x = length - saturate(length, self.relaxed)
        (k2, k3), (d2, d3) = self.higher_stiffness.unbind(-1), self.higher_damping.unbind(-1)
        stiffness = self.stiffness + k2 * x + k3 * x * x
        damping = self.damping + d2 * speed.abs() + d3 * speed * speed
        tension = -stiffness * x - damping * speed
        return matvec(self.transmission.mT, tension)

    def _length(self, state: Kinematics) -> Tensor:
        return matvec(self.transmission, state.tree_q.index_select(-1, self.q_of_dof))

    def slopes(self, state: Kinematics) -> ForceSlopes:
        """Negative derivatives of the forces with respect to lengths and speeds."""
        length, speed = self._length(state), matvec(self.transmission, state.tree_qd)
        x = length - saturate(length, self.relaxed)
        (k2, k3), (d2, d3) = self.higher_stiffness.unbind(-1), self.higher_damping.unbind(-1)
        stiffness = self.stiffness + 2 * k2 * x + 3 * k3 * x * x
        indices = torch.arange(len(self.names), device=self.q_of_dof.device)
        return ForceSlopes(
            self.transmission,
            torch.where(x != 0, stiffness, torch.zeros_like(length)),
            self.damping + 2 * d2 * speed.abs() + 3 * d3 * speed * speed,
            indices[:0],
            indices,
        )
