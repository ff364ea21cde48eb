"""Train the first rounds of stored results again, and compare: what a workflow, or a maintainer, does with a submitted row.

    python tools/retrain.py data/results/when-concept-shift/fedavg-seed0.json --rounds 4

A run is trained from the settings that its file names, up to the first scored round from --rounds on. Who took part and how many
floats travelled must be equal, and every accuracy within --within, as a mean and, on average, client by client: on the same
versions and machine all are equal.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pfl_lite.atomic_files import plain
from pfl_lite.config import make_config, with_defaults
from pfl_lite.engine.simulation import Simulation
from pfl_lite.errors import InputError
from pfl_lite.results.ledger import Ledger

EQUAL = ("round", "clients", "floats_down", "floats_up")


def again(entry: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    """The history of an entry of the ledger, trained anew on this machine's processor up to the last round that is compared."""
    entry = entry | {"config": with_defaults(entry["config"])}  # what came later is as it was before
    config = {name: value for name, value in entry["config"].items() if name != "method"}
    own = dict(entry["config"]["method"])
    simulation = Simulation(make_config(own.pop("name"), **own, **config | {"device": "cpu"}))
    scored = [
        one["round"] for one in entry["rounds"] if "personal_accuracy" in one and one["round"] >= rounds
    ]
    until = scored[0] if scored else entry["rounds"][-1]["round"]
    simulation.run(stop=lambda: simulation.round >= until, progress=False)
    return list(plain(simulation.history.compact()))


def differences(
    stored: list[dict[str, Any]], found: list[dict[str, Any]], within: float
) -> tuple[list[str], float]:
    """What cannot be the same training, and the largest gap of an accuracy."""
    wrong, largest = [], 0.0
    for one, other in zip(stored, found, strict=False):
        wrong += [f"round {one['round']}: other {name}" for name in EQUAL if one.get(name) != other.get(name)]
        for name in sorted(one.keys() | other.keys()):
            if name.endswith("accuracy"):
                gap = abs((one.get(name) or 0) - (other.get(name) or 0))
                largest = max(largest, gap)
                if gap > within:
                    wrong.append(
                        f"round {one['round']}: {name} is {one.get(name)}, trained again {other.get(name)}"
                    )
        mine, theirs = (each.get("per_client") or {} for each in (one, other))
        for name in sorted(mine.keys() | theirs.keys()):
            a, b = ([share or 0 for share in each.get(name) or []] for each in (mine, theirs))
            gap = (
                sum(abs(x - y) for x, y in zip(a, b, strict=True)) / max(1, len(a)) if len(a) == len(b) else 1
            )
            if gap > within:
                wrong.append(
                    f"round {one['round']}: {name} accuracies of the clients differ by {gap:.2g} on average"
                )
    return wrong, largest


def main() -> int:
    """Compare the files that are named; exit code 1 if one cannot be repeated, 2 if one is no result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="results, PATH/EXPERIMENT/NAME.json")
    parser.add_argument("--rounds", type=int, default=1, help="train at least this many [1]")
    parser.add_argument(
        "--within", type=float, default=0.02, help="the largest gap of a mean accuracy [0.02]"
    )
    given = parser.parse_args()
    failed = False
    for path in given.files:
        try:
            entry, problem = Ledger(path.resolve().parents[1]).examine(path.resolve())
            if entry is None:
                raise InputError(problem or "there is no such file")
            if entry["kind"] != "run":
                print(f"{path}: a {entry['kind']} has no history to compare")
                continue
            print(f"{path}: training its first rounds again", file=sys.stderr, flush=True)
            found = again(entry, given.rounds)
        except InputError as error:
            print(f"retrain: {path}: {error}", file=sys.stderr)
            return 2
        wrong, largest = differences(entry["rounds"], found, given.within)
        told = "; ".join(wrong[:3]) or f"repeated, the largest gap of a mean accuracy is {largest:.2g}"
        print(f"{path}, rounds 0 to {found[-1]['round']}: {told}", flush=True)
        failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
