"""One run on several processes: the numbers of one process, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from pfl_lite.cli import app
from pfl_lite.config import RunConfig, make_config
from pfl_lite.engine import processes
from pfl_lite.engine.local_training import LocalWork
from pfl_lite.engine.mapping import PerClient
from pfl_lite.engine.processes import Forked, over_processes, shares
from pfl_lite.engine.simulation import Simulation, run
from pfl_lite.errors import InputError
from pfl_lite.methods import METHODS
from pfl_lite.models import Params
from tests.test_signals import nothing_left

SMALL = {
    "data": "digits:0.2", "partition": "dirichlet:0.4", "clients": 5, "rounds": 2, "model": "mlp",
    "dtype": "float64", "engine": "loop", "device": "cpu",
}  # fmt: skip
linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="one run on several processes needs Linux"
)
EFFORT = {"seconds", "images_per_second"}


@pytest.fixture(autouse=True)
def everything_is_worth_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "WORTH_SECONDS", 0.0)


def numbers(simulation: Simulation) -> dict[str, object]:
    """A report without what depends on the clock."""
    return {name: value for name, value in simulation.report().items() if name not in EFFORT}


def each_client(simulation: Simulation, function: PerClient) -> Params:
    """One answer a client, for all clients, with nothing trained."""
    work = simulation.everyone, simulation.round, simulation.settings
    return simulation.map(function, simulation.server, simulation.clients, *work)[0]


@linux
@pytest.mark.parametrize("method", METHODS)
def test_two_workers_give_the_numbers_of_one(method: str) -> None:
    settings = SMALL | {"participation": 0.6, "ft_epochs": int(method != "fedem")}
    assert numbers(run(method, workers=2, **settings)) == numbers(run(method, **settings))


@linux
@pytest.mark.parametrize("worth", [0.0, 60.0])
def test_numbers_do_not_depend_on_what_is_worth_sharing(
    worth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "WORTH_SECONDS", worth)
    assert numbers(run("ditto", workers=2, **SMALL)) == numbers(run("ditto", **SMALL))


@linux
def test_newcomers_and_images_trained_are_counted_as_by_one_process() -> None:
    settings = SMALL | {"unseen": 2, "components": 2}
    one, three = (run("fedem", workers=count, **settings) for count in (1, 3))
    assert numbers(one) == numbers(three)
    assert one.map.images_trained == three.map.images_trained > 0


@linux
def test_a_run_may_go_on_with_another_number_of_workers(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    config = make_config("fedper", **SMALL)
    first = Simulation(config, mapping=over_processes(2, config))
    assert not first.run(checkpoint=path, stop=lambda: first.round == 1)
    rest = Simulation(config, mapping=over_processes(3, config))
    rest.run(checkpoint=path)
    assert numbers(rest) == numbers(run("fedper", **SMALL))


def test_the_largest_clients_are_dealt_out_first() -> None:
    sizes = [1, 5, 3, 3, 9]
    assert shares([0, 1, 2, 3, 4], sizes, 2) == [[4, 0], [1, 2, 3]]
    assert shares([2], sizes, 4) == [[2]]  # no process without a client
    dealt = shares(range(5), sizes, 3)
    assert sorted(i for share in dealt for i in share) == [0, 1, 2, 3, 4]


def shared_out(config: RunConfig, workers: int) -> Simulation:
    """A run whose clients are shared out over processes."""
    return Simulation(config, mapping=over_processes(workers, config))


def forked() -> tuple[Simulation, int]:
    """A simulation with two workers, and the process that we are in."""
    return shared_out(make_config("fedavg", **SMALL), 2), os.getpid()


@linux
def test_an_error_in_a_worker_is_raised_here_and_leaves_no_process() -> None:
    simulation, here = forked()

    def fails_elsewhere(server: object, client: object, work: object) -> tuple[dict[str, torch.Tensor], ...]:
        if os.getpid() != here:
            raise ValueError("said by a worker")
        return ({},)

    with pytest.raises(ValueError, match="said by a worker"):
        each_client(simulation, fails_elsewhere)
    assert multiprocessing.active_children() == []


@linux
def test_no_file_stays_open() -> None:
    simulation, here = forked()
    before = len(os.listdir("/proc/self/fd"))
    simulation.advance()
    assert len(os.listdir("/proc/self/fd")) == before

    def fails_elsewhere(server: object, client: object, work: object) -> tuple[dict[str, torch.Tensor], ...]:
        assert os.getpid() == here
        return ({},)

    with pytest.raises(AssertionError):
        each_client(simulation, fails_elsewhere)
    assert len(os.listdir("/proc/self/fd")) == before


@linux
def test_a_python_without_files_in_memory_does_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert numbers(run("fedper", workers=2, **SMALL)) == numbers(run("fedper", **SMALL))


@linux
def test_the_longest_share_is_this_process_own(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation, here = forked()
    own = []
    monkeypatch.setattr(processes, "shares", lambda ids, sizes, count: [[0], [1, 2, 3, 4]])

    def notes(server: object, client: object, work: LocalWork) -> tuple[dict[str, torch.Tensor], ...]:
        if os.getpid() == here:
            own.extend(work.ids)
        return ({"nothing": torch.zeros(())},)

    each_client(simulation, notes)
    assert own == [1, 2, 3, 4]


@linux
def test_a_killed_worker_is_one_sentence() -> None:
    simulation, here = forked()

    def killed_elsewhere(server: object, client: object, work: object) -> tuple[dict[str, torch.Tensor], ...]:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return ({},)

    with pytest.raises(InputError, match="killed, most likely out of memory: use fewer workers"):
        each_client(simulation, killed_elsewhere)
    assert multiprocessing.active_children() == []


@linux
def test_an_interrupt_here_ends_the_workers() -> None:
    simulation, here = forked()

    def interrupted(server: object, client: object, work: object) -> tuple[dict[str, torch.Tensor], ...]:
        if os.getpid() == here:
            raise KeyboardInterrupt
        signal.pause()
        return ({},)

    with pytest.raises(KeyboardInterrupt):
        each_client(simulation, interrupted)
    assert multiprocessing.active_children() == []


@linux
def test_an_interrupt_in_the_moment_in_which_a_worker_s_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells it once, and an interrupt that comes then used to end in a ValueError."""
    simulation, here = forked()
    usual, sent, over = os.waitpid, [], threading.Event()
    # a thread that hears signals where this one does not, as the one of a progress bar does
    threading.Thread(target=over.wait, daemon=True).start()

    def told(process: int, how: int) -> tuple[int, int]:
        answer = usual(process, how)
        if answer[0] and not sent:
            sent.append(answer)
            os.kill(here, signal.SIGINT)
        return answer

    monkeypatch.setattr(os, "waitpid", told)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            each_client(simulation, lambda server, client, work: ({},))
    finally:
        signal.signal(signal.SIGINT, before)
        over.set()
    assert sent and multiprocessing.active_children() == []


