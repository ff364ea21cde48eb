"""The explorers: the pages' JavaScript against NumPy, pandas and pfl_lite."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import pfl_lite
from pfl_lite.chapter import front_end
from pfl_lite.data.partition import heterogeneity
from pfl_lite.data.recipes import apportion
from pfl_lite.errors import InputError
from pfl_lite.models.modular import in_use
from pfl_lite.results.ledger import Ledger, default_folder
from pfl_lite.show import comparison, explorers
from pfl_lite.show.plots import EXPERT_COLORS, METHOD_COLORS
from tests.explored import carried, mixed, routes
from tests.test_claims_of_tables import IDLE, make_run

SCRIPT = Path(pfl_lite.__file__).parent / "static" / "partition_explorer.js"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node, to run the page's JavaScript, is not installed")
CLIENTS, CLASSES, IMAGES, SEEDS = 10, 8, 100, 200


def javascript(expression: str, script: Path = SCRIPT, **values: Any) -> Any:
    """Evaluate an expression over `e`, the functions of the page, and `v`, the given values."""
    source = f"const e = require({json.dumps(str(script))}); const v = {json.dumps(values)};"
    source += f"process.stdout.write(JSON.stringify({expression}));"
    done = subprocess.run([str(NODE), "-"], input=source, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def column(found: list[dict[str, float]], name: str) -> np.ndarray:
    return np.array([one[name] for one in found])


@needs_node
@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_measures_of_the_page_follow_numpys_law(alpha: float) -> None:
    ours = javascript(
        "Array.from({length: v.seeds}, (_, seed) => e.view({kind: 'dirichlet', alpha: v.alpha, k: 1, seed,"
        " clients: v.clients, classes: v.classes, width: 600}).measures)",
        alpha=alpha, seeds=SEEDS, clients=CLIENTS, classes=CLASSES,
    )  # fmt: skip
    theirs = []
    for seed in range(SEEDS):
        rng = np.random.default_rng([17, seed])
        shares = rng.dirichlet(np.full(CLIENTS, alpha), size=CLASSES).T
        theirs.append(heterogeneity(apportion(shares, np.full(CLASSES, IMAGES))))
    for name in ("label_distance", "effective_classes", "size_gini"):
        a, b = column(ours, name), column(theirs, name)
        error = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / SEEDS)  # of the difference of two means
        assert abs(a.mean() - b.mean()) < 4 * error, name
        assert error < 0.03 * b.mean(), "the comparison would not see a difference of a few percent"


@needs_node
@pytest.mark.parametrize("alpha", [0.05, 0.3, 1.0, 40.0])
def test_one_share_of_the_page_is_beta_distributed(alpha: float) -> None:
    shares = javascript(
        "Array.from({length: 3000}, (_, seed) => e.dirichlet(v.clients, v.alpha, e.generator(seed)))",
        alpha=alpha, clients=CLIENTS,
    )  # fmt: skip
    assert np.allclose(np.sum(shares, axis=1), 1)
    for client in (0, CLIENTS - 1):
        law = stats.beta(alpha, alpha * (CLIENTS - 1))
        assert stats.kstest(np.array(shares)[:, client], law.cdf).pvalue > 1e-3


@needs_node
def test_extreme_concentrations_stay_finite() -> None:
    shares = javascript("[1e-6, 1e6].map((alpha) => e.dirichlet(5, alpha, e.generator(3)))")
    assert np.allclose(np.sum(shares, axis=1), 1)
    assert max(shares[0]) > 0.999 and np.allclose(shares[1], 0.2, atol=0.01)


@needs_node
def test_apportionment_of_the_page_is_the_packages() -> None:
    rng = np.random.default_rng(4)
    cases = []
    for number in range(60):
        clients, classes = rng.integers(1, 25), rng.integers(1, 15)
        weights = rng.dirichlet(np.full(clients, 10.0 ** rng.uniform(-1.5, 1.5)), size=classes).T
        if number % 3 == 0:  # equal shares, where remainders tie, and classes that nobody holds
            weights = (rng.random((clients, classes)) < 0.5).astype(float)
            weights /= np.maximum(weights.sum(axis=0), 1)
        cases.append((weights, rng.integers(0, 200, classes)))
    found = javascript(
        "v.cases.map(([shares, sizes]) => e.apportion(shares, sizes))",
        cases=[(shares.tolist(), sizes.tolist()) for shares, sizes in cases],
    )
    for (shares, sizes), counts in zip(cases, found, strict=True):
        assert np.array_equal(counts, apportion(shares, sizes))


@needs_node
def test_measures_of_the_page_are_the_packages() -> None:
    counts = np.random.default_rng(5).integers(0, 40, (6, 4))
    counts[2] = [0, 9, 0, 0]
    assert javascript("e.measures(v.counts)", counts=counts.tolist()) == pytest.approx(heterogeneity(counts))


@needs_node
def test_classes_of_the_page_are_balanced_and_distinct() -> None:
    for clients, classes, k in ((12, 10, 2), (7, 5, 3), (3, 10, 1), (4, 6, 6)):
        shares = np.array(
            javascript("e.classShares(...v.numbers, e.generator(1))", numbers=[clients, classes, k])
        )
        held = shares > 0
        assert (held.sum(axis=1) == k).all()
        assert np.ptp(held.sum(axis=0)) <= 1
        assert np.allclose(shares.sum(axis=0), held.any(axis=0))


@needs_node
def test_the_picture_shows_every_count() -> None:
    state = {"kind": "dirichlet", "alpha": 0.3, "k": 2, "clients": 9, "classes": 7, "seed": 5, "width": 330}
    shown = javascript("e.view(v.state)", state=state)
    counts = np.array(shown["counts"])
    assert (counts.sum(axis=0) == IMAGES).all()
    told = re.findall(r"<title>client (\d+), class (\d+): (\d+) images</title>", shown["svg"])
    assert {(int(i), int(c)): int(n) for i, c, n in told} == {
        (i, c): counts[i, c] for i, c in np.argwhere(counts > 0)
    }
    assert f"label distance {heterogeneity(counts)['label_distance']:.2f}" in shown["sentence"]
    again, other = (javascript("e.view(v.state).counts", state=state | {"seed": seed}) for seed in (5, 6))
    assert again == shown["counts"] != other


@needs_node
def test_a_client_without_images_is_said_so() -> None:
    state = {"kind": "dirichlet", "alpha": 0.05, "k": 1, "clients": 30, "classes": 2, "seed": 0, "width": 330}
    shown = javascript("e.view(v.state)", state=state)
    assert min(map(sum, shown["counts"])) == 0
    assert "size ratio infinite" in shown["sentence"]


def test_the_page_brings_everything_along() -> None:
    page = explorers.partition()
    assert SCRIPT.read_text(encoding="utf-8") in page
    assert not re.search(r"https?:|url\(|@import|\bsrc=|\bhref=", page)
    assert page.count("<script>") == page.count("</script>") == 1


@pytest.mark.parametrize("script", sorted(SCRIPT.parent.glob("*.js")), ids=lambda path: path.stem)
def test_a_script_is_short(script: Path) -> None:
    lines = script.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 200 and max(map(len, lines)) < 150


def test_a_program_that_runs_a_notebook_is_no_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert not front_end()
    monkeypatch.setenv("JPY_SESSION_NAME", "chapter.ipynb")
    assert front_end()


ROUTING = SCRIPT.with_name("routing_explorer.js")
GATE = SCRIPT.with_name("gate_explorer.js")


@needs_node
def test_routes_of_the_page_by_hand() -> None:
    # 1 encoder, 2 hidden blocks, 2 output blocks: links 1-a, 1-b, then (c from a, c from b, d from a, d from b), outputs c, d.
    def routes(bits: list[int], logits: list[float]) -> Any:
        return javascript("e.routes([1, 2, 2], v.bits, v.logits)", script=ROUTING, bits=bits, logits=logits)

    logits = [-0.4, -0.9, -1.4, -2.2, 0.4, -0.9, -1.4, -2.2]
    used = routes([1, 0, 1, 1, 0, 0, 1, 1], logits)
    assert used["active"] == [[True], [True, False], [True, False]], "b has no link, so d is never reached"
    assert used["safety"] == 0
    dead = routes([0] * 8, logits)
    assert dead["bits"] == [1, 0, 0, 0, 1, 0, 0, 1], (
        "the best link in, the best link out of a, the output that is reached"
    )
    assert dead["safety"] == 3
    unread = routes([1, 1, 1, 0, 0, 1, 1, 0], logits)
    assert unread["active"][2] == [True, False], "an output block without its output bit is not sent"


@needs_node
def test_agreement_of_routes_in_the_page_is_numpys() -> None:
    rng = np.random.default_rng(0)
    bits, groups = rng.integers(0, 2, (7, 9)), rng.integers(0, 2, 7)
    equal = (bits[:, None] == bits).mean(2)
    pairs = np.triu(np.ones((7, 7), bool), 1)
    same = groups[:, None] == groups
    found = javascript(
        "e.agreement(v.bits, v.groups)", script=ROUTING, bits=bits.tolist(), groups=groups.tolist()
    )
    assert found == pytest.approx({"same": equal[pairs & same].mean(), "other": equal[pairs & ~same].mean()})


@needs_node
def test_the_page_draws_bits_with_their_probabilities() -> None:
    logits = [[[50, np.log(0.3 / 0.7)]]]
    record = {
        "blocks": [1, 1], "groups": [0], "colors": ["red"], "rounds": [0], "logits": logits, "measures": [],
    }  # fmt: skip
    drawn = javascript(
        "Array.from({length: 4000}, (_, draw) => e.view(v.record, {at: 0, kind: 'draw', draw, width: 300}).found[0].safety)",
        script=ROUTING, record=record,
    )  # fmt: skip
    assert np.mean(drawn) == pytest.approx(0.7, abs=0.03), "the only output bit is off with probability 0.7"


@needs_node
def test_mixtures_of_the_page_are_numpys() -> None:
    rng = np.random.default_rng(1)
    general, personal = rng.normal(size=(2, 5))
    for g in (0.0, 0.37, 1.0):
        mixed = np.exp(g * general + (1 - g) * personal)
        found = javascript("e.mix(v.g, v.a, v.b)", script=GATE, g=g, a=general.tolist(), b=personal.tolist())
        assert found == pytest.approx((mixed / mixed.sum()).tolist())


@needs_node
def test_explorers_show_what_was_recorded() -> None:
    logits = np.random.default_rng(2).normal(size=(3, 4, 8))
    page = explorers.routing([1, 2, 2], [0, 1, 5], logits, [0, 0, 1, 1])
    record = recorded(page)
    assert np.allclose(record["logits"], logits, rtol=0.005, atol=0)
    shown = javascript(
        "e.view(v.record, {at: 2, kind: 'threshold', draw: 0, width: 500})", script=ROUTING, record=record
    )
    assert "round 5" in shown["sentence"]
    for client, one in enumerate(shown["found"]):
        wanted = (logits[2, client] > 0).astype(int)
        assert (np.array(one["bits"]) >= wanted).all(), "the safety path only switches on"
        assert np.sum(np.array(one["bits"]) - wanted) == one["safety"]
    image = {
        "client": 3, "label": 1, "share": 0.25, "g": 0.4, "global": [1, 2], "personal": [2, 0],
        "pixels": np.eye(4),
    }  # fmt: skip
    record = recorded(explorers.gate(["A", "</script>"], [image]))
    assert record["images"][0]["pixels"] == "f0000f0000f0000f"
    assert "25% of its training images are </script>" in record["images"][0]["about"]


LOGITS = np.array([[[0.3, -0.2, 1.0, -0.1], [-0.4, -0.7, 2.0, 0.2], [0.1, 0.9, -0.6, -0.5]],
                   [[0.3, 0.2, -1.0, 0.1], [0.4, -0.7, 2.0, 0.2], [0.1, -0.9, 0.6, 0.5]]])  # fmt: skip
# One encoder and two output blocks: two wires, then two output bits.
POOL: tuple[Any, ...] = (1, 2), [0, 7], LOGITS, [1, 0, 1]


@needs_node
def test_routes_of_the_page_are_the_packages() -> None:
    rng = np.random.default_rng(6)
    for blocks, clients in (((2, 3, 2), 7), ((1, 1), 1), ((3, 1, 2, 2), 4)):
        size = sum(a * b for a, b in pairwise([*blocks, 1]))
        logits, groups = rng.normal(-0.5, 1, (3, clients, size)), rng.integers(0, 3, clients)
        record = recorded(explorers.routing(blocks, [1, 2, 9], logits, groups))
        for at in (0, 2):
            settings = {"at": at, "kind": "threshold", "draw": 0, "width": 600}
            page = javascript(
                "e.view(v.record, v.settings)", script=ROUTING, record=record, settings=settings
            )
            bits, values = routes(record, at)
            parts = [
                f"{name} {value} {remark}"
                for (name, remark), value in zip(record["measures"], values, strict=True)
            ]
            assert page["sentence"] == f"round {record['rounds'][at]}: {', '.join(parts)}"
            assert bits.tolist() == [one["bits"] for one in page["found"]]
            sent = [in_use(torch.from_numpy(own), blocks).tolist() for own in bits]
            assert sent == [
                [float(on) for layer in one["active"][1:] for on in layer] for one in page["found"]
            ]


@needs_node
def test_sentences_of_the_pages_by_hand() -> None:
    # Round 7: 1101 has both wires but reads output 2 only; 1011 reads both outputs but has the wire to block 1 only, twice.
    record = recorded(explorers.routing(*POOL))
    settings = {"at": 1, "kind": "threshold", "draw": 0, "width": 600}
    assert javascript(
        "e.view(v.record, v.settings).sentence", script=ROUTING, record=record, settings=settings
    ) == (
        "round 7: blocks sent 1.0 per client, of 2, equal decisions 50% two clients of one group, "
        "equal decisions 75% two clients of different groups"
    )
    # The mixed logits are 2 (1 - g), 2 g and 0: A below one half, B above.
    record = recorded(explorers.gate(["A", "B", "<C>"], [IMAGE]))
    assert record["images"][0]["about"] == (
        "client 3: 13% of its training images are B; its gate gives this image g = 0.25"
    )
    for g, says in ((0.25, "A, wrong"), (0.51, "B, right")):
        assert javascript(
            "e.view(v.record, {at: 0, g: v.g, width: 600}).sentence", script=GATE, record=record, g=g
        ) == (f"global expert says B, right; personal expert says A, wrong; mixture says {says}")
    record = recorded(explorers.alpha(*MIXTURES))
    settings = {"at": 1, "layer": 0, "width": 600}
    assert javascript(
        "e.view(v.record, v.settings).sentence", script=ALPHA, record=record, settings=settings
    ) == (
        "round 3. pFedMB: distance, two groups 0.50, distance, one group 1.00, branches in use 1.33. "
        "pFedMB, eq. 6: distance, two groups 1.00, distance, one group 0.00, branches in use 1.00"
    )


IMAGE = {
    "client": 3, "label": 1, "share": 0.125, "g": 0.25, "pixels": np.eye(4),
    "global": [0.0, 2.0, 0.0], "personal": [2.0, 0.0, 0.0],
}  # fmt: skip


@needs_node
def test_probabilities_of_the_page_are_scipys() -> None:
    rng, classes = np.random.default_rng(3), ["A", "B", '"', "<D>"]
    images = [
        {
            "client": i, "label": i % 4, "share": rng.random(), "g": rng.random(), "pixels": rng.random((5, 5)),
            "global": rng.normal(size=4), "personal": rng.normal(size=4),
        }
        for i in range(3)
    ]  # fmt: skip
    record = recorded(explorers.gate(classes, images))
    for at, image in enumerate(record["images"]):
        for g in (image["g"], 1.0):
            page = javascript(
                "e.view(v.record, {at: v.at, g: v.g, width: 600})", script=GATE, record=record, at=at, g=g
            )
            assert np.allclose(page["probabilities"], mixed(image, g))
            assert "<D>" not in page["svg"] and page["svg"].count("<rect") == 3 * 4


def test_colors_of_the_gate_are_those_of_its_picture() -> None:
    style = (SCRIPT.parent / "explorer.css").read_text(encoding="utf-8")
    general, personal, _ = (shade.lower() for shade in EXPERT_COLORS.values())
    assert f"--dot: {general}" in style and "rect.global { fill: var(--dot); }" in style
    assert f"rect.personal {{ fill: {personal}; }}" in style


ALPHA = SCRIPT.with_name("alpha_explorer.js")
# Round 3: clients 0 and 2 are one group and wholly apart; client 1 shares half with each of them.
MIXTURES: tuple[Any, ...] = (
    [0, 3],
    {
        "pfedmb": [[[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], [[1, 0], [0.5, 0.5], [0, 1]]],
        "pfedmb_plain": [[[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], [[1, 0], [0, 1], [1, 0]]],
    },
    [4, 2, 4],
)


@needs_node
def test_specialisation_in_the_page_is_numpys() -> None:
    rng = np.random.default_rng(8)
    weights, groups = rng.dirichlet(np.full(4, 0.3), size=7), rng.integers(0, 3, 7)
    weights[0] = [0, 1, 0, 0]  # a weight of zero adds nothing to an entropy
    found = javascript(
        "e.measures(v.weights, v.groups)", script=ALPHA, weights=weights.tolist(), groups=groups.tolist()
    )
    apart, together, used = [], [], []
    for i in range(7):
        positive = weights[i][weights[i] > 0]
        used.append(np.prod(positive**-positive))
        for j in range(i):
            kind = together if groups[i] == groups[j] else apart
            kind.append(np.maximum(weights[i] - weights[j], 0).sum())
    assert found == pytest.approx([np.mean(apart), np.mean(together), np.mean(used)])


@needs_node
def test_layers_of_the_alpha_page_are_chosen() -> None:
    rng = np.random.default_rng(9)
    runs = {name: rng.dirichlet(np.ones(3), size=(2, 6, 4)) for name in ("pfedmb", "<b>")}  # four layers
    record = recorded(explorers.alpha([1, 5], runs, [0, 0, 1, 1, 2, 2]))
    assert record["layers"] == ["layer 1", "layer 2", "layer 3", "layer 4"]
    assert np.allclose(record["runs"][0]["weights"], runs["pfedmb"], atol=5e-5)
    for layer in (0, 3):
        settings = {"at": 1, "layer": layer, "width": 600}
        shows = javascript("e.view(v.record, v.settings)", script=ALPHA, record=record, settings=settings)
        assert f", layer {layer + 1}. pFedMB: " in shows["sentence"] and "<b>" not in shows["svg"]
        assert shows["svg"].count('class="track"') == 2 * 6 * 3


@needs_node
def test_bars_of_the_page_are_as_long_as_the_weights() -> None:
    record = recorded(explorers.alpha(*MIXTURES))
    svg = javascript("e.view(v.record, {at: 1, layer: 0, width: 500}).svg", script=ALPHA, record=record)
    wide = r'[^>]*? width="([\d.]+)"[^>]*/>'
    found = re.findall(
        rf'<title>([^<]*)</title><rect class="track"{wide}<rect style="fill:(#\w+)"{wide}', svg
    )
    drawn = {title: (float(bar) / float(track), shade) for title, track, shade, bar in found}
    assert drawn["pFedMB, client 1, branch 0: 0.50"] == (0.5, METHOD_COLORS["pfedmb"])
    assert drawn["pFedMB, eq. 6, client 0, branch 0: 1.00"] == (1, METHOD_COLORS["pfedmb_plain"])
    assert drawn["pFedMB, eq. 6, client 0, branch 1: 0.00"][0] == 0 and len(drawn) == 12


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "at least one run and one round"),
        ({"a": np.full((2, 4, 2), 0.5)}, r"the weights of a must be \[2 rounds, 3 clients, branches\]"),
        ({"a": np.full((2, 3, 2), 0.5), "b": np.full((2, 3, 4), 0.25)}, "b have another number of layers or branches"),
        ({"a": np.full((2, 3, 2), 0.4)}, "a must be zero or more and sum to 1"),
        ({"a": np.full((2, 3, 2), np.nan)}, "a must be zero or more and sum to 1"),
    ],
)  # fmt: skip
def test_weights_that_are_no_mixtures_are_refused(change: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        explorers.alpha([0, 1], change, [0, 0, 1])


STANDINGS = SCRIPT.with_name("standings_explorer.js")


@needs_node
def test_standings_of_the_page_are_numpys() -> None:
    """Four methods whose order is the paper's in the first round, and its reverse at the end."""
    rng = np.random.default_rng(4)
    paper = {"fedavg": 80.0, "pfedmb": 84.0, "ifca": 86.0, "<b>": 90.0}
    noise, wide = 2 * rng.normal(size=9), np.zeros(9)
    wide[0] = 180  # the last one is far ahead in the mean, by one client alone
    runs = {
        "fedavg": [np.full(9, 70.0), 95 - noise], "pfedmb": [np.full(9, 71.0), 94 + noise],
        "ifca": [np.full(9, 72.0), np.full(9, 60.0)], "<b>": [73 - 20 + wide, np.full(9, 50.0)],
    }  # fmt: skip
    record = recorded(explorers.standings({"two kinds": ([5, "end"], runs, paper)}))
    (kept,) = record
    assert kept["rounds"] == ["5", "end"]
    assert kept["tau"] == [pytest.approx(1), pytest.approx(-1)]
    means = {name: [np.mean(one) for one in each] for name, each in runs.items()}
    for at in (0, 1):
        page = javascript(
            "e.view(v.record, {setting: 0, at: v.at, width: 600})", script=STANDINGS, record=record, at=at
        )
        best = sorted(means, key=lambda name: -means[name][at])
        assert page["order"] == [explorers.label(name) for name in best]
        gap = np.mean([abs(means[name][at] - paper[name]) for name in paper])
        assert kept["gap"][at] == pytest.approx(gap) and page["shown"][2][1] == f"{gap:.1f}"
        assert (
            "<b>" not in page["svg"]
            and page["svg"].count("<circle") == page["svg"].count('class="cross"') == 4
        )
    level = {one["name"]: one["level"] for one in kept["methods"]}
    assert all(early for early, _ in level.values()), "ahead by one client alone is not ahead"
    assert [name for name, (_, late) in level.items() if late] == ["FedAvg", "pFedMB"]
    assert page["sentence"].startswith("round end: FedAvg ") and "order -1.00" in page["sentence"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scores": {"a": [[1.0]]}}, "a table: standings need two methods or more"),
        ({"paper": {"a": 1.0, "c": 2.0}}, "two methods or more, each with the paper's number"),
        ({"rounds": [1, 2]}, r"accuracies of every method must be \[2 rounds, clients\]"),
        ({"scores": {"a": [[1.0, 2.0]], "b": [[1.0]]}}, "must be .1 rounds, clients"),
        ({"scores": {"a": [[np.nan, 1.0]], "b": [[1.0, 1.0]]}}, "an accuracy is missing"),
        ({"paper": {"a": 1.0, "b": np.nan}}, "an accuracy is missing"),
    ],
)
def test_standings_that_are_none_are_refused(change: dict[str, Any], said: str) -> None:
    setting = {"rounds": [1], "scores": {"a": [[1.0, 2.0]], "b": [[2.0, 3.0]]}, "paper": {"a": 1.0, "b": 2.0}}
    explorers.standings({"a table": tuple(setting.values())})  # type: ignore[dict-item]
    with pytest.raises(InputError, match=said):
        explorers.standings({"a table": tuple((setting | change).values())})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="at least one setting"):
        explorers.standings({})


