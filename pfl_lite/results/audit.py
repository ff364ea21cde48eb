"""Care of the ledger: is every file sound, and which results are missing?"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, NamedTuple

from tqdm import tqdm

from pfl_lite.config import MACHINE_KEYS, with_defaults
from pfl_lite.papers import DEFAULT_BUDGET, Arm, Experiment, every_budget, get_experiment, home_of, members
from pfl_lite.results.ledger import ENDS, PACKED, Ledger, Run, flat, unlike
from pfl_lite.results.plan import Plan

AGREE = 1e-4  # what a mean of final accuracies may be off from its last round's, whose digits are rounded
LARGEST = 40_000_000  # bytes of a ledger that a repository can carry


@dataclass
class Findings:
    """What a look through a ledger found: `faults` must be mended, `notes` are good to know."""

    files: int = 0
    bytes: int = 0
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(ledger: Ledger) -> Findings:
    """Look through every file of a ledger and change none.

    Faults are files that break their schema or were set aside, two files with one run, final accuracies that are not those of the
    last round, results (and attempts that diverged) that were trained otherwise than the protocol says or whose settings no whole
    search chose, and a ledger too large to keep. Such a result still counts in tables until it is moved away. Notes are
    files that are not read, experiments that are not known, rows that do not share the training that they could share, and cells
    that are empty.
    """
    found = Findings()
    runs: list[tuple[str, Run]] = []
    attempts: list[tuple[str, Run]] = []  # that diverged
    for path in tqdm(sorted(ledger.folder.rglob("*.json*")), unit="file", leave=False, disable=None):
        within = path.relative_to(ledger.folder)
        if any(part.startswith(".") for part in within.parts):
            continue  # a checkpoint, or a file that is being written
        found.files, found.bytes = found.files + 1, found.bytes + path.lstat().st_size
        name = within.as_posix()
        if not name.endswith(ENDS):
            if path.suffix.startswith(".damaged"):
                found.faults.append(f"{name}: set aside as damaged: mend it, or move it away")
            else:
                found.notes.append(f"{name}: not read, as its name does not end in {' or '.join(ENDS)}")
            continue
        entry, problem = ledger.examine(path)
        if problem is not None:
            found.faults.append(f"{name}: {problem}")
        elif path.suffix == ".json" and path.lstat().st_size > PACKED:
            found.faults.append(f"{name}: larger than {PACKED // 1000} kB: pack it by `gzip -n9`")
        elif entry is not None and entry["kind"] != "search":
            (runs if entry["kind"] == "run" else attempts).append((name, entry))
    if found.bytes > LARGEST:
        found.faults.append(f"{found.bytes / 1e6:.1f} MB of results: more than {LARGEST / 1e6:.0f} MB")
    with warnings.catch_warnings(action="ignore"):  # each damaged file is a fault already
        found.faults += [*duplicates(runs), *astray(runs), *unchosen(runs + attempts, ledger)]
        found.notes += [*strangers([run for _, run in runs]), *unshared(runs), *gaps(ledger)]
    return found


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


def astray(runs: Sequence[tuple[str, Run]]) -> list[str]:
    """Complete runs whose final accuracies do not have the mean of their last round."""
    said = []
    for name, run in runs:
        # the last round's mean leaves out clients that were held out, and does not say which they are
        if not run["complete"] or run["config"].get("unseen"):
            continue
        before = run.get("final_before_ft")
        finals = {"tuned": run["final"], "personal": before} if before else {"personal": run["final"]}
        for model, final in finals.items():
            known = [a for a in final["test_accuracy"] if a is not None]
            told = run["rounds"][-1].get(f"{model}_accuracy")
            if known and (told is None or abs(mean(known) - told) > AGREE):
                said.append(
                    f"{name}: its final accuracies have the mean {mean(known):.4f}, its last round's {model} ones {told}"
                )
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
        plan, used = Plan(experiment, ledger), flat(run["config"])
        free = {key for one in plan.source(arm).grid for key in one} if run["kind"] == "diverged" else set()
        chosen, source = plan.chosen(arm, run["seed"]), plan.source(arm)
        if chosen is None:
            if ledger.examine(ledger.path(plan.searching.name, source.key, None))[1]:
                continue  # the search's own fault
            tried, grid = len(plan.scored(source)), len(plan.grid(source))
            said.append(
                f"{name}: of the candidates that it was chosen from the ledger holds {tried} of {grid}"
            )
        elif other := [key for key, value in chosen.items() if key not in free and used.get(key) != value]:
            said.append(f"{name}: {', '.join(other)} not as the search chose")
        elif other := beside_protocol(run, plan.config(arm, run["seed"]).as_dict(), free):
            said.append(f"{name}: {', '.join(other)} not as the protocol says")
    return said


def beside_protocol(run: Run, config: dict[str, Any], free: set[str]) -> list[str]:
    """Where a stored run was configured otherwise; the machine, fewer rounds and what is `free` do not count."""
    fewer = {"rounds"} if flat(run["config"])["rounds"] <= config["rounds"] else set()
    return [name for name in unlike(run["config"], config) if name not in free | fewer]


def strangers(runs: Sequence[Run]) -> list[str]:
    """Experiments with runs that no protocol describes."""
    known = {one.name for one in every_budget()}
    count = Counter(run["experiment"] for run in runs if run["experiment"] not in known)
    return [
        f"{name}: {number} run{'s' * (number != 1)} of an experiment that is not known here"
        for name, number in count.items()
    ]


def unshared(runs: Sequence[tuple[str, Run]]) -> list[str]:
    """Files of results that begin where another training of the row that they take over has ended.

    Such a pair is a fair one, but the luck of two trainings makes its difference less certain. Two machines train a row apart.
    """
    takes = {(one.name, arm.key): arm.trained_by for one in every_budget() for arm in one.arms}
    there = {(run["experiment"], run["arm"], run["seed"]): run for _, run in runs}
    said = []
    for name, run in runs:
        first = takes.get((run["experiment"], run["arm"]))
        base = there.get((run["experiment"], first, run["seed"]))
        if base is None or not run["complete"] or len(base["rounds"]) != len(run["rounds"]):
            continue
        if run["final_before_ft"]["test_accuracy"] != base["final"]["test_accuracy"]:
            said.append(f"{name}: takes over a training of {first} that did not end as that row's own")
    return said


def gaps(ledger: Ledger) -> list[str]:
    """How many results of every experiment are missing, and which experiments with the usual budget have none at all."""
    said, none = [], []
    for one in every_budget():
        begun = (ledger.folder / one.name).is_dir()
        if (begun or one.budget == DEFAULT_BUDGET) and (left := len((plan := Plan(one, ledger)).missing())):
            if begun:
                whole = len(plan.arms) * len(one.seeds)
                said.append(f"{one.name}: {left} of {whole} results {'is' if left == 1 else 'are'} missing")
            else:
                none.append(one.name)
    if none:
        said.append(f"{len(none)} experiment{'s' * (len(none) != 1)} without any result: {', '.join(none)}")
    return said


class Missing(NamedTuple):
    """A command that would fill a gap: how many results it makes, how long such results took, and what must come before it.

    It makes none where a search of an earlier protocol is all that is to be made again."""

    command: str
    results: int
    seconds: float | None
    """The median of the same rows' complete runs on processors, or else on GPUs; None where there is none yet."""
    after: str
    unavailable: bool = False
    gpu: bool = False
    """Whether the seconds are those of GPUs, because no processor has trained these rows yet."""

    @property
    def takes(self) -> str:
        """`2 results, about 812 s each`, or only their number where no result of these rows is there; or `a search again`."""
        if not self.results:
            return "a search again"
        number = f"{self.results} result{'s' * (self.results != 1)}"
        if self.seconds is None:
            return number
        return f"{number}, about {self.seconds:.0f} s each{' on a GPU' * self.gpu}"


