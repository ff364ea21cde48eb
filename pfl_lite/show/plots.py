"""Figures in one style: who holds what, accuracy per round and per client, routes through a pool of blocks; a method has one
color everywhere.

Learning curves of runs of your own, `runs = {name: run(name, ...) for name in names}`, and of those that are stored:
`plot_curves(pd.concat([one.history.frame().assign(method=name) for name, one in runs.items()]), quantity="accuracy")`,
`plot_curves(Ledger().frame("pfedmb-table1"), quantity="tuned")`.

Every function returns a closed `Figure`: a notebook shows it once when it is a cell's last expression, and
`figure.savefig(...)` works as ever.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import resources
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from PIL import Image

from pfl_lite.errors import InputError, one_of
from pfl_lite.models.modular import decisions, in_use

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from pfl_lite.data.federation import Federation
    from pfl_lite.engine.history import History

# Okabe and Ito's palette for the methods met first, the others chosen far from them and from each other, also
# for readers with red-green blindness (a test simulates it). So many colors cannot all be safe: markers
# differ as well.
_METHODS = {  # label, color
    "local": ("Local", "#6E6E6E"),
    "fedavg": ("FedAvg", "#0072B2"),
    "fedprox": ("FedProx", "#56B4E9"),
    "pfl_ft": ("PFL-FT", "#004BE1"),
    "pfl_fb": ("PFL-FB", "#5A3C78"),
    "fedper": ("FedPer", "#009E73"),
    "pfedme": ("pFedMe", "#332288"),
    "ifca": ("IFCA", "#CC79A7"),
    "cfl": ("Clustered FL", "#882255"),
    "fedfomo": ("FedFomo", "#999933"),
    "fedamp": ("FedAMP", "#84CC3F"),
    "fedem": ("FedEM", "#B65CF0"),
    "pfedmb": ("pFedMB", "#D55E00"),
    "pfedmb_plain": ("pFedMB, eq. 6", "#E69F00"),
    "ditto": ("Ditto", "#117733"),
    "apfl": ("APFL", "#F4A582"),
    "perfedavg": ("Per-FedAvg", "#D200B4"),
    "scaffold": ("SCAFFOLD", "#661100"),
    "moon": ("MOON", "#9678E1"),
    "fedrep": ("FedRep", "#33C5C9"),
    "lg_fedavg": ("LG-FedAvg", "#9CCB9C"),
    "pfedhn": ("pFedHN", "#C3001E"),
    "fedmn": ("FedMN", "#E8175D"),
    "pfl_moe": ("PFL-MoE", "#6900B4"),
    "pfl_mf": ("PFL-MF", "#783C3C"),
    "pfl_mfe": ("PFL-MFE", "#8A7A5C"),
}
METHOD_LABELS = {name: label for name, (label, _) in _METHODS.items()}
METHOD_COLORS = {name: color for name, (_, color) in _METHODS.items()}
_MARKERS = "osD^vPX<>"
EXPERT_COLORS: dict[str, str] = {
    "global expert": "#0072B2",
    "personal expert": "#E69F00",
    "mixture": "#1F2933",
}
_GROUP_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

SHARP = 2  # dots drawn for each dot of a page, both ways
BOOK: dict[str, Any] = {
    "figure.dpi": 110,
    "savefig.dpi": "figure",
    "figure.constrained_layout.use": True,
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "xtick.bottom": True,
    "ytick.left": True,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#4D4D4D",
    "axes.linewidth": 0.8,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.0,
    "lines.markersize": 5.5,
    "patch.force_edgecolor": False,
    "image.cmap": "viridis",
}
"""The book's own looks, over seaborn's `whitegrid`."""
STYLE: dict[Any, Any] = sns.plotting_context("notebook") | sns.axes_style("whitegrid") | BOOK


def use_style() -> None:
    """Make every figure drawn from now on look like those of this module, and a notebook's also `sharp`."""
    sns.set_theme(style="whitegrid", palette="tab10", font="DejaVu Sans", rc=BOOK)
    try:
        shell: Any = get_ipython()  # type: ignore[name-defined]
    except NameError:  # a script, not a notebook
        return
    if "inline" in plt.get_backend():
        # loaded later it would take the place of `sharp`
        importlib.import_module("matplotlib_inline.backend_inline")
        pictures = shell.display_formatter.formatters["image/png"]
        if Figure in pictures.type_printers:  # not where the reader has asked for SVG
            pictures.for_type(Figure, sharp)


