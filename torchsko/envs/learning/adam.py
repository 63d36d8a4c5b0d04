"""Adam for the parameters of a network.

Reference: Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Adam:
    """The method of `torch.optim.Adam`, whose class imports the compiler of PyTorch, for more than a second.

    Attributes:
        parameters: of the network.
        rate: learning rate of the next step.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        """Moments of zero.

        Args:
            parameters: of the network.
            betas: decay rates of both moments.
            eps: added to the root of the second moment.
        """
        self.parameters, self.rate = list(parameters), 0.0
        self._betas, self._eps = betas, eps
        self._moments = [[torch.zeros_like(x) for x in self.parameters] for _ in range(2)]
        self._counts = [torch.zeros((), device=x.device) for x in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Change the parameters by their gradients."""
        rows = zip(self.parameters, *self._moments, self._counts, strict=True)
        x, m, v, t = map(list, zip(*(row for row in rows if row[0].grad is not None), strict=True))
        for count in t:
            count += 1
        torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]
            x, [p.grad for p in x], m, v, [], t, lr=self.rate, beta1=self._betas[0],
            beta2=self._betas[1], weight_decay=0.0, eps=self._eps, amsgrad=False, maximize=False,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Moments and numbers of steps."""
        return {"moments": self._moments, "counts": self._counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._moments, self._counts = state["moments"], state["counts"]
