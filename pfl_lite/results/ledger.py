"""The ledger: a small JSON file for every run, every attempt that diverged and every search, in `data/results/<experiment>/`.

Tables, claims and figures read these files and change none; a large one is kept as gzip packs it.  A complete run gives way to
nothing but the same run for more rounds, a damaged file is named, and set aside where a new entry takes its place, and every file
is written in one step: a killed sweep leaves no halves.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from pfl_lite import schema
from pfl_lite.atomic_files import plain, read_json, told, write_bytes
from pfl_lite.config import MACHINE_KEYS, STORED, with_defaults
from pfl_lite.engine.history import converged_in
from pfl_lite.errors import InputError
from pfl_lite.papers.experiment import stored_folder
from pfl_lite.papers.statement import Run as Run

_SCORED = {"test_accuracy": schema.each(schema.share)}
_LISTS = {
    "test_loss": schema.each(schema.loss),
    "train_size": schema.each(schema.count),
    "test_size": schema.each(schema.count),
}
_FINAL = schema.fields(_SCORED | _LISTS, rest=lambda _: schema.shares)
_BEFORE = schema.fields(_SCORED, _LISTS, rest=lambda _: schema.shares)
_RUN: dict[str, schema.Rule] = {
    "experiment": schema.text,
    "arm": schema.text,
    "seed": schema.count,
    "method": schema.text,
    "config": STORED,
    "complete": schema.flag,
    "rounds": schema.rounds,
}
_MADE: dict[str, schema.Rule] = {
    "final": schema.nullable(_FINAL),
    "final_before_ft": schema.nullable(_BEFORE),
    "seconds": schema.number(),
    "parameters": schema.size,
    "images_trained": schema.size,
    "images_per_second": schema.number(),
    "majority": schema.each(schema.share),
    "watch": schema.fields(rest=lambda _: schema.fields()),
    "versions": schema.fields(rest=lambda _: schema.text),
    "device": schema.text,
    "threads": schema.count,
}
_TRIED = schema.fields(
    {"settings": schema.fields(rest=lambda _: schema.scalar), "validation_accuracy": schema.number(0, 1)},
    {"rounds": schema.count, "seed": schema.count, "seconds": schema.number(), "diverged": schema.count},
)
KINDS: dict[str, schema.Rule] = {
    "run": schema.fields(_RUN, _MADE),
    "diverged": schema.fields(_RUN | {"attempt": schema.count}, _MADE),
    "search": schema.fields(
        {
            "experiment": schema.text,
            "arm": schema.text,
            "candidates": schema.each(_TRIED),
            "chosen": schema.fields(rest=lambda _: schema.scalar),
        }
    ),
}
ENDS = (".json", ".json.gz")
PACKED = 100_000  # bytes above which an entry is kept compressed, as `.json.gz`
WATCH_DIGITS = 4  # after the point: alpha of 50 clients and ten branches would fill the ledger with digits that are never read


def default_folder() -> Path:
    """Where the ledger lies: $PFL_LITE_RESULTS, else the repository's data/results, else ./data/results."""
    return Path(os.environ.get("PFL_LITE_RESULTS") or stored_folder() / "results")


def fault(entry: Any) -> str | None:
    """Say in a few words what is wrong with a ledger entry; None if nothing is."""
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        return 'it is not an object whose "kind" is "run", "diverged" or "search"'
    if problem := KINDS[kind](entry):
        return f"{'its ' if problem.startswith('/') else 'it'}{problem.removeprefix('/')}"
    if kind == "search":
        known = [one["settings"] for one in entry["candidates"]]
        return None if entry["chosen"] in known else '"chosen" is none of the candidates'
    if not entry["complete"]:
        return None
    finals = [final for name in ("final", "final_before_ft") if (final := entry.get(name)) is not None]
    if not entry["rounds"] or not entry.get("final"):
        return 'it is called complete but has no rounds or no "final"'
    clients = len(entry["final"]["test_size"])
    if any(
        len(each) != clients or not each for one in finals for each in one.values() if isinstance(each, list)
    ):
        return '"final" does not hold lists with one number a client'
    untold = any(
        a is None and n
        for one in finals
        for a, n in zip(one["test_accuracy"], entry["final"]["test_size"], strict=True)
    )
    return '"final" lacks the accuracy of a client with test images' if untold else None


