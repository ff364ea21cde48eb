"""What this book tells a reader to start can be reached from this machine only."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

psutil = pytest.importorskip("psutil")


def listening(family: list[psutil.Process]) -> set[str]:
    """The addresses at which some processes wait for connections."""
    found = set()
    for process in family:
        with suppress(psutil.NoSuchProcess):
            found |= {
                one.laddr.ip for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN
            }
    return found


def free_ports() -> Iterator[str]:
    """Ports that no one listens at, of those that no one is given who asks for any."""
    for port in range(16_000 + os.getpid() % 8_000, 32_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            yield str(port)


def test_the_cluster_of_the_page_listens_on_this_machine_only(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'pfl-lite[cluster]'")
    nbformat = pytest.importorskip("nbformat")
    cells = nbformat.read(repository / "book/many-machines.ipynb", as_version=4).cells
    whole = [
        cell.source.replace("\\\n", "") for cell in cells
    ]  # commands that go on in the next line, in one
    lines = [line for source in whole for line in source.splitlines() if line.startswith("dask ")]
    assert len(lines) == 2
    ports = dict(zip(("8786", "8787"), free_ports(), strict=False))
    started = []
    try:
        for line in lines:
            for port, free in ports.items():
                line = line.replace(port, free)
            words = [sys.executable, "-m", f"distributed.cli.dask_{line.split()[1]}", *shlex.split(line)[2:]]
            started.append(
                subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
            )
        until = time.monotonic() + 900
        while time.monotonic() < until:
            family = [psutil.Process(one.pid) for one in started]
            family += [child for one in family for child in one.children(recursive=True)]
            addresses = listening(family)
            busy = [one for one in family if listening([one])]
            if len(busy) >= 4:  # the scheduler, the nannies' process and two workers
                break
            time.sleep(0.5)
        assert len(busy) >= 4 and addresses == {"127.0.0.1"}
    finally:
        for one in started:
            for child in psutil.Process(one.pid).children(recursive=True):
                child.kill()
            one.send_signal(signal.SIGKILL)
            one.wait()


@pytest.mark.parametrize("simulation", [False, True])
def test_flower_as_it_is_started_here_listens_on_this_machine_only(
    simulation: bool, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr", reason="needs the environment of examples/flower")
    monkeypatch.syspath_prepend(str(repository / "examples" / "flower"))
    run_here = importlib.import_module("run_here")
    with run_here.here(simulation=simulation, secure=False, clients=1) as federation:
        started = [psutil.Process(one.pid) for one in (federation.link, *federation.nodes.values())]
        until = time.monotonic() + 900
        while not all(listening([one]) for one in started) and time.monotonic() < until:
            time.sleep(0.5)
        family = started + [child for one in started for child in one.children(recursive=True)]
        assert all(listening([one]) for one in started) and listening(family) == {"127.0.0.1"}


def test_jupyterlab_as_readers_are_told_to_start_it_listens_on_this_machine_only(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labapp = pytest.importorskip("jupyterlab.labapp")
    pages = [repository / "Makefile", *repository.glob("*.md"), *repository.glob("book/*.md")]
    told = [one for page in pages for one in re.findall(r"jupyter lab( -[^`\n]*)", page.read_text("utf-8"))]
    assert len(told) >= 3  # Makefile, README and how-to-use
    monkeypatch.chdir(tmp_path)
    for options in told:
        for folder in re.findall(r"--notebook-dir[ =](\S+)", options):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)  # the one that a reader has made before
        lab = labapp.LabApp.serverapp_class()
        lab.parse_command_line(shlex.split(options))
        assert lab.ip in ("localhost", "127.0.0.1"), options


def test_without_flower_its_script_says_in_one_sentence_where_to_begin(repository: Path) -> None:
    code = "import runpy, sys; sys.modules['flwr'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    script = str(repository / "examples/flower/run_here.py")
    process = subprocess.run([sys.executable, "-c", code, script], capture_output=True, text=True)
    assert process.returncode == 1 and process.stderr.count("\n") == 1
    assert "make Flower's environment first" in process.stderr