def missing(name: str, ledger: Ledger, budget: str = DEFAULT_BUDGET) -> list[Missing]:
    """The commands that would fill the gaps of an experiment or a group in an order that works.

    The longest comes first among those that can be run at once; then follow those that wait for another, and last those
    of data that the machine of the ledger did not have.

    Raises:
        InputError: an unknown name or budget.
    """
    found = [one for part in members(name) for one in gaps_of(get_experiment(part, budget), ledger)]
    # an arm may be missing here and in the experiment that makes its runs
    unique = {one.command: one for one in found}
    return sorted(
        unique.values(),
        key=lambda one: (one.unavailable, bool(one.after), -one.results * (one.seconds or 0.0), -one.results),
    )


def count_missing(name: str, ledger: Ledger, budget: str = DEFAULT_BUDGET) -> int:
    """How many results of an experiment or a group the ledger lacks."""
    return sum(len(Plan(get_experiment(part, budget), ledger).missing()) for part in members(name))


def gaps_of(
    experiment: Experiment,
    ledger: Ledger,
    arms: Sequence[Arm] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Missing]:
    """The commands that would fill an experiment's gaps (of some arms and seeds).

    Arms that share a training share a command, and so do those that lack the same seeds and wait for the same; not where it is
    known that they take unlike times.
    """
    plan = Plan(experiment, ledger, arms, seeds)
    gaps: dict[str, list[tuple[Arm, int]]] = {}
    for arm, seed in plan.missing():
        gaps.setdefault(arm.trained_by or arm.key, []).append((arm, seed))
    # the search behind a result may be of an earlier protocol, and is then to be made again
    for arm in plan.arms:
        if arm.grid and plan.searching is experiment and plan.known(arm) and plan.chosen(arm) is None:
            gaps.setdefault(arm.key, [])
    together: dict[tuple[str, str, float | None, bool], tuple[list[str], int]] = {}
    for training, some in gaps.items():
        keys = list(dict.fromkeys(arm.key for arm, _ in some)) or [training]
        lacking = sorted({seed for _, seed in some})
        first = experiment.arm(training)
        after = ""
        if plan.chosen(first) is None and plan.searching is not experiment:
            after = plan.searching.command(plan.source(first).key)
        elif waits := [seed for seed in lacking if plan.awaits(first, seed)]:
            after = plan.leader(first).command(str(first.rates_of), ",".join(map(str, waits)))
        there = [run for run in ledger.read(experiment.name) if run["arm"] in keys]
        mine = [run for run in there if run.get("device", "cpu").startswith("cpu")]
        time = median(run["seconds"] for run in mine or there) if there else None
        row = (",".join(map(str, lacking)), after, time, bool(there) and not mine)
        others, number = together.get(row, ([], 0))
        together[row] = [*others, *keys], number + len(some)
    found = [
        Missing(experiment.command(",".join(keys), seeds), number, time, after, experiment.unavailable, gpu)
        for (seeds, after, time, gpu), (keys, number) in together.items()
    ]
    for arm in experiment.arms if arms is None else arms:
        home, own = home_of(experiment, arm)
        if home is not experiment:
            found += gaps_of(home, ledger, [own], experiment.seeds)
    return found


def size_of(experiment: Experiment) -> str:
    """How many runs a whole experiment is: `27 results, 36 candidates`."""
    own = [arm for arm in experiment.arms if arm.run_of is None]
    tried = sum(max(len(arm.grid), experiment.candidates[0] if arm.ladders else 0) for arm in own)
    results = len(own) * len(experiment.seeds)
    return f"{results} result{'s' * (results != 1)}, {0 if experiment.searched_in else tried} candidates"
