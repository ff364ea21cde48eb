"""Hostile inputs, drawn by a seed: every one has to end in one sentence or in a sound result, and to change no file.

`python -m tests.fuzzing --cases 2000 --seed 7` (`make fuzz`) tries them in a process each and prints how many of each class
did not hold; `tests/test_fuzzing.py` tries a few hundred.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import torch
from bs4 import BeautifulSoup
from typer.testing import CliRunner

from pfl_lite.cli import app
from pfl_lite.data import exchange
from pfl_lite.data.federation import Federation
from pfl_lite.data.images import datasets, load
from pfl_lite.data.partition import partition
from pfl_lite.engine.report import load_model
from pfl_lite.errors import InputError
from pfl_lite.methods import METHODS
from pfl_lite.models import make_network
from pfl_lite.results.ledger import default_folder
from pfl_lite.show import explorers
from pfl_lite.show.plots import Player
from pfl_lite.show.text import render

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))  # for `python -m tests.fuzzing`
import cards

SECONDS = 120  # after which a case hangs
ROOM = 3 << 30  # bytes that a case may take beyond what the process has
LONGEST = 600  # characters of a sentence
SMALL = ["--model", "linear", "--rounds", "1"]
RUN = ["run", "fedavg", "--clients", "3", *SMALL]
EXPERIMENT, ARM = "pfedmb-table1", "fedavg"
STORED = f"ledger/{EXPERIMENT}/{ARM}-seed0.json"


@dataclass
class Case:
    """One hostile input: `arguments` of the command line, or an `act` of its own, after `prepare` in a folder of its own."""

    name: str
    arguments: list[str] = field(default_factory=list)
    prepare: Callable[[Path], None] | None = None
    act: Callable[[Path], str | None] | None = None
    wrong: bool = True
    """Whether it must be refused; else it may also do what was asked."""
    room: int | None = None
    """Bytes after which a file can grow no more."""
    named: str = ""
    """What the command, which only looks, has to name as a fault."""


# ---- what is drawn from --------------------------------------------------------------------------------------------

NO_NUMBERS = [
    "", " ", "nan", "inf", "-inf", "1e400", "-1e400", "true", "None", "0x10", "1,5", "1e", "--1", "1 2", "²",
]  # fmt: skip
NO_NUMBERS += ["9" * 400, "1" + "0" * 5000, "½", "1;2", "[1]", "{}"]
TOO_LARGE = [
    "9223372036854775808", "99999999999999999999", "1e308", "-1e308", "-1", "-9223372036854775809", "1e31",
]  # fmt: skip
WORDS = [
    "", " ", "\n", "x\ny", "é", "\u202e", "../..", "<!--<script>", "'", '"', "%s", "{0}", "$(reboot)", "-",
    "a" * 100_000,
]  # fmt: skip
WORDS += [
    "\udcff", "null", "True", "0", "`x`", "\x1b[31m", "fedavg\nfedprox", "\u2028", "🦊", "Local ", ":", "::",
    "#", "x.npz#",
]  # fmt: skip
ODD: list[Any] = [
    None, True, -1, 0.5, 1e308, "x", "0.5", [], [None], {}, {"a": [1]}, [[1]], -0.5, 10**30, "\u2028", 5.0,
]  # fmt: skip
HOSTILE = [
    "<!--<script>", "</script><script>alert(1)</script>", "<script>", "-->", "<![CDATA[", "\u2028", "\u2029",
    "&amp;lt;",
]  # fmt: skip
HOSTILE += [
    "' onload='x", '" onload="x', "a|b", "</style>", "</div>", "\\u003c", "{{x}}", "$x$", "]]>", "<!--", "\\",
    "`", "*_*",
]  # fmt: skip
WHOLE = [
    "clients", "rounds", "epochs", "batch-size", "unseen", "seed", "patience", "ft-epochs", "ft-every",
    "ft-batch-size",
]  # fmt: skip
WHOLE += ["eval-every", "clients-per-batch", "workers"]
BROKEN = [
    "lr", "momentum", "weight-decay", "participation", "val-fraction", "ft-lr", "ft-momentum",
    "ft-weight-decay",
]  # fmt: skip


def numbers(random: Random) -> Case:
    name = random.choice(WHOLE + BROKEN)
    value = random.choice(NO_NUMBERS + TOO_LARGE)
    if random.random() < 0.2 and name in WHOLE:
        value = random.choice(
            ["1.5", "1e3", "0.1", str(2 ** random.randrange(62, 200)), str(-(2 ** random.randrange(70)))]
        )
    wild = (
        name in ("lr", "weight-decay") and value.startswith(("99", "92")) and len(value) < 30
    )  # it may be tried
    return Case(f"--{name} {value[:30]!r}", [*RUN, f"--{name}={value}"], wrong=not wild)


def words(random: Random) -> Case:
    name, word = (
        random.choice(
            ["data", "model", "partition", "split", "ft-mode", "engine", "device", "dtype", "augment", ""]
        ),
        "",
    )
    word = random.choice(
        [
            *WORDS,
            "".join(chr(random.choice([*range(32, 127), 233, 8232])) for _ in range(random.randrange(1, 40))),
        ]
    )
    word = f"?{word}" if word.strip() in ("", "-") or word.startswith("-") else word
    if name:
        return Case(f"--{name} {word[:30]!r}", [*RUN, f"--{name}={word}"])
    return Case(f"run {word[:30]!r}", ["run", word, *SMALL])


def recipes(random: Random) -> Case:
    if random.random() < 0.3:
        part = random.choice(
            ["0", "-1", "nan", "inf", "2", "1e-9", "", "x", "1e400", "0.1:0.1", "\n", "1e-320", "-0.0"]
        )
        return Case(f"digits:{part!r}", [*RUN, f"--data=digits:{part}"])
    recipe = random.choice(
        ["dirichlet", "dirichlet_rounded", "classes", "shares", "groups", "pachinko", "blocks", "concept"]
    )
    recipe = random.choice([recipe, recipe, recipe, "writers", "iid", "pairs"])
    odd = [
        "0", "-1", "nan", "inf", "1e400", "", "x", "99999999999999999999", "1e-320", "-0.5", "1e308", "0x1",
        "²", "\n",
    ]  # fmt: skip
    spec = ":".join([recipe, *(random.choice(odd) for _ in range(random.randrange(1, 4)))])
    even = recipe.startswith("dirichlet") and spec.endswith(
        ":99999999999999999999"
    )  # as is any large concentration
    if recipe in ("shares", "writers") or even or "1e308" in spec or "1e-320" in spec:
        return Case(repr(spec), [*RUN, f"--partition={spec}"], wrong=False)
    return Case(repr(spec), [*RUN, f"--partition={spec}"])


# ---- files: partitions ---------------------------------------------------------------------------------------------


class Good:
    """Sound files that are made once, to be spoiled: a partition, checkpoints, models, a ledger, a data set."""

    folder: Path
    methods = ("fedavg", "pfedmb", "fedem", "scaffold", "ifca")
    arrays: dict[str, np.ndarray]

    @staticmethod
    def tuned(method: str) -> list[str]:
        """Fine-tuning, where the method has a model to tune."""
        return [] if method == "fedem" else ["--ft-epochs", "1"]

    @classmethod
    def make(cls, folder: Path) -> None:
        """Make them in a folder."""
        cls.folder = folder
        os.chdir(folder)
        parts = ["--clients", "4", "--partition", "concept:2"]
        done = [invoke(["partition", *parts, "--out", f"parts{ending}"]) for ending in (".npz", ".json")]
        for method in cls.methods:
            common = ["run", method, "--clients", "3", *SMALL, *cls.tuned(method)]
            done.append(invoke([*common, "--checkpoint", f"{method}.pt", "--save", f"{method}.npz"]))
        assert all(one.exit_code == 0 for one in done), [one.output[-300:] for one in done if one.exit_code]
        with np.load("parts.npz") as file:
            cls.arrays = {name: file[name] for name in file.files}
        digits = load("digits")
        clients = partition(digits, "iid", 4, 0)
        exchange.write_fl_bench(folder / "fl_bench.json", digits, clients)
        exchange.write_fedscale(folder / "fedscale", digits, clients)
        exchange.write_pfllib(folder / "pfllib", digits, clients)
        kept = folder / "ledger" / EXPERIMENT
        shutil.copytree(default_folder() / EXPERIMENT, kept)
        for path in kept.glob("*-seed[12].json"):
            path.unlink()
        side = datasets()["fashion_mnist"].size
        rng = np.random.default_rng(0)
        np.savez(
            "fashion_mnist.npz",
            **{  # type: ignore[arg-type]
                "train_images": rng.integers(0, 255, (60, side, side), dtype=np.uint8),
                "train_labels": np.arange(60) % 10,
                "test_images": rng.integers(0, 255, (20, side, side), dtype=np.uint8),
                "test_labels": np.arange(20) % 10,
            },
        )


def spoiled(array: np.ndarray, random: Random, top: int) -> tuple[str, np.ndarray]:
    """An index array that is none any more, and how; images go up to `top` - 1."""
    ways: dict[str, Callable[[], np.ndarray]] = {
        "halves": lambda: array + 0.5,
        "floats": lambda: array.astype(float),
        "mask": lambda: np.ones(len(array), dtype=bool),
        "texts": lambda: array.astype(str),
        "complex": lambda: array.astype(complex),
        "negative": lambda: np.append(array, -1),
        "too large": lambda: np.append(array, top),
        "huge": lambda: np.append(array, 2**62),
        "twice": lambda: np.append(array, array[:1]),
        "all twice": lambda: np.concatenate([array, array]),
        "two rows": lambda: np.stack([array, array]),
        "a column": lambda: array[:, None],
        "one number": lambda: np.array(array[0]),
        "dates": lambda: array.astype("datetime64[s]"),
        "beyond int64": lambda: np.append(array.astype(np.uint64), np.uint64(2**63 + 5)),
    }
    way = random.choice(list(ways))
    return way, ways[way]()


def partition_arrays(random: Random) -> Case:
    arrays = dict(Good.arrays)
    key = random.choice(
        [
            "train/0", "val/1", "test/2", "train/3", "group", "group", "images", "labels", "relabel/2",
            "missing", "more",
        ]
    )  # fmt: skip
    if "/" in key and not key.startswith("relabel"):
        top = int(arrays["images"][1 if key.startswith("test") else 0])
        how, arrays[key] = spoiled(arrays[key], random, top)
    elif key == "missing":
        how = random.choice(["train/1", "val/0", "test/3", "train/0", "train/3"])
        del arrays[how]
    elif key == "more":
        how = random.choice(["train/9", "overlap", "two clients", "relabel/9", "empty"])
        if how == "overlap":
            arrays["val/0"] = np.append(arrays["val/0"], arrays["train/0"][:1])
        elif how == "two clients":
            arrays["train/0"] = np.append(arrays["train/0"], arrays["train/2"][:1])
        elif how == "empty":
            arrays["train/0"] = arrays["train/0"][:0]
        else:
            arrays[how] = arrays["relabel/2"] if "re" in how else arrays["train/0"]
    else:
        pools: dict[str, list[Any]] = {
            "group": [
                [-1, 0, 1, 1], [10**9, 0, 1, 1], [0, 1], [0, 0, 1, 1, 1], [[0, 1], [1, 1]], 3,
                ["a", "b", "c", "d"], [np.nan] * 4, [0.5, 0, 1, 1], [True, False, True, False], [2**62] * 4,
                [], [1j, 0, 0, 1],
            ],
            "images": [
                5, [1, 2, 3], [[1438, 359]], ["a", "b"], [-1, 359], [1438.5, 359], [], [np.nan, 1],
                [10**18, 10**18],
            ],
            "labels": [5, ["a", "b"], np.nan, "", [[1]], "x" * 10_000],
            "relabel/2": [
                [0], list(range(11)), [-1] * 10, [10] * 10, [[0] * 10], [0.5] * 10, ["a"] * 10, 3,
                [np.nan] * 10, [],
            ],
        }  # fmt: skip
        value = random.choice(pools[key])
        how, arrays[key] = repr(value)[:30], np.array(value)
    command = random.choice([["run", "fedavg", *SMALL, "--clients", "4"], ["partition", "--clients", "4"]])
    return Case(
        f"{key} {how} {command[0]}",
        [*command, "--partition=p.npz"],
        lambda at: np.savez(at / "p.npz", **arrays),
    )


def oddity(path: Path, random: Random, good: bytes) -> tuple[str, Callable[[], Any], bool]:
    """Something else in a file's place: how, what makes it, and whether it must be refused."""
    rng = np.random.default_rng(random.randrange(2**32))

    def flipped() -> bytes:
        some = bytearray(good)
        for at in rng.integers(0, len(some), 1 + random.randrange(20)):
            some[at] ^= 1 << rng.integers(8)
        return bytes(some)

    def bomb() -> None:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            head, {"descr": "<i8", "fortran_order": False, "shape": (10**12,)}
        )
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("train/0.npy", head.getvalue())

    def pickled() -> None:
        with path.open("wb") as file:
            np.savez(file, **{"train/0": np.array([{"a": 1}], dtype=object)})  # type: ignore[arg-type]

    ways: list[tuple[str, Callable[[], Any], bool]] = [
        ("cut", lambda: path.write_bytes(good[: random.randrange(len(good) * 9 // 10)]), True),
        ("flipped", lambda: path.write_bytes(flipped()), False),
        ("random", lambda: path.write_bytes(rng.bytes(random.randrange(1, 5000))), True),
        ("empty", lambda: path.write_bytes(b""), True),
        ("text", lambda: path.write_text("hello"), True),
        ("zeros", lambda: path.write_bytes(bytes(5000)), True),
        ("folder", path.mkdir, True),
        ("fifo", lambda: os.mkfifo(path), True),
        ("loop", lambda: path.symlink_to(path.name), True),
        ("/dev/zero", lambda: path.symlink_to("/dev/zero"), True),
        ("nowhere", lambda: path.symlink_to("nowhere"), True),
        ("bomb", bomb, True),
        ("pickle", pickled, True),
        ("open brackets", lambda: path.write_text("[" * 200_000), True),
        ("deep object", lambda: path.write_text('{"a":' * 100_000), True),
        ("no text", lambda: path.write_bytes(b"\xff\xfe{}"), True),
    ]
    return random.choice(ways)


def partition_bytes(random: Random) -> Case:
    good = (Good.folder / "parts.npz").read_bytes()
    state = random.randrange(2**32)
    how, _, wrong = oddity(Path("p.npz"), Random(state), good)
    return Case(
        f"{how} {state}",
        ["run", "fedavg", *SMALL, "--clients", "4", "--partition=p.npz"],
        lambda at: oddity(at / "p.npz", Random(state), good)[1](),
        wrong=wrong,
    )


def exchanged(random: Random) -> Case:
    """Clients as lists, as tables, and as another library's arrays."""
    kind = random.choice(["parts.json", "fl_bench.json", "fedscale", "pfllib"])
    good, part = Good.folder / kind, random.choice(["train", "test"])
    named = {"fedscale": f"fedscale/{part}.csv", "pfllib": f"pfllib/{part}/1.npz"}.get(kind, kind)
    content, state, wrong = (Good.folder / named).read_bytes(), random.randrange(2**32), True
    if random.random() < 0.3:
        how, _, wrong = oddity(good, Random(state), content)
        wrong = wrong and (how, kind) != ("cut", "fedscale")  # a table does not say how long it is
        write: Callable[[Path], Any] = lambda at: oddity(at, Random(state), content)[1]()  # noqa: E731
    elif kind == "pfllib":
        held = np.load(good / part / "1.npz", allow_pickle=True)["data"].item()
        how, held, wrong = another_library_s(held, random)
        whole = np.empty((), dtype=object)
        whole[()] = held
        write = lambda at: np.savez(at, data=whole)  # noqa: E731
    else:
        if kind == "fedscale":
            lines = content.decode().splitlines()
            odd = [
                "x,{0}/1", "1.5,{0}/1", "-1,{0}/1", "99,{0}/1", ",{0}/1", "0,{0}/-1", "0,{0}/1.5", "0,/etc/x",
            ]  # fmt: skip
            how = random.choice([*odd, "0,", "0", lines[1], "0,{0}/99999999", "0,val/1"]).format(part)
            text = "\n".join([*lines, how])
        else:
            found = json.loads(content)
            if random.random() < 0.4:
                (how, found), wrong = changed(found, random, 4), False
            else:
                row = random.choice(found["clients" if kind == "parts.json" else "data_indices"])
                value = random.choice([0.5, 1.0, True, "3", -1, 10**6, 2**62, 2**64, None, [1], row[part][0]])
                row[part], how = [*row[part], value], f"{part} and {value!r}"
            text = json.dumps(found)
        write = lambda at: at.write_text(text)  # noqa: E731

    def prepare(at: Path) -> None:
        (shutil.copytree if good.is_dir() else shutil.copyfile)(good, at / kind)
        (at / named).unlink()
        write(at / named)

    def act(at: Path) -> str | None:
        digits = load("digits")
        try:
            if kind == "pfllib":
                Federation.build(*exchange.read_pfllib(at / kind, digits.card, pickled=True))
            else:
                read = exchange.read_fedscale if kind == "fedscale" else exchange.read_fl_bench
                Federation.build(digits, read(at / kind, digits))
        except InputError as error:
            return sentence(str(error))
        return "accepted" if wrong else None

    command = ["run", "fedavg", *SMALL, "--clients", "4", "--partition=parts.json"]
    name = f"{named} {how[:40]!r}"
    if kind == "parts.json":
        return Case(name, command, prepare, wrong=wrong)
    return Case(name, prepare=prepare, act=act, wrong=wrong)


def another_library_s(held: dict[str, np.ndarray], random: Random) -> tuple[str, Any, bool]:
    """PFLlib's images and labels with one of them changed: how, what they are then, and whether that must be refused."""
    x, y = held["x"], held["y"]
    ways: dict[str, Any] = {
        "no x": {"y": y},
        "a list": [x, y],
        "nothing": None,
        "fewer x": held | {"x": x[:-1]},
        "flat": held | {"x": x.reshape(len(x), -1)},
        "not square": held | {"x": x[..., :-1]},
        "smaller": held | {"x": x[..., :-1, :-1]},
        "color": held | {"x": x.repeat(3, axis=1)},
        "no channel": held | {"x": x[:, :0]},
        "bytes": held | {"x": (x * 127 + 128).astype(np.uint8)},
        "NaN": held | {"x": x * np.nan},
        "texts": held | {"x": x.astype(str)},
        "complex": held | {"x": x.astype(complex)},
        "halves": held | {"y": y + 0.5},
        "negative": held | {"y": y - 11},
        "too large": held | {"y": y + 10},
        "two rows": held | {"y": np.stack([y, y])},
        "one number": held | {"y": np.array(3)},
        "another type": held | {"x": x.astype(np.float64)},
    }
    how = random.choice(list(ways))
    return how, ways[how], how != "another type"


# ---- where things are written --------------------------------------------------------------------------------------


def outputs(random: Random) -> Case:
    option, ending = random.choice(
        [("out", ".json"), ("save", ".npz"), ("checkpoint", ".pt"), ("plot", ".png"), ("parts", ".npz")]
    )
    command = [*RUN] if option in ("out", "save", "checkpoint") else ["partition", "--clients", "3"]
    name = "out" if option == "parts" else option
    at = random.choice(
        [
            "no/x", "folder", "fifo", "loop", "/proc/x", "/sys/x", "x" * 300, "nul\0x", "there", "file/x",
            "x/", "zero", "\udcff/x",
        ]
    )  # fmt: skip

    def prepare(here: Path) -> None:
        (here / f"folder{ending}").mkdir()
        os.mkfifo(here / f"fifo{ending}")
        (here / f"loop{ending}").symlink_to(f"loop{ending}")
        (here / f"zero{ending}").symlink_to("/dev/zero")
        (here / f"there{ending}").write_text("mine")
        (here / "file").write_text("mine")

    if random.random() < 0.3:
        return clash(random)
    path = f"{at[:-1]}{ending}/" if at.endswith("/") else f"{at}{ending}"
    return Case(f"--{name} {path[:30]!r}", [*command, f"--{name}={path}"], prepare)


def clash(random: Random) -> Case:
    """One file for two things, or an input as an output."""
    pairs = [
        ["--out=a.json", "--save=a.json"],
        ["--out=a.json", "--checkpoint=./a.json"],
        ["--save=a.npz", "--checkpoint=b/../a.npz"],
        ["--partition=p.npz", "--save=p.npz", "--force", "--clients=4"],
        ["--partition=p.npz", "--save=link.npz", "--force", "--clients=4"],
        ["--partition=p.npz", "--checkpoint=p.npz", "--clients=4"],
        ["--data=fashion_mnist", "--save=fashion_mnist.npz", "--force"],
        ["--save=a.txt"],
        ["--out=a"],
        ["--out=there.json"],
    ]
    given = random.choice(
        [
            *pairs,
            ["partition", "--out=a.npz", "--plot=a.npz"],
            ["partition", "--partition=p.npz", "--out=p.npz"],
            ["partition", "--data=fashion_mnist:0.5", "--out=fashion_mnist.npz", "--force"],
        ]
    )
    if random.random() < 0.15:
        given = random.choice(
            [["partition", "--partition=p.npz", "--out=p.npz", "--force"], ["partition", "--out=x.npz#y.npz"]]
        )

    def prepare(here: Path) -> None:
        shutil.copy(Good.folder / "parts.npz", here / "p.npz")
        shutil.copy(Good.folder / "fashion_mnist.npz", here)
        (here / "link.npz").symlink_to("p.npz")
        (here / "there.json").write_text("mine")
        (here / "b").mkdir()

    command = ["partition", "--clients=4", *given[1:]] if given[0] == "partition" else [*RUN, *given]
    return Case(" ".join(given), command, prepare)


def full_disk(random: Random) -> Case:
    room = random.choice([0, 100, 1000, 3000])

    def prepare(here: Path) -> None:
        for name in ("run.json", "models.npz", "p.npz", "p.png"):
            (here / name).write_text("mine")
        (here / "ledger").mkdir()

    commands = [
        [*RUN, "--out=run.json", "--force"],
        [*RUN, "--save=models.npz", "--force"],
        [*RUN, "--checkpoint=run.pt"],
        ["partition", "--clients=3", "--out=p.npz", "--force"],
        ["partition", "--clients=3", "--plot=p.png", "--force"],
        ["notebooks", "chapters"],
    ]
    command = random.choice(commands)
    return Case(f"{room} {' '.join(command)[-40:]}", command, prepare, room=room)


# ---- data sets and trained models ----------------------------------------------------------------------------------


def data_files(random: Random) -> Case:
    state = random.randrange(2**32)
    if random.random() < 0.5:
        good = (Good.folder / "fashion_mnist.npz").read_bytes()
        if random.random() < 0.5:
            how, _, wrong = oddity(Path("fashion_mnist.npz"), Random(state), good)
            while how in ("nowhere", "loop"):  # which is no file, and is fetched
                state += 1
                how, _, wrong = oddity(Path("fashion_mnist.npz"), Random(state), good)
            make = lambda at: oddity(at / "fashion_mnist.npz", Random(state), good)[1]()  # noqa: E731
        else:
            with np.load(Good.folder / "fashion_mnist.npz") as file:
                arrays = {name: file[name] for name in file.files}
            key, wrong = random.choice(list(arrays)), True
            if key.endswith("labels"):
                how, arrays[key] = spoiled(arrays[key], random, 10)
            else:
                ways = {
                    "floats": arrays[key] / 255,
                    "signed": arrays[key].astype(np.int16),
                    "short": arrays[key][:5],
                    "flat": arrays[key][0],
                    "color": arrays[key][..., None],
                    "none": arrays[key][:0],
                    "texts": arrays[key].astype(str),
                    "side": arrays[key][:, 1:],
                }
                how = random.choice(list(ways))
                arrays[key] = ways[how]
            how = f"{key} {how}"
            make = lambda at: np.savez(at / "fashion_mnist.npz", **arrays)  # noqa: E731
        return Case(f"npz {how}", [*RUN, "--data=fashion_mnist", "--partition=iid"], make, wrong=wrong)
    image = [0.0] * 784
    content: Any = {
        "users": ["a", "b"],
        "num_samples": [4, 4],
        "user_data": {u: {"x": [image] * 4, "y": [1, 2, 3, 4]} for u in "ab"},
    }
    if random.random() < 0.7:
        how, content = changed(content, random, 4)
        text, wrong = json.dumps(content), False
    else:
        how = random.choice(
            ["[" * 200_000, "", "{", "\ufeff{}", "null", '{"a":' * 100_000, json.dumps(content)[:3000]]
        )
        text, wrong = how, True

    def write(at: Path) -> None:
        (at / "femnist" / "all").mkdir(parents=True)
        (at / "femnist" / "all" / "a.json").write_text(text)

    return Case(
        f"leaf {how[:40]}",
        ["run", "fedavg", *SMALL, "--clients", "2", "--data=femnist", "--partition=iid"],
        write,
        wrong=wrong,
    )


def places(value: Any, depth: int, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where nested dictionaries and lists may be changed: all keys, and of a list the first and last place."""
    if at:
        yield at
    if depth and isinstance(value, dict | list) and value:
        for key in value if isinstance(value, dict) else sorted({0, len(value) - 1}):
            yield from places(value[key], depth - 1, (*at, key))


def changed(content: Any, random: Random, depth: int, odd: list[Any] | None = None) -> tuple[str, Any]:
    """A copy with one place changed or left out, and how."""
    content = copy.deepcopy(content)
    *way, last = random.choice(list(places(content, depth)))
    there = content
    for key in way:
        there = there[key]
    if random.random() < 0.2:
        del there[last]
        return f"{[*way, last]} left out", content
    value = random.choice([one for one in odd or ODD if repr(one) != repr(there[last])])
    there[last] = value
    return f"{[*way, last]} = {value!r}"[:90], content


def checkpoints(random: Random) -> Case:
    method = random.choice(Good.methods)
    path = Good.folder / f"{method}.pt"
    command = [
        "run", method, "--clients", "3", "--model", "linear", "--rounds", "2", *Good.tuned(method),
        "--checkpoint=c.pt",
    ]  # fmt: skip
    state = random.randrange(2**32)
    if random.random() < 0.25:
        how, _, wrong = oddity(path, Random(state), path.read_bytes())
        wrong = wrong and how != "nowhere"
        return Case(
            f"{how} {state}",
            command,
            lambda at: oddity(at / "c.pt", Random(state), path.read_bytes())[1](),
            wrong=wrong,
        )
    content = torch.load(path, weights_only=True)
    tensors = [at for at in places(content, 2) if isinstance(reached(content, at), torch.Tensor)]
    if random.random() < 0.5:
        at = random.choice(tensors)
        tensor = reached(content, at)
        ways = {
            "shape": lambda: tensor.flatten()[:-1],
            "row": lambda: tensor[None],
            "int": lambda: tensor.long() if tensor.is_floating_point() else tensor.float(),
            "double": lambda: tensor.double() if tensor.is_floating_point() else tensor.int(),
            "text": lambda: "x",
            "none": lambda: None,
            "list": lambda: tensor.tolist(),
            "nothing": lambda: tensor[:0],
            "half": lambda: tensor.to(torch.float16),
        }
        how = random.choice(list(ways))
        reached(content, at[:-1])[at[-1]] = ways[how]()
        return Case(f"{method} {at} {how}", command, lambda here: torch.save(content, here / "c.pt"))
    how, content = changed(
        content, random, random.choice([1, 1, 2, 2, 3]), [*ODD, torch.zeros(3), {"w": torch.zeros(2)}]
    )
    config = how.startswith("['config")
    sound = ("'val_sizes'", "'train_sizes'", "'test_sizes'", "'unseen'", "'watch'")
    wrong = not config and not any(word in how for word in sound)
    wrong &= not (how.startswith("['clock") and how.endswith(("0.5", "5.0", "1e308")))
    return Case(f"{method} {how}", command, lambda here: torch.save(content, here / "c.pt"), wrong=wrong)


def reached(value: Any, at: tuple[Any, ...]) -> Any:
    """What lies at a place."""
    for key in at:
        value = value[key]
    return value


def model_files(random: Random) -> Case:
    method, client = random.choice(("fedavg", "pfedmb", "fedem")), random.choice([None, 0, 1])
    path, wrong = Good.folder / f"{method}.npz", True
    state = random.randrange(2**32)
    make: Callable[[Path], Any] = lambda at: shutil.copy(path, at / "m.npz")  # noqa: E731
    how = random.choice(["client", "bytes", "array", "array", "method", "network"])
    named = how == "network" or random.random() < 0.5  # the network is then the file's
    if how == "client":
        client = random.choice(["a", 1.5, -1, 99, 10**30, [0], "0", float("nan"), {}])
    elif how == "bytes":
        how, _, wrong = oddity(path, Random(state), path.read_bytes())
        make = lambda at: oddity(at / "m.npz", Random(state), path.read_bytes())[1]()  # noqa: E731
    else:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        if how in ("method", "network"):
            key, stored = how, json.loads(str(arrays[how]))
            how, value = changed(stored, random, 2)
            arrays[key] = np.array(
                random.choice([json.dumps(value), json.dumps(value), "[" * 100_000, "5", '"fedavg"', "null"])
            )
            wrong = False
        else:
            group = "global/" if client is None and method == "fedavg" else "personal/"
            client = client if group == "global/" or client is not None else 0
            key = random.choice([name for name in arrays if name.startswith(group)])
            array = arrays[key]
            ways = {
                "int": array.astype(int),
                "half": array.astype(np.float16),
                "complex": array.astype(complex),
                "texts": array.astype(str),
                "bool": array > 0,
                "short": array[..., :-1],
                "flat": array.reshape(-1),
                "one": np.array(1.0, np.float32),
                "rows": array[None],
            }
            how = random.choice([*ways, "left out", "fewer", "double"])
            arrays[key] = ways.get(how, array[:1] if how == "fewer" else array.astype(float))
            wrong = how not in ("fewer", "double")
            if how == "left out":
                del arrays[key]
            how = f"{key} {how}"
        make = lambda at: np.savez(at / "m.npz", **arrays)  # noqa: E731

    def act(at: Path) -> str | None:
        network = None if named else make_network("linear", 1, 8, 10)
        try:
            load_model(at / "m.npz", network, client=client)(torch.zeros(2, 1, 8, 8))
        except InputError as error:
            return sentence(str(error))
        return "accepted" if wrong else None

    return Case(f"{method} {how} client={client}", act=act, prepare=make)


# ---- methods and commands ------------------------------------------------------------------------------------------


def settings(random: Random) -> Case:
    method = random.choice(list(METHODS.values()))
    own = [one for one in fields(method) if type(one.default) in (int, float, str, bool)]
    if not own:
        return Case(f"{method.name} --set x=1", ["run", method.name, "--set", "x=1", *SMALL])
    one = random.choice(own)
    pool = WORDS if isinstance(one.default, str | bool) else NO_NUMBERS + TOO_LARGE
    value = random.choice(pool)
    fine = isinstance(one.default, bool) and value.lower() in ("true", "false")
    fine |= (isinstance(one.default, float) and value in TOO_LARGE) or isinstance(one.default, str)
    arguments = ["run", method.name, "--clients", "3", *SMALL, "--set", f"{one.name}={value}"]
    return Case(f"{method.name} {one.name}={value[:30]!r}", arguments, wrong=not fine)


def commands(random: Random) -> Case:
    word = random.choice(WORDS)
    word = f"?{word}" if word.startswith("-") or not word.strip() else word
    budget = random.choice(
        ["infs", "nans", "1e400h", "-1s", "0s", "", "x", "1e308h", "1d", "s", "9" * 400 + "h", "²s"]
    )
    known = ["--ledger", "ledger"]
    given = random.choice(
        [
            ["methods", word],
            ["table", word, *known],
            ["claims", word, *known],
            ["ledger", "missing", word, *known],
            ["reproduce", word, *known],
            ["reproduce", EXPERIMENT, *known, f"--budget={budget}"],
            ["reproduce", EXPERIMENT, *known, f"--budget={budget}", "--methods=fedavg", "--seeds=0"],
            [
                "reproduce",
                EXPERIMENT,
                *known,
                f"--seeds={random.choice([*NO_NUMBERS, '-1', '1e9', '0,', ',', '99999999999999999999999'])}",
            ],
            [
                "reproduce",
                EXPERIMENT,
                *known,
                f"--workers={random.choice([*NO_NUMBERS, '0', '-1', '9223372036854775808'])}",
            ],
            ["reproduce", EXPERIMENT, *known, f"--rounds={random.choice([*NO_NUMBERS, '0', '-1', '99999'])}"],
            ["reproduce", EXPERIMENT, *known, f"--methods={word}"],
            ["reproduce", EXPERIMENT, *known, f"--device={word}"],
            ["reproduce", EXPERIMENT, *known, f"--budget-name={word}"],
            [
                "reproduce",
                EXPERIMENT,
                f"--ledger={random.choice(['loop', 'fifo', 'file', '/proc/x', 'nul' + chr(0)])}",
            ],
            [
                random.choice(["table", "claims"]),
                EXPERIMENT,
                f"--ledger={random.choice(['loop', 'fifo', 'file', 'no', word])}",
            ],
            ["table", EXPERIMENT, *known, f"--format={word}"],
            ["table", EXPERIMENT, *known, f"--budget-name={word}"],
            ["ledger", "check", f"--ledger={random.choice(['loop', 'fifo', 'file', 'no'])}"],
            ["ledger", word],
            [word],
            [
                "notebooks",
                random.choice(["", "loop", "fifo", "file", "file/x", "/proc/x", "x" * 300, "nul\0x"]),
            ],
            ["partition", f"--clients={random.choice(NO_NUMBERS + TOO_LARGE)}"],
            ["run", "fedavg", "--set", word],
            ["run", "fedavg", *SMALL, "--bogus"],
            ["run"],
            ["run", "fedavg", "fedprox"],
            ["ledger"],
            ["table"],
            ["reproduce"],
            ["datasets", "x"],
        ]
    )

    def prepare(here: Path) -> None:
        shutil.copytree(Good.folder / "ledger", here / "ledger")
        (here / "loop").symlink_to("loop")
        (here / "file").write_text("mine")
        os.mkfifo(here / "fifo")

    return Case(" ".join(given)[:70], given, prepare, wrong=given != ["ledger"])


# ---- ledgers -------------------------------------------------------------------------------------------------------

LOOKING = (
    ["ledger", "check"],
    ["table", EXPERIMENT],
    ["claims", EXPERIMENT],
    ["ledger", "missing", EXPERIMENT],
)


def ledgers(random: Random) -> Case:
    command, state = random.choice(LOOKING), random.randrange(2**32)
    file = random.choice([STORED, STORED.replace("fedavg-seed0", "search-fedavg")])
    good = (Good.folder / file).read_text(encoding="utf-8")
    if random.random() < 0.35:
        how, _, _ = oddity(Path("x"), Random(state), good.encode())
        named = Path(file).name if how not in ("flipped", "nowhere") else ""
        spoil: Callable[[Path], Any] = lambda at: (  # noqa: E731
            at.unlink(),
            oddity(at, Random(state), good.encode())[1](),
        )
    else:
        how, content = changed(json.loads(good), random, random.choice([1, 2, 3]))
        text, named = json.dumps(content), ""
        for name in (
            "kind",
            "experiment",
            "arm",
            "seed",
            "config",
            "rounds",
            "final",
            "candidates",
            "chosen",
        ):
            named = Path(file).name if how.startswith(f"['{name}'] ") else named
        spoil = lambda at: at.write_text(text, encoding="utf-8")  # noqa: E731
    return looked_at(f"{command[-1]} {how}", command, file, spoil, named)


def impossible(random: Random) -> Case:
    if random.random() < 0.2:
        file = STORED.replace("fedavg-seed0", "search-fedavg")
        content = json.loads((Good.folder / file).read_text())
        key = "validation_accuracy"
        value: Any = random.choice([5.0, -1, 1e308, True, "0.5", None, [0.5], {}])
        content["candidates"][0][key] = value
    else:
        file, content = STORED, json.loads((Good.folder / STORED).read_text())
        key = random.choice(
            [
                "test_accuracy", "test_loss", "train_size", "test_size", "val_accuracy", "round", "score",
                "seconds", "each",
            ]
        )  # fmt: skip
        value = random.choice(
            [-1, -1e308, True, "0.5", [0.5], {}, "x", *([5.0, 1e308, 1.0001] if "accuracy" in key else [])]
        )
        if key in content["final"]:
            content["final"][key][0] = value
        elif key == "seconds":
            content["seconds"] = value
        else:
            last = content["rounds"][-1]
            name = {"round": "round", "score": "personal_accuracy", "each": "per_client"}[key]
            if key == "each":
                last[name]["personal"][0] = value
            else:
                last[name] = value
    text = json.dumps(content)
    command = random.choice([LOOKING[0], LOOKING[0], LOOKING[1], LOOKING[2]])
    return looked_at(
        f"{command[-1]} {key} {value!r}", command, file, lambda at: at.write_text(text), Path(file).name
    )


def looked_at(name: str, command: list[str], file: str, spoil: Callable[[Path], Any], named: str) -> Case:
    """A ledger with one file spoiled, and a command that looks at it."""

    def prepare(here: Path) -> None:
        shutil.copytree(Good.folder / "ledger", here / "ledger")
        spoil(here / file)

    return Case(
        name,
        [*command, "--ledger", "ledger"],
        prepare,
        wrong=False,
        named=named if command[-1] == "check" else "",
    )


# ---- pages ---------------------------------------------------------------------------------------------------------


def hostile_name(random: Random) -> str:
    return "".join(random.choice([*HOSTILE, "a", " "]) for _ in range(random.randrange(1, 4)))


def page_faults(text: str, record: Any) -> str | None:
    """What is wrong with a page's piece: its data must come back as they were, and end where they end."""
    soup = BeautifulSoup(f"{text}<p id=after>after</p>", "html.parser")
    (data,) = soup.find_all("script", type="application/json") or [None]
    if data is None or "<" in data.text or "\u2028" in data.text or "\u2029" in data.text:
        return "data that a page could take for its own"
    if json.loads(data.text) != json.loads(json.dumps(record)):
        return "other data than were given"
    return None if soup.find(id="after") and len(soup.find_all("script")) == 2 else "the rest is swallowed"


def pages(random: Random) -> Case:
    name = hostile_name(random)
    kind = random.choice(["page", "gate", "alpha", "standings", "table", "card", "player"])

    def act(at: Path) -> str | None:
        import pandas as pd

        if kind == "page":
            record = {"classes": [name, "b"], name: [name]}
            return page_faults(
                explorers.page(random.choice(["gate", "alpha", "routing", "standings"]), record), record
            )
        if kind == "gate":
            image = {
                "client": 0, "label": 0, "share": 0.5, "g": 0.5, "global": [0, 1], "personal": [1, 0],
                "pixels": [[0.0]],
            }  # fmt: skip
            text = explorers.gate([name, "b"], [image])
        elif kind == "alpha":
            text = explorers.alpha([0], {name: [[[0.5, 0.5]]]}, [0])
        elif kind == "standings":
            scores, paper = {name: [[1.0, 2.0]], "b": [[2.0, 3.0]]}, {name: 1.0, "b": 2.0}
            text = explorers.standings({name: ([name], scores, paper)})
        elif kind == "table":
            frame = pd.DataFrame({"Method": [name.replace("\n", " ")], "Ours": [1.0]})
            body = render(frame, "markdown").strip().splitlines()
            return (
                None
                if len(body) == 3 and body[-1].count("|") - body[-1].count("\\|") == 3
                else "another number of cells"
            )
        elif kind == "card":
            with mock.patch.dict(cards.METHOD_LABELS, {"fedavg": name}):
                title = ElementTree.fromstring(cards.svg("fedavg"))[0].text
            return None if title == name else "another title"
        else:
            (image,) = BeautifulSoup(Player({name: b"x"}, name, 10)._repr_html_(), "html.parser").find_all(
                "img"
            )
            return None if image["data-name"] == name else "another name"
        found = BeautifulSoup(text, "html.parser").find("script", type="application/json")
        return page_faults(text, json.loads(found.text)) if found else "no data"

    return Case(f"{kind} {name!r}", act=act)


CLASSES: dict[str, tuple[int, Callable[[Random], Case]]] = {
    "run: numbers": (330, numbers),
    "run: words and method names": (180, words),
    "data fractions and recipes": (200, recipes),
    "partition: arrays": (150, partition_arrays),
    "partition: bytes and odd files": (60, partition_bytes),
    "partition: lists and other libraries": (100, exchanged),
    "output paths and clashes": (90, outputs),
    "full disk": (30, full_disk),
    "data files": (80, data_files),
    "checkpoints": (120, checkpoints),
    "settings of 25 methods": (170, settings),
    "commands": (110, commands),
    "ledger: changed and odd files": (200, ledgers),
    "ledger: impossible numbers": (60, impossible),
    "load_model": (60, model_files),
    "pages": (60, pages),
}
"""Class -> its share of the cases, and what draws one."""


# ---- trying --------------------------------------------------------------------------------------------------------


def invoke(arguments: list[str]) -> Any:
    """The command line in this process, with what it said."""
    return CliRunner().invoke(app, arguments)


def snapshot(folder: Path) -> dict[str, str]:
    """What lies in a folder, told by its content."""

    def told(path: Path) -> str:
        if path.is_symlink():
            return f"link {os.readlink(path)}"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "other"

    return {str(path.relative_to(folder)): told(path) for path in folder.rglob("*")}


def sentence(said: str) -> str | None:
    """What is wrong with a sentence of refusal."""
    if not said.strip() or "\n" in said.strip() or len(said) > LONGEST:
        return f"no sentence: {said[:80]!r} ({len(said)} characters)"
    return "a traceback" if "Traceback" in said else None


def judged(case: Case, folder: Path) -> str | None:
    """What did not hold in one case."""
    before = snapshot(folder)
    if case.act is not None:
        fault = case.act(folder)
        return fault or (None if snapshot(folder) == before else "files changed")
    done = invoke(case.arguments)
    error, lines = done.exception, done.stderr.strip().splitlines()
    if error is not None and not isinstance(error, SystemExit):
        return f"{type(error).__name__}: {str(error)[:150]}"
    if "Traceback" in done.output or "full report" in done.stderr:
        return f"not foreseen: {done.stderr[-150:]}"
    if case.named:
        if done.exit_code != 1 or case.named not in done.stdout:
            return f"not noticed: {done.stdout[-100:]!r}"
    elif done.exit_code == 2:
        last = lines[-1] if lines else ""
        if not all(line.startswith("pfl-lite: ") for line in (lines if case.room is None else [last])):
            return f"no sentence: {done.stderr[:100]!r}"
        if fault := sentence(last):
            return fault
    elif done.exit_code == 0 or (case.arguments[:2] == ["ledger", "check"] and done.exit_code == 1):
        if case.wrong and case.room is None:
            return "accepted"
    else:
        return f"exit code {done.exit_code}: {done.output[-100:]!r}"
    if case.named or done.exit_code == 2 or case.arguments[0] in ("ledger", "table", "claims"):
        after = snapshot(folder)
        if case.arguments[0] == "run":  # what was trained until the disk was full may stay
            after = {name: one for name, one in after.items() if case.room is None or name not in ("run.pt",)}
        if case.arguments[0] == "notebooks" and case.room is not None:
            after = {
                name: one for name, one in after.items() if not name.startswith("chapters") or ".part" in name
            }
        if after != before:
            return f"files changed: {sorted(after.items() ^ before.items())[:2]}"
    if case.wrong and case.room is None and "parameters; rounds" in done.stderr:
        return "trained before it was told"
    return None


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """End what hangs with a TimeoutError."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(case: Case) -> str | None:
    """Try a case in a folder of its own; what did not hold, None if all did."""
    with tempfile.TemporaryDirectory(dir=Good.folder.parent) as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder, soft = Path(name), resource.getrlimit(resource.RLIMIT_FSIZE)
        if case.prepare is not None:
            case.prepare(folder)
        os.environ["PFL_LITE_DATA"] = name
        os.chdir(folder)
        try:
            with limited(SECONDS):
                if case.room is not None:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (case.room, soft[1]))
                return judged(case, folder)
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:150]}"
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, soft)
            os.chdir(Good.folder)


def apart(case: Case) -> str | None:
    """Try a case in a process of its own, with no more memory than `ROOM`."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            os.close(reading)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + ROOM
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            os.write(writing, (attempt(case) or "").encode("utf-8", "replace")[:400])
            os.write(writing, b"\0")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as line:
        import select

        said = b""
        while select.select([line], [], [], 2 * SECONDS)[0]:
            if not (some := os.read(line.fileno(), 1000)):
                break
            said += some
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return said[:-1].decode() or None if said.endswith(b"\0") else "it died or hung"


def cases(number: int, seed: int) -> Iterator[tuple[str, Case]]:
    """About so many cases over all classes, in proportion."""
    total = sum(share for share, _ in CLASSES.values())
    for kind, (share, draw) in CLASSES.items():
        random = Random(f"{seed} {kind}")
        for _ in range(max(1, round(number * share / total))):
            yield kind, draw(random)


@contextmanager
def workshop() -> Iterator[None]:
    """A folder with sound files for the time of the block; then all is as it was."""
    here, data = os.getcwd(), os.environ.get("PFL_LITE_DATA")
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "good").mkdir()
        try:
            Good.make(Path(name) / "good")
            yield
        finally:
            os.chdir(here)
            os.environ.pop("PFL_LITE_DATA", None)
            if data is not None:
                os.environ["PFL_LITE_DATA"] = data


def main() -> int:
    """Try them all, print the table; how many did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="classes whose name contains this")
    asked = parser.parse_args()
    tried: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    with workshop():
        for kind, case in cases(asked.cases, asked.seed):
            if asked.only in kind:
                tried[kind] += 1
                if fault := apart(case):
                    failed[kind] += 1
                    print(f"{kind} | {case.name} | {fault}", file=sys.stderr, flush=True)
    print(f"{'class':<38}{'tried':>7}{'violations':>12}")
    for kind in tried:
        print(f"{kind:<38}{tried[kind]:>7}{failed[kind]:>12}")
    print(f"{'all':<38}{tried.total():>7}{failed.total():>12}")
    return min(failed.total(), 1)


if __name__ == "__main__":
    sys.exit(main())
