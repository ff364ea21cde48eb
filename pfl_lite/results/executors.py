"""Who trains the runs of a plan: processes of this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pfl_lite.errors import InputError, refused
from pfl_lite.results.plan import Key, Task, title

CONNECT_SECONDS = 5.0
PATIENCE_SECONDS = 5.0  # with a process that has been asked to end

Report = dict[str, Any] | None


def train(task: Task, checkpoint: Path, stop: Callable[[Key, int], bool]) -> Report:
    """Train one task from its checkpoint on; its report, or None when `stop(key, round)`, asked before a round, ended it.

    An attempt that diverges ends after that round.
    Where the checkpoint's folder cannot be written, which is a machine that does not share it, the run is made in one go.
    """
    import torch

    from pfl_lite.engine.simulation import Simulation

    if task.config.device != "cuda":
        torch.set_num_threads(1)
    simulation = Simulation(task.config)
    kept = checkpoint if os.access(checkpoint.parent, os.W_OK) else None
    begun = kept is not None and kept.exists()
    if task.trained_by is not None and os.access(task.trained_by[0], os.R_OK) and not begun:
        if stop(task.key, task.config.rounds - 1):  # what comes after the last round is all that is left
            return None
        simulation.load(*task.trained_by)

    def diverged() -> bool:
        return task.attempt is not None and simulation.diverged_in is not None

    def ends() -> bool:
        return diverged() or stop(task.key, simulation.round)

    done = simulation.run(checkpoint=kept, stop=ends, progress=False)
    return simulation.report() if done or diverged() else None


class WorkerDied(Exception):
    """A run's worker was killed, ran out of memory or lost its machine, and no other repeats the run by itself."""


def serve(line: Connection) -> None:
    """In a worker process: train one task after another, say each round, and answer with a report or an error.

    A worker whose parent was killed ends at once, from whatever it does: its result could not be entered.
    """
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=end_with, args=(parent.sentinel,), daemon=True).start()
    import pfl_lite.engine.simulation  # noqa: F401 (what takes long is done before the first run is taken)
    from pfl_lite.engine.processes import as_sent

    def stop(key: Key, at: int) -> bool:
        """Say which round a run has reached; whether it is to stop."""
        line.send((key, at))
        return line.poll()  # the parent says nothing else in the middle of a run

    line.send(None)
    with suppress(EOFError):
        while (asked := line.recv()) is not None:
            task, checkpoint = asked
            answer: Report | Exception
            try:
                answer = train(task, checkpoint, stop)
            except Exception as error:
                answer = as_sent(error)
            line.send((None, answer))


def end_with(sentinel: int) -> None:
    """End this process as soon as the one that a sentinel stands for has ended."""
    wait([sentinel])
    os._exit(1)


class Worker:
    """A process that trains one run at a time; `train` waits for it in a thread of its own.

    Raises:
        WorkerDied: it does not even start, however often that is tried.
    """

    starts = 10

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        for _ in range(self.starts):  # a death here is no run's
            self.line, theirs = context.Pipe()
            self.process = context.Process(target=serve, args=(theirs,), daemon=True)
            self.process.start()
            theirs.close()
            with suppress(EOFError, OSError):
                self.line.recv()
                return
        raise WorkerDied

    def train(self, task: Task, checkpoint: Path, heard: deque[tuple[Key, int]]) -> Report:
        """Its report on a task; rounds are `heard` meanwhile."""
        try:
            self.line.send((task, checkpoint))
            while (news := self.line.recv())[0] is not None:
                heard.append(news)
        except (EOFError, OSError) as error:
            raise WorkerDied from error
        if isinstance(news[1], Exception):
            raise news[1]
        report: Report = news[1]
        return report

    def stop(self) -> None:
        """Let it start no other round, nor run."""
        with suppress(OSError):
            self.line.send(None)


