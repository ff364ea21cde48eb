"""Run an experiment: search rates on validation data, then train every arm and seed; stop and go on at any time."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import closing
from dataclasses import dataclass
from functools import partial
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
CONNECT_SECONDS = 5.0
SHOWN = 4  # runs whose rounds a progress line names

Key = tuple[str, int, int | None]
Report = dict[str, Any] | None


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
    def key(self) -> Key:
        """What tells it from the others."""
        return self.arm, self.seed, self.candidate

    @property
    def title(self) -> str:
        """What a progress line calls it."""
        return title(*self.key)


def title(arm: str, seed: int, candidate: int | None) -> str:
    """What a progress line calls a run."""
    return f"{arm} seed {seed}" if candidate is None else f"{arm} candidate {candidate}"


class Swept(NamedTuple):
    """What a call of `reproduce` came to: the files written, the runs still to be trained, whether it was interrupted."""

    written: list[Path]
    left: int
    interrupted: bool


def train(task: Task, checkpoint: Path, stop: Callable[[Key, int], bool]) -> Report:
    """Train one task from its checkpoint on; its report, or None when `stop(key, round)`, asked before a round, ended it.

    Where the checkpoint's folder cannot be written, which is a machine that does not share it, the run is made in one go.
    """
    import torch

    from pfl_lite.engine.rounds import Simulation

    if task.config.device != "cuda":
        torch.set_num_threads(1)
    simulation = Simulation(task.config)
    kept = checkpoint if os.access(checkpoint.parent, os.W_OK) else None
    begun = kept is not None and kept.exists()
    if task.trained_by is not None and os.access(task.trained_by[0], os.R_OK) and not begun:
        simulation.load(*task.trained_by)
    done = simulation.run(checkpoint=kept, stop=lambda: stop(task.key, simulation.round), progress=False)
    return simulation.report() if done else None


# ---- who trains: processes of this machine, or the workers of a cluster -------------------------------------------------

_stopping: Event | None = None  # in a worker process: set when its parent wants no new round
_news: Any = None  # in a worker process: where it says which round it has reached


def start_worker(stopping: Event, news: Any) -> None:
    """Let only the parent answer an interrupt; workers finish the round in hand and write their checkpoint."""
    global _stopping, _news
    _stopping, _news = stopping, news
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def tell_parent(key: Key, at: int) -> bool:
    """In a worker process: say which round a run has reached; whether it is to stop."""
    if _news is not None:
        _news.put((key, at))
    return _stopping is not None and _stopping.is_set()


class WorkerDied(Exception):
    """A run's worker was killed, ran out of memory or lost its machine, and nobody repeats the run by itself."""


class Machine:
    """Worker processes of this machine.

    The standard library's pool, like loky's, gives up all its processes when one dies: a new one takes its place here.
    """

    patience = 3  # deaths of its worker at one and the same round after which a run is given up

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.hire()

    def hire(self) -> None:
        """Make the pool and the two lines to it; a dead process may have held the locks of the old ones."""
        context = multiprocessing.get_context("spawn")
        self.stopping, self.line = context.Event(), context.Queue()
        self.pool = ProcessPoolExecutor(
            self.workers, mp_context=context, initializer=start_worker, initargs=(self.stopping, self.line)
        )

    def room(self) -> int:
        """How many runs can be in hand at once."""
        return self.workers

    def submit(self, task: Task, checkpoint: Path) -> Future[Report]:
        """Start a run, or queue it."""
        try:
            return self.pool.submit(train, task, checkpoint, tell_parent)
        except BrokenExecutor:
            self.hire()
            return self.pool.submit(train, task, checkpoint, tell_parent)

    def result(self, future: Future[Report]) -> Report:
        """What a finished run came to."""
        try:
            return future.result()
        except BrokenExecutor as error:
            raise WorkerDied from error

    def news(self) -> Iterator[tuple[Key, int]]:
        """Which run has reached which round since the last call."""
        while not self.line.empty():
            yield self.line.get()

    def stop(self) -> None:
        """Let no run start another round."""
        self.stopping.set()

    def close(self) -> None:
        """Wait for the rounds in hand, then end the processes."""
        self.stop()
        self.pool.shutdown()


