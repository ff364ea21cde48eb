"""The command line: what it prints and writes, and how it answers bad input."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner, Result

import pfl_lite
from pfl_lite import __version__
from pfl_lite.atomic_files import locked
from pfl_lite.cli import app, named_method, parse_budget, settings_of_a_run
from pfl_lite.config import RunConfig
from pfl_lite.data import exchange
from pfl_lite.data.images import load
from pfl_lite.data.partition import partition
from pfl_lite.engine.report import load_model, read_models
from pfl_lite.errors import InputError
from pfl_lite.methods import METHODS, FedAvg, explain
from pfl_lite.models import make_network
from pfl_lite.papers import EXPERIMENTS, GROUPS, PFEDMB_TABLE1
from pfl_lite.results import executors
from pfl_lite.results.ledger import Ledger, default_folder
from pfl_lite.show import text
from tests.test_sweep import Inline

EIGHT = [
    "--data", "digits", "--partition", "dirichlet:0.4", "--clients", "8", "--rounds", "3", "--dtype",
    "float64",
]  # fmt: skip


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def losses(tmp_path: Path, *arguments: object) -> np.ndarray:
    out = tmp_path / "run.json"
    result = call("run", *arguments, *EIGHT, "--out", out, "--force")
    assert result.exit_code == 0, result.output
    return np.array(json.loads(out.read_text())["final"]["test_loss"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["pfedmb", "--set", "branches=1"],
        ["pfedmb", "--set", "branches=1", "--set", "aggregation=plain"],
        ["fedprox", "--set", "mu=0"],
        ["fedper", "--set", "head=none"],
    ],
)
def test_equal_to_fedavg(arguments: list[str], tmp_path: Path) -> None:
    assert losses(tmp_path, *arguments) == pytest.approx(losses(tmp_path, "fedavg"), abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_engines_agree(method: str, tmp_path: Path) -> None:
    loop, batched = (losses(tmp_path, method, "--engine", engine) for engine in ("loop", "vmap"))
    assert loop == pytest.approx(batched, abs=1e-9)


def test_how_a_run_is_computed_can_be_said(tmp_path: Path) -> None:
    how = ["--engine", "vmap", "--clients-per-batch", 3, "--no-tf32"]
    result = call("run", "fedavg", *EIGHT, *how, "--set", "graphs=false", "--out", tmp_path / "run.json")
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "run.json").read_text())["config"]
    said = {"clients_per_batch": 3, "tf32": False, "graphs": False}
    assert {name: config[name] for name in said} == said
    result = call("run", "fedavg", *EIGHT, "--engine", "loop", "--clients-per-batch", 3)
    assert result.exit_code == 2 and "clients_per_batch belongs to the engine vmap" in result.output


def test_every_setting_of_a_run_is_an_option_explained_in_its_own_words() -> None:
    known = settings_of_a_run()
    assert list(known) == [field.name for field in fields(RunConfig) if field.name != "method"]
    assert {name: default for name, (_, default, _) in known.items()} == {
        field.name: field.default for field in fields(RunConfig) if field.name != "method"
    }
    said = " ".join(re.sub("[│\n]", " ", call("run", "--help").stdout).split())
    assert "(None:" not in said  # which cannot be typed
    for name, (kind, _, _) in known.items():
        assert f"--{name.replace('_', '-')} " in said or f"--no-{name}" in said, (name, kind)


def test_fine_tuning_is_asked_for_as_an_option_or_as_a_setting(tmp_path: Path) -> None:
    options = ["--ft-epochs", 2, "--ft-mode", "plain_sgd", "--ft-every", 1]
    settings = ["--set", "ft_epochs=2", "--set", "ft_mode=plain_sgd", "--set", "ft_every=1"]
    found = [losses(tmp_path, "fedprox", *given).tolist() for given in (options, settings)]
    assert found[0] == found[1] != losses(tmp_path, "fedprox").tolist()


def test_more_workers_than_cores_are_told_that_they_gain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    for workers, told in ((2, False), (3, True)):
        result = call("run", "local", *EIGHT, "--workers", workers, "--engine", "loop")
        assert result.exit_code == 0
        assert ("3 workers on 2 cores take turns: more than 2 gain nothing" in result.stderr) == told


def test_run_writes_what_it_promises(tmp_path: Path) -> None:
    out, save = tmp_path / "run.json", tmp_path / "models.npz"
    result = call(
        "run", "pfedmb", *EIGHT, "--set", "branches=2", "--set", "ft_epochs=1", "--out", out, "--save", save
    )
    assert result.exit_code == 0 and "after fine-tuning" in result.output
    report: dict[str, Any] = json.loads(out.read_text())
    assert report["method"] == "pfedmb" and report["config"]["method"]["branches"] == 2 and report["complete"]
    assert [entry["round"] for entry in report["rounds"]] == [0, 1, 2, 3]
    last = report["rounds"][-1]
    assert {"personal_accuracy", "personal_loss", "floats_up", "floats_down"} <= last.keys()
    final = report["final"]
    assert all(len(final[name]) == 8 for name in ("test_accuracy", "test_loss", "train_size", "test_size"))
    assert last["tuned_accuracy"] == pytest.approx(np.mean(final["test_accuracy"]))
    assert report["images_per_second"] > 0 and {"torch", "pfl_lite"} <= report["versions"].keys()
    module = load_model(save, client=0)
    assert sum(p.numel() for p in module.parameters()) == 3_658


def test_a_history_is_also_written_as_a_table_with_a_row_for_each_round(tmp_path: Path) -> None:
    short = ["--model", "linear", "--clients", 4, "--rounds", 2, "--unseen", 1, "--ft-epochs", 1]
    for name in ("run.json", "run.CSV"):
        assert call("run", "fedavg", *short, "--out", tmp_path / name).exit_code == 0
    rounds = json.loads((tmp_path / "run.json").read_text())["rounds"]
    rows = pd.read_csv(tmp_path / "run.CSV")
    assert list(rows["round"]) == [0, 1, 2] and {"floats_up", "personal_loss"} < {*rows.columns}
    assert {*rows.columns} == {
        name for entry in rounds for name, value in entry.items() if np.isscalar(value)
    }
    for row, entry in zip(rows.to_dict("records"), rounds, strict=True):
        assert all(entry.get(name) == value for name, value in row.items() if not np.isnan(value))
    assert rows["tuned_accuracy"].isna().tolist() == [True, True, False]  # only the last round has it


def test_models_saved_as_safetensors_are_those_of_the_npz(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("models.npz", "models.safetensors"):
        assert call("run", "apfl", *EIGHT, "--save", tmp_path / name).exit_code == 0
    one, other = (read_models(tmp_path / name) for name in ("models.npz", "models.safetensors"))
    assert one.keys() == other.keys() and {"personal/conv1.weight", "state/alpha", "method"} <= one.keys()
    assert all(np.array_equal(one[k], other[k]) and one[k].dtype == other[k].dtype for k in one)
    network = make_network("small_cnn", 1, 8, 10, dtype=torch.float64)
    loaded = [load_model(tmp_path / name, network, client=3) for name in ("models.npz", "models.safetensors")]
    loaded.append(load_model(tmp_path / "models.safetensors", client=3))
    weights = zip(*(module.parameters() for module in loaded), strict=True)
    assert all(torch.equal(mine, theirs) for mine, *others in weights for theirs in others)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    result = call("run", "apfl", *EIGHT, "--save", tmp_path / "another.safetensors")
    assert result.exit_code == 2 and "pip install safetensors" in result.output
    assert not (tmp_path / "another.safetensors").exists()


def header(**tensors: Any) -> bytes:
    text = json.dumps({"__metadata__": {"method": '{"name": "fedavg"}'}} | tensors).encode()
    return len(text).to_bytes(8, "little") + text


FOUR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8 + b"{}",
        (2**40).to_bytes(8, "little") + b"{}",
        header(a=FOUR),
        header(a=FOUR, b=FOUR) + b"\0" * 4,
        header(a=FOUR | {"data_offsets": [0, 2**60]}) + b"\0" * 4,
        header(a=FOUR | {"data_offsets": [4, 0]}) + b"\0" * 4,
        header(a=FOUR | {"shape": [2**62, 4]}) + b"\0" * 4,
        header(a=FOUR | {"dtype": "C99"}) + b"\0" * 4,
        header(a=FOUR | {"dtype": "I64"}) + b"\0" * 4,
        header(a=FOUR) + b"\0" * 8,
        (2).to_bytes(8, "little") + b"{}",
        (99_999).to_bytes(8, "little") + b"[" * 99_999,
    ],
)
def test_tensors_that_cannot_be_are_refused_in_one_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "models.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"models\.safetensors holds no trained models"):
        load_model(tmp_path / "models.safetensors", make_network("linear", 1, 8, 10))


def test_a_folder_of_pickles_is_converted_when_told_and_with_a_warning(tmp_path: Path) -> None:
    images = load("digits")
    exchange.write_pfllib(tmp_path / "theirs", images, partition(images, "dirichlet:0.4", 3, 0))
    result = call("convert", tmp_path / "theirs", tmp_path / "mine")
    assert result.exit_code == 0 and "wrote 3 clients with 10 classes" in result.output
    assert "theirs holds pickles, which can carry programs" in result.stderr
    plain = exchange.read_clients(tmp_path / "mine", images.card)
    pickled = exchange.read_pfllib(tmp_path / "theirs", images.card, pickled=True)
    assert np.array_equal(plain[0].train_images, pickled[0].train_images)
    assert [one.train.tolist() for one in plain[1]] == [one.train.tolist() for one in pickled[1]]
    (tmp_path / "empty").mkdir()
    assert refused("convert", tmp_path / "empty", tmp_path / "none") == (
        f"pfl-lite: {tmp_path}/empty holds no client of PFLlib: there is no train/0.npz in it\n"
    )
    again = call("convert", tmp_path / "theirs", tmp_path / "mine")
    assert again.exit_code == 2 and "is there already" in again.output
    (tmp_path / "theirs" / "train" / "1.npz").write_bytes(b"PK")
    broken = call("convert", tmp_path / "theirs", tmp_path / "other")
    assert broken.exit_code == 2 and "is no file of PFLlib's" in broken.output
    assert not (tmp_path / "other").exists()


def test_means_are_over_the_clients_that_are_in_them_and_newcomers_have_their_own(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    few = ["run", "fedavg", "--model", "linear", "--partition", "iid", "--rounds", "1"]
    said = call(*few, "--clients", 6, "--unseen", 2, "--out", out).stdout
    lines, last = said.splitlines(), json.loads(out.read_text())["rounds"][-1]
    at = lines.index("  newcomers, means over 2 clients:")
    assert lines[0] == "fedavg, round 1, means over 4 clients:"
    for line, name in ((lines[1], "personal_accuracy"), (lines[at + 1], "unseen_personal_accuracy")):
        assert line.startswith(f"  personal models    test accuracy {100 * last[name]:6.2f}%   loss ")
    said = call(*few, "--clients", 400).stdout  # 359 test images
    assert said.startswith("fedavg, round 1, means over 359 clients:") and "newcomers" not in said


@pytest.mark.parametrize(("asked", "threads"), [("4,2", []), (None, [1])])
def test_threads_are_torch_s_to_choose_where_they_are_asked_for(
    asked: str | None, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", given.append)
    monkeypatch.delenv("OMP_NUM_THREADS") if asked is None else monkeypatch.setenv("OMP_NUM_THREADS", asked)
    result = call("run", "local", "--model", "linear", "--clients", "3", "--rounds", "1")
    assert result.exit_code == 0 and given == threads


def test_workers_on_a_gpu_are_told_where_they_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    # it is there for who may see it
    monkeypatch.setattr("torch.cuda.is_available", lambda: "CUDA_VISIBLE_DEVICES" not in os.environ)
    said = refused("run", "fedavg", "--workers", 2, "--device", "cuda")
    assert said.splitlines()[-1] == (
        "pfl-lite: 2 workers share out the cores of a processor: use --device cpu, or one worker"
    )


def test_a_diverged_run_still_writes_its_files(tmp_path: Path) -> None:
    out, save = tmp_path / "run.json", tmp_path / "models.npz"
    result = call("run", "fedavg", "--rounds", "2", "--lr", "1e30", "--out", out, "--save", save)
    assert result.exit_code == 0 and "training diverged" in result.output and out.exists() and save.exists()
    assert [line for line in result.stderr.splitlines() if "diverged" in line] == [
        "pfl-lite: fedavg diverged: after round 1 9 clients, 0 the first of them, had weights that are not finite numbers; "
        "try a learning rate below 1e+30"
    ]
    assert "Warning" not in result.stderr


def test_a_loss_that_is_finite_and_no_use_is_told_as_one_that_is_no_number() -> None:
    names = {"personal": "personal models"}
    told = [
        text._scores({"personal_accuracy": 0.1, "personal_loss": loss}, "", names)[0]
        for loss in (2.3, 1.3e29, None)
    ]
    assert told[0].endswith("loss 2.3000")
    assert told[1].endswith("loss 1.3e+29: training diverged, try a smaller --lr")
    assert told[2].endswith("loss not a number: training diverged, try a smaller --lr")


def test_the_number_of_threads_is_kept_with_the_run(tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    few = ["run", "local", "--model", "linear", "--clients", "3", "--rounds", "1", "--out", "run.json"]
    command = [sys.executable, "-m", "pfl_lite", *few]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert json.loads((tmp_path / "run.json").read_text())["threads"] == 2


@pytest.mark.parametrize(
    "command",
    [["run", "fedavg", "--save"], ["partition", "--clients", "4", "--out"]],
    ids=["run", "partition"],
)
def test_a_data_set_is_never_an_output(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFL_LITE_DATA", str(tmp_path))
    path = tmp_path / "fashion_mnist.npz"
    path.write_text("images")
    said = refused(*command, path, "--data", "fashion_mnist:0.1", "--force")
    assert said.startswith("pfl-lite: --data and --") and path.read_text() == "images"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes",
            2,
        ),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", 2),
        ("CUDA error: an illegal memory access was encountered", 1),
    ],
)
def test_only_a_lack_of_memory_is_called_one(
    error: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr("pfl_lite.methods.explain", broken)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = call("methods", "fedavg")
    assert (result.exit_code, "not enough memory" in result.stderr) == (code, code == 2)


def test_an_error_of_the_package_is_one_sentence_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of the package")

    monkeypatch.setattr("pfl_lite.methods.explain", broken)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = call("methods", "fedavg")
    (report,) = tmp_path.iterdir()
    assert result.exit_code == 1 and result.stderr == (
        f"pfl-lite: ZeroDivisionError, which should not happen: the full report is {report}\n"
    )
    assert "Traceback" in report.read_text() and "of the package" in report.read_text()


def test_a_run_says_what_begins_and_from_where_it_goes_on(tmp_path: Path) -> None:
    small: list[object] = ["run", "local", "--model", "linear", "--clients", "3", "--partition", "iid"]
    small += ["--checkpoint", tmp_path / "run.pt"]
    first = call(*small, "--rounds", "2").stderr.splitlines()
    line = "local: digits over 3 clients by iid, 1,151 training images; linear of 650 parameters; rounds {}, local epochs 1, cpu"
    assert line.format(2) in first
    assert (
        f"{line.format(3)}; goes on from the checkpoint's round 2"
        in call(*small, "--rounds", "3").stderr.splitlines()
    )
    assert refused(*small, "--rounds", "2").startswith("pfl-lite: checkpoint ")  # at round 3 already


def test_each_letter_of_a_partition_is_explained() -> None:
    text = " ".join(call("partition", "--help").stdout.split())
    assert "shares:K:A:B: K classes per client, shares proportional to U(A, B)" in text
    assert "(cifar100)" in text and "`pfl-lite partition --help`" not in text


def test_clients_without_test_images_are_null_in_valid_json(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    few = ["--model", "linear", "--partition", "iid", "--clients", "400", "--rounds", "1"]
    assert call("run", "local", *few, "--out", out).exit_code == 0

    def refuse(word: str) -> None:
        raise ValueError(word)

    report = json.loads(out.read_text(), parse_constant=refuse)
    scores, sizes = report["final"]["test_accuracy"], report["final"]["test_size"]
    assert 0 in sizes and [score is None for score in scores] == [size == 0 for size in sizes]


def test_a_run_with_its_own_tuning_augmentation_and_all_test_images(tmp_path: Path) -> None:
    tuning = ["--ft-lr", 0.01, "--ft-momentum", 0.9, "--ft-weight-decay", 0.0005, "--ft-batch-size", 16]
    given = ["--augment", "crop_flip", "--whole-test", "--out", tmp_path / "run.json", "--val-fraction", 0]
    result = call("run", "pfl_mfe", "--rounds", 1, "--partition", "dirichlet_rounded:0.9", *tuning, *given)
    assert result.exit_code == 0 and "after fine-tuning  on all test images: global test" in result.output
    report = json.loads((tmp_path / "run.json").read_text())
    assert {name: report["config"][name] for name in ("ft_lr", "ft_batch_size", "augment", "whole_test")} == {
        "ft_lr": 0.01, "ft_batch_size": 16, "augment": "crop_flip", "whole_test": True,
    }  # fmt: skip
    for kind in ("final", "final_before_ft"):
        for name in ("global_test", "local_test"):
            each = report[kind][f"{name}_clients"]
            assert report[kind][name] == pytest.approx(sum(each) / len(each)) and len(each) == 10


def test_partition_writes_disjoint_indices_and_a_picture(tmp_path: Path) -> None:
    out, plot = tmp_path / "parts.npz", tmp_path / "parts.png"
    result = call("partition", "--clients", 4, "--partition", "classes:3", "--out", out, "--plot", plot)
    assert result.exit_code == 0 and "label distance" in result.output and plot.stat().st_size > 5_000
    with np.load(out) as file:
        indices = {f"{split}/{i}" for split in ("train", "val", "test") for i in range(4)}
        assert set(file.files) == {*indices, "images", "labels"} and file["images"].tolist() == [1438, 359]
        rows = np.concatenate([file[f"{split}/{i}"] for split in ("train", "val") for i in range(4)])
    assert len(rows) == len(set(rows.tolist()))


def test_each_client_may_cut_its_own_images(tmp_path: Path) -> None:
    parts, out = tmp_path / "parts.npz", tmp_path / "run.json"
    few = ["--data", "digits:0.5", "--partition", "groups:3:0.4", "--clients", 4, "--split", "fedem"]
    assert call("partition", *few, "--out", parts).exit_code == 0
    with np.load(parts) as file:
        rows = np.concatenate([file[name] for name in file.files if "/" in name])
    assert np.array_equal(np.sort(rows), np.arange(898))  # half of 1438 + 359
    result = call("run", "fedavg", *few, "--rounds", 1, "--val-fraction", 0.25, "--out", out)
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    sizes = np.array([report["final"]["train_size"], report["final"]["test_size"]])
    assert report["config"]["split"] == "fedem" and report["config"]["model"] == "small_cnn"
    assert abs(sizes.sum(axis=1) / 898 - [0.6, 0.2]).max() < 0.01
    result = call("run", "fedavg", "--split", "fedme")
    assert result.exit_code == 2 and "fedem" in result.output and "split" in result.output


def test_partition_writes_groups_and_relabelling_where_there_are_any(tmp_path: Path) -> None:
    out, plot = tmp_path / "parts.npz", tmp_path / "parts.png"
    given = ["--clients", 4, "--partition", "concept:2", "--out", out, "--plot", plot]
    result = call("partition", *given)
    assert result.exit_code == 0 and plot.exists()
    assert "groups                       2  (of 2 clients, known beforehand)" in result.output
    with np.load(out) as file:
        assert {name for name in file.files if "/" not in name or name.startswith("relabel")} == {
            *("group", "images", "labels", "relabel/2", "relabel/3")
        }
        assert file["group"].tolist() == [0, 0, 1, 1]
        assert file["relabel/3"].tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]
        first, last = (load("digits").train_labels[file[f"train/{i}"]] for i in (0, 3))
    for labels, row in ((first, 0), (last, 3)):  # the table counts labels as the client sees them
        seen = np.bincount((labels + (5 if row else 0)) % 10, minlength=10)
        shown = " ".join(f"{c}:{n}" for c, n in enumerate(seen))
        assert any(
            line.split(maxsplit=2)[2:] == [shown]
            for line in result.output.splitlines()
            if line[:1] == str(row)
        )


@pytest.mark.parametrize("command", ["methods", "datasets", "models", "experiments"])
def test_lists(command: str) -> None:
    result = call(command)
    assert result.exit_code == 0
    firsts = [line.split()[0] for line in result.output.splitlines()]
    known = {"methods": "pfedmb", "datasets": "glyphs", "models": "lenet", "experiments": "pfedmb-table1"}
    assert known[command] in firsts
    if command == "models":
        assert "62,006" in result.output and "3,658 (gray 8x8, 10 classes)" in result.output
    if command == "datasets":
        told = (
            "comes with the package",
            "downloaded once",
            "from LEAF's files",
            "NAME:0.1 is a random tenth",
        )
        assert all(one in result.output for one in told)


def test_a_setting_without_a_docstring_is_explained_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Bare(FedAvg):
        pull: float = 0.5

    monkeypatch.setitem(METHODS, "bare", Bare)
    assert "  pull=0.5\n" in explain("bare")


def test_a_run_without_any_test_images_says_why_there_is_no_accuracy(tmp_path: Path) -> None:
    path = tmp_path / "clients.json"
    path.write_text('{"clients": [{"train": [0, 1]}, {"train": [2, 3]}]}')
    said = "no client has test images, so that no accuracy is reported"
    short = ("run", "fedavg", "--model", "linear", "--rounds", "1", "--partition")
    assert said in call(*short, path).stderr and said not in call(*short, "pairs").stderr


def test_a_method_of_one_s_own_is_known_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="unknown method 'mine'"):
        named_method("mine")
    monkeypatch.setitem(METHODS, "mine", FedAvg)
    assert named_method("mine:weights=uniform") == ("mine", {"weights": "uniform"})


@pytest.mark.slow  # starts Python
@pytest.mark.parametrize(
    "words", [["run", "fedavgg"], ["compare", "local:x=1", "fedavgg"], ["methods", "fedavgg"],
              ["run", "local", "--data", "digit"], ["run", "local", "--partition", "dirichlet"],
              ["run", "local", "--lr", "-1"], ["compare", "local", "--ft-momentum", "1"]],
)  # fmt: skip
def test_a_mistake_is_refused_before_torch_is_loaded(words: list[str]) -> None:
    code = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); from pfl_lite.cli import app; app()"
    result = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert result.returncode == 2 and result.stderr.startswith("pfl-lite: ") and result.stdout == "False\n"


def test_the_version_is_said() -> None:
    assert call("--version").output == f"pfl-lite {__version__}\n"


def test_the_package_s_names_are_listed() -> None:
    assert {"Card", "ClientIndices", "Images", "register", "run"} <= {*dir(pfl_lite)}
    assert all(getattr(pfl_lite, name) is not None for name in pfl_lite.__all__)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "pfedmbb"], "did you mean pfedmb"),
        (
            ["run", "FedAvg"],
            "unknown method 'FedAvg': did you mean fedavg? (`pfl-lite methods` lists them all)\n",
        ),
        (["run", "ditto", "--set", "LAM=1"], "did you mean lam? (its own: "),
        (["run", "fedavg", "--data", "cifar"], "did you mean cifar10"),
        (["run", "fedavg", "--model", "lnet"], "did you mean lenet"),
        (["run", "fedavg", "--model", "resnet18"], "register adds your own in a script"),
        (["run", "fedavg", "--set", "mu=1"], "(its own: weights; mu is a setting of fedprox, moon; "),
        (["run", "pfedmb", "--set", "branchs=2"], "did you mean branches"),
        (["run", "pfedmb", "--set", "branches"], "--set takes name=value"),
        (["run", "fedavg", "--lr", "1", "--set", "lr=3"], "lr is given twice"),
        (["run", "fedavg", "--ft-batch-size", "8"], "left out unless ft_epochs is positive"),
        (
            ["run", "fedavg", "--ft-mode", "plain_sgd"],
            "ft_mode must be left out unless ft_epochs is positive",
        ),
        (["run", "fedavg", "--augment", "blur"], "none, crop_flip"),
        (["run", "fedavg", "--whole-test", "--partition", "concept:2"], "some of these see labels changed"),
        (["run", "fedavg", "--set", "method=local"], "the method is the word before it"),
        (["run", "fedprox", "--set", "mu=1", "--set", "mu=2"], "given twice"),
        (["run", "fedavg", "--lr", "inf"], "lr must be a number"),
        (["run", "fedavg", "--out", "nul\0x.json"], "is no name of a file"),
        (["run", "fedavg", "--partition", "nul\0x.npz"], "no name of a file"),
        (["run", "fedavg", "--out", "."], "must end in .json or .csv"),
        (["notebooks", ""], "is no name of a file"),
        (["run", "fedavg", "--lr", "abc"], "'--lr': 'abc' is not a number\n"),
        (["compare", "fedavg", "--batch-size", "1e3"], "'--batch-size': '1e3' is not a whole number\n"),
        (["run", "fedavg", "--workers", "two"], "'--workers': 'two' is not a whole number\n"),
        (["reproduce", "pfedmb-table1", "--rounds", "x"], "'--rounds': 'x' is not a whole number\n"),
        (["methods", "fedavg", "local"], "'local' is more than the command takes: see `"),
        (["compare", "fedavg", "--seeds", "99999999999"], "a number from 1 to 1,000"),
        (
            ["reproduce", "pfedmb-table1", "--arms", "pfedmb-more"],
            "unknown row of pfedmb-table1 'pfedmb-more'",
        ),
        (["reproduce", "pfedmb-table1", "--methods", "pfedmb-more"], "did you mean pfedmb"),
        (["run", "fedavg", "--partition", "dirichlet:0"], "ALPHA"),
        (["run", "fedavg", "--partition", "dirichlet:x"], "number"),
        (["run", "fedavg", "--partition", "classes:11"], "classes"),
        (["run", "fedavg", "--partition", "shards:2"], "did you mean shares"),
        (["run", "fedavg", "--clients", "100000"], "100000"),
        (["partition", "--partition", "writers"], "says who wrote what"),
        (["partition", "--partition", "concept:11", "--clients", "20"], "10 or fewer"),
        (["run", "fedavg", "--participation", "0"], "participation must be in (0, 1]"),
        (["run", "fedavg", "--rounds", "0"], "rounds must be 1 or more"),
        (["run", "fedavg", "--save", "no/such/folder/x.npz"], "not a folder that exists"),
        (["run", "fedavg", "--save", "models.txt"], "models.txt must end in .npz or .safetensors"),
        (["run", "fedavg", "--out", "run.npz"], "--out run.npz must end in .json or .csv"),
        (
            ["run", "fedavg", "--out", "x.json", "--checkpoint", "./x.json"],
            "--out and --checkpoint both name",
        ),
        (["run", "fedavg", "--save", "x.npz", "--checkpoint", "x.npz"], "--save and --checkpoint both name"),
        (["partition", "--out", "parts.csv"], "parts.csv must end in .npz or .json"),
        (["partition", "--plot", "x.xyz"], "x.xyz must end in .png or .svg or .pdf"),
        (["run", "fedavg", "--plot", "x.csv"], "--plot x.csv must end in .png or .svg or .pdf"),
        (
            ["compare", "local", "fedavg", "--plot", "x.json"],
            "--plot x.json must end in .png or .svg or .pdf",
        ),
        (["partition", "--plot", "x"], "x must end in .png or .svg or .pdf"),
        (["reproduce", "pfedmb-table9"], "did you mean pfedmb-table"),
        (
            ["reproduce", "pfedmb-table1", "--budget-name", "huge"],
            "unknown budget 'huge' (valid: paper, small)",
        ),
        (["ledger", "missing", "pfedmb-tabel1"], "did you mean pfedmb-table1"),
        (["claims", "pfedmb-tabel2"], "did you mean pfedmb-table2"),
        (["claims", "nix"], "unknown experiment 'nix' (`pfl-lite experiments` lists them all)\n"),
        (["table", "pfedmb-tabel1"], "did you mean pfedmb-table1"),
        (["table", "when-label-skew", "--budget-name", "paper"], "it has only one budget"),
        (["reproduce", "pfedmb-table1", "--methods", "fedavgg"], "did you mean fedavg"),
        (["reproduce", "pfedmb-table1", "--budget", "soon"], "e.g. 30m"),
        (["reproduce", "pfedmb-table1", "--seeds", "a"], "whole numbers"),
        (["table", "pfedmb-table1", "--format", "latex"], "markdown"),
        (["claims", "pfedmb-table"], "did you mean pfedmb-table"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr and result.stderr.startswith("pfl-lite: ")
    assert len(result.stderr.strip().splitlines()) == 1 and not list(tmp_path.iterdir())


def test_missing_data_without_a_network_names_the_file_and_two_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFL_LITE_DATA", str(tmp_path / "none"))
    monkeypatch.setattr("socket.socket.connect", lambda *_: (_ for _ in ()).throw(OSError("no network")))
    result = call("run", "fedavg", "--data", "cifar10", "--partition", "pairs")
    assert result.exit_code == 2 and "cifar10.npz" in result.stderr
    first, last = result.stderr.splitlines()
    assert first.startswith("fetching cifar10 ") and first.endswith(f" {tmp_path / 'none' / 'cifar10.npz'}")
    assert last.startswith("pfl-lite: ") and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400)])
def test_budgets(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "10", "-3m", "0s", "1d"])
def test_bad_budgets(text: str) -> None:
    with pytest.raises(InputError, match="budget"):
        parse_budget(text)


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from pfl_lite.cli import app\ntry: app(['--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# ---- kindness ---------------------------------------------------------------------------------------------------


def refused(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 2
    return result.stderr


def test_an_argument_that_is_missing_is_named_with_the_help_on_it() -> None:
    assert "pfl-lite: Missing argument 'method': see `" in refused("run")
    assert refused("ledger", "missing").endswith(" ledger missing --help`\n")


def test_an_unknown_option_before_the_command_is_one_sentence() -> None:
    assert refused("--foo") == "pfl-lite: No such option: --foo\n"
    assert call().stderr == ""  # the help alone


def test_too_many_workers_are_refused_in_one_sentence() -> None:
    assert refused("run", "fedavg", "--workers", 9999) == "pfl-lite: workers must be 1 to 1,000, not 9999\n"


def test_a_method_s_settings_are_explained() -> None:
    text = call("methods", "fedmn").stdout
    assert (
        text.startswith("fedmn: a pool of blocks") and "blocks=2x2x2\n      n_1 x ... x n_L: encoders" in text
    )
    assert "did you mean fedmn" in refused("methods", "fedmm")
    for name in METHODS:
        assert all(f"  {field.name}=" in explain(name) for field in fields(METHODS[name]))


def test_a_setting_given_as_an_option_is_answered_with_how_it_is_given() -> None:
    said = refused("run", "pfedme", "--lam", "3")
    assert said == "pfl-lite: lam is a setting of pfedme, fedamp, ditto: use --set lam=...\n"
    said = refused("run", "fedavg", "--lam", "3")
    assert said == "pfl-lite: lam is a setting of pfedme, fedamp, ditto, not of fedavg\n"
    assert "No such option: --roundz" in refused("run", "pfedme", "--roundz", "3")
    for wrong in (("run", "fedavg", "--batch_size", "8"), ("reproduce", "pfedmb-table1", "--lam", "1")):
        assert "No such option: " in refused(*wrong)
    for command in ("run", "compare"):
        said = refused(command, "fedavg", "--learning-rate", "0.1")
        assert said == "pfl-lite: No such option: --learning-rate: here it is --lr\n"
    assert "here it is" not in refused("table", "pfedmb-table1", "--learning-rate", "0.1")


def test_settings_may_follow_the_name_of_the_method_that_is_run(tmp_path: Path) -> None:
    short = [*EIGHT, "--rounds", "1", "--out"]
    for name, asked in (
        ("a", ["ditto:lam=0.3,epochs=2"]),
        ("b", ["ditto", "--set", "lam=0.3", "--epochs", "2"]),
    ):
        assert call("run", *asked, *short, tmp_path / f"{name}.json").exit_code == 0
    a, b = (json.loads((tmp_path / f"{name}.json").read_text()) for name in "ab")
    assert a["config"] == b["config"] and a["final"] == b["final"] and a["config"]["method"]["lam"] == 0.3
    assert "lam is given twice" in refused("run", "ditto:lam=1", "--set", "lam=2")
    assert "ditto: takes name=value, e.g. ditto:lam=1.0, not 'mu'" in refused("run", "ditto:mu")
    assert "ditto: takes name=value, e.g. ditto:lam=1.0, not ''" in refused("run", "ditto:")
    assert "e.g. --set branches=5, not 'branches'" in refused("run", "pfedmb", "--set", "branches")
    assert "e.g. local:lr=0.1, not 'x'" in refused("run", "local:x")
    assert "as in ditto:lam=0.1" in refused("compare", "ditto", "--set", "lam=1")
    told = call("compare", "local", "--seeds", "3,", "--model", "linear", "--rounds", "1").stderr
    assert told.startswith("local seed 3: ") and "run 1 of 1" in told


def test_options_of_a_gpu_are_told_that_they_change_nothing_without_one() -> None:
    short = ["--data", "digits", "--model", "linear", "--rounds", "1", "--device", "cpu"]
    for option in ("--tf32", "--no-graphs", "--graphs"):
        told = call("run", "local", *short, option).stderr
        assert f"pfl-lite: {option} changes nothing here: it is for runs on a GPU" in told
    assert "changes nothing" not in call("run", "local", *short).stderr
    wrong = ["reproduce", "pfedmb-table1", "--methods", "none", "--device", "cpu"]
    for asked in (["compare", "local", "--seeds", "1", *short], wrong):
        told = call(*asked, "--tf32").stderr
        assert told.startswith("pfl-lite: --tf32 changes nothing here: it is for runs on a GPU\n")
        assert "changes nothing" not in call(*asked).stderr


def test_what_another_call_trains_is_left_to_it(tmp_path: Path) -> None:
    short, kept = ["--model", "linear", "--rounds", "1"], tmp_path / "kept"
    calls = {
        tmp_path / "run.pt": ["run", "local", *short, "--checkpoint", tmp_path / "run.pt"],
        kept: ["compare", "local", "fedavg", "--seeds", "1", *short, "--keep", kept],
    }
    for path, asked in calls.items():
        with locked(path, inside=path == kept):
            said = f"pfl-lite: another call trains into {path}: wait for its end, or name another\n"
            assert refused(*asked) == said
        assert not list(tmp_path.iterdir())
    for asked in calls.values():
        assert call(*asked).exit_code == 0
    assert not list(tmp_path.rglob(".*"))


def test_a_long_round_says_which_client_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=40)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    short = ["--data", "digits", "--model", "linear", "--clients", "4", "--rounds", "1"]
    told = call("run", "local", *short).stderr
    assert "\nround 1 of 1: client 2 of 4" in told
    told = call("compare", "local", "fedavg", "--seeds", "2,", *short).stderr
    assert "\nfedavg seed 2: round 1 of 1: client 2 of 4" in told


def test_a_terminal_with_a_bar_is_told_of_long_rounds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr("tqdm.tqdm.write", lambda message, **_: told.append(message))
    screen = type("Screen", (io.StringIO,), {"isatty": lambda self: True})
    monkeypatch.setattr("sys.stderr", screen())
    short = ["--data", "digits", "--model", "linear", "--clients", "4", "--rounds", "12"]
    for step, expected in (
        (1, False),
        (20, True),
    ):  # seconds a look at the clock, of which a round has ten or so
        clock = itertools.count(step=step)
        monkeypatch.setattr("time.monotonic", lambda clock=clock: next(clock))
        told.clear()
        app(["run", "local", *short], standalone_mode=False)
        assert bool(told) == expected


def test_a_folder_without_a_name_is_not_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused("compare", "local", "--model", "linear", "--clients", 3, "--keep", "")
    assert "'' is no name of a file" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "option", "name"),
    [
        ("run local --model linear --clients 3 --rounds 1", "--out", "run.json"),
        ("run local --model linear --clients 3 --rounds 1", "--save", "models.npz"),
        ("run local --model linear --clients 3 --rounds 1", "--plot", "run.svg"),
        ("compare local --model linear --clients 3 --rounds 1 --seeds 1", "--plot", "curves.pdf"),
        ("partition --clients 3", "--out", "parts.npz"),
        ("partition --clients 3", "--plot", "parts.SVG"),
    ],
)
def test_a_result_that_is_there_is_replaced_only_when_asked(
    command: str, option: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text("precious")
    small = [*command.split(), option, path]
    said = refused(*small)
    assert f"{name} is there already: name another file, or replace it with --force" in said
    assert path.read_text() == "precious"
    assert call(*small, "--force").exit_code == 0
    assert b"precious" not in path.read_bytes()


def test_a_claim_is_asked_for_by_its_name_and_a_group_names_its_stand_ins() -> None:
    said = call("claims", "M3-cifar10").stdout
    assert said.startswith("M3-cifar10 ") and "M4" not in said
    assert call("claims", "m3-CIFAR10").stdout == said
    assert "unknown claim 'M99'" in (wrong := refused("claims", "M99")) and "`pfl-lite claims` lists" in wrong
    last = call("table", "fedmn-table2").stdout.splitlines()[-1]
    assert last.startswith(
        "What stands in for data or networks has tables of its own: fedmn-table2-cifar10-lenet, "
    )
    assert "stands in" not in call("table", "fedmn-table2", "--format", "markdown").stdout.splitlines()[-1]
    assert "tables of its own" not in call("table", "pfedmb-table1").stdout


def test_the_help_says_what_a_single_seed_means() -> None:
    for command, meaning in (
        ("compare", "how many (3: seeds 0, 1 and 2), or which, separated by commas (3,: seed 3 alone)"),
        ("reproduce", "which seeds, not how many, separated by commas: 3 is seed 3 alone"),
    ):
        assert meaning in " ".join(re.sub("[│\n]", " ", call(command, "--help").stdout).split())


def test_a_help_says_when_a_ledger_is_at_fault() -> None:
    said = " ".join(call("ledger", "check", "--help").stdout.split())
    assert "a run is kept twice, or if all together are too large to be kept in a repository." in said


def test_an_experiment_without_claims_says_so() -> None:
    assert "no claim of when-label-skew is written down" in call("claims", "when-label-skew").stdout
    said = refused("claims", "when-label-skew", "--budget-name", "papr")
    assert "unknown budget 'papr': did you mean paper?" in said


def test_experiments_are_listed_with_what_they_cost_and_groups_with_their_parts() -> None:
    lines = call("experiments").stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("pfedmb-table1 "))
    assert "local, fedavg, pfedmb-plain, pfedmb" in lines[at + 1]
    assert (
        "small  30 rounds; 20 results, 8 candidates" in lines[at + 2] and "paper  100 rounds" in lines[at + 3]
    )
    group = next(number for number, line in enumerate(lines) if line.startswith("pflmoe-fig3 "))
    assert "pflmoe-fmnist-lenet-0.9" in lines[group + 1]
    assert "a candidate a combination of settings that its search tries" in lines[-1]


SMALL: dict[str, Any] = {
    "data": "digits", "model": "linear", "rounds": 2, "epochs": 1, "ft_epochs": 1, "search_rounds": 1,
    "seeds": (0,),
}  # fmt: skip


def test_a_group_is_reproduced_in_an_order_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = replace(PFEDMB_TABLE1.arm("fedavg"), grid=({"lr": 0.1},))
    searches = replace(PFEDMB_TABLE1, name="searches", arms=(first,), **SMALL)
    for one in (searches, replace(searches, name="follows", searched_in="searches")):
        monkeypatch.setitem(EXPERIMENTS, one.name, one)
    monkeypatch.setitem(GROUPS, "both", ("follows", "searches"))
    monkeypatch.setattr(executors, "ThreadPoolExecutor", Inline)
    result = call("reproduce", "both", "--methods", "fedavg,local", "--ledger", tmp_path)
    assert result.exit_code == 2 and "unknown row of searches 'local'" in result.stderr
    result = call("reproduce", "both", "--rounds", "3", "--ledger", tmp_path)
    assert result.exit_code == 2 and "both is trained for 2 rounds: ask for fewer" in result.stderr
    result = call("reproduce", "both", "--budget", "0.001s", "--ledger", tmp_path)
    assert result.exit_code == 0 and "out of time; results written: 0, runs left: " in result.stdout
    result = call("reproduce", "both", "--ledger", tmp_path)
    assert [line for line in result.stdout.splitlines() if " to " in line] == [
        "searches: 1 candidate to score, 1 result to train",
        "follows: 1 result to train",
    ]
    assert (
        result.exit_code == 0 and "results written: 2; the ledger has all of both\n" in result.stdout
    )  # a search is none
    assert call("reproduce", "both", "--ledger", tmp_path).stdout == (
        "nothing was left to do; the ledger has all of both\n"
    )
    assert "nothing is missing of both" in call("ledger", "missing", "both", "--ledger", tmp_path).stdout
    (tmp_path / "follows" / "fedavg-seed0.json").unlink()
    assert (
        f"--seeds 0 --ledger {tmp_path}\n" in call("ledger", "missing", "both", "--ledger", tmp_path).stdout
    )
    part = ["reproduce", "both", "--seeds", "7", "--ledger", tmp_path]
    (tmp_path / "searches" / "fedavg-seed0.json").unlink()
    for done in ("results written: 2", "nothing was left to do"):
        assert call(*part).stdout.splitlines()[-1] == (
            f"{done}, all that was asked for; the ledger lacks 2 more of both: "
            f"`pfl-lite ledger missing both --ledger {tmp_path}`"
        )


def test_what_one_experiment_of_a_group_lacks_is_told_before_another_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = replace(PFEDMB_TABLE1.arm("fedavg"), grid=({"lr": 0.1},))
    first = replace(PFEDMB_TABLE1, name="first", arms=(arm,), **SMALL)
    waits = replace(first, name="waits", searched_in="elsewhere")
    for one in (first, waits, replace(first, name="elsewhere")):
        monkeypatch.setitem(EXPERIMENTS, one.name, one)
    monkeypatch.setitem(GROUPS, "both", ("first", "waits"))
    monkeypatch.setattr(executors, "ThreadPoolExecutor", Inline)
    both = ["reproduce", "both", "--ledger", tmp_path]
    result = call(*both)
    assert (
        result.exit_code == 2
        and "`pfl-lite reproduce elsewhere --methods fedavg` comes first" in result.stderr
    )
    assert not list(tmp_path.rglob("*.json"))
    assert call("reproduce", "elsewhere", "--ledger", tmp_path).exit_code == 0
    ledger = Ledger(tmp_path)
    run = ledger.get("elsewhere", "fedavg", 0)
    assert run is not None
    ledger.write(
        run
        | {
            "experiment": "waits",
            "config": run["config"] | {"rounds": 1, "epochs": 3},
            "rounds": run["rounds"][:2],
        }
    )
    result = call(*both)
    assert result.exit_code == 2 and "another configuration (other: epochs)" in result.stderr
    assert not ledger.read("first")


@pytest.mark.parametrize("command", ["reproduce", "table", "claims", "ledger missing", "ledger check"])
def test_where_the_ledger_may_be_named_is_told(command: str) -> None:
    assert "PFL_LITE_RESULTS" in call(*command.split(), "--help").stdout


@pytest.mark.parametrize("command", ["table", "claims", "ledger missing", "ledger check"])
def test_a_ledger_that_is_not_there_is_named(command: str, tmp_path: Path) -> None:
    name = [] if command == "ledger check" else ["pfedmb-table1"]
    result = call(*command.split(), *name, "--ledger", tmp_path / "typo")
    assert result.exit_code == 2 and "typo" in result.stderr and "--ledger" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        "table pfedmb-table1",
        "table pfedmb-fig3",
        "claims pfedmb-table1",
        "ledger check",
        "ledger missing pfedmb-table1",
    ],
)
def test_what_only_reads_the_ledger_changes_no_file(command: str, tmp_path: Path) -> None:
    folder = tmp_path / "pfedmb-table1"
    shutil.copytree(default_folder() / "pfedmb-table1", folder)
    damaged = folder / "local-seed0.json"
    damaged.write_text(damaged.read_text()[:1000])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    result = call(*command.split(), "--ledger", tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    told = [line for line in result.stderr.splitlines() if "is damaged" in line]
    if command == "ledger check":
        assert result.exit_code == 1 and "local-seed0.json" in result.stdout
    else:  # a warning is its sentence alone
        assert (
            result.exit_code == 0
            and len(told) == 1
            and told[0].startswith(f"pfl-lite: ledger file {damaged} ")
        )


def test_a_partition_in_a_file_is_used_again(tmp_path: Path) -> None:
    parts, spec = tmp_path / "parts.npz", ["--data", "digits:0.3", "--clients", 4]
    assert call("partition", *spec, "--partition", "concept:2", "--seed", 5, "--out", parts).exit_code == 0
    again = call("partition", "--data", "digits:0.3", "--partition", parts)  # as many clients as in the file
    assert again.stdout == call("partition", *spec, "--partition", "concept:2", "--seed", 5).stdout
    wrong = call("partition", "--data", "digits:0.3", "--partition", parts, "--clients", 10)
    assert wrong.exit_code == 2 and "over 4 clients, not 10: ask for 4" in wrong.stderr
    common = ["run", "fedavg", *spec, "--rounds", 1, "--model", "linear", "--seed", 5]
    outs = [tmp_path / f"{name}.json" for name in ("recipe", "file")]
    for given, out in zip(("concept:2", parts), outs, strict=True):
        assert call(*common, "--partition", given, "--out", out).exit_code == 0
    recipe, file = (json.loads(out.read_text()) for out in outs)
    assert recipe["final"] == file["final"]
    pinned = file["config"]["partition"]
    assert pinned.startswith(f"{parts}#") and call(*common, "--partition", pinned).exit_code == 0

    kept = tmp_path / "run.pt"
    assert call(*common, "--partition", parts, "--checkpoint", kept).exit_code == 0
    assert call("partition", *spec, "--seed", 6, "--out", parts, "--force").exit_code == 0
    for given, words in (
        (["--partition", parts, "--checkpoint", kept], "it differs in partition"),
        (["--partition", pinned], "is not the file that it was"),
        (["--partition", parts, "--clients", 5], "over 4 clients, not 5: ask for 4"),
        (
            ["--partition", parts, "--data", "digits"],
            "of 432 training and 107 test images, not of 1438 and 359",
        ),
        (["--partition", parts, "--split", "fedem"], "and the split that it was made of"),
        (
            ["--partition", parts, "--val-fraction", 0.6],
            "val_fraction must be left out where a partition's file",
        ),
        (["--partition", tmp_path / "other.npz"], "cannot be read (No such file or directory)"),
    ):
        result = call(*common, *given)
        assert result.exit_code == 2 and words in result.stderr, result.output


def test_a_line_is_there_at_once_also_in_a_pipe() -> None:
    code = (
        "import sys; from pfl_lite import __main__, cli\n"
        "cli.app = lambda: print(sys.stdout.line_buffering)\n__main__.main()"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said == "True\n"


def test_a_reader_that_has_seen_enough_hears_no_complaint() -> None:
    """`pfl-lite experiments | head -1`: the pipe breaks, which is nobody's mistake."""
    command = [sys.executable, "-m", "pfl_lite", "experiments"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as asked:
        assert asked.stdout is not None and asked.stderr is not None
        asked.stdout.close()
        said = asked.stderr.read()
    assert (asked.returncode, said) == (128 + signal.SIGPIPE, b"")
