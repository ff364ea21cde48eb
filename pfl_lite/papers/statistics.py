"""The statistics under tables and verdicts: intervals over clients and seeds, corrected families of tests, ranks, agreement.

Every test here is held by simulation (`tests/test_statistics.py`): what it says where nothing is true, and whether it sees an
effect that is planted.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

Array = np.ndarray
LEVEL = 0.95
ONE_SIDED = (1 - LEVEL) / 2
DRAWS = 10_000


class Estimate(NamedTuple):
    """A mean with its standard error and degrees of freedom; infinite errors where nothing tells them."""

    value: float
    se: float
    df: float

    @property
    def interval(self) -> tuple[float, float]:
        """The t interval at 95%."""
        if not np.isfinite(self.se):
            return -np.inf, np.inf
        half = self.se * float(stats.t.ppf(1 - ONE_SIDED, self.df))
        return self.value - half, self.value + half

    def p_above(self, bound: float = 0.0) -> float:
        """One-sided p-value of "the mean is above the bound": how often chance alone would put it so high."""
        if self.se == 0:
            return float(self.value <= bound)
        return float(stats.t.sf((self.value - bound) / self.se, self.df)) if np.isfinite(self.se) else 1.0

    def p_below(self, bound: float = 0.0) -> float:
        """One-sided p-value of "the mean is below the bound"."""
        return Estimate(-self.value, self.se, self.df).p_above(-bound)


def two_way(difference: Array) -> Estimate:
    """The mean of differences [seeds, clients] whose error comes from seeds and from clients.

    An analysis of variance with both as random effects: the variance of the mean is (MS_seeds + MS_clients - MS_rest) / (S C),
    never less than what seeds alone or clients alone tell. Its degrees of freedom are those of the seeds, S - 1, however much the
    clients tell: with two or three seeds an estimate of their number (Satterthwaite's) errs too often. With one seed only clients
    tell anything; a single number has an infinite error.
    """
    values = np.asarray(difference, dtype=float)
    if not values.size:
        return Estimate(np.nan, np.inf, 1)
    seeds, clients = values.shape
    rows, columns, mean = values.mean(1), values.mean(0), float(values.mean())
    squares = [
        many * float(means.var(ddof=1)) if len(means) > 1 else 0.0
        for many, means in ((clients, rows), (seeds, columns))
    ]
    both = seeds > 1 and clients > 1
    rest = (
        float(((values - rows[:, None] - columns + mean) ** 2).sum()) / ((seeds - 1) * (clients - 1))
        if both
        else 0.0
    )
    df = seeds - 1 or clients - 1
    return Estimate(
        mean, float(np.sqrt(max(sum(squares) - rest, *squares) / values.size)) if df else np.inf, df or 1
    )


ONE_SEED, ONE_SEED_CLIENTS = 1.33, 15
"""In the pilot's columns with three seeds, paired differences scatter from seed to seed by up to so many times what the clients
of a single seed tell (root mean squares; Dirichlet's labels, 15 clients). In the long columns it is 1.34, 1.83 and 2.03, where
`widening` gives 1.33, 1.9 and 1.9. It is no upper bound: in the last of them (Dirichlet's labels, 50 clients) it is 4.0 for the
pairs with pFedMB, and where single runs collapse (`when-feature-shift`) it is far more."""


def widening(clients: int) -> float:
    """By how much the error of one seed with so many clients is widened.

    What a seed does to all of its clients alike does not average out over them, while what clients tell does: if it is as large
    as in the column that shows most of it, the factor is 1.33 for 15 clients, 1.9 for 50 and 2.5 for 100.
    """
    return float(np.sqrt(1 + clients * (ONE_SEED**2 - 1) / ONE_SEED_CLIENTS))


def resampled(values: Array, draws: int = DRAWS) -> Array:
    """Means [draws, ...] of values [seeds, clients, ...], with seeds and clients drawn anew independently of each other.

    Those of one seed are moved away from their mean as `widening` says.
    """
    random = np.random.default_rng(0)
    seeds, clients = values.shape[:2]
    s = random.integers(seeds, size=(draws, seeds, 1))
    c = random.integers(clients, size=(draws, 1, clients))
    means = np.asarray(np.nanmean(values[s, c], axis=(1, 2)))
    if seeds > 1:
        return means
    middle = np.nanmean(values, axis=(0, 1))
    return np.asarray(middle + widening(clients) * (means - middle))


def combined(parts: Sequence[Estimate]) -> Estimate:
    """The sum of independent estimates, with the fewest degrees of freedom among them."""
    se = float(np.sqrt(sum(one.se**2 for one in parts)))
    return Estimate(sum(one.value for one in parts), se, min(one.df for one in parts))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the given order: each is below a level only if the whole family's errors stay below it."""
    adjusted, worst = [1.0] * len(p), 0.0
    for place, i in enumerate(np.argsort(p, kind="stable")):
        worst = max(worst, min(1.0, (len(p) - place) * p[i]))
        adjusted[int(i)] = worst
    return adjusted


def verdict(parts: Sequence[Estimate], level: float, planned: int = 0) -> str:
    """What becomes of "every part is above 0".

    Held if each is (a test of all needs no correction: it errs only where each errs); failed if any is below, after Holm's
    correction for having looked at all of them, or at as many as are `planned`; else undecided.
    """
    if all(part.p_above() < level for part in parts):
        return "held"
    against = holm([part.p_below() for part in parts] + [1.0] * (planned - len(parts)))
    return "failed" if min(against) < level else "undecided"


def ranks(scores: Array) -> Array:
    """Rank of every method, 1 for the best, from scores [..., methods]; equal ones share their places' mean, NaN is last."""
    return np.asarray(stats.rankdata(-np.nan_to_num(scores, nan=-np.inf), axis=-1))


class RankTest(NamedTuple):
    """Mean ranks [methods] over settings, a method's lead over the best rival, p-values of its being best and being beaten."""

    mean: Array
    lead: float
    p_best: float
    p_beaten: float

    def verdict(self, level: float) -> str:
        """Whether the method has the best mean rank: held, failed, or undecided where equal methods would often come out so."""
        return "held" if self.p_best < level else "failed" if self.p_beaten < level else "undecided"


def best_rank(
    scores: Array, method: int, draws: int = 200_000, blocks: Sequence[str] | None = None
) -> RankTest:
    """Test whether a method has the best mean rank, from scores [settings, methods].

    It is best if it is ahead of every rival: each is tested by exchanging the two methods' ranks in every combination of settings
    (exact sign flips), and `p_best` is the largest of these p-values, so that no correction is needed. It is beaten if the best
    rival is further ahead than chance explains where all methods are equal: then any order in a setting is as likely as any
    other, and `p_beaten` says how often shuffled ranks put the best of so many rivals so far ahead. With 200,000 draws a p-value
    of 0.025 has an error of 0.0004. Settings of one block (`blocks`: its name, for each setting), such as those with one search,
    are no independent evidence: they are exchanged and shuffled together. So a method that is ahead everywhere has a `p_best` of
    1 / 2^blocks.
    """
    placed = ranks(scores)  # [settings, methods]
    names = np.array(range(len(placed)) if blocks is None else blocks)
    summed = np.array([placed[names == name].sum(0) for name in dict.fromkeys(names)])  # [blocks, methods]
    # [blocks, rivals], above 0 where the method is ahead
    behind = np.delete(summed, method, 1) - summed[:, [method]]
    flips = np.array(list(itertools.product((1, -1), repeat=len(summed))))  # [2^blocks, blocks]
    p_each = (flips @ behind >= behind.sum(0) - 1e-9).mean(0)
    random = np.random.default_rng(0)
    # [draws, methods]
    shuffled = random.permuted(np.broadcast_to(summed, (draws, *summed.shape)), axis=-1).sum(1) / len(placed)
    lead, chance = (np.delete(x, method, -1).min(-1) - x[..., method] for x in (placed.mean(0), shuffled))
    # the observed order is one of the possible ones
    p_beaten = (1 + (chance <= lead + 1e-9).sum()) / (1 + draws)
    return RankTest(placed.mean(0), float(lead), float(p_each.max()), float(p_beaten))


class Agreement(NamedTuple):
    """How a table's order and level agree with the paper's: Kendall's tau with its 95% interval, and the mean absolute gap."""

    tau: float
    interval: tuple[float, float]
    gap: float


def agreement(paper: Array, ours: Array, draws: int = 2000) -> Agreement:
    """Kendall's tau between printed numbers [methods] and ours [seeds, clients, methods] in percent.

    The interval comes from drawing seeds and clients anew, the same for all methods: it says how far the order of ours is
    known. The gap is the mean over methods of |ours - paper|.
    """
    means = np.nanmean(ours, axis=(0, 1))
    taus = kendall(paper, resampled(ours, draws))
    low, high = np.quantile(taus, [ONE_SIDED, 1 - ONE_SIDED])
    gap = float(np.abs(means - paper).mean())
    return Agreement(float(kendall(paper, means)), (float(low), float(high)), gap)


def settling(curves: Array, draws: int = 1000) -> tuple[Array, Array]:
    """Kendall's tau [rounds] between the order of methods at each round and at the last, with its 95% interval [2, rounds].

    From scores [seeds, clients, rounds, methods]. Seeds and clients are drawn anew, the same ones for both orders: the interval
    says how far these runs know the tau. At the last round it is 1 by definition.
    """
    means = np.concatenate([np.nanmean(curves, axis=(0, 1))[None], resampled(curves, draws)])
    taus = kendall(means[:, -1:], means)  # [1 + draws, rounds]
    return taus[0], np.quantile(taus[1:], [ONE_SIDED, 1 - ONE_SIDED], axis=0)


def kendall(a: Array, b: Array) -> Array:
    """Kendall's tau-b of orders [..., n] with others [..., n]: 1 if they are the same, -1 if reversed; ties count for neither."""
    upper = np.triu_indices(a.shape[-1], 1)
    x, y = (np.sign(one[..., :, None] - one[..., None, :])[..., upper[0], upper[1]] for one in (a, b))
    scale = np.sqrt(np.count_nonzero(x, axis=-1) * np.count_nonzero(y, axis=-1))
    return np.asarray((x * y).sum(-1) / np.maximum(scale, 1))