def sharp(figure: Figure) -> tuple[bytes, dict[str, int]]:
    """A notebook's picture of a figure for fine screens and paper: a PNG, and the width at which a page shows it."""
    picture, width = _png(figure, 256, SHARP, bbox_inches="tight")
    return picture, {"width": width}


def _png(figure: Figure, colors: int, dots: int, **how: Any) -> tuple[bytes, int]:
    """A figure as a PNG of few colors, which are enough for a drawing and half as large, and its width on a page in pixels."""
    drawn, small = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=dots * figure.dpi, **how)
    picture = Image.open(drawn).convert("RGB").quantize(colors)
    picture.save(small, "png", optimize=True)
    return small.getvalue(), picture.width // dots


def color(method: str, otherwise: str = "") -> str:
    """The color of a method or of an arm named after one (`pfedmb-plain`, `fedavg+ft`); of the method `otherwise` for an arm
    with another name (`b5`); black for anything else.
    """
    known = (METHOD_COLORS.get(_method_of(name)) for name in (method, otherwise))
    return next(filter(None, known), "#000000")


def shades(rows: Mapping[str, str]) -> dict[str, str]:
    """Colors of rows, name -> method: the method's own, and a lighter one for each further row of it."""
    found = {}
    for name, method in rows.items():
        mates = [other for other, one in rows.items() if one == method]
        found[name] = sns.light_palette(color(method), len(mates) + 1).as_hex()[-1 - mates.index(name)]
    return found


def group_color(group: int) -> str:
    """The color of a group of clients; after six groups the colors come again."""
    return _GROUP_COLORS[group % len(_GROUP_COLORS)]


def label(method: str) -> str:
    """The name of a method as the papers write it; other names stay as they are."""
    return METHOD_LABELS.get(method.replace("-", "_"), method)


def plot_partition(federation: Federation | ArrayLike) -> Figure:
    """Draw who holds what: training images per client above, and a client x class picture of the counts below.

    `federation` is a Federation or an array of counts [clients, classes]; a bubble's area is proportional to its number of
    images. Raises InputError for another shape.
    """
    counted = getattr(federation, "class_counts", None)
    counts = np.asarray(federation if counted is None else counted("train"))
    if counts.ndim != 2 or counts.size == 0 or counts.min() < 0 or counts.max() == 0:
        raise InputError("a partition's picture needs counts [clients, classes] with at least one image")
    card = getattr(federation, "card", None)
    names = [str(c) for c in range(counts.shape[1])] if card is None else list(card.classes)
    with plt.rc_context(STYLE):
        figure = _bubbles(counts, names)
    plt.close(figure)
    return figure


