"""The recipes of a partition: which share of each class each client gets.

Every recipe answers one question with a *share matrix* [clients, classes].  A column sums to 1, to 0 for a class that
no client holds, or to less than 1 where images stay with none (`dirichlet_rounded`).  `writers` says it of writers
instead of classes, `groups` of groups of classes.  `pfl_lite.data.partition` deals images out by these shares.

Clients can differ in three ways, one recipe each with the truth known: in *what* they hold (label skew:
`blocks`, and at random `dirichlet`), in how it *looks* (feature shift: `writers`) and in what they *call* it (concept shift:
`concept`).  `groups` and `pachinko` are the label skews of FedEM's experiments.  Needs NumPy only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self, get_type_hints

import numpy as np

from pfl_lite.errors import InputError, one_of

# Superclass of every fine label of CIFAR-100, both in the (alphabetical) order of the published files: A. Krizhevsky
# (2009), Learning Multiple Layers of Features from Tiny Images, and the data set's page, https://www.cs.toronto.edu/~kriz/cifar.html
CIFAR100_COARSE = (
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7),
    *(6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10),
    *(16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16),
    *(12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
)


class Partitioner(ABC):
    """Says which share of each class each client gets; one frozen dataclass a recipe, registered in `PARTITIONERS`.

    A recipe `by` "writer" says it of writers instead of classes, and gives each of them to one client.
    """

    usage: ClassVar[str]
    summary: ClassVar[str]
    by: ClassVar[Literal["label", "writer"]] = "label"

    @property
    def spec(self) -> str:
        """The text that `parse` turns back into this partitioner."""
        values = (getattr(self, name) for name in self.kinds())
        return ":".join([self.word(), *(_text(value) for value in values if value is not None)])

    @classmethod
    def word(cls) -> str:
        """The word with which a spec begins."""
        return cls.usage.partition(":")[0]

    @classmethod
    def kinds(cls) -> dict[str, type]:
        """The kinds of the numbers that stand between the colons of a spec, in order, by the names of their fields."""
        known: dict[Any, type] = {int: int, float: float, int | None: int}
        return {name: known[hint] for name, hint in get_type_hints(cls).items() if hint in known}

    @classmethod
    def from_texts(cls, texts: list[str]) -> Self:
        """Build the partitioner from the texts between the colons of a spec; raises InputError."""
        kinds = cls.kinds()
        optional = sum(field.default is None for field in fields(cls) if field.name in kinds)  # type: ignore[arg-type]
        if not len(kinds) - optional <= len(texts) <= len(kinds):
            raise InputError(f"partition '{':'.join([cls.word(), *texts])}' is not of the form {cls.usage}")
        values = []
        for kind, text in zip(kinds.values(), texts, strict=False):
            try:
                values.append(kind(text))
            except ValueError:
                words = "a whole number" if kind is int else "a number"
                raise InputError(f"'{text}' is not {words} (the partition is written {cls.usage})") from None
        return cls(*values)

    @abstractmethod
    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Draw the share matrix [clients, classes] for classes with `sizes` training images each.

        Raises InputError if the classes cannot be distributed that way.
        """

    def piles(self, classes: int, rng: np.random.Generator) -> np.ndarray:
        """The pile of every class, int64 [classes]: classes of one pile are shuffled and dealt out as one class.

        `shares` then speaks of piles. By default every class is a pile of its own.
        """
        return np.arange(classes)

    def groups(self, clients: int) -> np.ndarray | None:
        """The true group of every client, int64 [clients], by which found clusters are judged; None: no groups."""
        return None

    def relabeling(self, clients: int, classes: int) -> np.ndarray | None:
        """The label under which every client sees every class, int64 [clients, classes]; None: as they are."""
        return None


@dataclass(frozen=True)
class Iid(Partitioner):
    """Clients that are all alike.

    Every client gets 1/N of every class, so label distributions differ by rounding only. It is the setting
    where one global model is hard to beat, and the control of every experiment about personalization.
    """

    usage = "iid"
    summary = "every client gets the same share of every class"

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        return np.full((clients, len(sizes)), 1 / clients)


