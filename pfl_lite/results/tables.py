"""The papers' tables beside ours, computed from the ledger: every row says how far it got, and why.

A row's status follows one rule (`judge`, or its half `order_says` where another network stands in), and no cell is empty without
a reason beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pfl_lite.engine.history import converged_in, diverged_in
from pfl_lite.papers import DEFAULT_BUDGET, PROPOSED, Arm, Experiment, get_experiment, home_of
from pfl_lite.papers.statement import NotTestable, per_client, seeds_of_all, with_seeds
from pfl_lite.papers.statistics import agreement, ranks
from pfl_lite.results.ledger import Ledger, Run, flat, unlike

CLOSE = 1.0  # points: a gap to the paper up to this is "reproduced"
WIDEST = 2.0  # points: the same where 2 s.d. over seeds allow it; more is not, however much the seeds differ
TIE = 0.5  # points: two of our rows closer than this say nothing about the paper's order

COLUMNS = ["Method", "Paper (%)", "Ours (%)", "s.d.", "Seeds", "Gap", "Status", "Rounds", "Reason"]


def accuracy(run: Run, measure: str = "test_accuracy") -> float:
    """A run's final number, in percent: the unweighted mean over clients of the final test accuracy, or another measure.

    Scored are the models after fine-tuning where the run tunes; clients without test images are left out.
    """
    return 100 * float(np.nanmean(np.asarray(run["final"][measure], dtype=float)))


def judge(
    ours: float, sd: float, paper: float, others: Sequence[tuple[str, float, float]]
) -> tuple[str, str]:
    """The one rule for a row's status; percent throughout; returns (status, reason).

    `others` are the table's other rows with both numbers: (method, ours, paper); ours on the seeds of both rows, where they are
    not the same.  sd is NaN for one seed.

    - reproduced: |ours - paper| <= 1 point, or 2 s.d. over seeds if that is more, but never more than 2 points: noise alone
      reproduces nothing;
    - trend only: the gap is larger, but ours stands on the paper's side (above or below) of at least one other row and on the
      wrong side of none; two of our rows less than half a point apart or two equal ones of the paper say nothing;
    - not reproduced: anything else, also when no other row says anything.
    """
    gap, noise = abs(ours - paper), 0.0 if math.isnan(sd) else 2 * sd
    allowed = min(max(CLOSE, noise), WIDEST)  # printed with the gap's two decimals, or it may seem to be less
    if gap <= allowed:
        return "reproduced", f"the gap is within {allowed:.2f} points"
    status, reason = order_says(ours, paper, others)
    spread = f" (though not than 2 s.d. over seeds, {noise:.2f})" if gap <= noise else ""
    return status, f"the gap is larger than {allowed:.2f} points{spread}, {reason}"


def order_says(ours: float, paper: float, others: Sequence[tuple[str, float, float]]) -> tuple[str, str]:
    """What the order against the other rows says, whatever the gap: trend only or not reproduced, and the reason."""
    if not others:
        return "not reproduced", "and no other row is there to compare the order with"
    telling = {
        name: (ours - other) * (paper - theirs)
        for name, other, theirs in others
        if abs(ours - other) > TIE and paper != theirs
    }
    if not telling:
        return (
            "not reproduced",
            f"and no other row tells an order (ours within {TIE} points, or equal in the paper)",
        )
    if against := [name for name, side in telling.items() if side < 0]:
        return "not reproduced", f"and the paper's order is reversed against {', '.join(against)}"
    return "trend only", f"no row more than {TIE} points away contradicts the paper's order"


class Found(NamedTuple):
    """What the ledger holds of an arm."""

    runs: list[Run]
    """Complete, and with the protocol's seeds."""
    unfinished: list[Run]
    trained: Arm
    """The arm whose training the runs are: their own, unless they take over another's."""
    failed: list[Run]
    """Attempts at that training that diverged, and whose place another took."""
    strays: list[int]
    """Seeds of complete runs that the protocol does not have."""


def found_of(experiment: Experiment, ledger: Ledger) -> dict[str, Found]:
    """What the ledger holds of every arm; an arm's runs that another experiment makes come from there."""
    homes = {arm.key: home_of(experiment, arm) for arm in experiment.arms}
    names = {home.name for home, _ in homes.values()}
    there = {name: (ledger.read(name), ledger.read(name, unfinished=True)) for name in names}
    found = {}
    for key, (home, own) in homes.items():
        trained = home.arm(own.trained_by or own.key)
        complete, begun = ([run for run in some if run["arm"] == own.key] for some in there[home.name])
        every = complete, begun, ledger.diverged(home.name, trained.key)
        runs, undone, failed = ([one for one in some if one["seed"] in experiment.seeds] for some in every)
        # another experiment may well have more seeds than this one asks for
        strays = [
            run["seed"] for run in complete if home is experiment and run["seed"] not in experiment.seeds
        ]
        found[key] = Found(runs, undone, trained, failed, strays)
    return found


