"""What the chapters of reproduced tables show, from the ledger: protocols, clients, tables colored by gap, verdicts, costs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import Markdown
from pandas.io.formats.style import Styler

from pfl_lite.data import partition
from pfl_lite.data.images import Card, Images, datasets
from pfl_lite.errors import InputError, one_of
from pfl_lite.papers import Experiment, get_experiment
from pfl_lite.papers.experiment import DEFAULT_BUDGET, either, own_names
from pfl_lite.papers.statement import ClaimResult
from pfl_lite.results.ledger import Ledger, Run
from pfl_lite.results.plan import Plan
from pfl_lite.results.tables import accuracy, found_of, rows_of, runs_of
from pfl_lite.results.tables import table as table_of

BELOW, ABOVE = "213,94,0", "0,114,178"  # vermilion and blue of the color-blind-safe palette
DARKEST, FULL_AT = 0.6, 6.0  # opacity of the strongest shade, and the points of gap that get it
VERDICTS = {"held": ABOVE, "failed": BELOW}
STRONG, PALE = 0.4, 0.15  # opacity of a verdict's shade, the second where it rests on one seed
NOT_RUN = "–"
BALANCED = ("fashion_mnist", "cifar10", "cifar100")  # as many images of every class, in training and in test


def facts(*names: str, budget: str = DEFAULT_BUDGET) -> Styler:
    """The protocols of some experiments side by side: a column each, a row a choice."""
    some = [get_experiment(name, budget) for name in names]
    columns = {
        called: {
            "data": one.data,
            "partition": one.partition,
            "clients": str(one.clients),
            "sampled a round": f"{max(1, round(one.participation * one.clients))}",
            "network": one.model,
            "rounds": either(map(one.rounds_of, one.arms)),
            "local epochs": str(one.epochs),
            "batch": str(one.batch_size),
            "seed": ", ".join(map(str, one.seeds)),
            "settings chosen": _chosen_where(one),
        }
        for called, one in zip(own_names(names), some, strict=True)
    }
    return styled(pd.DataFrame(columns))


def styled(frame: pd.DataFrame) -> Styler:
    """A frame to be colored, without an id at every cell, which makes a chapter smaller.

    A name of the index stands in the corner, above the rows' names: pandas would give it a row of its own, empty but for it.
    """
    if frame.index.name and not any(frame.columns.names):
        names = [None] * (frame.columns.nlevels - 1) + [frame.index.name]
        frame = frame.rename_axis(index=None).set_axis(frame.columns.set_names(names), axis=1)
    return Styler(frame, cell_ids=False)


def searches(name: str, ledger: Ledger | None = None) -> list[Run]:
    """The searches of an experiment that are whole: every candidate of the present grid, scored as the protocol says."""
    sweep = Plan(get_experiment(name), ledger or Ledger())
    arms = {arm.key: arm for arm in sweep.arms if arm.grid and sweep.candidates(arm)}
    return [
        search | {"candidates": sweep.scored(arm)}
        for search in sweep.ledger.searches(name)
        if (arm := arms.get(search["arm"])) is not None
    ]


def at_the_edge(search: Run) -> str:
    """The settings of a search whose chosen value is the smallest or largest that was tried: the best may lie outside."""
    tried = {key: {one["settings"][key] for one in search["candidates"]} for key in search["chosen"]}
    return ", ".join(
        key
        for key, some in tried.items()
        if len(some) > 1 and search["chosen"][key] in (min(some), max(some))
    )


def _chosen_where(experiment: Experiment) -> str:
    """Where and how long an experiment's candidates were tried."""
    searching = [arm for arm in experiment.arms if arm.grid]
    if experiment.searched_in:
        return f"those of {experiment.searched_in}"
    if not searching:
        return "nothing searched"
    tried = either(len(arm.grid) for arm in searching)
    if any(experiment.candidates):
        tried = "{} to {}".format(*experiment.candidates)
    rounds = either(map(experiment.search_rounds_of, searching))
    return f"{tried} candidates, {rounds} rounds, seed {experiment.search_seed}"


