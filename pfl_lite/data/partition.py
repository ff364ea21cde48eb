"""Which client holds which image: the shares of a recipe, rounded to counts, dealt out as disjoint index arrays.

The training images are first split into training and validation images (random, stratified by class); then training,
validation and test images are all dealt out with the *same* shares (`pfl_lite.data.recipes`), so that a client is
always tested on the kind of images it was trained on.  Where training and test images were merged into one pool
(`Images.merge`), the pool is dealt out once, and every client cuts its own images.  Needs NumPy only.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl_lite import schema
from pfl_lite.atomic_files import check_writable, read_json, read_npz, regular, write_json, write_npz
from pfl_lite.data.recipes import Partitioner, apportion, parse
from pfl_lite.errors import InputError, expect, refused, unknown
from pfl_lite.seeds import generator

if TYPE_CHECKING:
    from pfl_lite.data.images import Images

ENDINGS = (".npz", ".json")
"""How the name of a partition's file ends, in capitals or not: by this it is told from a recipe."""
POOLS = {"train": "train", "val": "train", "test": "test"}
"""What a client's indices of each split index: the data set's training images, or its test images."""
SPLITS = tuple(POOLS)
_MORE = {"group", "images", "labels"}  # what a file may hold besides arrays of its clients
_COUNTS = schema.each(schema.count)
# a client's indices, as JSON has them
LISTS = schema.each(schema.fields(dict.fromkeys(SPLITS, _COUNTS), rest=lambda _: _COUNTS))
_OF_CLIENTS = {*SPLITS, "relabel"}


def _client(value: Any) -> str | None:
    """The same with fewer lists, none of them misspelled."""
    if isinstance(value, dict) and (odd := value.keys() - _OF_CLIENTS):
        return f": {unknown('key', min(odd), _OF_CLIENTS)}"
    return schema.fields({"train": _COUNTS}, rest=lambda _: _COUNTS)(value)


_LISTED = schema.fields(
    {"clients": schema.each(_client)}, dict.fromkeys(_MORE, _COUNTS) | {"labels": schema.text}
)


@dataclass(frozen=True)
class ClientIndices:
    """The images of one client as sorted int64 indices.

    `train` and `val` index the training images of the data set, `test` its test images (all three its one pool
    of images, where these are merged: its training images, followed by its test images). `relabel` int64
    [classes] is the label under which this client sees each class, in all three; None where labels stay as
    they are. `group` is the true group of the client, None where the partition makes no groups.
    """

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    relabel: np.ndarray | None = None
    group: int | None = None


def is_file(spec: object) -> bool:
    """Whether a spec names a file that `save_partition` wrote: `clients.npz`, or `clients.npz#DIGEST`."""
    return isinstance(spec, str) and _located(spec)[0].lower().endswith(ENDINGS)


def partition(
    images: Images, spec: str | Partitioner, clients: int, seed: int, val_fraction: float = 0.2
) -> list[ClientIndices]:
    """Distribute a data set over clients: one `ClientIndices` a client, the same for the same arguments.

    Merged images are dealt out as one, and every client's own are cut by `split_locally`. Of a file that `save_partition` wrote
    (`clients.npz`) come the clients as they were, whatever seed and fraction. Raises InputError if the spec is wrong, the data
    set cannot be cut that way, or the file is of other images or another number of clients.
    """
    if is_file(spec):
        return load_partition(str(spec), clients, images)
    classes = len(images.card.classes)
    labels, test_labels = images.train_labels, images.test_labels
    train, test = images.train_writers, images.test_writers
    writers = None if train is None or test is None else (train, test)
    if not images.merged:
        return partition_labels(labels, test_labels, classes, spec, clients, seed, val_fraction, writers)
    _check_fraction(val_fraction)
    if writers is not None:
        writers = writers[0], writers[0][:0]
    dealt = partition_labels(labels, labels[:0], classes, spec, clients, seed, 0, writers)
    return [split_locally(client, i, val_fraction, seed) for i, client in enumerate(dealt)]


