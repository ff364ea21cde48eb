"""The comparison (chapter *Compare the methods*): curves, clients in pairs and ranks, from the runs of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets

from pfl_lite.errors import InputError
from pfl_lite.experiments import comparison
from pfl_lite.plots import (
    colour,
    label,
    plot_curves,
    plot_pairs,
    plot_ranks,
)
from pfl_lite.widgets.frame import fixed, live, page, plural, rounded, shown, width_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VIEWS = {"curves": "curves by round", "pairs": "clients, A against B", "ranks": "ranks"}
_LINES = 8  # of so many methods the page draws the curves before a reader chooses


def comparison_explorer(record: Mapping[str, Any]) -> ipywidgets.VBox:
    """Methods side by side from the runs of the ledger: curves, clients in pairs, and ranks.

    Takes what `comparison_explorer_page` takes, and raises the same errors.
    """
    known = record_of(record)
    entries, wide = known["experiments"], width_for(7)
    titles = [(entry["title"], at) for at, entry in enumerate(entries)]
    views = [(words, kind) for kind, words in known["views"]]
    summaries = [(words, summary) for summary, words in known["summaries"].items()]
    controls: dict[str, Any] = {
        "at": ipywidgets.Dropdown(options=titles, description="experiment", **wide),
        "metric": ipywidgets.Dropdown(description="accuracy on", **wide),
        "kind": ipywidgets.Dropdown(options=views, description="view", **wide),
        "summary": ipywidgets.Dropdown(options=summaries, description="summary", **wide),
        "a": ipywidgets.Dropdown(description="A, across", **wide),
        "b": ipywidgets.Dropdown(description="B, up", **wide),
        "methods": ipywidgets.SelectMultiple(description="methods", rows=8, **wide),
    }

    def begin(_: object = None) -> None:
        entry = entries[controls["at"].value]
        names = [(method["name"], method["key"]) for method in entry["methods"]]
        controls["metric"].options = [(known["metrics"][metric], metric) for metric in entry["metrics"]]
        controls["metric"].value = entry["metrics"][0]
        for side in ("a", "b"):
            controls[side].options = names
            controls[side].value = entry[side]
        controls["methods"].options = names
        controls["methods"].value = [method["key"] for method in entry["methods"] if method["start"]]

    def show(at: int, metric: str | None, methods: Sequence[str], **chosen: Any) -> str:
        entry, kind = entries[at], chosen["kind"]
        for name, kinds in {
            "summary": "curves",
            "a": "pairs",
            "b": "pairs",
            "methods": "curves ranks",
        }.items():
            controls[name].disabled = kind not in kinds
        keys = {method["key"] for method in entry["methods"]}
        if (
            metric is None
            or metric not in entry["metrics"]
            or not {chosen["a"], chosen["b"], *methods} <= keys
        ):
            return ""  # the controls are on their way to another experiment
        words, figure = _compared(known, entry, metric=metric, methods=methods, **chosen)
        return shown(words, figure) if figure else f"<p>{words}</p>"

    begin()
    controls["at"].observe(begin, names="value")
    return live(controls, show)


def comparison_explorer_page(record: Mapping[str, Any]) -> str:
    """Methods side by side from the runs of the ledger, as one piece of HTML that computes in the page.

    Args:
        record: what `pfl_lite.experiments.comparison.record` gives.

    Raises:
        InputError: the record holds no experiment.
    """
    return page("comparison", record_of(record))


def record_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """A comparison's record with what both explorers show besides: names, colours, dashes, and what is chosen at first."""
    if not record["experiments"]:
        raise InputError("a comparison needs an experiment with at least two complete runs")
    entries = []
    for entry in record["experiments"]:
        means = comparison.curves(entry, "scored").groupby("arm")["value"].last()
        first = means.sort_values(ascending=False).index[:_LINES]
        shades: list[str] = []
        methods = []
        for method in entry["methods"]:
            shade = colour(method["key"], method["method"])
            known = {"name": label(method["label"]), "colour": shade, "dash": shades.count(shade)}
            methods.append(method | known | {"start": method["key"] in first})
            shades.append(shade)
        keys = [method["key"] for method in methods]
        entries.append(
            entry | {"methods": methods, "a": "fedavg" if "fedavg" in keys[:-1] else keys[0], "b": keys[-1]}
        )
    return {**record, "views": list(_VIEWS.items()), "experiments": entries}


