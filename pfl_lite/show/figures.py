"""What the papers' figures draw, as numbers computed from the runs of the tables; nothing is trained for a figure alone.

A figure is a data frame with one row a mark, or a box of marks; `attrs["title"]` says what it is and which budget its runs had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pfl_lite.errors import one_of
from pfl_lite.papers import DEFAULT_BUDGET, GROUPS, Arm, Experiment, get_experiment
from pfl_lite.papers.experiment import either, printed
from pfl_lite.papers.fedmn import sent
from pfl_lite.papers.pfedmb import (
    TABLE2_SETTINGS,
    alphas,
    apart,
    branches_name,
    branches_used,
    entropy,
    in_pairs,
)
from pfl_lite.papers.statement import Run, Runs, per_client
from pfl_lite.results.ledger import Ledger
from pfl_lite.results.tables import runs_of

Rows = Iterator[dict[str, Any]]


def box(values: np.ndarray) -> dict[str, float]:
    """The five numbers of a box plot."""
    names = ("lowest", "lower quartile", "median", "upper quartile", "highest")
    return dict(zip(names, np.nanquantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist(), strict=True))


def percent(share: float | None) -> float:
    """A share in percent; NaN where it was not kept."""
    return np.nan if share is None else 100 * share


def each_run(experiment: Experiment, found: Runs) -> Iterator[tuple[str, Run, dict[str, Any]]]:
    """Every run of an experiment with its arm's key, and what tells its marks from others."""
    for arm in experiment.arms:
        for run in found[arm.key]:
            yield arm.key, run, {"Method": arm.label, "Seed": run["seed"]}


def best_branches(experiment: Experiment, found: Runs) -> Rows:
    """pFedMB's Table III: the number of branches with the best validation accuracy, if several ran, beside the paper's."""
    scores = {
        arm.settings["branches"]: float(np.mean([np.nanmean(np.array(val, dtype=float)) for val in some]))
        for arm in experiment.arms
        if (some := [run["final"]["val_accuracy"] for run in found[arm.key]])
    }
    lacking = [arm.label for arm in experiment.arms if not found[arm.key]]
    chosen = max(scores, key=lambda number: scores[number]) if len(scores) > 1 else np.nan
    (words,) = (
        one.words for name, one in TABLE2_SETTINGS.items() if experiment.name.startswith(branches_name(name))
    )
    yield {
        "Setting": words,
        "Paper's B": printed("pFedMB", "III", "pFedMB", words),
        "Our B": chosen,
        "Validation (%)": 100 * scores.get(chosen, np.nan),
        "Reason": f"not run: {', '.join(lacking)}" if lacking else f"best of {len(scores)}",
    }


def branch_weights(experiment: Experiment, found: Runs) -> Rows:
    """pFedMB's Fig. 3: how far the five pairs' branch weights have separated, at the rounds that were kept."""
    for _, run, head in each_run(experiment, found):
        for at, alpha in alphas(run).items():
            yield head | {
                "Round": at,
                "Largest distance inside a pair": float(apart(in_pairs(alpha)).max()),
                "Branches used": branches_used(in_pairs(alpha)),
                "Entropy": entropy(alpha),
            }


def accuracy_by_round(experiment: Experiment, found: Runs) -> Rows:
    """pFedMB's Fig. 4: mean test accuracy over rounds, before and after fine-tuning."""
    for _, run, head in each_run(experiment, found):
        for entry in run["rounds"]:
            yield head | {
                "Round": entry["round"],
                "Before fine-tuning (%)": percent(entry.get("personal_accuracy")),
                "After fine-tuning (%)": percent(entry.get("tuned_accuracy")),
            }


def accuracy_by_floats(experiment: Experiment, found: Runs) -> Rows:
    """FedMN's Fig. 2: floats sent in all rounds, and the accuracy they bought."""
    for _, run, head in each_run(experiment, found):
        reached = float(np.nanmean(per_client([run], "test_accuracy")))
        yield {"Data": experiment.data} | head | {"Million floats": sent(run) / 1e6, "Accuracy (%)": reached}


