"""Methods side by side: every experiment's complete runs as one small record, and what is computed from it.

The record is what the page *Compare the methods* carries: an accuracy is a whole number of hundredths of a point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from pfl_lite.errors import InputError, one_of
from pfl_lite.papers import DEFAULT_BUDGET, Experiment, every_budget
from pfl_lite.results.ledger import Ledger, Run
from pfl_lite.results.tables import runs_of

SCALE = 10_000
METRICS: dict[str, str] = {
    "scored": "own test images, after fine-tuning where a method tunes",
    "personal": "own test images, before any fine-tuning",
    "global": "own test images, by the one global model",
    "local_test": "all test images, weighted by the client's classes",
    "global_test": "all test images, all alike",
}
"""What a client's accuracy is measured on and with which model; an experiment has those that its runs kept."""
SUMMARIES: dict[str, str] = {"mean": "mean over clients", "worst_tenth": "mean of the worst tenth of clients"}


def encode(accuracies: ArrayLike) -> str:
    """Accuracies (0 to 1) in hundredths of a point, in base 36: all first digits, all second, all third; `-` for those of NaN.

    First digits differ little from client to client, so a page that deflates them on their own is smaller.

    Raises:
        InputError: an accuracy is outside 0 to 1.
    """
    scaled = np.rint(SCALE * np.asarray(accuracies, dtype=float)).ravel()
    if ((scaled < 0) | (scaled > SCALE)).any():
        raise InputError("an accuracy is outside 0 to 1")
    words = [f"{np.base_repr(int(one), 36):0>3}" if one >= 0 else "---" for one in scaled]
    return "".join(word[place] for place in range(3) for word in words)


def decode(words: str) -> np.ndarray:
    """What `encode` gave, in percent: whole numbers of hundredths of a point, or NaN."""
    n = len(words) // 3
    each = map("".join, zip(words[:n], words[n : 2 * n], words[2 * n :], strict=True))
    return np.array([np.nan if one == "---" else int(one, 36) / 100 for one in each])


def mean(accuracies: ArrayLike) -> float:
    """The mean of the clients' accuracies; NaN without any accuracy."""
    some = np.asarray(accuracies, dtype=float)
    return np.nan if np.isnan(some).all() else float(np.nanmean(some))


