"""Tables, verdicts, lists and finished runs as text, Markdown or CSV."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from tabulate import tabulate

from pfl_lite.engine.history import DIVERGED
from pfl_lite.errors import one_of
from pfl_lite.papers.statement import ClaimResult
from pfl_lite.results.audit import Missing

if TYPE_CHECKING:
    from pfl_lite.engine.simulation import Simulation

FORMATS = ("text", "markdown", "csv")
WIDTH, LAST = 120, 60  # characters of a note, and of the last column, before they are wrapped


def render(frame: pd.DataFrame, format: str = "text", digits: int = 2) -> str:
    """A table between its title and its notes (`attrs`) as `text` or `markdown`, or alone as `csv` with so many digits.

    Raises:
        InputError: an unknown format.
    """
    if one_of("format", format, FORMATS) == "csv":
        return frame.to_csv(index=False, float_format=f"%.{digits}f")
    title, notes = frame.attrs.get("title", ""), frame.attrs.get("notes", [])
    cells = frame.map(written)
    if format == "markdown":
        body = _grid(cells.map(lambda cell: " ".join(cell.splitlines()).replace("|", "\\|")), "github")
        parts = [f"**{title}**" if title else "", body, "\n".join(f"- {note}" for note in notes)]
    else:
        body = _grid(cells, "simple", maxcolwidths=[None] * (frame.shape[1] - 1) + [LAST])
        said = [textwrap.fill(note, WIDTH, initial_indent="* ", subsequent_indent="  ") for note in notes]
        parts = [title, body, "\n".join(said)]
    return "\n\n".join(part for part in parts if part).rstrip() + "\n"


def _grid(cells: pd.DataFrame, kind: str, **how: Any) -> str:
    return "" if cells.empty else _aligned(cells, kind, headers="keys", showindex=False, **how)


def _aligned(rows: Any, kind: str, **how: Any) -> str:
    words: dict[str, Any] = {"disable_numparse": True, "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(line.rstrip() for line in tabulate(rows, tablefmt=kind, **words, **how).splitlines())


def written(value: object) -> str:
    """A cell: a number with two digits where it needs them, a dash where there is none."""
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.2f}".removesuffix(".00")
    return str(value)


def render_table(frame: pd.DataFrame, format: str = "text") -> str:
    """A table *paper | ours* (`pfl_lite.results.tables.table`), with mean, spread and seeds in one column unless it is `csv`."""
    if format == "csv":
        return render(frame, format)
    ours = [
        "-" if math.isnan(mean) else f"{mean:.2f}{'' if math.isnan(sd) else f' ± {sd:.2f}'} (n = {seeds})"
        for mean, sd, seeds in zip(frame["Ours (%)"], frame["s.d."], frame["Seeds"], strict=True)
    ]
    numbers = {
        name: ["-" if math.isnan(value) else f"{value:{form}}" for value in frame[name]]
        for name, form in (("Paper (%)", ".2f"), ("Gap", "+.2f"))
    }
    shown = frame.assign(**{"Ours (%)": ours}, **numbers)
    shown = shown[["Method", "Paper (%)", "Ours (%)", "Gap", "Status", "Rounds", "Reason"]]
    shown.attrs = frame.attrs
    return render(shown, format)


def render_verdicts(results: Sequence[ClaimResult]) -> str:
    """Claims as text: name and verdict, what is claimed, the statistic with its uncertainty, and the note."""
    rows = []
    for one in results:
        number = "no statistic" if one.value is None else f"{one.statistic}: {one.value:.3g}"
        number += "" if one.se is None else f" ± {one.se:.2g} (s.e.)"
        number += "" if one.interval is None else " [{:.3g}, {:.3g}]".format(*one.interval)
        number += "" if one.threshold is None else f"; threshold {one.threshold:g}"
        told = "\n".join(filter(None, [one.text, number, one.note]))
        rows.append([one.id, one.says, told])
    return _aligned(rows, "plain", maxcolwidths=[None, None, 68]) + "\n"


def render_missing(found: Sequence[Missing], more: str = "") -> str:
    """Commands under one another, each after what it takes; `more` are words that every command ends with."""
    rows = []
    for one in found:
        where = "  # where the data are" if one.unavailable else ""
        after = f"  # after: {one.after}{more}" if one.after else ""
        rows.append([one.takes, f"{one.command}{more}{where}{after}"])
    return listed(rows)


def listed(rows: Any) -> str:
    """Rows of words as aligned columns, without headings."""
    return _aligned(rows, "plain")


def render_opening(simulation: Simulation) -> str:
    """What is about to be trained, in a line."""
    config, data = simulation.config, simulation.federation
    begun = f"; goes on from the checkpoint's round {simulation.round}" if simulation.round else ""
    return (
        f"{config.method.name}: {config.data} over {len(data)} clients by {config.partition}, "
        f"{int(data.train_sizes.sum()):,} training images; {config.model} of {simulation.network.parameters:,} "
        f"parameters; rounds {config.rounds}, local epochs {config.epochs}, {config.device}{begun}"
    )


def render_report(report: dict[str, Any], unseen: list[int]) -> str:
    """A finished run in a few lines; `unseen` are the clients that were held out of it."""
    last = report["rounds"][-1]
    names = {"personal": "personal models", "global": "global model", "tuned": "after fine-tuning"}
    # clients without test images have no score
    tested = {i for i, images in enumerate(report["final"]["test_size"]) if images}
    lines = [f"{report['method']}, round {last['round']}, means over {len(tested - {*unseen})} clients:"]
    lines += _scores(last, "", names)
    if newcomers := _scores(last, "unseen_", names):
        lines += [f"  newcomers, means over {len(tested & {*unseen})} clients:", *newcomers]
    for key, scores in last.get("whole_test", {}).items():
        both = [
            f"{name.replace('_', ' ')} {100 * scores[name]:6.2f}%" for name in ("global_test", "local_test")
        ]
        lines.append(f"  {names[key]:<18} on all test images: {', '.join(both)}")
    lines.append(
        f"  floats per round: {last['floats_down']:,} down, {last['floats_up']:,} up;  "
        f"{report['seconds']:.1f} s, {report['images_per_second']:,.0f} images/s in training"
    )
    return "\n".join(lines)


def _scores(entry: dict[str, Any], prefix: str, names: dict[str, str]) -> list[str]:
    """A line for every kind of model (key -> title in `names`) that a round has scored, on clients by the `prefix`."""
    lines = []
    for key, title in names.items():
        accuracy, loss = (entry.get(f"{prefix}{key}_{quantity}") for quantity in ("accuracy", "loss"))
        if accuracy is not None:
            lost = loss is None or loss > DIVERGED
            shown = (
                f"{'not a number' if loss is None else f'{loss:.1e}'}: training diverged, try a smaller --lr"
            )
            shown = shown if lost else f"{loss:.4f}"
            lines.append(f"  {title:<18} test accuracy {100 * accuracy:6.2f}%   loss {shown}")
    return lines
