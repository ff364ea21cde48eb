"""One card for every method, drawn from one short entry: what the server holds, what travels, what stays in an office.

A new method gets an entry in `CARDS`; `make reference` then draws its card and puts it into its chapter, the glossary, the map
of the methods and the cheat sheet. Run as a program, this prints the map as one A3 page (`make map`).
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import groupby

from pfl_lite.show.offices import OFFICES, SHARED, Office
from pfl_lite.show.plots import METHOD_LABELS


@dataclass(frozen=True)
class Piece:
    """A thing that the server or an office holds, drawn as one small box."""

    label: str
    own: bool = False
    """It belongs to one office, whose color it has; otherwise it is the same for all, and blue."""
    travels: bool = False
    """It goes down or up in a round, and is hatched."""


# the same for all, and it travels or stays where it is; an office's own, and it stays or travels
shared, fixed = partial(Piece, travels=True), Piece
own, sent = partial(Piece, own=True), partial(Piece, own=True, travels=True)


@dataclass(frozen=True)
class Card:
    """A method in the drawn language of the book."""

    family: str
    chapter: str
    """The page that teaches it: a unit, or the laboratory of one."""
    says: str
    """The idea, in a line."""
    server: tuple[Piece, ...]
    office: tuple[Piece, ...]
    down: str
    """What goes to an office in a round; empty if nothing does."""
    up: str
    learns: str
    when: str
    """When a model becomes one office's own."""
    knob: str
    cost: str
    formula: str
    """The line in which it differs, in LaTeX and the letters of the page Notation; the cheat sheet shows it."""


MODEL = (shared("model"),)
FIRST, CENTER, PART, TIE = "Foundations", "Pull to the center", "Share a part", "Two models, one tie"
GROUPS, NEIGHBOURS, MIXTURES, GATE = "Groups", "Neighbors", "Mixtures", "A gate"
BRANCHES, WRITTEN, MODULES = "Branches", "Generated", "Modules"
THREE, DRIFT, TIES, MOE = (
    "one-model-or-many",
    "pulling-towards-the-centre",
    "two-models-one-tie",
    "a-gate-between-two-experts",
)

