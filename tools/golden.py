"""A record of every number that the package gives, to be compared before and after a change that is to alter none.

    python tools/golden.py OUT_DIR   write the record of this tree (three minutes on one core)
    diff -r A B                      say what differs between two records of the same parts (two empty folders do not)

`--part runs` (or partitions, shown, files) writes that part alone.

A record is a folder of text files, floats in full: the indices of every partition recipe, short float64 runs of every method on
both engines, every table, claim, sentence and figure from the committed ledger, and the keys of what a run writes.
Records are not committed: the last bits of sums differ between processors. Make both on one machine, with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pfl_lite import run
from pfl_lite.cli import app
from pfl_lite.data.images import load
from pfl_lite.data.partition import partition
from pfl_lite.methods import METHODS
from pfl_lite.papers import EXPERIMENTS, GROUPS
from pfl_lite.results.tables import table
from pfl_lite.results.verdicts import checked, claims
from pfl_lite.show.figures import FIGURES, figure

RECIPES = (
    *("iid", "pairs", "classes:2", "dirichlet:0.4", "dirichlet_rounded:0.4", "shares:3:0.3:0.7"),
    *("groups:3:0.4", "blocks:3", "concept:2", "pachinko:0.4:10", "writers", "writers:1"),
)
FIVE: dict[str, Any] = {
    **{"data": "digits", "partition": "dirichlet:0.4", "clients": 5, "seed": 3, "dtype": "float64"},
    **{"rounds": 3, "batch_size": 32, "lr": 0.1, "ft_epochs": 1},
}
OWN: dict[str, dict[str, Any]] = {  # settings with which a short run does what a method is made for
    "cfl": {"warmup": 0, "eps1": 0.7, "eps2": 0.8},
    "fedem": {"ft_epochs": 0},
    "fedfomo": {"models": 3},
    "fedmn": {"blocks": "1x3x3", "gate": "soft", "lr": 0.5},
    "pfedmb": {"model": "small_cnn"},
    "pfl_moe": {"model": "small_cnn"},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "unseen": {"unseen": 1, "participation": 0.5, "momentum": 0.5, "weight_decay": 0.01},
    "sgd": {"ft_mode": "plain_sgd", "ft_lr": 0.02, "ft_every": 2},
}
ONE_BY_ONE: dict[str, dict[str, Any]] = {  # of what a few methods suffice to show
    "fedavg-crops": {"augment": "crop_flip", "model": "small_cnn"},
    "fedavg-workers": {"workers": 2, "participation": 0.6, "rounds": 2},
    "fedavg-batches": {"engine": "vmap", "clients_per_batch": 2, "model": "small_cnn"},
    "fedrep-whole": {"whole_test": True, "split": "published"},
    "pfedmb-crops": {"engine": "vmap", "augment": "crop_flip", "model": "small_cnn", "rounds": 1},
    "fedmn-sequential": {"schedule": "sequential", "blocks": "1x2x2", "rounds": 2},
    "pfl_mf-float32": {"dtype": "float32", "participation": 0.6},
}
PARTS = ["partitions", "shown", "files", "runs"]
VARYING = {"seconds", "images_per_second", "versions", "code", "device"}


def digest(tensors: dict[str, Any]) -> str:
    """sha256 of the bits of named arrays or tensors."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name]
        array = array.numpy() if hasattr(array, "detach") else array
        found.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def partitions() -> str:
    """One line a recipe, data set and seed."""
    lines = []
    for data in ("digits", "glyphs10"):
        images = load(data)
        for recipe in RECIPES:
            for seed in range(3):
                try:
                    clients = partition(images, recipe, 6, seed)
                except ValueError as error:
                    said = type(error).__name__
                else:
                    parts = {
                        f"{kind}/{i}": getattr(client, kind)
                        for i, client in enumerate(clients)
                        for kind in ("train", "val", "test", "relabel")
                        if getattr(client, kind) is not None
                    }
                    said = digest(parts) + f" {[client.group for client in clients]}"
                lines.append(f"{data},{recipe},{seed},{said}")
    return "\n".join(lines) + "\n"


