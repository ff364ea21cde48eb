"""The loop over clients, shared out over processes of this machine: the same numbers, sooner."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import torch

from pfl_lite.config import RunConfig
from pfl_lite.data.federation import Federation
from pfl_lite.engine.mapping import Loop, Mapping, PerClient, WorkFor, in_client_order
from pfl_lite.errors import InputError
from pfl_lite.methods.base import Sequential
from pfl_lite.models import Network, Params
from pfl_lite.schema import check_workers

WORTH_SECONDS = 0.5
"""What one process does in less time is not shared out: to fork a process of a gigabyte takes up to a tenth of a second."""


class Forked(Loop):
    """`Loop` in several processes with one thread each, forked anew for every call.

    A forked process sees images, server and clients' states in the memory of the one that made it, so nothing is copied or sent
    to it; what comes back are the clients' answers. Every client is computed by the code of `Loop`, operation by operation: the
    numbers are equal bit for bit.

    Raises:
        InputError: this system cannot fork safely, or PyTorch sees a GPU.
    """

    def __init__(self, network: Network, federation: Federation, config: RunConfig, workers: int) -> None:
        super().__init__(network, federation, config)
        if torch.cuda.device_count():  # torch's threads for its gradients do not survive a fork
            raise InputError(
                "one run on several processes cannot be where PyTorch sees a GPU: set CUDA_VISIBLE_DEVICES to nothing "
                "before Python starts, or use one worker"
            )
        if not sys.platform.startswith("linux"):
            raise InputError("one run on several processes needs Linux: use one worker here")
        self.workers = workers
        self.seconds: dict[object, float] = {}  # that one process would need for what was asked last

    def stacked(
        self, function: PerClient, server: Params, clients: Params, ids: list[int], work_for: WorkFor
    ) -> tuple[Params, ...]:
        # tensors of their own, no views of larger ones
        loop = partial(super().stacked, function, server, clients, work_for=work_for)
        started = time.perf_counter()
        if self.seconds.get(function.__code__, WORTH_SECONDS) < WORTH_SECONDS or len(ids) == 1:
            with one_thread():  # as where it is shared out: the last bits depend on it
                answered = loop(ids)
            self.seconds[function.__code__] = time.perf_counter() - started
            return answered
        sizes = self.federation.train_sizes.tolist()
        dealt = shares(ids, sizes, self.workers)
        # this process neither has to be forked nor to hand anything over: the longest share is its own
        first, *others = sorted(dealt, key=lambda share: -sum(sizes[i] for i in share))

        def found(share: list[int]) -> tuple[tuple[Params, ...], int]:
            # in the child, which would say the same of its share, under a lock that may stay held
            self.progress = None
            before = self.images_trained
            return loop(share), self.images_trained - before

        team: list[Child] = []
        with one_thread():
            try:
                for share in others:
                    with held_back():  # or a process just forked would be in no team, and go on
                        team.append(Child(partial(found, share)))
                begun = time.perf_counter()
                done = [(first, loop(first))]
                own = time.perf_counter() - begun
                for share, one in zip(others, team, strict=True):
                    theirs, images = one.answer()
                    done.append((share, theirs))
                    self.images_trained += images
            finally:
                for one in team:
                    one.end()
        # by its own share, without what forking and sending took: a call that is too short stays unshared from now on
        self.seconds[function.__code__] = own * sum(sizes[i] for i in ids) / sum(sizes[i] for i in first)
        places = {i: place for place, i in enumerate(ids)}
        return in_client_order([([places[i] for i in share], part) for share, part in done], self.device)


class Child:
    """A forked process that computes something and leaves it, or the exception that it raised, in memory that both hold as a file
    without a name.

    A pool would have to be forked anew for every call, for the closure and the states that it is to see, and its workers outlive
    a parent that is killed. concurrent.futures took 1.7 times as long for 4 MB and 1.06 times for 160 MB (medians of seven in
    turns, two busy cores: 0.58 s and 2.7 s this way).
    """

    def __init__(self, compute: Callable[[], Any]) -> None:
        # in memory if this Python can: conda's is built for a system that could not
        if hasattr(os, "memfd_create"):
            self.memory = os.memfd_create("answer")
        else:
            self.memory = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR, 0o600)
        self.page = f"/proc/self/fd/{self.memory}"
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=self.work, args=(compute,), daemon=True)
        with warnings.catch_warnings():
            # Python warns of locks that another thread may hold for ever: a child here asks for none
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()

    def work(self, compute: Callable[[], Any]) -> None:
        """What the process does."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the process that asked
        for one in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(one) != signal.SIG_IGN:  # as under nohup
                signal.signal(one, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held())
        try:
            found = compute()
        except Exception as error:
            found = as_sent(error)
        torch.save(found, self.page)

    def answer(self) -> Any:
        """What it found; an exception of its own is raised here."""
        wait([self.process.sentinel])
        with held_back():  # the system tells once that a process has ended, and an interrupt would lose it
            self.process.join()
        if self.process.exitcode:
            raise InputError("a worker process was killed, most likely out of memory: use fewer workers")
        found = torch.load(self.page, mmap=True, weights_only=False)
        if isinstance(found, Exception):
            raise found
        return found

    def end(self) -> None:
        """Let nothing of it stay behind."""
        with held_back():
            self.process.kill()
            self.process.join()
            self.process.close()
            os.close(self.memory)


