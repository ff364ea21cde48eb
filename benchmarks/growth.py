"""How time and memory of a simulated round grow with clients, model size, branches and workers.

    python benchmarks/growth.py --json data/bench/growth.json

Every point is measured in a process of its own, whose largest memory is its own. Images are spread over all clients, so that more
clients have fewer images each; ten take part in a round.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from engines import machine
from tqdm import tqdm

from pfl_lite.config import make_config
from pfl_lite.engine.processes import over_processes
from pfl_lite.engine.simulation import Simulation

SAMPLED = 10
CLIENTS = (10, 30, 100, 300, 1000)
METHODS = {"fedavg": {}, "fedper": {}, "ditto": {}, "pfedmb": {"branches": 5}}
MODELS = ("linear", "mlp", "lenet", "mobilenet_v2", "vgg16")
BRANCHES = (1, 2, 5, 10, 20)
WORKERS = (1, 2)


def point(method: str, settings: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Seconds of a round's training and of scoring every client once, and what the process has held in memory, in GiB."""
    torch.set_num_threads(1)
    clients, workers = settings["clients"], settings.get("workers", 1)
    own = {name: value for name, value in settings.items() if name != "workers"}
    started = time.perf_counter()
    config = make_config(
        method, partition="iid", participation=min(1.0, SAMPLED / clients), rounds=1000, eval_every=1000, lr=0.01,
        val_fraction=0.0, engine="loop", device="cpu", **own,
    )  # fmt: skip
    simulation = Simulation(config, mapping=over_processes(workers, config))
    built = time.perf_counter() - started
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    training = []
    for _ in range(rounds):
        started = time.perf_counter()
        simulation.advance()
        training.append(time.perf_counter() - started)
    started = time.perf_counter()
    simulation.evaluate()
    scoring = time.perf_counter() - started
    kept = (*simulation.clients.values(), *simulation.server.values())
    states = sum(tensor.numel() * tensor.element_size() for tensor in kept)
    return {
        "method": method,
        **settings,
        "parameters": simulation.network.parameters,
        "images_trained": simulation.map.images_trained // rounds,
        "build_seconds": round(built, 2),
        "round_seconds": round(statistics.median(training), 3),
        "scoring_seconds": round(scoring, 3),
        "state_mib": round(states / 2**20, 3),
        "built_gib": round(before / 2**20, 2),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def points(data: str, most_clients: int, largest: int) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """What is measured, curve by curve."""
    base = {"data": data, "model": "lenet", "clients": 100, "batch_size": 64, "epochs": 1}
    return {
        "clients": [
            (method, base | own | {"clients": count})
            for method, own in METHODS.items()
            for count in CLIENTS
            if count <= most_clients
        ],
        "model": [("fedavg", base | {"model": model}) for model in MODELS[:largest]],
        "branches": [("pfedmb", base | {"branches": count}) for count in BRANCHES],
        "workers": [
            ("fedavg", base | {"clients": SAMPLED, "epochs": 5, "workers": count}) for count in WORKERS
        ],
    }


def main() -> None:
    """Measure, print, and write a JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="cifar10:0.2", help="a data set, or a part of one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most-clients", type=int, default=max(CLIENTS))
    parser.add_argument("--networks", type=int, default=len(MODELS), help=f"how many of {', '.join(MODELS)}")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    taken_on = machine("cpu")  # before the measurement makes a load of its own
    curves: dict[str, list[dict[str, Any]]] = {}
    asked = points(given.data, given.most_clients, given.networks)
    context = multiprocessing.get_context("spawn")
    with tqdm(total=sum(map(len, asked.values())), unit="point", disable=None) as bar:
        for name, settings in asked.items():
            for method, own in settings:
                with ProcessPoolExecutor(1, mp_context=context) as alone:
                    found = alone.submit(point, method, own, given.rounds).result()
                curves.setdefault(name, []).append(found)
                bar.update()
                tqdm.write(
                    f"{name:<9}{method:<8}{own['model']:<13}{own['clients']:5} clients"
                    f"{found['round_seconds']:9.2f} s a round{found['scoring_seconds']:9.2f} s to score"
                    f"{found['state_mib']:9.1f} MiB of states{found['peak_gib']:7.2f} GiB in all",
                    file=sys.stdout,
                )
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        numbers = {"curves": curves, "sampled": SAMPLED, "rounds": given.rounds, **taken_on}
        given.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