def runs_of(experiment: Experiment, ledger: Ledger) -> dict[str, list[Run]]:
    """Every arm's complete runs with the protocol's seeds, by seed."""
    return {key: one.runs for key, one in found_of(experiment, ledger).items()}


def detours(found: Found) -> list[str]:
    """Which of an arm's runs diverged, and which took the place of attempts that did."""
    lost = [(run["seed"], diverged_in(run["rounds"])) for run in found.runs]
    said = [f"seed {seed} diverged in round {at}" for seed, at in lost if at is not None]
    for one in found.failed:
        heir = next((run for run in found.runs if run["seed"] == one["seed"]), one)
        before, after = (flat(each["config"]) for each in (one, heir))
        changed = [key for key in (found.trained.grid or ({},))[0] if before[key] != after[key]]
        old, new = (", ".join(f"{key} {each[key]:g}" for key in changed) for each in (before, after))
        again = f" with {old} and was run again with {new}" if changed else ""
        said.append(f"seed {one['seed']} diverged in round {diverged_in(one['rounds'])}{again}")
    return said


def shortfalls(experiment: Experiment, arm: Arm, found: Found) -> list[str]:
    """In what an arm's runs fall short of the protocol: seeds, rounds, settings, unfinished runs."""
    said, runs = [], found.runs
    if runs:
        if len(runs) < len(experiment.seeds):
            said.append(f"{len(runs)} of {len(experiment.seeds)} seeds")
        if len(runs) == 1:
            said.append("no s.d. from one seed")
        said += departures(experiment, {arm.key: runs})
    elif experiment.unavailable:
        said.append(f"data not available here; where it is: `{experiment.command(arm.key)}`")
    else:
        said.append(f"no complete run in the ledger{' with a seed of the protocol' if found.strays else ''}")
    if found.unfinished:
        said.append(f"unfinished: seed {', '.join(str(run['seed']) for run in found.unfinished)}")
    if found.strays:
        said.append(
            f"not counted: seed {', '.join(map(str, found.strays))}, which the protocol does not have"
        )
    return said