class ProcessExecutor:
    """Worker processes of this machine, each with one run at a time: where one dies, no other run is touched.

    Dask's own cluster of one machine (`LocalCluster`) starts as fast and survives a killed worker as well. But an interrupt gives
    a round in hand four seconds before it is killed, one that comes while the cluster starts shows a traceback, and its ports
    take code from every account of the machine, while a pipe has two ends. A pool of concurrent.futures fails as a whole when
    one of its processes dies.

    Raises:
        InputError: this system cannot keep signals from its processes.
    """

    patience = 3  # deaths of its worker at one and the same round after which a run is given up

    def __init__(self, workers: int) -> None:
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            raise InputError(
                "training for the ledger needs Linux or macOS: use one of them, or a Dask scheduler (--scheduler)"
            )
        self.workers, self.stopped = workers, False
        self.heard: deque[tuple[Key, int]] = deque()
        self.own = threading.local()  # the worker of each thread of the pool
        self.started: list[Worker] = []
        # Processes inherit what the thread that starts them does not listen to: a signal to all, by Ctrl-C, the end of a
        # terminal or a batch system, is answered here alone, while they finish the round in hand.
        resource_tracker.ensure_running()
        heard_here = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}
        deaf = partial(signal.pthread_sigmask, signal.SIG_BLOCK, heard_here)
        self.pool = ThreadPoolExecutor(workers, initializer=deaf)

    def room(self) -> int:
        """How many runs can be in hand at once."""
        return self.workers

    def submit(self, task: Task, checkpoint: Path) -> Future[Report]:
        """Start a run, or queue it."""
        return self.pool.submit(self._train, task, checkpoint)

    def _train(self, task: Task, checkpoint: Path) -> Report:
        worker: Worker | None = getattr(self.own, "worker", None)
        if worker is None or not worker.process.is_alive():  # killed while it had no run
            worker = self.own.worker = Worker()
            self.started.append(worker)
        try:
            return None if self.stopped else worker.train(task, checkpoint, self.heard)
        except WorkerDied:
            self.own.worker = None  # its process may seem to live a moment longer
            if self.stopped:  # most likely told to end in the moment in which it was handed the run
                return None
            raise
        finally:
            if self.stopped:
                worker.stop()  # nothing else would, if it has started since or `close` is interrupted

    def result(self, future: Future[Report]) -> Report:
        """What a finished run came to."""
        return future.result()

    def news(self) -> Iterator[tuple[Key, int]]:
        """Which run has reached which round since the last call."""
        while self.heard:
            yield self.heard.popleft()

    def stop(self) -> None:
        """Let no run start another round."""
        if not self.stopped:
            self.stopped = True
            for worker in list(self.started):
                worker.stop()

    def close(self) -> None:
        """Wait for the rounds in hand, then end the processes."""
        self.stop()
        self.pool.shutdown()
        for worker in self.started:
            worker.process.join(PATIENCE_SECONDS)


def tell_cluster(topic: str, key: Key, at: int) -> bool:
    """On a worker of a cluster: say which round a run has reached; whether it is to stop, as no one waits for it."""
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

    where = f"the worker on {socket.gethostname()} cannot train"
    with refused(InputError, lambda error: f"{where}: {error}"):
        if (threads := get_worker().state.nthreads) != 1:  # runs in one process would share torch's generator
            raise InputError(
                f"it has {threads} threads: start it with --nthreads 1, and several with --nworkers"
            )
        from pfl_lite.engine.report import versions

        for name in ("pfl_lite", "torch"):
            if (mine := versions()[name]) != wanted[name]:
                raise InputError(f"it has {name} {mine} and not {wanted[name]}: install the same everywhere")
        return train(task, checkpoint, partial(tell_cluster, topic))


class DaskExecutor:
    """The workers of a Dask cluster, however many there are at the moment.

    The cluster repeats a run whose worker has died on another one, and forgets the runs of a client that has gone: a worker then
    stops before its next round.

    Raises:
        InputError: Dask is not installed, or no scheduler answers at the address.
    """

    patience = 2  # reports of death; each comes after four workers (Dask: `allowed-failures`)

    def __init__(self, address: str, at_most: int | None) -> None:
        how = "pip install 'pfl-lite[cluster]'"
        with refused(ImportError, f"many machines need Dask, which is not installed: {how}"):
            from distributed import Client, Security, rpc
        from pfl_lite.engine.report import versions

        async def answer() -> str:
            """What kind of server this is; a client alone would wait for ever where it is none of Dask's."""
            async with rpc(address, connection_args=Security().get_connection_args("client")) as server:
                return str((await asyncio.wait_for(server.identity(), CONNECT_SECONDS))["type"])

        right = "name the address that `dask scheduler` prints, such as tcp://10.0.0.1:8786"
        with refused(
            (OSError, ValueError, RuntimeError),
            lambda error: f"no Dask scheduler answers at '{address}' ({str(error) or 'silence'}): {right}",
        ):
            with ThreadPoolExecutor(1) as aside:  # a notebook has an event loop of its own
                found = aside.submit(asyncio.run, answer()).result()
            if found != "Scheduler":
                raise ValueError(f"a {found} answers there")
            self.client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        again = "start a cluster again, and the same command goes on from here"
        self.lost, self.at_most = f"the scheduler at {address} was lost: {again}", at_most
        self.pool = self.client.get_executor(pure=False)
        self.topic, self.versions = f"pfl-lite {self.client.id}", versions()
        self.heard: deque[Sequence[Any]] = deque()
        self.trained_on: dict[Key, str] = {}
        self.client.subscribe_topic(self.topic, lambda event: self.heard.append(event[1]))
        if not self.client.nthreads():
            tqdm.write(f"{address} has no worker yet: runs start when one comes")

    def room(self) -> int:
        """How many runs can be in hand at once: one a worker, and one that waits for the first worker."""
        with refused(OSError, self.lost):
            workers = max(1, len(self.client.nthreads()))
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
            # no line here cancels a run and then asks for its result
            with refused(CancelledError, self.lost):
                return future.result()
        except KilledWorker as error:
            raise WorkerDied from error

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
        """Nothing: a run that is canceled stops before its next round."""

    def close(self) -> None:
        """Leave the cluster as it was found, without the runs in hand."""
        self.client.close()