def deviations(*names: str, budget: str = DEFAULT_BUDGET) -> Markdown:
    """Where the protocols leave the paper, numbered, each said once: first what holds for all, then with the names of whom."""
    said: dict[str, list[str]] = {}
    for name, called in zip(names, own_names(names), strict=True):
        for text in get_experiment(name, budget).deviations:
            said.setdefault(text, []).append(called)
    every = sorted(said.items(), key=lambda one: len(one[1]) < len(names))
    lines = []
    for number, (text, whose) in enumerate(every, 1):
        of_some = "" if len(whose) == len(names) else f"*{', '.join(whose)}*: "
        lines.append(f"{number}. {of_some}{text}")
    return Markdown("\n".join(lines))


def clients(*names: str, ledger: Ledger | None = None) -> pd.DataFrame:
    """How many images the clients of some experiments have, from the first run of each that is there."""
    rows = []
    for name in names:
        runs = (ledger or Ledger()).read(name)
        if runs:
            train, test = (np.array(runs[0]["final"][key]) for key in ("train_size", "test_size"))
            rows.append((name, len(train), *np.quantile(train, [0, 0.5, 1]), test.min(), test.max()))
    columns = ["experiment", "clients", "fewest", "median", "most", "fewest test", "most test"]
    return pd.DataFrame(rows, columns=columns)


