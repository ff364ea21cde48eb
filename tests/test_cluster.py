"""Sweeps on a Dask cluster of two worker processes: a worker dies, an interrupt comes, an address is wrong."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_sweep import ROUNDS, Inline, enter_steady, entries, when

from pfl_lite.errors import InputError
from pfl_lite.results import executors, runner
from pfl_lite.results.ledger import Ledger

distributed = pytest.importorskip(
    "distributed", reason="Dask is not installed: pip install 'pfl-lite[cluster]'"
)


class Workers:
    """A scheduler in this process, and workers that are processes of their own, as if on other machines."""

    def __init__(self, folder: Path) -> None:
        self.cluster = distributed.LocalCluster(n_workers=0, dashboard_address=":0")
        self.address, self.folder = str(self.cluster.scheduler_address), folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", self.address, "--name", name]
        command += ["--nthreads=1", "--no-nanny", "--no-dashboard", f"--local-directory={self.folder}"]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def known(self) -> dict[str, Any]:
        """What the scheduler knows of every worker, by name."""
        return {one.name: one for one in self.cluster.scheduler.workers.values()}

    def last_word(self, name: str) -> tuple[Any, ...]:
        """What the sweep heard last from a worker: arm, seed, candidate and round; nothing if it has not trained."""

        async def heard() -> list[tuple[float, list[Any]]]:
            topics = self.cluster.scheduler.get_events()
            return [event for topic in topics if topic.startswith("pfl-lite") for event in topics[topic]]

        mine = self.known()[name].server_id
        said = [(at, words) for at, (worker, *words) in self.cluster.sync(heard) if worker == mine]
        return tuple(max(said, key=lambda one: one[0])[1]) if said else ()

    def wait_for(self, *names: str) -> None:
        until = time.monotonic() + 600
        while self.known().keys() != set(names) and time.monotonic() < until:
            time.sleep(0.05)
        assert self.known().keys() == set(names)

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        self.cluster.close()


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    started = Workers(tmp_path_factory.mktemp("workers"))
    for name in ("first", "second"):
        started.start(name)
    yield started
    started.close()


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> str:
    return enter_steady(monkeypatch)


def refused(name: str, scheduler: str, folder: Path) -> str:
    """What is said where nothing can be trained."""
    with pytest.raises(InputError) as error:
        runner.reproduce(name, scheduler=scheduler, device="cpu", ledger=Ledger(folder))
    assert "\n" not in str(error.value)
    return str(error.value)


def caught(workers: Workers, name: str, folder: Path) -> bool:
    """Whether a worker is in the middle of a result of its own, where it then stands still; else it goes on."""
    arm, seed, candidate, _ = workers.last_word(name) or ("", 0, 0, 0)
    if candidate is not None:
        return False
    workers.processes[name].send_signal(signal.SIGSTOP)
    checkpoint = next(folder.rglob(f"{arm}-seed{seed}-run.pt"), None)
    try:
        if checkpoint is not None and torch.load(checkpoint, weights_only=True)["round"] < ROUNDS:
            return True
    except FileNotFoundError:  # the result has just landed
        pass
    workers.processes[name].send_signal(signal.SIGCONT)
    return False


def test_a_worker_is_killed_and_every_run_lands_once_with_the_same_numbers(
    workers: Workers,
    steady: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    workers.wait_for("first", "second")
    folder = tmp_path / "cluster"
    killed = when(lambda: caught(workers, "first", folder), lambda: workers.kill("first"))
    done = runner.reproduce(steady, scheduler=workers.address, device="cpu", ledger=Ledger(folder))
    said = capsys.readouterr().out
    assert not killed.is_alive() and "first" not in workers.processes
    repeated = re.findall(r"a worker was lost: \w+ seed \d is repeated from round (\d+)", said)
    assert len(repeated) == 1 and 0 < int(repeated[0]) < ROUNDS, said
    assert done.left == 0 and len(done.written) == 2 + 4 and not list(folder.rglob("*.pt"))
    assert said.count("done ") == 6 and len({line for line in said.splitlines() if "done " in line}) == 6
    monkeypatch.setattr(executors, "ThreadPoolExecutor", Inline)
    runner.reproduce(steady, workers=1, device="cpu", ledger=Ledger(tmp_path / "alone"))
    assert entries(folder) == entries(tmp_path / "alone")


def test_an_interrupt_and_a_budget_leave_the_cluster_at_once_and_the_next_call_goes_on(
    workers: Workers, steady: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {
        "scheduler": workers.address,
        "device": "cpu",
        "methods": ["local"],
        "seeds": [0],
    }
    ledger = Ledger(tmp_path)
    here, usual = threading.get_ident(), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    when(lambda: list(tmp_path.rglob("*.pt")), lambda: signal.pthread_kill(here, signal.SIGINT))
    try:
        assert runner.reproduce(steady, ledger=ledger, **asked) == ([], 1, signal.SIGINT, 0, ())
    finally:
        signal.signal(signal.SIGINT, usual)
    with distributed.Client(workers.address, set_as_default=False) as client:
        until = time.monotonic() + 600
        while any(client.run(lambda dask_worker: len(dask_worker.state.executing)).values()):
            assert time.monotonic() < until
            time.sleep(0.05)
    (kept,) = tmp_path.rglob("*.pt")
    assert torch.load(kept, weights_only=True)["round"] < ROUNDS  # the worker has stopped in the middle
    assert runner.reproduce(steady, ledger=ledger, seconds=1e-9, **asked) == ([], 1, 0, 0, ())
    assert len(runner.reproduce(steady, ledger=ledger, **asked).written) == 1
    assert "go on with local seed 0" in capsys.readouterr().out


def test_a_wrong_address_is_one_sentence(
    workers: Workers, steady: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.wait_for("second")
    monkeypatch.setattr(executors, "CONNECT_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in (silent, closed)]
        addresses = [*(f"tcp://127.0.0.1:{port}" for port in ports), "http://127.0.0.1:8787", "nonsense", ""]
        for address in [*addresses, workers.known()["second"].address]:
            assert f"no Dask scheduler answers at '{address}'" in refused(steady, address, tmp_path)
    assert not list(tmp_path.rglob("*.*"))


def test_a_worker_that_would_not_compute_the_same_is_refused(
    workers: Workers, steady: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.wait_for("second")
    monkeypatch.setattr("pfl_lite.engine.report.versions", lambda: {"pfl_lite": "0", "torch": "0"})
    assert "and not 0: install the same everywhere" in refused(steady, workers.address, tmp_path)
    monkeypatch.setattr(distributed, "get_worker", lambda: SimpleNamespace(state=SimpleNamespace(nthreads=2)))
    with pytest.raises(InputError, match="cannot train: it has 2 threads: start it with --nthreads 1"):
        executors.train_for("topic", {}, None, tmp_path)  # type: ignore[arg-type]


def test_without_dask_the_sentence_says_what_to_install(
    steady: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setattr(
        runner, "load", lambda data: pytest.fail("data is fetched before the scheduler is asked")
    )
    assert "pip install 'pfl-lite[cluster]'" in refused(steady, "tcp://127.0.0.1:8786", tmp_path)


def test_a_scheduler_that_goes_away_is_one_sentence(workers: Workers, steady: str, tmp_path: Path) -> None:
    workers.wait_for("second")
    when(lambda: list(tmp_path.rglob("*-run.pt")), workers.close)
    assert "was lost: start a cluster again" in refused(steady, workers.address, tmp_path)
