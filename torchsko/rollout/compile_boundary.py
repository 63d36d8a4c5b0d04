"""Kernels of all steps under torch.compile, imported there alone: torch._dynamo takes seconds to import."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from torchsko.rollout.fused_rollout import run_fused

run_fused_outside_graph = cast(
    Callable[..., tuple[Tensor, Tensor, Tensor]],
    torch.compiler.disable(
        run_fused,
        reason="With fused=True all steps are one kernel, which torch.compile does not see into. "
        "Leave fused out, so that each step is a kernel of the graph, or fullgraph=True.",
    ),
)
"""`run_fused` where torch.compile follows, which leaves its graph here, or says that it cannot."""
