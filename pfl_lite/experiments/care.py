"""Care of the ledger: is every file sound, which cells are empty, what would filling them cost?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pfl_lite.config import with_defaults
from pfl_lite.data.images import datasets
from pfl_lite.experiments.ledger import MACHINE_KEYS, Ledger, Run, flat
from pfl_lite.experiments.protocols import (
    BUDGETS,
    DEFAULT_BUDGET,
    EXPERIMENTS,
    Arm,
    Experiment,
    get_experiment,
    members,
)
from pfl_lite.experiments.sweep import Sweep
from pfl_lite.methods import METHODS

LARGEST = 20_000_000  # bytes of a ledger that a repository can carry
FEDEM_TRAINS = 0.8  # share of the merged images that split `fedem` trains on


@dataclass
class Findings:
    """What a look through a ledger found: `faults` must be mended, `notes` are good to know."""

    files: int = 0
    bytes: int = 0
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(ledger: Ledger) -> Findings:
    """Look through every file of a ledger and change none.

    Faults are files that break their schema or were set aside, two files with one run, results (and attempts that diverged) that
    were trained otherwise than the protocol says or whose settings no whole search chose, and a ledger too large to keep. Such a
    result still counts in tables until it is moved away. Notes are
    experiments that nobody knows, and cells that are empty.
    """
    found = Findings()
    runs: list[tuple[str, Run]] = []
    attempts: list[tuple[str, Run]] = []
    for path in sorted(path for path in ledger.folder.rglob("*.json*") if not hidden(ledger, path)):
        found.files, found.bytes = found.files + 1, found.bytes + path.stat().st_size
        name = path.relative_to(ledger.folder).as_posix()
        if path.suffix != ".json":
            found.faults.append(f"{name}: set aside as damaged: mend it, or move it away")
            continue
        entry, problem = ledger.examine(path)
        if problem is not None:
            found.faults.append(f"{name}: {problem}")
        elif entry is not None and entry["kind"] != "search":
            (runs if entry["kind"] == "run" else attempts).append((name, entry))
    if found.bytes > LARGEST:
        found.faults.append(f"{found.bytes / 1e6:.1f} MB of results: more than {LARGEST / 1e6:.0f} MB")
    found.faults += [*duplicates(runs), *unchosen(runs, ledger), *unchosen(attempts, ledger)]
    found.notes += [*strangers([run for _, run in runs]), *gaps(ledger)]
    return found


def hidden(ledger: Ledger, path: Path) -> bool:
    """Whether a path lies in a hidden folder of the ledger (checkpoints), or is a hidden file (one that is being written)."""
    return any(part.startswith(".") for part in path.relative_to(ledger.folder).parts)


def duplicates(runs: Sequence[tuple[str, Run]]) -> list[str]:
    """Files that hold the same run: the same configuration, wherever it was computed."""
    first: dict[str, str] = {}
    said = []
    for name, run in runs:
        config = {k: v for k, v in with_defaults(run["config"]).items() if k not in MACHINE_KEYS}
        twin = first.setdefault(json.dumps(config, sort_keys=True), name)
        if twin != name:
            said.append(f"{name}: the same run as {twin}: keep one")
    return said


def unchosen(runs: Sequence[tuple[str, Run]], ledger: Ledger) -> list[str]:
    """Files of results that were not trained as protocol and search say, or whose search lacks candidates.

    Of attempts that diverged the settings that a search tries are not looked at: theirs were the choice of their time.
    """
    known = {one.name: one for one in every_budget()}
    said = []
    for name, run in runs:
        experiment = known.get(run["experiment"])
        arm = next((arm for arm in experiment.arms if arm.key == run["arm"]), None) if experiment else None
        if experiment is None or arm is None:
            continue
        sweep, used = whole(experiment, ledger), flat(run["config"])
        free = {key for one in sweep.source(arm).grid for key in one} if run["kind"] == "diverged" else set()
        chosen = sweep.chosen(arm, run["seed"])
        if chosen is None:
            source = sweep.source(arm)
            tried, grid = len(sweep.scored(source)), len(sweep.grid(source))
            said.append(
                f"{name}: of the candidates that it was chosen from the ledger holds {tried} of {grid}"
            )
        elif other := [key for key, value in chosen.items() if key not in free and used.get(key) != value]:
            said.append(f"{name}: {', '.join(other)} not as the search chose")
        elif other := unlike(run, sweep.config(arm, run["seed"]).as_dict(), free):
            said.append(f"{name}: {', '.join(other)} not as the protocol says")
    return said


def unlike(run: Run, config: dict[str, Any], free: set[str]) -> list[str]:
    """Where a stored run was configured otherwise; the machine, fewer rounds and what is `free` do not count."""
    old, new = flat(run["config"]), flat(config)
    free = free | MACHINE_KEYS | ({"rounds"} if old["rounds"] <= new["rounds"] else set())
    return sorted(key for key in {*old, *new} - free if old.get(key) != new.get(key))


def strangers(runs: Sequence[Run]) -> list[str]:
    """Experiments with runs that no protocol describes."""
    known = {one.name for one in every_budget()}
    count = Counter(run["experiment"] for run in runs if run["experiment"] not in known)
    return [
        f"{name}: {number} runs of an experiment that is not known here" for name, number in count.items()
    ]


def every_budget() -> list[Experiment]:
    """All experiments with all their budgets."""
    some = list(EXPERIMENTS.values())
    return some + [
        one.at(budget) for one in some if one.paper_budget for budget in BUDGETS if budget != one.budget
    ]


def gaps(ledger: Ledger) -> list[str]:
    """How many results of every experiment are missing; of those with the paper's budget, where there is one at least."""
    said = []
    for one in every_budget():
        if one.budget == DEFAULT_BUDGET or (ledger.folder / one.name).is_dir():
            sweep = whole(one, ledger)
            if left := len(sweep.missing()):
                planned = len(sweep.arms) * len(one.seeds)
                said.append(f"{one.name}: {left} of {planned} results are missing")
    return said


