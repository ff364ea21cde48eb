"""What sharing out clients costs where a round takes half a second: one process, two, and two by the package's rule.

python benchmarks/short_rounds.py --json data/bench/short_rounds.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from engines import Setting, Timed, in_turns, machine, whole_round

from pfl_lite.engine import processes
from pfl_lite.engine.simulation import Simulation


def timed_round(sim: Simulation, worth_seconds: float) -> Timed:
    """Images/s of a round of `sim`, where only what takes so many seconds is shared out."""

    def one() -> float:
        usual, processes.WORTH_SECONDS = processes.WORTH_SECONDS, worth_seconds
        try:
            return whole_round(sim)
        finally:
            processes.WORTH_SECONDS = usual

    return one


def main() -> None:
    """Measure, print, and write a JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="cifar10:0.05", help="a data set, or a part of one")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    taken_on = machine("cpu")  # before the measurement makes a load of its own
    torch.set_num_threads(1)
    setting = Setting(given.data, "lenet", 15, epochs=1)
    usual = processes.WORTH_SECONDS
    by_rule = setting.simulation(workers=2)
    whole_round(by_rule)  # learns what is worth sharing out
    rates = in_turns(
        {
            "one process": timed_round(setting.simulation(), usual),
            "two, always shared out": timed_round(setting.simulation(workers=2), 0),
            "two, by the rule": timed_round(by_rule, usual),
        },
        given.repeats,
    )
    for name, rate in rates.items():
        print(f"{name:<24} {rate:>7,.0f} images/s", flush=True)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        images = int(by_rule.federation.train_sizes.sum())
        numbers = {
            **setting._asdict(), "repeats": given.repeats, "images_a_round": images, "worth_seconds": usual,
            "images_per_second": rates, **taken_on,
        }  # fmt: skip
        given.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
