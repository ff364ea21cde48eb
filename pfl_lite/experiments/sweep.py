"""Run an experiment: search rates on validation data, then train every arm and seed; stop and go on at any time."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from pfl_lite.data.images import load
from pfl_lite.engine.config import RunConfig, make_config
from pfl_lite.errors import InputError
from pfl_lite.experiments.ledger import Ledger
from pfl_lite.experiments.protocols import Arm, Experiment, Settings, get_experiment

POLL_SECONDS = 5.0
SIGN_OF_LIFE_SECONDS = 120.0  # off a terminal, where no bar is shown


@dataclass(frozen=True)
class Task:
    """One training run: a result (`candidate` is None) or one candidate of an arm's search."""

    experiment: str
    arm: str
    seed: int
    config: RunConfig
    candidate: int | None = None
    trained_by: tuple[Path, RunConfig] | None = None
    """Checkpoint and configuration of a finished run whose training it takes over, if that checkpoint is still there."""

    @property
    def key(self) -> tuple[str, int, int | None]:
        """What tells it from the others."""
        return self.arm, self.seed, self.candidate

    @property
    def title(self) -> str:
        """What a progress line calls it."""
        return (
            f"{self.arm} seed {self.seed}"
            if self.candidate is None
            else f"{self.arm} candidate {self.candidate}"
        )


class Swept(NamedTuple):
    """What a call of `reproduce` came to: the files written, the runs still to be trained, whether it was interrupted."""

    written: list[Path]
    left: int
    interrupted: bool


_interrupted: Event | None = None  # in a worker: set when the parent was interrupted
_news: Any = None  # in a worker: where it says which round it has reached


def start_worker(interrupted: Event, news: Any) -> None:
    """Let only the parent answer an interrupt; workers finish the round in hand and write their checkpoint."""
    global _interrupted, _news
    _interrupted, _news = interrupted, news
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def train(task: Task, checkpoint: Path, deadline: float | None) -> dict[str, Any] | None:
    """Train one task from its checkpoint on; its report, or None when it had to stop before the end."""
    import torch

    from pfl_lite.engine.rounds import Simulation

    if task.config.device != "cuda":
        torch.set_num_threads(1)
    simulation = Simulation(task.config)

    def stop() -> bool:
        if _news is not None:
            _news.put((task.key, simulation.round))
        late = deadline is not None and time.monotonic() > deadline
        return late or (_interrupted is not None and _interrupted.is_set())

    if task.trained_by is not None and task.trained_by[0].exists() and not checkpoint.exists():
        simulation.load(*task.trained_by)
    done = simulation.run(checkpoint=checkpoint, stop=stop, progress=False)
    return simulation.report() if done else None


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
    ) -> None:
        self.experiment, self.arms, self.seeds, self.ledger = experiment, arms, seeds, ledger
        self.rounds = experiment.rounds if rounds is None else rounds
        self.device = device
        self.checkpoints = ledger.folder / ".checkpoints" / experiment.name

    def searched(self, arm: Arm) -> list[dict[str, Any]]:
        """The candidates of an arm that have been scored, each with the settings it was scored under."""
        entry = self.ledger.get(self.experiment.name, arm.key, None)
        return [] if entry is None else list(entry["candidates"])

    def chosen(self, arm: Arm) -> Settings | None:
        """The settings with the best validation accuracy, once the whole grid has been scored."""
        if arm.rates_of is not None:
            return self.chosen(self.experiment.arm(arm.rates_of))
        if not arm.grid:
            return {}
        scored = in_grid_order(arm, self.searched(arm))
        if len(scored) < len(arm.grid):
            return None
        return dict(best_of(scored)["settings"])

    def tasks(self) -> Iterator[Task]:
        """What can be trained now: searches of arms without rates, then results, all arms of a seed before the next seed."""
        shared = {"device": self.device}
        name = self.experiment.name
        searched = {arm.rates_of or arm.key: None for arm in self.arms}
        for arm in map(self.experiment.arm, searched):
            if self.chosen(arm) is None:
                done = [one["settings"] for one in self.searched(arm)]
                seed = self.experiment.search_seed
                base = self.experiment.settings(seed, rounds=self.experiment.search_rounds)
                base |= {"ft_every": 0, "eval_every": self.experiment.search_rounds} | shared | arm.settings
                for number, candidate in enumerate(arm.grid):
                    if candidate not in done:
                        yield Task(name, arm.key, seed, make_config(arm.method, **(base | candidate)), number)
        missing = self.missing()
        for arm, seed in missing:
            if self.chosen(arm) is None:
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
            yield Task(name, arm.key, seed, config, trained_by=trained_by)

    def config(self, arm: Arm, seed: int) -> RunConfig:
        """The configuration of an arm's result, once its rates are chosen."""
        settings = self.experiment.settings(seed, rounds=self.rounds) | {"device": self.device}
        return make_config(arm.method, **(settings | arm.settings | (self.chosen(arm) or {}))).resolved()

    def missing(self) -> list[tuple[Arm, int]]:
        """The results that the ledger lacks, all arms of a seed before the next seed."""
        return [(arm, seed) for seed in self.seeds for arm in self.arms if not self.has(arm.key, seed)]

    def has(self, arm: str, seed: int) -> bool:
        """Whether the ledger holds a result."""
        return self.ledger.has(self.experiment.name, arm, seed, self.rounds)

    def left(self) -> int:
        """Runs that are still to be trained, those that wait for a search or for another's training included."""
        return sum(task.candidate is not None for task in self.tasks()) + len(self.missing())

    def checkpoint(self, arm: str, seed: int, candidate: int | None = None) -> Path:
        """Where a task continues from; search candidates and results never share a file."""
        kind = "run" if candidate is None else f"search{candidate}"
        return self.checkpoints / f"{arm}-seed{seed}-{kind}.pt"

    def record(self, task: Task, report: dict[str, Any]) -> Path:
        """Enter a finished task into the ledger, then drop what it went on from."""
        head = {"experiment": task.experiment, "arm": task.arm}
        if task.candidate is None:
            path = self.ledger.write(head | {"seed": task.seed} | report)
        else:
            arm = self.experiment.arm(task.arm)
            scored = {
                "settings": arm.grid[task.candidate],
                "validation_accuracy": float(np.nanmean(report["final"]["val_accuracy"])),
                "rounds": task.config.rounds,
                "seed": task.seed,
                "seconds": report["seconds"],
            }
            known = [*self.searched(arm), scored]
            candidates = in_grid_order(arm, known)
            best = best_of(candidates)["settings"]
            candidates += [
                one for one in known if one["settings"] not in arm.grid
            ]  # of an earlier grid: kept
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
            if all(self.has(arm, task.seed) for arm in (key, *(heir.key for heir in heirs))):
                self.checkpoint(key, task.seed).unlink(missing_ok=True)