def whole(experiment: Experiment, ledger: Ledger) -> Sweep:
    """The sweep of all arms and seeds of an experiment."""
    return Sweep(experiment, experiment.arms, experiment.seeds, None, "cpu", ledger)


class Missing(NamedTuple):
    """A command that would fill a gap: images to train on, core hours if runs with its network tell, what must come before."""

    command: str
    images: float
    hours: float | None
    after: str
    unavailable: bool = False

    @property
    def takes(self) -> str:
        """What the command costs: `1.4 core hours`, or images where nothing tells the pace."""
        return (
            f"{self.images / 1e6:.0f} million images"
            if self.hours is None
            else f"{self.hours:.1f} core hours"
        )


def missing(name: str, ledger: Ledger, budget: str = DEFAULT_BUDGET) -> list[Missing]:
    """The commands that would fill the gaps of an experiment or a group in an order that works.

    The longest comes first among those that can be run at once; then follow those that wait for another, and last those
    of data that the machine of the ledger did not have.

    Raises:
        InputError: an unknown name or budget.
    """
    found = [one for part in members(name) for one in gaps_of(get_experiment(part, budget), ledger)]
    unique = {
        one.command: one for one in found
    }  # an arm may be missing here and in the experiment that makes its runs
    return sorted(
        unique.values(),
        key=lambda one: (one.unavailable, bool(one.after), -(one.hours or 0.0), -one.images),
    )


