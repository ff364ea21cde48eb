"""pFedMB's claims: Table I and figures 3 and 4 on five pairs, Table II over six settings, Table III and figure 5."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pfl_lite.experiments.claim import (
    CLAIMS,
    Array,
    Claim,
    ClaimResult,
    Runs,
    Unfit,
    ahead,
    by_interval,
    by_seed,
    claim,
    linked,
    paired,
    per_client,
)
from pfl_lite.experiments.ledger import Run
from pfl_lite.experiments.protocols_pfedmb import BRANCHES, TABLE2_LABELS, TABLE2_SETTINGS


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


def in_pairs(alpha: Array) -> Array:
    """Alpha [clients, branches] as [pairs, 2, branches]; clients 2p and 2p+1 are pair p."""
    return alpha.reshape(len(alpha) // 2, 2, -1)


def last_pairs(run: Run) -> Array:
    """Alpha of the last watched round as [pairs, 2, branches]."""
    return in_pairs(list(alphas(run).values())[-1])


def apart(pairs: Array) -> Array:
    """The L1 distance of the two alphas of every pair, [pairs]."""
    return np.abs(pairs[:, 0] - pairs[:, 1]).sum(-1)


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
    each = [
        f"{name} {m:+.2f} ± {e:.2f} (s.e.) [{i[0]:+.2f}, {i[1]:+.2f}]" for name, (m, e, i) in links.items()
    ]
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
    sooner: dict[str, Array] = {}  # the first round at 99 %, after which a curve may fall again
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
            sooner[quantity] = np.array(common)[np.flip(~short, -1).argmax(-1)]
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
    once = ", ".join(f"{arm} {n:.1f}" for arm, n in zip(CHAIN, sooner[decides].mean(1), strict=False))
    note = f"mean rounds {'; '.join(each)}; there for the first time, {names[decides]} {once}"
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
    distance = np.array([apart(a) for a in pairs])  # [seeds, pairs]
    same = np.array([a[:, 0].argmax(-1) == a[:, 1].argmax(-1) for a in pairs])
    verdict = by_seed(list(((distance < 0.2) & same).all(1)))
    note = f"closer than 0.2 in {(distance < 0.2).sum()}, same branch in {same.sum()} of {same.size} pairs"
    statistic = "largest L1 distance of alpha inside a pair"
    return ClaimResult(statistic, verdict, float(distance.max()), None, None, 0.2, note)


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


def table2(setting: str) -> str:
    """The experiment of a column of Table II."""
    return f"pfedmb-table2-{setting}"


METHODS = tuple(TABLE2_LABELS)
RIVALS = tuple(key for key in METHODS if key != "pfedmb")
RANK_DRAWS = 2000


def places(accuracy: Array) -> Array:
    """Rank of every method, 1 for the best, from accuracies [..., methods]; equal ones share the mean of their places."""
    other, own = accuracy[..., None, :], accuracy[..., :, None]  # [..., 1, methods], [..., methods, 1]
    return np.asarray(0.5 + ((other > own) + 0.5 * (other == own)).sum(-1))


def best_mean_rank(runs: dict[str, Runs]) -> ClaimResult:
    """Mean rank over the settings of the best rival minus pFedMB's; seeds and clients drawn anew in each setting."""
    if len(runs) < len(TABLE2_SETTINGS):
        raise Unfit(f"a mean rank needs all {len(TABLE2_SETTINGS)} settings")
    random = np.random.default_rng(0)
    own, drawn = [], []
    for one in runs.values():
        accuracy = np.stack([per_client(one[key]) for key in METHODS], -1)  # [seeds, clients, methods]
        seeds, clients, _ = accuracy.shape
        s = random.integers(seeds, size=(RANK_DRAWS, seeds, 1))
        c = random.integers(clients, size=(RANK_DRAWS, 1, clients))
        own.append(places(np.nanmean(accuracy, axis=(0, 1))))
        drawn.append(places(np.nanmean(accuracy[s, c], axis=(1, 2))))  # [draws, methods]
    mean, means = np.mean(own, axis=0), np.mean(drawn, axis=0)
    ours = METHODS.index("pfedmb")
    lead, leads = (np.delete(x, ours, -1).min(-1) - x[..., ours] for x in (mean, means))
    low, high = np.quantile(leads, [0.025, 0.975])
    note = ", ".join(
        f"{key} {rank:.2f}" for key, rank in sorted(zip(METHODS, mean, strict=True), key=lambda x: x[1])
    )
    interval = (float(low), float(high))
    statistic = "mean rank of the best rival minus pFedMB's"
    return ClaimResult(
        statistic,
        by_interval([interval]),
        float(lead),
        float(leads.std()),
        interval,
        0.0,
        f"mean ranks: {note}",
    )


