"""FEMNIST as LEAF's scripts write it: JSON files of 28 x 28 characters, writer by writer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from pfl_lite.atomic_files import read_json
from pfl_lite.errors import InputError, refused
from pfl_lite.seeds import generator

SIZE = 28
MINIMUM = 3  # images that a writer must have; FedEM's code drops the others, too


class _Written(NamedTuple):
    """The images of one writer in one file: uint8 [n, SIZE, SIZE] and int64 [n]."""

    name: str
    images: np.ndarray
    labels: np.ndarray


def read(folder: Path, classes: int) -> dict[str, np.ndarray] | None:
    """The arrays of a data file from `folder`/train/*.json and test/*.json, else all/*.json; None without these.

    Pixels in [0, 1] become uint8 0..255. Writers with fewer than `MINIMUM` images are left out, the others
    numbered in the order of their names. Uncut files are cut here: one fifth of every writer's images, rounded,
    is for testing. Raises InputError that names a file which is not of the format.
    """
    files = {split: sorted((folder / split).glob("*.json")) for split in ("train", "test", "all")}
    if files["train"] and files["test"]:
        parts = {split: _read_all(files[split], classes) for split in ("train", "test")}
    elif files["all"]:
        parts = _cut(_read_all(files["all"], classes))
    else:
        return None
    number: dict[str, int] = {}
    for part in (*parts["train"], *parts["test"]):
        number[part.name] = number.get(part.name, 0) + len(part.labels)
    number = {name: w for w, name in enumerate(sorted(name for name, n in number.items() if n >= MINIMUM))}
    arrays: dict[str, np.ndarray] = {}
    for split, written in parts.items():
        kept = [part for part in written if part.name in number]
        if not kept:
            raise InputError(f"{folder} holds no writer with {split} images and {MINIMUM} images or more")
        arrays[f"{split}_images"] = np.concatenate([part.images for part in kept])
        arrays[f"{split}_labels"] = np.concatenate([part.labels for part in kept])
        arrays[f"{split}_writers"] = np.repeat(
            [number[part.name] for part in kept], [len(part.labels) for part in kept]
        )
    return arrays


def _cut(written: list[_Written]) -> dict[str, list[_Written]]:
    """Cut every writer's images 4 : 1 at random, always in the same way."""
    parts: dict[str, list[_Written]] = {"train": [], "test": []}
    for name, images, labels in written:
        order = generator(0, "femnist", name).permutation(len(labels))
        some = round(0.2 * len(labels))
        for split, rows in (("train", np.sort(order[some:])), ("test", np.sort(order[:some]))):
            parts[split].append(_Written(name, images[rows], labels[rows]))
    return parts


def _read_all(files: list[Path], classes: int) -> list[_Written]:
    return [part for path in files for part in _read(path, classes)]


def _read(path: Path, classes: int) -> list[_Written]:
    """Every writer of one file."""
    wanted = (
        f"{path} is not a FEMNIST file of LEAF (users, and for each in user_data: x of {SIZE * SIZE} numbers in "
        f"[0, 1], y in 0..{classes - 1}): write it again with LEAF's scripts"
    )
    with (
        refused((ValueError, KeyError, TypeError, OverflowError), wanted),  # no JSON, no such key, no list
        refused(OSError, lambda error: f"{path} cannot be read: {error.strerror}"),
    ):
        content = read_json(path)
        if not all(isinstance(name, str) for name in content["users"]):
            raise ValueError("a writer without a name")
        return [_written(name, content["user_data"][name], classes) for name in content["users"]]


def _written(name: str, data: dict[str, list], classes: int) -> _Written:
    """One writer's images; raises ValueError for numbers that cannot be."""
    pixels = np.asarray(data["x"], dtype=np.float32).reshape(-1, SIZE * SIZE)  # [n, 784]
    labels = np.asarray(data["y"])
    if len(labels) != len(data["x"]) or len(pixels) != len(labels):
        raise ValueError("one label an image")
    if len(labels) and (labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= classes):
        raise ValueError("a label that is none")
    if not ((pixels >= 0) & (pixels <= 1)).all():  # and none of them NaN
        raise ValueError("a pixel out of range")
    images = np.rint(255 * pixels).astype(np.uint8).reshape(-1, SIZE, SIZE)
    return _Written(name, images, labels.astype(np.int64))
