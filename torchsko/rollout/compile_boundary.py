"""Kernels of all steps under torch.compile, imported there alone: torch._dynamo takes seconds to import."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from torchsko.rollout.fused_rollout import run_at_once

outside_of_graphs = cast(
    Callable[..., tuple[Tensor, Tensor, Tensor]],
    torch.compiler.disable(
        run_at_once,
        reason="With fused=True all steps are one kernel, which torch.compile does not see into. "
        "Leave fused out, so that each step is a kernel of the graph, or fullgraph=True.",
    ),
)
"""`run_at_once` where torch.compile follows, which leaves its graph here, or says that it cannot."""
