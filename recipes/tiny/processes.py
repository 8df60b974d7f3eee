"""`Processes`: the processes that train one model together, each on batches of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor, distributed


class Processes:
    """Joins the processes that ``torchrun`` has started; alone, it is a group of one.

    Attributes:
        rank: number of this process; 0 writes the files.
        size: how many there are.
    """

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if self.size > 1 and not distributed.is_initialized():
            distributed.init_process_group()

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            distributed.barrier()

    def share(self, gradients: Sequence[Tensor], counts: Sequence[float]) -> list[float]:
        """Average the gradients of all processes in place, and return the sums of their counts."""
        if self.size == 1:
            return list(counts)
        device = gradients[0].device
        whole = torch.cat(
            [*(gradient.flatten() for gradient in gradients), torch.tensor(counts, device=device)]
        )
        distributed.all_reduce(whole)
        edge = len(whole) - len(counts)
        parts = (whole[:edge] / self.size).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        return whole[edge:].tolist()
