"""The innovations factorisation of a model, by the method asked for."""

from __future__ import annotations

from typing import Literal

import torch

from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.innovations import Innovations, swept_innovations
from torchsko.algebra.recursions.innovations_scan import scanned_innovations
from torchsko.errors import TorchskoError, unknown_name
from torchsko.utils.dtype import in_own_type

METHODS = ("sweep", "scan")
"""What `innovations` knows by name."""


@in_own_type
def innovations(
    model: SKOModel,
    *,
    method: Literal["sweep", "scan"] = "sweep",
    accumulate: torch.dtype | None = None,
) -> Innovations:
    """Factor the mass matrix of a model.

    Args:
        model: an SKO model.
        method: "sweep", level by level: O(N) work, a number of operations that grows with the depth of the
            tree. "scan": O(N log depth) work, a number of operations that grows with the logarithm of
            the depth (times 1 + log2 of the number of tips on branched trees); for long chains. It
            asks more of the model: H M H* + S of every node positive definite, not just D.
        accumulate: for "scan" only: floating-point type in which articulated inertias are composed, float64
            when left out, whatever the model's (`riccati_scan` says what float32 loses). The factors
            themselves are of the model's type.

    Returns:
        The factors; equal to rounding, and used alike.

    Raises:
        TorchskoError: on another method, or `accumulate` without "scan". A hinge inertia that is
            singular gives inf or nan for its sample; mechanisms refuse such joints by name.

    Reference: Jain 2011, Part II, Lemma 11.
    """
    if method not in METHODS:
        raise TorchskoError(*unknown_name("method", method, METHODS))
    if method == "scan":
        return scanned_innovations(model, accumulate or torch.float64)
    if accumulate is not None:
        raise TorchskoError(
            f'accumulate={accumulate} was given, but method="sweep" composes nothing.',
            "Only the scan multiplies inertias of whole runs of nodes.",
            'Leave it out, or pass method="scan".',
        )
    return swept_innovations(model)
