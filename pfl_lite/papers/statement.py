"""A claim of a paper and what decides it: runs, by tests of differences or agreement of seeds; its sentences and its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from pfl_lite.errors import InputError
from pfl_lite.papers.experiment import paper_tables
from pfl_lite.papers.statistics import ONE_SIDED, Array, Estimate, combined, holm, two_way, verdict, widening

Run = dict[str, Any]  # a result as its file in the ledger holds it
# Arm -> its runs; but for claims `of_links` the same seeds in the same order for every arm.
Runs = dict[str, list[Run]]


@dataclass(frozen=True)
class ClaimResult:
    """What became of a claim; `value`, `se`, `interval` (95%) and `threshold` have the statistic's unit."""

    statistic: str
    verdict: str  # "held", "failed" or "undecided"
    value: float | None = None
    se: float | None = None
    interval: tuple[float, float] | None = None
    threshold: float | None = None
    note: str = ""
    id: str = ""
    experiment: str = ""
    text: str = ""
    seeds: int = 0
    """The fewest seeds of a comparison that it rests on; of a failed claim, of those that fail."""
    budget: str = ""
    """How long its runs were trained: `30 rounds`, `10 to 30 rounds` or `convergence`."""

    @property
    def kind(self) -> str:
        """The verdict, with a word of warning where it rests on one seed, whose interval knows clients alone."""
        return f"{self.verdict} (1 seed)" if self.seeds == 1 and self.verdict != "undecided" else self.verdict

    @property
    def says(self) -> str:
        """The verdict as it may be quoted: with the budget of its runs."""
        at = f" at {self.budget}" if self.budget and self.verdict != "undecided" else ""
        return self.kind.replace(self.verdict, f"{self.verdict}{at}", 1)


# Where a paper says what; what must hold in its own printed numbers (all of it: yes, some: partly, none: no); these numbers.
Sentence = tuple[str, str, pd.Series, str]


@dataclass(frozen=True)
class Claim:
    """What a paper says, and what tests it on runs of the ledger."""

    id: str
    experiment: str
    """The experiment, or the group, that it is about."""
    text: str
    needs: dict[str, tuple[str, ...]]
    """Experiment -> arms (keys) whose complete runs it needs."""
    test: Callable[[dict[str, Runs], float], ClaimResult]
    """From experiment -> arm -> runs, and the level at which a p-value decides."""
    of_links: bool = False
    """The test takes all runs that are there and pairs the seeds of each comparison itself; else it needs all arms of an
    experiment and is given the seeds that all of them have."""


LOOKS = (1, 2, 3, 5)  # seeds that an estimate is told of; two never decide
LOOKED_AT_TWICE = 0.014
"""The one-sided level where five seeds are planned: looks after three and after five then err in 2.5% together."""
TWO_SEEDS = "two seeds never decide: each look gives luck a chance"
FOUR_SEEDS = "of four seeds the first three decide, until there are five"


def looked_at(seeds: int) -> int:
    """How many of so many seeds decide: a look after each new one would give luck more chances than the planned looks."""
    return max((look for look in LOOKS if look <= seeds), default=0)


def level_of(planned: int) -> float:
    """The one-sided level of each look where so many seeds are planned."""
    return LOOKED_AT_TWICE if planned >= LOOKS[-1] else ONE_SIDED


def p_note(p: float, level: float) -> list[str]:
    """A p-value, if it would decide where there is one look."""
    looks = f", where {level} decides, as there are looks at three and at five seeds" if p >= level else ""
    return [f"p = {p:.2g}{looks}"] if p < ONE_SIDED else []


def outcome(statistic: str, one: Estimate, level: float, note: str = "", decided: str = "") -> ClaimResult:
    """What an estimate says of "it is above 0", without error where nothing tells one; `decided`: by more than it."""
    known = bool(np.isfinite(one.se))
    if not decided:
        decided, p = verdict([one], level), min(one.p_above(), one.p_below())
        note = "; ".join([note] * bool(note) + p_note(p, level) * (p >= level))
    se, interval = (one.se, one.interval) if known else (None, None)
    return ClaimResult(statistic, decided, one.value, se, interval, 0.0, note)


class NotTestable(Exception):
    """The runs are there but lack what a claim needs; the message says what."""


