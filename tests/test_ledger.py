"""The ledger keeps its promises: nothing overwritten, nothing lost, nothing damaged used in silence."""

import gzip
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from pfl_lite.errors import InputError
from pfl_lite.results.ledger import PACKED, WATCH_DIGITS, Ledger, default_folder


def make_run(arm="fedavg", seed=0, rounds=2, complete=True, **config):
    """A run of two clients whose personal accuracy at round t is t/10 and t/10 + 0.2."""
    run = {
        "kind": "run",
        "experiment": "toy",
        "arm": arm,
        "seed": seed,
        "method": "fedavg",
        "config": {"rounds": rounds, "epochs": 5, "lr": 0.05, "seed": seed, "method": {"name": "fedavg"}}
        | config,
        "complete": complete,
        "rounds": [
            {
                "round": t,
                "clients": [0, 1],
                "personal_accuracy": t / 10 + 0.1,
                "tuned_accuracy": 0.6,
                "global_accuracy": None,
                "floats_down": 20 if t else 0,
                "floats_up": 20 if t else 0,
                "per_client": {"personal": [t / 10, t / 10 + 0.2], "tuned": None},
            }
            for t in range(rounds + 1)
        ],
    }
    if complete:
        run["final"] = {
            "test_accuracy": [0.5, 0.7],
            "test_loss": [1.0, 0.9],
            "train_size": [8, 9],
            "test_size": [4, 4],
        }
        run["final_before_ft"] = {**run["final"], "test_accuracy": [rounds / 10, rounds / 10 + 0.2]}
    return run


def make_search(*rates):
    candidates = [
        {"settings": {"lr": rate}, "validation_accuracy": 0.5, "rounds": 2, "seed": 0} for rate in rates
    ]
    return {
        "kind": "search",
        "experiment": "toy",
        "arm": "fedavg",
        "candidates": candidates,
        "chosen": {"lr": 0.1},
    }


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "results")


def test_what_is_written_is_read_sorted_by_arm_and_seed(ledger):
    for arm, seed in (("local", 0), ("fedavg", 10), ("fedavg", 2)):
        path = ledger.write(make_run(arm, seed))
        assert path == ledger.folder / "toy" / f"{arm}-seed{seed}.json"
    assert [(r["arm"], r["seed"]) for r in ledger.read("toy")] == [
        ("fedavg", 2),
        ("fedavg", 10),
        ("local", 0),
    ]
    assert ledger.get("toy", "fedavg", 2) == make_run("fedavg", 2)
    assert ledger.get("toy", "fedavg", 3) is None
    assert ledger.read("another") == []
    assert (
        sorted(p.suffix for p in (ledger.folder / "toy").iterdir()) == [".json"] * 3
    )  # no temporary file stays


def test_has_counts_only_complete_runs_of_at_least_so_many_rounds(ledger):
    ledger.write(make_run(rounds=2))
    ledger.write(make_run(seed=1, complete=False))
    assert ledger.has("toy", "fedavg", 0) and ledger.has("toy", "fedavg", 0, 2)
    assert not ledger.has("toy", "fedavg", 0, 3)
    assert not ledger.has("toy", "fedavg", 1)
    assert [r["seed"] for r in ledger.read("toy")] == [0]
    assert [r["seed"] for r in ledger.read("toy", unfinished=True)] == [1]


def test_a_longer_run_takes_the_place_of_the_same_run_for_fewer_rounds(ledger):
    path = ledger.write(make_run(rounds=2))
    assert ledger.write(make_run(rounds=3)) == path
    assert ledger.get("toy", "fedavg", 0)["rounds"][-1]["round"] == 3
    before = path.read_bytes()
    ledger.write(make_run(rounds=2))
    assert path.read_bytes() == before
    with pytest.raises(InputError, match="other: lr"):
        ledger.write(make_run(rounds=4, lr=0.1))


def test_a_complete_run_is_never_overwritten(ledger):
    path = ledger.write(make_run())
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"fedavg-seed0\.json already holds .*\(other: lr\)"):
        ledger.write(make_run(lr=0.1))
    assert not ledger.check(make_run(rounds=1)), "a shorter one is not news"
    slower = make_run()
    slower["seconds"] = 99.0
    assert ledger.write(slower) == path  # the same configuration: what is there stays
    ledger.write(
        make_run(device="cuda", engine="vmap", clients_per_batch=4, tf32=False)
    )  # the same run, computed elsewhere
    ledger.write(make_run(complete=False))  # an unfinished one does not replace it either
    ledger.write(make_run(split="published"))  # a setting that came later, at its default
    with pytest.raises(InputError, match="other: split"):
        ledger.check(make_run(split="fedem"))
    assert path.read_bytes() == before