@linux
def test_a_signal_that_would_end_the_process_waits_too_whichever_thread_hears_it() -> None:
    script = """
import os, signal, threading, time
from pfl_lite.engine.processes import held_back
signal.signal(signal.SIGTERM, signal.SIG_DFL)
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
with held_back():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    print("whole", flush=True)
print("gone on", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "whole\n")


@linux
def test_a_worker_has_answers_to_signals_of_its_own() -> None:
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        child = processes.Child(
            lambda: (
                signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
                signal.getsignal(signal.SIGHUP) == signal.SIG_DFL,
                len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            )
        )
        answer = child.answer()
        child.end()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert answer == (True, True, 0)


@linux
def test_threads_are_as_they_were() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        sim = run("fedavg", workers=2, **SMALL)
        assert torch.get_num_threads() == 2 and sim.report()["threads"] == 1
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("method", "settings", "count", "sentence"),
    [
        ("fedavg", {}, 0, "workers must be 1 to 1,000, not 0"),
        ("fedavg", {"engine": "vmap"}, 2, "2 workers share out the engine loop, not vmap: use --engine loop"),
        ("fedmn", {"schedule": "sequential"}, 2, "hand on to one another here: use one worker"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_first(
    method: str, settings: dict[str, object], count: int, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        shared_out(make_config(method, **(SMALL | settings)), count)


def test_other_systems_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InputError, match="needs Linux: use one worker here"):
        shared_out(make_config("fedavg", **SMALL), 2)


@linux
def test_the_command_line_takes_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # what the command sets must not outlive this test
    command = "run local --data digits:0.2 --clients 4 --rounds 1 --model linear --workers 2"
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 0, result.output
    assert "means over 4 clients" in result.output


@linux
def test_what_took_a_moment_is_not_shared_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "WORTH_SECONDS", 60.0)
    simulation, here = forked()
    elsewhere = []

    def who(server: object, client: object, work: object) -> tuple[dict[str, torch.Tensor], ...]:
        return ({"pid": torch.tensor(os.getpid())},)

    for _ in range(3):
        elsewhere.append((each_client(simulation, who)["pid"] != here).any().item())
    assert elsewhere == [True, False, False]  # the first time nobody knows


@linux
@pytest.mark.parametrize("worth", [0.0, 60.0])
def test_clients_have_one_thread_whether_shared_out_or_not(
    worth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "WORTH_SECONDS", worth)
    config = make_config("fedavg", **SMALL)
    sim = Simulation(config, mapping=over_processes(2, config))

    def threads(server: Params, client: Params, work: LocalWork) -> tuple[Params]:
        return ({"threads": torch.tensor(torch.get_num_threads())},)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(2):
            found = sim.map(threads, {}, {}, sim.everyone, 1, sim.settings)[0]["threads"]
            assert found.tolist() == [1] * 5 and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@linux
def test_one_client_needs_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation, _ = forked()
    assert isinstance(simulation.map, Forked)
    monkeypatch.setattr(multiprocessing, "get_context", lambda *_: pytest.fail("a process was asked for"))
    simulation.map(lambda server, client, work: ({},), {}, {}, torch.tensor([3]), 0, simulation.settings)


@linux
def test_what_is_sent_grows_with_the_clients_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[int] = []
    told = processes.Child.answer

    def weighed(self: processes.Child) -> object:
        found = told(self)
        parts = [tensor for part in found[0] for tensor in part.values()]
        sent.append(sum(tensor.untyped_storage().nbytes() for tensor in parts))
        return found

    monkeypatch.setattr(processes.Child, "answer", weighed)
    for count in (4, 16):
        settings = SMALL | {"clients": count, "partition": "iid"}
        shared_out(make_config("local", **settings), 2).personal_models()
    assert sent[1] == 4 * sent[0]


@linux
def test_an_exception_that_cannot_travel_is_told_in_words() -> None:
    simulation, here = forked()

    class Odd(Exception):
        def __init__(self, first: str, second: str) -> None:
            super().__init__(f"{first} {second}")

    def fails_elsewhere(server: object, client: object, work: object) -> tuple[dict[str, torch.Tensor], ...]:
        if os.getpid() != here:
            raise Odd("so", "odd")
        return ({},)

    with pytest.raises(RuntimeError, match="so odd"):
        each_client(simulation, fails_elsewhere)


@linux
@pytest.mark.parametrize("last_word", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_leaves_no_process(tmp_path: Path, last_word: signal.Signals) -> None:
    script = (
        "import os, sys, time, torch\n"
        "from pfl_lite.config import make_config\n"
        "from pfl_lite.engine.processes import over_processes\n"
        "from pfl_lite.engine.simulation import Simulation\n"
        f"config = make_config('fedavg', **{SMALL!r})\n"
        "sim = Simulation(config, mapping=over_processes(2, config))\n"
        "here = os.getpid()\n"
        "def one(server, client, work):\n"
        "    if os.getpid() == here:\n"
        "        print('forked', flush=True)\n"
        "        time.sleep(60)\n"
        "    time.sleep(0.5)\n"
        "    return ({'large': torch.zeros(10**6)},)\n"  # more than a pipe holds
        "sim.map(one, sim.server, sim.clients, sim.everyone, sim.round, sim.settings)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert run.stdout is not None and run.stdout.readline() == b"forked\n"
    run.send_signal(last_word)
    run.wait()
    nothing_left(run)


@linux
def test_a_machine_with_a_gpu_is_told_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="set CUDA_VISIBLE_DEVICES to nothing before Python starts"):
        shared_out(make_config("fedavg", **SMALL), 2)


@linux
def test_what_forking_costs_does_not_count_as_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is too short is shared out once, to learn that, however long the processes take to start and to answer."""
    monkeypatch.setattr(processes, "WORTH_SECONDS", 2.0)
    usual = processes.Child.answer
    answered: list[processes.Child] = []
    # what is computed takes no time here, and every answer 1.1 seconds: two processes 2.2, were waiting counted
    monkeypatch.setattr(processes, "time", SimpleNamespace(perf_counter=lambda: 1.1 * len(answered)))

    def late(child: processes.Child) -> object:
        answered.append(child)
        return usual(child)

    monkeypatch.setattr(processes.Child, "answer", late)
    simulation = shared_out(make_config("fedavg", **(SMALL | {"rounds": 3})), 2)
    simulation.advance()
    learned = len(answered)
    simulation.advance()
    assert learned > 0 and len(answered) == learned
