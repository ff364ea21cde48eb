"""The papers' claims as small functions over the ledger: held, failed or undecided, always with a statistic.

A claim about means is decided by a bootstrap interval of paired differences; a claim about structure (which
branch a client uses, who is faster) is tested once a seed: held if it is so in every seed, failed if in none,
undecided if the seeds disagree.  Missing runs make any claim undecided, and the note names them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd

from pfl_lite.experiments.ledger import Ledger, Run
from pfl_lite.experiments.protocols import EXPERIMENTS, get_experiment

SEEDS = 3  # fewer seeds than this are named in the note
Array = np.ndarray
Runs = dict[str, list[Run]]  # arm -> its runs, the same seeds in the same order for every arm


@dataclass(frozen=True)
class ClaimResult:
    """What became of a claim; `value`, `se`, `interval` (95 %) and `threshold` have the statistic's unit."""

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


@dataclass(frozen=True)
class Claim:
    """A claim of a paper: the arms (keys) whose complete runs it needs, and the function that tests it."""

    id: str
    experiment: str
    text: str
    arms: tuple[str, ...]
    test: Callable[[Runs], ClaimResult]


class Unfit(Exception):
    """The runs are there but lack what a claim needs; the message says what."""


CLAIMS: dict[str, Claim] = {}


def claim(
    id: str, experiment: str, arms: Sequence[str], text: str
) -> Callable[[Callable[[Runs], ClaimResult]], Callable[[Runs], ClaimResult]]:
    """Register the function below as the test of a claim."""

    def register(test: Callable[[Runs], ClaimResult]) -> Callable[[Runs], ClaimResult]:
        CLAIMS[id] = Claim(id, experiment, text, tuple(arms), test)
        return test

    return register


def per_client(runs: Sequence[Run], part: str = "final") -> Array:
    """Test accuracies in percent, [seeds, clients], of `final` or `final_before_ft`."""
    if any(not run.get(part) for run in runs):
        raise Unfit(f"the runs have no '{part}': they were made without fine-tuning")
    return 100 * np.array([run[part]["test_accuracy"] for run in runs], dtype=float)


def paired(difference: Array, draws: int = 10_000) -> tuple[float, float, tuple[float, float]]:
    """Mean, standard error and 95 % bootstrap interval of paired differences [seeds, clients].

    Seeds and clients are drawn anew independently of each other: a client keeps its classes in every seed and
    the clients of a seed share their training, so all pairs together are less evidence than their number.
    """
    random = np.random.default_rng(0)
    seeds, clients = difference.shape
    s = random.integers(seeds, size=(draws, seeds, 1))
    c = random.integers(clients, size=(draws, 1, clients))
    means = difference[s, c].mean(axis=(1, 2))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(difference.mean()), float(means.std()), (float(low), float(high))


def by_interval(intervals: Sequence[tuple[float, float]]) -> str:
    """Held if every interval lies above 0, failed if any lies below, else undecided."""
    if any(high < 0 for _, high in intervals):
        return "failed"
    return "held" if all(low > 0 for low, _ in intervals) else "undecided"


def by_seed(holds: Sequence[bool]) -> str:
    """Held if it is so in every seed, failed if in none, else undecided."""
    return "held" if all(holds) else "undecided" if any(holds) else "failed"


def alphas(run: Run) -> dict[int, Array]:
    """Branch weights of all clients at the rounds that kept them: round -> [clients, branches]."""
    kept = (run.get("watch") or {}).get("alpha") or {}
    weights = {int(at): np.array(value, dtype=float) for at, value in kept.items()}
    weights = {at: a[:, 0] if a.ndim == 3 and a.shape[1] == 1 else a for at, a in sorted(weights.items())}
    if not weights or any(a.ndim != 2 or len(a) % 2 for a in weights.values()):
        raise Unfit(
            f"{run['arm']} seed {run['seed']} kept no alpha that all layers share, or has no whole pairs"
        )
    return weights