def held() -> list[signal.Signals]:
    """The signals that ask a program to end, an interrupt last; not every system has them all."""
    return [getattr(signal, name) for name in ("SIGHUP", "SIGTERM", "SIGINT") if hasattr(signal, name)]


@contextmanager
def noted(tell: Callable[[int], object], default: bool = False) -> Iterator[list[int]]:
    """Signals that come in the block are told and listed, and do nothing else; in the main thread, which alone answers them.

    Only those that Python would answer, unless those whose `default` is to end the process are to wait, too: a script that
    calls us again and again must not go on.
    """
    came: list[int] = []
    answers: dict[signal.Signals, Any] = {}

    def note(number: int, _: object) -> None:
        came.append(number)
        tell(number)

    try:
        if threading.current_thread() is threading.main_thread():
            for one in held():
                if callable(answer := signal.getsignal(one)) or (default and answer == signal.SIG_DFL):
                    answers[one] = answer  # first: a signal not yet noted may be answered here
                    signal.signal(one, note)
        yield came
    finally:
        for one, answer in answers.items():
            signal.signal(one, answer)


@contextmanager
def held_back() -> Iterator[None]:
    """Signals wait for the end of the block, whichever thread hears them.

    A process that is forked in it lets them in once it has answers of its own.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, held())
    came: list[int] = []
    try:
        with noted(came.append, default=True):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in came:
            signal.raise_signal(number)


def as_sent(error: Exception) -> Exception:
    """An exception that another process can raise, with the place where it was raised as a note."""
    said = "in a worker process:\n" + "".join(traceback.format_exception(error))
    error.add_note(said)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(said)
    return error


def shares(ids: Sequence[int], sizes: Sequence[int], workers: int) -> list[list[int]]:
    """The clients dealt out to at most `workers` processes, the largest first, each to the one with the fewest images so far."""
    dealt: list[list[int]] = [[] for _ in range(min(workers, len(ids)))]
    load = [0] * len(dealt)
    for i in sorted(ids, key=lambda i: -sizes[i]):
        lightest = load.index(min(load))
        dealt[lightest].append(i)
        load[lightest] += sizes[i]
    return dealt


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch with one thread in this process, and in those that it forks."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def over_processes(workers: int, config: RunConfig) -> Callable[..., Mapping] | None:
    """What makes the mapping of a run that shares out its clients over so many processes; None for one, the run's own.

    Raises:
        InputError: so many processes cannot share out the clients of a round.
    """
    config = config.resolved()
    check_workers(workers)
    if workers == 1:
        return None
    if config.device == "cuda":  # first, as its engine is another by itself
        raise InputError(
            f"{workers} workers share out the cores of a processor: use --device cpu, or one worker"
        )
    if config.engine != "loop":
        raise InputError(
            f"{workers} workers share out the engine loop, not {config.engine}: use --engine loop"
        )
    if isinstance(config.method, Sequential) and config.method.in_turns:
        raise InputError(f"clients of {config.method.name} hand on to one another here: use one worker")
    return partial(Forked, workers=workers)
