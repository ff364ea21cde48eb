"""Pictures of ideas that need no training: each is drawn by one function and stands in one chapter."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pfl_lite import make_federation, make_network
from pfl_lite.seeds import generator
from pfl_lite.show.offices import OFFICES, SHARED, Office
from pfl_lite.show.plots import METHOD_COLORS, STYLE

INK, SOFT = "#1F2933", "#52606D"
CENTERED: dict[str, Any] = {"ha": "center", "va": "center"}
POINTING = {"arrowstyle": "->", "color": INK}  # from words to what they are about
BIG: dict[Any, Any] = {
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.labelsize": 13,
    "legend.fontsize": 12,
    "svg.hashsalt": "idea",
}


@dataclass(frozen=True)
class Idea:
    """A picture, and where and how the book shows it."""

    draw: Callable[[], Figure]
    chapter: str
    after: str
    """The id of the cell that it follows."""
    alt: str
    caption: str


def svg(idea: Idea) -> str:
    """A picture as a file; the same for the same version of Matplotlib, which the file names."""
    with plt.rc_context({**STYLE, **BIG}):
        figure = idea.draw()
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
        plt.close(figure)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def panels(number: int, height: float, **how: Any) -> tuple[Figure, list[Axes]]:
    """So many axes side by side, as wide as the book's text."""
    figure, axes = plt.subplots(1, number, figsize=(7.6, height), squeeze=False, **how)
    return figure, list(axes[0])


def bare(axes: Axes) -> None:
    """No ticks, no frame."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set_visible(False)


def arrow(axes: Axes, start: Any, end: Any, color: str = INK, width: float = 1.8, style: str = "-") -> None:
    """A filled arrow from one point to another, with a larger head where it has an office's color."""
    how = {"arrowstyle": "-|>", "color": color, "linewidth": width, "linestyle": style}
    axes.annotate("", end, start, arrowprops=how | {"mutation_scale": 15 if color == INK else 17})


def simplex() -> Figure:
    """Shares of a class at three offices, for three concentrations."""
    figure, axes = panels(3, 2.7)
    corners = np.array([[0, 0], [1, 0], [0.5, np.sqrt(0.75)]])
    for place, (axis, concentration) in enumerate(zip(axes, (0.1, 1, 10), strict=True)):
        shares = generator(0, f"picture of the simplex {place}").dirichlet([concentration] * 3, size=150)
        axis.fill(*corners.T, facecolor="#F3F5F8", edgecolor="#9AA5B1")
        x, y = (shares @ corners).T
        axis.scatter(x, y, s=16, alpha=0.8, c=[OFFICES[i].color for i in shares.argmax(1)])
        for office, (x, y), shift in zip(OFFICES[:3], corners, (-0.11, -0.11, 0.06), strict=True):
            axis.text(x, y + shift, office.letter, color=INK, ha="center", weight="bold")
        axis.set(title=f"a = {concentration:g}", aspect="equal", xlim=(-0.1, 1.1), ylim=(-0.2, 1.05))
        bare(axis)
    return figure


def envelope() -> Figure:
    """A loss, its Moreau envelope, and the parabola that makes one point of it."""
    figure, (axis,) = panels(1, 3.6)
    theta, strength, start = np.linspace(-3.2, 3.4, 1321), 1.0, 2.0

    def loss(x: np.ndarray) -> np.ndarray:
        return np.maximum(0.8 * np.abs(x - 0.2), 1.7 * np.abs(x - 0.2) - 0.9)

    def tied(w: float) -> np.ndarray:
        return np.asarray(loss(theta) + strength / 2 * (theta - w) ** 2)

    axis.plot(theta, loss(theta), color=OFFICES[0].color, label="loss f")
    axis.plot(theta, [tied(w).min() for w in theta], color=SHARED, label="envelope F")
    best = int(tied(start).argmin())
    near = np.abs(theta - start) < 1.9
    touching = tied(start).min() - strength / 2 * (theta - start) ** 2
    axis.plot(theta[near], touching[near], color=SOFT, linestyle=":", label="F(w) minus the tie")
    axis.plot(theta[best], loss(theta[best]), "o", color=OFFICES[0].color, markersize=9)
    axis.plot(start, tied(start).min(), "D", color=SHARED, markersize=9)
    lowest = theta[best], loss(theta[best])
    axis.annotate("θ: where loss plus\ntie is lowest", lowest, (-1.1, 2.2), arrowprops=POINTING)
    axis.annotate("F(w)", (start, tied(start).min()), (2.12, 0.55))
    axis.set(xlabel="one parameter", ylabel="loss", ylim=(-0.4, 4.2), xlim=(-3.2, 3.4))
    axis.legend(loc="lower left")
    return figure


