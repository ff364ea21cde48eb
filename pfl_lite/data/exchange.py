"""Clients in the words of other libraries: folders of PFLlib's and flwr-datasets', FL-bench's lists, FedScale's tables.

Each of them numbers a data set's images in its own way. Nothing is unpickled here but NumPy arrays, numbers and text.
`write_clients` and `read_clients` are the plain form, one `.npz` a client, which needs neither pickles nor another library.
"""

from __future__ import annotations

import csv
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pfl_lite import schema
from pfl_lite.atomic_files import (
    atomic_path,
    plain,
    read_json,
    read_npz,
    regular,
    write_bytes,
    write_json,
    write_npz,
)
from pfl_lite.data.images import Card, Images
from pfl_lite.data.partition import LISTS, POOLS, SPLITS, ClientIndices, checked, label_digest
from pfl_lite.errors import InputError, refused

Arrays = dict[str, np.ndarray]
Held = Mapping[str, tuple[np.ndarray, np.ndarray]]  # a client's images and labels, by split

_HARMLESS = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
_HARMLESS |= {
    (f"numpy.{core}.{where}", name)
    for core in ("core", "_core")
    for where, name in (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
}


class _Arrays(pickle.Unpickler):
    """Reads pickled arrays, and refuses everything that could do more than be read."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _HARMLESS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it wants {module}.{name}")


def _must_be_said(path: Path, pickled: bool, function: str) -> None:
    if not pickled:
        raise InputError(
            f"{path} holds pickles, a format that can carry programs: {function}(..., pickled=True) reads its "
            "arrays and runs none"
        )


# ---- clients with images of their own ---------------------------------------------------------------------------------


def held(images: Images, client: ClientIndices) -> Held:
    """One client's images uint8 [n, H, W] or [n, H, W, 3] and its labels [n], as it sees them, by split."""
    found = {}
    for split, whole in POOLS.items():
        rows = getattr(client, split)
        labels = getattr(images, f"{whole}_labels")[rows]
        seen = labels if client.relabel is None else client.relabel[labels]
        found[split] = (getattr(images, f"{whole}_images")[rows], seen)
    return found


def pooled(clients: Sequence[Held], card: Card) -> tuple[Images, list[ClientIndices]]:
    """One data set of what clients hold, one client after another, and who holds what.

    Raises:
        InputError: there is no client, one has no training images, or they have several sizes.
    """
    pools: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"train": [], "test": []}
    ends, indices = dict.fromkeys(pools, 0), []
    for i, client in enumerate(clients):
        mine = {}
        for split, whole in POOLS.items():
            pair = client.get(split)
            n = 0 if pair is None else len(pair[1])
            mine[split] = np.arange(ends[whole], ends[whole] + n)
            ends[whole] += n
            pools[whole] += [pair] if pair is not None and n else []
        if not len(mine["train"]):
            raise InputError(f"client {i} has no training images: leave it out of the federation")
        indices.append(ClientIndices(mine["train"], mine["val"], mine["test"]))
    shapes = {x.shape[1:] for pool in pools.values() for x, _ in pool}
    if not shapes:
        raise InputError("a federation needs at least one client")
    if len(shapes) > 1:
        raise InputError("images of several sizes are no data set: cut or pad them alike")
    arrays: list[np.ndarray] = []
    for pool in pools.values():
        arrays += [np.concatenate([x for x, _ in pool]) if pool else np.empty((0, *shapes.pop()), np.uint8)]
        arrays += [np.concatenate([y for _, y in pool]).astype(np.int64) if pool else np.empty(0, np.int64)]
    return Images(card.name, arrays[0], arrays[1], arrays[2], arrays[3], card), indices


def arrays_of(images: Images, client: ClientIndices) -> Arrays:
    """What one client's machine gets: `train_images`, `train_labels`, ..., as `held` says, and `of`.

    That is the digest of all labels of the data set, by which peers know that they were dealt the same cards.
    """
    arrays: Arrays = {"of": np.array(label_digest(images))}
    for split, (pixels, labels) in held(images, client).items():
        arrays |= {f"{split}_images": pixels, f"{split}_labels": labels}
    return arrays


def write_clients(folder: Path | str, images: Images, clients: list[ClientIndices]) -> None:
    """Write `client-0.npz`, ... with the `arrays_of` each client, and nothing of the others."""
    for i, client in enumerate(checked(clients, images)):
        write_npz(Path(folder) / f"client-{i}.npz", arrays_of(images, client), compress=True)