def partition_labels(
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    classes: int,
    spec: str | Partitioner,
    clients: int,
    seed: int,
    val_fraction: float = 0.2,
    writers: tuple[np.ndarray, np.ndarray] | None = None,
) -> list[ClientIndices]:
    """`partition` for bare label arrays with labels 0 .. classes-1, and the `writers` 0, 1, ... of training
    and test images where they are known.

    Within a split every client's count of a class is its share of the class, rounded down or up; only a client whose images of a
    split would all be rounded away takes one from a holder of the same class, where possible.
    """
    partitioner = spec if isinstance(spec, Partitioner) else parse(spec)
    expect(clients, int | np.integer, "the number of clients must be a whole number")
    if clients < 1:
        raise InputError(f"the number of clients must be at least 1, not {clients}")
    if seed < 0:
        raise InputError(f"the seed must be 0 or more, not {seed}")
    _check_fraction(val_fraction)
    if partitioner.by == "writer":
        if writers is None:
            raise InputError(
                f"partition '{partitioner.spec}' needs a data set that says who wrote what (glyphs, glyphs10 or "
                "femnist), this one does not"
            )
        train_kinds, test_kinds = writers
        if len(train_kinds) != len(train_labels) or len(test_kinds) != len(test_labels):
            raise InputError("there must be one writer for every training image and every test image")
        sizes = np.bincount(train_kinds, minlength=int(test_kinds.max(initial=-1)) + 1)
        shares = partitioner.shares(sizes, clients, generator(seed, "shares"))
        # Writers stay whole, so it is known already whose a training image is, and every client can set aside
        # the same part of its own, alike in all classes: no label skew creeps in beside the feature shift.
        owner = np.where(shares.any(axis=0), shares.argmax(axis=0), -1)[train_kinds]
        train, val = split_validation(owner, val_fraction, seed, spread=train_labels)
    else:
        pile = partitioner.piles(classes, generator(seed, "piles"))
        train_kinds, test_kinds = pile[train_labels], pile[test_labels]
        train, val = split_validation(train_labels, val_fraction, seed)
        if clients > len(train):
            raise InputError(
                f"{clients} clients are too many for {len(train)} training images: use {len(train)} or fewer"
            )
        sizes = np.bincount(train_kinds[train], minlength=classes)
        shares = partitioner.shares(sizes, clients, generator(seed, "shares"))

    rng, test = generator(seed, "deal"), np.arange(len(test_kinds))
    pools = (train, train_kinds), (val, train_kinds), (test, test_kinds)
    parts = [_deal(indices, kinds, shares, rng) for indices, kinds in pools]
    if any(len(part) == 0 for part in parts[0]):
        raise InputError(
            f"partition '{partitioner.spec}' leaves some of the {clients} clients without training images: "
            "use fewer clients"
        )
    groups, seen = partitioner.groups(clients), partitioner.relabeling(clients, classes)
    return [
        ClientIndices(
            train=train,
            val=val,
            test=test,
            relabel=None if seen is None or np.array_equal(seen[i], np.arange(classes)) else seen[i],
            group=None if groups is None else int(groups[i]),
        )
        for i, (train, val, test) in enumerate(zip(*parts, strict=True))
    ]