CARDS: dict[str, Card] = {
    "local": Card(
        FIRST, THREE, "Every office learns alone.", (), (own("model"),), "", "",
        learns="one model per office, from its own mail", when="from the first step",
        knob="none", cost="no traffic at all",
        formula=r"\theta_i \leftarrow \theta_i - \eta \nabla f_i(\theta_i)",
    ),
    "fedavg": Card(
        FIRST, "federated-learning-in-twenty-lines", "Everyone trains a copy; the server averages the copies.", MODEL, MODEL,
        "model", "model",
        learns="one model for all", when="never; every office gets the same",
        knob="local epochs E", cost="1 model down, 1 up",
        formula=r"\theta \leftarrow \sum_i \frac{n_i}{n} \theta_i",
    ),
    "pfl_ft": Card(
        FIRST, THREE, "FedAvg; then every office tunes its own copy.", MODEL, (shared("model"), own("tuned copy")),
        "model", "model",
        learns="one model for all, then a copy per office", when="after the last round",
        knob="epochs of tuning", cost="FedAvg's traffic, a few more epochs",
        formula=r"\theta_i \leftarrow \mathrm{SGD}(\theta;\, f_i)",
    ),
    "fedprox": Card(
        CENTER, DRIFT, "FedAvg with a rubber band to the server's model.", MODEL, MODEL, "model", "model",
        learns="one model for all", when="never",
        knob="μ, strength of the band", cost="1 model down, 1 up",
        formula=r"d_i = \nabla f_i(y) + \mu (y - \theta)",
    ),
    "scaffold": Card(
        CENTER, DRIFT, "Each step is corrected by how this office differs.", (shared("model"), shared("variate")),
        (shared("model"), own("own variate")), "both", "changes of both",
        learns="one model, and every control variate", when="never",
        knob="the server's step", cost="2 models down, 2 up",
        formula=r"d_i = \nabla f_i(y) + c - c_i",
    ),
    "moon": Card(
        CENTER, f"lab-{DRIFT}", "Features follow the server's model, not last round's.", MODEL,
        (shared("model"), own("last model")), "model", "model",
        learns="one model for all", when="never",
        knob="μ, weight of the contrast", cost="1 model each way, 3 forward passes",
        formula=r"f_i + \mu\, \ell_{\mathrm{con}}(z, z_{\theta}, z_{\mathrm{last}})",
    ),
    "fedper": Card(
        PART, "sharing-a-part", "A shared base under a private head.", (shared("base"),), (shared("base"), own("head")),
        "base", "base",
        learns="a base for all and a head per office, at once", when="during training",
        knob="where to cut the network", cost="less than a model each way",
        formula=r"\min_{s, p_i} \sum_i \frac{n_i}{n} f_i(s, p_i)",
    ),
    "fedrep": Card(
        PART, "sharing-a-part", "FedPer, one part at a time: head, then base.", (shared("base"),),
        (shared("base"), own("head")),
        "base", "base",
        learns="a head per office, then the base for all", when="during training",
        knob="epochs on the head; the cut", cost="FedPer's traffic, more epochs",
        formula=r"p_i \leftarrow \mathrm{SGD}(p_i),\; s_i \leftarrow \mathrm{SGD}(s)",
    ),
    "lg_fedavg": Card(
        PART, "sharing-a-part", "A private base under a shared head.", (shared("head"),), (own("base"), shared("head")),
        "head", "head",
        learns="a base per office and a head for all", when="during training",
        knob="where to cut the network", cost="the top of a model each way",
        formula=r"\min_{p_i, s} \sum_i \frac{n_i}{n} f_i(p_i, s)",
    ),
    "pfl_fb": Card(
        PART, "sharing-a-part", "FedAvg; then every office tunes its top layers.", MODEL,
        (shared("model"), own("tuned head")), "model", "model",
        learns="one model for all, then a head per office", when="after the last round",
        knob="epochs of tuning; the cut", cost="FedAvg's traffic, a few more epochs",
        formula=r"p_i \leftarrow \mathrm{SGD}(p;\, f_i(s, \cdot))",
    ),
    "pfedme": Card(
        TIE, TIES, "A spring ties each office's model to the common one.", MODEL, (shared("model"), own("own model")),
        "model", "model",
        learns="a model each; a common one follows it", when="during training",
        knob="λ, strength of the tie", cost="1 model each way, 5 times the work",
        formula=r"F_i(w) = \min_\theta f_i(\theta) + \frac{\lambda}{2} \lVert \theta - w \rVert^2",
    ),
    "ditto": Card(
        TIE, TIES, "FedAvg, and a second model pulled toward it.", MODEL, (shared("model"), own("own model")),
        "model", "model",
        learns="a model for all and a second per office", when="during training",
        knob="λ, strength of the pull", cost="1 model each way, twice the work",
        formula=r"\min_{v_i} f_i(v_i) + \frac{\lambda}{2} \lVert v_i - w \rVert^2",
    ),
    "apfl": Card(
        TIE, f"lab-{TIES}", "Use a mix of the common model and your own.", MODEL,
        (shared("model"), own("own model"), own("share α")), "model", "model",
        learns="both models, and how much of each to use", when="during training",
        knob="α at the start", cost="1 model each way, twice the work",
        formula=r"\bar v_i = \alpha_i v_i + (1 - \alpha_i) w",
    ),
    "perfedavg": Card(
        TIE, f"lab-{TIES}", "Learn a start from which one step is enough.", MODEL, (shared("model"), own("adapted model")),
        "model", "model",
        learns="one start for all", when="when it is used: one step",
        knob="rate of that step", cost="1 model each way, twice the gradients",
        formula=r"\min_w \sum_i f_i(w - a \nabla f_i(w))",
    ),
    "ifca": Card(
        GROUPS, "clusters", "k models compete; each office picks the best.", (shared("1"), shared("2"), shared("3")),
        (shared("all k models"), own("its choice")), "k models", "1 model",
        learns="k models, and who uses which", when="during training, by group",
        knob="k, how many groups", cost="k models down, 1 up",
        formula=r"\hat\jmath_i = \arg\min_j f_i(\theta_j)",
    ),
    "cfl": Card(
        GROUPS, "clusters", "Start as one group; split where updates disagree.", (shared("group a"), shared("group b")),
        (shared("group's model"),), "model", "model",
        learns="a model per group, and the groups", when="from the first split on",
        knob="when to split: ε₁, ε₂", cost="1 model down, 1 up",
        formula=r"\min_{c_1, c_2} \max_{i \in c_1, j \in c_2} \cos(\Delta_i, \Delta_j)",
    ),
    "fedfomo": Card(
        NEIGHBOURS, "neighbours", "Try the others' models, and move toward good ones.", (sent("models"),),
        (sent("own model"), own("weights")), "others' models", "own model",
        learns="a model per office, and whom to trust", when="during training",
        knob="M, models to try", cost="M − 1 models down, 1 up",
        formula=r"a_n \propto \max(0, \frac{L_i(\theta_i^-) - L_i(\theta_n)}{\lVert \theta_n - \theta_i^- \rVert})",
    ),
    "fedamp": Card(
        NEIGHBOURS, "neighbours", "The server mixes the models most like yours.", (sent("models"),),
        (sent("own model"), sent("its mix")), "its mix", "own model",
        learns="a model per office, and who is similar", when="during training",
        knob="λ, and σ of the attention", cost="1 model down, 1 up",
        formula=r"\xi_{ij} \propto e^{-\lVert w_i - w_j \rVert^2 / \sigma}",
    ),
    "fedem": Card(
        MIXTURES, "mixtures", "Every office is a blend of the same few models.", (shared("1"), shared("2"), shared("3")),
        (shared("all M models"), own("blend π")), "M models", "M models",
        learns="M models, and a blend per office", when="during training, by the blend",
        knob="M, how many models", cost="M models each way, M times the work",
        formula=r"q_{s,m} \propto \pi_{i,m} e^{-\ell_m(s)}",
    ),
    "pfedmb": Card(
        BRANCHES, "pfedmb", "Shared branches in every layer; each office mixes.",
        (shared("branch 1"), shared("branch 2"), shared("branch 3")), (shared("all branches"), sent("mix α")),
        "B branches", "B branches, α",
        learns="branches for all, a mix per office", when="during training, by the mix",
        knob="B, branches per layer", cost="B models each way, twice the work",
        formula=r"W_l = \sum_b \alpha_{l,b} W_{l,b}",
    ),
    "pfl_moe": Card(
        GATE, MOE, "A gate picks, image by image: common or own model.", MODEL,
        (shared("model"), own("tuned model"), own("gate")), "model", "model",
        learns="one model for all; expert and gate per office", when="after the last round",
        knob="rates of expert and gate", cost="FedAvg's traffic; expert and gate train at the end",
        formula=r"g\, M(\theta; x) + (1 - g) M(\theta_i; x)",
    ),
    "pfl_mf": Card(
        GATE, MOE, "PFL-MoE with a common base; the gate reads pixels.", MODEL,
        (shared("model"), own("tuned head"), own("pixel gate")), "model", "model",
        learns="one model for all; head and gate per office", when="after the last round",
        knob="where to cut the network", cost="FedAvg's traffic; expert and gate train at the end",
        formula=r"g = \sigma(G(w_i; x))",
    ),
    "pfl_mfe": Card(
        GATE, MOE, "PFL-MF whose gate reads features, not pixels.", MODEL,
        (shared("model"), own("tuned head"), own("feature gate")), "model", "model",
        learns="one model for all; head and gate per office", when="after the last round",
        knob="where to cut the network", cost="FedAvg's traffic; expert and gate train at the end",
        formula=r"g = \sigma(G(w_i; a(x)))",
    ),
    "pfedhn": Card(
        WRITTEN, "generated-models", "A network at the server writes each office's network.",
        (fixed("hypernetwork"), own("embeddings")), (sent("own model"),), "own model", "its change",
        learns="a hypernetwork; an embedding per office", when="when it is generated",
        knob="size of the embedding", cost="1 model down, 1 up; work at the server",
        formula=r"\theta_i = h(e_i; \varphi)",
    ),
    "fedmn": Card(
        MODULES, "assembling-a-network-per-client", "Each office assembles its network from a pool of blocks.",
        (shared("blocks"), shared("router")), (shared("chosen blocks"), shared("router"), own("own route")),
        "blocks, router", "blocks, router",
        learns="a pool of blocks, and a router", when="as the data choose the blocks",
        knob="how many blocks per layer", cost="the chosen blocks and the router",
        formula=r"\Pi_i = \sigma(\frac{1}{n_i} \sum h(z(x, y)))",
    ),
}  # fmt: skip
"""The methods in the order of the course."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK, SOFT, LINE, GROUND = "#1f2937", "#4b5563", "#c9d0d9", "#f7f8fa"
WIDTH, HEIGHT = 560, 500
FACTS = {
    "learns": "What is learned",
    "when": "When it becomes personal",
    "knob": "The knob",
    "cost": "Cost per office and round",
}
LINE_OF = 27  # letters that a line of a fact has room for
SHOWN = OFFICES[:3]
KEY = "Hatched: travels in every round. Solid: stays. Blue: shared by all offices. Another color: one office's own."


def families() -> Iterator[tuple[str, list[str]]]:
    """Every family with its methods, in the order of the course."""
    for family, methods in groupby(CARDS, lambda method: CARDS[method].family):
        yield family, list(methods)


def words(method: str) -> str:
    """A card for those who cannot see it."""
    card = CARDS[method]
    server = ", ".join(piece.label for piece in card.server) or "nothing"
    office = ", ".join(f"{piece.label} ({_kind(piece)})" for piece in card.office)
    route = f"Down: {card.down}. Up: {card.up}." if card.down else "Nothing travels."
    facts = " ".join(f"{title}: {getattr(card, name)}." for name, title in FACTS.items())
    return f"{METHOD_LABELS[method]}. {card.says} Server: {server}. {route} Office: {office}. {facts}"


def svg(method: str) -> str:
    """A card as a picture of its own."""
    title = escape(METHOD_LABELS[method])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-labelledby="t d" font-family="{FONT}">\n<title id="t">{title}</title>\n'
        f'<desc id="d">{escape(words(method))}</desc>\n{_patterns()}\n{drawn(method)}\n</svg>\n'
    )


def poster() -> str:
    """All cards on one A3 sheet, beside a panel that says how to read them: the map of the methods."""
    across, gap, edge, panel = 5, 26, 60, 770
    rows = -(-len(CARDS) // across)
    left, high = edge + panel + gap, 2 * edge + rows * (HEIGHT + gap) - gap
    wide = left + across * (WIDTH + gap) - gap + edge
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" aria-labelledby="t d" '
        f'font-family="{FONT}">\n<title id="t">Map of the methods</title>\n<desc id="d">{len(CARDS)} cards, one per method, in '
        f"the order of the course, beside a panel that says how to read them.</desc>\n{_patterns()}",
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
        f'<g transform="translate({edge} {edge})">',
        *_panel(),
        "</g>",
    ]
    for place, method in enumerate(CARDS):
        x, y = left + place % across * (WIDTH + gap), edge + place // across * (HEIGHT + gap)
        parts.append(f'<g transform="translate({x} {y})">\n{drawn(method)}\n</g>')
    return "\n".join([*parts, "</svg>\n"])


def _panel() -> Iterator[str]:
    """How to read the map: what colors, hatching and arrows mean, and the families in their order."""
    yield _text(0, 84, "Map of", 104, weight=700)
    yield _text(0, 206, "the methods", 104, weight=700)
    y = 290.0
    for line in textwrap.wrap(
        "Personalized federated learning, by running it. The server stands above, three offices below.", 38
    ):
        yield _text(0, y, line, 36, SOFT)
        y += 48
    for number, (travels, color, words) in enumerate(LEGEND):
        yield f'<g transform="translate(0 {y + 62 * number:g}) scale(2.4)">{_swatch(travels, color, words)}</g>'
    y += 62 * len(LEGEND) + 46
    for line in ("Solid arrow: goes down in a round.", "Dashed arrow: comes back."):
        yield _text(0, y, line, 34, SOFT)
        y += 46
    y += 44
    for family, methods in families():
        yield _text(0, y, family, 38, weight=700)
        for line in textwrap.wrap(", ".join(METHOD_LABELS[method] for method in methods), 36):
            y += 46
            yield _text(0, y, line, 36, SOFT)
        y += 102


def key() -> str:
    """What colors and hatching mean, as a picture of its own."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 44" width="620" height="44" role="img" aria-labelledby="t" '
        f'font-family="{FONT}">\n<title id="t">{KEY}</title>\n{_patterns()}\n'
        f'<rect x="1" y="1" width="618" height="42" rx="12" fill="{GROUND}" stroke="{LINE}" stroke-width="1.5"/>\n'
        f'<g transform="translate(14 0)">{legend(13)}</g>\n</svg>\n'
    )