def class_counts(name: str, seed: int = 0) -> np.ndarray:
    """How many images of each class the clients of an experiment hold, [clients, classes], drawn without an image.

    The recipes need labels alone, and of balanced data sets it is known how many of each there are. Counted are a client's
    training images, with its validation and test images where it cuts its own.

    They are the experiment's own clients, except where classes are shuffled together (`groups:3:0.4`): who gets which of a
    group's classes then hangs on the order of the images, which is not known here. The clients' numbers of images are exact
    there too, but the classes inside a group are another draw of the same law.

    Raises:
        InputError: an unknown experiment, or a data set that is not balanced.
    """
    experiment = get_experiment(name)
    if experiment.data not in BALANCED:
        raise InputError(
            f"{name}: the partition of {experiment.data} cannot be drawn without its images, only those of {', '.join(BALANCED)}"
        )
    card = datasets()[experiment.data]
    classes = len(card.classes)
    labels = [np.repeat(np.arange(classes), size // classes) for size in (card.train_size, card.test_size)]
    train, test = ((np.zeros((len(some), 1, 1), np.uint8), some) for some in labels)
    blank_card = Card(name=card.name, classes=card.classes, mean=(0.0,), std=(1.0,))
    blank = Images(experiment.data, *train, *test, blank_card).with_split(
        experiment.common.get("split", "published")
    )
    val_fraction = experiment.common.get("val_fraction", 0.2)
    dealt = partition.partition(blank, experiment.partition, experiment.clients, seed, val_fraction)
    parts = ("train", "val", "test") if blank.merged else ("train",)
    counted = [
        partition.class_counts(blank.train_labels, [getattr(one, part) for one in dealt], classes)
        for part in parts
    ]
    return np.sum(counted, axis=0)


def shade(gap: object) -> str:
    """The color of a gap in points: the further from the paper, the darker; vermilion below it, blue above."""
    if not isinstance(gap, int | float) or np.isnan(gap):
        return ""
    return f"background-color: rgba({ABOVE if gap > 0 else BELOW},{min(abs(gap) / FULL_AT, 1) * DARKEST:.2f})"


def shaded(frame: pd.DataFrame) -> Styler:
    """A table *paper | ours* colored by its gaps; the column of reasons is left to `reasons`."""
    numbers: dict[Any, Any] = dict.fromkeys(("Paper (%)", "Ours (%)", "s.d."), "{:.2f}") | {"Gap": "{:+.2f}"}
    shown = styled(frame.drop(columns="Reason")).hide(axis="index").map(shade, subset=["Gap"])
    return shown.format(numbers, na_rep=NOT_RUN)


def reasons(frame: pd.DataFrame) -> Markdown:
    """Why each row of a table has its status; rows with one reason share a line, and those of more than half come last."""
    named = {str(reason): list(rows["Method"]) for reason, rows in frame.groupby("Reason", sort=False)}
    lines, rest = [], ""
    for reason, methods in named.items():
        if len(named) > 1 and len(methods) > len(frame) / 2:
            rest = f"- **All other rows**: {reason}"
        else:
            lines.append(f"- **{'; '.join(methods)}**: {reason}")
    return Markdown("\n".join(filter(None, [*lines, rest])))


def grid(*names: str, ledger: Ledger | None = None, measure: str | None = None) -> Styler:
    """Several tables with the same methods as one: for each experiment the paper's number and ours, colored by gap.

    Experiments and rows without any run are left out (`not_run` names them). A cell without a run is a dash, one whose last
    candidate diverged says so; one with fewer seeds or rounds than planned has a star. A column is called what tells its
    experiment from the others; where the paper has no number there is no column for it. `measure`: which one, where the
    experiments have several; without it the first.

    Raises:
        InputError: an unknown experiment, or a measure that one of the experiments lacks.
    """
    parts: dict[tuple[str, str], pd.Series] = {}
    gaps: dict[Any, list[float]] = {}
    names = tuple(begun(*names, ledger=ledger)) or names[:1]
    some = [get_experiment(name) for name in names]
    labels = {
        key: _one_label([one.arm(key).label for one in some]) for key in (arm.key for arm in some[0].arms)
    }
    for name, own, planned in zip(names, own_names(names), some, strict=True):
        measured = one_of(f"measure of {name}", measure or next(iter(planned.measures)), planned.measures)
        frame = rows_of(planned, measured, found_of(planned, ledger or Ledger()))
        rounds = [str(planned.rounds_of(arm)) for arm in planned.arms]
        few = (frame["Seeds"] < len(planned.seeds)) | (frame["Rounds"] != rounds)
        ours = [
            "diverged" if status == "diverged" else _cell(*row)
            for status, *row in zip(frame["Status"], frame["Ours (%)"], frame["s.d."], few, strict=True)
        ]
        if frame["Paper (%)"].notna().any():
            parts[own, "paper"] = frame["Paper (%)"].map(_number)
        parts[own, "ours"] = pd.Series(ours, index=frame.index)
        gaps[own, "ours"] = frame["Gap"].tolist()
    shown = pd.concat(parts, axis=1)
    mine = [parts[column] for column in parts if column[1] == "ours"]
    ran = [any(column[row] != NOT_RUN for column in mine) for row in shown.index]
    shown = shown[ran].rename(index=labels)
    shown.index.name = "Method"

    def colors(column: pd.Series) -> list[str]:
        own = gaps.get(column.name, [np.nan] * len(ran))
        return [shade(gap) for gap, kept in zip(own, ran, strict=True) if kept]

    return styled(shown).apply(colors).set_table_styles([{"selector": "td", "props": "white-space: nowrap"}])


def not_run(*names: str, ledger: Ledger | None = None) -> Markdown:
    """In a line: which rows of some experiments have no run, and the command that lists what to type; or that all have."""
    said = []
    for name, own in zip(names, own_names(names), strict=True):
        found = runs_of(experiment := get_experiment(name), ledger or Ledger())
        lacking = [experiment.arm(key).label for key, some in found.items() if not some]
        if lacking:
            said.append(f"*{own}*" + ("" if len(lacking) == len(found) else f" ({', '.join(lacking)})"))
    about = f"Not run yet: {'; '.join(said)}. `pfl-lite ledger missing NAME` prints the commands, e.g. for `{names[0]}`."
    # a page would show the name of this class in place of an empty text
    return Markdown(about if said else "Every row has a run.")


def _one_label(labels: Sequence[str]) -> str:
    """What several experiments call an arm: what all say, else what stands before the first bracket."""
    return labels[0] if len(set(labels)) == 1 else labels[0].partition(" (")[0].partition(" [")[0]


def begun(*names: str, ledger: Ledger | None = None) -> list[str]:
    """Those of some experiments that have a complete run."""
    there = ledger or Ledger()
    return [name for name in names if any(runs_of(get_experiment(name), there).values())]


def statuses(*names: str, ledger: Ledger | None = None) -> pd.DataFrame:
    """How many rows of each experiment's table have which status."""
    counts = {name: table_of(name, ledger)["Status"].value_counts() for name in names}
    return pd.DataFrame(counts).T.fillna(0).astype(int).rename_axis("experiment").reset_index()


def _number(value: float) -> str:
    """A number of points with two digits, or a dash."""
    return NOT_RUN if np.isnan(value) else f"{value:.2f}"


def _cell(mean: float, sd: float, few: bool) -> str:
    """Mean and, from two seeds on, standard deviation; a star where seeds or rounds are missing."""
    return _number(mean) + ("" if np.isnan(sd) else f" ± {sd:.2f}") + "*" * (few and not np.isnan(mean))


def verdicts(results: Sequence[ClaimResult]) -> Styler:
    """Claims with verdict, statistic and interval, the verdict colored; three columns, so that a narrow page shows them.

    The evidence is a number, which everyone reads, and remarks for those who check it, which are folded.
    """
    shown = pd.DataFrame(
        {
            "claim": [f"{one.id}: {one.text}" for one in results],
            "verdict": [one.says for one in results],
            "evidence": ["; ".join(filter(None, (_statistic(one), one.note))) for one in results],
        }
    )

    def color(verdict: object) -> str:
        word = str(verdict).split()[0]  # of `held at 30 rounds (1 seed)`
        shade = PALE if "(1 seed)" in str(verdict) else STRONG
        return f"background-color: rgba({VERDICTS[word]},{shade})" if word in VERDICTS else ""

    looks = (
        styled(shown).hide(axis="index").map(color, subset=["verdict"]).format(_listed, subset=["evidence"])
    )
    return looks.set_table_attributes('class="verdicts"')  # which a narrow page lays out cell under cell


def _listed(evidence: object) -> str:
    """Remarks as HTML: the first as a line, the others as a folded list below it."""
    first, *others = map(escape, str(evidence).split("; "))
    items = "".join(f"<li>{one}</li>" for one in others)
    return first + (f"<details><summary>details</summary><ul>{items}</ul></details>" if others else "")


def _statistic(result: ClaimResult) -> str:
    """A claim's number with its interval, and the bound if it is not 0: `difference: 0.2 points [-0.2, 0.6], bound 1`."""
    if result.value is None:
        return ""
    interval = "" if result.interval is None else " [{:.2f}, {:.2f}]".format(*result.interval)
    bound = f", bound {result.threshold:.3g}" if result.threshold else ""
    what = result.statistic.removesuffix(", points")
    unit = " points" if what != result.statistic else ""
    return f"{what}: {result.value:.3g}{unit}{interval}{bound}"


def costs(*names: str, ledger: Ledger | None = None) -> pd.DataFrame:
    """What the runs took: rounds, floats that a sampled client received and sent a round, images trained on, core hours.

    A row that takes over another row's training counts the images and hours that it spent after it. A row that shows runs of
    another experiment is left out where that one is among `names`.
    """
    rows = []
    for name in names:
        experiment = get_experiment(name)
        found = runs_of(experiment, ledger or Ledger())
        for arm in (arm for arm in experiment.arms if arm.run_of not in names):
            before = {run["seed"]: _spent(run) for run in found.get(arm.trained_by or "", [])}
            for run in found[arm.key]:
                spent = _spent(run)
                if run["seed"] in before:  # trained apart, the second may have had a quicker machine
                    spent = np.maximum(spent - before[run["seed"]], 0)
                sampled = max(sum(len(entry["clients"]) for entry in run["rounds"]), 1)
                floats = (
                    sum(e[way] for e in run["rounds"]) / sampled / 1e3 for way in ("floats_down", "floats_up")
                )
                head = name, arm.label, run["seed"], run["rounds"][-1]["round"]
                scored = accuracy(run, next(iter(experiment.measures)))
                rows.append((*head, *floats, *spent / (1e6, 3600), scored))
    kinds = ["thousand floats down a round", "thousand floats up a round", "million images", "core hours"]
    return pd.DataFrame(rows, columns=["experiment", "method", "seed", "rounds", *kinds, "accuracy (%)"])


def _spent(run: Run) -> np.ndarray:
    """Images that a run was trained on, NaN where it did not count them, and seconds."""
    return np.array([run.get("images_trained") or np.nan, run["seconds"]])
