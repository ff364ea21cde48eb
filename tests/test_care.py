"""What a look through the ledger finds, and which commands would fill its gaps."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pfl_lite.papers import EXPERIMENTS, PFEDMB_TABLE1
from pfl_lite.results import audit as care
from pfl_lite.results.audit import check, missing
from pfl_lite.results.ledger import Ledger, default_folder
from pfl_lite.show.text import render_missing
from tests.test_cli import call
from tests.test_ledger import make_run, make_search
from tests.test_sweep import tiny  # noqa: F401 (a fixture)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def enter(ledger: Ledger, **changes: Any) -> Path:
    run = make_run(**{k: v for k, v in changes.items() if k in ("arm", "seed", "lr", "model")})
    return ledger.write(
        run | {k: v for k, v in changes.items() if k in ("images_trained", "images_per_second")}
    )


def test_the_repository_s_ledger_is_sound() -> None:
    found = check(Ledger(default_folder()))
    assert found.faults == [] and found.files > 300 and found.bytes < care.LARGEST


def test_a_sound_ledger_has_no_fault_and_is_left_as_it_is(ledger: Ledger) -> None:
    enter(ledger)
    enter(ledger, seed=1)
    ledger.write(make_search(0.1, 0.2))
    (ledger.folder / ".checkpoints").mkdir()
    (ledger.folder / ".checkpoints/half.json").write_text("{")
    (ledger.folder / "toy/fedavg-seed0.json.bak").write_text("{")
    before = sorted(ledger.folder.rglob("*"))
    found = check(ledger)
    assert found.files == 4 and found.faults == [] and sorted(ledger.folder.rglob("*")) == before
    assert found.notes[0].startswith("toy/fedavg-seed0.json.bak: not read, as its name does not end in .json")
    assert "toy: 2 runs of an experiment that is not known here" in found.notes


@pytest.mark.parametrize("terminal", [True, False])
def test_a_look_through_a_ledger_shows_a_bar_on_a_terminal(
    ledger: Ledger, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(ledger)
    screen = type("Screen", (io.StringIO,), {"isatty": lambda self: terminal})()
    monkeypatch.setattr("sys.stderr", screen)
    check(ledger)
    assert ("0/1 [00:00" in screen.getvalue()) == terminal


@pytest.mark.parametrize(("final", "model"), [("final", "tuned"), ("final_before_ft", "personal")])
def test_final_accuracies_are_those_of_the_last_round(ledger: Ledger, final: str, model: str) -> None:
    run = make_run()
    run[final] |= {"test_accuracy": [0.99, 0.99]}
    ledger.write(run)
    said = (
        f"toy/fedavg-seed0.json: its final accuracies have the mean 0.9900, its last round's {model} ones 0."
    )
    assert [fault[: len(said)] for fault in check(ledger).faults] == [said]


def test_a_run_that_was_stopped_needs_no_final_accuracies(ledger: Ledger) -> None:
    run = make_run() | {"complete": False}
    ledger.write({key: value for key, value in run.items() if not key.startswith("final")})
    assert check(ledger).faults == []


def impossible(place: str, value: Any) -> str:
    """A run with one value changed, as JSON."""
    run = there = make_run() | {"seconds": 1.0}
    *way, last = (int(key) if key.isdigit() else key for key in place.split("/"))
    for key in way:
        there = there[key]
    there[last] = value
    return json.dumps(run)


def deep(levels: int) -> list[Any]:
    """A list in a list in a list: JSON can be read to a depth to which it cannot be looked through."""
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("fedavg-seed0.json", "{", "toy/fedavg-seed0.json: it is not valid JSON"),
        ("fedavg-seed3.json", json.dumps(make_run()), "toy/fedavg-seed3.json: its name and its contents disagree"),
        (
            "fedavg-seed0.json",
            json.dumps(make_run(complete=False, method={}) | {"rounds": []}),
            'its config/method lacks name',
        ),
        ("fedavg-seed0.json", json.dumps(make_run() | {"arm": 3}), 'its arm is 3, not a text'),
        (
            "search-fedavg.json",
            json.dumps(make_search(0.1) | {"chosen": {"lr": 9}}),
            '"chosen" is none of the candidates',
        ),
        ("search-fedavg.json", json.dumps(make_search() | {"candidates": [3]}), "its candidates/0 is 3, not an object"),
        (
            "search-fedavg.json",
            json.dumps(make_search(0.1)).replace('_accuracy": 0.5', '_accuracy": null'),
            'its candidates/0/validation_accuracy is null, not a number from 0 to 1',
        ),
        ("fedavg-seed0.json", "[" * 200_000, "it is not valid JSON (nested too deep)"),
        ("fedavg-seed0.json", json.dumps(make_run() | {"more": deep(600)}), " is nested too deep"),
        ("fedavg-seed0.json", json.dumps(make_run() | {"kind": {"a": 1}}), 'it is not an object whose "kind" is'),
        *(
            ("fedavg-seed0.json", impossible(place, value), f"its {place} is {value!r}, not a")
            for place, value in (
                *(("final/test_accuracy/0", value) for value in (5.0, -1, 1e308, True, "0.5")),
                ("rounds/1/personal_accuracy", 1.5),
                ("rounds/1/per_client/personal/0", "x"),
                ("final/test_loss/0", -1.0),
                ("final/test_size/1", 1.5),
                ("config/lr", "0.1"),
                ("seconds", -1),
            )
        ),
        ("fedavg-seed0.json", impossible("final/test_accuracy/0", None), "lacks the accuracy of a client with test images"),
        ("fedavg-seed0.json", impossible("rounds/2/round", 1), "its rounds are not one after another"),
        ("fedavg-seed0.json", impossible("seconds", 0).replace('"seconds": 0', '"seconds": 1e400'), "its seconds is inf"),
        ("fedavg-seed0.json.damaged", "", "set aside as damaged"),
    ],
)  # fmt: skip
def test_a_file_that_breaks_its_schema_is_a_fault_and_stays_where_it_is(
    ledger: Ledger, name: str, text: str, says: str
) -> None:
    path = ledger.folder / "toy" / name
    path.parent.mkdir()
    path.write_text(text)
    found = check(ledger)
    assert len(found.faults) == 1 and says in found.faults[0] and path.read_text() == text
    result = call("ledger", "check", "--ledger", ledger.folder)
    assert result.exit_code == 1 and says in result.stdout and result.stdout.endswith(": 1 fault\n")


def test_a_large_file_that_is_not_packed_is_a_fault_and_one_with_a_packed_twin_too(ledger: Ledger) -> None:
    run = make_run() | {"watch": {"alpha": {"0": [0.125] * 20_000}}}
    packed = ledger.write(run)
    found = check(ledger)
    assert packed.suffix == ".gz" and found.faults == [] and found.bytes == packed.stat().st_size
    loose = packed.with_suffix("")
    loose.write_bytes(gzip.decompress(packed.read_bytes()))
    assert check(ledger).faults == ["toy/fedavg-seed0.json: fedavg-seed0.json.gz counts: keep one"]
    packed.unlink()
    assert check(ledger).faults == ["toy/fedavg-seed0.json: larger than 100 kB: pack it by `gzip -n9`"]
    assert ledger.get("toy", "fedavg", 0) == run, "it is read all the same"
    with gzip.open(packed, "wb") as file:  # as the command does it, with a name and a time
        file.write(loose.read_bytes())
    loose.unlink()
    assert check(ledger).faults == [] and ledger.get("toy", "fedavg", 0) == run


def test_a_run_that_is_kept_twice_is_a_fault_wherever_it_was_computed(ledger: Ledger) -> None:
    enter(ledger)
    enter(ledger, arm="other", lr=0.1)
    assert check(ledger).faults == []
    copy = make_run(arm="third", device="cuda")
    ledger.write(copy)
    assert check(ledger).faults == ["toy/third-seed0.json: the same run as toy/fedavg-seed0.json: keep one"]


def test_a_ledger_too_large_to_keep_is_a_fault(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(ledger)
    monkeypatch.setattr(care, "LARGEST", 100)
    assert "more than 0 MB" in check(ledger).faults[0]


def test_empty_cells_are_counted_and_the_paper_s_only_where_there_is_one(ledger: Ledger) -> None:
    (note,) = check(ledger).notes
    assert " experiments without any result: pfedmb-table1, " in note and "-paper" not in note
    for name, results in (("pfedmb-table1", 20), ("pfedmb-table1-paper", 12)):
        (ledger.folder / name).mkdir()
        assert f"{name}: {results} of {results} results are missing" in check(ledger).notes
    assert "pfedmb-table1," not in check(ledger).notes[-1]


def named(name: str, ledger: Ledger, budget: str = "small") -> list[str]:
    return [one.command for one in missing(name, ledger, budget)]


def test_gaps_are_commands_that_the_command_line_takes_the_longest_first(tiny: str, ledger: Ledger) -> None:  # noqa: F811
    for seed, arms in ((0, ("fedavg", "local")), (1, ("local",))):
        for key in arms:
            ledger.write(
                make_run(key, seed) | {"experiment": tiny, "seconds": 40.0 if key == "fedavg" else 7.0}
            )
    found = missing(tiny, ledger)
    assert {item.command: (item.results, item.seconds) for item in found} == {
        "pfl-lite reproduce tiny --methods pfedmb-plain --seeds 0,1": (2, None),
        "pfl-lite reproduce tiny --methods pfedmb --seeds 0,1": (2, None),
        "pfl-lite reproduce tiny --methods fedavg --seeds 1": (1, 40.0),
    }
    assert [bool(item.after) for item in found] == sorted(bool(item.after) for item in found)
    assert "fedavg" in found[0].command, "the longest that is known comes first"
    assert "1 result, about 40 s each  pfl-lite reproduce tiny" in render_missing(found)
    for item in found:
        understood = call(*item.command.split()[1:], "--budget", "1ms")  # up to the budget
        assert understood.exit_code == 2 and "'1ms'" in understood.stderr
        done = call(*item.command.split()[1:], "--ledger", ledger.folder, "--budget", "0.001s")
        assert (
            done.exit_code == (2 if item.after else 0) and item.after.partition(" --seeds")[0] in done.stderr
        )


def test_a_gap_s_time_is_a_processor_s_if_one_trained_the_rows(tiny: str, ledger: Ledger) -> None:  # noqa: F811
    for key, seed, device, seconds in (
        ("fedavg", 0, "cpu (x86_64)", 40.0), ("local", 0, "NVIDIA H200", 2.0), ("pfedmb", 0, "NVIDIA H200", 3.0),
        ("local", 1, "cpu (x86_64)", 7.0), ("fedavg", 5, "NVIDIA H200", 1.0),
    ):  # fmt: skip
        ledger.write(make_run(key, seed) | {"experiment": tiny, "device": device, "seconds": seconds})
    found = {item.command.split()[4]: (item.seconds, item.gpu) for item in missing(tiny, ledger)}
    assert found == {"fedavg": (40.0, False), "pfedmb": (3.0, True), "pfedmb-plain": (None, False)}
    text = render_missing(missing(tiny, ledger))
    assert "1 result, about 3 s each on a GPU" in text and "about 40 s each  " in text


def test_gaps_without_a_run_to_measure_by_name_no_time(ledger: Ledger) -> None:
    assert named("pflmoe-fmnist-lenet-0.9", ledger, "paper")[0] == (
        "pfl-lite reproduce pflmoe-fmnist-lenet-0.9 --methods "
        "local,fedavg,pfl_fb,pfl_fb-all,pfl_mf,pfl_mfe,pfl_mf-code,pfl_mfe-code,pfl_mf-equal --seeds 0 --budget-name paper"
    )
    (first, *_) = missing("pfedmb-table2-dirichlet-15", ledger)
    assert first.seconds is None and first.after.startswith(
        "pfl-lite reproduce pfedmb-table2-dirichlet-50 --methods"
    )
    assert " s each" not in render_missing([first]) and "# after:" in render_missing([first])
    assert "pfl-lite reproduce pfedmb-table2-random2-50 --methods pfedmb --seeds 0" in named(
        "pfedmb-fig5", ledger
    )
    both = named("pfedmb-table3", ledger)
    assert len(both) == len(set(both)) and any("fig5" in command for command in both)


def test_rows_that_lack_the_same_seeds_share_a_command(ledger: Ledger) -> None:
    mine = [one for one in named("pfedmb-table3", ledger) if "reproduce pfedmb-table3-random2-15 " in one]
    assert mine == ["pfl-lite reproduce pfedmb-table3-random2-15 --methods b2,b5,b10,b20 --seeds 0"]


def test_a_full_ledger_has_nothing_missing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    one = replace(PFEDMB_TABLE1, name="full", arms=PFEDMB_TABLE1.arms[:1], rounds=2, seeds=(0,))
    monkeypatch.setitem(EXPERIMENTS, "full", one)
    ledger.write(make_run("local") | {"experiment": "full"})
    assert missing("full", ledger) == []
    assert "nothing is missing of full" in call("ledger", "missing", "full", "--ledger", ledger.folder).stdout


def test_a_search_of_an_earlier_protocol_is_called_a_search(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, about = Ledger(default_folder()), ("pfedmb-table2-random2-50", "ifca")
    monkeypatch.setitem(EXPERIMENTS, about[0], replace(EXPERIMENTS[about[0]], seeds=(0,)))
    entries = [home.get(*about, None), *home.read(about[0])]
    for entry in (one for one in entries if one is not None and one["arm"] == about[1]):
        for tried in entry.get("candidates", ()):
            tried["rounds"] -= 1
        ledger.write(entry)
    (row,) = [row for row in render_missing(missing(about[0], ledger)).splitlines() if about[1] in row]
    assert row.split("  ")[0] == "a search again" and "--seeds" not in row


def test_what_needs_data_that_were_not_there_comes_last(ledger: Ledger) -> None:
    found = missing("fedmn-table2", ledger)
    absent = [one.unavailable for one in found]
    assert absent == sorted(absent) and {True, False} == set(absent)
    assert all(one.unavailable == ("mnist" in one.command) for one in found)
    lines = render_missing(found).splitlines()
    assert [line.endswith("  # where the data are") for line in lines] == absent


def test_results_are_held_to_what_their_search_chose(tmp_path: Path) -> None:
    home, ledger = Ledger(default_folder()), Ledger(tmp_path)
    about = ("pfedmb-table2-random2-50", "ifca")
    search, run = home.get(*about, None), home.get(*about, 0)
    assert search is not None and run is not None
    ledger.write(run)
    ledger.write(search)
    assert check(ledger).faults == []
    other = next(one for one in search["candidates"] if one["settings"]["lr"] != search["chosen"]["lr"])
    better = [one | {"validation_accuracy": 1.0} if one is other else one for one in search["candidates"]]
    path = ledger.path(*about, None)
    for candidates, says in (
        (better, "ifca-seed0.json: lr, clusters not as the search chose"),
        (search["candidates"][1:], "the ledger holds 3 of 4"),
    ):
        path.write_text(json.dumps(search | {"candidates": candidates, "chosen": candidates[0]["settings"]}))
        (fault,) = check(ledger).faults
        assert says in fault
    path.write_text("{")
    told = call("ledger", "check", "--ledger", tmp_path)
    (fault,) = [line for line in told.stdout.splitlines() if line.startswith("fault")]
    assert "search-ifca.json: it is not valid JSON" in fault and not told.stderr


def test_rows_that_begin_at_another_training_than_the_row_s_own_are_named(tmp_path: Path) -> None:
    home, ledger = Ledger(default_folder()), Ledger(tmp_path)
    name = "pflmoe-cifar10-lenet-2"
    for arm in ("local", "fedavg", "pfl_fb", "pfl_mfe"):
        run = home.get(name, arm, 0)
        assert run is not None
        if arm == "pfl_fb":
            run["final_before_ft"]["test_accuracy"][5] += 1e-9
        ledger.write(run)
    assert [note for note in check(ledger).notes if "takes over" in note] == [
        f"{name}/pfl_fb-seed0.json: takes over a training of fedavg that did not end as that row's own"
    ]


def test_a_row_made_elsewhere_is_told_with_what_must_come_first_there(ledger: Ledger) -> None:
    (made,) = [one for one in missing("pfedmb-table3-random2-15", ledger) if "-table2-" in one.command]
    assert made.command == "pfl-lite reproduce pfedmb-table2-random2-15 --methods pfedmb --seeds 0"
    assert made.after == "pfl-lite reproduce pfedmb-table2-random2-50 --methods pfedmb"
