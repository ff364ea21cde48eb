"""Which client holds which image: a share matrix, rounded to counts, dealt out as disjoint index arrays.

Every partitioner answers one question with a *share matrix* [clients, classes]: which part of each class does
each client get?  A column sums to 1, or to 0 for a class that nobody holds.  The training images are first
split into training and validation images (random, stratified by class); then training, validation and test
images are all dealt out with the *same* shares, so that a client is always tested on the kind of images it
was trained on.  Needs NumPy only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from pfl_lite.errors import InputError, unknown
from pfl_lite.files import write_npz
from pfl_lite.seeds import generator


@dataclass(frozen=True)
class ClientIndices:
    """The images of one client as sorted int64 indices.

    `train` and `val` index the training images of the data set, `test` its test images.
    """

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


class Partitioner(ABC):
    """Says which share of each class each client gets; one frozen dataclass a recipe, registered in
    `PARTITIONERS`.
    """

    usage: ClassVar[str]
    summary: ClassVar[str]

    @property
    @abstractmethod
    def spec(self) -> str:
        """The text that `parse` turns back into this partitioner."""

    @classmethod
    @abstractmethod
    def from_fields(cls, fields: list[str]) -> Partitioner:
        """Build the partitioner from the texts between the colons of a spec; raises InputError."""

    @abstractmethod
    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Draw the share matrix [clients, classes] for classes with `sizes` training images each.

        Raises InputError if the classes cannot be distributed that way.
        """


@dataclass(frozen=True)
class Iid(Partitioner):
    """Clients that are all alike.

    Every client gets 1/N of every class, so label distributions differ by rounding only. It is the setting
    where one global model is hard to beat, and the control of every experiment about personalisation.
    """

    usage: ClassVar[str] = "iid"
    summary: ClassVar[str] = "every client gets the same share of every class"

    @property
    def spec(self) -> str:
        return "iid"

    @classmethod
    def from_fields(cls, fields: list[str]) -> Iid:
        _expect(cls, fields, 0)
        return cls()

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        return np.full((clients, len(sizes)), 1 / clients)


@dataclass(frozen=True)
class Pairs(Partitioner):
    """Pairs of twin clients with two classes each (pFedMB, Table I: "five pairs").

    Clients 2p and 2p+1 hold classes 2p and 2p+1 and get one half of both, so the right groups are known
    beforehand and one can see whether a method finds them. There are as many clients as classes, and that
    number is even.
    """

    usage: ClassVar[str] = "pairs"
    summary: ClassVar[str] = (
        "clients 2p and 2p+1 share classes 2p and 2p+1 in equal halves (clients = classes)"
    )

    @property
    def spec(self) -> str:
        return "pairs"

    @classmethod
    def from_fields(cls, fields: list[str]) -> Pairs:
        _expect(cls, fields, 0)
        return cls()

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        classes = len(sizes)
        if classes % 2:
            raise InputError(
                f"partition 'pairs' needs an even number of classes, this data set has {classes}"
            )
        if clients != classes:
            raise InputError(f"partition 'pairs' needs as many clients as classes: {classes}, not {clients}")
        pair = np.arange(classes) // 2
        return 0.5 * (pair[:, None] == pair[None, :])


@dataclass(frozen=True)
class Classes(Partitioner):
    """k distinct classes a client, every (client, class) slot an equal share of the class (pFedMB, "random 2
    classes").

    Clients choose one after the other, each the k classes held least so far, ties at random; so the numbers
    of holders of two classes differ by one at most, and clients have equal sizes when N*k is a multiple of
    the number of classes. The recipe is pFedHN's, without its unused slots.
    """

    k: int

    usage: ClassVar[str] = "classes:K"
    summary: ClassVar[str] = "K distinct classes a client, balanced, equal shares (classes:2)"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"the number of classes a client must be at least 1, not {self.k}")

    @property
    def spec(self) -> str:
        return f"classes:{self.k}"

    @classmethod
    def from_fields(cls, fields: list[str]) -> Classes:
        _expect(cls, fields, 1)
        return cls(_whole(cls, fields[0]))

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        return _normalise(_balanced_choice(sizes, clients, self.k, rng).astype(float))