def read_client(path: Path | str) -> Arrays:
    """The arrays of one client's file; raises InputError for one that is missing or something else."""
    wanted = {f"{split}_{part}" for split in SPLITS for part in ("images", "labels")} | {"of"}
    with refused((OSError, ValueError), f"there is no file of a client's images that can be read at {path}"):
        arrays = read_npz(Path(path))
    if arrays.keys() != wanted:
        odd = [f"lacks '{name}'" for name in sorted(wanted - arrays.keys())]
        odd += [f"has '{name}' too" for name in sorted(arrays.keys() - wanted)]
        raise InputError(
            f"{path} is no file of `write_clients`: it {odd[0]}; arrays of your own go into `Images` and `ClientIndices`"
        )
    return arrays


def read_clients(folder: Path | str, card: Card) -> tuple[Images, list[ClientIndices]]:
    """A data set and its clients from the files that `write_clients` wrote; raises InputError for other files."""
    files = [Path(folder) / f"client-{i}.npz" for i in range(len(list(Path(folder).glob("client-*.npz"))))]
    found = [read_client(path) for path in files]
    return pooled(
        [{split: (one[f"{split}_images"], one[f"{split}_labels"]) for split in SPLITS} for one in found], card
    )


# ---- PFLlib -----------------------------------------------------------------------------------------------------------


def write_pfllib(folder: Path, images: Images, clients: list[ClientIndices]) -> None:
    """Write `config.json`, `train/0.npz`, `test/0.npz`, ... as PFLlib reads them: x float32 [n, C, H, W] in [-1, 1], y int64 [n].

    Its training images are our training and validation images, in this order.
    """
    for i, client in enumerate(checked(clients, images)):
        mine = held(images, client)
        for split, parts in (("train", ("train", "val")), ("test", ("test",))):
            pixels, y = (np.concatenate([mine[part][k] for part in parts]) for k in (0, 1))
            x = (pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, 3, 1)).astype(np.float32)
            with atomic_path(folder / split / f"{i}.npz") as path, path.open("wb") as file:
                np.savez_compressed(file, data=np.array({"x": x / 127.5 - 1, "y": y}, dtype=object))
    classes = len(images.card.classes)
    write_json(folder / "config.json", {"num_clients": len(clients), "num_classes": classes})


def read_pfllib(
    folder: Path, card: Card | None = None, *, pickled: bool = False
) -> tuple[Images, list[ClientIndices]]:
    """A data set and its clients from PFLlib's folder of images in [-1, 1]; none of the images is set aside for validation.

    Args:
        folder: holds `train/0.npz`, `test/0.npz`, ...
        card: names the data set and its classes; without one, they are named by the folder, and by their numbers.
        pickled: that the files are pickles, which can hold programs; they are read without running any.

    Raises:
        InputError: `pickled` was not said, or a file is missing, damaged, or holds more than arrays.
    """
    _must_be_said(folder, pickled, "read_pfllib")
    number = len(list((folder / "train").glob("*.npz")))
    if not number:
        raise InputError(f"{folder} holds no client of PFLlib: there is no train/0.npz in it")
    clients = [
        {split: _pfllib_file(folder / split / f"{i}.npz") for split in ("train", "test")}
        for i in range(number)
    ]
    if card is None:
        classes = 1 + max(int(y.max()) for client in clients for _, y in client.values() if len(y))
        card = Card(name=folder.resolve().name, classes=tuple(str(c) for c in range(classes)))
    return pooled(clients, card)


def _pfllib_file(path: Path) -> tuple[np.ndarray, np.ndarray]:
    wanted = f"{path} is no file of PFLlib's images x [n, C, H, W] and labels y [n]: "
    # zip, NumPy and pickle have many words for what is wrong with a file
    with refused(Exception, lambda error: f"{wanted}{error}"):
        with zipfile.ZipFile(regular(path)) as zipped, zipped.open("data.npy") as file:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
            stored = _Arrays(file).load().item()
        x, y = np.asarray(stored["x"]), np.asarray(stored["y"])
        sound = x.ndim == 4 and y.shape == x.shape[:1] and y.dtype.kind in "iu" and x.dtype.kind in "fiu"
        if not (sound and ((x > -1.001) & (x < 1.001)).all()):  # and none of them NaN
            raise ValueError("no images in [-1, 1] with labels")
    pixels = np.rint((np.clip(x, -1, 1) + 1) * 127.5).astype(np.uint8)
    return pixels[:, 0] if pixels.shape[1] == 1 else np.moveaxis(pixels, 1, 3), y