def gaps_of(experiment: Experiment, ledger: Ledger) -> list[Missing]:
    """The commands that would fill an experiment's gaps; arms that share a training share a command."""
    sweep = whole(experiment, ledger)
    searches: set[str] = set()  # each is counted with the first command that needs it
    gaps: dict[str, list[tuple[Arm, int]]] = {}
    for arm, seed in sweep.missing():
        gaps.setdefault(arm.trained_by or arm.key, []).append((arm, seed))
    # the search behind a result may be of an earlier protocol, and is then to be made again
    for arm in sweep.arms:
        if arm.grid and sweep.searching is experiment and sweep.known(arm) and sweep.chosen(arm) is None:
            gaps.setdefault(arm.key, [])
    seconds = pricing(experiment, ledger) if gaps else None
    found = []
    for training, some in gaps.items():
        methods = ",".join(dict.fromkeys(arm.key for arm, _ in some)) or training
        seeds = sorted({seed for _, seed in some})
        first = experiment.arm(training)
        # arm -> images, of those that take over a training only what they do after it
        work = [
            (arm, nominal(experiment, arm, experiment.rounds_of(arm) * (arm is first))) for arm, _ in some
        ]
        again = {seed for _, seed in some} - {seed for arm, seed in some if arm is first}
        gone = [seed for seed in again if not sweep.checkpoint(first.key, seed).exists()]
        work += [(first, nominal(experiment, first, experiment.rounds_of(first)))] * len(gone)
        source, after = sweep.source(first), ""
        if sweep.chosen(first) is None and sweep.searching is not experiment:
            after = sweep.searching.command(source.key)
        elif sweep.chosen(first) is None and source.key not in searches:
            searches.add(source.key)
            least = max(len(sweep.grid(source)), experiment.candidates[0])  # ladders may ask for more
            left = least - len(sweep.scored(source))
            work.append((source, left * nominal(experiment, source, experiment.search_rounds_of(source))))
        if waits := [seed for seed in seeds if sweep.awaits(first, seed)]:
            after = after or sweep.leader(first).command(str(first.rates_of), ",".join(map(str, waits)))
        command = experiment.command(methods, ",".join(map(str, seeds)))
        images, price = sum(images for _, images in work), hours(work, seconds)
        found.append(Missing(command, images, price, after, experiment.unavailable))
    for arm in experiment.arms:
        if arm.run_of is not None:
            home = get_experiment(arm.run_of, experiment.budget)
            trained = home.arm(str(arm.rates_of))
            there = Sweep(home, [trained], experiment.seeds, None, "cpu", ledger)
            if seeds := [seed for _, seed in there.missing()]:
                command = home.command(trained.key, ",".join(map(str, seeds)))
                images = len(seeds) * nominal(home, trained, home.rounds_of(trained))
                found.append(Missing(command, images, hours([(trained, images)], pricing(home, ledger)), ""))
    return found


def hours(work: Sequence[tuple[Arm, float]], seconds: Callable[[Arm], float | None] | None) -> float | None:
    """Core hours of some images of some arms; None where nothing tells the pace of one of them."""
    each = [None if seconds is None else seconds(arm) for arm, _ in work]
    total = [images * one for (_, images), one in zip(work, each, strict=True) if one is not None]
    return None if None in each else sum(total) / 3600


def nominal(experiment: Experiment, arm: Arm, rounds: int) -> float:
    """Images that FedAvg would train on in an arm's place, with its fine-tuning; several phases or models look at more.

    Where `rounds` is 0 only the fine-tuning is left, which is all that an arm does that takes over another's training.
    """
    settings = experiment.settings(0) | arm.settings
    name, _, part = experiment.data.partition(":")
    card = datasets()[name]
    images = float(card.train_size)
    if settings.get("split") == "fedem":
        images = FEDEM_TRAINS * (card.train_size + card.test_size)
    if experiment.partition == "writers:1":
        images *= min(1.0, experiment.clients / card.writers)
    images *= float(part or 1) * (1 - settings.get("val_fraction", 0.2))
    tuned = settings.get("ft_epochs", METHODS[arm.method].tuning)
    return images * (settings["participation"] * settings["epochs"] * rounds + tuned)