@dataclass(frozen=True)
class ClassShares(Partitioner):
    """k classes a client in unequal parts (pFedMB on CIFAR-100: `shares:20:0.3:0.7`).

    Classes are chosen as in `classes:k`; then every (client, class) slot draws u ~ U(a, b), and a client gets
    u divided by the sum of u over the holders of the class. Sizes differ between clients, moderately.
    """

    k: int
    low: float
    high: float

    usage: ClassVar[str] = "shares:K:A:B"
    summary: ClassVar[str] = "K classes a client, shares proportional to U(A, B) (shares:20:0.3:0.7)"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"the number of classes a client must be at least 1, not {self.k}")
        if not 0 < self.low <= self.high < math.inf:
            raise InputError(
                f"the bounds of shares:K:A:B must satisfy 0 < A <= B, not {self.low:g} and {self.high:g}"
            )

    @property
    def spec(self) -> str:
        return f"shares:{self.k}:{self.low:g}:{self.high:g}"

    @classmethod
    def from_fields(cls, fields: list[str]) -> ClassShares:
        _expect(cls, fields, 3)
        return cls(_whole(cls, fields[0]), _number(cls, fields[1]), _number(cls, fields[2]))

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        held = _balanced_choice(sizes, clients, self.k, rng)
        # Drawn relative to B: the ratio of two shares is all that matters, and huge bounds cannot overflow
        # the sum.
        return _normalise(held * rng.uniform(self.low / self.high, 1, held.shape))


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Each class dealt over the clients with Dirichlet proportions, concentration alpha (PFNM, MOON, pFedMB,
    PFL-MoE).

    Small alpha means few clients a class, large alpha is close to `iid`. As in PFNM's code a client that
    already holds its fair share of all images gets nothing of the following classes, and the draw is repeated
    until everybody has at least 10 training images. After 100 draws the last one is repaired instead: images
    move from the largest clients to those with fewer than 10, so that every alpha and every possible number
    of clients ends.
    """

    alpha: float

    usage: ClassVar[str] = "dirichlet:ALPHA"
    summary: ClassVar[str] = (
        "each class split over clients by Dirichlet(ALPHA), capped, at least 10 images each"
    )
    minimum: ClassVar[int] = 10
    draws: ClassVar[int] = 100

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise InputError(
                f"the concentration ALPHA of dirichlet:ALPHA must be above 0, not {self.alpha:g}"
            )

    @property
    def spec(self) -> str:
        return f"dirichlet:{self.alpha:g}"

    @classmethod
    def from_fields(cls, fields: list[str]) -> Dirichlet:
        _expect(cls, fields, 1)
        return cls(_number(cls, fields[0]))

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        if clients * self.minimum > sizes.sum():
            raise InputError(
                f"partition '{self.spec}' gives every client at least {self.minimum} training images: "
                f"{sizes.sum()} images are enough for {sizes.sum() // self.minimum} clients, not {clients}"
            )
        for _ in range(self.draws):
            shares = self._draw(sizes, clients, rng)
            counts = apportion(shares, sizes)
            if counts.sum(axis=1).min() >= self.minimum:
                return shares
        return _normalise(_top_up(counts, self.minimum).astype(float))

    def _draw(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        alpha = min(max(self.alpha, 1e-6), 1e6)  # beyond these the draw is its limit, and float64 gives out
        shares = np.zeros((clients, len(sizes)))
        held, surplus = np.zeros(clients, dtype=np.int64), np.zeros(clients)
        for c, size in enumerate(sizes):
            if size == 0:
                continue
            # PFNM draws for everybody, sets the full clients to zero and renormalises. The rest of a
            # renormalised Dirichlet vector is a Dirichlet vector: drawing for the open clients alone has the
            # same law and never divides 0 by 0.
            open_clients = np.flatnonzero(held < sizes.sum() / clients)
            shares[open_clients, c] = rng.dirichlet(np.full(len(open_clients), alpha))
            counts = _round_column(shares[:, c], int(size), surplus)
            held += counts
            surplus += counts - shares[:, c] * size
        return shares


PARTITIONERS: dict[str, type[Partitioner]] = {
    "iid": Iid,
    "pairs": Pairs,
    "classes": Classes,
    "dirichlet": Dirichlet,
    "shares": ClassShares,
}


def parse(spec: str) -> Partitioner:
    """Turn a spec (`iid`, `pairs`, `classes:2`, `dirichlet:0.4`, `shares:20:0.3:0.7`) into a partitioner.

    Raises InputError for an unknown name, a wrong number of fields or a value that is not a number or out of
    range.
    """
    name, *fields = str(spec).strip().split(":")
    if name not in PARTITIONERS:
        raise unknown("partition", name, PARTITIONERS)
    return PARTITIONERS[name].from_fields(fields)


def describe() -> list[tuple[str, str]]:
    """The ways to write a spec with one line each, for the command line's help."""
    return [(kind.usage, kind.summary) for kind in PARTITIONERS.values()]


