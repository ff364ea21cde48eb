"""Rows of the ledger that were trained a second time: does the same command give the same numbers?

    python benchmarks/again.py OTHER_LEDGER --json data/bench/again.json

OTHER_LEDGER is a copy of experiments of `data/results` in which some rows were deleted and trained anew by
`pfl-lite reproduce EXPERIMENT --methods ROW --seeds SEED --ledger OTHER_LEDGER`. Rows that are copies are left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from engines import machine

from pfl_lite.results.ledger import Ledger


def looks(run: dict[str, Any]) -> dict[int, float]:
    """The clients' mean accuracy in percent by scored round, after fine-tuning where a run has any."""
    name = "tuned_accuracy" if run["config"]["ft_epochs"] else "personal_accuracy"
    return {one["round"]: 100 * one[name] for one in run["rounds"] if one.get(name) is not None}


def beside(first: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    """Two runs of one row: what is equal, and how far apart they are."""
    pair = [first, again]
    curves = [looks(run) for run in pair]
    clients = zip(*(run["final"]["test_accuracy"] for run in pair), strict=True)
    return {name: first[name] for name in ("experiment", "arm", "seed")} | {
        "rounds": [run["rounds"][-1]["round"] for run in pair],
        **{what: [run.get(what) for run in pair] for what in ("device", "threads", "versions", "code")},
        "loss before training": [run["rounds"][0]["personal_loss"] for run in pair],
        "curves": {
            t: [round(curve[t], 3) for curve in curves] for t in sorted(curves[0].keys() & curves[1].keys())
        },
        "largest gap of a client": max(100 * abs(a - b) for a, b in clients if None not in (a, b)),
        "ends": [
            100 * sum(kept := [a for a in run["final"]["test_accuracy"] if a is not None]) / len(kept)
            for run in pair
        ],
    }


def main() -> None:
    """Compare, print, and write a JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for name in sorted(folder.name for folder in given.ledger.iterdir() if not folder.name.startswith(".")):
        for again in Ledger(given.ledger).read(name):
            first = Ledger().get(name, again["arm"], again["seed"])
            if first is not None and first["seconds"] != again["seconds"]:
                rows.append(beside(first, again))
                print({key: value for key, value in rows[-1].items() if key != "curves"}, flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"rows": rows, **machine("cpu")}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