def jensen() -> Figure:
    """The logarithm of a mean lies above the mean of the logarithms."""
    figure, (axis,) = panels(1, 3.4)
    x, (low, high), share = np.linspace(0.04, 1, 400), (0.1, 0.9), 0.5
    middle = share * low + (1 - share) * high
    chord = share * np.log(low) + (1 - share) * np.log(high)
    axis.plot(x, np.log(x), color=INK, label="log p")
    axis.plot([low, high], np.log([low, high]), color=SOFT, linestyle="--", label="chord")
    for value, office, name in ((low, OFFICES[0], "model 1"), (high, OFFICES[1], "model 2")):
        axis.plot(value, np.log(value), "o", color=office.color, markersize=9)
        axis.annotate(name, (value, np.log(value)), (value + 0.02, np.log(value) - 0.42))
    above, below, red = (middle, np.log(middle)), (middle, chord), {"color": "#D55E00"}
    axis.annotate("", above, below, arrowprops=POINTING | red | {"arrowstyle": "<->"})
    halfway = middle + 0.005, (np.log(middle) + chord) / 2
    bold: dict[str, Any] = {"color": "#A84A00", "weight": "bold"}
    axis.annotate("the gap", halfway, (0.7, -1.35), arrowprops=POINTING | red, **bold)
    axis.annotate("log of the mean", above, (0.27, 0.05), arrowprops=POINTING)
    axis.annotate("mean of the logs", below, (0.56, -2.1), arrowprops=POINTING)
    axis.set(xlabel="probability of the right label", ylabel="logarithm", ylim=(-3.2, 0.5), xlim=(0, 1.02))
    axis.legend(loc="lower right")
    return figure


def bootstrap() -> Figure:
    """Ten differences, three new draws of them, and the means of many."""
    figure, (left, middle, right) = panels(3, 3.5, gridspec_kw={"width_ratios": [1, 1.6, 1.6]})
    random = generator(7, "picture of the bootstrap")
    observed = np.sort(random.normal(1.2, 2.4, 10))
    left.scatter(np.zeros(10), observed, color=SOFT, s=40)
    left.plot([-0.3, 0.3], [observed.mean()] * 2, color=INK)
    left.set(title="ten clients", ylabel="difference, points", xlim=(-0.6, 0.6), xticks=[])
    for place in range(3):
        drawn = random.choice(observed, 10)
        values, times = np.unique(drawn, return_counts=True)
        middle.scatter(np.full(len(values), place), values, color=SOFT, s=40 * times)
        middle.plot([place - 0.3, place + 0.3], [drawn.mean()] * 2, color=INK)
    middle.set_xticks(range(3), ["1st", "2nd", "3rd"])
    middle.set(title="drawn again", xlim=(-0.6, 2.6), ylim=left.get_ylim(), yticklabels=[])
    means = random.choice(observed, (2000, 10)).mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    right.hist(means, bins=30, orientation="horizontal", color="#B8C2CC")
    right.axhspan(low, high, color="#E69F00", alpha=0.25)
    right.axhline(0, color=INK, linewidth=1)
    right.set(title="2,000 means", xticks=[], ylim=left.get_ylim(), yticklabels=[])
    right.text(right.get_xlim()[1], high + 0.12, "95% of them", ha="right", va="bottom", weight="bold")
    return figure


def two_tests() -> Figure:
    """One model, scored with an office's shares and with equal ones: the score is an area."""
    figure, axes = panels(2, 3.2, sharey=True)
    accuracy = (0.9, 0.6)
    tests = (
        ("local test: Ashford's shares", (0.8, 0.2), OFFICES[0].color),
        ("global test: equal shares", (0.5, 0.5), SHARED),
    )
    for axis, (title, shares, own) in zip(axes, tests, strict=True):
        left = 0.0
        for name, share, height, shade in zip(("zeros", "ones"), shares, accuracy, (0.55, 0.9), strict=True):
            axis.bar(left, height, share, align="edge", color=own, alpha=shade, edgecolor="white")
            axis.text(left + share / 2, height + 0.02, f"{name}\n{height:g}", ha="center")
            left += share
        area = np.dot(shares, accuracy)
        axis.set(title=title, xlabel="share of the images", ylim=(0, 1.18), xlim=(0, 1), yticks=[0, 0.5, 1])
        axis.text(0.5 * shares[0], 0.3, f"area {area:.2f}", ha="center", weight="bold", fontsize=17)
    axes[0].set_ylabel("accuracy")
    return figure