def plot_curves(
    frame: pd.DataFrame,
    *,
    quantity: str | None = None,
    percent: bool = True,
    ylabel: str | None = None,
    colors: Mapping[str, str] | None = None,
) -> Figure:
    """Draw one line a method over the rounds, with a band from the lowest to the highest seed.

    `frame` is tidy: `round`, `value` and `method` (or `arm`, which goes first), optionally `seed`, `client`
    (averaged over) and `quantity` (to choose from with the argument). Of several `split`s and `model`s, as in a run's
    `history.frame()`, the clients' own models (`personal`) on test images are drawn. Fractions are shown as percentages
    unless `percent` is off. `colors` of some methods go before those of the book. Raises InputError for missing columns or an
    unclear quantity.
    """
    colors = colors or {}
    frame, by = _tidy(frame, quantity, ("round", "value"))
    seeds = frame["seed"].nunique() if "seed" in frame else 1
    each = [by, "round", "seed"] if "seed" in frame else [by, "round"]
    table = frame.groupby(each, sort=False)["value"].mean().mul(100 if percent else 1).reset_index()
    ends = table[table["round"] == table.groupby(by)["round"].transform("max")].groupby(by)["value"].mean()
    order = ends.sort_values(ascending=False).index.tolist()  # the legend in the order of the lines' ends
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.6, 4.2))
        sns.lineplot(
            table, x="round", y="value", hue=by, style=by, hue_order=order, style_order=order, dashes=False,
            palette={name: colors.get(name) or color(name) for name in order},
            markers={name: _marker(name) for name in order}, markevery=max(1, table["round"].nunique() // 8),
            errorbar=("pi", 100) if seeds > 1 else None, err_kws={"alpha": 0.18}, ax=axes,
        )  # fmt: skip
        axes.set(
            xlabel="round", ylabel=ylabel or ("mean test accuracy of the clients (%)" if percent else "value")
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        note = f"band: lowest to\nhighest of {seeds} seeds" if seeds > 1 else None
        handles = axes.get_legend_handles_labels()[0]
        axes.legend(
            handles, [label(name) for name in order], loc="upper left", bbox_to_anchor=(1.01, 1),
            title=note, title_fontsize=9, alignment="left",
        )  # fmt: skip
    plt.close(figure)
    return figure


def plot_history(history: History, method: str = "") -> Figure:
    """Draw a run over its rounds: on the left the mean test accuracy of the clients, on the right their mean loss.

    Each kind of model that was scored has a line; the clients' own models have the color of `method`, whose name stands above.
    """
    own, table = color(method), history.means().set_index("round")
    kinds = {"personal": ("personal models", own, "o-"), "global": ("global model", "#4D4D4D", "s--")}
    kinds |= {"tuned": ("after fine-tuning", own, "*:")}
    with plt.rc_context(STYLE | {"lines.markersize": 7}):
        figure, panels = plt.subplots(1, 2, figsize=(8.6, 3.4))
        for axes, quantity in zip(panels, (history.metric, "loss"), strict=True):
            percent = quantity == "accuracy"
            for kind, (name, shade, mark) in kinds.items():
                line = table.get(f"{kind}_{quantity}")
                if line is None or (kind == "global" and line.equals(table[f"personal_{quantity}"])):
                    continue
                line = line.dropna().astype(float) * (100 if percent else 1)
                axes.plot(line.index, line, mark, color=shade, label=name, markevery=max(1, len(line) // 8))
            axes.set(xlabel="round", ylabel=f"mean test {quantity}{' (%)' * percent}")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        panels[0].set_title(label(method))
        panels[1].legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    plt.close(figure)
    return figure


def plot_clients(frame: pd.DataFrame, *, quantity: str | None = None, percent: bool = True) -> Figure:
    """Draw how clients are spread, a row a method: one dot a client, quartiles as a box, the mean as a diamond.

    `frame` is tidy: `client`, `value` and `method` (or `arm`), optionally `seed` (averaged over), `quantity` (to choose from) and
    `round` (the last is taken); of several `split`s and `model`s as `plot_curves`. Raises InputError for missing columns or an
    unclear quantity.
    """
    frame, by = _tidy(frame, quantity, ("client", "value"))
    if "round" in frame:
        frame = frame[frame["round"] == frame.groupby(by)["round"].transform("max")]
    table = frame.groupby([by, "client"], sort=False)["value"].mean().mul(100 if percent else 1).reset_index()
    order = table.groupby(by)["value"].mean().sort_values(ascending=False).index.tolist()
    shared: dict[str, Any] = {"x": "value", "y": by, "order": order}
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.6, float(np.clip(0.5 * len(order) + 1.1, 2, 12))))
        mean = {"marker": "D", "markerfacecolor": "white", "markeredgecolor": "#1F2933"}
        sns.boxplot(
            table, **shared, color="#E3E3E3", showfliers=False, showmeans=True, meanprops=mean, ax=axes
        )
        palette = {name: color(name) for name in order}
        sns.stripplot(table, **shared, hue=by, palette=palette, alpha=0.7, legend=False, jitter=0.15, ax=axes)
        axes.set_yticks(range(len(order)), [label(name) for name in order])
        axes.set(xlabel="test accuracy of a client (%)" if percent else "value", ylabel="")
    plt.close(figure)
    return figure


def plot_pairs(a: ArrayLike, b: ArrayLike, *, names: Sequence[str]) -> Figure:
    """Draw one dot a client: method A's accuracy across, method B's up, and the diagonal on which they are equal.

    `a` and `b` are in percent, in the same order; `names` stand at the axes. Raises InputError for unequal numbers.
    """
    across, up = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if across.shape != up.shape or across.ndim != 1 or not len(across):
        raise InputError(
            f"pairs need one accuracy of each method a client, not {across.shape} and {up.shape}"
        )
    low, high = min(across.min(), up.min()), max(across.max(), up.max())
    edge = 0.05 * max(high - low, 1.0)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(4.8, 4.8))
        axes.axline((low, low), slope=1, color="#4D4D4D", linestyle="--", lw=1)
        sns.scatterplot(x=across, y=up, s=28, color="#0072B2", alpha=0.75, linewidth=0, ax=axes)
        axes.set(xlabel=names[0], ylabel=names[1], aspect="equal")
        axes.set(xlim=(low - edge, high + edge), ylim=(low - edge, high + edge))
    plt.close(figure)
    return figure


def plot_routes(
    blocks: Sequence[int],
    bits: ArrayLike,
    *,
    groups: Sequence[int] | None = None,
    titles: Sequence[str] | None = None,
) -> Figure:
    """Draw the network that every client assembles from one pool of blocks (FedMN), colored by its group.

    `blocks` are those of each layer, encoders first; `bits` are the decisions [clients, decisions], 0 or 1, in the order of
    `pfl_lite.models.modular`. A wire is colored if its bit is on and both its ends are in use. One or two clients are drawn
    large, with layer and number in every block, and more of them small, above a key. Raises InputError for other shapes.
    """
    on = torch.as_tensor(np.asarray(bits, dtype=float))
    if on.ndim != 2 or not len(on) or on.shape[1] != decisions(blocks):
        raise InputError(
            f"bits must be [clients, {decisions(blocks)} decisions] for blocks {'x'.join(map(str, blocks))}, "
            f"not {list(on.shape)}"
        )
    titles = titles if titles is not None else [f"client {i}" for i in range(len(on))]
    groups = groups if groups is not None else [0] * len(on)
    if not len(titles) == len(groups) == len(on):
        raise InputError(f"{len(titles)} titles and {len(groups)} groups do not fit {len(on)} clients")
    large, columns = len(on) <= 2, min(len(on), 4)
    rows, (wide, high) = -(-len(on) // columns), (4.1, 2.9) if large else (2.05, 1.75)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(rows, columns, figsize=(wide * columns, high * rows), squeeze=False)
        for place in axes.flat:
            place.axis("off")
        for place, own, group, title in zip(axes.flat, on, groups, titles, strict=False):
            _wiring(place, blocks, own, group_color(group), large)
            place.set_title(title, **({} if large else {"fontsize": 10}))
        if not large:
            dot: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 9}
            key = [
                Line2D([], [], color="#4D4D4D", lw=1.8, label="wire in use"),
                Line2D([], [], color="#D5D5D5", lw=1, label="off"),
                Line2D([], [], mfc="#4D4D4D", mec="#4D4D4D", label="block in use", **dot),
                Line2D([], [], mfc="white", mec="#4D4D4D", label="not sent", **dot),
                Line2D([], [], mfc="white", mec="#4D4D4D", label="prediction", **dot | {"marker": "s"}),
            ]
            figure.legend(handles=key, loc="outside lower center", ncols=5 if columns > 3 else 3)
    plt.close(figure)
    return figure


def _wiring(axes: Axes, blocks: Sequence[int], on: torch.Tensor, shade: str, large: bool) -> None:
    """One client's wires and blocks: layers from left to right, the prediction at the right."""
    layers = [[(x, n / 2 - y) for y in range(n)] for x, n in enumerate(blocks)]
    goal = len(blocks), 0.5
    sent = [1.0] * blocks[0] + in_use(on, blocks).tolist()
    used = dict(zip([spot for layer in layers for spot in layer], sent, strict=True)) | {goal: 1.0}
    wires = [(a, b) for one, two in pairwise([*layers, [goal]]) for b in two for a in one]
    for (a, b), bit in zip(wires, on.tolist(), strict=True):  # in the order of the decisions
        live = bool(bit and used[a] and used[b])
        tint, thick = (shade, 2.6 if large else 1.8) if live else ("#D5D5D5", 1)
        axes.plot(*zip(a, b, strict=True), zorder=1 + live, color=tint, lw=thick)
    for x, layer in enumerate(layers):
        for y, spot in enumerate(layer):
            face, ink = (shade, "white") if used[spot] else ("white", "#4D4D4D")
            axes.plot(*spot, "o", ms=21 if large else 9, mfc=face, mec="#4D4D4D", zorder=3)
            if large:
                axes.text(*spot, f"{x + 1},{y + 1}", ha="center", va="center", color=ink, zorder=4, size=9)
    axes.plot(*goal, "s", ms=15 if large else 8, mfc="white", mec="#4D4D4D", zorder=3)
    if large:
        axes.text(*goal, r"$\hat y$", ha="center", va="center", zorder=4)
    reach = max(blocks) / 2 + 0.1
    axes.set(xlim=(-0.5, len(blocks) + 0.4), ylim=(0.5 - reach, 0.5 + reach))


def _method_of(name: str) -> str:
    """The longest method name that `name` starts with, or `name`."""
    name = name.replace("-", "_")
    starts = (
        one for one in METHOD_COLORS if name == one or name.startswith((f"{one}_", f"{one}+", f"{one}:"))
    )
    return max(starts, key=len, default=name)


def _marker(method: str) -> str:
    order = list(METHOD_COLORS)
    name = _method_of(method)
    return _MARKERS[order.index(name) % len(_MARKERS)] if name in order else "*"


class Player:
    """An animation as one piece of HTML: pictures, controls and script; it needs no kernel and no network."""

    def __init__(self, frames: Mapping[str, bytes], alt: str, width: int, opens: str | None = None) -> None:
        self.frames, self.alt, self.width, self.opens = frames, alt, width, opens

    def _repr_html_(self) -> str:
        folder = resources.files("pfl_lite") / "static"
        style, script = ((folder / f"player.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
        last = len(self.frames) - 1
        still = last if self.opens is None else list(self.frames).index(self.opens)
        pictures = "\n".join(
            f'<img alt="{escape(self.alt)}; {escape(name)}" data-name="{escape(name)}"{"" if i == still else " hidden"} '
            f'width="{self.width}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
            for i, (name, png) in enumerate(self.frames.items())
        )
        return (
            f'<div class="pfl-player" role="group" aria-label="{escape(self.alt)}" '
            f'data-interval="600"{"" if self.opens is None else " data-opens"}>\n{pictures}\n<div class="controls" hidden>'
            '<button type="button">Back</button><button type="button">Play</button><button type="button">Next</button>'
            f'<input type="range" min="0" max="{last}" value="{still}" aria-label="frame"><output></output></div></div>\n'
            f"<style>\n{style}</style>\n<script>\n{script}</script>\n"
        )


def animate(
    figure: Figure,
    draw: Callable[[Any], None],
    frames: Mapping[str, Any] | Sequence[Any],
    *,
    alt: str,
    opens: str | None = None,
    colors: int = 64,
    dots: int = SHARP,
) -> Player:
    """Draw one picture a frame and let the reader play them; on paper and without JavaScript, one of them is shown.

    Args:
        figure: the figure that `draw` changes; it is closed afterwards.
        draw: called with every frame's value in turn.
        frames: names that stand beside the slider (`round 3`) and values; a sequence of numbers means rounds.
        alt: what the animation shows, in words.
        opens: the name of the frame that is seen before anyone plays, and on paper, for an animation whose first frame says
            little; without it, a page opens at the first frame, and paper shows the last.
        colors: of each picture; few make it small.
        dots: drawn for each dot of the page, both ways; 1 makes it smaller still, and less sharp.

    Raises:
        InputError: no frames, no words, or no frame of the name to open at.
    """
    named = frames if isinstance(frames, Mapping) else {f"round {value}": value for value in frames}
    if not named or not alt.strip():
        raise InputError("an animation needs at least one frame and an alt text that says what it shows")
    if opens is not None:
        one_of("frame", opens, list(named))
    pictures = {}
    for name, value in named.items():
        draw(value)
        pictures[name], width = _png(figure, colors, dots)
    plt.close(figure)
    return Player(pictures, alt, width, opens)


def _tidy(frame: pd.DataFrame, quantity: str | None, needed: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """The rows of one quantity, of several splits and models those of the usual ones; the column that tells methods apart."""
    by = "arm" if "arm" in frame else "method"
    missing = [name for name in (*needed, by) if name not in frame]
    if missing:
        raise InputError(
            f"the table to plot has no column {', '.join(missing)}; its columns: {', '.join(map(str, frame))}"
        )
    if "quantity" in frame:
        found = frame["quantity"].drop_duplicates().tolist()
        if quantity is None and len(found) > 1:
            raise InputError(f"choose the quantity to plot: {', '.join(map(str, found))}")
        if quantity is not None:
            frame = frame[frame["quantity"] == quantity]
            if frame.empty:
                raise InputError(f"the table to plot holds {', '.join(map(str, found))}, not '{quantity}'")
    for column, usual in (("split", "test"), ("model", "personal")):
        if column in frame and {usual} < {*frame[column]}:
            frame = frame[frame[column] == usual]
    frame = frame.dropna(subset=["value"])  # a client without test images has no accuracy
    if frame.empty:
        raise InputError("the table to plot has no rows with a value")
    return frame, by


def _bubbles(counts: np.ndarray, names: list[str]) -> Figure:
    clients, classes = counts.shape
    size = float(np.clip(0.3 * clients + 2.6, 6.4, 12)), float(np.clip(0.24 * classes + 2.2, 3.6, 10))
    heights = [0.9, size[1] - 1.7]
    figure, (top, main) = plt.subplots(2, 1, figsize=size, sharex=True, height_ratios=heights)
    top.bar(np.arange(clients), counts.sum(axis=1), color="#9AA5B1", width=0.7)
    top.set_ylabel("images")
    top.grid(axis="x", visible=False)
    top.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    top.tick_params(axis="x", length=0)

    # The largest bubble fills its cell; labels, legend and the bars above take the rest of the figure.
    cell = 72 * min((size[0] - 2.4) / clients, (size[1] - 1.9) / classes)
    largest = counts.max()
    biggest = max(cell * 0.95, 3.0) ** 2
    client, number = np.nonzero(counts)
    area = biggest * counts[client, number] / largest
    main.scatter(client, number, s=area, color="#0072B2", linewidth=0, clip_on=False)
    main.set(xlim=(-0.6, clients - 0.4), ylim=(classes - 0.4, -0.6), xlabel="client", ylabel="class")
    if clients <= 20:
        main.set_xticks(np.arange(clients))
    else:
        main.xaxis.set_major_locator(MaxNLocator(20, integer=True))
    if classes <= 26:
        main.set_yticks(np.arange(classes), names)
    else:
        main.yaxis.set_major_locator(MaxNLocator(11, integer=True))
    steps = sorted({int(n) for n in (*map(_round_number, (largest / 10, largest / 3)), largest) if n >= 1})
    handles = [
        Line2D([], [], linestyle="none", marker="o", markeredgewidth=0, color="#0072B2", label=f"{n:,}",
               markersize=float(np.sqrt(biggest * n / largest)))
        for n in steps
    ]  # fmt: skip
    main.legend(
        handles=handles,
        title="training images",
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        labelspacing=1.0,
    )
    return figure


def _round_number(value: float) -> float:
    """The nearest of 1, 2, 5, 10, 20, 50, ... below or at `value`; 0 below 1."""
    if value < 1:
        return 0
    power = 10 ** np.floor(np.log10(value))
    return float(max(step * power for step in (1, 2, 5) if step * power <= value))
