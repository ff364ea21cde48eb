"""What a GPU can do for a batch of clients: recorded steps, groups of like size, TF32; and its memory.

A reader of the engine need not read this. Recorded steps made LeNet with 50 clients 5.6 times as fast on an H200
(`data/bench/gpu.json`), so they are on. The other two were timed without them only: TF32 gained 4%, and groups of like size cost
half of the speed. Graphs and TF32 are settings of a run; `benchmarks/gpu.py` switches all three.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

from pfl_lite.methods.base import Carry

Answer = TypeVar("Answer")
PROBE = 8
"""Clients in the first computation of a kind on a GPU, from which it is learned how much memory a client takes."""
FILLED = 0.4
"""Share of a GPU's free memory that a computation may take: a recorded step holds its memory beside what ran before."""
LEAST_STEPS = 4
"""Fewer steps than this are not worth a recording, which takes about as long as one of them without it."""
SORTED_GROUPS = True
"""Clients of like size are computed together, so that little is padding; False: in their own order, as many as fit. False was 2.1
times as fast without recorded steps (four groups against one); with them, where steps are cheap, neither has been timed."""


class Driver:
    """What only a GPU's driver answers or does, in one place, where a test can put another; on a CPU nothing is done."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.gpu = device, device.type == "cuda"

    @functools.cached_property
    def stream(self) -> torch.cuda.Stream:
        """A GPU's stream that is not the default one, in which nothing could be recorded."""
        return torch.cuda.Stream(self.device)

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        """A block whose work on a GPU comes after what was asked of it before, and before what will be."""
        if not self.gpu:
            yield
            return
        outside = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(outside)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            outside.wait_stream(self.stream)

    @contextmanager
    def products(self, *, tf32: bool) -> Iterator[None]:
        """How exact matrix products and convolutions of a GPU are; what the process had chosen comes back."""
        libraries: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn) if self.gpu else ()
        before = [library.allow_tf32 for library in libraries]
        try:
            for library in libraries:
                library.allow_tf32 = tf32
            yield
        finally:
            for library, value in zip(libraries, before, strict=True):
                library.allow_tf32 = value

    def free_bytes(self) -> int:
        """Memory of a GPU that new tensors can have."""
        held = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(torch.cuda.mem_get_info(self.device)[0] + held)

    def measured(self, compute: Callable[[], Answer]) -> tuple[Answer, int]:
        """What a computation gives, and how many bytes of a GPU's memory it took at most."""
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        answer = compute()
        return answer, torch.cuda.max_memory_allocated(self.device) - before

    def settle(self) -> None:
        """Wait until a GPU has done what it was asked for."""
        if self.gpu:
            torch.cuda.synchronize()


class ClientLimit:
    """How many clients a computation of one kind may hold: so many as are given, or as fit into a GPU's free memory.

    A computation that runs out of memory halves the number for all that follow.
    """

    def __init__(self, driver: Driver, given: int = 0) -> None:
        self.driver, self.limit, self.bytes = driver, given or None, 0.0

    @property
    def clients(self) -> int | None:
        """The number; None where nothing limits it."""
        if self.limit is not None or not self.driver.gpu:
            return self.limit
        return max(1, int(FILLED * self.driver.free_bytes() / self.bytes)) if self.bytes else PROBE

    def attempt(self, clients: int, compute: Callable[[], Answer]) -> Answer | None:
        """What a computation of so many clients gives; None where memory did not suffice. The first one is measured."""
        try:
            if not self.driver.gpu or self.bytes:
                return compute()
            answer, most = self.driver.measured(compute)
        except torch.OutOfMemoryError:
            self.limit = max(1, min(self.limit or clients, clients // 2))
            return None
        self.bytes = max(1, most) / clients
        return answer


class Graphs:
    """Records work on tensors that stay in place as CUDA graphs: all kernels start together, and Python is not asked again.

    What is recorded must have run before on the current stream, which must not be the default one, so that libraries have settled
    their plans. It may neither wait for the GPU nor copy from or to the host. All graphs share memory: only the newest may run.
    """

    pool: Any = None
    newest: torch.cuda.CUDAGraph | None = None  # kept, because a pool lives as long as one of its graphs

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """The replay of a new graph; RuntimeError where the work cannot be recorded.

        `torch.cuda.graph` would empty the allocator's cache for every recording, here memory must be short first: while it
        records, the allocator gives back nothing of what it keeps.
        """
        try:
            return self.captured(work)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        return self.captured(work)

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """One attempt."""
        graph, self.pool = torch.cuda.CUDAGraph(), self.pool or torch.cuda.graph_pool_handle()
        # what other threads ask of the GPU meanwhile is no part of it, and no fault
        graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            with suppress(RuntimeError):  # would hide what went wrong
                graph.capture_end()
            raise
        graph.capture_end()
        self.newest = graph
        return graph.replay


class Replay:
    """The loop over mini-batches as one recorded step, done again and again; by Python where recording fails."""

    def __init__(self, recorder: Graphs) -> None:
        self.recorder: Graphs | None = recorder

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
