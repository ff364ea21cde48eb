"""Run an experiment: search rates on validation data, then train every arm and seed; stop and go on at any time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    wait,
)
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from pfl_lite.config import RunConfig, make_config
from pfl_lite.data.images import load
from pfl_lite.engine.history import diverged_in
from pfl_lite.errors import InputError
from pfl_lite.experiments.crews import Cluster, Key, Machine, Report, Task, WorkerDied
from pfl_lite.experiments.experiment import climbed
from pfl_lite.experiments.ledger import Ledger, Run, flat
from pfl_lite.experiments.protocols import DEFAULT_BUDGET, Arm, Experiment, Settings, get_experiment
from pfl_lite.experiments.tables import accuracy

POLL_SECONDS = 5.0
SIGN_OF_LIFE_SECONDS = 120.0  # off a terminal, where no bar is shown
SHOWN = 4  # runs whose rounds a progress line names


class Swept(NamedTuple):
    """What a call of `reproduce` came to: the files written, the runs still to be trained, whether it was interrupted."""

    written: list[Path]
    left: int
    interrupted: bool


class Sweep:
    """The tasks of one experiment that the ledger does not answer yet, in the order in which they are worth most."""

    def __init__(
        self,
        experiment: Experiment,
        arms: Sequence[Arm],
        seeds: Sequence[int],
        rounds: int | None,
        device: str,
        ledger: Ledger,
        tf32: bool = True,
    ) -> None:
        self.experiment, self.seeds, self.ledger = experiment, seeds, ledger
        self.arms = [
            arm for arm in arms if arm.run_of is None
        ]  # the others are trained by another experiment
        self.searching = experiment
        while self.searching.searched_in is not None:
            self.searching = get_experiment(self.searching.searched_in, experiment.budget)
        self.rounds = rounds
        self.machine = {"device": device, "tf32": tf32}
        # a full path, which means the same to workers elsewhere
        self.checkpoints = ledger.folder.resolve() / ".checkpoints" / experiment.name

    def searched(self, arm: Arm) -> list[dict[str, Any]]:
        """The candidates of an arm with a grid that were scored as its protocol says, not for other rounds or another seed."""
        return [one for one in self.known(arm) if self.searching.scored(arm, one)]

    def known(self, arm: Arm) -> list[dict[str, Any]]:
        """All candidates of an arm that have ever been scored, each with the settings, rounds and seed it was scored under."""
        entry = self.ledger.get(self.searching.name, arm.key, None)
        return [] if entry is None else list(entry["candidates"])

    def grid(self, arm: Arm) -> tuple[Settings, ...]:
        """The candidates of an arm's search, as far as the scores tell them: its grid, and the next ones on its ladders."""
        return climbed(arm, self.searched(arm), self.searching.candidates, rank)

    def scored(self, arm: Arm) -> list[dict[str, Any]]:
        """The scored candidates of the present search in its order, not in the order in which workers finished them."""
        return in_order(self.grid(arm), self.searched(arm))

    def source(self, arm: Arm) -> Arm:
        """The arm whose search serves this one: its own, or another's of the experiment that searches."""
        return self.searching.arm(arm.rates_of or arm.key)

    def sources(self) -> list[Arm]:
        """The arms whose searches serve those that are to be trained, each once."""
        return list({source.key: source for source in map(self.source, self.arms)}.values())

    def chosen(self, arm: Arm, seed: int | None = None) -> Settings | None:
        """The settings with the best validation accuracy, once the whole grid has been scored.

        Of a result with some `seed`: among those with which it has not diverged.
        """
        if not self.source(arm).grid:
            return {}
        candidates = self.candidates(arm, seed)
        return dict(candidates[0]["settings"]) if candidates else None

    def candidates(self, arm: Arm, seed: int | None = None) -> list[dict[str, Any]]:
        """The scored candidates, the best first and without those that diverged for a `seed`; none before the search is over."""
        source = self.source(arm)
        scored = self.scored(source)
        if len(scored) < len(self.grid(source)):
            return []
        used = [flat(one["config"]) for one in self.attempts(arm, seed)]
        return [
            one for one in ranked(scored) if not any(one["settings"].items() <= it.items() for it in used)
        ]

    def attempts(self, arm: Arm, seed: int | None) -> list[Run]:
        """The attempts at a result that diverged; of an arm that takes over another's training or rates: at that one's result."""
        if seed is None:
            return []
        if arm.trained_by is None and arm.rates_of is not None:
            return self.ledger.diverged(self.leader(arm).name, arm.rates_of, seed)
        return self.ledger.diverged(self.experiment.name, arm.trained_by or arm.key, seed)

    def leader(self, arm: Arm) -> Experiment:
        """The experiment with the arm whose rates an arm takes over: this one, or the nearest that it takes settings from."""
        one = self.experiment
        while one.searched_in is not None and all(arm.rates_of != other.key for other in one.arms):
            one = get_experiment(one.searched_in, one.budget)
        return one

    def awaits(self, arm: Arm, seed: int) -> bool:
        """Whether an arm that takes over rates must wait until the arm that it follows has found a rate that does not diverge."""
        if arm.rates_of is None or arm.trained_by is not None or not self.experiment.next_candidate:
            return False
        return not self.ledger.has(self.leader(arm).name, arm.rates_of, seed)

    def tasks(self) -> Iterator[Task]:
        """What can be trained now: searches of arms without rates, then results, all arms of a seed before the next seed."""
        name = self.experiment.name
        for arm in self.sources() if self.searching is self.experiment else []:
            if self.chosen(arm) is None:
                done = [one["settings"] for one in self.searched(arm)]
                for number, candidate in enumerate(self.grid(arm)):
                    if candidate not in done:
                        config = self.trial(arm, candidate)
                        yield Task(name, arm.key, self.experiment.search_seed, config, number)
        missing = self.missing()
        for arm, seed in missing:
            if self.chosen(arm) is None or self.awaits(arm, seed):
                continue
            config, trained_by = self.config(arm, seed), None
            entry = {
                "kind": "run",
                "experiment": name,
                "arm": arm.key,
                "seed": seed,
                "config": config.as_dict(),
            }
            self.ledger.check(entry)  # refuses to replace a complete run of another configuration
            if arm.trained_by is not None:
                first = self.experiment.arm(arm.trained_by)
                if (first, seed) in missing:
                    continue  # until there is a training to take over
                trained_by = (self.checkpoint(first.key, seed), self.config(first, seed))
            yield Task(name, arm.key, seed, config, trained_by=trained_by, attempt=self.attempt(arm, seed))

    def attempt(self, arm: Arm, seed: int) -> int | None:
        """Number of the next attempt at a result; None where no other candidate takes over, should it diverge.

        That is so for the last candidate, for arms that take over another's training or rates, and where a complete shorter run
        is there, whose place in the ledger only a run of the same settings takes.
        """
        shares = arm.trained_by is not None or arm.rates_of is not None
        if not self.experiment.next_candidate or shares or len(self.candidates(arm, seed)) < 2:
            return None
        if self.ledger.has(self.experiment.name, arm.key, seed):
            return None
        return self.next_number(arm, seed)

    def next_number(self, arm: Arm, seed: int) -> int:
        """One more than that of the last attempt that diverged."""
        return 1 + max((int(one["attempt"]) for one in self.attempts(arm, seed)), default=0)

    def config(self, arm: Arm, seed: int, chosen: Settings | None = None) -> RunConfig:
        """The configuration of an arm's result with the settings that its search chose, or with others."""
        settings = self.experiment.settings(seed, rounds=self.length(arm)) | self.machine
        chosen = self.chosen(arm, seed) or {} if chosen is None else chosen
        return make_config(arm.method, **(settings | arm.settings | chosen)).resolved()

    def trial(self, arm: Arm, candidate: Settings) -> RunConfig:
        """The configuration with which a candidate of an arm's grid is scored."""
        rounds = self.experiment.search_rounds
        settings = self.experiment.settings(self.experiment.search_seed, rounds=rounds) | self.machine
        settings |= (
            {"ft_every": 0, "eval_every": rounds, "patience": 0} | arm.settings | arm.search | candidate
        )
        return make_config(arm.method, **settings).resolved()

    def missing(self) -> list[tuple[Arm, int]]:
        """The results that the ledger lacks, all arms of a seed before the next seed."""
        return [(arm, seed) for seed in self.seeds for arm in self.arms if not self.has(arm, seed)]

    def length(self, arm: Arm) -> int:
        """For how many rounds an arm is trained: the protocol's, or fewer if fewer were asked for."""
        planned = self.experiment.rounds_of(arm)
        return planned if self.rounds is None else min(self.rounds, planned)

    def validate(self, earlier: Sequence[Sweep] = ()) -> None:
        """Look at what is missing, with the first candidates, so that what cannot be done is told before any work.

        `earlier` are the sweeps that come before this one and may make what it needs.

        Raises:
            InputError: a setting that cannot be, more rounds than the protocol has, settings that another experiment has not
                chosen yet, an arm that follows one which is neither there nor asked for, or a complete run of another
                configuration in the ledger.
        """
        name, longest = self.experiment.name, self.experiment.longest
        if self.rounds is not None and self.rounds > longest:
            raise InputError(f"{name} is trained for {longest} rounds: ask for fewer, or leave rounds out")
        made = (*earlier, self)
        searched = {(one.experiment.name, source.key) for one in made for source in one.sources()}
        trained = {
            (one.experiment.name, arm.key, seed) for one in made for arm in one.arms for seed in one.seeds
        }
        for source in self.sources():
            if self.chosen(source) is None and (self.searching.name, source.key) not in searched:
                raise InputError(
                    f"{name} takes the settings of {source.key} that were chosen for {self.searching.name}: "
                    f"`{self.searching.command(source.key)}` comes first"
                )
        for arm, seed in self.missing():
            self.config(arm, seed, (*self.source(arm).grid, {})[0])
            leader = self.leader(arm)
            if self.awaits(arm, seed) and (leader.name, arm.rates_of, seed) not in trained:
                raise InputError(
                    f"{arm.key} of {name} follows {arm.rates_of} of {leader.name} to another rate, should that diverge: "
                    f"`{leader.command(str(arm.rates_of), str(seed))}` comes first"
                )
        for _ in self.tasks():
            pass  # each is held against the ledger

    def has(self, arm: Arm, seed: int) -> bool:
        """Whether the ledger holds a result."""
        return self.ledger.has(self.experiment.name, arm.key, seed, self.length(arm))

    def left(self) -> int:
        """Runs that are still to be trained, those that wait for a search or for another's training included."""
        return sum(task.candidate is not None for task in self.tasks()) + len(self.missing())

    def checkpoint(self, arm: str, seed: int, candidate: int | None = None) -> Path:
        """Where a task continues from; search candidates, results and attempts at a result never share a file."""
        kind = f"search{candidate}"
        if candidate is None:
            number = self.next_number(self.experiment.arm(arm), seed)
            kind = "run" if number == 1 else f"run{number}"
        return self.checkpoints / f"{arm}-seed{seed}-{kind}.pt"

    def record(self, task: Task, report: dict[str, Any]) -> Path:
        """Enter a finished task into the ledger, then drop what it went on from."""
        head, at = {"experiment": task.experiment, "arm": task.arm}, diverged_in(report["rounds"])
        if task.attempt is not None and at is not None:
            begun = self.checkpoint(*task.key)  # the next attempt has another
            ended = {"kind": "diverged", "attempt": task.attempt, "seed": task.seed, "complete": False}
            path = self.ledger.write(head | report | ended)
            begun.unlink(missing_ok=True)
            return path
        if task.candidate is None:
            path = self.ledger.write(head | {"seed": task.seed} | report)
        else:
            arm = self.experiment.arm(task.arm)
            scored = {
                "settings": self.grid(arm)[task.candidate],
                "validation_accuracy": accuracy(report, "val_accuracy") / 100,
                "rounds": task.config.rounds,
                "seed": task.seed,
                "seconds": report["seconds"],
            } | ({} if at is None else {"diverged": at})
            before = self.known(arm)
            candidates = in_order(self.grid(arm), [*self.searched(arm), scored])
            best = ranked(candidates)[0]["settings"]
            candidates += [one for one in before if one not in candidates]  # of an earlier protocol: kept
            path = self.ledger.write({"kind": "search", **head, "candidates": candidates, "chosen": best})
        self.clear(task)
        return path

    def clear(self, task: Task) -> None:
        """Drop the checkpoint of a finished task, and of the run whose training it took over, once nobody else waits for it."""
        if task.candidate is not None:
            self.checkpoint(*task.key).unlink(missing_ok=True)
            return
        for key in filter(None, (task.arm, self.experiment.arm(task.arm).trained_by)):
            heirs = [arm for arm in self.experiment.arms if arm.trained_by == key]
            if all(self.has(arm, task.seed) for arm in (self.experiment.arm(key), *heirs)):
                self.checkpoint(key, task.seed).unlink(missing_ok=True)