class _Card(Protocol):
    @property
    def classes(self) -> tuple[str, ...]: ...


class Labelled(Protocol):
    """Anything with labels and a card that names the classes; `pfl_lite.data.images.Images` is one."""

    @property
    def train_labels(self) -> np.ndarray: ...
    @property
    def test_labels(self) -> np.ndarray: ...
    @property
    def card(self) -> _Card: ...


def partition(
    images: Labelled, spec: str | Partitioner, clients: int, seed: int, val_fraction: float = 0.2
) -> list[ClientIndices]:
    """Distribute a data set over clients: one `ClientIndices` a client, the same for the same arguments.

    Raises InputError if the spec is wrong or the data set cannot be cut that way.
    """
    classes = len(images.card.classes)
    return partition_labels(
        images.train_labels, images.test_labels, classes, spec, clients, seed, val_fraction
    )


def partition_labels(
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    classes: int,
    spec: str | Partitioner,
    clients: int,
    seed: int,
    val_fraction: float = 0.2,
) -> list[ClientIndices]:
    """`partition` for bare label arrays with labels 0 .. classes-1.

    Within a split every client's count of a class is its share of the class, rounded down or up; only a
    client whose images of a split would all be rounded away takes one from a holder of the same class, where
    possible.
    """
    partitioner = spec if isinstance(spec, Partitioner) else parse(spec)
    if clients < 1:
        raise InputError(f"the number of clients must be at least 1, not {clients}")
    if seed < 0:
        raise InputError(f"the seed must be 0 or more, not {seed}")
    if not 0 <= val_fraction < 1:
        raise InputError(f"the validation fraction must be in [0, 1), not {val_fraction:g}")
    train, val = split_validation(train_labels, val_fraction, seed)
    if clients > len(train):
        raise InputError(
            f"{clients} clients are too many for {len(train)} training images: use {len(train)} or fewer"
        )

    sizes = np.bincount(train_labels[train], minlength=classes)
    shares = partitioner.shares(sizes, clients, generator(seed, "shares"))
    rng = generator(seed, "deal")
    parts = [
        _deal(indices, labels, shares, rng)
        for indices, labels in (
            (train, train_labels[train]),
            (val, train_labels[val]),
            (np.arange(len(test_labels)), test_labels),
        )
    ]
    if any(len(part) == 0 for part in parts[0]):
        raise InputError(
            f"partition '{partitioner.spec}' leaves some of the {clients} clients without training images: "
            "use fewer clients"
        )
    return [ClientIndices(*client) for client in zip(*parts, strict=True)]


