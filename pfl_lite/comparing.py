"""Several methods on several seeds: which one is ahead, by how much, and how sure that is."""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from itertools import product
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pfl_lite.atomic_files import check_writable, locked, write_json
from pfl_lite.config import make_config
from pfl_lite.data.federation import Federation
from pfl_lite.engine.simulation import Simulation, prepared, sign_of_life
from pfl_lite.errors import InputError
from pfl_lite.methods import Method
from pfl_lite.papers.statement import by_unit, estimate

OF_ALL = ("data", "partition", "clients", "split", "val_fraction", "seed", "federation", "workers", "unseen")
"""What no row has for itself: a client of one method must be the same client of another."""
LONGEST = 200  # letters of a row's name in a file's name
MOST_SEEDS = 1_000
_Files = dict[tuple[str, int], tuple[Path, Path]]
"""Row and seed -> files of a run's report and checkpoint."""


class Row(NamedTuple):
    """A row of the table: its name, its method, and the settings that this row alone has."""

    name: str
    method: str | Method
    own: dict[str, Any]


def compare(
    methods: Iterable[str | Method] | Mapping[str, Mapping[str, Any]],
    seeds: int | Iterable[int] = 3,
    *,
    federation: Federation | None = None,
    workers: int = 1,
    on: str = "test",
    keep: Path | str | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Run each method with each seed, and compare the others with the first one client by client.

    `compare(["local", "fedavg", "ditto"], seeds=3, data="digits", partition="dirichlet:0.4", epochs=5)`. A line on stderr tells
    of every run that has ended. Page: *The command line*.

    Args:
        methods: names, or methods with their settings such as `Ditto(lam=0.1)`; or a dict from the name of a row to settings that
            this row alone has, such as `{"fedavg": {}, "pfl_ft": {"ft_epochs": 4}}`. If that name is no method's, the setting
            `method` says which it is: `{"weak tie": {"method": "ditto", "lam": 0.01}}`.
        seeds: how many, counted from 0, or which ones. Each seed deals the images anew and starts from other models.
        federation: the clients, as for `run`; they are then the same with every seed, and only the training differs.
        workers: processes that share out the clients of a round.
        on: the images that all numbers are of: `test`, or `val` to choose settings by, such as each method's learning rate.
        keep: a folder for each run's report (`fedavg-seed0.json`, ...) and checkpoint, from which the same call goes on.
        settings: those of all runs, as for `run`.

    Returns:
        A row per method, in the order in which they are given, so that the first row is what the others are compared with.
        `accuracy` is in percent: the mean over seeds and clients on the clients' own images, after fine-tuning where a run
        has `ft_epochs` (for tables of numbers it is `r2`, times 100). Clients that are held out (`unseen`) do not count.
        `deviation` is the standard deviation of the seeds' means, NaN with one seed.
        `difference` is the mean of a row minus the first row in points, paired by seed and client, over the clients that have
        such images with every seed. `low` and `high` are its 95% t interval over seeds and clients. All three are NaN in the
        first row. A single seed shows only a part of its error, so its interval is widened. Under `attrs` are the learning
        curves, before any fine-tuning, and what each client ends with, as shares: `plots.plot_curves` and `plots.plot_clients`
        draw `pd.DataFrame(table.attrs["curves"])` and `["clients"]`.

    Raises:
        InputError: no method or seed, one that is there twice, or a setting that does not exist, cannot be, or must be the same
            in all rows, no client to pair the rows by, or a folder `keep` that has files of other runs, or that another call
            trains into; raised before any run starts.
    """
    rows, numbers = _rows(methods), _seeds(seeds)
    if "seed" in settings:
        raise InputError(f"compare takes seeds, not seed: write seeds=[{settings['seed']}]")
    if on not in ("test", "val"):
        raise InputError(f"on must be test or val, not {on!r}")
    for seed in numbers:
        make_config("local", seed=seed)
    shared = settings | {"federation": federation, "workers": workers}
    with locked(keep, inside=True):
        files = _checked(rows, numbers, on, keep, shared)
        return _trained(rows, numbers, on, files, shared)


def _checked(
    rows: list[Row], seeds: list[int], on: str, keep: Path | str | None, shared: dict[str, Any]
) -> _Files:
    """The files of each run, none if nothing is kept; raises an InputError for what cannot be, before any run starts."""
    images = {"test": "test", "val": "validation"}[on]
    with warnings.catch_warnings(action="ignore"):  # the runs themselves give their advice
        for row in rows:
            sim = prepared(row.method, **shared | row.own, seed=seeds[0])
            if not any(getattr(sim.history, f"{on}_sizes")):
                raise InputError(f"no client has {images} images: there is nothing to compare on")
        if len(rows) > 1:  # clients and newcomers are the same for all rows
            there = [_there(sim, on)]
            there += [_there(prepared(row.method, **shared | row.own, seed=seed), on) for seed in seeds[1:]]
            if not _paired(np.array(there), sim.config.as_dict()).any():
                which = ", ".join(map(str, seeds))
                raise InputError(
                    f"no client has {images} images and takes part with each of the seeds {which}: "
                    "there is nothing to pair the methods by"
                )
        files = {} if keep is None else _files(keep, rows, seeds)
        for row, seed in product(rows, seeds) if files else ():
            report_file, checkpoint = files[row.name, seed]
            if checkpoint.exists():
                prepared(row.method, **shared | row.own, seed=seed).load(checkpoint)
            elif report_file.exists():
                raise InputError(
                    f"{report_file} is there without its checkpoint: delete it, or keep these runs in another folder"
                )
            check_writable(report_file)
    return files


def _trained(
    rows: list[Row], seeds: list[int], on: str, files: _Files, shared: dict[str, Any]
) -> pd.DataFrame:
    """The table, from runs that are trained one after another."""
    first: np.ndarray | None = None
    table, curves, clients = [], [], []
    for at, row in enumerate(rows):
        scores, held = [], []  # of all clients, one a seed; whether they have such images and took part
        for seed in seeds:
            started = time.perf_counter()
            kept = files.get((row.name, seed))
            sim = prepared(row.method, **shared | row.own, seed=seed)
            with locked(kept and kept[1]):
                sim.run(checkpoint=kept and kept[1], stop=sign_of_life(sim, f"{row.name} seed {seed}: "))
            metric, report = sim.history.metric, sim.report()
            points = zip(*sim.history.curve(f"{'val_' * (on == 'val')}personal_{metric}"), strict=True)
            curves += [{"method": row.name, "seed": seed, "round": n, "value": value} for n, value in points]
            if kept:
                write_json(kept[0], report)
            final = report["final"][f"{on}_{metric}"]
            scores.append(100 * np.array(final, dtype=float))
            held.append(_there(sim, on))
            of = {"method": row.name, "seed": seed}
            clients += [of | {"client": i, "value": value} for i, value in enumerate(final)]
            took, ended = time.perf_counter() - started, at * len(seeds) + len(scores)
            print(
                f"{row.name} seed {seed}: {_mean(scores[-1][held[-1]]):.2f}% after {took:.1f} s, "
                f"run {ended} of {len(rows) * len(seeds)}",
                file=sys.stderr,
                flush=True,
            )
        own, there = np.array(scores), np.array(held)  # [seeds, clients]
        means = [_mean(own[i][there[i]]) for i in range(len(seeds))]
        found = {metric: _mean(own[there]), "deviation": pd.Series(means).std()}
        if first is None:
            first = own
        else:
            lead = estimate(by_unit(own - first, report)[:, _paired(there, report["config"])])
            found |= {"difference": lead.value} | dict(zip(("low", "high"), lead.interval, strict=True))
        table.append(found)
    columns = [metric, "deviation", "difference", "low", "high"]
    frame = pd.DataFrame(table, index=pd.Index([row.name for row in rows], name="method"), columns=columns)
    frame.attrs |= {"curves": curves, "clients": clients}
    return frame


def _there(sim: Simulation, on: str) -> np.ndarray:
    """Which clients have such images and take part: newcomers are another question."""
    found = np.array(getattr(sim.history, f"{on}_sizes")) > 0
    found[sim.history.unseen] = False
    return found


def _paired(there: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """Which units (`by_unit`) are there with every seed, from clients that are `there`, [seeds, clients]."""
    return np.isfinite(by_unit(np.where(there, 0.0, np.nan), {"config": config})).all(0)


def _files(keep: Path | str, rows: list[Row], seeds: list[int]) -> _Files:
    files = {}
    for row, seed in product(rows, seeds):
        name = re.sub(r"[^\w.=,-]+", "-", row.name)[:LONGEST]
        stem = f"{keep}/{name}-seed{seed}"
        files[row.name, seed] = Path(f"{stem}.json"), Path(f"{stem}.checkpoint")
    if len({str(report).lower() for report, _ in files.values()}) < len(files):
        raise InputError(
            "two rows would be kept in the same files: give them names that differ in letters or digits"
        )
    return files


def _mean(values: np.ndarray) -> float:
    """Not a number where one of them is none, or where there are none."""
    return float(values.mean()) if values.size else np.nan


def _rows(methods: Iterable[str | Method] | Mapping[str, Mapping[str, Any]]) -> list[Row]:
    if isinstance(methods, str | Method) or not isinstance(methods, Iterable):
        raise InputError(
            "compare takes several methods, e.g. ['local', 'fedavg'], or a dict from names to settings"
        )
    if isinstance(methods, Mapping):
        for name, own in methods.items():
            if not isinstance(own, Mapping):
                raise InputError(
                    f"the settings of '{name}' must be a dict, e.g. {{'ft_epochs': 4}}, not {own!r}"
                )
            if alike := sorted(set(own).intersection(OF_ALL)):
                raise InputError(
                    f"{alike[0]} of '{name}' must be that of all methods: give it to compare itself"
                )
        rows = [
            Row(str(name), own.get("method", name), {key: own[key] for key in own if key != "method"})
            for name, own in methods.items()
        ]
    else:
        rows = [Row(one if isinstance(one, str) else repr(one), one, {}) for one in methods]
    names = [row.name for row in rows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(
            f"{twice[0]} is there twice: give each method once, or a dict with a name for each row"
        )
    if not rows:
        raise InputError("compare needs at least one method")
    return rows


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    which = range(min(int(seeds), MOST_SEEDS + 1)) if isinstance(seeds, Integral) else seeds
    numbers = list(which) if isinstance(which, Iterable) else []
    right = 0 < len(set(numbers)) == len(numbers) <= MOST_SEEDS
    if not right or isinstance(seeds, str | bool):
        raise InputError(
            f"seeds must be a number from 1 to {MOST_SEEDS:,}, or different seeds such as [0, 1, 2], not {seeds!r}"
            + (": seed 0 alone is [0], on the command line `--seeds 0,`" if seeds == 0 else "")
        )
    return numbers
