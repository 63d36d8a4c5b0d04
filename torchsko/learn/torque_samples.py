"""Measured samples: flattened, and refused by name before a fit sees them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.errors import FitError, ShapeError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state


class Samples(NamedTuple):
    """Measurements, one row a sample.

    Attributes:
        q: `[samples, num_q]`.
        qd: `[samples, num_dof]`.
        qdd: `[samples, num_dof]`.
        tau: `[samples, num_dof]`.
        weight: of each squared error in tau, `[samples, num_dof]`.
    """

    q: Tensor
    qd: Tensor
    qdd: Tensor
    tau: Tensor
    weight: Tensor

    def pick(self, rows: Tensor) -> Samples:
        """Some of the samples."""
        return Samples(*(x.index_select(0, rows) for x in self))


def as_samples(
    mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, tau: Tensor, weight: Tensor | None
) -> Samples:
    """Measurements of any leading dimensions as rows; values are read and checked.

    Args:
        mech: the mechanism.
        q: `[*samples, num_q]`.
        qd: `[*samples, num_dof]`.
        qdd: `[*samples, num_dof]`.
        tau: `[*samples, num_dof]`.
        weight: `[*samples, num_dof]` or `[num_dof]`; one over each dof's mean square force if None.

    Raises:
        ShapeError: when a tensor does not fit the mechanism, or has other leading dimensions.
        FitError: no samples, a number that is not finite, a negative weight, none that is positive,
            or a joint without force where its weight follows from that.
    """
    given = {"q": q, "qd": qd, "qdd": qdd, "tau": tau}
    given |= {} if weight is None else {"weight": weight}
    check_state(mech, **given)
    lead = tau.shape[:-1]
    for name, x in given.items():
        if x.shape[:-1] != lead and not (name == "weight" and x.ndim == 1):
            raise ShapeError(
                f"{name} has the leading dimensions {list(x.shape[:-1])}, tau has {list(lead)}.",
                "All leading dimensions count samples, and each sample has every measurement.",
                "Pass tensors of one shape [*samples, ...]; a weight may also be [num_dof].",
            )
    if lead.numel() == 0:
        raise FitError(
            f"there are no samples: tau has shape {list(tau.shape)}.",
            "A fit needs at least one.",
            "Pass tensors [*samples, num_dof] that hold some.",
        )
    for name, x in given.items():
        _refuse_not_finite(mech, name, x)
    weight = _usual_weight(mech, tau) if weight is None else _checked_weight(mech, weight)
    rows = [x.reshape(-1, x.shape[-1]) for x in (q, qd, qdd, tau, weight.expand_as(tau))]
    return Samples(*rows)


def _usual_weight(mech: Mechanism, tau: Tensor) -> Tensor:
    """One over the mean square force of each dof, `[num_dof]`."""
    weight = 1 / tau.reshape(-1, mech.num_dof).square().mean(0)
    useless = ~(weight.isfinite() & (weight > 0))
    if useless.any():
        raise FitError(
            f"the force of joint {_names(mech, useless)} is zero, or too small or large to square, in "
            "all samples.",
            "Without a weight, errors count in parts of a joint's mean square force, here no number.",
            "Pass weight=(tau != 0).flatten(0, -2).any(0).to(tau), which leaves such a joint out, or "
            "[num_dof] of one over the variance of each force's noise.",
        )
    return weight


def _checked_weight(mech: Mechanism, weight: Tensor) -> Tensor:
    negative = (weight < 0).reshape(-1, mech.num_dof)
    if negative.any():
        raise FitError(
            f"weight is negative at joint {_names(mech, negative.any(0))}, in "
            f"{int(negative.any(-1).sum())} samples.",
            "A fit would seek the largest error there.",
            "Pass one over the variance of the noise, or zero for what is not to count.",
        )
    if not (weight > 0).any():
        raise FitError(
            "weight is zero everywhere.",
            "No measurement would count.",
            "Pass a positive weight for what the model describes, or no weight.",
        )
    return weight


def _refuse_not_finite(mech: Mechanism, name: str, x: Tensor) -> None:
    bad = ~x.isfinite()
    if not bad.any():
        return
    first = bad.nonzero()[0].tolist()
    columns = torch.zeros_like(bad.reshape(-1, bad.shape[-1])[0])
    columns[first[-1]] = True
    place = tuple(first[:-1]) if len(first) != 2 else first[0]
    which = f", first in sample {place}" if x.ndim > 1 else ""
    count = int(bad.any(-1).sum())
    raise FitError(
        f"{name} is {x[tuple(first)].item()} at joint {_names(mech, columns)}{which}; {count} of "
        f"{x[..., 0].numel()} samples of {name} are not finite.",
        "One such number turns every parameter into nan.",
        "Leave those samples out of all tensors, or put a number there and weight=0 beside it.",
    )


def _names(mech: Mechanism, marked: Tensor) -> str:
    """Joints any of whose components are marked, of `[num_q]` or `[num_dof]`."""
    of = mech.dof_slice if marked.shape[-1] == mech.num_dof else mech.q_slice
    return ", ".join(repr(joint) for joint in mech.joint_names if bool(marked[of(joint)].any()))