def drawn(method: str) -> str:
    """What a card shows, without a frame of its own; the patterns of the hatching must be on the page."""
    card = CARDS[method]
    parts = [
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="16" fill="{GROUND}" stroke="{LINE}" '
        'stroke-width="1.5"/>',
        _text(24, 40, METHOD_LABELS[method], 25, weight=700),
        _text(WIDTH - 24, 38, card.family, 16, SOFT, anchor="end"),
        _text(24, 67, card.says, 17.5, SOFT),
    ]
    parts += _server(card)
    for number, office in enumerate(SHOWN):
        parts += _office(card, office, 24 + number * 180)
    for number, (name, title) in enumerate(FACTS.items()):
        x, y = 24 + number % 2 * 268, 371 + number // 2 * 66
        parts.append(_text(x, y, title, 14.5, SOFT, weight=600))
        parts += [
            _text(x, y + 20 + 19 * row, line, 16.5) for row, line in enumerate(lines(getattr(card, name)))
        ]
    return "\n".join(parts)


def lines(fact: str) -> list[str]:
    """A fact as the lines of a card."""
    return textwrap.wrap(fact, LINE_OF)


def _kind(piece: Piece) -> str:
    """What a piece's look means, in words."""
    return ("its own" if piece.own else "shared") + (", travels" if piece.travels else ", stays")