def in_grid_order(arm: Arm, candidates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The candidates of the present grid in its order, not in the order in which workers finished them."""
    return [one for settings in arm.grid for one in candidates if one["settings"] == settings]


def best_of(candidates: list[dict[str, Any]]) -> dict[str, Any]:
    """The candidate with the best validation accuracy; a tie goes to the first."""
    return max(candidates, key=lambda one: one["validation_accuracy"])


def reproduce(
    name: str,
    *,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    rounds: int | None = None,
    workers: int = 1,
    budget: float | None = None,
    device: str = "auto",
    ledger: Ledger | None = None,
) -> Swept:
    """Train what the ledger lacks of an experiment; returns the files written and what is left.

    Args:
        name: an experiment (`pfl-lite experiments`).
        methods: keys of the arms to run (all by default).
        seeds: seeds of the results (the protocol's by default).
        rounds: rounds of the results (the protocol's by default); tables name a smaller number.
        workers: processes, each with one thread.
        budget: seconds after which no new round starts; the next call goes on from there.
        device: `auto`, `cpu` or `cuda`.
        ledger: where results are read and written.

    Raises:
        InputError: before any work, for an unknown name or a setting that cannot be; also where the ledger holds a complete run
            of another configuration, which is never overwritten, and where the data is not at hand.
    """
    experiment = get_experiment(name)
    arms = experiment.arms if methods is None else [experiment.arm(key) for key in methods]
    for what, value in (("workers", workers), ("rounds", rounds), ("budget", budget)):
        if value is not None and value <= 0:
            raise InputError(f"{what} must be positive, not {value}")
    sweep = Sweep(
        experiment, arms, experiment.seeds if seeds is None else seeds, rounds, device, ledger or Ledger()
    )
    deadline = None if budget is None else time.monotonic() + budget
    written: list[Path] = []
    running: dict[Future[dict[str, Any] | None], Task] = {}
    pending = list(sweep.tasks())  # also checks every configuration before the first worker starts
    if pending:
        load(experiment.data)  # fetched once, here, before several workers would
    context = multiprocessing.get_context("spawn")
    interrupted, news = context.Event(), context.Queue()
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=start_worker, initargs=(interrupted, news)
    )
    reached: dict[Any, int] = {}
    said = time.monotonic()
    with pool, tqdm(desc=name, total=sweep.left(), unit="run", disable=None) as bar:
        while True:
            try:
                busy = {task.key for task in running.values()}
                waiting = [task for task in pending if task.key not in busy]
                late = interrupted.is_set() or (deadline is not None and time.monotonic() > deadline)
                for task in [] if late else waiting[: workers - len(running)]:
                    again = "go on with" if sweep.checkpoint(*task.key).exists() else "start"
                    tqdm.write(f"{again} {task.title}: {describe(task)}")
                    running[pool.submit(train, task, sweep.checkpoint(*task.key), deadline)] = task
                if not running:
                    break
                while not news.empty():
                    key, at = news.get()
                    reached[key] = at
                where = ", ".join(
                    f"{task.title} round {reached.get(task.key, 0)}/{task.config.rounds}"
                    for task in running.values()
                )
                bar.set_postfix_str(where)
                if bar.disable and time.monotonic() - said > SIGN_OF_LIFE_SECONDS:
                    tqdm.write(where)
                    said = time.monotonic()
                for future in wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                    task, report = running.pop(future), future.result()
                    if report is None:
                        tqdm.write(f"stopped {task.title}; the next call goes on from its checkpoint")
                        continue
                    written.append(sweep.record(task, report))
                    tqdm.write(f"done {task.title} in {report['seconds']:.0f} s: {written[-1]}")
                    bar.update()
                    pending = list(sweep.tasks())
                    bar.total = len(written) + sweep.left()
            except KeyboardInterrupt:
                tqdm.write("interrupted: finishing the rounds in hand, nothing is lost")
                interrupted.set()
    return Swept(written, sweep.left(), interrupted.is_set())


def describe(task: Task) -> str:
    """The settings that tell tasks apart, in a few words."""
    values = task.config.as_dict()
    rates = {"lr": values["lr"]} | (
        {"alpha_lr": values["method"]["alpha_lr"]} if "alpha_lr" in values["method"] else {}
    )
    return ", ".join(f"{name} {value}" for name, value in rates.items()) + f", {values['rounds']} rounds"
