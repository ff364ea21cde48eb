"""What a round of FedMN costs beside one of FedAvg: its clients train two encoders, and a router that reads all images.

python benchmarks/pool.py --json data/bench/pool.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from engines import Timed, in_turns, machine

from pfl_lite import Simulation
from pfl_lite.atomic_files import write_json
from pfl_lite.config import make_config
from pfl_lite.papers import get_experiment

ROWS = {
    "FedAvg": "fedavg",
    "FedMN, every part learns": "fedmn-printed",
    "FedMN, only the router's last layer learns": "fedmn-works",
}


def by_the_thread(sim: Simulation) -> Timed:
    """The processor's seconds of a round without its evaluation, which other work on the machine does not lengthen much."""

    def one() -> float:
        started = time.process_time()
        sim.step()
        return time.process_time() - started

    return one


def main() -> None:
    """Measure, print, and write a JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiment", default="fedmn-table2-cifar10-lenet")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    taken_on = machine("cpu")  # before the measurement makes a load of its own
    torch.set_num_threads(1)
    experiment, rounds = get_experiment(given.experiment), {}
    for name, key in ROWS.items():
        arm, shared = (experiment.arm(key), experiment.settings(0, 1000) | {"lr": 0.01, "eval_every": 1000})
        own = arm.settings | ({"pretrain": 1} if arm.method == "fedmn" else {})
        sim = Simulation(make_config(arm.method, **(shared | own)))
        sim.step()  # of pre-training
        rounds[name] = by_the_thread(sim)
    seconds = in_turns(rounds, given.repeats)
    for name, one in seconds.items():
        print(f"{name:<44} {one:6.2f} s, {one / seconds['FedAvg']:.2f} times FedAvg's")
    if given.json is not None:
        write_json(given.json, {"experiment": given.experiment, "seconds": seconds, "machine": taken_on})


if __name__ == "__main__":
    main()
