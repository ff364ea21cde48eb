"""Figures: what they show is read back from their artists; colors are far apart, for every kind of eye."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from nbclient import NotebookClient
from PIL import Image

from pfl_lite.engine.history import History
from pfl_lite.errors import InputError
from pfl_lite.results.ledger import Ledger
from pfl_lite.show import plots

COUNTS = np.array([[40, 0, 10], [0, 5, 25], [90, 10, 0], [1, 2, 3]])
# Machado, Oliveira and Fernandes (2009), severity 1, in linear RGB.
PROTANOPIA = [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
]
DEUTERANOPIA = [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.01182, 0.04294, 0.968881],
]


def drawn(figure: Figure) -> bytes:
    """The figure as a PNG; drawing it finds what only goes wrong then."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    assert buffer.getvalue().startswith(b"\x89PNG")
    return buffer.getvalue()


def runs(seeds: int = 3) -> pd.DataFrame:
    rows = [
        (method, seed, r, client, quantity, level + 0.01 * seed + 0.02 * r + 0.1 * client)
        for method, level in (("local", 0.3), ("pfedmb-plain", 0.5), ("pfedmb", 0.4))
        for seed in range(seeds)
        for r in range(5)
        for client in range(4)
        for quantity in ("tuned", "personal")
    ]
    return pd.DataFrame(rows, columns=["arm", "seed", "round", "client", "quantity", "value"])


