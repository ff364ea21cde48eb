"""The ledger: a small JSON file for every run, every attempt that diverged and every search, in `data/results/<experiment>/`.

Tables, claims and figures read these files and change none.  A complete run gives way to nothing but the same run for more
rounds, a damaged file is named, and set aside where a new entry takes its place, and every file is written in one step: a killed
sweep leaves no halves.
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout

from pfl_lite.config import MACHINE_KEYS, with_defaults
from pfl_lite.engine.history import converged_in
from pfl_lite.errors import InputError
from pfl_lite.files import atomic_path, plain

Run = dict[str, Any]
RUN_KEYS = ("experiment", "arm", "seed", "method", "config", "complete", "rounds")
KEYS = {
    "run": RUN_KEYS,
    "diverged": (*RUN_KEYS, "attempt"),
    "search": ("experiment", "arm", "candidates", "chosen"),
}
FINAL_KEYS = ("test_accuracy", "test_loss", "train_size", "test_size")
WATCH_DIGITS = (
    4  # after the point: alpha of 50 clients and ten branches would fill the ledger with digits nobody reads
)
FRAME_COLUMNS = ["experiment", "arm", "method", "seed", "round", "client", "quantity", "value"]


def default_folder() -> Path:
    """Where the ledger lies: $PFL_LITE_RESULTS, else the repository's data/results, else ./data/results."""
    if named := os.environ.get("PFL_LITE_RESULTS"):
        return Path(named)
    data = Path(__file__).resolve().parents[2] / "data"
    return data / "results" if (data / "paper_tables.csv").is_file() else Path("data") / "results"


def fault(entry: Any) -> str | None:
    """Say in a few words what is wrong with a ledger entry; None if nothing is."""
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if kind not in KEYS:
        return 'it is not an object whose "kind" is "run", "diverged" or "search"'
    if missing := [key for key in KEYS[kind] if key not in entry]:
        return f"it lacks {', '.join(missing)}"
    if not all(isinstance(entry[key], str) for key in ("experiment", "arm")):
        return '"experiment" or "arm" is not a text'
    if kind == "search":
        tried = entry["candidates"]
        if not isinstance(tried, list) or not all(
            isinstance(one, dict) and "settings" in one for one in tried
        ):
            return '"candidates" is not a list of objects that have "settings"'
        scores = [one.get("validation_accuracy") for one in tried]
        if not all(type(score) in (int, float) and math.isfinite(score) for score in scores):
            return 'a candidate has no finite "validation_accuracy"'
        known = [one["settings"] for one in tried]
        return None if entry["chosen"] in known else '"chosen" is none of the candidates'
    if type(entry["seed"]) is not int or not isinstance(entry["config"], dict):
        return '"seed" is not a whole number or "config" is not an object'
    method = entry["config"].get("method")
    if not isinstance(method, dict) or not isinstance(method.get("name"), str):
        return '"config" does not name its method'
    if not isinstance(entry.get("code", ""), str | dict):  # older runs name every file with a hash
        return '"code" is not a text'
    rounds, final = entry["rounds"], entry.get("final")
    if not isinstance(rounds, list) or not all(isinstance(r, dict) and "round" in r for r in rounds):
        return '"rounds" is not a list of objects that have a "round"'
    if entry["complete"]:
        if not rounds or not isinstance(final, dict):
            return 'it is called complete but has no rounds or no "final"'
        lists = [final.get(key) for key in FINAL_KEYS]
        if not all(isinstance(x, list) and x and len(x) == len(lists[0] or []) for x in lists):
            return '"final" does not hold four lists with one number a client'
    return None


def reached(run: Run) -> float:
    """How many rounds a run has played: infinitely many where it converged, as no more would be added."""
    return math.inf if converged_in(run["rounds"]) is not None else float(run["rounds"][-1]["round"])


