"""Can a client's step on a processor be had for less? python benchmarks/fused.py --compile --json data/bench/fused.json

Exact ways to write LeNet's training step, in turns on one thread. What counts is the thread's own time, as a ratio to the step
that the package takes in the same turn: a busy machine changes it little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from engines import machine
from torch import Tensor
from torch.func import grad
from tries import BATCH, CLASSES, Forward, Weights, head, pool_first, pool_in_convolution

from pfl_lite.models import NETWORKS

Step = Callable[[], list[Tensor]]
OURS = "what pfl_lite does"


def padded(channels: int, w: Weights, x: Tensor) -> Tensor:
    """LeNet with channels of zeros between its convolutions, as many as a library may like."""
    more = channels - 6
    weight, bias = F.pad(w["conv1.weight"], (0, 0) * 3 + (0, more)), F.pad(w["conv1.bias"], (0, more))
    x = F.relu(F.max_pool2d(F.conv2d(x, weight, bias), 2))
    weight = F.pad(w["conv2.weight"], (0, 0) * 2 + (0, more))
    return head(w, F.relu(F.max_pool2d(F.conv2d(x, weight, w["conv2.bias"]), 2)).flatten(1))


def step_of(forward: Forward, start: Weights, x: Tensor, y: Tensor, *, compiled: bool = False) -> Step:
    """A training step, from its own weights to the next; it answers with the gradient."""
    w = {name: tensor.clone() for name, tensor in start.items()}

    def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(forward(w, x), y)

    def eager(w: Weights, x: Tensor, y: Tensor) -> tuple[Weights, Weights]:
        leaves = {name: t.detach().requires_grad_() for name, t in w.items()}
        g = dict(zip(w, torch.autograd.grad(loss(leaves, x, y), list(leaves.values())), strict=True))
        return {name: torch.sub(w[name], g[name], alpha=1e-6) for name in w}, g

    def whole(w: Weights, x: Tensor, y: Tensor) -> tuple[Weights, Weights]:
        g = grad(loss)(w, x, y)
        return {name: torch.sub(w[name], g[name], alpha=1e-6) for name in w}, g

    function: Any = torch.compile(whole) if compiled else eager

    def step() -> list[Tensor]:
        nonlocal w
        w, g = function(w, x, y)
        return list(g.values())

    return step


def without_onednn(step: Step) -> list[Tensor]:
    """The step by torch's own convolutions."""
    with torch.backends.mkldnn.flags(enabled=False):
        return step()


def measure(turns: int, compiled: bool) -> dict[str, Any]:
    """Every variant in turns."""
    taken_on = machine("cpu")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = NETWORKS["lenet"].module(3, 32, CLASSES)
    start = {name: tensor.detach() for name, tensor in network.named_parameters()}
    flat, y = torch.randn(BATCH, 3, 32, 32), torch.randint(0, CLASSES, (BATCH,))
    last = flat.contiguous(memory_format=torch.channels_last)
    steps: dict[str, Step] = {
        OURS: step_of(pool_first, start, last, y),
        "not channels-last": step_of(pool_first, start, flat, y),
        "max-pool inside the convolution": step_of(pool_in_convolution, start, flat, y),
        "the same, channels-last": step_of(pool_in_convolution, start, last, y),
        "8 channels between the convolutions": step_of(partial(padded, 8), start, last, y),
        "16 channels between the convolutions": step_of(partial(padded, 16), start, last, y),
        "torch's own convolutions": partial(without_onednn, step_of(pool_first, start, flat, y)),
    }
    if compiled:
        steps["whole step compiled"] = step_of(pool_first, start, flat, y, compiled=True)
        steps["whole step compiled, channels-last"] = step_of(pool_first, start, last, y, compiled=True)
    right = steps[OURS]()
    gaps = {
        name: max(float((g - r).abs().max() / r.abs().max()) for g, r in zip(step(), right, strict=True))
        for name, step in steps.items()
    }
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + 1):
        for name, step in steps.items():
            begun = time.thread_time()
            for _ in range(4):
                step()
            if turn:
                taken[name].append(time.thread_time() - begun)
    rows = []
    for name, times in taken.items():
        ratios = [ours / mine for ours, mine in zip(taken[OURS], times, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        row = {"variant": name, "ratio": middle, "quartiles": [low, high], "difference": gaps[name]}
        rows.append({key: round(v, 3) if key == "ratio" else v for key, v in row.items()})
    return {"rows": rows, "turns": turns, "batch_size": BATCH, **taken_on}


def main() -> None:
    """Measure, print, and write a JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--compile", action="store_true", help="try torch.compile too (needs a C++ compiler)")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    numbers = measure(given.turns, given.compile)
    for row in numbers["rows"]:
        low, high = row["quartiles"]
        print(f"{row['variant']:<40}{row['ratio']:6.2f} times ours ({low:.2f} to {high:.2f})")
    if given.json is not None:
        given.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