# ---- flwr-datasets ----------------------------------------------------------------------------------------------------


def _datasets() -> Any:
    of = "folders of flwr-datasets are Arrow files of the library datasets"
    with refused(ImportError, f"{of}, which is not installed: pip install datasets"):
        import datasets
    return datasets


def write_flwr_datasets(folder: Path, images: Images, clients: list[ClientIndices]) -> None:
    """Write `partition_0`, ... for `datasets.load_from_disk`: train, val and test with the columns image (PNG) and label.

    Raises:
        InputError: the library `datasets` is not installed.
    """
    library = _datasets()
    kinds = {"image": library.Image(), "label": library.ClassLabel(names=list(images.card.classes))}
    for i, client in enumerate(checked(clients, images)):
        splits = {
            split: library.Dataset.from_dict(
                {"image": [Image.fromarray(one) for one in pixels], "label": labels.tolist()},
                features=library.Features(kinds),
            )
            for split, (pixels, labels) in held(images, client).items()
        }
        library.DatasetDict(splits).save_to_disk(str(folder / f"partition_{i}"))


def read_flwr_datasets(
    folder: Path, card: Card, *, image: str = "image", label: str = "label"
) -> tuple[Images, list[ClientIndices]]:
    """A data set and its clients from the folders `partition_0`, ... that `flwr-datasets-creator` and `save_to_disk` write.

    Args:
        folder: holds them; each is one data set, all of it for training, or has the splits train, val (or validation) and test.
        card: names the data set and its classes.
        image: the column of images, gray if all of them are, else in color.
        label: the column of labels, whole numbers from 0.

    Raises:
        InputError: the library `datasets` is not installed, a folder is missing or another, or an image is only named.
    """
    numbers = range(max(1, len(list(folder.glob("partition_*")))))
    return pooled([_flwr_folder(folder / f"partition_{i}", image, label) for i in numbers], card)


def _flwr_folder(path: Path, image: str, label: str) -> Held:
    library = _datasets()
    what = f"images '{image}' with labels '{label}' that the library datasets has saved to disk"
    # Arrow and PIL have many words for what is wrong with a file
    with refused(Exception, lambda error: f"{path} is no data set of {what}: {error}"):
        stored = library.load_from_disk(str(path))
        return {
            "val" if split == "validation" else split: _rows_of(
                part.cast_column(image, library.Image(decode=False)), image, label
            )
            for split, part in (stored if isinstance(stored, dict) else {"train": stored}).items()
        }


def _rows_of(part: Any, image: str, label: str) -> tuple[np.ndarray, np.ndarray]:
    pictures = []
    for one in part[image]:
        if one["bytes"] is None:  # a path, here or on the network, that the file's author chose
            raise ValueError("an image is only named, not stored")
        with Image.open(BytesIO(one["bytes"])) as picture:
            pictures.append(picture.convert("L" if picture.mode in ("1", "L") else "RGB"))
    mode = {one.mode for one in pictures}
    pixels = [np.asarray(one if len(mode) == 1 else one.convert("RGB")) for one in pictures]
    labels = np.array(part[label])
    if labels.dtype.kind not in "iu" and len(labels):
        raise ValueError("labels must be whole numbers")
    return np.stack(pixels) if pixels else np.empty(0, np.uint8), labels


# ---- FL-bench ---------------------------------------------------------------------------------------------------------


def write_fl_bench(path: Path, images: Images, clients: list[ClientIndices]) -> None:
    """Write FL-bench's `partition.pkl`, or the same as `.json`: indices of one pool, training images followed by test images."""
    shift = 0 if images.merged else len(images.train_labels)
    rows = [
        {split: (getattr(one, split) + (shift if split == "test" else 0)).tolist() for split in SPLITS}
        for one in checked(clients, images)
    ]
    everyone = list(range(len(clients)))
    separation = {split: everyone for split in SPLITS} | {"total": len(clients)}
    content = {"separation": separation, "data_indices": rows}
    if path.suffix == ".json":
        write_json(path, content)
    else:
        write_bytes(path, pickle.dumps(content))


