"""What the chapters of reproduced tables show, from the ledger: protocols, clients, tables coloured by gap, verdicts, costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import Markdown
from pandas.io.formats.style import Styler

from pfl_lite.experiments import care
from pfl_lite.experiments.claim import ClaimResult
from pfl_lite.experiments.claims import frame as claims_frame
from pfl_lite.experiments.ledger import Ledger
from pfl_lite.experiments.protocols import DEFAULT_BUDGET, Experiment, get_experiment
from pfl_lite.experiments.tables import accuracy, runs_of
from pfl_lite.experiments.tables import table as table_of

BELOW, ABOVE = "213,94,0", "0,114,178"  # vermilion and blue of the colour-blind-safe palette
DARKEST, FULL_AT = 0.6, 6.0  # opacity of the strongest shade, and the points of gap that get it
VERDICTS = {"held": ABOVE, "failed": BELOW}


def facts(*names: str, budget: str = DEFAULT_BUDGET) -> Styler:
    """The protocols of some experiments side by side: a column each, a row a choice."""
    some = [get_experiment(name, budget) for name in names]
    columns = {
        one.name: {
            "data": one.data,
            "partition": one.partition,
            "clients": str(one.clients),
            "sampled a round": f"{max(1, round(one.participation * one.clients))}",
            "network": one.model,
            "rounds": " or ".join(map(str, sorted({one.rounds_of(arm) for arm in one.arms}))),
            "local epochs": str(one.epochs),
            "batch": str(one.batch_size),
            "seeds": ", ".join(map(str, one.seeds)),
            "settings chosen": chosen_where(one),
        }
        for one in some
    }
    return pd.DataFrame(columns).style


def chosen_where(experiment: Experiment) -> str:
    """Where and how long an experiment's candidates were tried."""
    tried = sorted({len(arm.grid) for arm in experiment.arms if arm.grid})
    if experiment.searched_in:
        return f"those of {experiment.searched_in}"
    if not tried:
        return "nothing searched"
    return f"{' or '.join(map(str, tried))} candidates, {experiment.search_rounds} rounds, seed {experiment.search_seed}"


def deviations(*names: str, budget: str = DEFAULT_BUDGET) -> Markdown:
    """Where the protocols leave the paper, numbered, each said once."""
    said = dict.fromkeys(text for name in names for text in get_experiment(name, budget).deviations)
    return Markdown("\n".join(f"{number}. {text}" for number, text in enumerate(said, 1)))


def clients(*names: str, ledger: Ledger | None = None) -> pd.DataFrame:
    """How many images the clients of some experiments have, from the first run of each that is there."""
    rows = []
    for name in names:
        runs = (ledger or Ledger()).read(name)
        if runs:
            train, test = (np.array(runs[0]["final"][key]) for key in ("train_size", "test_size"))
            smallest, middle, largest = np.quantile(train, [0, 0.5, 1])
            rows.append((name, len(train), smallest, middle, largest, test.min(), test.max()))
    columns = ["experiment", "clients", "fewest", "median", "most", "fewest test", "most test"]
    return pd.DataFrame(rows, columns=columns)


def shade(gap: object) -> str:
    """The colour of a gap in points: the further from the paper, the darker; vermilion below it, blue above."""
    if not isinstance(gap, int | float) or np.isnan(gap):
        return ""
    return f"background-color: rgba({ABOVE if gap > 0 else BELOW},{min(abs(gap) / FULL_AT, 1) * DARKEST:.2f})"


def shaded(frame: pd.DataFrame) -> Styler:
    """A table *paper | ours* coloured by its gaps; the column of reasons is left to `reasons`."""
    shown = frame.drop(columns="Reason").style.hide(axis="index")
    numbers: dict[Any, Any] = {
        "Paper (%)": "{:.2f}",
        "Ours (%)": "{:.2f}",
        "s.d.": "{:.2f}",
        "Gap": "{:+.2f}",
    }
    return shown.map(shade, subset=["Gap"]).format(numbers, na_rep="–")


def reasons(frame: pd.DataFrame) -> Markdown:
    """Why each row of a table has its status; rows with one reason share a line."""
    lines = [
        f"- **{'; '.join(rows['Method'])}**: {reason}" for reason, rows in frame.groupby("Reason", sort=False)
    ]
    return Markdown("\n".join(lines))