def participation() -> Figure:
    """Who is asked in which round."""
    figure, (axis,) = panels(1, 3.4)
    random, rounds = generator(1, "picture of participation"), 12
    for number in range(rounds):
        asked = set(random.choice(8, 2, replace=False).tolist())
        for place, office in enumerate(OFFICES):
            color, edge = (office.color, office.color) if place in asked else ("white", "#C3CAD2")
            axis.scatter(number, place, s=230, marker="s", color=color, edgecolor=edge)
    axis.set_yticks(range(8), [office.name for office in OFFICES])
    axis.set_xticks(range(rounds), [str(number + 1) for number in range(rounds)])
    axis.set(xlabel="round", xlim=(-0.6, rounds - 0.4))
    axis.invert_yaxis()
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    return figure


def variates() -> Figure:
    """SCAFFOLD's correction: from one's own slope to everyone's."""
    figure, (left, right) = panels(2, 3.3)
    slopes = np.array([[2.2, 1.5], [1.5, -1.6], [0.5, 1.3]])
    mean = slopes.mean(0)
    for office, slope in zip(OFFICES, slopes, strict=False):
        arrow(left, (0, 0), slope, office.color, 3)
        arrow(right, (0, 0), slope, office.color, 1.5)
        arrow(right, slope, mean, office.color, 2, "--")
        for axis in (left, right):
            axis.text(1.1 * slope[0], 1.12 * slope[1], office.name, weight="bold", **CENTERED)
    arrow(left, (0, 0), mean, SHARED, 3)
    arrow(right, (0, 0), mean, SHARED, 4)
    left.text(mean[0] + 0.12, mean[1] - 0.04, "c", color=SHARED, weight="bold", fontsize=16)
    right.text(mean[0] + 0.12, mean[1] - 0.16, "all walk along c", color=SHARED, weight="bold")
    for axis, title in ((left, "each office's own slope"), (right, "corrected by c − cᵢ (dashed)")):
        axis.plot(0, 0, "o", color=INK)
        axis.set(title=title, xlim=(-0.3, 3.3), ylim=(-2, 2), aspect="equal")
        bare(axis)
    return figure


def marginals() -> Figure:
    """Two offices with opposite meanings, which the two marginals cannot tell apart."""
    figure, axes = panels(2, 3.6)
    tables: dict[Office, Any] = {OFFICES[0]: np.diag([20, 20]), OFFICES[4]: np.diag([20, 20])[::-1]}
    total: dict[str, Any] = {"color": SHARED, "weight": "bold"}
    for axis, (office, table) in zip(axes, tables.items(), strict=True):
        for row in range(2):
            for column in range(2):
                here = table[row, column]
                look: dict[str, Any] = {
                    "facecolor": office.color if here else "white",
                    "alpha": 0.4,
                    "edgecolor": INK,
                }
                axis.add_patch(plt.Rectangle((column, 1 - row), 1, 1, **look))
                axis.text(column + 0.5, 1.5 - row, str(here), fontsize=16, weight="bold", **CENTERED)
            axis.text(2.15, 1.5 - row, f"= {table[row].sum()}", va="center", **total)
            axis.text(row + 0.5, -0.2, f"= {table[:, row].sum()}", **CENTERED, **total)
            axis.text(-0.1, 1.5 - row, ("1", "7")[row], ha="right", va="center")
            axis.text(row + 0.5, 2.12, ("a stroke", "a hook")[row], ha="center")
        axis.set(title=office.name, xlim=(-0.5, 2.8), ylim=(-0.5, 2.4), aspect="equal")
        axis.set_ylabel("the label")
        bare(axis)
    return figure


def patterns() -> Figure:
    """Three bars for each of the four patterns that three cheap runs can show; drawn, not measured."""
    figure, axes = panels(4, 2.6, sharey=True)
    names = ("local", "fedavg", "pfl_ft")
    heights = {
        "all alike": (0.62, 0.9, 0.9),
        "something of each": (0.78, 0.74, 0.93),
        "narrow tasks": (0.93, 0.66, 0.93),
        "contradictions": (0.86, 0.34, 0.84),
    }
    for axis, (title, three) in zip(axes, heights.items(), strict=True):
        axis.bar(range(3), three, color=[METHOD_COLORS[name] for name in names], width=0.74)
        axis.set_xticks(range(3), ["Local", "FedAvg", "+ FT"], rotation=40, ha="right", fontsize=11)
        axis.set(ylim=(0, 1), yticks=[])
        axis.set_title(title, fontsize=12)
        axis.grid(False)
        axis.tick_params(length=0)
    axes[0].set_ylabel("accuracy")
    return figure