def worst_tenth(accuracies: ArrayLike) -> float:
    """The mean of the lowest tenth of the clients' accuracies (of ceil(n / 10) clients); NaN without any accuracy."""
    some = np.sort(np.asarray(accuracies, dtype=float))  # NaN comes last
    return mean(some[: -(-np.count_nonzero(~np.isnan(some)) // 10)])


_OVER_CLIENTS = {"mean": mean, "worst_tenth": worst_tenth}  # of SUMMARIES


def record(ledger: Ledger | None = None) -> dict[str, Any]:
    """Every experiment with complete runs of two methods or more, those of the papers' tables first, as JSON for a page.

    An experiment has `name`, `title`, `metrics` (of METRICS, those that some run kept), `rounds` (each list [R] of rounds at
    which runs kept one) and `methods`: each a `key`, the `method`, a `label` and `runs`. A run has its `seed` and, for every
    metric, the number of its list of rounds, mean and worst tenth of the clients at these rounds but the last, and the clients'
    accuracies [N] after the last one; or the name of the metric with the same numbers.

    Raises:
        InputError: runs of one experiment and seed have different numbers of clients.
    """
    ledger = ledger or Ledger()
    entries = [entry for experiment in every_budget() if (entry := _entry(experiment, ledger))]
    return {"metrics": METRICS, "summaries": SUMMARIES, "experiments": entries}


def _entry(experiment: Experiment, ledger: Ledger) -> dict[str, Any] | None:
    """One experiment of the record; None where fewer than two methods have a complete run."""
    found = runs_of(experiment, ledger)
    if sum(map(bool, found.values())) < 2:
        return None
    sizes: dict[int, int] = {}
    methods: list[dict[str, Any]] = []
    for arm in experiment.arms:
        runs = []
        for run in found[arm.key]:
            clients = len(run["final"]["test_accuracy"])
            if sizes.setdefault(run["seed"], clients) != clients:
                raise InputError(
                    f"seed {run['seed']} of {experiment.name} has runs with {sizes[run['seed']]} and with {clients} clients: "
                    "they cannot be compared client by client"
                )
            runs.append({"seed": run["seed"]} | _scores(run))
        if runs:
            methods.append({"key": arm.key, "method": arm.method, "label": arm.label, "runs": runs})
    kept = {metric for method in methods for run in method["runs"] for metric in run}
    rounds: list[list[int]] = []
    for scores in (one for method in methods for run in method["runs"] for one in run.values()):
        if isinstance(scores, list):
            rounds += [scores[0]] if scores[0] not in rounds else []
            scores[0] = rounds.index(scores[0])
    longer = "" if experiment.budget == DEFAULT_BUDGET else f"; {experiment.budget} budget"
    return {
        "name": experiment.name,
        "title": experiment.title + longer,
        "metrics": [metric for metric in METRICS if metric in kept],
        "rounds": rounds,
        "methods": methods,
    }


def _scores(run: Run) -> dict[str, Any]:
    """What the record keeps of a run: every metric's rounds, means, worst tenths and last accuracies."""
    final, before = run["final"], run.get("final_before_ft")
    last = run["rounds"][-1]
    # metric: its name in the lists that evaluated rounds keep, and the accuracies after the last round
    sources = {
        "scored": ("tuned" if before else "personal", final["test_accuracy"]),
        "personal": ("personal", (before or final)["test_accuracy"]),
        "global": ("global", (last.get("per_client") or {}).get("global")),
        "local_test": ("", final.get("local_test_clients")),
        "global_test": ("", final.get("global_test_clients")),
    }
    scores: dict[str, Any] = {}
    for metric, (name, accuracies) in sources.items():
        if accuracies is None:
            continue
        rounds = {
            r["round"]: kept[name] for r in run["rounds"] if name in (kept := r.get("per_client") or {})
        }
        at = sorted({*rounds, last["round"]})
        earlier = [rounds[one] for one in at[:-1]]
        entry = [
            at,
            *(encode([f(each) for each in earlier]) for f in _OVER_CLIENTS.values()),
            encode(accuracies),
        ]
        scores[metric] = next((known for known, other in scores.items() if other == entry), entry)
    return scores


def _kept(entry: Mapping[str, Any], metric: str, methods: Iterable[str] | None) -> dict[str, dict[int, Any]]:
    """What some methods' runs kept of a metric, by method and seed, in percent; methods without it are left out."""
    one_of(f"metric of {entry['name']}", metric, entry["metrics"])
    known = {one["key"]: one["runs"] for one in entry["methods"]}
    found: dict[str, dict[int, Any]] = {}
    for key in known if methods is None else methods:
        for run in known[one_of(f"method of {entry['name']}", key, known)]:
            if (scores := run.get(metric)) is not None:
                at, *words = run[scores] if isinstance(scores, str) else scores
                *earlier, clients = map(decode, words)
                summaries = [
                    np.append(each, of(clients))
                    for each, of in zip(earlier, _OVER_CLIENTS.values(), strict=True)
                ]
                found.setdefault(key, {})[run["seed"]] = entry["rounds"][at], *summaries, clients
    return found


def curves(
    entry: Mapping[str, Any], metric: str, summary: str = "mean", methods: Sequence[str] | None = None
) -> pd.DataFrame:
    """What every run kept of a metric, round by round, in percent: one row a method (`arm`), seed and round.

    Raises:
        InputError: an unknown metric, summary or method.
    """
    one_of("summary", summary, SUMMARIES)
    rows = [
        (key, seed, at, value)
        for key, runs in _kept(entry, metric, methods).items()
        for seed, (rounds, *summaries, _) in runs.items()
        for at, value in zip(rounds, summaries[list(SUMMARIES).index(summary)], strict=True)
    ]
    return pd.DataFrame(rows, columns=["arm", "seed", "round", "value"])


def paired(entry: Mapping[str, Any], metric: str, methods: Sequence[str] | None = None) -> pd.DataFrame:
    """Accuracies in percent of the clients that all the methods have: one row a seed and client, one column a method.

    Only the seeds that every method has count, and of their clients those with a test image. Methods without the metric
    have no column.

    Raises:
        InputError: an unknown metric or method.
    """
    found = _kept(entry, metric, methods)
    seeds = sorted(set.intersection(*map(set, found.values()))) if found else []
    frames = [
        pd.DataFrame({key: runs[seed][-1] for key, runs in found.items()}).rename_axis("client")
        for seed in seeds
    ]
    if not frames:
        return pd.DataFrame(columns=list(found), dtype=float)
    return pd.concat(frames, keys=seeds, names=["seed"]).dropna()


def ranks(table: pd.DataFrame) -> pd.DataFrame:
    """From what `paired` gives: every method's mean rank (1 is best, equal ones share), mean and worst tenth, best rank first."""
    found = pd.DataFrame(
        {
            "rank": table.rank(axis=1, ascending=False).mean(),
            "mean": table.mean(),
            "worst tenth": table.groupby("seed").agg(worst_tenth).mean() if len(table) else np.nan,
        }
    )
    return found.sort_values("rank", kind="stable")