def _text(
    x: float, y: float, words: str, size: float, fill: str = INK, *, weight: int = 400, anchor: str = "start"
) -> str:
    """A line of text."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}">'
        f"{escape(words, quote=False)}</text>"
    )


def _hatch(color: str) -> str:
    """The name of a color's hatching."""
    return f"h{color.removeprefix('#')}"


def _patterns() -> str:
    """The hatchings that cards refer to."""
    return "<defs>" + "".join(
        f'<pattern id="{_hatch(color)}" width="9" height="9" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="9" height="9" fill="#ffffff"/><rect width="3.6" height="9" fill="{color}" fill-opacity="0.62"/></pattern>'
        for color in (SHARED, *(office.color for office in SHOWN))
    ) + "</defs>"  # fmt: skip


def _box(piece: Piece, colors: Sequence[str], x: float, y: float, width: float) -> Iterator[str]:
    """A piece, in as many colors as it has owners side by side."""
    part = width / len(colors)
    for number, color in enumerate(colors):
        fill = f"url(#{_hatch(color)})" if piece.travels else color
        yield (
            f'<rect x="{x + number * part:g}" y="{y:g}" width="{part:g}" height="27" rx="6" fill="{fill}" '
            f'stroke="{color}" stroke-width="1.5"/>'
        )
    # A plate under the words, so that they read on hatching and on every color.
    plate = min(9.4 * len(piece.label) + 12, width - 8)
    yield (
        f'<rect x="{x + (width - plate) / 2:g}" y="{y + 4:g}" width="{plate:g}" height="19" rx="4" fill="#ffffff" '
        'fill-opacity="0.94"/>'
    )
    yield _text(x + width / 2, y + 19, piece.label, 15.5, weight=600, anchor="middle")


