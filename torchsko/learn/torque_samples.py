"""Validation and flattening of torque measurements for training."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.errors import FitError, ShapeError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state


class Samples(NamedTuple):
    """Measurements, one sample a row.

    Attributes:
        q: `[samples, num_q]`.
        qd: `[samples, num_dof]`.
        qdd: `[samples, num_dof]`.
        tau: `[samples, num_dof]`.
        weight: weight of each squared error in tau, `[samples, num_dof]`.
    """

    q: Tensor
    qd: Tensor
    qdd: Tensor
    tau: Tensor
    weight: Tensor

    def pick(self, rows: Tensor) -> Samples:
        """Select rows."""
        return Samples(*(x.index_select(0, rows) for x in self))


def as_samples(
    mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, tau: Tensor, weight: Tensor | None
) -> Samples:
    """Validate measurements and flatten their leading dimensions.

    Args:
        mech: the mechanism.
        q: `[*samples, num_q]`.
        qd: `[*samples, num_dof]`.
        qdd: `[*samples, num_dof]`.
        tau: `[*samples, num_dof]`.
        weight: `[*samples, num_dof]` or `[num_dof]`; one over each dof's mean square force if None.

    Raises:
        ShapeError: when a tensor does not fit the mechanism, or leading dimensions differ.
        FitError: when there are no samples, a number is not finite, weights are negative or all zero, or
            a joint has no force and no weight is given.
    """
    measurements = {"q": q, "qd": qd, "qdd": qdd, "tau": tau}
    measurements |= {} if weight is None else {"weight": weight}
    check_state(mech, **measurements)
    lead = tau.shape[:-1]
    for name, x in measurements.items():
        if x.shape[:-1] != lead and not (name == "weight" and x.ndim == 1):
            raise ShapeError(
                f"{name} has the leading dimensions {list(x.shape[:-1])}, tau has {list(lead)}.",
                "Leading dimensions index samples, and each sample needs all measurements.",
                "Pass tensors of one shape [*samples, ...]; weight may also be [num_dof].",
            )
    if lead.numel() == 0:
        raise FitError(
            f"there are no samples: tau has shape {list(tau.shape)}.",
            "Training needs at least one sample.",
            "Pass tensors [*samples, num_dof] with samples >= 1.",
        )
    for name, x in measurements.items():
        _refuse_not_finite(mech, name, x)
    weight = _default_weight(mech, tau) if weight is None else _checked_weight(mech, weight)
    rows = [x.reshape(-1, x.shape[-1]) for x in (q, qd, qdd, tau, weight.expand_as(tau))]
    return Samples(*rows)


def _default_weight(mech: Mechanism, tau: Tensor) -> Tensor:
    """One over the mean square force of each dof, `[num_dof]`."""
    weight = 1 / tau.reshape(-1, mech.num_dof).square().mean(0)
    invalid = ~(weight.isfinite() & (weight > 0))
    if invalid.any():
        raise FitError(
            f"the force of joint {_names(mech, invalid)} is zero in all samples, or its square overflows.",
            "The default weight is one over the mean square force of each joint.",
            "Pass weight=(tau != 0).flatten(0, -2).any(0).to(tau), which excludes such a joint, or a tensor "
            "[num_dof] with one over the noise variance of each force.",
        )
    return weight


def _checked_weight(mech: Mechanism, weight: Tensor) -> Tensor:
    negative = (weight < 0).reshape(-1, mech.num_dof)
    if negative.any():
        raise FitError(
            f"weight is negative at joint {_names(mech, negative.any(0))}, in "
            f"{int(negative.any(-1).sum())} samples.",
            "A negative weight rewards errors.",
            "Pass one over the noise variance, or zero to exclude a measurement.",
        )
    if not (weight > 0).any():
        raise FitError(
            "weight is zero everywhere.",
            "All measurements are excluded.",
            "Pass positive weights for the measurements to fit, or no weight.",
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
        "One such number makes all parameters nan.",
        "Remove those samples from all tensors, or set the number to 0 and its weight to 0.",
    )


def _names(mech: Mechanism, marked: Tensor) -> str:
    """Names of joints with a marked component in a mask `[num_q]` or `[num_dof]`."""
    of = mech.dof_slice if marked.shape[-1] == mech.num_dof else mech.q_slice
    return ", ".join(repr(joint) for joint in mech.joint_names if bool(marked[of(joint)].any()))
