"""Graph break of torch.compile around rollout kernels.

It is imported under torch.compile only, since importing torch._dynamo takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from torchsko.integrators.fused_rollout import run_fused

run_fused_outside_graph = cast(
    Callable[..., tuple[list[Tensor], Tensor]],
    torch.compiler.disable(
        run_fused,
        reason="With fused=True all steps are one kernel, which torch.compile cannot trace. "
        "Leave out fused, so that each step is a kernel of the graph, or leave out fullgraph=True.",
    ),
)
"""`run_fused` with a graph break; with ``fullgraph=True`` torch.compile raises an error."""
