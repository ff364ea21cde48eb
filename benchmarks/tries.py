"""What a training step of LeNet costs on one thread, and what was tried to make it cheaper.

    python benchmarks/tries.py --json data/bench/tries.json

Every variant does the same step on the same mini-batch of 64 images (forward, backward, plain SGD) and takes turns with the
others; the median turn counts. `difference`: the largest gap of a gradient to that of the first variant, as a share of its
largest entry.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from engines import machine
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from pfl_lite.models import NETWORKS
from pfl_lite.models.network import Parts

BATCH, CLASSES = 64, 10
Weights = dict[str, Tensor]
Forward = Callable[[Weights, Tensor], Tensor]


def head(w: Weights, a: Tensor) -> Tensor:
    """Logits from what the convolutions give [b, 400]."""
    a = F.relu(F.linear(a, w["fc1.weight"], w["fc1.bias"]))
    a = F.relu(F.linear(a, w["fc2.weight"], w["fc2.bias"]))
    return F.linear(a, w["fc3.weight"], w["fc3.bias"])


def convolution(w: Weights, layer: str, x: Tensor) -> Tensor:
    """One convolution of the network."""
    return F.conv2d(x, w[f"{layer}.weight"], w[f"{layer}.bias"])


def relu_first(w: Weights, x: Tensor) -> Tensor:
    """As textbooks write it: convolution, ReLU, max-pool."""
    for layer in ("conv1", "conv2"):
        x = F.max_pool2d(F.relu(convolution(w, layer, x)), 2)
    return head(w, x.flatten(1))


def pool_first(w: Weights, x: Tensor) -> Tensor:
    """The same function, with ReLU on a quarter of the numbers."""
    for layer in ("conv1", "conv2"):
        x = F.relu(F.max_pool2d(convolution(w, layer, x), 2))
    return head(w, x.flatten(1))


def pool_in_convolution(w: Weights, x: Tensor) -> Tensor:
    """First layer: one convolution of stride 2 that computes the four places of a pool as channels, then a maximum over them."""
    kernel = w["conv1.weight"]  # [6, 3, 5, 5]
    four = torch.cat([F.pad(kernel, (j, 1 - j, i, 1 - i)) for i in (0, 1) for j in (0, 1)])  # [24, 3, 6, 6]
    x = F.conv2d(x, four, stride=2).unflatten(1, (4, -1)).amax(1)  # [b, 6, 14, 14]
    x = F.relu(x + w["conv1.bias"][:, None, None])
    return head(w, F.relu(F.max_pool2d(convolution(w, "conv2", x), 2)).flatten(1))


def unfolded(w: Weights, x: Tensor) -> Tensor:
    """Convolutions as im2col and one matrix product."""
    for layer, side in (("conv1", 28), ("conv2", 10)):
        columns = F.unfold(x, 5)  # [b, 25 C, side^2]
        x = (w[f"{layer}.weight"].flatten(1) @ columns).unflatten(2, (side, side))
        x = F.relu(F.max_pool2d(x + w[f"{layer}.bias"][:, None, None], 2))
    return head(w, x.flatten(1))


class Step:
    """One variant of the training step, ready to be repeated."""

    def __init__(
        self,
        forward: Forward,
        start: Weights,
        x: Tensor,
        y: Tensor,
        *,
        last: bool = True,
        bf16: bool = False,
        compiled: bool = False,
    ) -> None:
        self.w = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
        self.x = x.contiguous(memory_format=torch.channels_last) if last else x
        self.bf16 = bf16

        def loss(w: Weights, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                logits = forward(w, x)
            return F.cross_entropy(logits.float(), y)

        self.loss = torch.compile(loss) if compiled else loss
        self.images = len(x)

    def gradient(self) -> tuple[Tensor, ...]:
        """The gradient of the loss at the start."""
        return torch.autograd.grad(self.loss(self.w, self.x), list(self.w.values()))

    def __call__(self) -> None:
        gradient = self.gradient()
        with torch.no_grad():
            for w, g in zip(self.w.values(), gradient, strict=True):
                w.sub_(g, alpha=1e-6)


def many_clients(start: Weights, x: Tensor, y: Tensor, clients: int) -> Callable[[], None]:
    """A step of several clients at once: grouped convolutions and batched matrix products."""
    from torch.func import grad, vmap

    def loss(w: Weights, x: Tensor) -> Tensor:
        return F.cross_entropy(pool_first(w, x), y)

    stacked = {name: tensor.expand(clients, *tensor.shape).clone() for name, tensor in start.items()}
    images = x.expand(clients, *x.shape).clone()
    step = vmap(grad(loss))

    def one() -> None:
        for name, g in step(stacked, images).items():
            stacked[name].sub_(g, alpha=1e-6)

    return one


def seconds(work: Callable[[], Any], calls: int) -> float:
    """Mean seconds of a few calls in a row."""
    started = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - started) / calls


def flops_per_image() -> dict[str, int]:
    """Multiplications and additions of one image's training step: forward, both gradients (the first layer needs one only)."""
    layers = {
        "conv1": 28 * 28 * 6 * 75,
        "conv2": 10 * 10 * 16 * 150,
        "fc": 400 * 120 + 120 * 84 + 84 * CLASSES,
    }
    return {name: 2 * products * (2 if name == "conv1" else 3) for name, products in layers.items()}