CLAIMS: dict[str, Claim] = {}
"""All of them, by name."""


def claim(
    id: str, experiment: str, needs: Sequence[str] | dict[str, tuple[str, ...]], text: str
) -> Callable[[Callable[..., ClaimResult]], Callable[..., ClaimResult]]:
    """Register the function below as the test of a claim on the runs of some arms, or of the experiments that `needs` names.

    It is given the runs and the level at which a p-value decides.
    """
    several = needs if isinstance(needs, dict) else {experiment: tuple(needs)}

    def register(test: Callable[..., ClaimResult]) -> Callable[..., ClaimResult]:
        of_all = test if several is needs else lambda runs, level: test(runs[experiment], level)
        assert id not in CLAIMS, f"two claims are called {id}"
        CLAIMS[id] = Claim(id, experiment, text, several, of_all)
        return test

    return register


def per_client(runs: Sequence[Run], measure: str = "test_accuracy", part: str = "final") -> Array:
    """A measure of every client in percent, [seeds, clients], of `final` or `final_before_ft`: test accuracy, or one on all
    test images."""
    if any(not run.get(part) for run in runs):
        raise NotTestable(f"the runs have no '{part}': they were made without fine-tuning")
    name = measure if measure == "test_accuracy" else f"{measure}_clients"
    if any(name not in run[part] for run in runs):
        raise NotTestable(f"the runs kept no {measure} of each client")
    return 100 * np.array([run[part][name] for run in runs], dtype=float)


def by_seed(holds: Sequence[bool]) -> str:
    """Held if it is so in every seed, failed if in none, else undecided."""
    return "held" if all(holds) else "undecided" if any(holds) else "failed"


def seeds_of_all(rows: Iterable[Sequence[Run]]) -> list[int]:
    """The seeds that the runs of each of some rows have; none of no rows."""
    seeds = [{int(run["seed"]) for run in runs} for runs in rows]
    return sorted(set.intersection(*seeds)) if seeds else []


def with_seeds(runs: Sequence[Run], seeds: Sequence[int]) -> list[Run]:
    """The runs with some seeds, in the seeds' order."""
    by_seed = {int(run["seed"]): run for run in runs}
    return [by_seed[seed] for seed in seeds]


def by_unit(difference: Array, run: Run) -> Array:
    """Differences [seeds, clients] of runs like this one as [seeds, units]: twins of the partition `pairs` count as one.

    They hold the same classes, and methods that find the pairs train them on one model: what a run does to one of them it does to
    the other.
    """
    twins = run["config"].get("partition") == "pairs"
    return difference.reshape(len(difference), -1, 2).mean(-1) if twins else difference


def estimate(difference: Array) -> Estimate:
    """The mean of paired differences [seeds, clients] with its error, which a single seed shows only in part."""
    found, (seeds, clients) = two_way(difference), difference.shape
    return found if seeds > 1 else found._replace(se=widening(clients) * found.se)


GUESSING = 1.5
"""Times the accuracy of guessing one of the classes, up to which a run counts as not trained."""


def is_guessing(run: Run) -> bool:
    """Whether a run's clients do no better in the mean than by guessing, or than by naming the class of which they have most.

    Looked at are accuracies before any fine-tuning and after.
    """
    parts = [run["final"], run.get("final_before_ft") or run["final"]]
    best = max(float(np.nanmean(np.array(part["test_accuracy"], dtype=float))) for part in parts)
    classes = len(run.get("data_card", {}).get("classes", ())) or np.inf
    named = np.array(run.get("majority") or [0.0], dtype=float)  # runs of before 2026-11-24 need not have it
    return best < max(GUESSING / classes, float(np.nanmean(named)))


Terms = dict[tuple[str, str], float]  # (experiment, arm) -> factor