def rounded(value: Any) -> Any:
    """Nested dictionaries and lists with their numbers cut to WATCH_DIGITS after the point."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, WATCH_DIGITS) if isinstance(value, float) else value


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """All settings of a configuration, those of its method among them, with those that came later at their defaults."""
    filled = with_defaults(plain(config))
    return {key: value for key, value in filled.items() if key != "method"} | filled["method"]


class Ledger:
    """The runs and searches in one folder; see the module for its promises."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = default_folder() if folder is None else Path(folder)
        self._named: set[Path] = set()  # damaged files that somebody has been told of

    def path(self, experiment: str, arm: str, seed: int | None, attempt: int | None = None) -> Path:
        """The file of a run, of an `attempt` at it that diverged (from 1 on), or of the arm's search if `seed` is None.

        Raises:
            InputError: odd names.
        """
        for name in (experiment, arm):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
                raise InputError(f"'{name}' cannot be a file's name: use letters, digits and - _ . + only")
        name = f"search-{arm}" if seed is None else f"{arm}-seed{seed}"
        return self.folder / experiment / f"{name}{'' if attempt is None else f'-diverged{attempt}'}.json"

    @contextmanager
    def reserved(self, experiment: str) -> Iterator[None]:
        """Let nobody else train for an experiment of this ledger until the block, or this process, ends.

        Raises:
            InputError: somebody does already, or the folder cannot be written.
        """
        path = self.folder / f".{experiment}.lock"
        lock = FileLock(path)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout as error:
            raise InputError(
                f"another call trains for {experiment} into {self.folder}: wait for its end, or name another ledger"
            ) from error
        except OSError as error:
            raise InputError(f"the ledger {self.folder} cannot be written ({error.strerror})") from error
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()  # while it is locked: whoever opened it meanwhile sees that it is gone, and tries again
            lock.release()

    def _path_of(self, entry: Run) -> Path:
        return self.path(entry["experiment"], entry["arm"], entry.get("seed"), entry.get("attempt"))

    def examine(self, path: Path) -> tuple[Run | None, str | None]:
        """Read one file and change nothing: the entry, and what is wrong with the file; both None if it is not there."""
        entry = None
        try:
            entry = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
            problem = fault(entry)
            if problem is None and self._path_of(entry) != path:
                problem = "its name and its contents disagree"
        except FileNotFoundError:
            return None, None
        except ValueError as error:  # JSON, encoding and name errors are all ValueErrors
            problem = f"it is not valid JSON ({error})"
        return entry, problem

    def _load(self, path: Path) -> Run | None:
        """Read one file and change nothing; a damaged one is named in a warning, once, and not used."""
        entry, problem = self.examine(path)
        if problem is None:
            return entry
        if path not in self._named:
            self._named.add(path)
            warnings.warn(f"ledger file {path} is damaged and not used: {problem}", stacklevel=4)
        return None

    def _set_aside(self, path: Path) -> None:
        """Move a damaged file out of the way of the entry that is to be written in its place."""
        if self.examine(path)[1] is None:
            return
        aside, number = path.with_name(f"{path.name}.damaged"), 1
        while aside.exists():
            number += 1
            aside = path.with_name(f"{path.name}.damaged-{number}")
        path.rename(aside)
        warnings.warn(f"ledger file {path} was damaged: it is set aside as {aside.name}", stacklevel=3)

    def _entries(self, experiment: str, kind: str) -> list[Run]:
        folder = self.path(experiment, "any", 0).parent
        files = sorted(file for file in folder.glob("*.json") if not file.name.startswith("."))
        found = [entry for entry in map(self._load, files) if entry is not None and entry["kind"] == kind]
        return sorted(found, key=lambda entry: (entry["arm"], entry.get("seed", 0)))

    def read(self, experiment: str, *, unfinished: bool = False) -> list[Run]:
        """The complete runs of an experiment (with `unfinished`, only the others), by arm and seed."""
        return [run for run in self._entries(experiment, "run") if bool(run["complete"]) is not unfinished]

    def searches(self, experiment: str) -> list[Run]:
        """The searches of an experiment, by arm: their candidates on validation data and what was chosen."""
        return self._entries(experiment, "search")

    def diverged(self, experiment: str, arm: str = "*", seed: int | None = None) -> list[Run]:
        """The attempts (at one arm's run with one seed) that diverged and after which another candidate took over, in order."""
        folder = self.path(experiment, "any", 0).parent
        files = folder.glob(f"{arm}-seed{'*' if seed is None else seed}-diverged*.json")
        found = [entry for entry in map(self._load, sorted(files)) if entry is not None]
        return sorted(found, key=lambda entry: (entry["arm"], entry["seed"], entry["attempt"]))

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
            entry["watch"] = rounded(entry["watch"])
        text = json.dumps(entry, allow_nan=False, separators=(",", ":")) + "\n"
        self._set_aside(path)
        with atomic_path(path) as part:
            part.write_text(text, encoding="utf-8")
        return path

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
        return pd.DataFrame(rows, columns=FRAME_COLUMNS).astype({"value": float})

    def curves(self, experiment: str) -> pd.DataFrame:
        """Every number kept once a round (means over clients, floats sent), as tidy as `frame`."""
        rows = [
            (run["experiment"], run["arm"], run["method"], run["seed"], r["round"], key, value)
            for run in self.read(experiment)
            for r in run["rounds"]
            for key, value in r.items()
            if key != "round" and type(value) in (int, float)
        ]
        columns = [name for name in FRAME_COLUMNS if name != "client"]
        return pd.DataFrame(rows, columns=columns).astype({"value": float})

    def budgets(self, experiment: str, seeds: Sequence[int] | None = None) -> pd.DataFrame:
        """What every arm was given: seeds (all, or these alone), rounds (fewest), local epochs and searched candidates."""
        tried = {search["arm"]: len(search["candidates"]) for search in self.searches(experiment)}
        rows = [
            (run["arm"], run["seed"], run["rounds"][-1]["round"], run["config"].get("epochs"))
            for run in self.read(experiment)
            if seeds is None or run["seed"] in seeds
        ]
        runs = pd.DataFrame(rows, columns=["arm", "seeds", "rounds", "epochs"])
        given = runs.groupby("arm").agg({"seeds": "count", "rounds": "min", "epochs": "min"})
        return given.assign(candidates=[tried.get(arm, 0) for arm in given.index]).reset_index()
