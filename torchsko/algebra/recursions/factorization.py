"""The innovations factorization of a model, by either method."""

from __future__ import annotations

from typing import Literal

import torch

from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.innovations import Innovations, swept_innovations
from torchsko.algebra.recursions.innovations_scan import scanned_innovations
from torchsko.errors import TorchskoError, unknown_name
from torchsko.utils.dtype import without_autocast

METHODS = ("sweep", "scan")
"""Methods of `innovations`."""


@without_autocast
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
            the depth (times 1 + log2 of the number of tips on branched trees); for long chains. It has a
            stronger requirement: H M H* + S of every node is positive definite, not just D.
        accumulate: for "scan" only: floating-point type in which articulated inertias are composed, float64
            by default, independent of the model's dtype (`riccati_scan` has the error of float32). The
            factors have the model's dtype.

    Returns:
        The factors; both methods agree to rounding.

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