@dataclass(frozen=True)
class Link:
    """A sum of accuracies, such as one arm's minus another's, that a claim says is above a number of points."""

    terms: Terms
    above: float = 0.0
    measure: str = "test_accuracy"

    def __sub__(self, other: Link) -> Link:
        """How much more this sum is than one of other experiments."""
        return replace(self, terms=self.terms | {term: -factor for term, factor in other.terms.items()})

    def __str__(self) -> str:
        from pfl_lite.papers import get_experiment

        names = list(dict.fromkeys(name for name, _ in self.terms))
        several, share = len(names) > 1, 1 / len(names)
        mean = several and {abs(factor) for factor in self.terms.values()} == {share}
        terms = (
            {key: factor / share for key, factor in self.terms.items() if key[0] == names[0]}
            if mean
            else self.terms
        )
        signs = {1.0: "+", -1.0: "-"}
        words = [
            f"{signs.get(factor, f'{factor:+.2g}')} {f'{name}: ' if several and not mean else ''}"
            f"{get_experiment(name).arm(arm).label}"
            for (name, arm), factor in sorted(terms.items(), key=lambda term: term[1] < 0)
        ]
        where = f", mean of {len(names)} settings" if mean else "" if several else f" in {names[0]}"
        return " ".join(words).removeprefix("+ ") + where

    def seeds(self, runs: dict[str, Runs]) -> dict[str, list[int]]:
        """The seeds of the last look, by experiment: the first three or five that all its arms have, or all of one or two."""
        return {name: some[: looked_at(len(some))] for name, some in self.common_seeds(runs).items()}

    def common_seeds(self, runs: dict[str, Runs]) -> dict[str, list[int]]:
        """The seeds that all its arms have, by experiment."""
        return {
            name: seeds_of_all(runs.get(name, {}).get(arm, []) for other, arm in self.terms if other == name)
            for name, _ in self.terms
        }

    def untrained(self, runs: dict[str, Runs]) -> list[str]:
        """The arms whose runs do no better than guessing: a comparison with them says nothing about methods."""
        return [
            arm
            for name, arm in self.terms
            if (some := runs.get(name, {}).get(arm)) and all(map(is_guessing, some))
        ]

    def value(self, runs: dict[str, Runs]) -> Estimate:
        """The sum, paired over clients and common seeds, also of experiments with as many clients and the same seeds.

        Under one concentration such experiments deal the same class shares, so a client is easy or hard in each of them; where
        they deal otherwise, pairing by number costs nothing. Of several experiments only the seeds that all have count, if these
        are two or more: what a seed does to one, it may do to the others. Experiments that still differ in clients or seeds
        are taken for independent.
        A number that all clients of a single seed share, as one model's accuracy on all test images, has no spread to judge
        it by: its standard error is infinite.
        """
        alike: dict[tuple[int, ...], list[Array]] = {}  # (clients, *seeds) -> differences [seeds, clients]
        alone = False
        by_name = self.seeds(runs)
        shared = set.intersection(*map(set, by_name.values()))
        for name, its_own in by_name.items():
            seeds = sorted(shared) if len(shared) > 1 else its_own
            arrays = []
            for (there, arm), factor in self.terms.items():
                if there == name:
                    some = with_seeds(runs[name][arm], seeds)
                    arrays.append(factor * per_client(some, self.measure))
            alone |= len(seeds) == 1 and all(np.nanmin(each) == np.nanmax(each) for each in arrays)
            difference = by_unit(np.sum(arrays, axis=0), some[0])
            alike.setdefault((difference.shape[1], *seeds), []).append(difference)
        parts = []
        for sums in alike.values():
            difference = np.sum(sums, axis=0)
            # without clients that have no test images
            difference = difference[:, np.isfinite(difference).all(0)]
            parts.append(Estimate(float(difference.mean()), np.inf, 1) if alone else estimate(difference))
        return combined(parts)


def difference(
    better: tuple[str, str], worse: tuple[str, str], above: float = 0.0, measure: str = "test_accuracy"
) -> Link:
    """One arm before another, each named after its experiment."""
    return Link({better: 1.0, worse: -1.0}, above, measure)


def ahead(
    where: str | Iterable[str], better: str, *worse: str, above: float = 0.0, measure: str = "test_accuracy"
) -> list[Link]:
    """One arm before each of others, in an experiment or in each of several."""
    names = [where] if isinstance(where, str) else where
    return [difference((name, better), (name, arm), above, measure) for name in names for arm in worse]


def weakest_first(part: Estimate, above: float) -> tuple[float, float]:
    """Sorts parts of a claim from the least likely to lie above its bound: by p-value, then by standard errors.

    The p-values of both sides are 1 where a part tells nothing, as one number does.
    """
    return part.p_below(above) - part.p_above(above), (part.value - above) / max(part.se, 1e-9)


