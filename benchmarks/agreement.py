"""The accuracy curve of one run under the engines and with one and two workers: is speed bought with another number?

python benchmarks/agreement.py --json data/bench/agreement.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from engines import machine

from pfl_lite.engine.simulation import run

WAYS: dict[str, dict[str, Any]] = {
    "loop": {"engine": "loop"},
    "loop, 2 workers": {"engine": "loop", "workers": 2},
    "vmap": {"engine": "vmap"},
}


def main() -> None:
    """Run, print, and write a JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="cifar10:0.1", help="a data set, or a part of one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings = {
        "data": given.data, "model": "lenet", "partition": "dirichlet:0.4", "clients": 15, "rounds": given.rounds,
        "epochs": 5, "batch_size": 64, "lr": 0.05, "device": "cpu",
    }  # fmt: skip
    curves: dict[str, dict[str, list[float]]] = {}
    for name, way in WAYS.items():
        rounds = run("fedavg", **settings, **way).report()["rounds"]
        curves[name] = {key: [r[key] for r in rounds] for key in ("global_accuracy", "global_loss")}
        losses = [
            abs(a - b) for a, b in zip(*(curves[k]["global_loss"] for k in (name, "loop")), strict=True)
        ]
        shown = " ".join(f"{100 * value:.2f}" for value in curves[name]["global_accuracy"])
        print(f"{name:<16} {shown}%, loss at most {max(losses):.1e} from the loop's", flush=True)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        numbers = {"curves": curves, "settings": settings, **machine("cpu")}
        given.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
