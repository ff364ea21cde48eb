"""Signals are answered with one sentence, at whatever moment they come, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from pfl_lite.__main__ import interrupted
from pfl_lite.cli import app
from pfl_lite.engine.rounds import Part
from pfl_lite.engine.simulation import Simulation
from tests.killing import workers_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals of Linux")
LONG = ["--model", "linear", "--clients", "3", "--rounds", "100000", "--checkpoint", "run.pt"]


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Commands hear every signal, even where a shell has started the tests in the background and has them ignored."""
    before = {one: signal.signal(one, signal.SIG_DFL) for one in (signal.SIGHUP, signal.SIGTERM)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


def ended(
    folder: Path,
    arguments: list[str],
    ready: Callable[[subprocess.Popen[str]], bool],
    number: int,
    group: bool = False,
) -> tuple[int, str]:
    """Start a command, send a signal once it is `ready`; its exit code and what it said."""
    command = [sys.executable, "-m", "pfl_lite", *arguments]
    asked = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 600
    while not ready(asked):
        assert asked.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    (os.killpg if group else os.kill)(asked.pid, number)
    said = asked.communicate(timeout=600)[0]
    assert "Traceback" not in said and "leaked" not in said, said
    nothing_left(asked)
    return asked.returncode, said


def nothing_left(ended: subprocess.Popen[Any]) -> None:
    """Wait until no process of an ended one's group is left; fail if one stays."""
    until = time.monotonic() + 600
    while time.monotonic() < until:
        try:
            os.killpg(ended.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.killpg(ended.pid, signal.SIGKILL)
    pytest.fail("a process was left behind")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_says_what_is_kept(number: signal.Signals, tmp_path: Path) -> None:
    code, said = ended(tmp_path, ["run", "local", *LONG], lambda _: (tmp_path / "run.pt").exists(), number)
    how = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    assert (
        code == 128 + number
        and said.splitlines()[-1] == f"pfl-lite: {how}; the same command goes on from the last round"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.pt"]


@pytest.mark.parametrize("module", ["pfl_lite.cli", "torch._C", "numpy._core._multiarray_umath"])
def test_an_interrupt_in_the_middle_of_the_imports_is_one_sentence(module: str, tmp_path: Path) -> None:
    """NumPy would make an ImportError of an exception; in a command, the signal waits until the import ends, or two seconds."""
    script = f"""
import signal, sys
from pfl_lite.__main__ import main
class Finder:
    def find_spec(name, *_):
        if name == {module!r}: signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder)
main()
"""
    command = [sys.executable, "-c", script, "run", "local", *LONG]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 130 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("pfl-lite: interrupted")
    assert module != "pfl_lite.cli" or (done.stdout, done.stderr) == ("", "pfl-lite: interrupted\n")
    assert not list(tmp_path.glob("*.part"))


def test_every_signal_in_the_middle_of_an_import_is_called_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    importing: Any = SimpleNamespace(
        f_code=SimpleNamespace(co_filename="<frozen importlib._bootstrap>", co_qualname="_find_and_load"),
        f_back=None,
    )
    for number, said in ((signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")):
        with pytest.raises(SystemExit) as left:
            interrupted(number, importing)
        assert (left.value.code, capfd.readouterr().err) == (128 + number, f"pfl-lite: {said}\n")


def test_a_signal_in_an_import_of_a_running_command_waits_for_its_end(tmp_path: Path) -> None:
    """Torch imports while it trains, too, and what is kept was not said of a signal that came just then."""
    (tmp_path / "interrupting.py").write_text("import signal\nsignal.raise_signal(signal.SIGTERM)\n")
    script = f"""
import sys, time
from pfl_lite.__main__ import main
from pfl_lite.engine.simulation import Simulation
def run(*_, **__):
    import interrupting
    time.sleep(60)
Simulation.run, sys.argv = run, ["pfl-lite", "run", "local", *{LONG[:-2]}]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 143
    assert done.stderr.splitlines()[-1] == "pfl-lite: ended by SIGTERM; nothing was kept"


@pytest.mark.parametrize("place", ["main.get_command", "core.TyperGroup.make_context"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_between_the_imports_and_the_command_is_one_sentence(
    number: signal.Signals, place: str
) -> None:
    script = f"""
import signal, typer.core, typer.main
from pfl_lite.__main__ import main
typer.{place} = lambda *_, **__: signal.raise_signal({int(number)})
main()
"""
    done = subprocess.run([sys.executable, "-c", script, "methods"], capture_output=True, text=True)
    how = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", f"pfl-lite: {how}\n")


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_nothing_is_said_to_be_lost_where_a_checkpoint_may_be(
    begun: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt(signal.SIGTERM)

    monkeypatch.setattr(Simulation if begun else Part, "run" if begun else "__init__", stopped)
    result = CliRunner().invoke(app, ["run", "local", *LONG[: None if kept else -2]])
    more = ("nothing was kept", "the same command goes on from the last round")[kept]
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        143,
        f"pfl-lite: ended by SIGTERM{f'; {more}' * begun}",
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_whole_group_is_answered_by_the_command_alone(
    number: signal.Signals, tmp_path: Path
) -> None:
    asked = ["reproduce", "when-label-skew", "--methods", "local,fedavg", "--seeds", "0", "--workers", "2"]
    # each with a ledger of its own: a checkpoint of the first would be no sign of life of the second
    moments: dict[str, Callable[[subprocess.Popen[str]], bool]] = {
        "first": lambda one: len(workers_of(one.pid)) == 2,
        "second": lambda _: any((tmp_path / "second").rglob("*.pt")),
    }
    for ledger, ready in moments.items():
        code, said = ended(tmp_path, [*asked, "--ledger", ledger], ready, number, group=True)
        how = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
        assert code == 128 + number and f"{how}; results written: " in said, said
        assert "lost" not in said and not list(tmp_path.rglob("*.part"))