def run_of(method: str, settings: dict[str, Any]) -> str:
    """The history of a run with the bits of its models; an error's kind where such a run cannot be."""
    try:
        simulation = run(method, **settings)
    except ValueError as error:
        return f"{type(error).__name__}\n"
    record = {
        "server": digest(simulation.server),
        "clients": digest(simulation.clients),
        "scored": digest(simulation.scored_models()),
        "personal": digest(simulation.personal_models()),
        "state": digest(simulation.state()),
        "images_trained": simulation.map.images_trained,
        "sums": {name: repr(float(t.double().sum())) for name, t in simulation.scored_models().items()},
        "watch": simulation.history.watch,
        "rounds": simulation.history.rounds,
    }
    return json.dumps(record, indent=1) + "\n"


def written_by_a_run() -> dict[str, str]:
    """Keys and values of a run's JSON (clock, machine and code apart), and the arrays that `--save` writes."""
    found = {}
    for method in ("fedavg", "pfedmb"):
        simulation = run(method, **(FIVE | {"rounds": 2, "unseen": 1, "whole_test": True}))
        report = simulation.report()
        report |= {key: sorted(report[key]) if key == "versions" else "-" for key in VARYING & report.keys()}
        found[f"json-{method}.txt"] = json.dumps(report, indent=1) + "\n"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "models.npz"
            simulation.save_models(path)
            with np.load(path) as arrays:
                lines = [f"{name} {arrays[name].dtype} {arrays[name].shape}" for name in arrays.files]
        found[f"save-{method}.txt"] = "\n".join(lines) + "\n"
    return found


def told(*arguments: str) -> str:
    """What the command prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        app(list(arguments), standalone_mode=False)
    return said.getvalue()


def framed(frame: Any) -> str:
    """A data frame with its floats in full, then its title and notes."""
    attributes = [f"{key}: {frame.attrs[key]}" for key in sorted(frame.attrs)]
    return "\n".join([frame.to_csv(index=False), *attributes]) + "\n"


def shown() -> dict[str, str]:
    """Tables, figures, claims and sentences from the committed ledger."""
    found = {f"frames/table-{name}.csv": framed(table(name)) for name in EXPERIMENTS}
    found |= {f"frames/figure-{name}.csv": framed(figure(name)) for name in FIGURES}
    columns = [
        "id", "experiment", "text", "statistic", "value", "se", "interval", "threshold", "verdict", "seeds", "note",
    ]  # fmt: skip
    found["frames/claims.csv"] = framed(pd.DataFrame(claims())[columns])
    found["frames/sentences.csv"] = framed(checked())
    for name in {**EXPERIMENTS, **GROUPS}:
        for form in ("text", "markdown", "csv"):
            found[f"printed/{name}-{form}.txt"] = told("table", name, "--format", form)
    return found | {"printed/claims.txt": told("claims")}


def record(out: Path, parts: list[str]) -> None:
    """Write the record of this tree, or some parts of it."""

    def write(name: str, text: str) -> None:
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    warnings.simplefilter("ignore")
    if "partitions" in parts:
        write("partitions.csv", partitions())
    for part, made in (("shown", shown), ("files", written_by_a_run)):
        for name, text in made().items() if part in parts else ():
            write(name, text)
    if "runs" not in parts:
        return
    for method in METHODS:
        for variant, settings in VARIANTS.items():
            for engine in ("loop", "vmap"):
                given = FIVE | OWN.get(method, {}) | settings | {"engine": engine}
                write(f"runs/{method}-{variant}-{engine}.txt", run_of(method, given))
    for name, settings in ONE_BY_ONE.items():
        write(f"runs/{name}.txt", run_of(name.split("-")[0], FIVE | settings))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", action="append", choices=PARTS)
    asked = parser.parse_args()
    record(asked.folder, asked.part or PARTS)
