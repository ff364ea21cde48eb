"""Experiments end to end on the digits: search, results, skipping, resuming, budget."""

from __future__ import annotations

import json
import multiprocessing
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pfl_lite.atomic_files import locked
from pfl_lite.engine.simulation import Simulation
from pfl_lite.errors import InputError
from pfl_lite.papers import EXPERIMENTS, GROUPS, PFEDMB_TABLE1, get_experiment, pflmoe
from pfl_lite.papers.experiment import printed
from pfl_lite.results import audit as care
from pfl_lite.results import executors, plan, runner
from pfl_lite.results.ledger import Ledger
from pfl_lite.results.tables import table
from pfl_lite.show import chapter_tables as pages
from tests.test_signals import nothing_left

ROUNDS = 30  # of a result of `enter_steady`


class Inline:
    """A pool that works in this process, so that a test may change what the work sees."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def shutdown(self) -> None: ...

    def submit(self, function: Any, task: Any, checkpoint: Path) -> Any:
        future: Future[Any] = Future()
        future.set_result(executors.train(task, checkpoint, lambda key, at: False))
        return future


def without_effort(value: Any) -> Any:
    """A ledger entry without what it took (a run that was stopped trains some images twice) and the commit of its time."""
    effort = ("seconds", "images_per_second", "images_trained", "threads", "code")
    if isinstance(value, dict):
        return {key: without_effort(one) for key, one in value.items() if key not in effort}
    return [without_effort(one) for one in value] if isinstance(value, list) else value


def entries(folder: Path) -> dict[str, Any]:
    """The ledger in a folder, by file."""
    return {path.name: without_effort(json.loads(path.read_text())) for path in folder.glob("*/*.json")}


def when(condition: Callable[[], Any], action: Callable[[], Any]) -> threading.Thread:
    """Do something in the middle of what this thread is about to do, as soon as `condition` holds (and never if it does not)."""

    def watch() -> None:
        until = time.monotonic() + 600
        while not condition():
            if time.monotonic() > until:
                return
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def enter_steady(monkeypatch: pytest.MonkeyPatch) -> str:
    """An experiment of two candidates of FedAvg, two seeds of FedAvg and Local: long enough for a middle."""
    fedavg, local = PFEDMB_TABLE1.arm("fedavg"), PFEDMB_TABLE1.arm("local")
    arms = (replace(fedavg, grid=fedavg.grid[:2]), replace(local, grid=()))
    settings = {
        "data": "digits",
        "model": "linear",
        "rounds": ROUNDS,
        "epochs": 1,
        "ft_epochs": 1,
        "search_rounds": 3,
    }
    steady = replace(PFEDMB_TABLE1, name="steady", arms=arms, seeds=(0, 1), **settings)
    monkeypatch.setitem(EXPERIMENTS, "steady", steady)
    return "steady"


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> str:
    return enter_steady(monkeypatch)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """Table I shrunk to the digits: two rounds, tiny grids."""
    arms = tuple(replace(arm, grid=arm.grid[:2]) for arm in PFEDMB_TABLE1.arms)
    small = replace(
        PFEDMB_TABLE1,
        name="tiny",
        data="digits",
        model="small_cnn",
        rounds=2,
        epochs=1,
        ft_epochs=1,
        search_rounds=1,
        arms=arms,
        seeds=(0, 1),
    )
    monkeypatch.setitem(EXPERIMENTS, "tiny", small)
    monkeypatch.setattr(executors, "ThreadPoolExecutor", Inline)
    return "tiny"


@pytest.fixture
def moe(monkeypatch: pytest.MonkeyPatch) -> str:
    """PFL-MoE's tables shrunk to the digits: two rounds, two epochs of tuning."""
    small = replace(
        pflmoe("fmnist-lenet", "0.9"),
        name="moe",
        seeds=(0,),
        data="digits",
        model="small_cnn",
        clients=10,
        rounds=2,
        epochs=1,
        arms=tuple(
            replace(arm, settings=arm.settings | ({"ft_epochs": 2} if "ft_epochs" in arm.settings else {}))
            for arm in pflmoe("fmnist-lenet", "0.9").arms
        ),
    )
    monkeypatch.setitem(EXPERIMENTS, "moe", small)
    monkeypatch.setattr(executors, "ThreadPoolExecutor", Inline)
    return "moe"