def tell_cluster(topic: str, key: Key, at: int) -> bool:
    """On a worker of a cluster: say which round a run has reached; whether nobody waits for it any more."""
    from distributed import get_worker

    worker = get_worker()
    worker.log_event(topic, [worker.id, *key, at])
    mine = worker.state.tasks.get(worker.get_current_task())
    return mine is None or mine.state == "cancelled"


def train_for(topic: str, wanted: dict[str, str], task: Task, checkpoint: Path) -> Report:
    """On a worker of a cluster: `train`, unless its numbers might not be those of the machine that asks.

    Raises:
        InputError: with the name of the machine.
    """
    from distributed import get_worker

    try:
        if (threads := get_worker().state.nthreads) != 1:  # runs in one process would share torch's generator
            raise InputError(
                f"it has {threads} threads: start it with --nthreads 1, and several with --nworkers"
            )
        from pfl_lite.engine.rounds import versions

        for name in ("pfl_lite", "torch"):
            if (mine := versions()[name]) != wanted[name]:
                raise InputError(f"it has {name} {mine} and not {wanted[name]}: install the same everywhere")
        return train(task, checkpoint, partial(tell_cluster, topic))
    except InputError as error:
        raise InputError(f"the worker on {socket.gethostname()} cannot train: {error}") from error