def lab(linear: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB colors [n, 3]."""
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.072175],
            [0.0193339, 0.119192, 0.9503041],
        ]
    )
    xyz = np.clip(linear, 0, 1) @ to_xyz.T / np.array([0.95047, 1, 1.08883])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


def nearest(colors: np.ndarray) -> float:
    distance = np.linalg.norm(colors[:, None] - colors[None, :], axis=2)
    return float(distance[~np.eye(len(colors), dtype=bool)].min())


def test_every_method_has_a_color_of_its_own() -> None:
    assert set(plots.METHOD_COLORS) == set(plots.METHOD_LABELS)
    assert len(set(plots.METHOD_LABELS.values())) == len(plots.METHOD_LABELS)
    assert plots.METHOD_COLORS["fedavg"] == "#0072B2" and plots.METHOD_COLORS["pfedmb"] == "#D55E00"
    red, green, blue = to_rgb(plots.METHOD_COLORS["local"])
    assert red == green == blue
    rgb = np.array([to_rgb(value) for value in plots.METHOD_COLORS.values()])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    assert nearest(lab(linear)) > 18
    first = [
        list(plots.METHOD_COLORS).index(name) for name in ("local", "fedavg", "fedper", "fedprox", "pfedmb")
    ]
    for blindness in (PROTANOPIA, DEUTERANOPIA):
        assert nearest(lab(linear @ np.array(blindness).T)) > 6
        assert nearest(lab(linear[first] @ np.array(blindness).T)) > 12
    contrast = 1.05 / (linear @ np.array([0.2126, 0.7152, 0.0722]) + 0.05)
    assert contrast.min() > 1.8  # every line is visible on white


def test_arms_are_colored_as_their_method() -> None:
    assert plots.color("pfedmb-plain") == plots.METHOD_COLORS["pfedmb_plain"]
    assert plots.color("fedavg+ft") == plots.color("fedavg-20-epochs") == plots.METHOD_COLORS["fedavg"]
    assert plots.color("fedavgish") == plots.color("oracle") == "#000000"
    assert plots.label("pfedmb-plain") == "pFedMB, eq. 6" and plots.label("lg_fedavg") == "LG-FedAvg"
    assert plots.label("oracle") == "oracle"


def test_use_style_changes_figures_to_come() -> None:
    with plt.rc_context():
        plots.use_style()
        assert plt.rcParams["figure.dpi"] == 110 and plt.rcParams["figure.constrained_layout.use"]


@pytest.mark.slow
def test_a_notebook_gets_sharp_figures_unless_its_reader_asked_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MPLBACKEND", raising=False)  # as a kernel finds it
    draw = "plt.plot([1, 2]); plt.show()"
    begin = f"import matplotlib.pyplot as plt; from pfl_lite.show.plots import use_style; use_style(); {draw}"
    again = "%config InlineBackend.figure_formats = ['svg']\nuse_style(); " + draw
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, (begin, again))))
    NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    sharp, other = (cell.outputs[-1] for cell in notebook.cells)
    picture = Image.open(io.BytesIO(base64.b64decode(sharp.data["image/png"])))
    shown = sharp.metadata["image/png"]["width"]
    assert picture.mode == "P" and shown == picture.width // 2 > 600  # of 6.4 inches of 110
    assert "image/svg+xml" in other.data and "image/png" not in other.data


def test_a_figure_keeps_its_colors_when_it_is_made_small() -> None:
    with plt.rc_context():
        plots.use_style()
        figure = plt.figure(figsize=(4, 3))
    figure.add_subplot().plot([0, 1], [0, 1], color=plots.color("pfedmb"), linewidth=6)
    png, width = plots.sharp(figure)
    picture = Image.open(io.BytesIO(png))
    assert width["width"] == picture.width // plots.SHARP
    shades = {color for _, color in picture.convert("RGB").getcolors()}  # type: ignore[union-attr]
    assert {tuple(round(255 * x) for x in to_rgb(plots.color("pfedmb"))), (255, 255, 255)} <= shades
    plt.close(figure)


def test_bubbles_have_the_area_of_the_counts() -> None:
    figure = plots.plot_partition(COUNTS)
    drawn(figure)
    top, main = figure.axes
    assert [bar.get_height() for bar in top.patches] == COUNTS.sum(axis=1).tolist()
    (bubbles,) = main.collections
    areas = {
        (int(x), int(y)): area
        for (x, y), area in zip(bubbles.get_offsets(), bubbles.get_sizes(), strict=True)
    }
    assert set(areas) == {(client, c) for client, c in np.argwhere(COUNTS > 0)}
    for (client, c), area in areas.items():
        assert area / areas[2, 0] == pytest.approx(COUNTS[client, c] / 90)
    assert main.get_xlabel() == "client" and main.get_ylabel() == "class" and top.get_ylabel() == "images"
    assert [tick.get_text() for tick in main.get_yticklabels()] == ["0", "1", "2"]
    legend = main.get_legend()
    assert legend.get_title().get_text() == "training images"
    assert [text.get_text() for text in legend.get_texts()] == ["5", "20", "90"]
    largest = main.get_legend().get_lines()[-1].get_markersize() ** 2
    assert largest == pytest.approx(areas[2, 0])


def test_a_federation_is_asked_for_its_counts() -> None:
    def class_counts(split: str = "train") -> np.ndarray:
        return COUNTS if split == "train" else COUNTS[::-1]

    federation = SimpleNamespace(class_counts=class_counts, card=SimpleNamespace(classes=("x", "y", "z")))
    top, main = plots.plot_partition(federation).axes
    assert [bar.get_height() for bar in top.patches] == COUNTS.sum(axis=1).tolist()
    assert [tick.get_text() for tick in main.get_yticklabels()] == ["x", "y", "z"]


@pytest.mark.parametrize("shape", [(1, 1), (1, 62), (60, 10), (9, 100)])
def test_any_size_can_be_drawn(shape: tuple[int, int]) -> None:
    counts = np.random.default_rng(0).integers(0, 50, shape) + 1
    drawn(plots.plot_partition(counts))


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_curves_are_means_and_bands_are_extremes() -> None:
    figure = plots.plot_curves(runs(), quantity="tuned")
    drawn(figure)
    (axes,) = figure.axes
    assert legend_of(figure) == ["pFedMB, eq. 6", "pFedMB", "Local"]  # in the order of the lines' ends
    line = next(line for line in axes.lines if line.get_color() == plots.METHOD_COLORS["pfedmb"])
    assert np.allclose(line.get_xdata(), range(5))
    # value at round 2: 0.4 + 0.01 (mean of seeds 0..2) + 0.04 + 0.15 (mean of clients 0..3)
    assert line.get_ydata()[2] == pytest.approx(60.0)
    band = axes.collections[1].get_paths()[0].vertices
    at_two = band[band[:, 0] == 2, 1]
    assert at_two.min() == pytest.approx(59.0) and at_two.max() == pytest.approx(61.0)
    assert axes.get_xlabel() == "round" and "%" in axes.get_ylabel()
    assert "3 seeds" in axes.get_legend().get_title().get_text()


def test_curves_of_stored_runs_are_one_line_of_code() -> None:
    (axes,) = plots.plot_curves(Ledger().frame("pfedmb-table1"), quantity="tuned").axes
    assert set(legend_of(axes.figure)) == {"Local", "FedAvg", "pFedMB", "pFedMB, eq. 6"}
    ends = [line.get_ydata()[-1] for line in axes.lines if len(line.get_xdata())]
    assert ends == sorted(ends, reverse=True) and "5 seeds" in axes.get_legend().get_title().get_text()


def test_curves_of_one_seed_have_no_band() -> None:
    table = runs(seeds=1).query("quantity == 'tuned'").drop(columns=["quantity", "seed", "client"])
    (axes,) = plots.plot_curves(table.rename(columns={"arm": "method"}), percent=False, ylabel="loss").axes
    assert not axes.collections and axes.get_ylabel() == "loss"
    assert axes.lines[2].get_ydata()[0] == pytest.approx(0.45)


def test_a_client_without_a_value_is_left_out() -> None:
    table = pd.DataFrame({"method": "local", "client": [0, 1], "value": [0.5, np.nan]})
    (axes,) = plots.plot_clients(table).axes
    assert [len(dots.get_offsets()) for dots in axes.collections] == [1]


def test_clients_are_dots_around_their_quartiles_and_the_last_round_counts() -> None:
    figure = plots.plot_clients(runs(), quantity="tuned")
    drawn(figure)
    (axes,) = figure.axes
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == ["pFedMB, eq. 6", "pFedMB", "Local"]  # by their means
    dots = {
        name: sorted(each.get_offsets()[:, 0]) for name, each in zip(names, axes.collections, strict=True)
    }
    assert np.allclose(dots["Local"], [39, 49, 59, 69])  # 0.3 + 0.01 + 0.08 + 0.1 * client
    assert np.allclose(dots["pFedMB"], [49, 59, 69, 79])
    means = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"]
    assert np.allclose(means, [74, 64, 54])
    shades = [to_rgb(each.get_facecolor()[0][:3]) for each in axes.collections]
    assert shades[2] == to_rgb(plots.METHOD_COLORS["local"])


# Two clients in a pool of 1, 3 and 2 blocks.
WIRES = [[1, 1, 0, 1, 0, 0, 0, 1, 0, 1, 1], [1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1]]


def network(axes: Axes) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """Colored wires (from, to) and filled blocks of a drawn network, by layer and place, from 1; None: the prediction."""
    pale, layers = to_rgb("#D5D5D5"), {0: 1, 1: 3, 2: 2}
    live, filled = set(), set()

    def name(x: float, y: float) -> Any:
        return (int(x) + 1, int(layers[int(x)] / 2 - y) + 1) if x < 3 else None

    for line in axes.lines:
        x, y = line.get_data()
        if len(x) == 2 and to_rgb(line.get_color()) != pale:
            live.add((name(x[0], y[0]), name(x[1], y[1])))
        if len(x) == 1 and x[0] < 3 and line.get_markerfacecolor() != "white":
            filled.add(name(x[0], y[0]))
    return live, filled


def test_routes_color_what_is_in_use() -> None:
    figure = plots.plot_routes((1, 3, 2), WIRES, groups=[0, 1])
    drawn(figure)
    one, two = figure.axes
    assert network(one) == (
        {
            ((1, 1), (2, 1)), ((1, 1), (2, 2)), ((2, 1), (3, 1)), ((2, 2), (3, 2)), ((3, 1), None),
            ((3, 2), None),
        },
        {(1, 1), (2, 1), (2, 2), (3, 1), (3, 2)},
    )  # fmt: skip
    # The wire from 2,1 leads to 3,1, whose output is off; that from 2,3 comes from a block that reads nothing.
    assert network(two) == ({((1, 1), (2, 1))}, {(1, 1), (2, 1)})
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["client 0", "client 1"]
    assert [text.get_text() for text in one.texts] == ["1,1", "2,1", "2,2", "2,3", "3,1", "3,2", r"$\hat y$"]
    colors = [{line.get_color() for line in axes.lines if len(line.get_xdata()) == 2} for axes in figure.axes]
    assert colors == [{"#0072B2", "#D5D5D5"}, {"#D55E00", "#D5D5D5"}]


def test_many_routes_stand_above_a_key() -> None:
    figure = plots.plot_routes((1, 3, 2), WIRES * 5, titles=[f"number {i}" for i in range(10)])
    drawn(figure)
    assert [axes.get_title(loc="left") for axes in figure.axes[:10]] == [f"number {i}" for i in range(10)]
    assert network(figure.axes[9]) == network(plots.plot_routes((1, 3, 2), WIRES).axes[1])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "wire in use", "off", "block in use", "not sent", "prediction",
    ]  # fmt: skip
    assert not any(axes.texts for axes in figure.axes), "no room for numbers"


def test_colors_of_experts_and_groups_are_far_apart_for_every_eye() -> None:
    for shades in (list(plots.EXPERT_COLORS.values()), plots._GROUP_COLORS[:4]):
        rgb = np.array([to_rgb(value) for value in shades])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        for blindness in (np.eye(3), np.array(PROTANOPIA), np.array(DEUTERANOPIA)):
            assert nearest(lab(linear @ blindness.T)) > 12


def test_figures_are_closed() -> None:
    before = plt.get_fignums()
    plots.plot_partition(COUNTS)
    plots.plot_curves(runs(), quantity="tuned")
    plots.plot_clients(runs(), quantity="tuned")
    plots.plot_routes((1, 3, 2), WIRES)
    assert plt.get_fignums() == before


def test_a_run_is_drawn_with_a_line_for_each_kind_of_model_that_differs() -> None:
    personal = [{"personal_accuracy": 0.1 * t, "personal_loss": 2.0 - t} for t in range(3)]
    alike = [entry | {"global_accuracy": entry["personal_accuracy"]} for entry in personal]
    alike = [entry | {"global_loss": entry["personal_loss"]} for entry in alike]
    unlike = [entry | {"global_accuracy": 0.5, "global_loss": 1.0} for entry in personal]
    unlike[1] |= {"global_accuracy": None, "global_loss": None}
    tuned = [*unlike[:-1], unlike[-1] | {"tuned_accuracy": 0.9, "tuned_loss": 0.1}]
    for entries, method, names in (
        (alike, "fedavg", ["personal models"]),
        (tuned, "ditto", ["personal models", "global model", "after fine-tuning"]),
    ):
        rounds = [{"round": t, "clients": [0]} | entry for t, entry in enumerate(entries)]
        figure = plots.plot_history(History(rounds), method)
        for axes, quantity, scale in zip(figure.axes, ("accuracy", "loss"), (100, 1), strict=True):
            lines = axes.get_lines()
            assert [line.get_label() for line in lines] == names and axes.get_xlabel() == "round"
            expected = [scale * entry[f"personal_{quantity}"] for entry in entries]
            assert lines[0].get_ydata().tolist() == expected
            assert lines[0].get_color() == plots.color(method)
        assert drawn(figure)
    assert lines[1].get_xdata().tolist() == [0, 2] and lines[2].get_xdata().tolist() == [2]


def test_rows_of_one_method_are_told_apart_by_lighter_colors() -> None:
    found = plots.shades({"local": "local", "ditto:lam=0.1": "ditto", "ditto:lam=1": "ditto", "x": "mine"})
    assert [found[name] for name in ("local", "ditto:lam=0.1")] == ["#6e6e6e", plots.color("ditto")]
    dark, light = (to_rgb(found[f"ditto:lam={lam}"]) for lam in ("0.1", "1"))
    assert all(one < other < 0.9 for one, other in zip(dark, light, strict=True))


def test_of_several_splits_and_models_the_clients_own_on_test_images_are_drawn() -> None:
    rows = [
        {"method": "fedavg", "round": t, "client": 0, "model": model, "split": split, "value": value}
        for t in (0, 1)
        for model, split, value in (
            ("personal", "test", 0.5),
            ("personal", "val", 0.9),
            ("global", "test", 0.1),
        )
    ]
    frame = pd.DataFrame(rows)
    (line, *_) = plots.plot_curves(frame).axes[0].get_lines()
    assert line.get_ydata().tolist() == [50, 50]
    dots = plots.plot_clients(frame).axes[0].collections[-1].get_offsets()
    assert dots[:, 0].tolist() == [50]


def test_what_cannot_be_drawn() -> None:
    for counts in (np.zeros((2, 2)), np.array([1, 2]), np.array([[1, -1]]), np.zeros((0, 3))):
        with pytest.raises(InputError, match="at least one image"):
            plots.plot_partition(counts)
    with pytest.raises(InputError, match="tuned, personal"):
        plots.plot_curves(runs())
    with pytest.raises(InputError, match="not 'loss'"):
        plots.plot_curves(runs(), quantity="loss")
    with pytest.raises(InputError, match="no column round"):
        plots.plot_curves(runs().drop(columns="round"), quantity="tuned")
    with pytest.raises(InputError, match="no column method"):
        plots.plot_clients(pd.DataFrame({"client": [0], "value": [1.0]}))
    with pytest.raises(InputError, match=r"\[clients, 11 decisions\] for blocks 1x3x2, not \[2, 4\]"):
        plots.plot_routes((1, 3, 2), np.zeros((2, 4)))
    with pytest.raises(InputError, match="1 titles and 2 groups do not fit 2 clients"):
        plots.plot_routes((1, 3, 2), WIRES, titles=["alone"])
    with pytest.raises(InputError, match="no rows"):
        plots.plot_clients(pd.DataFrame({"method": ["local"], "client": [0], "value": [np.nan]}))


def player(frames: object = (1, 2, 5)) -> plots.Player:
    figure, axes = plt.subplots(figsize=(2, 1), dpi=40)
    return plots.animate(figure, lambda t: axes.bar(0, t, color="#0072B2"), frames, alt="bars <grow>")


def test_an_animation_is_one_piece_of_html_with_its_frames_inside() -> None:
    page = player()._repr_html_()
    about = r'<img alt="([^"]*)" data-name="([^"]*)"( hidden)? width="(\d+)"'
    pictures = re.findall(rf'{about} src="data:image/png;base64,([^"]*)">', page)
    assert [name for _, name, *_ in pictures] == ["round 1", "round 2", "round 5"]
    assert {width for *_, width, _ in pictures} == {"80"}, "pixels of the page: 2 inches of 40"
    assert next(words for words, *_ in pictures) == "bars &lt;grow&gt;; round 1"
    assert [bool(hidden) for _, _, hidden, *_ in pictures] == [True, True, False], (
        "without JavaScript, the last one"
    )
    content = [base64.b64decode(picture) for *_, picture in pictures]
    assert {Image.open(io.BytesIO(png)).size for png in content} == {(160, 80)}, "sharp"
    assert len(set(content)) == 3
    assert "//" not in re.sub(
        r"^\s*//.*$|// J.*$", "", re.sub(r'base64,[^"]*', "", page), flags=re.MULTILINE
    ), "another host"
    assert player()._repr_html_() == page, "the same every time"


def test_an_animation_names_its_frames_and_closes_its_figure() -> None:
    before = plt.get_fignums()
    made = player({"start": 0, "end": 3})
    assert list(made.frames) == ["start", "end"]
    assert plt.get_fignums() == before


def test_an_animation_opens_where_it_is_told_to() -> None:
    figure, axes = plt.subplots(figsize=(2, 1), dpi=40)
    made = plots.animate(figure, lambda t: axes.bar(0, t), (1, 2, 5), alt="bars", opens="round 2")
    page = made._repr_html_()
    assert re.findall(r'data-name="([^"]*)" width', page) == ["round 2"], "the others are hidden"
    assert " data-opens>" in page and 'value="1"' in page
    assert " data-opens>" not in player()._repr_html_(), "opens at the first"
    with pytest.raises(InputError, match="round 3"):
        plots.animate(plt.figure(), lambda t: None, (1, 2), alt="bars", opens="round 3")


@pytest.mark.parametrize(("frames", "alt"), [((), "words"), ((1,), " ")])
def test_an_animation_without_frames_or_words_is_refused(frames: tuple[int, ...], alt: str) -> None:
    with pytest.raises(InputError, match="at least one frame and an alt text"):
        plots.animate(plt.figure(), lambda t: None, frames, alt=alt)


def test_pairs_are_dots_around_the_diagonal() -> None:
    figure = plots.plot_pairs([50, 60, 70], [55, 60, 90], names=["A: x", "B: y"])
    assert drawn(figure)
    (axes,) = figure.axes
    assert axes.collections[0].get_offsets().tolist() == [[50, 55], [60, 60], [70, 90]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("A: x", "B: y")
    assert axes.get_xlim() == axes.get_ylim()
    assert axes.lines[0].get_slope() == 1 and len(set(axes.lines[0].get_xy1())) == 1
    with pytest.raises(InputError, match="one accuracy of each method a client"):
        plots.plot_pairs([1, 2], [1], names=["A", "B"])


def test_curves_take_other_colors() -> None:
    figure = plots.plot_curves(runs(), quantity="tuned", colors={"local": "#112233"})
    shades = {line.get_color() for line in figure.axes[0].lines}
    assert legend_of(figure) == ["pFedMB, eq. 6", "pFedMB", "Local"]
    assert {"#112233", plots.METHOD_COLORS["pfedmb"]} < shades


def test_an_arm_with_a_name_of_its_own_has_its_methods_color() -> None:
    assert plots.color("b5", "pfedmb") == plots.METHOD_COLORS["pfedmb"]
    assert plots.color("pfedmb-plain", "pfedmb") == plots.METHOD_COLORS["pfedmb_plain"]
    assert plots.color("b5") == "#000000"