def _compared(
    record: Mapping[str, Any], entry: Mapping[str, Any], *, kind: str, metric: str, summary: str,
    methods: Sequence[str], a: str, b: str,
) -> tuple[str, Figure | None]:  # fmt: skip
    """The words and the picture of one view; no picture where there is nothing to compare."""
    names = {method["key"]: method["name"] for method in entry["methods"]}
    shades = {method["key"]: method["colour"] for method in entry["methods"]}
    chosen = [a, b] if kind == "pairs" else [key for key in names if key in methods]
    frame = comparison.curves(entry, metric, summary, chosen)
    there = set(frame["arm"])
    without = ", ".join(names[key] for key in names if key in chosen and key not in there)
    lacking = f"; not kept by {without}" if without else ""
    head = f"{entry['title']}; {record['metrics'][metric]}"
    if kind == "curves":
        if not there:
            return escape(f"{head}: choose a method that has it{lacking}"), None
        runs = frame.groupby("arm")["seed"].transform("nunique")
        frame = frame[
            frame.groupby(["arm", "round"])["seed"].transform("size") == runs
        ]  # rounds of all seeds
        ends = frame[frame["round"] == frame.groupby("arm")["round"].transform("max")]
        last = ends.groupby("arm", sort=False)["value"].mean()
        last = last.sort_values(ascending=False, kind="stable")
        said = ", ".join(f"{names[key]} {fixed(value, 1)}" for key, value in last.items())
        words = f"{head}, {record['summaries'][summary]}, after the last round: {said}{lacking}"
        # as in the page: before round 1 nobody has trained, and the lines would lie close together above it
        later = frame[(frame["round"] > 0) | (frame.groupby("arm")["round"].transform("nunique") == 1)]
        return escape(words), plot_curves(
            later, percent=False, ylabel="test accuracy (%)", colours=shades, names=names
        )
    table = comparison.paired(entry, metric, chosen)
    if not len(table) or (kind == "pairs" and len(there) < 2):
        wanted = "two methods" if kind == "pairs" else "methods"
        return escape(f"{head}: choose {wanted} with a common seed{lacking}"), None
    seeds = table.index.get_level_values("seed").nunique()
    counted = f"{plural(len(table), 'client')} of {plural(seeds, 'seed')}"
    if kind == "ranks":
        found = comparison.ranks(table)
        said = ", ".join(
            f"{names[key]} {fixed(rank, 2)} ({fixed(mean, 1)}, {fixed(worst, 1)})"
            for key, rank, mean, worst in found.itertuples()
        )
        words = f"{head}; {counted}; mean rank (mean, worst tenth): {said}{lacking}"
        return escape(words), plot_ranks(found, colours=shades, names=names)
    difference = (table[b] - table[a]).round(2)
    above, below, equal = (
        f"{rounded(100 * holds.mean()):.0f} %" for holds in (difference > 0, difference < 0, difference == 0)
    )
    points = difference.mean()
    words = (
        f"{head}; {counted}: {names[b]} is above {names[a]} for {above}, below for {below}, equal for {equal}; "
        f"mean difference {'-' if points < 0 else '+'}{fixed(abs(points), 2)} points"
    )
    axes = [f"{side}: {names[key]} (%)" for side, key in (("A", a), ("B", b))]
    return escape(words), plot_pairs(table[a], table[b], names=axes, colour=shades[b])