COMPARISON = SCRIPT.with_name("comparison_explorer.js")
ODD = "pfedmb-table2-random2-15"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Three methods and three seeds with other clients each, some without test images, ties, and a seed that one method lacks;
    two runs of one method, which has no rival; and a method that tunes.
    """
    ledger, rng = Ledger(tmp_path_factory.mktemp("ledger")), np.random.default_rng(12)
    for seed, clients in enumerate((12, 7, 15)):
        nobody = rng.random(clients) < 0.2
        for arm in ("local", "fedavg", "pfedmb"):
            scores = rng.integers(0, 40, (3, clients)) / 41  # 0, 2 and 5 rounds, or 0, 3 and 5
            lists = [
                [None if gone else one for one, gone in zip(own, nobody, strict=True)]
                for own in scores.tolist()
            ]
            kept = [{"personal": own} | ({"tuned": own[::-1]} if arm == "pfedmb" else {}) for own in lists]
            run = make_run(ODD, arm, 50, seed, clients)
            run["rounds"] = [
                {"round": t, **IDLE, "per_client": each}
                for t, each in zip((0, 3 if arm == "fedavg" else 2, 5), kept, strict=True)
            ]
            last = kept[-1]
            run["final"] |= {"test_accuracy": last.get("tuned", last["personal"])}
            both = zip(run["final"]["test_accuracy"], last["personal"], strict=True)
            run["final"]["test_size"] = [int(None not in pair) for pair in both]
            run["final"].pop("local_test_clients")
            if arm == "pfedmb":
                run["final_before_ft"] = {"test_accuracy": last["personal"]}
            else:
                run["final"].pop("global_test_clients")
            if (arm, seed) != ("local", 1):
                ledger.write(run)
    for seed in (0, 1):
        ledger.write(make_run("pfedmb-fig5", "b5", 50, seed))
    return ledger


def shown(record: Any, **settings: Any) -> Any:
    start = {
        "at": 0, "kind": "curves", "metric": "scored", "summary": "mean", "width": 600, "a": "fedavg",
        "b": "pfedmb",
    }  # fmt: skip
    settings = start | {"methods": ["local", "fedavg", "pfedmb"]} | settings
    return javascript("e.view(v.record, v.settings)", script=COMPARISON, record=record, settings=settings)


def tidy(ledger: Ledger) -> pd.DataFrame:
    """The last accuracies straight from the ledger: seed and client down, methods across, in percent."""
    frame = ledger.frame(ODD)
    frame = frame[frame["quantity"] == "test_accuracy"]
    return 100 * frame.pivot(index=["seed", "client"], columns="arm", values="value")


@needs_node
def test_curves_of_the_page_are_pandas(runs: Ledger) -> None:
    record = recorded(explorers.comparison(comparison.record(runs)))
    frame = runs.frame(ODD)
    lines = shown(record, metric="personal")["lines"]
    assert [one["at"] for one in lines if one["method"]["key"] == "fedavg"] == [[0, 3, 5]]
    for metric, quantity in (("personal", "personal"), ("scored", "tuned")):
        own = frame[(frame["quantity"] == quantity) & (frame["arm"] == "pfedmb")]
        per_seed = own.groupby(["round", "seed"])["value"]
        for summary, each in (
            ("mean", per_seed.mean()),
            ("worst_tenth", per_seed.apply(lambda x: x.nsmallest(-(-x.count() // 10)).mean())),
        ):
            wanted = 100 * each.groupby("round").agg(["mean", "min", "max"])
            (line,) = [
                one
                for one in shown(record, metric=metric, summary=summary)["lines"]
                if one["method"]["key"] == "pfedmb"
            ]
            assert line["at"] == [0, 2, 5] and line["seeds"] == 3
            found = np.array([line["value"], line["low"], line["high"]]).T
            assert np.allclose(found, wanted, atol=0.00501)


@needs_node
def test_pairs_and_ranks_of_the_page_are_pandas(runs: Ledger) -> None:
    record = recorded(explorers.comparison(comparison.record(runs)))
    table = tidy(runs)
    both = table[["fedavg", "pfedmb"]].dropna()
    assert 0 < len(both) < len(table) and both.index.get_level_values("seed").nunique() == 3
    found = shown(record, kind="pairs")
    difference = both["pfedmb"] - both["fedavg"]
    assert found["found"] == pytest.approx(
        {"above": (difference > 0.001).mean(), "below": (difference < -0.001).mean(),
         "equal": (difference.abs() < 0.001).mean(), "difference": difference.mean()}, abs=0.006
    )  # fmt: skip
    assert found["svg"].count("<circle") == len(both)
    other = shown(record, kind="pairs", a="pfedmb", b="fedavg")["found"]
    assert other["above"] == found["found"]["below"] and other["difference"] == -found["found"]["difference"]

    every = table.dropna()
    assert every.index.get_level_values("seed").unique().tolist() == [0, 2]
    wanted = every.round(6).rank(axis=1, ascending=False).mean()
    for one in shown(record, kind="ranks")["found"]:
        own = every[one["method"]["key"]]
        worst = own.groupby("seed").apply(lambda x: x.nsmallest(-(-len(x) // 10)).mean()).mean()
        assert one["rank"] == pytest.approx(wanted[one["method"]["key"]])
        assert (one["mean"], one["worst"]) == pytest.approx((own.mean(), worst), abs=0.006)


def test_the_comparison_starts_with_the_books_colors_and_no_crowd() -> None:
    record = recorded(explorers.comparison(comparison.record(Ledger(default_folder()))))
    for entry in record["experiments"]:
        known = {method["key"]: method for method in entry["methods"]}
        assert entry["a"] in known and entry["b"] in known
        assert sum(method["start"] for method in known.values()) == min(len(known), 8)
        looks = [(method["color"], method["dash"]) for method in known.values()]
        assert len(set(looks)) == len(looks), "two methods look alike"
        for key, method in known.items():
            assert method["color"] == METHOD_COLORS.get(key, method["color"]) != "#000000"
    assert record["experiments"][0]["name"] == "pfedmb-table1"


@needs_node
def test_ticks_are_round_and_hold_the_values() -> None:
    for low, high in ((0, 30), (86.2, 88.0), (50, 50), (0, 1), (12.34, 97.1)):
        found = javascript("e.ticks(v.low, v.high)", script=COMPARISON, low=low, high=high)
        assert found[0] <= low and found[-1] >= high and 2 <= len(found) <= 8
        assert len({round(b - a, 6) for a, b in pairwise(found)}) == 1


def test_a_comparison_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least two methods"):
        explorers.comparison(comparison.record(Ledger(tmp_path)))


def test_logits_that_do_not_fit_the_blocks_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(2, 3, 8\), not \(2, 3, 7\)"):
        explorers.routing([1, 2, 2], [0, 1], np.zeros((2, 3, 7)), [0, 0, 1])
    with pytest.raises(InputError, match="at least one round and one client"):
        explorers.routing([1, 2, 2], [], np.zeros((0, 3, 8)), [0, 0, 1])
    with pytest.raises(InputError, match="finite"):
        explorers.routing([1, 2, 2], [0], np.full((1, 1, 8), np.nan), [0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"global": [1, 2]}, "image 0 needs 3 logits of each expert"),
        ({"label": 3}, "the label of image 0 must be 0 to 2, not 3"),
        ({"pixels": np.zeros((2, 3))}, r"the pixels of image 0 must be \[side, side\], not \[2, 3\]"),
        ({"g": 1.5}, "g of image 0 must be 0 to 1, not 1.5"),
    ],
)
def test_images_that_cannot_be_explored_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        explorers.gate(["A", "B", "C"], [IMAGE | change])


def test_images_that_lack_something_are_refused() -> None:
    with pytest.raises(InputError, match="at least one image"):
        explorers.gate(["A", "B", "C"], [])
    with pytest.raises(InputError, match="image 0 lacks share, g"):
        explorers.gate(["A", "B", "C"], [{name: IMAGE[name] for name in IMAGE if name not in ("share", "g")}])


def recorded(page: str) -> Any:
    """What an explorer's page carries inside, after the checks that every page must pass."""
    assert page.count("<script") == page.count("</script>") == 2
    assert not re.search(r"(src|href)=|https?:", page), "nothing from elsewhere"
    return carried(page)