def local_boxes(experiment: Experiment, found: Runs) -> Rows:
    """PFL-MoE's Fig. 1: Local's test accuracies of all clients, as boxes."""
    for run in found["local"]:
        for test in experiment.measures:
            head = {"Setting": setting_of(experiment), "Test": test.replace("_", " "), "Seed": run["seed"]}
            yield head | box(per_client([run], test))


def setting_of(experiment: Experiment) -> str:
    """What tells an experiment from the others of its table."""
    return experiment.title.partition(": ")[2]


def global_by_round(experiment: Experiment, found: Runs) -> Rows:
    """PFL-MoE's Fig. 2: FedAvg's accuracy on the clients' test images together over rounds, where it was scored."""
    for run in found["fedavg"]:
        for entry in run["rounds"]:
            if (share := entry.get("global_accuracy_weighted")) is not None:
                head = {"Setting": setting_of(experiment), "Seed": run["seed"], "Round": entry["round"]}
                yield head | {"Global test (%)": percent(share)}


def beside_fedavg(experiment: Experiment, found: Runs) -> Rows:
    """PFL-MoE's Figs. 3 to 5: each client's lead over FedAvg, by FedAvg's local test of that client."""
    plain = {run["seed"]: run for run in found["fedavg"]}
    for key, run, head in each_run(experiment, found):
        if key == "fedavg" or run["seed"] not in plain:
            continue
        tests = {
            test: [per_client([one], test)[0] for one in (plain[run["seed"]], run)]
            for test in experiment.measures
        }
        for client, there in enumerate(tests["local_test"][0]):
            leads = {
                f"Lead, {test.replace('_', ' ')}": mine[client] - theirs[client]
                for test, (theirs, mine) in tests.items()
            }
            yield head | {"Client": client, "FedAvg, local test (%)": there} | leads


class Figure(NamedTuple):
    """What computes a figure's rows, from the arms that it draws."""

    rows: Callable[[Experiment, Runs], Rows]
    draws: Callable[[Arm], bool] = lambda arm: True


BESIDE_FEDAVG = Figure(beside_fedavg, lambda arm: "fedavg" in (arm.key, arm.trained_by))
FIGURES: dict[str, Figure] = {
    "pfedmb-table3": Figure(best_branches),
    "pfedmb-fig3": Figure(branch_weights, lambda arm: arm.method == "pfedmb"),
    "pfedmb-fig4": Figure(accuracy_by_round),
    "fedmn-fig2": Figure(accuracy_by_floats),
    "pflmoe-fig1": Figure(local_boxes, lambda arm: arm.key == "local"),
    "pflmoe-fig2": Figure(global_by_round, lambda arm: arm.key == "fedavg"),
    "pflmoe-fig3": BESIDE_FEDAVG,
    "pflmoe-fig4": BESIDE_FEDAVG,
    "pflmoe-fig5": BESIDE_FEDAVG,
}


def figure(name: str, ledger: Ledger | None = None, budget: str = DEFAULT_BUDGET) -> pd.DataFrame:
    """The numbers that a figure draws, from the complete runs in the ledger; empty where there are none.

    `attrs["title"]` names the figure and the budget, `attrs["notes"]` the experiments without a run.

    Raises:
        InputError: an unknown figure or budget.
    """
    ledger = ledger or Ledger()
    rows, draws = FIGURES[one_of("figure", name, FIGURES)]
    whole = [get_experiment(part, budget) for part in GROUPS[name]]
    experiments = [replace(one, arms=tuple(filter(draws, one.arms))) for one in whole]
    runs = [runs_of(experiment, ledger) for experiment in experiments]
    frame = pd.DataFrame(
        row for one, found in zip(experiments, runs, strict=True) for row in rows(one, found)
    )
    about = (rows.__doc__ or "").splitlines()[0].rstrip(".")
    lengths = either(one.rounds_of(arm) for one in experiments for arm in one.arms)
    frame.attrs = {
        "title": f"{name}: {about} ({budget} budget, {lengths} rounds)",
        "notes": [
            f"{e.title}: not run{': data not available here' * e.unavailable}; `pfl-lite ledger missing {part}` says what to do"
            for part, e, found in zip(GROUPS[name], experiments, runs, strict=True)
            if not any(found.values())
        ],
    }
    return frame
