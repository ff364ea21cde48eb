"""A training step recorded once and done again without Python: CUDA graphs over buffers that stay in place."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from pfl_lite.methods.base import Carry

LEAST_STEPS = 4
"""Fewer steps than this are not worth a recording, which takes about as long as one of them without it."""


class Recorder(Protocol):
    """Records work on tensors that stay in place, without doing it."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """What does the work again; RuntimeError where it cannot be recorded."""


class Graphs:
    """Records as CUDA graphs: all kernels of the work start together, and Python is not asked again.

    What is recorded must have run before on the current stream, which must not be the default one, so that libraries have settled
    their plans. It may neither wait for the GPU nor copy from or to the host. A stream's graphs share memory: only the newest may
    run.
    """

    def __init__(self) -> None:
        self.pools: dict[torch.cuda.Stream, Any] = {}
        self.newest: dict[
            torch.cuda.Stream, torch.cuda.CUDAGraph
        ] = {}  # a pool lives as long as one of its graphs

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """The replay of a new graph. `torch.cuda.graph` would empty the allocator's cache for every recording, here memory must
        be short first: while it records, the allocator gives back nothing of what it keeps.
        """
        try:
            return self.captured(work)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        return self.captured(work)

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """One attempt."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        if stream not in self.pools:
            self.pools[stream] = torch.cuda.graph_pool_handle()
        graph.capture_begin(pool=self.pools[stream])
        try:
            work()
        finally:
            graph.capture_end()
        self.newest[stream] = graph
        return graph.replay


class Again:
    """The stand-in where there are no graphs: does the same work on the same buffers, by Python."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work itself."""
        return work


class Replay:
    """The loop over mini-batches as one recorded step, done again and again; by Python where recording fails."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder: Recorder | None = recorder

    def wants(self, steps: int) -> bool:
        """Whether a loop of so many steps is to be recorded."""
        return self.recorder is not None and steps >= LEAST_STEPS

    def loop(self, step: Callable[[Carry, Tensor], Carry], carry: Carry, steps: int, slot: Tensor) -> Carry:
        """`carry = step(carry, number)` for number = 0, ..., steps - 1, a tensor [] that counts on the device.

        Args:
            step: gives new tensors, not those that it was given, of the same shapes.
            carry: where the loop begins; it stays as it is.
            steps: how many.
            slot: the client's place in the batched computation, which makes every buffer a client's own.
        """
        # a copy, and one a client even where all begin alike
        held = tuple({name: torch.where(slot >= 0, t, t) for name, t in part.items()} for part in carry)
        number = torch.zeros((), dtype=torch.int64, device=slot.device)

        def work() -> None:
            for old, new in zip(held, step(held, number), strict=True):
                for name, tensor in new.items():
                    old[name].copy_(tensor)
            number.add_(1)

        work()
        again = self.recorded(work)
        for _ in range(steps - 1):
            again()
        return held

    def recorded(self, work: Callable[[], None]) -> Callable[[], None]:
        """What does the work again: a recording, or the work itself, with one warning, if that fails."""
        if self.recorder is None:
            return work
        try:
            return self.recorder.record(work)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.recorder = None
            warnings.warn(
                f"a training step could not be recorded as a CUDA graph, and runs without: {str(error).splitlines()[0]}",
                stacklevel=2,
            )
            return work