def grid(*names: str, ledger: Ledger | None = None, budget: str = DEFAULT_BUDGET) -> Styler:
    """Several tables with the same methods as one: for each experiment the paper's number and ours, coloured by gap.

    A cell without a run says *not run*; one with fewer seeds or rounds than planned has a star.
    """
    parts: dict[tuple[str, str], pd.Series] = {}
    gaps: dict[Any, list[float]] = {}
    for name in names:
        frame, planned = table_of(name, ledger, budget).set_index("Method"), get_experiment(name, budget)
        few = (frame["Seeds"] < len(planned.seeds)) | frame["Reason"].str.contains("rounds of")
        ours = [cell(*row) for row in zip(frame["Ours (%)"], frame["s.d."], few, strict=True)]
        parts[name, "paper"] = frame["Paper (%)"].map(number)
        parts[name, "ours"] = pd.Series(ours, index=frame.index)
        gaps[name, "ours"] = frame["Gap"].tolist()
    shown = pd.concat(parts, axis=1)

    def colours(column: pd.Series) -> list[str]:
        return list(map(shade, gaps.get(column.name, [np.nan] * len(column))))

    return shown.style.apply(colours)


def number(value: float) -> str:
    """A number of points with two digits, or a dash."""
    return "–" if np.isnan(value) else f"{value:.2f}"


def cell(mean: float, sd: float, few: bool) -> str:
    """Mean and, from two seeds on, standard deviation; a star where seeds or rounds are missing."""
    return (
        "not run" if np.isnan(mean) else number(mean) + ("" if np.isnan(sd) else f" ± {sd:.2f}") + "*" * few
    )


def verdicts(results: Sequence[ClaimResult]) -> Styler:
    """Claims with statistic, interval and verdict, the verdict coloured."""
    frame = claims_frame(results)
    interval = ["–" if r.interval is None else "{:.2f} to {:.2f}".format(*r.interval) for r in results]
    shown = pd.DataFrame(
        {
            "id": frame["id"],
            "claim": frame["text"],
            "verdict": frame["verdict"],
            "statistic": frame["statistic"],
            "value": ["–" if r.value is None else f"{r.value:.3g}" for r in results],
            "95 % interval": interval,
            "note": frame["note"],
        }
    )

    def colour(verdict: object) -> str:
        rgb = VERDICTS.get(str(verdict))
        return f"background-color: rgba({rgb},0.35)" if rgb else ""

    return shown.style.hide(axis="index").map(colour, subset=["verdict"])


def costs(*names: str, ledger: Ledger | None = None, budget: str = DEFAULT_BUDGET) -> pd.DataFrame:
    """What the runs took: rounds, floats that a sampled client received and sent a round, images trained on, core hours."""
    rows = []
    for name in names:
        experiment = get_experiment(name, budget)
        for key, runs in runs_of(experiment, ledger or Ledger()).items():
            for run in runs:
                sampled = sum(len(entry["clients"]) for entry in run["rounds"])
                down, up = (sum(e[way] for e in run["rounds"]) for way in ("floats_down", "floats_up"))
                rows.append(
                    {
                        "experiment": name,
                        "method": experiment.arm(key).label,
                        "seed": run["seed"],
                        "rounds": int(run["rounds"][-1]["round"]),
                        "thousand floats down a round": down / max(sampled, 1) / 1e3,
                        "thousand floats up a round": up / max(sampled, 1) / 1e3,
                        "million images": (run.get("images_trained") or np.nan) / 1e6,
                        "core hours": run["seconds"] / 3600,
                        "accuracy (%)": accuracy(run, next(iter(experiment.measures))),
                    }
                )
    return pd.DataFrame(rows)


def still_missing(name: str, ledger: Ledger | None = None, budget: str = DEFAULT_BUDGET) -> Markdown:
    """The commands that would fill the gaps of an experiment or a group, with their estimated cost."""
    found = care.missing(name, ledger or Ledger(), budget)
    if not found:
        return Markdown("Nothing is missing: every row has been run with every seed.")
    lines = [
        f"- `{one.command}`: "
        + (f"{one.images / 1e6:.0f} million images" if one.hours is None else f"{one.hours:.1f} core hours")
        for one in found
    ]
    return Markdown("\n".join(lines))