def split_validation(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split training images at random into (train, validation) indices, a `fraction` of each class."""
    rng = generator(seed, "validation split")
    held_out = np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == c))
        held_out[members[: min(round(fraction * len(members)), len(members) - 1)]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def apportion(shares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Round shares of classes with `sizes` images to counts, both [clients, classes], by largest remainders.

    The counts of a held class sum to its size. Of equal remainders the client that rounding has favoured
    least in the classes before is served first, so that the sizes of equal clients stay equal.
    """
    counts = np.zeros(shares.shape, dtype=np.int64)
    surplus = np.zeros(len(shares))
    for c, size in enumerate(sizes):
        counts[:, c] = _round_column(shares[:, c], int(size), surplus)
        surplus += counts[:, c] - shares[:, c] * size
    return counts


def class_counts(labels: np.ndarray, indices: list[np.ndarray], classes: int) -> np.ndarray:
    """Images of each class at each client: int64 [clients, classes]."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in indices])


def heterogeneity(counts: np.ndarray) -> dict[str, float]:
    """Measure how unlike the clients are, from their class counts [clients, classes].

    `label_distance`: mean total-variation distance between a client's label distribution and that of all
    images (0: alike, towards 1: disjoint); `effective_classes`: mean exp(entropy) of a client's labels;
    `size_ratio`: largest over smallest client; `size_gini`: Gini coefficient of the sizes (0: equal). Clients
    without images count for the sizes only.
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


def save_partition(path: str | Path, clients: list[ClientIndices]) -> None:
    """Write `train/0`, `val/0`, `test/0`, `train/1`, ... to an `.npz` file, atomically.

    Raises InputError if it cannot be written there.
    """
    splits = ("train", "val", "test")
    arrays = {f"{split}/{i}": getattr(client, split) for i, client in enumerate(clients) for split in splits}
    try:
        write_npz(Path(path), arrays)
    except OSError as error:
        raise InputError(f"cannot write the partition to {path}: {error.strerror or error}") from error


def _expect(kind: type[Partitioner], fields: list[str], number: int) -> None:
    if len(fields) != number:
        name = kind.usage.split(":")[0]
        raise InputError(f"partition '{':'.join([name, *fields])}' is not of the form {kind.usage}")


def _number(kind: type[Partitioner], text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"'{text}' is not a number (the partition is written {kind.usage})") from None


def _whole(kind: type[Partitioner], text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"'{text}' is not a whole number (the partition is written {kind.usage})") from None


def _balanced_choice(sizes: np.ndarray, clients: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """k distinct classes a client, as many holders for every class (give or take one): bool [clients,
    classes].
    """
    present = np.flatnonzero(sizes)
    if k > len(present):
        raise InputError(f"{k} classes a client are more than the {len(present)} classes of the data set")
    held = np.zeros((clients, len(sizes)), dtype=bool)
    holders = np.zeros(len(present), dtype=np.int64)
    for i in range(clients):
        # The k least held classes; a random order first makes the stable sort break ties at random.
        order = rng.permutation(len(present))
        chosen = order[np.argsort(holders[order], kind="stable")[:k]]
        holders[chosen] += 1
        held[i, present[chosen]] = True
    return held


def _normalise(weights: np.ndarray) -> np.ndarray:
    """Divide each column by its sum; a column of zeros stays."""
    total = weights.sum(axis=0)
    return weights / np.where(total > 0, total, 1)


def _round_column(shares: np.ndarray, size: int, surplus: np.ndarray) -> np.ndarray:
    """Largest remainders for one class; of equal ones a low `surplus` comes first, then a low index."""
    if not shares.any():
        return np.zeros(len(shares), dtype=np.int64)
    quota = shares * size
    counts = np.floor(quota + 1e-9).astype(np.int64)  # 0.1 * 30 must not lose an image to float rounding
    remainder = np.where(shares > 0, (quota - counts).round(9), -1)
    first = np.lexsort((surplus.round(9), -remainder))
    counts[first[: size - counts.sum()]] += 1
    return counts


def _top_up(counts: np.ndarray, minimum: int) -> np.ndarray:
    """Move images to clients with fewer than `minimum`, always from the largest client's largest class."""
    counts = counts.copy()
    sizes = counts.sum(axis=1)
    while sizes.min() < minimum:
        poor, rich = sizes.argmin(), sizes.argmax()
        c = counts[rich].argmax()
        moved = min(minimum - sizes[poor], sizes[rich] - minimum, counts[rich, c])
        counts[poor, c] += moved
        counts[rich, c] -= moved
        sizes = counts.sum(axis=1)
    return counts


def _fill_empty(counts: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Give clients without an image one of a class they hold, from the holder furthest above its share."""
    sizes = counts.sum(axis=0)
    for i in np.flatnonzero(counts.sum(axis=1) == 0):
        surplus = counts - shares * sizes
        able = (counts > 0) & (counts.sum(axis=1) > 1)[:, None] & (shares[i] > 0)
        if able.any():
            giver, c = np.unravel_index(np.where(able, surplus, -np.inf).argmax(), counts.shape)
            counts[giver, c] -= 1
            counts[i, c] += 1
    return counts


def _deal(
    indices: np.ndarray, labels: np.ndarray, shares: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Deal images out by shares: sorted int64 index arrays, one a client, disjoint."""
    clients, classes = shares.shape
    counts = _fill_empty(apportion(shares, np.bincount(labels, minlength=classes)), shares)
    owner = np.full(len(labels), -1)
    for c in range(classes):
        members = rng.permutation(np.flatnonzero(labels == c))[: counts[:, c].sum()]
        owner[members] = np.repeat(np.arange(clients), counts[:, c])
    return [np.sort(indices[owner == i]).astype(np.int64) for i in range(clients)]