def upload() -> Figure:
    """A 0 from Fairview's mail, the gradient that the unit's untrained model sends for it, and the image divided out again."""
    federation = make_federation("digits", "dirichlet:0.4", clients=8, seed=0, dtype=torch.float64)
    network = make_network("linear", channels=1, size=8, classes=10, dtype=torch.float64)
    label = 0
    # the 0 of the unit's figure, too
    place = next(row for row in federation.train[5] if federation.labels[row] == label)
    image = federation.images[place]  # [1, 8, 8]
    scores = network(network.init(seed=0), image[None])[0]
    errors = scores.softmax(0) - torch.eye(10)[label]  # [10], p - 1[y = c]
    sent = torch.outer(errors, image.flatten())  # [10, 64], and the bias sends the errors themselves
    table = torch.column_stack([sent, errors])
    back = (table[label, :-1] / table[label, -1]).view_as(image)
    if not torch.allclose(back, image):
        raise ValueError("the picture does not come back")
    figure, axes = plt.subplots(1, 3, figsize=(7.6, 2.4), gridspec_kw={"width_ratios": [1, 2, 1]})
    most = float(table.abs().max())
    axes[0].imshow(image[0], cmap="gray_r")
    axes[0].set_title("the image")
    axes[1].imshow(table, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    axes[1].set_title("what it sends: 650 numbers")
    axes[1].set_ylabel("class", fontsize=12)
    axes[2].imshow(back[0], cmap="gray_r")
    axes[2].set_title("read back")
    for axis in axes:
        bare(axis)
    return figure


def scheduler() -> Figure:
    """A command, a scheduler, and workers, with what travels between them."""
    figure, (axis,) = panels(1, 3.5)

    def box(x: float, y: float, width: float, height: float, title: str, below: str, color: str) -> None:
        look: dict[str, Any] = {"facecolor": color, "alpha": 0.16, "edgecolor": color, "linewidth": 2}
        axis.add_patch(plt.Rectangle((x, y), width, height, **look))
        axis.text(x + width / 2, y + height - 0.33, title, weight="bold", color=INK, **CENTERED)
        axis.text(x + width / 2, y + 0.38, below, color=SOFT, fontsize=11, **CENTERED)

    box(0, 1.5, 2.5, 1.4, "your command", "writes the ledger", SHARED)
    box(4.1, 1.5, 2.1, 1.4, "scheduler", "keeps the list", SOFT)
    arrow(axis, (2.6, 2.45), (4.0, 2.45))
    arrow(axis, (4.0, 1.95), (2.6, 1.95), style="--")
    for place in range(3):
        y, meets = 3.2 - 1.6 * place, 2.95 - 0.55 * place
        box(8.1, y, 3.0, 1.3, f"worker {place + 1}", "loads the images itself", OFFICES[6].color)
        arrow(axis, (6.3, meets + 0.1), (8.0, y + 0.85))
        arrow(axis, (8.0, y + 0.5), (6.3, meets - 0.15), style="--")
    axis.plot([], [], "-", color=INK, linewidth=1.8, label="a configuration goes out")
    axis.plot([], [], "--", color=INK, linewidth=1.8, label="a finished report comes back")
    axis.legend(loc="lower left", bbox_to_anchor=(-0.02, -0.06), frameon=False)
    axis.set(xlim=(-0.1, 11.1), ylim=(-0.1, 4.6))
    bare(axis)
    return figure


IDEAS: dict[str, Idea] = {
    "patterns": Idea(
        patterns, "what-to-try-first", "cell-01",
        "Four charts with three bars each, for Local, FedAvg and FedAvg with fine-tuning. All alike: Local is lower, the other "
        "two are level. Something of each: the first two are nearly level, fine-tuning is above both. Narrow tasks: Local and "
        "fine-tuning are level, FedAvg is lower. Contradictions: FedAvg is far below the other two.",
        "Three methods can show four patterns. These bars are drawn, not measured; you will measure all four patterns below. "
        "What to see: which of the "
        "three bars is out of line, and in which direction.",
    ),
    "upload": Idea(
        upload, "what-an-upload-tells", "cell-01",
        "Left, a handwritten 0 of 8 by 8 pixels. Middle, a table of ten rows and 65 columns: the top row, for class 0, is in "
        "strong red and blue, the other rows are pale. Right, the same handwritten 0 again.",
        "Left: an image from Fairview's mail, a 0. Middle: the gradient that Fairview sends, one row per "
        "class. What to see: the true class's row (the top one), divided by its last entry, the bias, gives "
        "the image back (right).",
    ),
    "simplex": Idea(
        simplex, "clients-are-not-alike", "cell-15",
        "Three triangles with corners A, B and C, each with 150 dots. For concentration 0.1 almost all dots "
        "lie in the corners and on the edges, for 1 they are spread evenly, for 10 they crowd around the "
        "middle.",
        "Each dot is one class, dealt out to three offices (its color: the largest share); at corner A, Ashford has "
        "all of it. What to see: as the concentration $a$ grows, the dots move from the corners to the middle.",
    ),
    "envelope": Idea(
        envelope, "two-models-one-tie", "cell-10",
        "A loss made of straight pieces, with three corners, and, below it, a smooth curve that touches it at its "
        "lowest point. From the point w on the smooth curve a dotted parabola opens downward and touches the loss at"
        " theta, to the left of w.",
        r"A loss and its Moreau envelope ($\lambda = 1$). The parabola touches the loss at $\theta$; its top, "
        r"above $w$, has the height $F(w)$. What to see: the envelope has the same lowest point, but no "
        r"corners.",
    ),
    "jensen": Idea(
        jensen, "mixtures", "cell-06",
        "The curve of the logarithm with two points on it and the chord between them. Halfway, a vertical "
        "arrow marks the gap between the curve, labeled log of the mean, and the chord below it, labeled mean"
        " of the logs.",
        "Jensen's inequality: two models give an image's label the probabilities 0.1 and 0.9. What to see: "
        "the logarithm bends down, so the mean of the logs (chord) lies below the log of the mean (curve).",
    ),
    "bootstrap": Idea(
        bootstrap, "one-model-or-many", "cell-18",
        "Three panels with one vertical axis. Left, ten dots and their mean. Middle, three columns in which "
        "some of the ten dots are larger and others missing, each with its own mean. Right, a histogram of "
        "2,000 such means with a band for 95 percent.",
        "The bootstrap redraws ten made-up differences *with replacement*: larger dots came more than "
        "once, missing dots not at all. What to see: the means move from draw to draw, and their middle 95% "
        "form the interval.",
    ),
    "two-tests": Idea(
        two_tests, "a-gate-between-two-experts", "cell-17",
        "Two bar charts with the same heights, 0.9 for zeros and 0.6 for ones. On the left the bars are 0.8 and 0.2 "
        "wide and the area is 0.84. On the right both bars are 0.5 wide and the area is 0.75.",
        "Ashford's one model in two tests. Height is the accuracy on a class, width the class's share of the "
        "test, and area the score. What to see: only the widths change.",
    ),
    "participation": Idea(
        participation, "lab-federated-learning-in-twenty-lines", "cell-30",
        "A table of eight offices and twelve rounds. In every column two squares are filled in their offices'"
        " colors; some offices wait for several rounds before their first turn, and Dunmore gets none.",
        "In each round the server asks two of eight offices ($C = 1/4$); only *filled* squares count. What to "
        "see: rows have long gaps, so the model trains without an office for many rounds; Dunmore is never "
        "asked.",
    ),
    "variates": Idea(
        variates, "pulling-towards-the-centre", "cell-07",
        "Left, three arrows from one point in different directions, for three offices, and their mean c. "
        "Right, dashed arrows lead from the tip of each office's arrow to the tip of c.",
        "SCAFFOLD's control variates. Left: three offices' gradients at one point, and their mean $c$. Right: "
        "each office adds $c - c_i$ (dashed). What to see: after the correction, all three offices walk in "
        "the mean direction.",
    ),
    "marginals": Idea(
        marginals, "assembling-a-network-per-client", "cell-29",
        "Two tables of label and shape, one for Ashford and one for Easton. Ashford's images lie on "
        "one diagonal, Easton's on the other. The sums of rows and columns are 20 everywhere in both tables.",
        "Ashford calls a stroke 1 and a hook 7, Easton the other way around. What to see: all sums of rows "
        "and columns are equal, and a router that reads only means sees nothing but these sums.",
    ),
    "scheduler": Idea(
        scheduler, "many-machines", "floors",
        "Three kinds of boxes from left to right: your command, which writes the ledger; the scheduler, which keeps the list; "
        "and three workers, which load the images themselves. Solid arrows lead from left to right, dashed arrows back.",
        "One command, one scheduler, any number of workers. What to see: no arrow carries an image. A configuration goes out to "
        "the worker that is free, and the finished report comes back.",
    ),
}  # fmt: skip