def split_validation(
    labels: np.ndarray, fraction: float, seed: int, spread: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Split training images at random into (train, validation) indices, a `fraction` of each class.

    `spread` [n], if given, is a second label: the validation images of each class are taken from all values of it in proportion.
    """
    rng = generator(seed, "validation split")
    held_out = np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == c))
        if spread is not None:
            members = members[_alternate(spread[members])]
        held_out[members[: min(round(fraction * len(members)), len(members) - 1)]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def split_locally(client: ClientIndices, number: int, val_fraction: float, seed: int) -> ClientIndices:
    """Cut a client's own images (`client.train`) at random: 80% for training, rounded down, the rest for testing
    (FedEM's `generate_data.py`).

    A `val_fraction` of the 80%, rounded up, becomes validation images: 0.25 gives 60 : 20 : 20, as FedEM has it for tuning. At
    least one image is left to train on. Test images depend on `seed` and the client's `number` alone.
    """
    order = generator(seed, "local split", number).permutation(client.train)
    seen = max(len(order) * 4 // 5, 1)
    # 0.7 * 10 must not lose an image to float rounding
    kept = max(math.floor((1 - val_fraction) * seen + 1e-9), 1)
    return replace(
        client, train=np.sort(order[:kept]), val=np.sort(order[kept:seen]), test=np.sort(order[seen:])
    )


def class_counts(labels: np.ndarray, indices: list[np.ndarray], classes: int) -> np.ndarray:
    """Images of each class at each client: int64 [clients, classes]."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in indices])


def heterogeneity(counts: np.ndarray) -> dict[str, float]:
    """Measure how unlike the clients are, from their class counts [clients, classes].

    `label_distance`: mean total-variation distance between a client's label distribution and that of all images (0: alike, toward
    1: disjoint); `effective_classes`: mean exp(entropy) of a client's labels; `size_ratio`: largest over smallest client;
    `size_gini`: Gini coefficient of the sizes (0: equal). Clients without images count for the sizes only.
    """
    counts = np.asarray(counts, dtype=float)
    sizes = counts.sum(axis=1)
    if sizes.sum() == 0:
        raise InputError("heterogeneity needs at least one image")
    labels = counts[sizes > 0] / sizes[sizes > 0, None]
    distance = 0.5 * np.abs(labels - counts.sum(axis=0) / sizes.sum()).sum(axis=1)
    entropy = -(labels * np.log(np.where(labels > 0, labels, 1))).sum(axis=1)
    ranks = np.arange(1, len(sizes) + 1)
    gini = ((2 * ranks - len(sizes) - 1) * np.sort(sizes)).sum() / (len(sizes) * sizes.sum())
    return {
        "label_distance": float(distance.mean()),
        "effective_classes": float(np.exp(entropy).mean()),
        "size_ratio": float(sizes.max() / sizes.min()) if sizes.min() > 0 else math.inf,
        "size_gini": float(gini),
    }


def known_groups(clients: list[ClientIndices]) -> np.ndarray | None:
    """The true group of every client, int64 [clients]; None unless all are known."""
    groups = [client.group for client in clients if client.group is not None]
    return np.array(groups, dtype=np.int64) if clients and len(groups) == len(clients) else None


def save_partition(
    path: str | Path, clients: list[ClientIndices], images: Images | None = None, **made: object
) -> None:
    """Write index arrays `train/0`, `val/0`, `test/0`, `train/1`, ... to an `.npz` file, or lists to a `.json`, atomically.

    `relabel/i` int64 [classes] is added for every client i that sees labels changed, from the data set's
    label to the client's; `group` int64 [clients] where the partition makes groups. If the data set is given,
    `images` int64 [2] are its numbers of training and test images, and `labels` a digest of all their labels, by
    which it is known again. `made` is what else a `.json` says of where the clients come from, as their recipe and seed. Raises
    InputError if the path has another ending, or cannot be written.
    """
    if not is_file(str(path)):
        raise InputError(
            f"{path} must end in {' or '.join(ENDINGS)}: by this a partition's file is told from a recipe"
        )
    check_writable(Path(path))
    arrays = {f"{split}/{i}": getattr(client, split) for i, client in enumerate(clients) for split in SPLITS}
    arrays |= {f"relabel/{i}": c.relabel for i, c in enumerate(clients) if c.relabel is not None}
    if (groups := known_groups(clients)) is not None:
        arrays["group"] = groups
    if images is not None:
        arrays["images"] = np.array([len(images.train_labels), len(images.test_labels)])
        arrays["labels"] = np.array(label_digest(images))
    if not str(path).lower().endswith(".json"):
        return write_npz(Path(path), arrays)
    rows = [
        {name: array.tolist() for name in (*SPLITS, "relabel") if (array := getattr(one, name)) is not None}
        for one in clients
    ]
    whole = {name: arrays[name].tolist() for name in sorted(_MORE & arrays.keys())}
    write_json(Path(path), {"format": 1, **made, **whole, "clients": rows}, separators=(",", ":"))


def load_partition(
    spec: str, clients: int | None = None, images: Images | None = None
) -> list[ClientIndices]:
    """Read the clients of a file that `save_partition` wrote: `clients.npz`, or `clients.npz#DIGEST` for a content.

    Raises InputError for a file that is not there or none of these, for clients that cannot be (see `checked`), for another
    content than the digest's, for another number of `clients`, and for `images` of another number or with other labels than the
    file was made of; a file that does not say what it was made of fits all.
    """
    path, digest = _located(spec)
    content = _content(path)
    if digest and digest != _digest(content):
        raise InputError(
            f"{path} is not the file that it was (#{digest}): name it without # to take it as it is"
        )
    good = "name a file that `pfl-lite partition --out` wrote, or one like it"
    with refused((InputError, ValueError), lambda error: f"{path} holds no partition ({error}): {good}"):
        arrays = _from_json(content) if path.lower().endswith(".json") else read_npz(content)
        number = len([name for name in arrays if name.startswith("train/")])
        if not number:
            raise ValueError("it lists no clients")
        valid = {f"{name}/i" for name in _OF_CLIENTS} | _MORE
        if odd := {re.sub(r"/\d+$", "/i", name) for name in arrays} - valid:
            raise unknown("array", min(odd), valid)
        names = {f"{split}/{i}" for split in SPLITS for i in range(number)}
        group, made_of = arrays.get("group", np.zeros(number, int)), arrays.get("images", np.zeros(2, int))
        label = arrays.get("labels", np.array(""))
        sound = names <= arrays.keys() <= names | {f"relabel/{i}" for i in range(number)} | _MORE
        sound = sound and group.shape == (number,) and group.dtype.kind in "iu" and label.dtype.kind == "U"
        if not (sound and label.ndim == 0 and made_of.shape == (2,) and made_of.dtype.kind in "iu"):
            raise ValueError("other arrays")
    if clients not in (None, number):
        raise InputError(
            f"{path} is a partition over {number} clients, not {clients}: ask for {number} clients"
        )
    if images is not None and "images" in arrays:
        sizes, (train, test) = [len(images.train_labels), len(images.test_labels)], made_of.tolist()
        if [train, test] != sizes:
            raise InputError(
                f"{path} is a partition of {train} training and {test} test images, not of {sizes[0]} and {sizes[1]}: "
                "use it with the data set and the split that it was made of"
            )
    if images is not None and "labels" in arrays and str(label) != label_digest(images):
        raise InputError(
            f"{path} is a partition of other images: their number is the same as here, their labels are not; "
            "use it with the data set that it was made of"
        )
    found = [
        ClientIndices(
            **{split: arrays[f"{split}/{i}"] for split in SPLITS},
            relabel=arrays.get(f"relabel/{i}"),
            group=int(group[i]) if "group" in arrays else None,
        )
        for i in range(number)
    ]
    with refused(InputError, lambda error: f"{path} holds no partition that can be used: {error}"):
        if empty := [i for i, client in enumerate(found) if not client.train.size]:
            raise InputError(f"client {empty[0]} has no training images: leave it out")
        return checked(found, images)


def checked(clients: Collection[ClientIndices], images: Images | None) -> list[ClientIndices]:
    """The clients with their indices as int64 arrays.

    Raises:
        InputError: no clients, indices that are not whole numbers [n], listed twice, or outside the data set, a client that is
            tested or validated on images that it trains on, other new labels than one a class, a group that is none of
            0 .. clients-1.
    """
    if not len(clients):
        raise InputError("a federation needs at least one client")
    found = []
    for i, client in enumerate(clients):
        expect(client, ClientIndices, f"client {i} must be ClientIndices(train=..., val=..., test=...)")
        parts = {split: _indices(i, split, getattr(client, split), images) for split in SPLITS}
        # test images are other images than these, unless all are one pool
        for split in ("val", "test") if images is not None and images.merged else ("val",):
            if len(both := np.intersect1d(parts["train"], parts[split], assume_unique=True)):
                raise InputError(
                    f"client {i} has image {both[0]} in both train and {split}: leave it out of one of them"
                )
        if client.relabel is not None:
            new = np.asarray(client.relabel)
            classes = new.size if images is None else len(images.card.classes)
            if new.shape != (classes,) or not _whole(new, classes):
                raise InputError(
                    f"client {i} must be relabeled with {classes} labels in 0..{classes - 1}, one a class"
                )
        if client.group is not None and client.group not in range(len(clients)):
            raise InputError(f"the group of client {i} must be in 0..{len(clients) - 1}, not {client.group}")
        found.append(replace(client, train=parts["train"], val=parts["val"], test=parts["test"]))
    return found


def _whole(array: np.ndarray, below: int) -> bool:
    """Whether an array holds whole numbers in 0 .. below-1."""
    return array.dtype.kind in "iu" and (not array.size or bool(0 <= array.min() <= array.max() < below))


def _indices(i: int, split: str, given: object, images: Images | None) -> np.ndarray:
    """A client's indices of a split as int64 [n]."""
    part = np.asarray(given)
    if part.dtype == bool:
        raise InputError(
            f"client {i} has a mask as {split} indices: np.flatnonzero(mask) makes indices of it"
        )
    if part.ndim != 1 or (len(part) and part.dtype.kind not in "iu"):
        raise InputError(
            f"client {i} must have whole numbers [n] as {split} indices, positions of images from 0 on, "
            f"not {part.dtype} {list(part.shape)}"
        )
    n = 2**63 if images is None else len(images.test_labels if split == "test" else images.train_labels)
    if not _whole(part, n) and len(part):
        raise InputError(f"client {i} has {split} indices outside 0..{n - 1}, those of the data set")
    ordered = np.sort(part)
    if (twice := ordered[1:][ordered[1:] == ordered[:-1]]).size:
        raise InputError(f"client {i} has image {twice[0]} twice in {split}: list it once")
    return part.astype(np.int64, copy=False)


def pinned(spec: str) -> str:
    """The spec of a file with the digest of its content, `clients.npz#DIGEST`; of a recipe as it is.

    Raises InputError for a file that cannot be read.
    """
    if not is_file(spec):
        return spec
    path, digest = _located(spec)
    return f"{path}#{digest or _digest(_content(path))}"


def _located(spec: str) -> tuple[str, str]:
    """Path and digest of `clients.npz#DIGEST`; there is none in `clients.npz`."""
    path, *digest = re.split(r"(?<=\.npz)#|(?<=\.json)#", spec.strip(), maxsplit=1, flags=re.IGNORECASE)
    return path, "".join(digest)


def _content(path: str) -> bytes:
    how = f"write it with `pfl-lite partition --out {path}`"
    with refused(OSError, lambda error: f"the partition {path} cannot be read ({error.strerror}): {how}"):
        return regular(path).read_bytes()


def _from_json(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` from the lists of a `.json`; raises ValueError for other files."""
    found, known = read_json(content), {"clients", *_MORE}
    for key in sorted(found.keys() - known) if isinstance(found, dict) else ():
        if difflib.get_close_matches(key, known, cutoff=0.8):  # others say where the clients come from
            raise unknown("key", key, known)
    if fault := _LISTED(found):
        raise ValueError(fault[1:] if fault.startswith("/") else f"it{fault}")
    empty: dict[str, list[int]] = {"val": [], "test": []}
    rows = {
        f"{name}/{i}": one for i, row in enumerate(found["clients"]) for name, one in (empty | row).items()
    }
    rows |= {name: found[name] for name in _MORE & found.keys()}
    return {name: np.array(row, None if name == "labels" else np.int64) for name, row in rows.items()}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def label_digest(images: Images) -> str:
    """By which a data set is known again: twelve digits of the SHA-256 of all its labels."""
    labels = np.concatenate([images.train_labels, images.test_labels])
    return _digest(labels.astype("<i8").tobytes())


def _check_fraction(val_fraction: float) -> None:
    if not 0 <= val_fraction < 1:
        raise InputError(f"the validation fraction must be in [0, 1), not {val_fraction:g}")


def _alternate(labels: np.ndarray) -> np.ndarray:
    """An order in which every beginning holds all labels in proportion; equal labels keep their order."""
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    first, last = (np.searchsorted(ordered, ordered, side) for side in ("left", "right"))
    place = np.empty(len(labels))
    place[order] = (np.arange(len(labels)) - first + 0.5) / (last - first)  # r of m stands at (r + 1/2) / m
    return np.argsort(place, kind="stable")


def _fill_empty(counts: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Give clients without an image one of a class they hold, from the holder furthest above its share."""
    sizes, held = counts.sum(axis=0), counts.sum(axis=1)
    for i in np.flatnonzero(held == 0):
        rich = np.flatnonzero(held > 1)  # of tens of thousands of clients soon a few
        if not rich.size:
            break
        able = (counts[rich] > 0) & (shares[i] > 0)
        if able.any():
            surplus = np.where(able, counts[rich] - shares[rich] * sizes, -np.inf)
            giver, c = np.unravel_index(surplus.argmax(), surplus.shape)
            counts[rich[giver], c] -= 1
            counts[i, c] += 1
            held[rich[giver]] -= 1
    return counts


def _deal(
    indices: np.ndarray, kinds: np.ndarray, shares: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Deal images of some kinds (`kinds[indices]`) out by shares: sorted int64 index arrays, one a client, disjoint."""
    labels = kinds[indices]
    clients, classes = shares.shape
    sizes = np.bincount(labels, minlength=classes)
    counts = _fill_empty(apportion(shares, sizes), shares)
    owner = np.full(len(labels), -1)
    for c, members in enumerate(np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])):
        members = rng.permutation(members)[: counts[:, c].sum()]
        owner[members] = np.repeat(np.arange(clients), counts[:, c])
    held = np.split(
        indices[np.argsort(owner, kind="stable")], np.cumsum(np.bincount(owner + 1, minlength=clients + 1))
    )
    return [np.sort(mine).astype(np.int64) for mine in held[1 : clients + 1]]
