"""Clients in the words of other libraries: PFLlib's folders, FL-bench's lists of indices, FedScale's table of clients.

Each of them numbers a data set's images in its own way. Nothing is unpickled here but NumPy arrays, numbers and text.
"""

from __future__ import annotations

import csv
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from pfl_lite import schema
from pfl_lite.data.images import Card, Images
from pfl_lite.data.partition import LISTS, SPLITS, ClientIndices, checked
from pfl_lite.errors import InputError
from pfl_lite.files import atomic_path, read_json, regular, write_json

_HARMLESS = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
_HARMLESS |= {
    (f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")
}


class _Arrays(pickle.Unpickler):
    """Reads pickled arrays, and refuses everything that could do more than be read."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _HARMLESS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it wants {module}.{name}")


# ---- PFLlib -----------------------------------------------------------------------------------------------------------


def write_pfllib(folder: Path, images: Images, clients: list[ClientIndices]) -> None:
    """Write `config.json`, `train/0.npz`, `test/0.npz`, ... as PFLlib reads them: x float32 [n, C, H, W] in [-1, 1], y int64 [n].

    Its training images are our training and validation images, in this order.
    """
    for i, client in enumerate(checked(clients, images)):
        for split, rows in (("train", np.concatenate([client.train, client.val])), ("test", client.test)):
            pixels, labels = (
                getattr(images, f"{split}_images")[rows],
                getattr(images, f"{split}_labels")[rows],
            )
            x = (pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, 3, 1)).astype(np.float32)
            y = labels if client.relabel is None else client.relabel[labels]
            with atomic_path(folder / split / f"{i}.npz") as path, path.open("wb") as file:
                np.savez_compressed(file, data=np.array({"x": x / 127.5 - 1, "y": y}, dtype=object))
    classes = len(images.card.classes)
    write_json(folder / "config.json", {"num_clients": len(clients), "num_classes": classes})


def read_pfllib(folder: Path, card: Card, *, pickled: bool = False) -> tuple[Images, list[ClientIndices]]:
    """A data set and its clients from PFLlib's folder of images in [-1, 1]; none of the images is set aside for validation.

    Args:
        folder: holds `train/0.npz`, `test/0.npz`, ...
        card: names the data set and its classes.
        pickled: that the files are pickles, which can hold programs; they are read without running any.

    Raises:
        InputError: `pickled` was not said, or a file is missing, damaged, or holds more than arrays.
    """
    if not pickled:
        raise InputError(
            f"{folder} holds pickles, a format that can carry programs: read_pfllib(..., pickled=True) reads its "
            "arrays and runs none"
        )
    number = len(list((folder / "train").glob("*.npz")))
    parts = {
        split: [_pfllib_file(folder / split / f"{i}.npz") for i in range(number)]
        for split in ("train", "test")
    }
    if not number:
        raise InputError(f"{folder} holds no client of PFLlib: there is no train/0.npz in it")
    if len({x.shape[1:] for files in parts.values() for x, _ in files}) > 1:
        raise InputError(
            f"{folder} holds images of several sizes, which are no data set: cut or pad them alike"
        )
    arrays, rows = [], {}
    for split, files in parts.items():
        x = np.concatenate([x for x, _ in files])  # [n, C, H, W]
        pixels = np.rint((np.clip(x, -1, 1) + 1) * 127.5).astype(np.uint8)
        arrays += [pixels[:, 0] if pixels.shape[1] == 1 else np.moveaxis(pixels, 1, 3)]
        arrays += [np.concatenate([y for _, y in files]).astype(np.int64)]
        ends = np.cumsum([len(y) for _, y in files])
        rows[split] = np.split(np.arange(ends[-1]), ends[:-1])
    none = np.empty(0, np.int64)
    clients = [
        ClientIndices(train, none, test) for train, test in zip(rows["train"], rows["test"], strict=True)
    ]
    return Images(card.name, arrays[0], arrays[1], arrays[2], arrays[3], card), clients


def _pfllib_file(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with zipfile.ZipFile(regular(path)) as zipped, zipped.open("data.npy") as file:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
            held = _Arrays(file).load().item()
        x, y = np.asarray(held["x"]), np.asarray(held["y"])
        sound = x.ndim == 4 and y.shape == x.shape[:1] and y.dtype.kind in "iu" and x.dtype.kind in "fiu"
        if not (sound and ((x > -1.001) & (x < 1.001)).all()):  # and none of them NaN
            raise ValueError("no images in [-1, 1] with labels")
    except Exception as error:  # zip, NumPy and pickle have many words for what is wrong with a file
        raise InputError(
            f"{path} is no file of PFLlib's images x [n, C, H, W] and labels y [n]: {error}"
        ) from error
    return x.astype(np.float32), y


# ---- FL-bench ---------------------------------------------------------------------------------------------------------


def write_fl_bench(path: Path, images: Images, clients: list[ClientIndices]) -> None:
    """Write FL-bench's partition as JSON: indices of one pool, training images followed by test images."""
    shift = 0 if images.merged else len(images.train_labels)
    rows = [
        {split: (getattr(one, split) + (shift if split == "test" else 0)).tolist() for split in SPLITS}
        for one in checked(clients, images)
    ]
    everyone = list(range(len(clients)))
    separation = {split: everyone for split in SPLITS} | {"total": len(clients)}
    write_json(path, {"separation": separation, "data_indices": rows})


def read_fl_bench(path: Path, images: Images) -> list[ClientIndices]:
    """The clients of such a file; raises InputError for another file, or one of other images."""
    shift = 0 if images.merged else len(images.train_labels)
    try:
        found = read_json(path)
        if fault := schema.fields({"data_indices": LISTS})(found):
            raise ValueError(fault)
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is no partition of FL-bench with train, val and test indices") from error
    parts = [{split: np.array(row[split], np.int64) for split in SPLITS} for row in found["data_indices"]]
    return checked([ClientIndices(row["train"], row["val"], row["test"] - shift) for row in parts], images)


# ---- FedScale ---------------------------------------------------------------------------------------------------------


def write_fedscale(folder: Path, images: Images, clients: list[ClientIndices]) -> None:
    """Write `train.csv`, `val.csv`, `test.csv` with FedScale's columns; a sample's path is `train/7` for our training image 7."""
    for split in SPLITS:
        whole = "test" if split == "test" else "train"
        labels = getattr(images, f"{whole}_labels")
        with (
            atomic_path(folder / f"{split}.csv") as path,
            path.open("w", newline="", encoding="utf-8") as file,
        ):
            table = csv.writer(file)
            table.writerow(["client_id", "sample_path", "label_name", "label_id"])
            for i, client in enumerate(checked(clients, images)):
                for row in getattr(client, split).tolist():
                    table.writerow([i, f"{whole}/{row}", images.card.classes[labels[row]], labels[row]])


def read_fedscale(folder: Path, images: Images) -> list[ClientIndices]:
    """The clients of such a folder; raises InputError for other paths than `train/7`, and for clients that cannot be."""
    found: dict[int, dict[str, list[int]]] = {}
    for split in SPLITS:
        path, whole = folder / f"{split}.csv", "test" if split == "test" else "train"
        try:
            with regular(path).open(newline="", encoding="utf-8") as file:
                table = csv.DictReader(file)
                if not table.fieldnames:
                    raise ValueError("no columns")
                rows = [(int(row["client_id"]), str(row["sample_path"])) for row in table]
        except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
            raise InputError(f"{path} is no table of FedScale's with client_id and sample_path") from error
        for client, sample in rows:
            if not re.fullmatch(rf"{whole}/\d{{1,12}}", sample):
                raise InputError(
                    f"{path} names the sample '{sample}': a number of ours is wanted, such as {whole}/7"
                )
            held = found.setdefault(client, {name: [] for name in SPLITS})
            held[split].append(int(sample.partition("/")[2]))
    if sorted(found) != list(range(len(found))):
        raise InputError(f"{folder} must number its clients 0, 1, ..., not {sorted(found)[:5]}")
    parts = [{split: np.array(found[i][split], np.int64) for split in SPLITS} for i in range(len(found))]
    return checked([ClientIndices(one["train"], one["val"], one["test"]) for one in parts], images)