def read_fl_bench(path: Path, images: Images, *, pickled: bool = False) -> list[ClientIndices]:
    """The clients of FL-bench's `partition.pkl`, or of the same as `.json`.

    FL-bench deals out all images as one pool: its own files want `images.merge()`.

    Raises:
        InputError: another file, one of other images, or a pickle where `pickled` was not said.
    """
    shift = 0 if images.merged else len(images.train_labels)
    wanted = f"{path} is no partition of FL-bench with train, val and test indices: "
    with refused(Exception, lambda error: f"{wanted}{error}"):  # pickle has many words for what is wrong
        if path.suffix == ".json":
            found = read_json(path)
        else:
            _must_be_said(path, pickled, "read_fl_bench")
            found = plain(_Arrays(BytesIO(regular(path).read_bytes())).load())
        if fault := schema.fields({"data_indices": LISTS})(found):
            raise ValueError(fault)
    parts = [{split: np.array(row[split], np.int64) for split in SPLITS} for row in found["data_indices"]]
    if not images.merged and any(
        (row["train"] >= shift).any() or (row["test"] < shift).any() for row in parts
    ):
        raise InputError(
            f"{path} deals out training and test images as one pool: read it with images.merge(), as FL-bench's own files are"
        )
    return checked([ClientIndices(row["train"], row["val"], row["test"] - shift) for row in parts], images)


# ---- FedScale ---------------------------------------------------------------------------------------------------------


def write_fedscale(folder: Path, images: Images, clients: list[ClientIndices]) -> None:
    """Write `train.csv`, `val.csv`, `test.csv` with FedScale's columns; a sample's path is `train/7` for our training image 7.

    FedScale takes the rows for the samples of its data set, in their order. Rows are therefore in the order of the images:
    without validation images, row 7 of `train.csv` is training image 7.
    """
    dealt = checked(clients, images)
    for split, whole in POOLS.items():
        labels, classes = getattr(images, f"{whole}_labels"), images.card.classes
        pairs = sorted((row, i) for i, client in enumerate(dealt) for row in getattr(client, split).tolist())
        with (
            atomic_path(folder / f"{split}.csv") as path,
            path.open("w", newline="", encoding="utf-8") as file,
        ):
            table = csv.writer(file)
            table.writerow(["client_id", "sample_path", "label_name", "label_id"])
            table.writerows([i, f"{whole}/{row}", classes[labels[row]], int(labels[row])] for row, i in pairs)


def read_fedscale(folder: Path, images: Images) -> list[ClientIndices]:
    """The clients of such a folder, numbered as they appear where they are not numbered 0, 1, ...; `val.csv` may be missing.

    Samples of other paths than `train/7` are taken as FedScale does: row k is image k, so a table has a row per image, and its
    `label_id` must be ours. Raises InputError for other tables, and for clients that cannot be.
    """
    found: dict[str, dict[str, list[int]]] = {}
    for split, whole in POOLS.items():
        path = folder / f"{split}.csv"
        if split == "val" and not path.exists():
            continue
        wanted = f"{path} is no table of FedScale's with client_id, sample_path and label_id"
        with (
            refused((OSError, ValueError, csv.Error), wanted),
            regular(path).open(newline="", encoding="utf-8") as file,
        ):
            table = csv.DictReader(file)
            columns = ("client_id", "sample_path", "label_id")
            if not set(columns) <= set(table.fieldnames or ()):
                raise ValueError("other columns")
            rows = [tuple(row[name] for name in columns) for row in table]
            if not all(map(all, rows)):
                raise ValueError("a row is not whole")
        ours = [re.fullmatch(rf"{whole}/(\d{{1,12}})", sample) for _, sample, _ in rows]
        labels = getattr(images, f"{whole}_labels").astype(str).tolist()
        for (_, sample, label), named in zip(rows, ours, strict=True):
            if named and int(named[1]) < len(labels) and label != labels[int(named[1])]:
                raise InputError(
                    f"{path} gives {sample} the label {label}, which is {labels[int(named[1])]}: other images"
                )
        if not all(ours) and [label for *_, label in rows] != labels:
            other = next(sample for (_, sample, _), named in zip(rows, ours, strict=True) if not named)
            raise InputError(
                f"{path} names the sample '{other}': wanted is a number of ours, such as {whole}/7, or a row with its "
                f"label for each of the {len(labels)} images, in their order"
            )
        numbers = [int(named[1]) for named in ours if named] if all(ours) else range(len(rows))
        for (client, *_), number in zip(rows, numbers, strict=True):
            found.setdefault(client, {name: [] for name in SPLITS})[split].append(number)
    names = [str(i) for i in range(len(found))]
    order = names if found.keys() == set(names) else list(found)
    parts = [{split: np.array(found[i][split], np.int64) for split in SPLITS} for i in order]
    return checked([ClientIndices(one["train"], one["val"], one["test"]) for one in parts], images)