def reached(run: Run) -> float:
    """How many rounds a run has played: infinitely many where it converged, as no more would be added."""
    return math.inf if converged_in(run["rounds"]) is not None else float(run["rounds"][-1]["round"])


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """All settings of a configuration, those of its method among them, with those that came later at their defaults."""
    filled = with_defaults(plain(config))
    return {key: value for key, value in filled.items() if key != "method"} | filled["method"]


def unlike(*configs: dict[str, Any]) -> list[str]:
    """In which settings some configurations differ, those of the machine left out."""
    first, *others = map(flat, configs)
    names = sorted({*first}.union(*others) - MACHINE_KEYS)
    return [name for name in names if any(other.get(name) != first.get(name) for other in others)]


class Ledger:
    """The runs and searches in one folder; see the module for its promises."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = default_folder() if folder is None else Path(folder)
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise InputError(f"{self.folder} cannot be read or written: it is not a folder")
        self._read: dict[Path, tuple[object, Run | None]] = {}
        self._named: set[Path] = set()  # damaged files that a warning has named

    def path(self, experiment: str, arm: str, seed: int | None, attempt: int | None = None) -> Path:
        """The file of a run, of an `attempt` at it that diverged (from 1 on), or of the arm's search if `seed` is None.

        Raises:
            InputError: odd names.
        """
        for name in (experiment, arm):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
                raise InputError(f"'{name}' cannot be a file's name: use letters, digits and - _ . + only")
        name = f"search-{arm}" if seed is None else f"{arm}-seed{seed}"
        path = self.folder / experiment / f"{name}{'' if attempt is None else f'-diverged{attempt}'}.json"
        packed = path.with_suffix(".json.gz")
        return packed if os.path.lexists(packed) else path

    def _path_of(self, entry: Run) -> Path:
        return self.path(entry["experiment"], entry["arm"], entry.get("seed"), entry.get("attempt"))

    def examine(self, path: Path) -> tuple[Run | None, str | None]:
        """Read one file and change nothing: the entry, and what is wrong with the file; both None if it is not there."""
        try:
            entry = read_json(path)
        except FileNotFoundError:
            return (None, "it is a link to nothing") if path.is_symlink() else (None, None)
        except OSError as error:
            return None, f"it cannot be read ({error.strerror})"
        except ValueError as error:  # of JSON or of the encoding
            return None, f"it is not valid JSON ({error})"
        problem = fault(entry)
        try:
            if problem is None and (where := self._path_of(entry)) != path:
                packed = where == path.with_suffix(".json.gz")
                problem = f"{where.name} counts: keep one" if packed else "its name and its contents disagree"
        except InputError as error:
            problem = str(error)
        return (entry if problem is None else None), problem

    def _load(self, path: Path) -> Run | None:
        """Read one file and change nothing; a damaged one is named in a warning, once, and not used."""
        if not os.path.lexists(path):
            return None
        there = path.lstat()
        state = there.st_mtime_ns, there.st_size, there.st_ino
        if path in self._read and self._read[path][0] == state:
            return self._read[path][1]  # a sweep asks for everything after each of its runs
        entry, problem = self.examine(path)
        if problem is None:
            self._read[path] = state, entry
            return entry
        if path not in self._named:
            self._named.add(path)
            warnings.warn(f"ledger file {path} is damaged and not used: {problem}", stacklevel=4)
        return None

    def _set_aside(self, path: Path) -> None:
        """Move a damaged file out of the way of the entry that is to be written in its place."""
        if self._load(path) is not None or not os.path.lexists(path):
            return
        aside, number = path.with_name(f"{path.name}.damaged"), 1
        while aside.exists():
            number += 1
            aside = path.with_name(f"{path.name}.damaged-{number}")
        with told(path):
            path.rename(aside)
        warnings.warn(f"ledger file {path} was damaged: it is set aside as {aside.name}", stacklevel=3)

    def _entries(self, experiment: str, kind: str, stem: str = "*") -> list[Run]:
        folder = self.path(experiment, "any", 0).parent
        files = sorted(file for end in ENDS for file in folder.glob(f"{stem}{end}") if file.name[0] != ".")
        found = [entry for entry in map(self._load, files) if entry is not None and entry["kind"] == kind]
        return sorted(found, key=lambda entry: (entry["arm"], entry.get("seed", 0), entry.get("attempt", 0)))

    def read(self, experiment: str, *, unfinished: bool = False) -> list[Run]:
        """The complete runs of an experiment (with `unfinished`, only the others), by arm and seed."""
        return [run for run in self._entries(experiment, "run") if bool(run["complete"]) is not unfinished]

    def searches(self, experiment: str) -> list[Run]:
        """The searches of an experiment, by arm: their candidates on validation data and what was chosen."""
        return self._entries(experiment, "search")

    def diverged(self, experiment: str, arm: str = "*", seed: int | None = None) -> list[Run]:
        """The attempts (at one arm's run with one seed) that diverged and after which another candidate took over, in order."""
        stem = f"{arm}-seed{'*' if seed is None else seed}-diverged*"
        return self._entries(experiment, "diverged", stem)

    def get(self, experiment: str, arm: str, seed: int | None) -> Run | None:
        """One run, complete or not (or the arm's search if `seed` is None); None if the ledger has none."""
        return self._load(self.path(experiment, arm, seed))

    def has(self, experiment: str, arm: str, seed: int, rounds: int = 0) -> bool:
        """Whether a complete run of at least `rounds` rounds, or one that converged before, is there."""
        run = self.get(experiment, arm, seed)
        return run is not None and bool(run["complete"]) and reached(run) >= rounds

    def check(self, entry: Run) -> bool:
        """Whether `entry` is new: False if already there; raises InputError if it would replace another.

        A run needs only kind, experiment, arm, seed and config here, so that a sweep asks before it trains.
        """
        path = self._path_of(entry)
        there = self._load(path)
        if there is None:
            return True
        if entry["kind"] == "search":
            new = plain(entry["candidates"])
            if lost := [one for one in there["candidates"] if one not in new]:
                raise InputError(
                    f"{path} holds {len(lost)} searched candidates that the new search lacks: "
                    "carry them over, or move the file away first"
                )
            return plain(entry) != there
        if entry["kind"] == "diverged" and plain(entry) != there:
            raise InputError(f"{path} already holds an attempt that diverged: move it away first")
        if not there["complete"]:
            return entry["kind"] == "run"
        old, new = with_defaults(there["config"]), with_defaults(plain(entry["config"]))
        if not entry.get("complete", True):
            return False
        free = MACHINE_KEYS | {"rounds"}  # more rounds of the same run take the place of fewer
        if changed := sorted(key for key in {*old, *new} - free if old.get(key) != new.get(key)):
            raise InputError(
                f"{path} already holds a complete run with another configuration "
                f"(other: {', '.join(changed)}): move it away first, or use another folder"
            )
        return int(new["rounds"]) > int(old["rounds"])

    def write(self, entry: Run) -> Path:
        """Write a run or a search in one step, return its path; raises InputError rather than overwrite."""
        entry = plain(entry)
        if problem := fault(entry):
            raise InputError(f"this entry cannot go into the ledger: {problem}")
        path = self._path_of(entry)
        if not self.check(entry):
            return path
        if "watch" in entry:
            watched = json.dumps(entry["watch"])
            entry["watch"] = json.loads(
                watched, parse_float=lambda digits: round(float(digits), WATCH_DIGITS)
            )
        self._set_aside(path)
        text = json.dumps(entry, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        target = path.with_suffix(".json.gz") if len(text) > PACKED and path.suffix == ".json" else path
        write_bytes(target, gzip.compress(text, mtime=0) if target.suffix == ".gz" else text)
        if target != path:
            path.unlink(missing_ok=True)  # the same run for fewer rounds
        return target

    def frame(self, experiment: str) -> pd.DataFrame:
        """Per-client numbers of the complete runs, tidy: one row a run, round, client and quantity.

        Quantities: `personal` and `tuned` accuracy at every round that kept them; at the last round also
        the lists of `final` (test_accuracy, train_size, ...), and before tuning `before_ft_<name>`.
        """
        rows: list[tuple[Any, ...]] = []
        for run in self.read(experiment):
            last, before = run["rounds"][-1]["round"], run.get("final_before_ft") or {}
            lists = [
                (r["round"], *kept) for r in run["rounds"] for kept in (r.get("per_client") or {}).items()
            ]
            lists += [(last, key, values) for key, values in run["final"].items()]
            lists += [(last, f"before_ft_{key}", values) for key, values in before.items()]
            head = (run["experiment"], run["arm"], run["method"], run["seed"])
            rows += [
                (*head, at, client, key, value)
                for at, key, values in lists
                for client, value in enumerate(values if isinstance(values, list) else [])
            ]
        columns = ["experiment", "arm", "method", "seed", "round", "client", "quantity", "value"]
        return pd.DataFrame(rows, columns=columns).astype({"value": float})