def _server(card: Card) -> Iterator[str]:
    """The server's box, and the arrows under it."""
    if not card.server:
        yield (
            f'<rect x="74" y="84" width="412" height="66" rx="12" fill="none" stroke="{LINE}" stroke-width="1.5" '
            'stroke-dasharray="6 6"/>'
        )
        yield _text(280, 123, "no server is needed", 16.5, SOFT, anchor="middle")
        return
    yield f'<rect x="74" y="84" width="412" height="66" rx="12" fill="#ffffff" stroke="{LINE}" stroke-width="1.5"/>'
    yield _text(90, 123, "Server", 17, weight=600)
    room = 316 / len(card.server)
    width = min(room - 8, 150)
    for number, piece in enumerate(card.server):
        colors = [office.color for office in SHOWN] if piece.own else [SHARED]
        yield from _box(
            piece, colors, 480 - room * (len(card.server) - number) + room - width - 8, 104, width
        )
    arrow = 'fill="none" stroke="#6b7684" stroke-width="2"'
    for number in range(3):
        x = 24 + number * 180 + 76
        start = 280 + (x - 280) * 0.55
        # On the right the way up bends above the way down, so that the two do not cross.
        down, up = ((180, 170), (182, 188)) if number < 2 else ((190, 182), (178, 172))
        yield f'<path d="M{start - 8:g} 151 C {start - 8:g} {down[0]}, {x - 12} {down[1]}, {x - 12} 209" {arrow}/>'
        yield f'<path d="M{x - 18} 206 l6 10 l6 -10 z" fill="#6b7684"/>'
        yield (
            f'<path d="M{x + 12} 217 C {x + 12} {up[0]}, {start + 8:g} {up[1]}, {start + 8:g} 161" {arrow} '
            'stroke-dasharray="5 5"/>'
        )
        yield f'<path d="M{start + 2:g} 162 l6 -10 l6 10 z" fill="#6b7684"/>'
    yield _text(194, 209, "↓ " + card.down, 15, SOFT, anchor="middle")
    yield _text(366, 209, "↑ " + card.up, 15, SOFT, anchor="middle")