def linked(id: str, experiment: str, text: str, links: Sequence[Link], starts: str = "") -> None:
    """Register a claim that holds if every link does: its interval lies above the link's number.

    `starts` names what has one random start a seed, the same for all clients, on which the order of two methods may hang: no
    number of clients tells that, and the claim stays undecided until there is a second seed.
    """
    needs: dict[str, set[str]] = {}
    for link in links:
        for name, arm in link.terms:
            needs.setdefault(name, set()).add(arm)

    def test(runs: dict[str, Runs], level: float) -> ClaimResult:
        there = [link for link in links if all(link.seeds(runs).values())]
        idle = sorted({arm for link in there for arm in link.untrained(runs)})
        known = [link for link in there if not link.untrained(runs)]
        if not known:
            raise NotTestable(
                f"not decidable: {', '.join(idle)} did not train (no better than guessing)"
                if idle
                else "no comparison has all its runs yet"
            )
        found = [(link, link.value(runs)) for link in known]
        weakest, one = min(found, key=lambda part: weakest_first(part[1], part[0].above))
        unseen = [1.0] * (len(links) - len(known))  # the family is what was planned, not what has run
        above = [part.p_above(link.above) for link, part in found] + unseen
        held = sum(p < level for p in above)
        against = holm([part.p_below(link.above) for link, part in found] + unseen)
        refuted = [link for link, p in zip(known, against, strict=False) if p < level]
        note = f"{weakest}, {weakest.measure.replace('_', ' ')}"
        if len(links) > 1:
            note = f"weakest: {note}; {held} of {len(links)} hold, {len(refuted)} fail"
        if untested := len(links) - len(there):
            note += f", {untested} cannot be tested yet"
        if idle:
            note += f", {len(there) - len(known)} not decidable, as {', '.join(idle)} did not train (no better than guessing)"
        statistic = (
            f"the weakest of {len(known)} differences, points" if len(known) > 1 else "difference, points"
        )
        decided = "failed" if refuted else "held" if held == len(links) else "undecided"
        note = "; ".join([note, *p_note(min(max(above), *against), level)])
        seeds_of = [min(map(len, one.seeds(runs).values())) for one in refuted or known]
        seeds = max(seeds_of) if refuted else min(seeds_of)  # one link refutes a claim, and all hold it
        if starts and seeds == 1 and decided != "undecided":
            decided = "undecided"
            note += f"; {starts} has one random start a seed, so a verdict needs a second seed"
        if any(len(some) == 4 for each in known for some in each.common_seeds(runs).values()):
            note += f"; {FOUR_SEEDS}"
        if np.isinf(one.se):
            note += "; one model and one seed: no spread to judge it by"
        return replace(outcome(statistic, one, level, note, decided), threshold=weakest.above, seeds=seeds)

    arms = {name: tuple(sorted(some)) for name, some in needs.items()}
    assert id not in CLAIMS, f"two claims are called {id}"
    CLAIMS[id] = Claim(id, experiment, text, arms, test, of_links=True)


def printed_table(paper: str, table: str) -> pd.DataFrame:
    """A table as the paper prints it: a row a setting (`in_short`) in the paper's order, a column a method, percent.

    Raises:
        InputError: the papers' numbers are not at hand.
    """
    rows = [row for row in paper_tables() if (row["paper"], row["table"]) == (paper, table)]
    if not rows:
        raise InputError(
            f"the papers' numbers are not here: data/paper_tables.csv lacks {paper}'s table {table}"
        )
    frame = pd.DataFrame(rows).astype({"value_percent": float})
    whole = frame.pivot(index="in_short", columns="method", values="value_percent")
    return whole.loc[frame["in_short"].unique()].rename_axis(index="setting")


def count(fits: pd.Series) -> str:
    """How many settings fit: `4 of 6`."""
    return f"{int(fits.sum())} of {len(fits)}"


def supported(fits: pd.Series) -> str:
    """`yes` where every setting fits, `no` where none does, else `partly`."""
    return "yes" if fits.all() else "partly" if fits.any() else "no"


def misfits(fits: pd.Series) -> str:
    """The settings that do not fit."""
    return "; ".join(map(str, fits.index[~fits]))