class Cluster:
    """The workers of a Dask cluster, however many there are at the moment.

    The cluster repeats a run whose worker has died on another one, and forgets the runs of a client that has gone: a worker then
    stops before its next round.

    Raises:
        InputError: Dask is not installed, or no scheduler answers at the address.
    """

    patience = 2  # reports of death; each comes after four workers (Dask: `allowed-failures`)

    def __init__(self, address: str, at_most: int | None) -> None:
        try:
            from distributed import Client, Security, rpc
        except ImportError as error:
            raise InputError(
                "many machines need Dask, which is not installed: pip install 'pfl-lite[cluster]'"
            ) from error
        from pfl_lite.engine.rounds import versions

        async def answer() -> str:
            """What kind of server this is; a client alone would wait for ever where it is none of Dask's."""
            async with rpc(address, connection_args=Security().get_connection_args("client")) as server:
                return str((await asyncio.wait_for(server.identity(), CONNECT_SECONDS))["type"])

        try:
            with ThreadPoolExecutor(1) as aside:  # a notebook has an event loop of its own
                found = aside.submit(asyncio.run, answer()).result()
            if found != "Scheduler":
                raise ValueError(f"a {found} answers there")
            self.client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(
                f"no Dask scheduler answers at '{address}' ({str(error) or 'silence'}): "
                "name the address that `dask scheduler` prints, such as tcp://10.0.0.1:8786"
            ) from error
        self.address, self.at_most = address, at_most
        self.pool = self.client.get_executor(pure=False)
        self.topic, self.versions = f"pfl-lite {self.client.id}", versions()
        self.heard: deque[Sequence[Any]] = deque()
        self.trained_on: dict[Key, str] = {}
        self.client.subscribe_topic(self.topic, lambda event: self.heard.append(event[1]))
        if not self.client.nthreads():
            tqdm.write(f"{address} has no worker yet: runs start when one comes")

    def room(self) -> int:
        """How many runs can be in hand at once: one a worker, and one that waits for the first worker."""
        try:
            workers = max(1, len(self.client.nthreads()))
        except OSError as error:
            raise self.lost() from error
        return workers if self.at_most is None else min(workers, self.at_most)

    def submit(self, task: Task, checkpoint: Path) -> Future[Report]:
        """Hand a run to the cluster."""
        self.trained_on.pop(task.key, None)
        future: Future[Report] = self.pool.submit(train_for, self.topic, self.versions, task, checkpoint)
        return future

    def result(self, future: Future[Report]) -> Report:
        """What a finished run came to."""
        from distributed import KilledWorker

        try:
            return future.result()
        except KilledWorker as error:
            raise WorkerDied from error
        except CancelledError as error:  # nobody here cancels a run and then asks for its result
            raise self.lost() from error

    def lost(self) -> InputError:
        """What is said when the scheduler is gone."""
        return InputError(
            f"the scheduler at {self.address} was lost: start a cluster again, and the same command goes on from here"
        )

    def news(self) -> Iterator[tuple[Key, int]]:
        """Which run has reached which round since the last call; says so where another worker took a run over."""
        while self.heard:
            worker, arm, seed, candidate, at = self.heard.popleft()
            key = (arm, seed, candidate)
            if self.trained_on.setdefault(key, worker) != worker:
                self.trained_on[key] = worker
                tqdm.write(f"a worker was lost: {title(*key)} is repeated from round {at}")
            yield key, at

    def stop(self) -> None:
        """Nothing: a run that is cancelled stops before its next round."""

    def close(self) -> None:
        """Leave the cluster as it was found, without the runs in hand."""
        self.client.close()


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
        # a full path, which means the same to workers elsewhere
        self.checkpoints = ledger.folder.resolve() / ".checkpoints" / experiment.name

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
                        config = make_config(arm.method, **(base | candidate)).resolved()
                        yield Task(name, arm.key, seed, config, number)
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
    workers: int | None = None,
    scheduler: str | None = None,
    budget: float | None = None,
    device: str = "auto",
    ledger: Ledger | None = None,
) -> Swept:
    """Train what the ledger lacks of an experiment; returns the files written and what is left.

    Only this process writes the ledger, one result a run, so a run that was repeated after its worker died is entered once.

    Args:
        name: an experiment (`pfl-lite experiments`).
        methods: keys of the arms to run (all by default).
        seeds: seeds of the results (the protocol's by default).
        rounds: rounds of the results (the protocol's by default); tables name a smaller number.
        workers: processes, each with one thread (1 by default); with `scheduler`, runs in hand at once (one a worker by default).
        scheduler: address of a Dask scheduler whose workers train, instead of processes of this machine.
        budget: seconds after which no new round starts; the next call goes on from there.
        device: `auto`, `cpu` or `cuda`; `auto` is what this machine has.
        ledger: where results are read and written.

    Raises:
        InputError: before any work, for an unknown name or a setting that cannot be; also where the ledger holds a complete run
            of another configuration, which is never overwritten, where the data is not at hand, where another call trains for the
            same experiment and ledger, and where no scheduler answers. In the middle, where the scheduler is lost; at the end,
            where the workers of a run died again and again.
    """
    experiment = get_experiment(name)
    arms = experiment.arms if methods is None else [experiment.arm(key) for key in methods]
    for what, value in (("workers", workers), ("rounds", rounds), ("budget", budget)):
        if value is not None and value <= 0:
            raise InputError(f"{what} must be positive, not {value}")
    ledger = ledger or Ledger()
    sweep = Sweep(experiment, arms, experiment.seeds if seeds is None else seeds, rounds, device, ledger)
    with ledger.reserved(name):
        pending = list(sweep.tasks())  # also checks every configuration before the first worker starts
        if not pending:
            return Swept([], sweep.left(), False)
        load(experiment.data)  # fetched once, here, before several workers would
        crew = Machine(workers or 1) if scheduler is None else Cluster(scheduler, workers)
        with closing(crew):
            sweep.checkpoints.mkdir(parents=True, exist_ok=True)  # a worker that does not see it keeps none
            return work_off(sweep, pending, crew, budget)


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
                    tqdm.write(f"{again} {task.title}: {describe(task)}")
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
                    tqdm.write(f"done {task.title} in {report['seconds']:.0f} s: {written[-1]}")
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


def describe(task: Task) -> str:
    """The settings that tell tasks apart, in a few words."""
    values = task.config.as_dict()
    rates = {"lr": values["lr"]} | (
        {"alpha_lr": values["method"]["alpha_lr"]} if "alpha_lr" in values["method"] else {}
    )
    return ", ".join(f"{name} {value}" for name, value in rates.items()) + f", {values['rounds']} rounds"
