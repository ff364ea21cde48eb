"""What may make a GPU fast: recorded steps, convolutions as products of patches, groups side by side, TF32; and its memory.

A reader of the engine need not read this. No GPU has timed these mechanisms yet, so all of them are off, except for the sorted
groups, whose gain can be counted. Graphs, convolutions and TF32 are settings of a run; the others are switched here.
`benchmarks/gpu.py` turns each on by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pfl_lite.methods.base import Carry

Answer = TypeVar("Answer")
PROBE = 8
"""Clients in the first computation of a kind on a GPU, from which it is learned how much memory a client takes."""
FILLED = 0.4
"""Share of a GPU's free memory that a computation may take: a recorded step holds its memory beside what ran before."""
LEAST_STEPS = 4
"""Fewer steps than this are not worth a recording, which takes about as long as one of them without it."""
NARROW = 0
"""Input channels below which `convolution=auto` takes patches on a GPU. 16 is worth a try: a grouped convolution of few channels
leaves matrix units idle, and with more of them patches cost memory."""
LANES = 1
"""Groups of clients that a GPU may compute side by side. 4 is worth a try: one small group alone leaves most of it idle."""
SORTED_GROUPS = True
"""Clients of like size are computed together, so that little is padding; False: in their own order, as many as fit."""


class Driver:
    """What only a GPU's driver answers or does, in one place, where a test can put another; on a CPU nothing is done."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.gpu = device, device.type == "cuda"

    def streams(self, count: int) -> list[torch.cuda.Stream | None]:
        """Lanes in which computations may run side by side; on a CPU there is one."""
        return [torch.cuda.Stream(self.device) if self.gpu else None for _ in range(count)]

    @contextmanager
    def side_by_side(self, streams: Sequence[torch.cuda.Stream | None]) -> Iterator[None]:
        """A block whose work in the streams comes after what was asked of the GPU before, and before what will be."""
        own = [stream for stream in streams if stream is not None]
        for stream in own:
            stream.wait_stream(torch.cuda.current_stream(self.device))
        yield
        for stream in own:
            torch.cuda.current_stream(self.device).wait_stream(stream)

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
            self.limit = max(1, clients // 2)
            return None
        self.bytes = max(1, most) / clients
        return answer


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
        # a pool lives as long as one of its graphs
        self.newest: dict[torch.cuda.Stream, torch.cuda.CUDAGraph] = {}

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


class _Patches(torch.autograd.Function):
    """Images [b, C, H, W] -> patches [b, C k k, L], a column an output pixel (torch's own has no batching rule backwards)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        windows = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])  # [b, C, H', W', k, k]
        return windows.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.kernel, ctx.stride = inputs
        ctx.size = tuple(x.shape[2:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _Overlaps.apply(gradients[0], ctx.size, ctx.kernel, ctx.stride), None, None


class _Overlaps(torch.autograd.Function):
    """The way back: what the patches [b, C k k, L] say of each pixel, summed: [b, C, H, W]."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        columns: Tensor, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int]
    ) -> Tensor:
        return F.fold(columns, size, kernel, stride=stride)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, ctx.kernel, ctx.stride = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _Patches.apply(gradients[0], ctx.kernel, ctx.stride), None, None, None


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """What `conv2d` makes of images x [b, C, H, W] with filters [O, C, k, k] and bias [O]: [b, O, H', W']."""
    height, width = padding
    if height or width:
        x = F.pad(x, (width, width, height, height))
    kernel = weight.shape[2:]
    down, across = ((side - k) // step + 1 for side, k, step in zip(x.shape[2:], kernel, stride, strict=True))
    columns = _Patches.apply(x, tuple(kernel), stride)  # [b, C k k, L]
    filters = weight.flatten(1).expand(len(x), -1, -1)  # [b, O, C k k]: many small products keep a GPU busy
    y = torch.bmm(filters, columns).unflatten(2, (down, across))
    return y if bias is None else y + bias[:, None, None]


def pair(value: int | Iterable[int]) -> tuple[int, int]:
    """One number for both directions, or one for each, as torch takes them."""
    first, second = (value, value) if isinstance(value, int) else value
    return first, second


class Unfolded(TorchFunctionMode):
    """While it is entered, `conv2d` goes through patches where its input has fewer than `below` channels.

    Convolutions with groups, dilation or padding given by a word stay what they are.
    """

    def __init__(self, below: float) -> None:
        super().__init__()
        self.below = below

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.conv2d:
            return self.conv2d(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def conv2d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        """`torch.nn.functional.conv2d`."""
        plain = groups == 1 and pair(dilation) == (1, 1) and not isinstance(padding, str)
        if plain and input.shape[1] < self.below:
            return convolve(input, weight, bias, pair(stride), pair(padding))
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