def test_an_unfinished_run_never_takes_the_place_of_a_complete_one(ledger):
    ledger.write(make_run(rounds=2))
    ledger.write(make_run(rounds=5, complete=False))
    assert ledger.has("toy", "fedavg", 0, 2) and len(ledger.get("toy", "fedavg", 0)["rounds"]) == 3


def test_an_unfinished_run_is_replaced(ledger):
    ledger.write(make_run(complete=False, lr=0.3))
    assert ledger.check(make_run())
    ledger.write(make_run())
    assert ledger.read("toy") == [make_run()]


def watched(rounds=2, floats=20_000):
    """A run whose file is large."""
    return make_run(rounds=rounds) | {"watch": {"alpha": {"0": [n / 7 for n in range(floats)]}}}


def test_a_large_run_is_kept_packed_and_read_like_any_other(ledger):
    small = ledger.write(make_run(rounds=2))
    packed = ledger.write(watched(rounds=3))
    assert packed.name == "fedavg-seed0.json.gz" and not small.exists()
    content = packed.read_bytes()
    assert len(content) < PACKED < len(gzip.decompress(content))
    assert content[4:8] == bytes(4), "no time of writing"
    for reader in (ledger, Ledger(ledger.folder)):
        kept = reader.get("toy", "fedavg", 0)
        assert kept["watch"]["alpha"]["0"][5] == round(5 / 7, WATCH_DIGITS) and len(kept["rounds"]) == 4
        assert reader.read("toy") == [kept] and reader.has("toy", "fedavg", 0, 3)
    assert not ledger.check(watched(rounds=3)) and ledger.check(watched(rounds=4))
    with pytest.raises(InputError, match=r"fedavg-seed0\.json\.gz already holds .*\(other: lr\)"):
        ledger.write(make_run(rounds=4, lr=0.1))
    packed.unlink()
    assert ledger.write(watched(rounds=3)).read_bytes() == content, "a file depends on its content alone"
    assert ledger.write(make_run(rounds=5)) == packed, "once packed, always packed: no run has two files"
    assert [path.name for path in small.parent.iterdir()] == [packed.name]


def test_a_run_below_the_limit_is_kept_as_text(ledger):
    path = ledger.write(watched(floats=11_000))
    assert path.suffix == ".json" and 0.8 * PACKED < path.stat().st_size < PACKED


@pytest.mark.filterwarnings("ignore:.*damaged and not used")
@pytest.mark.parametrize(
    "broken",
    [
        b"\x1f\x8b",
        b"\x1f\x8b\x09" + bytes(20),
        gzip.compress(b"{", mtime=0),
        gzip.compress(b"{}")[:10] + b"\xff" * 20,
    ],
    ids=["cut", "no gzip", "no JSON", "garbled"],
)
def test_a_broken_packed_run_is_named_and_set_aside(ledger, broken):
    path = ledger.write(watched())
    path.write_bytes(broken)
    with pytest.warns(UserWarning, match="damaged and not used: it is not valid JSON"):
        assert Ledger(ledger.folder).read("toy") == []
    whole = gzip.compress(json.dumps(watched()).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match="damaged"):
        assert Ledger(ledger.folder).read("toy") == []
    with pytest.warns(UserWarning, match=r"set aside as fedavg-seed0\.json\.gz\.damaged"):
        assert Ledger(ledger.folder).write(watched()) == path