def in_order(grid: Sequence[Settings], candidates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The candidates of a grid in its order, not in the order in which workers finished them."""
    return [one for settings in grid for one in candidates if one["settings"] == settings]


def rank(candidate: dict[str, Any]) -> tuple[bool, float]:
    """What candidates are sorted by: validation accuracy, the best first and those that diverged last."""
    return "diverged" in candidate, -candidate["validation_accuracy"]


def ranked(candidates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Candidates by validation accuracy, the best first and those that diverged last; a tie goes to the first."""
    return sorted(candidates, key=rank)


def reproduce(
    name: str,
    *,
    budget_name: str = DEFAULT_BUDGET,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    rounds: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    budget: float | None = None,
    device: str = "auto",
    tf32: bool = True,
    ledger: Ledger | None = None,
) -> Swept:
    """Train what the ledger lacks of an experiment; returns the files written and what is left.

    Only this process writes the ledger, one result a run, so a run that was repeated after its worker died is entered once.

    Args:
        name: an experiment (`pfl-lite experiments`).
        budget_name: `small` or `paper`; the ledger keeps their runs apart.
        methods: keys of the arms to run (all by default).
        seeds: seeds of the results (the protocol's by default).
        rounds: rounds of the results (the protocol's by default); tables name a smaller number.
        workers: processes, each with one thread (1 by default); with `scheduler`, runs in hand at once (one a worker by default).
        scheduler: address of a Dask scheduler whose workers train, instead of processes of this machine.
        budget: seconds after which no new round starts; the next call goes on from there.
        device: `auto`, `cpu` or `cuda`; `auto` is what this machine has.
        tf32: products on a GPU in TF32, or exact ones.
        ledger: where results are read and written.

    Raises:
        InputError: before any work, for an unknown name or a setting that cannot be; also where the ledger holds a complete run
            of another configuration, which is never overwritten, where the data is not at hand, where another call trains for the
            same experiment and ledger, and where no scheduler answers. In the middle, where the scheduler is lost; at the end,
            where the workers of a run died again and again.
    """
    experiment = get_experiment(name, budget_name)
    for what, value in (("workers", workers), ("rounds", rounds), ("budget", budget)):
        if value is not None and value <= 0:
            raise InputError(f"{what} must be positive, not {value}")
    ledger = ledger or Ledger()
    sweep = asked(experiment, methods, seeds, rounds, device, tf32, ledger)
    sweep.validate()
    with ledger.reserved(experiment.name):
        pending = list(sweep.tasks())
        if not pending:
            return Swept([], sweep.left(), False)
        load(experiment.data)  # fetched once, here, before several workers would
        crew: Machine | Cluster = Machine(workers or 1) if scheduler is None else Cluster(scheduler, workers)
        with closing(crew):
            sweep.checkpoints.mkdir(parents=True, exist_ok=True)  # a worker that does not see it keeps none
            return work_off(sweep, pending, crew, budget)


def asked(
    experiment: Experiment,
    methods: Sequence[str] | None,
    seeds: Sequence[int] | None,
    rounds: int | None,
    device: str,
    tf32: bool,
    ledger: Ledger,
) -> Sweep:
    """The sweep that `reproduce` makes of its arguments, which are explained there; raises InputError for a wrong arm."""
    arms = list({arm.key: arm for arm in asked_arms(experiment, methods)}.values())
    seeds = list(dict.fromkeys(experiment.seeds if seeds is None else seeds))
    return Sweep(experiment, arms, seeds, rounds, device, ledger, tf32)


def asked_arms(experiment: Experiment, methods: Sequence[str] | None) -> list[Arm]:
    """The arms with some keys (all by default).

    Raises:
        InputError: an unknown key, or an arm whose runs another experiment makes.
    """
    arms = list(experiment.arms) if methods is None else [experiment.arm(key) for key in methods]
    for arm in arms if methods is not None else ():
        if arm.run_of is not None:
            raise InputError(
                f"{arm.key} of {experiment.name} is {arm.rates_of} of {arm.run_of}: "
                f"`{get_experiment(arm.run_of, experiment.budget).command(str(arm.rates_of))}` makes its runs"
            )
    return arms


def work_off(sweep: Sweep, pending: list[Task], crew: Machine | Cluster, budget: float | None) -> Swept:
    """Hand out tasks, wait for them and enter them, until nothing is left or nobody may go on."""
    deadline = float("inf") if budget is None else time.monotonic() + budget
    interrupted = False
    written: list[Path] = []
    running: dict[Future[Report], Task] = {}
    reached: dict[Key, int] = {}
    deaths: Counter[tuple[Key, int]] = Counter()
    given_up: dict[Key, Task] = {}
    said = time.monotonic()
    with tqdm(desc=sweep.experiment.name, total=sweep.left(), unit="run", disable=None) as bar:
        while True:
            try:
                late = interrupted or time.monotonic() > deadline
                if late:
                    crew.stop()
                    for future in [one for one in running if one.cancel()]:
                        tqdm.write(f"stopped {running.pop(future).title}; the next call goes on with it")
                busy = {task.key for task in running.values()} | given_up.keys()
                waiting = [task for task in pending if task.key not in busy]
                room = 0 if late or not waiting else crew.room() - len(running)
                for task in waiting[: max(0, room)]:
                    again = "go on with" if sweep.checkpoint(*task.key).exists() else "start"
                    tqdm.write(
                        f"{again} {task.title}: {describe(task, sweep.source(sweep.experiment.arm(task.arm)))}"
                    )
                    running[crew.submit(task, sweep.checkpoint(*task.key))] = task
                if not running:
                    break
                patience = POLL_SECONDS if late else min(POLL_SECONDS, max(0.0, deadline - time.monotonic()))
                finished = wait(running, timeout=patience, return_when=FIRST_COMPLETED).done
                reached.update(crew.news())
                where = progress(running.values(), reached)
                bar.set_postfix_str(where)
                if bar.disable and time.monotonic() - said > SIGN_OF_LIFE_SECONDS:
                    tqdm.write(where)
                    said = time.monotonic()
                while finished:
                    future = finished.pop()
                    task = running.pop(future)
                    try:
                        report = crew.result(future)
                    except WorkerDied:
                        at = reached.get(task.key, 0)
                        tqdm.write(f"a worker was lost: {task.title} had reached round {at}")
                        deaths[task.key, at] += 1
                        if deaths[task.key, at] >= crew.patience:
                            given_up[task.key] = task
                        continue
                    del (
                        future
                    )  # a cluster repeats what is still asked for, should the worker that holds it die now
                    if report is None:
                        tqdm.write(f"stopped {task.title}; the next call goes on from its checkpoint")
                        continue
                    written.append(sweep.record(task, report))
                    lost = diverged_in(report["rounds"])
                    how = "done" if None in (lost, task.attempt) else f"diverged in round {lost}:"
                    tqdm.write(f"{how} {task.title} in {report['seconds']:.0f} s: {written[-1]}")
                    bar.update()
                    pending = list(sweep.tasks())
                    bar.total = len(written) + sweep.left()
            except KeyboardInterrupt:
                tqdm.write("interrupted: workers finish the rounds in hand")
                interrupted = True
    if given_up and not interrupted:
        titles = ", ".join(task.title for task in given_up.values())
        raise InputError(
            f"given up after their workers died again and again, most likely out of memory: {titles}; "
            "the same command tries them again: use fewer workers on a machine, or give each more memory"
        )
    return Swept(written, sweep.left(), interrupted)


def progress(tasks: Iterable[Task], reached: dict[Key, int]) -> str:
    """Which round the runs in hand have reached."""
    where = [f"{task.title} round {reached.get(task.key, 0)}/{task.config.rounds}" for task in tasks]
    more = [f"{len(where) - SHOWN} more"] if len(where) > SHOWN else []
    return ", ".join(where[:SHOWN] + more)


def describe(task: Task, source: Arm) -> str:
    """The rate and whatever else tells the candidates of the arm that searched apart, in a few words."""
    used = flat(task.config.as_dict())
    searched = dict.fromkeys(["lr", *(name for one in source.grid for name in one)])
    return ", ".join(f"{name} {used[name]}" for name in searched) + f", {task.config.rounds} rounds"