def _office(card: Card, office: Office, x: float) -> Iterator[str]:
    """An office's box."""
    yield f'<rect x="{x:g}" y="219" width="152" height="126" rx="12" fill="#ffffff" stroke="{LINE}" stroke-width="1.5"/>'
    yield f'<circle cx="{x + 20:g}" cy="237" r="7" fill="{office.color}"/>'
    yield _text(x + 33, 242.5, office.name, 16, weight=600)
    for number, piece in enumerate(card.office):
        yield from _box(piece, [office.color if piece.own else SHARED], x + 10, 252 + 30 * number, 132)


LEGEND = (
    (True, SHARED, "shared, travels"), (False, SHARED, "shared, stays"),
    (True, SHOWN[0].color, "own, travels"), (False, SHOWN[0].color, "own, stays"),
)  # fmt: skip


def legend(y: float) -> str:
    """What colors and hatching mean, side by side."""
    return "".join(
        f'<g transform="translate({number * 152} {y:g})">{_swatch(*entry)}</g>'
        for number, entry in enumerate(LEGEND)
    )


def _swatch(travels: bool, color: str, words: str) -> str:
    """A color or hatching, and what it means."""
    fill = f"url(#{_hatch(color)})" if travels else color
    return (
        f'<rect width="24" height="17" rx="4" fill="{fill}" stroke="{color}" stroke-width="1.5"/>'
        f"{_text(30, 14, words, 14.5, SOFT)}"
    )


if __name__ == "__main__":
    from make_pdf import print_sheet

    style = "@page { size: A3 landscape; margin: 0 } body { margin: 0 } svg { width: 420mm; height: 296mm }"
    page = f'<!doctype html><meta charset="utf-8"><style>{style}</style>{poster()}'
    sys.exit(print_sheet(page, "map-of-methods.pdf", "the picture is book/figures/cards/map-of-methods.svg"))