def departures(experiment: Experiment, runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """Where some arms' runs depart from the protocol: fewer rounds, no convergence, other settings with another seed."""
    ends = {
        (int(run["rounds"][-1]["round"]), experiment.rounds_of(experiment.arm(key)))
        for key, some in runs.items()
        for run in some
        if converged_in(run["rounds"]) is None
    }
    short = sorted((last, wanted) for last, wanted in ends if last < wanted)
    said = [f"{last} of {wanted} rounds" for last, wanted in short]
    if short and len(lengths := sorted({last for last, _ in ends})) > 1:
        said.append(f"the runs have different lengths: {', '.join(map(str, lengths))} rounds")
    if experiment.patience:
        limits = sorted(last for last, _ in ends.difference(short))
        said += [f"ended at the limit of {last} rounds, not by the rule of convergence" for last in limits]
    differing = {key: set(unlike(*(run["config"] for run in some))) - {"seed"} for key, some in runs.items()}
    if whose := [key for key, names in differing.items() if names]:
        names = ", ".join(sorted(set.union(*differing.values())))
        said.append(f"the seeds of {labels(experiment, whose)} differ in {names}")
    return said


def labels(experiment: Experiment, arms: Iterable[str]) -> str:
    """What an experiment's table calls some arms."""
    return ", ".join(experiment.arm(arm).label for arm in arms)


def unequal(ledger: Ledger, experiment: Experiment) -> list[str]:
    """What the arms did not get in equal measure (seeds, rounds, epochs, searched settings), in words."""
    runs = [run for run in ledger.read(experiment.name) if run["seed"] in experiment.seeds]
    tried = {one["arm"]: one["candidates"] for one in ledger.searches(experiment.name)}
    given = {}
    for arm in sorted(experiment.arms, key=lambda arm: arm.key):
        if own := [run for run in runs if run["arm"] == arm.key]:
            given[arm.label] = {
                "seeds": len(own),
                "rounds": min(run["rounds"][-1]["round"] for run in own),
                "local epochs": min(flat(run["config"])["epochs"] for run in own),
                "searched settings": sum(experiment.scored(arm, one) for one in tried.get(arm.key, [])),
            }
    frame = pd.DataFrame(given).T  # [arms, what]
    return [
        f"Unequal {what}: {', '.join(f'{label} {number}' for label, number in some.items())}."
        for what, some in frame.items()
        if some.nunique() > 1
    ]


LEAST_ROWS = 3  # with both numbers, below which an order says nothing


def table(
    experiment: str | Experiment, ledger: Ledger | None = None, budget: str = DEFAULT_BUDGET
) -> pd.DataFrame:
    """One row an arm: paper, ours (mean over the protocol's seeds), s.d. (n - 1), seeds, gap (ours - paper), status, reason.

    All runs have the same budget, which the title names; a row that had fewer rounds says so. `attrs["title"]` and
    `attrs["notes"]` (deviations from the paper, unequal budgets) go with it.
    """
    experiment = get_experiment(experiment, budget) if isinstance(experiment, str) else experiment
    ledger = ledger or Ledger()
    found = found_of(experiment, ledger)
    parts = []
    for measure, words in experiment.measures.items():
        part = rows_of(experiment, measure, found)
        parts.append(part.assign(Method=f"{words}: " + part["Method"]) if words else part)
    frame = pd.concat(parts, ignore_index=True)
    frame.attrs = {
        "title": experiment.heading,
        "notes": [*orders(experiment, found), *experiment.deviations, *unequal(ledger, experiment)],
    }
    return frame


def orders(experiment: Experiment, found: Mapping[str, Found]) -> list[str]:
    """For each measure how far the order of the rows is the paper's, in a sentence; none where too few rows tell."""
    said, runs = [], {key: one.runs for key, one in found.items()}
    for measure, words in experiment.measures.items():
        papers = {arm.key: arm.papers.get(measure, arm.paper) for arm in experiment.arms}
        rows = [arm for arm in experiment.arms if papers[arm.key] is not None and runs[arm.key]]
        seeds = seeds_of_all(runs[arm.key] for arm in rows)
        if len(rows) < LEAST_ROWS or not seeds:
            continue
        common = [with_seeds(runs[arm.key], seeds) for arm in rows]
        try:
            # [seeds, clients, rows]
            ours = np.stack([per_client(some, measure) for some in common], -1)
        except (NotTestable, ValueError):  # kept no clients, or unlike numbers of them
            continue
        paper = np.array([papers[arm.key] for arm in rows], dtype=float)
        agreed = agreement(paper, ours)
        places = " ".join(
            f"{arm.label} is number {theirs:g} there and {mine:g} here;"
            for arm, theirs, mine in zip(
                rows, ranks(paper), ranks(np.nanmean(ours, axis=(0, 1))), strict=True
            )
            if arm.method in PROPOSED
        )
        low, high = agreed.interval
        said.append(
            f"{words + ': ' if words else ''}the order of the {len(rows)} rows that have both numbers agrees with the paper's by "
            f"a Kendall's tau of {agreed.tau:+.2f} [{low:+.2f}, {high:+.2f}] (1: the same, -1: reversed); {places} "
            f"the mean gap is {agreed.gap:.1f} points"
        )
    return said


def rows_of(experiment: Experiment, measure: str, found: Mapping[str, Found]) -> pd.DataFrame:
    """A table's rows for one measure, by arm."""
    scores = {key: {run["seed"]: accuracy(run, measure) for run in one.runs} for key, one in found.items()}
    ours = {key: float(np.mean(list(some.values()))) for key, some in scores.items() if some}
    papers = {arm.key: arm.papers.get(measure, arm.paper) for arm in experiment.arms}
    broken = {
        key for key, one in found.items() if any(diverged_in(run["rounds"]) is not None for run in one.runs)
    }
    rows: list[dict[str, Any]] = []
    for arm in experiment.arms:
        some, why, paper = scores[arm.key], "", papers[arm.key]
        lengths = sorted({int(run["rounds"][-1]["round"]) for run in found[arm.key].runs})
        row: dict[str, Any] = {
            "Method": arm.label,
            "Paper (%)": paper,
            "Ours (%)": ours.get(arm.key),
            "s.d.": float(np.std(list(some.values()), ddof=1)) if len(some) > 1 else math.nan,
            "Seeds": len(some),
            "Status": "not run",
            "Rounds": ", ".join(map(str, lengths)) or "-",
        }
        if arm.key in broken:
            row["Status"], why = "diverged", "weights that are no finite numbers say nothing about the method"
        elif some and paper is None and experiment.drawn:
            row["Status"], why = "drawn only", "the paper draws it and prints no number"
        elif some and paper is None:
            row["Status"], why = "own addition", "not in the paper's table"
        elif some and paper is not None:
            row["Gap"] = ours[arm.key] - paper
            others = [
                (other.label, ours[arm.key] + lead, theirs)
                for other in experiment.arms
                if other is not arm and other.key not in broken and (theirs := papers[other.key]) is not None
                if (lead := lead_of(scores[other.key], some)) is not None
            ]
            if experiment.stands_in:
                row["Status"], why = order_says(ours[arm.key], paper, others)
                why = f"{experiment.stands_in}; {why}"
            else:
                row["Status"], why = judge(ours[arm.key], row["s.d."], paper, others)
        reasons = [why, *shortfalls(experiment, arm, found[arm.key]), *detours(found[arm.key])]
        rows.append(row | {"Reason": "; ".join(filter(None, reasons))})
    frame = pd.DataFrame(rows, index=[arm.key for arm in experiment.arms], columns=COLUMNS)
    return frame.astype(dict.fromkeys(("Paper (%)", "Ours (%)", "s.d.", "Gap"), float))


def lead_of(one: dict[int, float], other: dict[int, float]) -> float | None:
    """By how much one row is above another on the seeds that both have, which deal the same clients; None without such a seed."""
    common = one.keys() & other.keys()
    return float(np.mean([one[seed] - other[seed] for seed in sorted(common)])) if common else None
