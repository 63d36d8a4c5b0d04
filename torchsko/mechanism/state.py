"""Whether a state fits a mechanism: the one place where shapes and dtypes of states are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from torchsko.errors import ShapeError

if TYPE_CHECKING:
    from torchsko.mechanism.mechanism import Mechanism

CONFIGURATIONS = ("q", "start", "end")
"""Names of arguments that hold configurations."""


def check_state(mech: Mechanism, **tensors: Tensor | None) -> None:
    """Check shapes and dtypes of states by name; Python integers only, no value is read.

    Args:
        mech: the mechanism.
        **tensors: "q", "start" and "end" have num_q components, "f_ext" is `[*batch, num_bodies, 6]`,
            all others (qd, qdd, tau, step, ...) have num_dof.

    Raises:
        ShapeError: names the tensor, its shape and the one wanted.
    """
    for name, x in tensors.items():
        if x is None:
            continue
        if name == "f_ext":
            shape: tuple[int, ...] = (mech.num_bodies, 6)
        else:
            shape = (mech.num_q if name in CONFIGURATIONS else mech.num_dof,)
        if x.ndim < len(shape) or tuple(x.shape[x.ndim - len(shape) :]) != shape:
            raise ShapeError(
                f"{name} has shape {list(x.shape)}.\n"
                f"{mech.name!r} has {mech.num_bodies} bodies, {mech.num_dof} dofs and {mech.num_q} "
                "coordinates, in the order of mech.joint_names.\n"
                f"Pass a tensor of shape [*batch, {', '.join(map(str, shape))}]."
            )
        if x.dtype != mech.dtype:
            raise ShapeError(
                f"{name} is {x.dtype}, the mechanism {mech.dtype}.\n"
                f"Nothing is cast in silence.\nPass {name}.to({mech.dtype}), or mech.to({x.dtype})."
            )
