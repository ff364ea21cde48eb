"""Which clients are computed together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch

Answer = TypeVar("Answer")
IDLE = 0.1
"""Share of the steps of a batched computation that may be padding; clients' last mini-batches, rarely full, come on top."""
PROBE = 8
"""Clients in the first computation of a kind on a GPU, from which it is learned how much memory a client takes."""
FILLED = 0.4
"""Share of a GPU's free memory that a computation may take: a recorded step holds its memory beside what ran before."""


def padded(images: int, batch_size: int) -> int:
    """Images with which an epoch of one client is computed: full mini-batches, or a single smaller one."""
    return images if images <= batch_size else -(-images // batch_size) * batch_size


def groups(sizes: Sequence[int], batch_size: int, at_most: int | None = None) -> list[list[int]]:
    """Places of clients that are computed together, as few groups as keep idle steps below `IDLE` of all.

    A group takes as long as its largest member, so that clients of like size belong together: they are sorted by size and cut
    where the least is lost. One group keeps the order given.

    Args:
        sizes: images of every client.
        batch_size: images a mini-batch.
        at_most: clients in a group (None: any number).
    """
    count = len(sizes)
    at_most = at_most or count
    order = sorted(range(count), key=lambda place: -sizes[place])
    work = np.array([padded(sizes[place], batch_size) for place in order], dtype=float)
    allowed = work.sum() / (1 - IDLE)
    # least[j]: least work of the first j clients in so many groups; each group costs (its clients) x (its first, the largest)
    least = np.full(count + 1, np.inf)
    least[0], cuts = 0.0, []
    while not least[count] <= allowed:  # alone, every client does its own work only
        best, cut = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=int)
        for j in range(1, count + 1):
            start = np.arange(max(0, j - at_most), j)
            each = least[start] + (j - start) * work[start]
            best[j], cut[j] = each.min(), start[each.argmin()]
        least = best
        cuts.append(cut)
    ends = [count]
    for cut in reversed(cuts):
        ends.append(int(cut[ends[-1]]))
    if len(ends) == 2:
        return [list(range(count))]
    return [order[start:end] for start, end in zip(ends[:0:-1], ends[-2::-1], strict=True)]


def padding(sizes: Sequence[int], batch_size: int, together: list[list[int]]) -> float:
    """Share of the computed images that are padding, where these groups of clients are trained for an epoch."""
    computed = sum(
        len(group) * padded(max(sizes[place] for place in group), batch_size) for group in together
    )
    return 1 - sum(sizes) / computed if computed else 0.0


class Room:
    """How many clients a computation of one kind may hold: so many as are given, or as fit into a GPU's free memory.

    A computation that runs out of memory halves the number for all that follow.
    """

    def __init__(self, device: torch.device, given: int = 0) -> None:
        self.device, self.limit, self.bytes = device, given or None, 0.0

    @property
    def clients(self) -> int | None:
        """The number; None where nothing limits it."""
        if self.limit is not None or self.device.type != "cuda":
            return self.limit
        if not self.bytes:
            return PROBE
        held = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        free = torch.cuda.mem_get_info(self.device)[0] + held
        return max(1, int(FILLED * free / self.bytes))

    def attempt(self, clients: int, compute: Callable[[], Answer]) -> Answer | None:
        """What a computation of so many clients gives; None where memory did not suffice. The first one is measured."""
        measured = self.device.type == "cuda" and not self.bytes
        if measured:
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
        try:
            answer = compute()
        except torch.OutOfMemoryError:
            self.limit = max(1, clients // 2)
            return None
        if measured:
            self.bytes = max(1, torch.cuda.max_memory_allocated(self.device) - before) / clients
        return answer
