"""Train what the ledger lacks of an experiment: search on validation data, then train every arm and seed."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from operator import add
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from tqdm import tqdm

from pfl_lite.atomic_files import locked
from pfl_lite.data.images import load
from pfl_lite.engine.history import diverged_in
from pfl_lite.engine.processes import noted
from pfl_lite.errors import InputError
from pfl_lite.papers import DEFAULT_BUDGET, Arm, Experiment, get_experiment, members
from pfl_lite.papers.experiment import best_first, in_grid_order
from pfl_lite.results.executors import DaskExecutor, ProcessExecutor, Report, WorkerDied
from pfl_lite.results.ledger import Ledger, flat
from pfl_lite.results.plan import Key, Plan, Task
from pfl_lite.results.tables import accuracy
from pfl_lite.schema import check_workers

POLL_SECONDS = 5.0
SIGN_OF_LIFE_SECONDS = 30.0  # off a terminal, where no bar is shown
SHOWN = 4  # runs whose rounds a progress line names


class Swept(NamedTuple):
    """What a call of `reproduce` came to: the files written, the runs still to be trained, and what interrupted it."""

    written: list[Path]
    left: int
    interrupted: int
    """The number of the signal that interrupted it, 0 if none did."""
    results: int = 0
    """How many of the files are results; the others are searches and attempts that diverged."""
    given_up: tuple[str, ...] = ()
    """The runs whose workers died again and again."""


def reproduce(
    name: str,
    *,
    budget: str = DEFAULT_BUDGET,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    rounds: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    seconds: float | None = None,
    device: str = "auto",
    tf32: bool = False,
    ledger: Ledger | None = None,
) -> Swept:
    """Train what the ledger lacks of an experiment, or of a group's in turn; returns what was written and what is left.

    Only this process writes the ledger, one result a run, so a run that was repeated after its worker died is entered once.

    Args:
        name: an experiment, or a group of them (`pfl-lite experiments`).
        budget: `small` or `paper`; the ledger keeps their runs apart.
        methods: keys of the arms to run (all by default).
        seeds: seeds of the results (the protocol's by default).
        rounds: rounds of the results (the protocol's by default); tables name a smaller number.
        workers: processes, each with one thread (1 by default); with `scheduler`, runs in hand at once (one a worker by default).
        scheduler: address of a Dask scheduler whose workers train, instead of processes of this machine.
        seconds: after which no new round starts; the next call goes on from there.
        device: `auto`, `cpu` or `cuda`; `auto` is what this machine has.
        tf32: products on a GPU in TF32, or exact ones.
        ledger: where results are read and written.

    Raises:
        InputError: before any work, for an unknown name or a setting that cannot be; also where the ledger holds a complete run
            of another configuration, which is never overwritten, where the data is not at hand, where another call trains for the
            same experiment and ledger, and where no scheduler answers. In the middle, where the scheduler is lost; at the end,
            where the workers of a run died again and again.
    """
    for what, value in (("rounds", rounds), ("seconds", seconds)):
        if value is not None and value <= 0:
            raise InputError(f"{what} must be positive, not {value}")
    if workers is not None:
        check_workers(workers)
    deadline = float("inf") if seconds is None else time.monotonic() + seconds
    experiments = [get_experiment(part, budget) for part in members(name)]
    experiments.sort(key=lambda one: one.searched_in is not None)  # after those that search for them
    longest = max(one.rounds_of(arm) for one in experiments for arm in one.arms)
    if rounds is not None and rounds > longest:
        raise InputError(f"{name} is trained for {longest} rounds: ask for fewer, or leave rounds out")
    ledger, plans = ledger or Ledger(), list[Plan]()
    for experiment in experiments:  # what is wrong with one of them is told before the first is trained
        arms = None if methods is None else asked_arms(experiment, methods)
        wanted = None if seeds is None else list(dict.fromkeys(seeds))
        plans.append(Plan(experiment, ledger, arms, wanted, rounds, device, tf32))
        plans[-1].validate(plans[:-1])
    if beside := sorted(set(seeds or ()).difference(*(one.seeds for one in experiments))):
        words = f"seed {beside[0]} is" if len(beside) == 1 else f"seeds {', '.join(map(str, beside))} are"
        warnings.warn(
            f"{words} not among the planned ones: no table and no verdict counts such runs", stacklevel=2
        )
    done = Swept([], 0, 0)
    for number, plan in enumerate(plans, 1):
        part = run_plan(plan, workers, scheduler, deadline)
        done = Swept(*map(add, done, part))  # the first that is interrupted ends the sweep
        if done.interrupted or time.monotonic() >= deadline:
            later = sum(rest.left() for rest in plans[number:])
            done = done._replace(left=done.left + later)
            break
    if done.given_up and not done.interrupted:
        raise InputError(
            f"given up after their workers died again and again, most likely out of memory: {', '.join(done.given_up)}; "
            "the same command tries them again: use fewer workers on a machine, or give each more memory"
        )
    return done


def run_plan(plan: Plan, workers: int | None, scheduler: str | None, deadline: float) -> Swept:
    """Train one experiment's tasks, while no other process trains for it."""
    with locked(plan.ledger.folder / plan.experiment.name):
        pending = list(plan.tasks())
        if not pending:
            return Swept([], plan.left(), 0)
        executor: ProcessExecutor | DaskExecutor = (
            ProcessExecutor(workers or 1) if scheduler is None else DaskExecutor(scheduler, workers)
        )
        with closing(executor):
            load(plan.experiment.data)  # fetched once, here, before several workers would
            plan.checkpoints.mkdir(parents=True, exist_ok=True)  # a worker that does not see it keeps none
            try:
                return run_tasks(plan, pending, executor, deadline)
            finally:
                for folder in (plan.checkpoints, plan.checkpoints.parent):
                    with suppress(OSError):  # there are others
                        folder.rmdir()


def asked_arms(experiment: Experiment, methods: Sequence[str]) -> list[Arm]:
    """The arms with some keys, each once.

    Raises:
        InputError: an unknown key, or an arm whose runs another experiment makes.
    """
    arms = [experiment.arm(key) for key in dict.fromkeys(methods)]
    for arm in arms:
        if arm.run_of is not None:
            raise InputError(
                f"{arm.key} of {experiment.name} is {arm.rates_of} of {arm.run_of}: "
                f"`{get_experiment(arm.run_of, experiment.budget).command(str(arm.rates_of))}` makes its runs"
            )
    return arms


def run_tasks(
    plan: Plan, pending: list[Task], executor: ProcessExecutor | DaskExecutor, deadline: float
) -> Swept:
    """Hand out tasks, wait for them and enter them, until nothing is left or none may go on."""
    results = 0
    written: list[Path] = []
    running: dict[Future[Report], Task] = {}
    reached: dict[Key, int] = {}
    deaths: Counter[tuple[Key, int]] = Counter()
    given_up: dict[Key, Task] = {}
    news: SimpleQueue[None] = SimpleQueue()  # a run has ended, or a signal has come
    said, late = time.monotonic(), False
    tqdm.write(f"{plan.experiment.name}: {work(plan, pending)}")
    bar = tqdm(desc=plan.experiment.name, total=plan.left(pending), unit="run", disable=None)
    # An exception might lose a run just handed out or a report in hand, or leave a future locked that its worker waits for.
    with bar, noted(lambda _: news.put(None)) as signals:
        while True:
            if signals and not late:
                tqdm.write("interrupted: workers finish the rounds in hand")
            late = bool(signals) or time.monotonic() > deadline
            if late:
                executor.stop()
                for future in [one for one in running if one.cancel()]:
                    tqdm.write(f"stopped {running.pop(future).title}; the next call goes on with it")
            busy = {task.key for task in running.values()} | given_up.keys()
            waiting = [task for task in pending if task.key not in busy]
            room = 0 if late or not waiting else executor.room() - len(running)
            for task in waiting[: max(0, room)]:
                again = "go on with" if plan.checkpoint(*task.key).exists() else "start"
                settings = describe(task, plan.source(plan.experiment.arm(task.arm)))
                tqdm.write(f"{again} {task.title}: {settings}")
                future = executor.submit(task, plan.checkpoint(*task.key))
                running[future] = task
                future.add_done_callback(lambda _: news.put(None))
            if not running:
                break
            patience = POLL_SECONDS if late else min(POLL_SECONDS, max(0.0, deadline - time.monotonic()))
            with suppress(Empty):
                news.get(timeout=patience)
            reached.update(executor.news())
            where = progress(running.values(), reached)
            bar.set_postfix_str(where)
            if bar.disable and time.monotonic() - said > SIGN_OF_LIFE_SECONDS:
                tqdm.write(where)
                said = time.monotonic()
            finished = [one for one in running if one.done()]
            while finished:
                future = finished.pop()
                task = running.pop(future)
                try:
                    report = executor.result(future)
                except WorkerDied:
                    at = reached.get(task.key, 0)
                    tqdm.write(f"a worker was lost: {task.title} had reached round {at}")
                    deaths[task.key, at] += 1
                    if deaths[task.key, at] >= executor.patience:
                        given_up[task.key] = task
                    continue
                # a cluster repeats what is still asked for, should the worker that holds it die now
                del future
                if report is None:
                    begun = plan.checkpoint(*task.key).exists()
                    then = "goes on from its checkpoint" if begun else "starts it anew"
                    tqdm.write(f"stopped {task.title}; the next call {then}")
                    continue
                written.append(record(plan, task, report))
                lost = diverged_in(report["rounds"])
                results += task.candidate is None and None in (lost, task.attempt)
                how = "done" if None in (lost, task.attempt) else f"diverged in round {lost}:"
                tqdm.write(f"{how} {task.title} in {report['seconds']:.0f} s: {written[-1]}")
                bar.update()
                pending = list(plan.tasks())
                bar.total = len(written) + plan.left(pending)
    titles = tuple(f"{task.title} of {task.experiment}" for task in given_up.values())
    return Swept(written, plan.left(), signals[0] if signals else 0, results, titles)


def work(plan: Plan, pending: Sequence[Task]) -> str:
    """What there is to do, as `3 candidates to score, 1 result to train`; ladders may add candidates."""
    candidates, results = sum(task.candidate is not None for task in pending), len(plan.missing())
    counts = (candidates, "candidate", "to score"), (results, "result", "to train")
    return ", ".join(f"{n} {what}{'s' * (n != 1)} {to}" for n, what, to in counts if n)


def progress(tasks: Iterable[Task], reached: dict[Key, int]) -> str:
    """How many rounds the runs in hand have done, and of which the next is the last, whose tuning and scores may take long."""
    where = []
    for task in tasks:
        at, last = reached.get(task.key, 0), task.config.rounds
        where.append(
            f"{task.title} round {at}/{last}" + (", then tuned and scored" if at == last - 1 else "")
        )
    more = [f"{len(where) - SHOWN} more"] if len(where) > SHOWN else []
    return ", ".join(where[:SHOWN] + more)


def describe(task: Task, source: Arm) -> str:
    """The rate and whatever else tells the candidates of the arm that searched apart, in a few words."""
    used = flat(task.config.as_dict())
    searched = dict.fromkeys(["lr", *(name for one in source.grid for name in one)])
    return ", ".join(f"{name} {used[name]}" for name in searched) + f", {task.config.rounds} rounds"


def record(plan: Plan, task: Task, report: dict[str, Any]) -> Path:
    """Enter a finished task into the ledger, then drop what it went on from."""
    head, at = {"experiment": task.experiment, "arm": task.arm}, diverged_in(report["rounds"])
    if task.attempt is not None and at is not None:
        begun = plan.checkpoint(*task.key)  # the next attempt has another
        ended = {"kind": "diverged", "attempt": task.attempt, "seed": task.seed, "complete": False}
        path = plan.ledger.write(head | report | ended)
        begun.unlink(missing_ok=True)
        return path
    if task.candidate is None:
        path = plan.ledger.write(head | {"seed": task.seed} | report)
    else:
        arm = plan.experiment.arm(task.arm)
        scored = {
            "settings": plan.grid(arm)[task.candidate],
            "validation_accuracy": accuracy(report, "val_accuracy") / 100,
            "rounds": task.config.rounds,
            "seed": task.seed,
            "seconds": report["seconds"],
        } | ({} if at is None else {"diverged": at})
        before = plan.known(arm)
        candidates = in_grid_order(plan.grid(arm), [*plan.searched(arm), scored])
        best = min(candidates, key=best_first)["settings"]
        candidates += [one for one in before if one not in candidates]  # of an earlier protocol: kept
        path = plan.ledger.write({"kind": "search", **head, "candidates": candidates, "chosen": best})
    clear(plan, task)
    return path


def clear(plan: Plan, task: Task) -> None:
    """Drop the checkpoint of a finished task, and of the run whose training it took over, once no other task waits for it."""
    if task.candidate is not None:
        plan.checkpoint(*task.key).unlink(missing_ok=True)
        return
    for key in filter(None, (task.arm, plan.experiment.arm(task.arm).trained_by)):
        heirs = [arm for arm in plan.experiment.arms if arm.trained_by == key]
        if all(plan.has(arm, task.seed) for arm in (plan.experiment.arm(key), *heirs)):
            plan.checkpoint(key, task.seed).unlink(missing_ok=True)