def test_arms_that_personalise_one_training_share_it_and_equal_runs_of_their_own(
    moe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []
    advance = Simulation.advance
    monkeypatch.setattr(Simulation, "advance", lambda sim: (trained.append(sim.method.name), advance(sim))[1])
    ledger, experiment = Ledger(tmp_path / "shared"), get_experiment(moe)
    first = runner.reproduce(moe, ledger=ledger, device="cpu", methods=["fedavg", "pfl_mf"], workers=2)
    assert [path.name for path in first.written] == ["fedavg-seed0.json", "pfl_mf-seed0.json"]
    (kept,) = (tmp_path / "shared" / ".checkpoints").rglob("*.pt")  # others may want it
    assert kept.name == "fedavg-seed0-run.pt"
    written, left, *_ = runner.reproduce(moe, ledger=ledger, device="cpu")
    assert (
        len(written) == len(experiment.arms) - 2 and left == 0 and trained == ["fedavg"] * 2 + ["local"] * 2
    )
    assert not list((tmp_path / "shared" / ".checkpoints").rglob("*.pt"))

    alone = Ledger(tmp_path / "alone")
    for key in ("pfl_fb", "pfl_mf", "pfl_mfe-code"):
        runner.reproduce(moe, ledger=alone, device="cpu", methods=[key])
        mine, shared = alone.get(moe, key, 0), ledger.get(moe, key, 0)
        assert mine is not None and shared is not None
        for name in ("config", "rounds", "final", "final_before_ft", "images_trained"):
            assert mine[name] == shared[name]
    assert not list((tmp_path / "alone" / ".checkpoints").rglob("*.pt"))

    frame = table(moe, ledger)
    assert list(frame["Method"][:2]) == ["local test: Local", "local test: FedAvg"]
    half = len(experiment.arms)
    assert len(frame) == 2 * half
    assert frame["Method"][half] == "global test: Local" and not frame["Ours (%)"].isna().any()
    run = ledger.get(moe, "fedavg", 0)
    assert run is not None
    assert frame["Ours (%)"][1] == pytest.approx(100 * run["final"]["local_test"])
    assert frame["Ours (%)"][half + 1] == pytest.approx(100 * run["final"]["global_test"])
    assert "global_test" not in set(ledger.frame(moe)["quantity"])
    assert "local_test_clients" in set(ledger.frame(moe)["quantity"])
    assert [arm.paper for arm in experiment.arms] == [
        82.23, 90.31, 91.84, None, 92.02, 92.01, 92.02, 92.01, None,
    ]  # fmt: skip
    assert [arm.papers["global_test"] for arm in experiment.arms[:3]] == [65.28, 90.31, 85.91]


def test_an_experiment_runs_skips_what_is_there_and_becomes_a_table(tiny: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    written = runner.reproduce(tiny, ledger=ledger, device="cpu", seeds=[0]).written
    assert sorted({path.name for path in written}) == [
        "fedavg-seed0.json", "local-seed0.json", "pfedmb-plain-seed0.json", "pfedmb-seed0.json",
        "search-fedavg.json", "search-local.json", "search-pfedmb.json",
    ]  # fmt: skip
    assert len(written) == 3 * 2 + 4  # one file a search, written once a candidate
    search = json.loads((tmp_path / tiny / "search-pfedmb.json").read_text())
    assert [one["settings"] for one in search["candidates"]] == list(PFEDMB_TABLE1.arm("pfedmb").grid[:2])
    assert all(one["seed"] == 100 for one in search["candidates"])
    best = max(search["candidates"], key=lambda one: one["validation_accuracy"])["settings"]
    run = json.loads((tmp_path / tiny / "pfedmb-plain-seed0.json").read_text())
    assert search["chosen"] == best and run["config"]["lr"] == best["lr"]
    assert (
        run["config"]["method"]["aggregation"] == "plain"
        and run["config"]["method"]["alpha_lr"] == best["alpha_lr"]
    )
    assert run["rounds"][1]["tuned_accuracy"] is not None and set(run["watch"]["alpha"]) == {"0", "1", "2"}
    assert runner.reproduce(tiny, ledger=ledger, device="cpu", seeds=[0]) == ([], 0, 0, 0, ())
    assert [path.name for path in tmp_path.iterdir()] == [tiny]  # no folder of checkpoints
    frame = table(tiny, ledger)
    assert len(frame) == 4 and frame["Reason"].str.contains("1 of 2 seeds").all()


def test_a_seed_that_cannot_be_is_refused_without_a_word_on_plans(
    tiny: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    with pytest.raises(InputError):
        runner.reproduce(tiny, ledger=Ledger(tmp_path), device="cpu", seeds=[-1])
    assert not [one for one in recwarn if "planned" in str(one.message)]


def test_a_seed_beside_the_plan_is_told_before_it_costs_a_night(tiny: str, tmp_path: Path) -> None:
    said = "seeds 5, 7 are not among the planned ones: no table and no verdict counts such runs"
    with pytest.warns(UserWarning, match=said):
        runner.reproduce(tiny, ledger=Ledger(tmp_path), device="cpu", seeds=[0, 7, 5], seconds=1e-9)


def test_a_budget_stops_cleanly_and_the_next_call_finishes(tiny: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert runner.reproduce(
        tiny, methods=["fedavg"], ledger=ledger, device="cpu", seeds=[0], seconds=1e-9
    ) == ([], 3, False, 0, ())
    assert (
        len(runner.reproduce(tiny, methods=["fedavg"], ledger=ledger, device="cpu", seeds=[0]).written) == 3
    )


def test_what_a_budget_leaves_of_a_group_counts_the_candidates_of_every_experiment(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "other", replace(get_experiment(tiny), name="other"))
    monkeypatch.setitem(GROUPS, "both", (tiny, "other"))
    asked: dict[str, Any] = {"methods": ["fedavg"], "seeds": [0], "device": "cpu", "seconds": 1e-9}
    one, both = (runner.reproduce(name, ledger=Ledger(tmp_path), **asked).left for name in (tiny, "both"))
    assert one == 3 and both == 2 * one


@pytest.mark.parametrize(
    ("where", "what"),
    [(executors.ProcessExecutor, "submit"), (executors.ProcessExecutor, "result"), (runner, "clear")],
)
def test_an_interrupt_loses_neither_a_run_just_handed_out_nor_a_result_in_hand(
    where: Any, what: str, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = getattr(where, what)

    def interrupted(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        answer = usual(*given)
        signal.raise_signal(signal.SIGINT)
        return answer

    monkeypatch.setattr(executors, "ThreadPoolExecutor", Inline)
    monkeypatch.setattr(where, what, interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = runner.reproduce(tiny, methods=["local"], seeds=[0], ledger=Ledger(tmp_path), device="cpu")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (len(done.written), done.interrupted) == (1, signal.SIGINT) and not list(tmp_path.rglob("*.pt"))


def test_a_system_that_cannot_keep_signals_from_workers_is_told_so(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(signal, "pthread_sigmask")
    with pytest.raises(InputError, match=r"needs Linux or macOS: .*\(--scheduler\)"):
        runner.reproduce(tiny, ledger=Ledger(tmp_path), device="cpu")


@pytest.mark.parametrize("begun", [True, False])
def test_a_stopped_run_is_said_to_go_on_only_from_a_checkpoint_that_is_there(
    begun: bool,
    tiny: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Stopped(Inline):
        def submit(self, function: Any, task: Any, checkpoint: Path) -> Any:
            signal.raise_signal(signal.SIGINT)
            if begun:
                checkpoint.touch()
            future: Future[Any] = Future()
            future.set_result(None)
            return future

    monkeypatch.setattr(executors, "ThreadPoolExecutor", Stopped)
    assert runner.reproduce(tiny, methods=["local"], ledger=Ledger(tmp_path), device="cpu").interrupted == 2
    then = "goes on from its checkpoint" if begun else "starts it anew"
    assert f"stopped local candidate 0; the next call {then}\n" in capsys.readouterr().out


def test_a_shorter_run_changes_nothing_and_a_longer_one_takes_the_place(tiny: str, tmp_path: Path) -> None:
    ledger, asked = Ledger(tmp_path), {"methods": ["local"], "device": "cpu", "seeds": [0]}
    runner.reproduce(tiny, ledger=ledger, rounds=1, **asked)
    short = ledger.get(tiny, "local", 0)
    runner.reproduce(tiny, ledger=ledger, **asked)
    long = ledger.get(tiny, "local", 0)
    assert short is not None and long is not None
    assert [entry["round"] for entry in long["rounds"]] == [0, 1, 2]
    assert long["rounds"][1]["personal_accuracy"] == short["rounds"][1]["personal_accuracy"]
    before = (tmp_path / tiny / "local-seed0.json").read_text()
    assert runner.reproduce(tiny, ledger=ledger, rounds=1, **asked).written == []
    assert (tmp_path / tiny / "local-seed0.json").read_text() == before


def test_table1_is_the_paper_s() -> None:
    experiment = get_experiment("pfedmb-table1")
    assert [arm.paper for arm in experiment.arms] == [87.26, 87.99, 89.08, 89.49]
    assert (experiment.clients, experiment.epochs, experiment.batch_size, experiment.partition) == (
        10,
        5,
        64,
        "pairs",
    )
    assert all(
        arm.settings["branches"] == 5 and arm.settings["alpha_scope"] == "shared"
        for arm in experiment.arms[2:]
    )
    assert printed("pFedMB", "I", "no such method") is None


def test_a_tie_between_candidates_goes_to_the_first_of_the_grid_in_whatever_order_they_finished(
    tiny: str, tmp_path: Path
) -> None:
    experiment = get_experiment(tiny)
    arm = experiment.arm("fedavg")
    chosen = []
    for order in ((0, 1), (1, 0)):
        search = plan.Plan(experiment, Ledger(tmp_path / str(order)), [arm], [0])
        tasks = {task.candidate: task for task in search.tasks()}
        for number in order:
            final = {"val_accuracy": [0.5], "test_accuracy": [0.1 * number]}  # which decides nothing
            runner.record(search, tasks[number], {"final": final, "rounds": [], "seconds": 1.0})
        chosen.append(search.chosen(arm))
    assert chosen == [arm.grid[0]] * 2


def test_a_run_whose_process_is_killed_is_repeated_and_lands_once(
    steady: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "killed"
    killed = when(
        lambda: list(folder.rglob("local-*-run.pt")),
        lambda: [one.kill() for one in multiprocessing.active_children()],
    )
    asked: dict[str, Any] = {"methods": ["local"], "seeds": [0], "device": "cpu"}
    assert runner.SIGN_OF_LIFE_SECONDS <= 30
    monkeypatch.setattr(runner, "SIGN_OF_LIFE_SECONDS", 0)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    done = runner.reproduce(steady, workers=1, ledger=Ledger(folder), **asked)
    said = capsys.readouterr().out
    assert not killed.is_alive() and "a worker was lost" in said and "go on with local" in said
    assert re.search(rf"^local seed 0 round \d+/{ROUNDS}$", said, flags=re.MULTILINE)
    assert len(done.written) == 1 and not list(folder.rglob("*.pt"))
    monkeypatch.setattr(executors, "ThreadPoolExecutor", Inline)
    runner.reproduce(steady, ledger=Ledger(tmp_path / "alone"), **asked)
    assert entries(folder) == entries(tmp_path / "alone")


def test_the_last_round_is_said_to_be_followed_by_tuning(steady: str, tmp_path: Path) -> None:
    experiment = get_experiment(steady)
    (task,) = plan.Plan(experiment, Ledger(tmp_path), [experiment.arm("local")], [0]).tasks()
    before, last = (runner.progress([task], {task.key: at}) for at in (ROUNDS - 2, ROUNDS - 1))
    assert before == f"local seed 0 round {ROUNDS - 2}/{ROUNDS}"
    assert last == f"local seed 0 round {ROUNDS - 1}/{ROUNDS}, then tuned and scored"


def test_a_worker_that_is_told_to_end_as_it_is_handed_a_run_is_not_called_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(executors.ProcessExecutor(1)) as executor:

        def handed(*_: Any) -> None:
            executor.stop()
            raise executors.WorkerDied

        process = SimpleNamespace(is_alive=lambda: True, join=lambda _: None)
        worker = SimpleNamespace(train=handed, stop=lambda: None, process=process)
        monkeypatch.setattr(executors, "Worker", lambda: worker)
        task: Any = None
        assert executor.submit(task, Path()).result() is None


def test_a_run_whose_worker_dies_again_and_again_is_given_up_and_the_others_go_on(
    steady: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TooBig(Inline):
        def submit(self, function: Any, task: Any, checkpoint: Path) -> Any:
            if task.key != ("local", 0, None):
                return super().submit(function, task, checkpoint)
            future: Future[Any] = Future()
            future.set_exception(executors.WorkerDied())
            return future

    monkeypatch.setattr(executors, "ThreadPoolExecutor", TooBig)
    ledger = Ledger(tmp_path)
    monkeypatch.setitem(EXPERIMENTS, "later", replace(get_experiment(steady), name="later"))
    monkeypatch.setitem(GROUPS, "both", (steady, "later"))
    runs = "local seed 0 of steady, local seed 0 of later"
    with pytest.raises(InputError, match=f"out of memory: {runs}; the same command"):
        runner.reproduce("both", rounds=1, device="cpu", ledger=ledger)
    for name in (steady, "later"):
        assert sorted(path.name for path in (tmp_path / name).glob("*.json")) == [
            "fedavg-seed0.json", "fedavg-seed1.json", "local-seed1.json", "search-fedavg.json"
        ]  # fmt: skip


LONG = """
from dataclasses import replace
from pathlib import Path
import pfl_lite.papers as protocols
from pfl_lite.results import plan, runner
from pfl_lite.results.ledger import Ledger

if __name__ == "__main__":
    long = replace(
        protocols.PFEDMB_TABLE1, name="long", data="digits", model="linear", rounds=100_000, epochs=1, ft_epochs=1,
        eval_every=100_000, arms=(replace(protocols.PFEDMB_TABLE1.arm("local"), grid=()),),
    )
    protocols.EXPERIMENTS["long"] = long
    runner.reproduce("long", seeds=[0], device="cpu", ledger=Ledger(Path.cwd()))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux who is left")
@pytest.mark.parametrize("last_word", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_sweep_leaves_no_process(tmp_path: Path, last_word: signal.Signals) -> None:
    script = tmp_path / "long.py"
    script.write_text(LONG)
    sweeping = subprocess.Popen([sys.executable, script], cwd=tmp_path, start_new_session=True)
    until = time.monotonic() + 600  # a busy machine takes a minute to start a worker
    while not list(tmp_path.rglob("*.pt")) and time.monotonic() < until:
        time.sleep(0.05)
    assert list(tmp_path.rglob("*.pt"))  # its worker is in the middle
    sweeping.send_signal(last_word)
    assert sweeping.wait(600) == -last_word  # a script's next sweep must not begin
    nothing_left(sweeping)


def test_two_calls_for_one_experiment_and_ledger_are_refused(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked(tmp_path / tiny):
        with pytest.raises(InputError, match=f"another call trains into {tmp_path / tiny}: wait for its end"):
            runner.reproduce(tiny, ledger=Ledger(tmp_path), device="cpu")
        with locked(tmp_path / "another"):
            pass
    with locked(tmp_path / "new" / "deep" / tiny):
        pass
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="written"), locked(Path(__file__) / tiny):
        pass


@pytest.mark.parametrize("exact", [True, False])
def test_exact_products_are_asked_for_in_searches_and_results(exact: bool, tmp_path: Path) -> None:
    experiment = get_experiment("pfedmb-table1")
    arms = [experiment.arm("local")]
    search = plan.Plan(experiment, Ledger(tmp_path), arms, [0], 2, tf32=not exact)
    assert {task.config.tf32 for task in search.tasks()} == {not exact}
    found = plan.Plan(experiment, Ledger(), arms, [7], 2, tf32=not exact)  # whose rates are chosen
    assert [task.config.tf32 for task in found.tasks()] == [not exact]


def test_where_the_checkpoint_s_folder_is_not_seen_a_run_is_made_in_one_go(
    steady: str, tmp_path: Path
) -> None:
    experiment = get_experiment(steady)
    (task,) = plan.Plan(experiment, Ledger(tmp_path), [experiment.arm("local")], [0], 2).tasks()
    rounds: list[int] = []

    def stop(_: plan.Key, at: int) -> bool:
        rounds.append(at)
        return False

    report = executors.train(task, tmp_path / "elsewhere" / "x.pt", stop)
    assert report is not None and report["complete"] and rounds == [0, 1] and not list(tmp_path.iterdir())


def test_settings_and_runs_are_taken_over_from_another_experiment(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = get_experiment(tiny)
    first = base.arm("pfedmb")
    arms = (
        replace(first, key="b3", grid=(), settings=first.settings | {"branches": 3}, rates_of="pfedmb"),
        replace(first, key="b5", grid=(), rates_of="pfedmb", run_of=tiny),
    )
    monkeypatch.setitem(
        EXPERIMENTS, "scan", replace(base, name="scan", arms=arms, seeds=(0,), searched_in=tiny)
    )
    monkeypatch.setitem(
        EXPERIMENTS, "again", replace(base, name="again", arms=arms[:1], seeds=(0,), searched_in="scan")
    )
    ledger, words = Ledger(tmp_path), "`pfl-lite reproduce tiny --methods pfedmb` comes first"
    for name in ("scan", "again"):  # through a chain, too
        with pytest.raises(InputError, match=words):
            runner.reproduce(name, ledger=ledger, device="cpu")
    with pytest.raises(
        InputError, match=r"b5 of scan is pfedmb of tiny: `pfl-lite reproduce tiny --methods pfedmb` makes"
    ):
        runner.reproduce("scan", ledger=ledger, device="cpu", methods=["b5"])
    runner.reproduce(tiny, ledger=ledger, device="cpu", methods=["pfedmb"], seeds=[0])
    search, theirs = ledger.get(tiny, "pfedmb", None), ledger.get(tiny, "pfedmb", 0)
    assert search is not None and theirs is not None
    for name in ("scan", "again"):
        (path,) = runner.reproduce(name, ledger=ledger, device="cpu").written
        assert path.name == "b3-seed0.json"
        config = json.loads(path.read_text())["config"]
        assert (
            config["lr"] == search["chosen"]["lr"]
            and config["method"]["alpha_lr"] == search["chosen"]["alpha_lr"]
        )
        assert config["method"]["branches"] == 3
    frame = table("scan", ledger)
    assert frame["Ours (%)"][1] == pytest.approx(100 * sum(theirs["final"]["test_accuracy"]) / 10)


def test_the_paper_s_budget_has_a_folder_and_an_arm_rounds_of_its_own(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = get_experiment(tiny)
    arms = tuple(
        replace(base.arm(key), grid=base.arm(key).grid[:1], rounds=rounds)
        for key, rounds in (("local", 4), ("fedavg", None))
    )
    small = replace(base, arms=arms, seeds=(0,), paper_budget={"rounds": 3, "search_rounds": 2, "arms": arms})
    monkeypatch.setitem(EXPERIMENTS, tiny, small)
    ledger = Ledger(tmp_path)
    assert len(runner.reproduce(tiny, ledger=ledger, device="cpu", budget="paper").written) == 4
    found = {run["arm"]: run["rounds"][-1]["round"] for run in ledger.read(f"{tiny}-paper")}
    assert found == {"local": 4, "fedavg": 3} and not ledger.read(tiny)
    (search, _) = ledger.searches(f"{tiny}-paper")
    assert search["candidates"][0]["rounds"] == 2
    assert runner.reproduce(tiny, ledger=ledger, device="cpu", budget="paper") == ([], 0, 0, 0, ())
    written = runner.reproduce(tiny, ledger=ledger, device="cpu", rounds=1, methods=["local"]).written
    assert json.loads(written[-1].read_text())["config"]["rounds"] == 1  # what is asked for counts


def test_a_search_may_differ_from_its_results(tiny: str, tmp_path: Path) -> None:
    base = get_experiment(tiny)
    arm = replace(base.arm("fedavg"), search={"epochs": 3})
    one = plan.Plan(replace(base, arms=(arm,)), Ledger(tmp_path), seeds=[0])
    assert {task.config.epochs for task in one.tasks()} == {3} and one.config(arm, 0).epochs == 1


@pytest.fixture
def on_the_brink(tiny: str, monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, float]]:
    """Results of these seeds and rates lose a client in their second round of three."""
    monkeypatch.setitem(EXPERIMENTS, tiny, replace(EXPERIMENTS[tiny], rounds=3))
    lost: set[tuple[int, float]] = set()
    advance = Simulation.advance

    def stumbling(simulation: Simulation) -> dict[str, Any]:
        entry = advance(simulation)
        stumbles = entry["round"] == 2 and (simulation.config.seed, simulation.config.lr) in lost
        return entry | ({"diverged": [4]} if stumbles else {})

    monkeypatch.setattr(Simulation, "advance", stumbling)
    return lost


def test_a_result_that_diverges_is_kept_and_the_next_best_candidate_takes_over(
    tiny: str, on_the_brink: set[tuple[int, float]], tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path)
    (search,) = runner.reproduce(tiny, methods=["fedavg"], ledger=ledger, device="cpu", seeds=[]).written[-1:]
    candidates = json.loads(search.read_text())["candidates"]
    second, best = sorted(candidates, key=lambda one: one["validation_accuracy"])
    first, then = best["settings"]["lr"], second["settings"]["lr"]
    on_the_brink.add((0, first))
    written = runner.reproduce(tiny, methods=["fedavg"], ledger=ledger, device="cpu").written
    assert [path.name for path in written] == [
        "fedavg-seed0-diverged1.json", "fedavg-seed0.json", "fedavg-seed1.json"
    ]  # fmt: skip
    failed, result, other = (json.loads(path.read_text()) for path in written)
    assert failed["kind"] == "diverged" and not failed["complete"] and len(failed["rounds"]) == 3  # 0, 1, 2
    assert [one["config"]["lr"] for one in (failed, result, other)] == [first, then, first]
    assert [run["seed"] for run in ledger.read(tiny)] == [0, 1] and ledger.diverged(tiny) == [failed]
    assert runner.reproduce(tiny, methods=["fedavg"], ledger=ledger, device="cpu") == ([], 0, 0, 0, ())
    assert care.check(ledger).faults == []
    (row,) = table(tiny, ledger).query("Method == 'FedAvg'").to_dict("records")
    assert f"seed 0 diverged in round 2 with lr {first:g} and was run again with lr {then:g}" in row["Reason"]
    assert "the seeds of FedAvg differ in lr" in row["Reason"]


def test_rows_that_take_over_another_row_s_rates_follow_it_to_the_next_candidate(
    tiny: str, on_the_brink: set[tuple[int, float]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    grid = ({"lr": 0.1, "alpha_lr": 0.1}, {"lr": 0.05, "alpha_lr": 0.1})
    arms = [
        replace(EXPERIMENTS[tiny].arm(key), grid=grid[: 2 * (key == "pfedmb")])
        for key in ("pfedmb", "pfedmb-plain")
    ]
    heir = replace(EXPERIMENTS[tiny], name="heir", arms=(arms[1],), searched_in=tiny)
    monkeypatch.setitem(EXPERIMENTS, tiny, replace(EXPERIMENTS[tiny], arms=(arms[0],), seeds=(0,)))
    monkeypatch.setitem(EXPERIMENTS, "heir", replace(heir, seeds=(0,)))
    ledger = Ledger(tmp_path)
    runner.reproduce(tiny, ledger=ledger, device="cpu", seeds=[])
    (search,) = ledger.searches(tiny)
    first = search["chosen"]["lr"]
    then = next(one["lr"] for one in grid if one["lr"] != first)
    on_the_brink.add((0, first))
    runner.reproduce(tiny, ledger=ledger, device="cpu")
    on_the_brink.add((0, then))  # a row that takes rates over has no other candidate
    runner.reproduce("heir", ledger=ledger, device="cpu")
    (own,), (follower,) = ledger.read(tiny), ledger.read("heir")
    assert own["config"]["lr"] == follower["config"]["lr"] == then and ledger.diverged("heir") == []
    assert care.check(ledger).faults == []


def test_a_row_that_takes_over_rates_waits_for_the_row_that_it_follows(
    tiny: str, on_the_brink: set[tuple[int, float]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    base = EXPERIMENTS[tiny]
    grid = ({"lr": 0.1, "alpha_lr": 0.1}, {"lr": 0.05, "alpha_lr": 0.1})
    plain, own = base.arm("pfedmb-plain"), replace(base.arm("pfedmb"), grid=grid)
    monkeypatch.setitem(
        EXPERIMENTS, tiny, replace(base, arms=(plain, own), seeds=(0,))
    )  # the follower is first
    ledger = Ledger(tmp_path)
    with pytest.raises(InputError, match="tiny --methods pfedmb --seeds 0` comes first"):  # before any search
        runner.reproduce(tiny, ledger=ledger, device="cpu", methods=["pfedmb-plain"])
    assert not ledger.searches(tiny)
    runner.reproduce(tiny, ledger=ledger, device="cpu", seeds=[])
    after = {one.command: one.after for one in care.missing(tiny, ledger)}
    assert after == {
        "pfl-lite reproduce tiny --methods pfedmb-plain --seeds 0": "pfl-lite reproduce tiny --methods pfedmb --seeds 0",
        "pfl-lite reproduce tiny --methods pfedmb --seeds 0": "",
    }
    on_the_brink.add((0, ledger.searches(tiny)[0]["chosen"]["lr"]))
    written = runner.reproduce(tiny, ledger=ledger, device="cpu").written
    assert [path.name for path in written] == [
        "pfedmb-seed0-diverged1.json", "pfedmb-seed0.json", "pfedmb-plain-seed0.json"
    ]  # fmt: skip
    first, second = ledger.read(tiny)
    assert first["config"]["lr"] == second["config"]["lr"] and care.check(ledger).faults == []


def test_a_row_of_another_experiment_follows_the_nearest_that_has_the_row(
    tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not the one at the end of the chain, which only searched: other clients trained there."""
    base = EXPERIMENTS[tiny]
    middle = replace(base, name="middle", searched_in=tiny)
    scan = replace(
        base, name="scan", arms=(replace(base.arm("pfedmb-plain"), key="b2"),), searched_in="middle"
    )
    for one in (middle, scan):
        monkeypatch.setitem(EXPERIMENTS, one.name, one)
    sweeping = plan.Plan(scan, Ledger(tmp_path), seeds=[0])
    assert sweeping.leader(scan.arms[0]).name == "middle" and sweeping.searching.name == tiny


def test_a_candidate_that_was_scored_under_another_protocol_is_scored_again(
    tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ledger, asked = Ledger(tmp_path), {"methods": ["fedavg"], "device": "cpu", "seeds": [0]}
    runner.reproduce(tiny, ledger=ledger, **asked)
    (before,) = ledger.searches(tiny)
    arms = tuple(replace(arm, search={"rounds": 2}) for arm in EXPERIMENTS[tiny].arms)
    monkeypatch.setitem(EXPERIMENTS, tiny, replace(EXPERIMENTS[tiny], arms=arms))
    (fault,) = care.check(ledger).faults
    assert "of the candidates that it was chosen from the ledger holds 0 of 2" in fault
    assert "pfl-lite reproduce tiny --methods fedavg" in {
        one.command.partition(" --seeds")[0] for one in care.missing(tiny, ledger)
    }
    runner.reproduce(tiny, ledger=ledger, **asked)
    (after,) = ledger.searches(tiny)
    assert [one["rounds"] for one in after["candidates"]] == [2, 2, 1, 1]  # nothing is thrown away
    assert after["candidates"][2:] == before["candidates"]
    assert not any(
        "searched settings" in note for note in table(tiny, ledger).attrs["notes"]
    )  # two, not four


def test_a_result_of_another_protocol_is_a_fault(
    tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path)
    runner.reproduce(tiny, methods=["fedavg"], ledger=ledger, device="cpu", seeds=[0])
    assert care.check(ledger).faults == []
    run = ledger.read(tiny)[0]
    ledger.write(run | {"kind": "diverged", "attempt": 1, "seed": 1, "complete": False})
    assert care.check(ledger).faults == ["tiny/fedavg-seed1-diverged1.json: seed not as the protocol says"]
    ledger.path(tiny, "fedavg", 1, 1).unlink()
    monkeypatch.setitem(EXPERIMENTS, tiny, replace(EXPERIMENTS[tiny], batch_size=7))
    assert care.check(ledger).faults == ["tiny/fedavg-seed0.json: batch_size not as the protocol says"]


def test_more_rounds_than_the_protocol_has_are_refused(tiny: str, tmp_path: Path) -> None:
    for workers in (0, 1_001, 10**9):
        with pytest.raises(InputError, match=f"workers must be 1 to 1,000, not {workers}"):
            runner.reproduce(tiny, workers=workers, ledger=Ledger(tmp_path))
    with pytest.raises(InputError, match="tiny is trained for 2 rounds: ask for fewer, or leave rounds out"):
        runner.reproduce(tiny, ledger=Ledger(tmp_path), rounds=3, device="cpu")


def test_what_is_there_already_is_not_checked_for_fewer_rounds(
    tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """FedMN's row cannot be had for as few rounds as it is pre-trained; where it is there, nobody asks for it."""
    base, ledger = EXPERIMENTS[tiny], Ledger(tmp_path)
    fedmn = replace(
        base.arm("fedavg"), key="fedmn", method="fedmn", grid=(), settings={"pretrain": 1, "blocks": "2x2"}
    )
    monkeypatch.setitem(EXPERIMENTS, tiny, replace(base, arms=(fedmn, replace(base.arm("local"), grid=()))))
    with pytest.raises(InputError, match="more than pretrain"):
        runner.reproduce(tiny, ledger=ledger, device="cpu", rounds=1, seeds=[0])
    runner.reproduce(tiny, ledger=ledger, device="cpu", methods=["fedmn"], seeds=[0])
    (written,) = runner.reproduce(tiny, ledger=ledger, device="cpu", rounds=1, seeds=[0]).written
    assert written.name == "local-seed0.json"


def test_a_setting_that_cannot_be_is_told_before_the_search(tiny: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with pytest.raises(InputError, match="seed"):
        runner.reproduce(tiny, ledger=ledger, seeds=[-1], device="cpu")
    assert not ledger.searches(tiny)
    runner.reproduce(tiny, ledger=ledger, methods=["fedavg", "fedavg"], seeds=[0, 0], device="cpu")
    assert len(ledger.read(tiny)) == 1


def test_a_task_is_described_by_what_its_search_tries(tiny: str, tmp_path: Path) -> None:
    arm = replace(PFEDMB_TABLE1.arm("fedavg"), method="fedprox", grid=({"lr": 0.1, "mu": 0.5},))
    one = plan.Plan(replace(EXPERIMENTS[tiny], arms=(arm,)), Ledger(tmp_path), seeds=[0])
    (task,) = one.tasks()
    assert runner.describe(task, arm) == "lr 0.1, mu 0.5, 1 rounds"


def test_a_longer_run_that_diverges_takes_the_place_of_the_shorter_one(
    tiny: str, on_the_brink: set[tuple[int, float]], tmp_path: Path
) -> None:
    ledger, asked = Ledger(tmp_path), {"methods": ["fedavg"], "device": "cpu", "seeds": [0]}
    runner.reproduce(tiny, ledger=ledger, rounds=1, **asked)
    (short,) = ledger.read(tiny)
    on_the_brink.add((0, short["config"]["lr"]))
    (path,) = runner.reproduce(tiny, ledger=ledger, **asked).written
    assert path.name == "fedavg-seed0.json" and ledger.diverged(tiny) == []
    (long,) = ledger.read(tiny)
    assert long["config"]["lr"] == short["config"]["lr"] and len(long["rounds"]) == 4
    assert care.check(ledger).faults == []


def test_what_an_attempt_leaves_behind_is_not_taken_up_by_the_next(
    tiny: str, on_the_brink: set[tuple[int, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, asked = Ledger(tmp_path), {"methods": ["fedavg"], "device": "cpu", "seeds": [0]}
    runner.reproduce(tiny, ledger=ledger, methods=["fedavg"], device="cpu", seeds=[])
    on_the_brink.add((0, ledger.searches(tiny)[0]["chosen"]["lr"]))
    with monkeypatch.context() as patch:  # as if killed before its checkpoint is dropped
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        runner.reproduce(tiny, ledger=ledger, **asked)
    kept = sorted(path.name for path in (tmp_path / ".checkpoints").rglob("fedavg-seed0-*.pt"))
    assert kept == ["fedavg-seed0-run.pt", "fedavg-seed0-run2.pt"] and len(ledger.read(tiny)) == 1


@pytest.mark.parametrize("last", [2, 3])
def test_an_attempt_is_an_unfinished_run_whichever_round_it_ended_in(
    tiny: str,
    on_the_brink: set[tuple[int, float]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    last: int,
) -> None:
    monkeypatch.setitem(EXPERIMENTS, tiny, replace(EXPERIMENTS[tiny], rounds=last))
    ledger, asked = Ledger(tmp_path), {"methods": ["fedavg"], "device": "cpu", "seeds": [0]}
    runner.reproduce(tiny, ledger=ledger, methods=["fedavg"], device="cpu", seeds=[])
    on_the_brink.add((0, ledger.searches(tiny)[0]["chosen"]["lr"]))
    runner.reproduce(tiny, ledger=ledger, **asked)
    (failed,) = ledger.diverged(tiny, "fedavg", 0)
    assert not failed["complete"] and failed["rounds"][-1]["round"] == 2
    with pytest.raises(InputError, match="already holds an attempt that diverged"):
        ledger.write(failed | {"seconds": failed["seconds"] + 1})
    assert ledger.write(failed).name == "fedavg-seed0-diverged1.json"  # the same once more is no other


def test_a_result_with_no_other_candidate_is_entered_as_it_ended(
    tiny: str, on_the_brink: set[tuple[int, float]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rates = [one["lr"] for one in EXPERIMENTS[tiny].arm("fedavg").grid]
    on_the_brink |= {(0, rate) for rate in rates}
    for next_candidate, kinds in ((True, ["diverged", "run"]), (False, ["run"])):
        monkeypatch.setitem(
            EXPERIMENTS, tiny, replace(EXPERIMENTS[tiny], seeds=(0,), next_candidate=next_candidate)
        )
        ledger = Ledger(tmp_path / str(next_candidate))
        written = runner.reproduce(tiny, methods=["fedavg"], ledger=ledger, device="cpu").written
        found = [json.loads(path.read_text()) for path in written if "seed" in path.name]
        assert [one["kind"] for one in found] == kinds and found[-1]["complete"]
        (row,) = table(tiny, ledger).query("Method == 'FedAvg'").to_dict("records")
        assert "seed 0 diverged in round 2" in row["Reason"]
        assert (
            row["Status"] == "diverged"
            and pages.grid(tiny, ledger=ledger).data.loc["FedAvg", (tiny, "ours")] == "diverged"
        )
        assert runner.reproduce(tiny, methods=["fedavg"], ledger=ledger, device="cpu") == ([], 0, 0, 0, ())


def test_a_row_that_takes_over_a_training_says_that_it_diverged(
    moe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, ledger = Simulation.advance, Ledger(tmp_path)

    def stumbling(simulation: Simulation) -> dict[str, Any]:
        entry = advance(simulation)
        return entry | ({"diverged": [4]} if entry["round"] == 2 else {})

    monkeypatch.setattr(Simulation, "advance", stumbling)
    runner.reproduce(moe, methods=["fedavg", "pfl_fb"], ledger=ledger, device="cpu")
    assert [run["rounds"][-1]["diverged"] for run in ledger.read(moe)] == [[4], [4]]
    rows = table(moe, ledger).dropna(subset="Ours (%)")
    assert len(rows) == 4  # two tests each
    assert all("seed 0 diverged in round 2" in reason for reason in rows["Reason"])


def test_a_candidate_that_diverged_is_chosen_last() -> None:
    scores = [
        {"validation_accuracy": 0.5, "diverged": 3},
        {"validation_accuracy": 0.2},
        {"validation_accuracy": 0.3},
    ]
    assert [one["validation_accuracy"] for one in sorted(scores, key=plan.best_first)] == [0.3, 0.2, 0.5]


def test_a_search_says_which_candidate_diverged(
    tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arm = replace(PFEDMB_TABLE1.arm("fedavg"), grid=({"lr": 1e30}, {"lr": 0.1}))
    monkeypatch.setitem(EXPERIMENTS, tiny, replace(EXPERIMENTS[tiny], arms=(arm,)))
    ledger = Ledger(tmp_path)
    with pytest.warns(UserWarning, match="fedavg diverged: after round 1"):
        runner.reproduce(tiny, ledger=ledger, device="cpu", seeds=[])
    (search,) = ledger.searches(tiny)
    assert [one.get("diverged") for one in search["candidates"]] == [1, None] and search["chosen"] == {
        "lr": 0.1
    }