@dataclass(frozen=True)
class Pairs(Partitioner):
    """Pairs of twin clients with two classes each (pFedMB, Table I: "five pairs").

    Clients 2p and 2p+1 hold classes 2p and 2p+1 and get one half of both, so the right groups are known beforehand and one can
    see whether a method finds them. There are as many clients as classes, and that number is even.
    """

    usage = "pairs"
    summary = "clients 2p and 2p+1 share classes 2p and 2p+1 in equal halves (clients = classes)"

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        classes = len(sizes)
        if classes % 2:
            raise InputError(
                f"partition 'pairs' needs an even number of classes, this data set has {classes}"
            )
        if clients != classes:
            raise InputError(f"partition 'pairs' needs as many clients as classes: {classes}, not {clients}")
        return Blocks(classes // 2).shares(sizes, clients, rng)

    def groups(self, clients: int) -> np.ndarray:
        return _consecutive(clients, clients // 2)


@dataclass(frozen=True)
class Classes(Partitioner):
    """k distinct classes per client, every (client, class) slot an equal share of the class (pFedMB, "random 2 classes").

    Clients choose one after the other, each the k classes held least so far, ties at random; so the numbers
    of holders of two classes differ by one at most, and clients have equal sizes when N*k is a multiple of
    the number of classes. The recipe is pFedHN's, without its unused slots.
    """

    k: int

    usage = "classes:K"
    summary = "K distinct classes per client, balanced, equal shares (classes:2)"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"the number of classes per client must be at least 1, not {self.k}")

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        return _normalize(_balanced_choice(sizes, clients, self.k, rng).astype(float))


@dataclass(frozen=True)
class ClassShares(Classes):
    """k classes per client in unequal parts (pFedMB on CIFAR-100: `shares:20:0.3:0.7`).

    Classes are chosen as in `classes:k`; then every (client, class) slot draws u ~ U(a, b), and a client gets
    u divided by the sum of u over the holders of the class. Sizes differ between clients, moderately.
    """

    low: float
    high: float

    usage = "shares:K:A:B"
    summary = "K classes per client, shares proportional to U(A, B) (shares:20:0.3:0.7)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.low <= self.high < math.inf:
            raise InputError(
                f"the bounds of shares:K:A:B must satisfy 0 < A <= B, not {self.low:g} and {self.high:g}"
            )

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        held = _balanced_choice(sizes, clients, self.k, rng)
        # Drawn relative to B: the ratio of two shares is all that matters, and huge bounds cannot overflow
        # the sum.
        return _normalize(held * rng.uniform(self.low / self.high, 1, held.shape))


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Each class dealt over the clients with Dirichlet proportions, concentration alpha (PFNM, MOON, pFedMB, PFL-MoE).

    Small alpha means few clients a class, large alpha is close to `iid`. As in PFNM's code a client that already holds its fair
    share of all images gets nothing of the following classes, and the draw is repeated until every client has at least 10
    training images. After 100 draws the last one is repaired instead: images move from the largest clients to those with fewer
    than 10, so that every alpha and every possible number of clients ends.
    """

    alpha: float

    usage = "dirichlet:ALPHA"
    summary = "each class split over clients by Dirichlet(ALPHA), capped, at least 10 images each"
    minimum: ClassVar[int] = 10
    draws: ClassVar[int] = 100

    def __post_init__(self) -> None:
        _check_concentration(self.usage, ALPHA=self.alpha)

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
        return _normalize(_top_up(counts, self.minimum).astype(float))

    def _draw(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        shares = np.zeros((clients, len(sizes)))
        held, surplus = np.zeros(clients, dtype=np.int64), np.zeros(clients)
        for c, size in enumerate(sizes):
            if size == 0:
                continue
            # PFNM draws for all clients, sets the full clients to zero and renormalizes. The rest of a
            # renormalized Dirichlet vector is a Dirichlet vector: drawing for the open clients alone has the
            # same law and never divides 0 by 0.
            open_clients = np.flatnonzero(held < sizes.sum() / clients)
            shares[open_clients, c] = _dirichlet(self.alpha, len(open_clients), rng)
            counts = _round_column(shares[:, c], int(size), surplus)
            held += counts
            surplus += counts - shares[:, c] * size
        return shares


@dataclass(frozen=True)
class DirichletRounded(Dirichlet):
    """Each class dealt over the clients with rounded Dirichlet proportions, nothing evened out (PFL-MoE's code).

    Client after client takes round(class size * p_i) of the images that are left: the last may find fewer, and a few images of a
    class may stay with no client. Clients differ more in size than those of `dirichlet`, and none is promised ten images.
    """

    usage = "dirichlet_rounded:ALPHA"
    summary = "each class split over clients by Dirichlet(ALPHA), rounded, some images left over"

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        shares = np.zeros((clients, len(sizes)))
        for c in np.flatnonzero(sizes):
            counts = np.rint(sizes[c] * _dirichlet(self.alpha, clients, rng))
            shares[:, c] = np.diff(counts.cumsum().clip(max=sizes[c]), prepend=0) / sizes[c]
        return shares


@dataclass(frozen=True)
class LabelGroups(Partitioner):
    """Label skew in groups of classes (FedEM on CIFAR-10: `groups:3:0.4`; on EMNIST, every class alone: `groups:62:0.4`).

    The classes are shuffled and cut into G groups whose sizes differ by one at most. Of every group the clients get numbers of
    images ~ Multinomial(size of the group, w) with w ~ Dir_N(ALPHA), and the images of a group are shuffled: so all classes of a
    group have the same expected share at a client. FedEM's code leaves out clients without an image and cannot cut a single one;
    here numbers are drawn again until every client has two, 100 times at most, and InputError is raised after that.
    """

    count: int
    alpha: float

    usage = "groups:G:ALPHA"
    summary = "G random groups of classes, each split over clients by Dirichlet(ALPHA) (groups:3:0.4)"
    minimum: ClassVar[int] = 2
    draws: ClassVar[int] = 100

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"the number of groups G of {self.usage} must be at least 1, not {self.count}")
        _check_concentration(self.usage, ALPHA=self.alpha)

    def piles(self, classes: int, rng: np.random.Generator) -> np.ndarray:
        return _class_groups(self.spec, self.count, classes)[rng.permutation(classes)]

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        counts = np.zeros((clients, len(sizes)), dtype=np.int64)
        for _ in range(self.draws):
            for g in np.flatnonzero(sizes):
                counts[:, g] = rng.multinomial(sizes[g], _dirichlet(self.alpha, clients, rng))
            if counts.sum(axis=1).min() >= self.minimum:
                return _normalize(counts.astype(float))
        raise InputError(
            f"partition '{self.spec}' left some of the {clients} clients with fewer than {self.minimum} images in all "
            f"{self.draws} draws: use fewer clients, more groups or a larger ALPHA"
        )


@dataclass(frozen=True)
class Pachinko(Partitioner):
    """Label skew in a hierarchy of labels, "pachinko allocation" (FedEM on CIFAR-100: `pachinko:0.4:10`).

    A client draws q ~ Dir(ALPHA) over the superclasses and, for every superclass, r ~ Dir(BETA) over its classes.
    It then draws its images one by one without replacement: a superclass by q, a class of it by r, an image of
    that class. A class that is used up leaves r, a superclass that is used up leaves q, and the rest is
    normalized again. One client after the other draws an equal part of all images, give or take one (FedEM's
    code leaves the remainder of the division out). S. Reddi et al. (2021), arXiv:2003.00295.

    `coarse` is the superclass 0, 1, ... of every class: CIFAR-100's, unless a data set of one's own has another.
    """

    alpha: float
    beta: float
    coarse: tuple[int, ...] = CIFAR100_COARSE

    usage = "pachinko:ALPHA:BETA"
    summary = "superclasses by Dirichlet(ALPHA), classes of each by Dirichlet(BETA) (cifar100)"

    def __post_init__(self) -> None:
        _check_concentration(self.usage, ALPHA=self.alpha, BETA=self.beta)

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        if len(self.coarse) != len(sizes):
            raise InputError(
                f"partition '{self.spec}' needs superclasses of {len(self.coarse)} classes (those of cifar100), this "
                f"data set has {len(sizes)} classes: use groups:G:ALPHA or dirichlet:ALPHA for it"
            )
        coarse = np.array(self.coarse)
        members = [np.flatnonzero(coarse == k) for k in range(coarse.max() + 1)]
        goals = np.diff(np.arange(clients + 1) * sizes.sum() // clients)
        counts, left = np.zeros((clients, len(sizes)), dtype=np.int64), sizes.copy()
        for i, goal in enumerate(goals):
            upper, lower = _dirichlet(self.alpha, len(members), rng), np.empty(len(sizes))
            for of in members:
                lower[of] = _dirichlet(self.beta, len(of), rng)
            while (wanted := goal - counts[i].sum()) > 0:
                chances = np.zeros(len(sizes))
                for k, q in enumerate(_among(upper, np.array([left[of].any() for of in members]))):
                    if q > 0:
                        chances[members[k]] = q * _among(lower[members[k]], left[members[k]] > 0)
                # Chances stay as they are until a class is used up: all draws up to there are made at once.
                drawn = _until_used_up(rng.choice(len(sizes), wanted, p=chances), left)
                counts[i] += drawn
                left -= drawn
        return _normalize(counts.astype(float))


@dataclass(frozen=True)
class _Grouped(Partitioner):
    """G groups of clients with consecutive numbers, sizes differing by one at most: client i of N is in group i*G // N."""

    count: int

    least: ClassVar[int]

    def __post_init__(self) -> None:
        if self.count < self.least:
            raise InputError(
                f"the number of groups G of {self.usage} must be at least {self.least}, not {self.count}"
            )

    def groups(self, clients: int) -> np.ndarray:
        if self.count > clients:
            raise InputError(
                f"partition '{self.spec}' makes {self.count} groups: "
                f"use {self.count} clients or more, not {clients}"
            )
        return _consecutive(clients, self.count)


@dataclass(frozen=True)
class Blocks(_Grouped):
    """Label skew in known groups: group g of the clients shares block g of the classes in equal parts.

    Classes, like clients, are cut into G blocks of consecutive numbers whose sizes differ by one at most.
    Clients of one group are alike and clients of two groups have nothing in common, so the right clusters are
    known. `pairs` is the case of groups of two clients with two classes, `blocks:1` is `iid`.
    """

    usage = "blocks:G"
    summary = "G groups of clients, each with its own block of classes, in equal parts"
    least = 1

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        group, block = self.groups(clients), _class_groups(self.spec, self.count, len(sizes))
        return _normalize((group[:, None] == block[None, :]).astype(float))


@dataclass(frozen=True)
class Concept(_Grouped):
    """Concept shift: images are dealt out as by `iid`, but G groups of clients call the classes differently.

    A client of group g sees every label y as (y + g*s) mod K, with s = K // G; so group 0 sees the data set's
    own labels, and two groups contradict each other in every class. Images and counts of labels say nothing
    of the groups, and no single model can be right for two of them.
    """

    usage = "concept:G"
    summary = "iid images; each of G groups of clients sees the labels shifted its own way"
    least = 2

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        self.relabeling(clients, len(sizes))  # says what is wrong, if anything is
        return Iid().shares(sizes, clients, rng)

    def relabeling(self, clients: int, classes: int) -> np.ndarray:
        group = self.groups(clients)
        _class_groups(self.spec, self.count, classes)  # G <= K: the shifts 0, s, ..., (G-1)*s differ modulo K
        return (np.arange(classes)[None, :] + (classes // self.count) * group[:, None]) % classes


@dataclass(frozen=True)
class Writers(Partitioner):
    """Feature shift: every client gets all images of its writers, who are no other client's.

    `writers` shares all writers out, as many a client as the others give or take one; `writers:K` draws K writers
    a client, and the images of the other writers stay unused (FedEM on FEMNIST: `writers:1`, as many clients as
    15% of the writers). The seed says who gets whom. Every client holds every class, but it looks different.
    Validation images are the same part of every client's training images, spread over its classes; test images
    are by the client's own writers, too. Needs a data set that says who wrote what.
    """

    k: int | None = None

    usage = "writers:K"
    summary = "the images of K writers per client; without :K, of all writers (glyphs, glyphs10, femnist)"
    by: ClassVar[Literal["label", "writer"]] = "writer"

    def __post_init__(self) -> None:
        if self.k is not None and self.k < 1:
            raise InputError(f"the number of writers per client must be at least 1, not {self.k}")

    def shares(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        present, least = np.flatnonzero(sizes), self.k or 1
        if clients * least > len(present):
            enough = len(present) // least
            advice = (
                f"use {enough} clients or fewer, not {clients}" if enough else "use fewer writers per client"
            )
            raise InputError(
                f"partition '{self.spec}' needs {clients * least} writers for {clients} clients, this data set has "
                f"{len(present)}: {advice}"
            )
        drawn = rng.permutation(present)[: clients * self.k if self.k else None]
        shares = np.zeros((clients, len(sizes)))
        shares[_consecutive(len(drawn), clients), drawn] = 1
        return shares


PARTITIONERS: dict[str, type[Partitioner]] = {
    recipe.word(): recipe
    for recipe in (
        *(Iid, Pairs, Classes, Dirichlet, DirichletRounded, ClassShares, LabelGroups, Pachinko),
        *(Blocks, Concept, Writers),
    )
}


def parse(spec: str) -> Partitioner:
    """Turn a spec (`iid`, `pairs`, `classes:2`, `dirichlet:0.4`, `shares:20:0.3:0.7`, `groups:3:0.4`,
    `pachinko:0.4:10`, `blocks:3`, `concept:2`, `writers`, `writers:1`) into a partitioner.

    Raises InputError for an unknown name, a wrong number of fields or a value that is not a number or out of range.
    """
    if not isinstance(spec, str):
        raise InputError(
            f"a partition is written as text, e.g. 'dirichlet:0.4', not {type(spec).__name__}: for clients of your own "
            "use Federation.build(images, [ClientIndices(train, val, test), ...])"
        )
    name, *texts = spec.strip().split(":")
    return PARTITIONERS[one_of("partition", name, PARTITIONERS)].from_texts(texts)


def apportion(shares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Round shares of classes with `sizes` images to counts, both [clients, classes], by largest remainders.

    The counts of a held class sum to its size. Of equal remainders the client that rounding has favored
    least in the classes before is served first, so that the sizes of equal clients stay equal.
    """
    counts = np.zeros(shares.shape, dtype=np.int64)
    surplus = np.zeros(len(shares))
    for c, size in enumerate(sizes):
        counts[:, c] = _round_column(shares[:, c], int(size), surplus)
        surplus += counts[:, c] - shares[:, c] * size
    return counts


def _class_groups(spec: str, count: int, classes: int) -> np.ndarray:
    """The group of every class, int64 [classes], by `_consecutive`; raises InputError for more groups than classes."""
    if count > classes:
        raise InputError(
            f"partition '{spec}' makes {count} groups: use {classes} or fewer, this data set has {classes} classes"
        )
    return _consecutive(classes, count)


def _check_concentration(usage: str, **values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InputError(
                f"the concentration {name} of {usage} must be above 0{' and finite' * (value == math.inf)}, not {value:g}"
            )


def _text(value: float) -> str:
    """The shortest text that reads back as this number: short as `0.4`, or with all its digits."""
    short = str(value) if isinstance(value, int) else f"{value:g}"
    return short if float(short) == value else repr(float(value))


def _balanced_choice(sizes: np.ndarray, clients: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """k distinct classes per client, as many holders for every class (give or take one): bool [clients, classes]."""
    present = np.flatnonzero(sizes)
    if k > len(present):
        raise InputError(f"{k} classes per client are more than the {len(present)} classes of the data set")
    held = np.zeros((clients, len(sizes)), dtype=bool)
    holders = np.zeros(len(present), dtype=np.int64)
    for i in range(clients):
        # The k least held classes; a random order first makes the stable sort break ties at random.
        order = rng.permutation(len(present))
        chosen = order[np.argsort(holders[order], kind="stable")[:k]]
        holders[chosen] += 1
        held[i, present[chosen]] = True
    return held


def _consecutive(n: int, groups: int) -> np.ndarray:
    """Cut 0 .. n-1 into groups of consecutive numbers, sizes differing by one at most: the group of each."""
    return np.arange(n) * groups // n


def _dirichlet(alpha: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """One draw of the symmetric Dirichlet distribution of n numbers, for every alpha above 0."""
    alpha = min(max(alpha, 1e-6), 1e6)  # beyond these the draw is its limit, and float64 gives out
    return rng.dirichlet(np.full(n, alpha))


def _among(weights: np.ndarray, able: np.ndarray) -> np.ndarray:
    """Weights of the able, normalized; where these are all 0 (they were too small for a float) they are equal."""
    left = weights * able
    left = left if left.any() else able.astype(float)
    return left / left.sum()


def _until_used_up(drawn: np.ndarray, left: np.ndarray) -> np.ndarray:
    """How often each class comes up to and with the draw that uses up the first one: int64 [classes]; `drawn` are
    classes one after the other, `left` [classes] the images there still are.
    """
    counts = np.bincount(drawn, minlength=len(left))
    places = np.split(np.argsort(drawn, kind="stable"), np.cumsum(counts)[:-1])  # of each class, in order
    ends = [places[c][left[c] - 1] for c in np.flatnonzero((counts >= left) & (counts > 0))]
    return np.bincount(drawn[: min(ends, default=len(drawn)) + 1], minlength=len(left))


def _normalize(weights: np.ndarray) -> np.ndarray:
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
    # shares that sum to less than 1 leave images over
    counts[first[: round(quota.sum()) - counts.sum()]] += 1
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