def pricing(experiment: Experiment, ledger: Ledger) -> Callable[[Arm], float | None]:
    """What tells an arm's seconds of one core for one nominal image, from the ledger's complete runs on a CPU.

    That is the median of its own runs, else of the same arm's in other experiments with the same network (and, where there are
    such, the same mini-batches), else of the arms that are trained (or that take over a training) as it is; None where nothing
    tells.
    """
    own = paces(experiment, ledger)
    if {arm.key for arm in experiment.arms if arm.run_of is None} - {key for key, _ in own}:
        network = [
            one for one in EXPERIMENTS.values() if one.model == experiment.model and one is not experiment
        ]
        theirs = {one.name: paces(one, ledger) for one in network}
        alike = [one for one in network if one.batch_size == experiment.batch_size and theirs[one.name]]
        elsewhere: dict[tuple[str, bool], list[float]] = {}
        for one in alike or network:
            for which, pace in theirs[one.name].items():
                elsewhere.setdefault(which, []).append(pace)
        own = {which: median(some) for which, some in elsewhere.items()} | own

    def seconds(arm: Arm) -> float | None:
        heir = arm.trained_by is not None
        kind = [pace for (_, other), pace in own.items() if other == heir]
        return own.get((arm.key, heir), median(kind) if kind else None)

    return seconds


def paces(experiment: Experiment, ledger: Ledger) -> dict[tuple[str, bool], float]:
    """Seconds for one nominal image by arm and whether it takes over a training, of which only what comes after it counts."""
    found: dict[tuple[str, bool], list[float]] = {}
    arms = {arm.key: arm for arm in experiment.arms}
    runs = [run for run in ledger.read(experiment.name) if run["arm"] in arms]
    spent = {(run["arm"], run["seed"]): seconds_of(run) for run in runs}
    for run in runs:
        arm, own = arms[run["arm"]], spent[run["arm"], run["seed"]]
        heir = arm.trained_by is not None
        before = spent.get((str(arm.trained_by), run["seed"])) if heir else 0.0
        if own is None or before is None or not str(run.get("device", "cpu")).startswith("cpu"):
            continue
        images = nominal(experiment, arm, 0 if heir else int(run["rounds"][-1]["round"]))
        if images and own > before:
            found.setdefault((arm.key, heir), []).append((own - before) / images)
    return {which: median(some) for which, some in found.items()}


def seconds_of(run: Run) -> float | None:
    """What a run would have taken had it not been stopped in between; None where it did not measure its pace."""
    if not run.get("images_per_second"):
        return None
    trained = run.get("images_trained")  # early runs did not count them
    return float(run["seconds"] if trained is None else trained / run["images_per_second"])


def price(experiment: Experiment) -> str:
    """What a whole experiment costs in FedAvg's images, with its searches: `27 results, 36 candidates, 350 million images`."""
    own = [arm for arm in experiment.arms if arm.run_of is None]
    candidates = {arm.key: max(len(arm.grid), experiment.candidates[0] if arm.ladders else 0) for arm in own}
    tried = 0 if experiment.searched_in else sum(candidates.values())
    rounds = {arm.key: experiment.rounds_of(arm) if arm.trained_by is None else 0 for arm in own}
    images = sum(nominal(experiment, arm, rounds[arm.key]) for arm in own) * len(experiment.seeds)
    if experiment.searched_in is None:
        images += sum(
            candidates[arm.key] * nominal(experiment, arm, experiment.search_rounds_of(arm)) for arm in own
        )
    return (
        f"{len(own) * len(experiment.seeds)} results, {tried} candidates, {images / 1e6:,.0f} million images"
    )


def show(found: Sequence[Missing]) -> str:
    """Commands under one another, each after what it takes."""
    return "\n".join(
        f"{one.takes:>20}  {one.command}"
        + ("  # where the data are" if one.unavailable else "")
        + (f"  # after: {one.after}" if one.after else "")
        for one in found
    )