def test_a_search_may_grow_but_not_shrink(ledger):
    path = ledger.write(make_search(0.1, 0.2))
    assert path.name == "search-fedavg.json"
    ledger.write(make_search(0.1, 0.2, 0.5))
    assert ledger.searches("toy") == [make_search(0.1, 0.2, 0.5)] == [ledger.get("toy", "fedavg", None)]
    with pytest.raises(InputError, match="holds 2 searched candidates that the new search lacks"):
        ledger.write(make_search(0.1))
    assert ledger.read("toy") == []  # a search is no run


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"kind": "run", "exper', "not valid JSON"),
        ("", "not valid JSON"),
        ("[]", "is not an object"),
        (
            json.dumps({k: v for k, v in make_run().items() if k not in ("config", "rounds")}),
            "lacks config, rounds",
        ),
        (json.dumps({k: v for k, v in make_run().items() if k != "final"}), "called complete"),
        (
            json.dumps({**make_run(), "final": {**make_run()["final"], "test_loss": [1.0]}}),
            "one number a client",
        ),
        (json.dumps(make_run(seed=7)), "name and its contents disagree"),
    ],
)
def test_a_damaged_file_is_named_once_and_set_aside_where_another_takes_its_place(ledger, text, why):
    ledger.write(make_run(seed=1))
    damaged = ledger.folder / "toy" / "fedavg-seed0.json"
    for name in ("fedavg-seed0.json.damaged", "fedavg-seed0.json.damaged-2"):
        damaged.write_text(text)
        reader = Ledger(ledger.folder)
        with pytest.warns(UserWarning, match=why) as caught:
            assert [r["seed"] for r in reader.read("toy")] == [1]
            assert reader.get("toy", "fedavg", 0) is None
        assert len(caught) == 1 and str(damaged) in str(caught[0].message)
        assert damaged.read_text() == text, "reading changes nothing"
        with pytest.warns(UserWarning, match=name):
            reader.write(make_run())
        assert damaged.with_name(name).read_text() == text and len(reader.read("toy")) == 2


def test_bytes_that_are_no_text_are_damage_too(ledger):
    ledger.write(make_run()).write_bytes(b"\xff\xfe\x00")
    with pytest.warns(UserWarning, match="not valid JSON"):
        assert not ledger.has("toy", "fedavg", 0)


def test_an_entry_that_could_not_be_read_back_is_refused(ledger):
    run = make_run()
    del run["final"]
    with pytest.raises(InputError, match="called complete"):
        ledger.write(run)
    with pytest.raises(InputError, match="cannot be a file's name"):
        ledger.write(make_run(arm="../fedavg"))
    assert not ledger.folder.exists()


def test_numpy_values_become_json_and_nan_becomes_null(ledger):
    run = make_run()
    run["final"]["test_accuracy"] = np.array([0.5, np.nan], dtype=np.float32)
    run["final"]["test_size"] = [4, 0]
    run["rounds"][1]["personal_loss"] = math.inf
    run["watch"] = {"alpha": {0: np.eye(2), 1: np.array([[1 / 3, 2 / 3]])}}
    text = ledger.write(run).read_text()
    assert "NaN" not in text and "Infinity" not in text
    back = ledger.get("toy", "fedavg", 0)
    assert back["final"]["test_accuracy"] == [0.5, None]
    assert back["rounds"][1]["personal_loss"] is None
    assert back["watch"] == {"alpha": {"0": [[1.0, 0.0], [0.0, 1.0]], "1": [[0.3333, 0.6667]]}}
    last = ledger.frame("toy").query("quantity == 'test_accuracy'")["value"].tolist()
    assert last[0] == 0.5 and math.isnan(last[1])


def test_a_frame_is_tidy(ledger):
    ledger.write(make_run())
    ledger.write(make_run("local", 1))
    frame = ledger.frame("toy")
    assert list(frame) == ["experiment", "arm", "method", "seed", "round", "client", "quantity", "value"]
    # a run: 3 rounds x 2 clients "personal", and 2 x 4 final lists x 2 clients
    assert len(frame) == 2 * (3 * 2 + 2 * 4 * 2)
    one = frame.query("arm == 'local' and seed == 1 and client == 1").set_index(["quantity", "round"])[
        "value"
    ]
    assert one["personal", 1] == pytest.approx(0.3)
    assert (one["test_accuracy", 2], one["before_ft_test_accuracy", 2]) == (0.7, 0.4)
    assert ledger.frame("nothing").empty


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PFL_LITE_RESULTS", str(tmp_path))
    assert default_folder() == tmp_path == Ledger().folder
    monkeypatch.delenv("PFL_LITE_RESULTS")
    data = default_folder().parent
    assert default_folder().name == "results" and (data / "paper_tables.csv").is_file()
    # an installed package has no repository around it: then the folder one works in
    package = tmp_path / "site-packages" / "pfl_lite" / "experiments"
    package.mkdir(parents=True)
    monkeypatch.setattr("pfl_lite.papers.experiment.__file__", str(package / "experiment.py"))
    assert default_folder() == Path("data/results")
    (tmp_path / "site-packages" / "data").mkdir()
    shutil.copy(data / "paper_tables.csv", tmp_path / "site-packages" / "data")
    assert default_folder() == tmp_path / "site-packages" / "data" / "results"