def peak() -> float:
    """GFLOP/s of one thread in a large matrix product or a large convolution, whichever is faster.

    The two are computed by different libraries, and not each of them uses all that a processor has.
    """
    a = torch.randn(1024, 1024)
    x, w = (
        torch.randn(size).to(memory_format=torch.channels_last)
        for size in ((BATCH, 256, 16, 16), (256, 256, 3, 3))
    )
    work: list[tuple[Callable[[], Any], int]] = [
        (lambda: a @ a, 2 * 1024**3),
        (lambda: F.conv2d(x, w, padding=1), 2 * x.numel() * 256 * 9),
    ]
    for each, _ in work:
        seconds(each, 3)
    return max(operations / min(seconds(each, 3) for _ in range(5)) / 1e9 for each, operations in work)


def shares(step: Step) -> dict[str, float]:
    """Which operations a step spends its time in."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(20):
            step()
    spent = {event.key: event.self_cpu_time_total for event in seen.key_averages()}
    total = sum(spent.values())
    largest = sorted(spent.items(), key=lambda pair: -pair[1])[:8]
    return {name.removeprefix("aten::"): round(time / total, 3) for name, time in largest}


def measure(turns: int, compiled: bool) -> dict[str, Any]:
    """Every variant in turns."""
    taken_on = machine("cpu")  # before the measurement makes a load of its own
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = NETWORKS["lenet"].module(3, 32, CLASSES)
    assert isinstance(network, Parts)
    start = {name: tensor.detach() for name, tensor in network.named_parameters()}
    x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(0, CLASSES, (BATCH,))
    variants: dict[str, Step] = {
        "ReLU before max-pool": Step(relu_first, start, x, y, last=False),
        "ReLU after max-pool": Step(pool_first, start, x, y, last=False),
        "the same, channels-last (what pfl_lite does)": Step(pool_first, start, x, y),
        "max-pool inside the convolution": Step(pool_in_convolution, start, x, y, last=False),
        "im2col and one matrix product": Step(unfolded, start, x, y, last=False),
        "bfloat16": Step(pool_first, start, x, y, last=False, bf16=True),
        "bfloat16, channels-last": Step(pool_first, start, x, y, bf16=True),
        "mini-batches of 16": Step(pool_first, start, x[:16], y[:16]),
        "mini-batches of 256": Step(pool_first, start, x.repeat(4, 1, 1, 1), y.repeat(4)),
    }
    compile_seconds = None
    if compiled:
        if shutil.which("g++") is None:
            raise SystemExit("torch.compile needs g++, which is not here: leave out --compile")
        os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = (
            "1"  # or its time would be that of finding old work
        )
        variants["torch.compile"] = Step(pool_first, start, x, y, last=False, compiled=True)
        compile_seconds = round(seconds(variants["torch.compile"], 1), 1)
    first = variants["ReLU before max-pool"].gradient()
    gaps = {
        name: max(
            float((g - f).abs().max() / f.abs().max()) for g, f in zip(step.gradient(), first, strict=True)
        )
        for name, step in variants.items()
        if step.images == BATCH
    }
    work: dict[str, tuple[Callable[[], Any], int]] = {
        name: (step, step.images) for name, step in variants.items()
    }
    work["ten clients at once (vmap)"] = (many_clients(start, x, y, 10), 10 * BATCH)
    taken: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(turns + 1):
        for name, (step, images) in work.items():
            each = seconds(step, max(1, 4 * BATCH // images)) / images
            if turn:
                taken[name].append(each)
    rows = []
    for name, times in taken.items():
        row: dict[str, Any] = {"variant": name, "images_per_second": round(1 / statistics.median(times))}
        if name in gaps:
            row["difference"] = float(f"{gaps[name]:.1e}")
        rows.append(row)
    ours = variants["the same, channels-last (what pfl_lite does)"]
    return {
        "rows": rows,
        "shares": shares(ours),
        "flops_per_image": flops_per_image(),
        "peak_gflops": round(peak(), 1),
        "compile_seconds": compile_seconds,
        "batch_size": BATCH,
        "turns": turns,
        **taken_on,
    }


def main() -> None:
    """Measure, print, and write a JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--compile", action="store_true", help="try torch.compile too (needs a C++ compiler)")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    numbers = measure(given.turns, given.compile)
    for row in numbers["rows"]:
        gap = f"   gradient off by {row['difference']:.1e}" if "difference" in row else ""
        print(f"{row['variant']:<46}{row['images_per_second']:8,} images/s{gap}")
    total = sum(numbers["flops_per_image"].values())
    print(f"{total / 1e6:.2f} MFLOP an image, {numbers['peak_gflops']} GFLOP/s at best")
    print(", ".join(f"{name} {100 * share:.0f}%" for name, share in numbers["shares"].items()))
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
