"""The papers' claims as small functions over the ledger: held, failed or undecided, always with a statistic.

A claim about means is decided by t tests of differences that are paired over clients and seeds (`papers.statistics`): held if
each of its parts holds, failed if one fails after Holm's correction for having looked at all, at the level of each look that
is planned (`level_of`); two seeds never decide. A claim about structure (do twins mix their branches alike?) is tested once per
seed: held if it is so in every seed, failed if in none, undecided if the seeds disagree; who shares a branch is tested against
chance, over all seeds together. Missing runs make any claim undecided,
unless those that are there refute it; so do runs that did not train. The note names both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pandas as pd

from pfl_lite.engine.history import converged_in, diverged_in
from pfl_lite.errors import one_of, unknown
from pfl_lite.papers import (
    DEFAULT_BUDGET,
    EXPERIMENTS,
    GROUPS,
    LONG,
    SENTENCES,
    Experiment,
    get_experiment,
    members,
)
from pfl_lite.papers.experiment import own_names
from pfl_lite.papers.statement import (
    CLAIMS,
    FOUR_SEEDS,
    TWO_SEEDS,
    Claim,
    ClaimResult,
    NotTestable,
    Runs,
    level_of,
    looked_at,
    seeds_of_all,
    supported,
    with_seeds,
)
from pfl_lite.results.ledger import Ledger, Run
from pfl_lite.results.tables import departures, labels, runs_of

SEEDS = 3  # fewer seeds than this are named in the note
NAMED = 2  # experiments that are named in a note; more are counted
UNLIKE = "the runs have different numbers of clients"
BY_RULE = "converged after "


def paired_runs(
    experiment: Experiment, arms: Sequence[str], found: dict[str, list[Run]]
) -> tuple[Runs | None, list[str]]:
    """The complete runs of some arms with the seeds that all of them have (None if there are none) and that are looked at, and
    what is to be said."""
    common = seeds_of_all(found[arm] for arm in arms)
    unpaired = sorted({int(run["seed"]) for arm in arms for run in found[arm]} - {*common})
    seeds = common[: looked_at(len(common))]
    if not seeds:
        return None, [f"no seed that all of {labels(experiment, arms)} have"]
    runs = {arm: with_seeds(found[arm], seeds) for arm in arms}
    said = remarks(experiment, runs)
    if UNLIKE in said:
        return None, [UNLIKE]
    if unpaired:
        said.append(f"seeds not used because an arm lacks them: {', '.join(map(str, unpaired))}")
    said += [FOUR_SEEDS] if len(common) == 4 else []
    return runs, said


def remarks(experiment: Experiment, runs: Runs) -> list[str]:
    """What is to be said about runs that are used: too few seeds or rounds, divergence, unlike lengths, clients or settings."""
    used, said = [run for some in runs.values() for run in some], []
    if len({len(run["final"]["test_accuracy"]) for run in used}) > 1:
        said.append(UNLIKE)
    fewest, most = min(map(len, runs.values())), max(map(len, runs.values()))
    if fewest < SEEDS:
        number, wanted = span((fewest, most)), len(experiment.seeds)
        said.append(
            f"{number} of {wanted} seeds"
            if fewest < wanted
            else f"{number} seed{'s' if most > 1 else ''}, as planned"
        )
    ended = [end for run in used if (end := converged_in(run["rounds"])) is not None]
    said += [f"{BY_RULE}{span(ended)} rounds"] if ended else []
    said += departures(experiment, runs)
    lost = [arm for arm, some in runs.items() if any(diverged_in(run["rounds"]) is not None for run in some)]
    if lost:
        said.append(f"with a run that diverged, of {labels(experiment, lost)}")
    return said


def span(rounds: Iterable[int]) -> str:
    """Numbers of rounds from the smallest to the largest, `30` or `10 to 30`; nothing of none."""
    found = sorted({*rounds})
    return " to ".join(map(str, (found[0], found[-1])[: len(found)])) if found else ""


def check(claim: Claim, found: dict[str, dict[str, list[Run]]], budget: str = DEFAULT_BUDGET) -> ClaimResult:
    """Test one claim on what was `found`, experiment -> arm -> complete runs.

    Where runs are lacking it is undecided, unless those that are there refute it.
    """
    there: dict[str, Runs] = {}
    tell: dict[str, list[str]] = {}  # what is to be said -> of which experiments
    lacking: dict[str, list[str]] = {}
    for name, arms in claim.needs.items():
        experiment = get_experiment(name, budget)
        if missing := [arm for arm in arms if not found[name][arm]]:
            rows = (
                f"any of its {len(arms)} rows"
                if 4 < len(missing) == len(arms)
                else labels(experiment, missing)
            )
            lacking.setdefault(f"no complete run of {rows}", []).append(name)
        present = [arm for arm in arms if arm not in missing]
        if not present or (missing and not claim.of_links):
            continue
        if claim.of_links:  # which pair the seeds of each comparison themselves
            every: Runs = {arm: found[name][arm] for arm in present}
            said = remarks(experiment, every)
            runs = None if UNLIKE in said else every
        else:
            runs, said = paired_runs(experiment, present, found[name])
        for one in said:
            (lacking if runs is None else tell).setdefault(one, []).append(name)
        if runs is not None:
            there[name] = runs
    result = ClaimResult("-", "undecided")
    if there and (claim.of_links or len(claim.needs) > 1 or not lacking):
        try:
            planned = max(len(get_experiment(name, budget).seeds) for name in claim.needs)
            result = claim.test(there, level_of(planned))
        except NotTestable as error:
            result, tell = ClaimResult("-", "undecided", note=str(error)), {}
    used = [some for runs in there.values() for some in runs.values()]
    seeds = result.seeds or min(map(len, used), default=0)
    if seeds == 2 and result.se is not None and result.verdict != "undecided":  # by a test of differences
        result = replace(result, verdict="undecided", note="; ".join(filter(None, [result.note, TWO_SEEDS])))
    if lacking and result.verdict == "held":
        result = replace(result, verdict="undecided")
    every_one = len(claim.needs)
    rounds = span(int(run["rounds"][-1]["round"]) for some in used for run in some)
    by_rule = any(get_experiment(name, budget).patience for name in there)
    known = sorted({*claim.needs, *members(claim.experiment)})
    own = dict(zip(known, own_names(known), strict=True))
    notes: list[str] = []
    ended: list[str] = []  # by the rule of convergence, which is said once, after all else
    for one, names in (lacking | tell).items():
        some = ", ".join(own[name] for name in names)
        where = some if len(names) <= NAMED else f"in {len(names)} of {every_one} settings"
        whole = one if len(names) == every_one else f"{one} ({where})"
        (ended if one.startswith(BY_RULE) else notes).append(whole)
    notes += [BY_RULE + ", ".join(one.removeprefix(BY_RULE) for one in ended)] if ended else []
    return replace(
        result,
        id=claim.id,
        experiment=claim.experiment,
        text=claim.text,
        budget="convergence" if by_rule else f"{rounds} rounds" if rounds else "",
        seeds=seeds,
        note="; ".join(filter(None, [result.note, *notes])),
    )


def claims(
    experiment: str | None = None, ledger: Ledger | None = None, budget: str = DEFAULT_BUDGET
) -> list[ClaimResult]:
    """Test every claim (those about one experiment or group, or the one of that name) on the ledger.

    Raises:
        InputError: an unknown name or budget, or an experiment without that budget.
    """
    ledger, known = ledger or Ledger(), {name.lower(): name for name in CLAIMS}
    experiment = experiment and known.get(experiment.lower(), experiment)
    if experiment and experiment not in known.values() and re.fullmatch(r"[A-Za-z]\d+(-.*)?", experiment):
        raise unknown("claim", experiment, known.values(), "`pfl-lite claims` lists them all")
    asked = () if experiment is None or experiment in CLAIMS else members(experiment)
    for name in asked:  # also where no claim applies
        get_experiment(name, budget)
    wanted = {*EXPERIMENTS, *GROUPS} if experiment is None else {experiment, *asked}
    chosen = [one for one in CLAIMS.values() if {one.id, one.experiment, *one.needs} & wanted]
    order = list(EXPERIMENTS)
    chosen.sort(key=lambda one: min(order.index(name) for name in one.needs))
    needed = {name for one in chosen for name in one.needs}
    found = {name: runs_of(get_experiment(name, budget), ledger) for name in sorted(needed)}
    return [check(one, found, budget) for one in chosen]


def longest(experiment: str | None = None, ledger: Ledger | None = None) -> list[ClaimResult]:
    """`claims`, those of the groups in LONG from the runs with the paper's budget, all others from those with the default one."""
    found = claims(experiment, ledger)
    groups = {one.experiment for one in found}.intersection(LONG)
    long = {one.id: one for group in groups for one in claims(group, ledger, "paper")}
    return [long.get(one.id, one) for one in found]


def checked(paper: str | None = None) -> pd.DataFrame:
    """Every sentence of a paper (or of all) with what its own numbers say; raises InputError for an unknown paper."""
    rows = [
        (name, where, text, supported(fits), numbers)
        for name in (SENTENCES if paper is None else [one_of("paper", paper, SENTENCES)])
        for where, text, fits, numbers in SENTENCES[name]()
    ]
    return pd.DataFrame(rows, columns=["paper", "where", "it says", "supported", "its own numbers"])
