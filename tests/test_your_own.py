"""The page *Your own method, your own data*: each half runs from top to bottom by itself, and says what the page says."""

from __future__ import annotations

import contextlib
import csv
import inspect
import io
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pfl_lite.data.images import datasets
from pfl_lite.methods import METHODS
from pfl_lite.methods.base import Gated, Method, Newcomers, Sequential, Work
from pfl_lite.models import NETWORKS

PAGE = Path(__file__).resolve().parent.parent / "book" / "your-own.md"


@pytest.fixture(autouse=True)
def lists_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the page's own method, network and images, and stand beside the folder that it reads."""
    write_pets(tmp_path / "pets")
    write_animals(tmp_path / "animals")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pfl_lite.data.images._OWN", {})
    before = dict(NETWORKS), dict(METHODS)
    yield
    for there, was in zip((NETWORKS, METHODS), before, strict=True):
        there.clear()
        there.update(was)


def write_pets(folder: Path) -> None:
    """Pictures of other sizes than the page's, in color and gray: cats dark and dogs bright, at three sites."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows = []
    for i in range(96):
        label, part = ("cat", "dog")[i % 2], ("train", "train", "val", "test")[i // 2 % 4]
        site = ("north", "south", "west")[i // 8 % 3]
        shape = (24, 24, 3) if i % 3 else (40, 40)
        pixels = rng.integers(0, 120, shape, dtype=np.uint8) + np.uint8(120 * (label == "dog"))
        Image.fromarray(pixels).save(folder / f"{i}.png")
        rows.append([f"{i}.png", label, part, site])
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["file", "label", "part", "site"], *rows])


def write_animals(folder: Path) -> None:
    """A folder for each client, part and class; ben has no cat to learn from."""
    for name, part, kind in itertools.product(("anna", "ben"), ("train", "test"), ("cat", "dog")):
        (here := folder / name / part / kind).mkdir(parents=True)
        for i in range(0 if (name, part, kind) == ("ben", "train", "cat") else 3):
            Image.new("RGB", (40, 40), (90 * i, 80 * i, 70 * i)).save(here / f"{i}.png")


def halves() -> list[list[str]]:
    """The blocks of code on methods, and those on data."""
    texts = PAGE.read_text(encoding="utf-8").split("(sec-own-data)=")
    return [re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) for text in texts]


def printed_by(blocks: list[str]) -> list[str]:
    """The lines that blocks of code print, run one after the other in a module of their own."""
    names: dict[str, object] = {"__name__": __name__}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for number, block in enumerate(blocks, 1):
            exec(compile(block, f"{PAGE.name}, block {number}", "exec", dont_inherit=True), names)
    return printed.getvalue().splitlines()


def test_the_code_on_methods_runs() -> None:
    blocks = halves()[0]
    lines = printed_by(blocks)
    accuracy = {line.split()[0]: float(line.split()[-1][:-1]) for line in lines if line.endswith("%")}
    assert len(blocks) >= 5
    # private scales help where labels are skewed
    assert accuracy["Rescaled(own_lr=0.5)"] > accuracy["Rescaled(own_lr=0)"]
    told = {
        name: int(percent)
        for percent, name in re.findall(r"(\d+)% for `?([\w-]+(?:\(\))?)", PAGE.read_text())
    }
    assert (
        told.keys() >= {"Local", "FedAvg", "Rescaled()", "PFL-MFE"} and told["FedAvg"] == 81
    )  # the last one told
    ran = {"Local": "Local()", "Rescaled()": "Rescaled(own_lr=0.5)", "FedAvg": "fedavg", "PFL-MFE": "pfl_mfe"}
    assert all(abs(accuracy[line] - told[name]) < 3 for name, line in ran.items())
    assert abs(accuracy["FedAvg(weights='size')"] - 90) < 2
    faint = {line.split()[2]: int(line.split()[-1][:-1]) for line in lines if line.startswith("faint images")}
    ends = re.findall(r"(FedAvg|FedBN) ends at about (\d+)%", PAGE.read_text())
    assert [name for name, _ in ends] == ["FedAvg", "FedBN"]
    assert all(abs(faint[f"{name.lower()}:"] - int(percent)) < 8 for name, percent in ends)
    assert faint["fedbn:"] > faint["fedavg:"] + 15
    assert sum(code_lines(blocks[0])) <= 40, "the page promises forty lines"


def test_how_to_compare_over_seeds_runs_and_cannot_tell_the_methods_apart() -> None:
    text = PAGE.with_name("command-line.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    block, drawn, grid = [one for one in blocks if "compare" in one or "attrs" in one]
    *table, best = printed_by([block, drawn, grid])
    rows = {line.split()[0]: line.split()[1:] for line in table}
    assert best == "{'method': 'ditto', 'lr': 0.5, 'lam': 0.1}"
    assert Path("clients.png").is_file() and Path("curves.png").is_file()
    assert list(rows) == ["accuracy", "method", "local", "fedavg", "pfl_ft"]
    for name in ("fedavg", "pfl_ft"):
        *_, low, high = map(float, rows[name])
        assert low < 0 < high


def test_the_code_on_data_runs_by_itself() -> None:
    lines = printed_by(halves()[1])
    percent = {line.split(":")[0]: float(line.split()[-1][:-1]) for line in lines if line.endswith("%")}
    assert (
        percent["fedper on the stripes"] > 60 and percent["mlp on the table"] > 60
    )  # a guess is right in 33
    assert "test images of the torch clients: [20, 20, 20]" in lines
    assert "training images of anna and ben: [6, 3]" in lines and "after round 2: 16 numbers" in lines
    assert "training images of the clients made by hand: [72, 72, 72, 71, 71, 71, 71]" in lines
    scores = {line.split()[0]: line.split()[1:] for line in lines}
    assert scores["method"] == ["fedavg", "fedper", "local"] and scores["6"] == ["NaN"] * 3
    assert all("NaN" not in scores[str(i)] for i in range(6))
    assert sum(float(scores[str(i)][0]) >= max(map(float, scores[str(i)])) for i in range(6)) >= 4  # FedAvg's
    assert abs(percent["fedper on the stripes"] - 78) < 5
    assert percent["fedper on the pets of 3 sites"] > 75  # a guess is right in 50
    assert datasets()["pets"].classes == ("cat", "dog")


def as_script(path: Path, blocks: list[str], *arguments: str) -> str:
    """What a script of blocks of code prints when it is called with these arguments."""
    path.write_text("\n".join(blocks))
    command = [sys.executable, str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=path.parent).stdout


@pytest.mark.slow
def test_a_script_starts_the_command_line_with_a_method_of_one_s_own(tmp_path: Path) -> None:
    method, *others = halves()[0]
    (end,) = [block for block in others if "cli.main()" in block]
    page = PAGE.read_text(encoding="utf-8")
    told, command = re.findall(
        r"ends at about (\d+)%:\n\n```bash\npython rescaled.py (.*?)\n```", page, re.DOTALL
    )[0]
    printed = as_script(tmp_path / "rescaled.py", [method, end], *command.replace("\\\n", " ").split())
    assert "rescaled, round 10, means over 10 clients" in printed
    assert abs(float(re.findall(r"([\d.]+)%", printed)[0]) - int(told)) < 3


@pytest.mark.slow
def test_a_script_starts_the_command_line_with_images_of_one_s_own(tmp_path: Path) -> None:
    blocks = halves()[1]
    (end,) = [block for block in blocks if "cli.main()" in block]
    read, training = blocks[blocks.index(end) - 1].split("done = run(")
    script = tmp_path / "pets.py"
    assert len(training.splitlines()) == 3, "the page says how many lines to replace"
    asked = ["run", "fedper", "--data", "pets", "--partition", "sites.npz", "--rounds", "1"]
    assert "fedper, round 1, means over 3 clients" in as_script(script, [read, end], *asked)
    asked = ["partition", "--data", "pets", "--partition", "dirichlet:0.5", "--clients", "3"]
    assert "cat:" in as_script(script, [read, end], *asked)


def own_names(kind: type) -> set[str]:
    """What a class declares: functions, properties and annotated names that are public."""
    return {name for name in {**vars(kind), **kind.__annotations__} if not name.startswith("_")}


def test_the_interface_stays_small() -> None:
    facts = {name for name in Method.__annotations__ if "ClassVar" in str(Method.__annotations__[name])}
    assert len(own_names(Method) - facts) <= 14
    assert len(facts) <= 6
    assert len(own_names(Work)) <= 18
    assert own_names(Newcomers) == {"download_newcomer", "adapt_newcomer"}
    assert own_names(Sequential) == {"in_turns", "hand_over"}
    assert own_names(Gated) == {"share"}


def test_the_table_of_answers_is_the_code_s() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \((.*?)\) \|.*\| (.*?) \|$", page, re.MULTILINE)
    answers = {name for name in own_names(Method) if callable(getattr(Method, name, None))}
    assert {name for name, *_ in rows} == answers
    for name, arguments, default in rows:
        function = getattr(Method, name)
        assert ["self", *arguments.split(", ")] == list(inspect.signature(function).parameters), name
        assert ("unanswered" in inspect.getsource(function)) == (default == "an error"), name
        assert ("return None" in inspect.getsource(function)) == (default == "`None`"), name
    for fact in (
        "name",
        "about",
        "tracked",
        "finetune",
        "ft_epochs",
        "traits",
        "adapt_newcomer",
        "hand_over",
        "share",
    ):
        assert f"`{fact}`" in page, fact


def code_lines(block: str) -> list[bool]:
    """One True for every line of code: neither empty nor a docstring alone."""
    return [bool(line.strip()) and not line.strip().startswith('"""') for line in block.splitlines()]