def last_pairs(run: Run) -> Array:
    """Alpha of the last watched round as [pairs, 2, branches]; clients 2p and 2p+1 are pair p."""
    last = list(alphas(run).values())[-1]
    return last.reshape(len(last) // 2, 2, -1)


def branches_used(pairs: Array) -> int:
    """How many different branches are the strongest one of some pair (mean alpha of its two clients)."""
    return len(set(pairs.mean(1).argmax(-1).tolist()))


def entropy(alpha: Array) -> float:
    """Mean over clients of the entropy of alpha [clients, branches], in nats."""
    return float(-(alpha * np.log(np.clip(alpha, 1e-300, None))).sum(-1).mean())


def area(rounds: Sequence[int], values: Array) -> float:
    """Mean of a curve over its rounds (trapezoid)."""
    steps = np.diff(rounds)
    return float((steps * (values[1:] + values[:-1]) / 2).sum() / steps.sum())


CHAIN = ("pfedmb", "pfedmb-plain", "fedavg", "local")


@claim(
    "B1",
    "pfedmb-table1",
    CHAIN,
    "Five pairs: pFedMB (eq. 5) > pFedMB (eq. 6) > FedAvg > Local, all after fine-tuning (Table I)",
)
def chain(runs: Runs) -> ClaimResult:
    """Paired differences over clients and seeds for each link of the chain."""
    accuracy = {arm: per_client(runs[arm]) for arm in CHAIN}
    links = {f"{a} - {b}": paired(accuracy[a] - accuracy[b]) for a, b in pairwise(CHAIN)}
    value, se, interval = min(links.values(), key=lambda link: link[2][0])
    each = [f"{name} {m:+.2f} ± {e:.2f} [{i[0]:+.2f}, {i[1]:+.2f}]" for name, (m, e, i) in links.items()]
    if any(not run.get("final_before_ft") for arm in CHAIN for run in runs[arm]):
        each.append("some runs are scored without fine-tuning")
    verdict = by_interval([link[2] for link in links.values()])
    statistic = "paired difference of the weakest link, points"
    return ClaimResult(statistic, verdict, value, se, interval, 0.0, "; ".join(each))


@claim(
    "B2",
    "pfedmb-table1",
    CHAIN[:3],
    "Five pairs: pFedMB (eq. 5) reaches 99 % of its own final accuracy, for good, in fewer rounds than eq. 6 and than "
    "FedAvg (Fig. 4; the curve after fine-tuning decides where every run kept it, else the one before)",
)
def faster(runs: Runs) -> ClaimResult:
    """The first round from which on an arm's own curve stays at 99 % of its last value, of the rounds that all runs have."""
    counted: dict[str, Array] = {}
    for quantity in ("tuned_accuracy", "personal_accuracy"):
        curves = [
            [
                {r["round"]: r[quantity] for r in run["rounds"] if r.get(quantity) is not None}
                for run in runs[arm]
            ]
            for arm in CHAIN[:3]
        ]
        common = sorted(set.intersection(*(set(curve) for arm in curves for curve in arm)))
        if len(common) > 1:
            values = np.array([[[curve[at] for at in common] for curve in arm] for arm in curves])
            short = np.flip(values < 0.99 * values[..., -1:], -1)  # from the last round backwards
            reached = values.shape[-1] - np.where(
                short.any(-1), short.argmax(-1), values.shape[-1]
            )  # [arms, seeds]
            counted[quantity] = np.array(common)[reached]
    if not counted:
        raise Unfit("the runs have no accuracy curve in common")
    decides, rounds = next(iter(counted.items()))
    lead = (rounds[1:] - rounds[0]).min(axis=0)  # the smaller lead over the two others, per seed
    se = float(lead.std(ddof=1) / np.sqrt(len(lead))) if len(lead) > 1 else None
    names = {"tuned_accuracy": "after fine-tuning", "personal_accuracy": "before fine-tuning"}
    each = [
        f"{names[quantity]} "
        + ", ".join(f"{arm} {n:.1f}" for arm, n in zip(CHAIN, found.mean(1), strict=False))
        for quantity, found in counted.items()
    ]
    statistic = f"lead of eq. 5 over the faster of the others, rounds, {names[decides]}"
    note = "mean rounds " + "; ".join(each)
    return ClaimResult(statistic, by_seed(list(lead > 0)), float(lead.mean()), se, None, 0.0, note)


@claim(
    "B3",
    "pfedmb-table1",
    CHAIN[:1],
    "Five pairs, eq. 5: at the end both clients of every pair use the same branch and their alphas are "
    "closer than 0.2 in L1 distance (Fig. 3a; the threshold is ours)",
)
def twins_agree(runs: Runs) -> ClaimResult:
    """The largest L1 distance inside a pair, and equal argmax, per seed."""
    pairs = [last_pairs(run) for run in runs["pfedmb"]]
    apart = np.array([np.abs(a[:, 0] - a[:, 1]).sum(-1) for a in pairs])  # [seeds, pairs]
    same = np.array([a[:, 0].argmax(-1) == a[:, 1].argmax(-1) for a in pairs])
    verdict = by_seed(list(((apart < 0.2) & same).all(1)))
    note = f"closer than 0.2 in {(apart < 0.2).sum()}, same branch in {same.sum()} of {same.size} pairs"
    statistic = "largest L1 distance of alpha inside a pair"
    return ClaimResult(statistic, verdict, float(apart.max()), None, None, 0.2, note)


@claim(
    "B4",
    "pfedmb-table1",
    CHAIN[:1],
    "Five pairs, eq. 5: at the end the five pairs use five different branches (Fig. 3a)",
)
def pairs_differ(runs: Runs) -> ClaimResult:
    """The number of different argmax branches of the pairs' mean alphas, per seed."""
    pairs = [last_pairs(run) for run in runs["pfedmb"]]
    used = [branches_used(a) for a in pairs]
    verdict = by_seed([n == len(a) for n, a in zip(used, pairs, strict=True)])
    note, threshold = f"branches used, by seed: {', '.join(map(str, used))}", float(len(pairs[0]))
    return ClaimResult("fewest different branches in a seed", verdict, min(used), None, None, threshold, note)


@claim(
    "B5",
    "pfedmb-table1",
    CHAIN[:2],
    "Five pairs, eq. 6: the entropy of alpha falls more slowly than with eq. 5, and at the end at least two "
    "pairs share a branch (Fig. 3b)",
)
def plain_separates_less(runs: Runs) -> ClaimResult:
    """Entropy (mean over clients and rounds) of eq. 6 minus eq. 5, and the branches used under eq. 6."""
    excess, shared = [], []
    for weighted, plain in zip(runs["pfedmb"], runs["pfedmb-plain"], strict=True):
        a, b, pairs = alphas(weighted), alphas(plain), last_pairs(plain)
        common = sorted(set(a) & set(b))
        if len(common) < 2:
            raise Unfit(f"seed {plain['seed']} kept alpha at fewer than two rounds in common")
        excess.append(area(common, np.array([entropy(b[at]) - entropy(a[at]) for at in common])))
        shared.append(branches_used(pairs) < len(pairs))
    verdict = by_seed([slower and same for slower, same in zip(np.array(excess) > 0, shared, strict=True)])
    se = float(np.std(excess, ddof=1) / np.sqrt(len(excess))) if len(excess) > 1 else None
    note = f"pairs share a branch under eq. 6 in {sum(shared)} of {len(shared)} seeds"
    statistic = "entropy of alpha, eq. 6 minus eq. 5, mean over rounds, nats"
    return ClaimResult(statistic, verdict, float(np.mean(excess)), se, None, 0.0, note)


@claim(
    "B13",
    "pfedmb-table1",
    ("pfedmb", "fedavg"),
    "pFedMB sends B times FedAvg's floats in training (up: plus alpha), and its collapsed model is as large "
    "as FedAvg's (by construction)",
)
def traffic(runs: Runs) -> ClaimResult:
    """Floats down and up of pFedMB over FedAvg's, at every round in which the same clients took part."""
    ratios, fits, branches = [], [], 0
    for ours, plain in zip(runs["pfedmb"], runs["fedavg"], strict=True):
        branches = last_pairs(ours).shape[-1]
        theirs = {r["round"]: r for r in plain["rounds"] if r["floats_down"]}
        for r in ours["rounds"]:
            other = theirs.get(r["round"])
            if other and other["clients"] == r["clients"]:
                ratios.append(r["floats_down"] / other["floats_down"])
                alpha = r["floats_up"] - branches * other["floats_up"]  # B or L*B a client: nearly nothing
                as_large = r["floats_down"] == branches * other["floats_down"]
                fits.append(as_large and 0 <= alpha <= branches * other["floats_up"] / 1000)
    if not ratios:
        raise Unfit("no round of the two methods sent anything with the same clients")
    verdict = "held" if all(fits) else "failed"
    note = f"one of the {branches} branches has FedAvg's floats in {sum(fits)} of {len(fits)} rounds"
    value = float(np.mean(ratios))
    return ClaimResult("floats down, pFedMB over FedAvg", verdict, value, None, None, branches, note)


@claim(
    "B14",
    "pfedmb-table1",
    ("fedavg", "pfedmb"),
    "Fine-tuning adds more to FedAvg than to pFedMB (our addition: personalisation apart from fine-tuning)",
)
def tuning_helps_fedavg_more(runs: Runs) -> ClaimResult:
    """(tuned - before) of FedAvg minus (tuned - before) of pFedMB, paired over clients and seeds."""
    gain = {arm: per_client(runs[arm]) - per_client(runs[arm], "final_before_ft") for arm in runs}
    value, se, interval = paired(gain["fedavg"] - gain["pfedmb"])
    note = ", ".join(f"{arm} gains {some.mean():+.2f}" for arm, some in gain.items())
    statistic = "gain by fine-tuning, FedAvg minus pFedMB, points"
    return ClaimResult(statistic, by_interval([interval]), value, se, interval, 0.0, note)


def check(claim: Claim, runs: Sequence[Run]) -> ClaimResult:
    """Test one claim on the complete runs of its experiment."""
    by_arm = {arm: {int(run["seed"]): run for run in runs if run["arm"] == arm} for arm in claim.arms}
    missing = [arm for arm, some in by_arm.items() if not some]
    seeds = sorted(set.intersection(*(set(some) for some in by_arm.values())))
    unpaired = sorted(set.union(*(set(some) for some in by_arm.values())) - set(seeds))
    used = [by_arm[arm][seed] for arm in by_arm for seed in seeds]
    lengths = sorted({int(run["rounds"][-1]["round"]) for run in used})
    tell = []
    if missing:
        result = ClaimResult("-", "undecided", note=f"no complete run of {', '.join(missing)}")
    elif not seeds:
        result = ClaimResult("-", "undecided", note=f"no seed that all of {', '.join(claim.arms)} have")
    elif len({len(run["final"]["test_accuracy"]) for run in used}) > 1:
        result = ClaimResult("-", "undecided", note="the runs have different numbers of clients")
    else:
        try:
            result = claim.test({arm: [some[seed] for seed in seeds] for arm, some in by_arm.items()})
        except Unfit as error:
            result = ClaimResult("-", "undecided", note=str(error))
        if len(seeds) < SEEDS:
            tell.append(f"{len(seeds)} of {SEEDS} seeds")
        if unpaired:
            tell.append(f"seeds not used because an arm lacks them: {', '.join(map(str, unpaired))}")
        if lengths[0] < (planned := EXPERIMENTS[claim.experiment].rounds):
            tell.append(f"{lengths[0]} of {planned} rounds")
        if len(lengths) > 1:
            tell.append(f"the runs have different lengths: {', '.join(map(str, lengths))} rounds")
    return replace(
        result,
        id=claim.id,
        experiment=claim.experiment,
        text=claim.text,
        note="; ".join(filter(None, [result.note, *tell])),
    )


def claims(experiment: str | None = None, ledger: Ledger | None = None) -> list[ClaimResult]:
    """Test every claim (of one experiment) on the ledger; raises InputError for an unknown experiment."""
    wanted = EXPERIMENTS if experiment is None else [get_experiment(experiment).name]
    ledger = ledger or Ledger()
    chosen = [claim for claim in CLAIMS.values() if claim.experiment in wanted]
    runs = {name: ledger.read(name) for name in sorted({claim.experiment for claim in chosen})}
    return [check(claim, runs[claim.experiment]) for claim in chosen]


def frame(results: Sequence[ClaimResult]) -> pd.DataFrame:
    """The results as a data frame, one row a claim."""
    columns = [
        "id",
        "experiment",
        "text",
        "statistic",
        "value",
        "se",
        "interval",
        "threshold",
        "verdict",
        "note",
    ]
    return pd.DataFrame([asdict(result) for result in results], columns=columns)


def show(results: Sequence[ClaimResult], width: int = 100) -> str:
    """The results as text: verdict and claim, then the statistic with its uncertainty, then the note."""
    lines = []
    for result in results:
        number = "no statistic" if result.value is None else f"{result.statistic}: {result.value:.3g}"
        number += "" if result.se is None else f" ± {result.se:.2g} (s.e.)"
        number += "" if result.interval is None else " [{:.3g}, {:.3g}]".format(*result.interval)
        number += "" if result.threshold is None else f"; threshold {result.threshold:g}"
        head, margin = f"{result.id:<5}{result.verdict:<11}", " " * 16
        for text, first in ((result.text, head), (number, margin), (result.note, margin)):
            lines += textwrap.wrap(
                text, width, initial_indent=first, subsequent_indent=margin, break_on_hyphens=False
            )
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"