CLAIMS["B6"] = Claim(
    "B6",
    "pfedmb-table2",
    "pFedMB has the best mean rank over the six settings (Table II)",
    {table2(setting): METHODS for setting in TABLE2_SETTINGS},
    best_mean_rank,
)
linked(
    "B7",
    "pfedmb-table2",
    "Dirichlet, 50 clients: pFedMB is more than 1 point above every other method (Table II)",
    ahead(table2("dirichlet-50"), "pfedmb", *RIVALS, above=1.0),
)
linked(
    "B8",
    "pfedmb-table2",
    "Two random classes: FedAvg and FedProx, fine-tuned, are at most 1.1 points below pFedMB (Table II)",
    [
        link
        for setting in ("random2-15", "random2-50")
        for key in ("fedavg", "fedprox")
        for link in ahead(table2(setting), key, "pfedmb", above=-1.1)
    ],
)
linked(
    "B9",
    "pfedmb-table2",
    "FedFomo gains less than 1.4 points over Local with Dirichlet's labels and nothing on CIFAR-100, FedAMP at most 0.2 on "
    "CIFAR-100 with 50 clients (Table II)",
    [
        *ahead(table2("dirichlet-15"), "local", "fedfomo", above=-1.4),
        *ahead(table2("dirichlet-50"), "local", "fedfomo", above=-1.4),
        *ahead(table2("cifar100-15"), "local", "fedfomo"),
        *ahead(table2("cifar100-50"), "local", "fedfomo"),
        *ahead(table2("cifar100-50"), "local", "fedamp", above=-0.2),
    ],
)
linked(
    "B10",
    "pfedmb-table2",
    "Dirichlet's labels and CIFAR-100: fine-tuned FedAvg is above FedAMP, FedFomo and IFCA (Table II)",
    [
        link
        for setting in ("dirichlet-15", "dirichlet-50", "cifar100-15", "cifar100-50")
        for link in ahead(table2(setting), "fedavg", "fedamp", "fedfomo", "ifca")
    ],
)

SCAN = tuple(f"b{number}" for number in BRANCHES)


@claim(
    "B11",
    "pfedmb-fig5",
    SCAN,
    "Two random classes, 50 clients: accuracy rises with the number of branches up to about 10 and falls after it (Fig. 5)",
)
def one_peak(runs: Runs) -> ClaimResult:
    """Accuracy at B = 10 minus that at either end; held needs one peak at 10, too."""
    accuracy = {key: per_client(runs[key]) for key in SCAN}
    ends = [paired(accuracy["b10"] - accuracy[end]) for end in (SCAN[0], SCAN[-1])]
    value, se, interval = min(ends, key=lambda end: end[0])
    means = [float(accuracy[key].mean()) for key in SCAN]
    peak = int(np.argmax(means))
    rises = np.diff(means) > 0
    single = SCAN[peak] == "b10" and rises[:peak].all() and not rises[peak:].any()
    verdict = by_interval([end[2] for end in ends])
    note = ", ".join(f"{key} {mean:.2f}" for key, mean in zip(SCAN, means, strict=True))
    statistic = "B = 10 minus the better end of the scan, points"
    return ClaimResult(
        statistic,
        "undecided" if verdict == "held" and not single else verdict,
        value,
        se,
        interval,
        0.0,
        note,
    )


def best_by_seed(runs: Runs) -> Array:
    """The number of branches with the best validation accuracy, in every seed."""
    accuracy = [
        [np.nanmean(np.asarray(run["final"]["val_accuracy"], dtype=float)) for run in runs[key]]
        for key in SCAN
    ]
    return np.array(BRANCHES)[np.argmax(accuracy, axis=0)]


def fewer_on_cifar100(runs: dict[str, Runs]) -> ClaimResult:
    """Best number of branches on CIFAR-10's two classes minus that on CIFAR-100, by seed."""
    if len(runs) < 2:
        raise Unfit("the two data sets must both be there")
    both = [runs[name] for name in ("pfedmb-fig5", "pfedmb-table3-cifar100-50")]
    cifar10, cifar100 = map(best_by_seed, both)
    used = [[run["seed"] for run in some[SCAN[0]]] for some in both]
    if not (common := sorted({*used[0]} & {*used[1]})):
        raise Unfit("the two data sets have no seed in common")
    more = np.array([cifar10[used[0].index(seed)] - cifar100[used[1].index(seed)] for seed in common])
    said = [", ".join(map(str, some)) for some in (cifar10, cifar100)]
    note = "best on validation images, by seed: CIFAR-10 {}; CIFAR-100 {}".format(*said)
    statistic = "best number of branches, CIFAR-10 minus CIFAR-100"
    return ClaimResult(
        statistic, by_seed(list(more > 0)), float(more.mean()), None, None, 0.0, note, seeds=len(common)
    )


CLAIMS["B12"] = Claim(
    "B12",
    "pfedmb-table3",
    "50 clients: more branches are best with two random classes of CIFAR-10 than on CIFAR-100 (Table III)",
    {"pfedmb-fig5": SCAN, "pfedmb-table3-cifar100-50": SCAN},
    fewer_on_cifar100,
)
