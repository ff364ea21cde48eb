"""The playgrounds' JavaScript, run in node or in Chromium, against a second implementation in NumPy (tests/reference)."""

from __future__ import annotations

import base64
import importlib
import json
import re
import shutil
import subprocess
import tempfile
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from bs4 import BeautifulSoup
from playgrounds import PER_CLASS, PLAYGROUNDS, STATIC, digits, playground, write_folder

from pfl_lite.data.images import load
from pfl_lite.errors import InputError
from pfl_lite.show.offices import OFFICES
from tests import reference
from tests.reference.common import SGD, Client, join, weighted_mean
from tests.reference.dense import Learner, Net, forward

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = [
    ROOT / "pfl_lite/static/explorer.js",
    *(STATIC / f"play_{name}.js" for name in ("models", "core", "offices")),
]
NODE, CHROMIUM = shutil.which("node"), shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    not (NODE or CHROMIUM), reason="neither node nor chromium, to run the page's JavaScript, is installed"
)
HIDDEN, TIGHT = 6, 1e-9
SETTINGS: dict[str, Any] = {
    "lr": 0.3, "steps": 4, "tuning": 3, "cut": HIDDEN * 65, "lam": 0.4, "mu": 0.3, "clusters": 2, "branches": 3, "alpha_lr": 0.8,
    "inner_steps": 3, "inner_lr": 0.05,
}  # fmt: skip


def javascript(expression: str, **values: Any) -> Any:
    """The value of an expression over `P`, `O` and `U`, the functions of the pages, and `v`, the given values."""
    given = f"const v = {json.dumps(values)};"
    if NODE:
        source = f"{given} const P = require({json.dumps(str(STATIC / 'play_core.js'))});"
        source += f"const O = require({json.dumps(str(STATIC / 'play_offices.js'))});"
        source += f"const U = require({json.dumps(str(STATIC / 'play_upload.js'))});"
        source += f"process.stdout.write(JSON.stringify({expression}));"
        done = subprocess.run([NODE, "-"], input=source, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)
    return in_chromium(given, expression)


def dumped(address: str, *options: str) -> str:
    """A page as Chromium leaves it; with a profile of its own, as one that is in use shows nothing."""
    with tempfile.TemporaryDirectory() as profile:
        command = [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        command += [f"--user-data-dir={profile}", *options, address]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def in_chromium(given: str, expression: str) -> Any:
    """The same in a page."""
    scripts = "".join(f"<script>{script.read_text()}</script>" for script in SCRIPTS)
    page = f"<!doctype html>{scripts}<pre id=a></pre><script>{given} const [P, O] = [pflPlay, pflOffices];"
    page += f"document.getElementById('a').textContent = JSON.stringify({expression})</script>"
    address = "data:text/html;base64," + base64.b64encode(page.encode()).decode()
    return json.loads(unescape(dumped(address).split('<pre id="a">')[1].split("</pre>")[0]))


DEAL = """(() => {
  const pool = O.unpack(v.pool);
  const offices = O.deal(pool, v.dealt).slice(0, 4);
  const shape = { pixels: 64, hidden: v.hidden, classes: 10 };
  const train = offices.map((one) => P.learner({ ...one.train, ...shape }));
  const test = offices.map((one) => P.learner({ ...one.test, ...shape }));
  const starts = [0, 1, 2].map((copy) => P.drawn(copy, 64, v.hidden, 10));
  const found = Object.fromEntries(v.methods.map((name) => {
    const method = P.METHODS[name];
    let state = method.start(starts, train, v.o);
    for (let t = 0; t < v.rounds; t++) state = method.round(state, train, v.o);
    const models = method.personal(state, train, v.o);
    return [name, { server: method.server(state).map((w) => [...w]), personal: models.map((w) => [...w]),
      accuracy: models.map((w, i) => test[i].accuracy(w)) }];
  }));
  const plain = ({ x, y }) => ({ x: [...x], y });
  return { offices: offices.map(({ train, test }) => ({ train: plain(train), test: plain(test) })),
    starts: starts.map((w) => [...w]), found };
})()"""


class Row(NamedTuple):
    """A learner whose models are one row, [1, P], as pFedMB's reference wants them."""

    data: Learner

    @property
    def size(self) -> int:
        return self.data.size

    def gradient(self, w: np.ndarray) -> np.ndarray:
        return self.data.gradient(w[0])[None]


def shape() -> Net:
    return {"hidden": np.zeros((HIDDEN, 65)), "classes": np.zeros((10, HIDDEN + 1))}


def learner(split: dict[str, Any]) -> Learner:
    x = np.array(split["x"]).reshape(-1, 64)
    return Learner(Client(join(x, np.ones(len(x))), np.array(split["y"])), shape())


def accuracy(vector: np.ndarray, data: Learner) -> float:
    from tests.reference.common import unpack

    return float((forward(unpack(vector, data.net), data.data.x)[1].argmax(1) == data.data.y).mean())


def fedper(start: np.ndarray, clients: list[Learner], rounds: int, sgd: SGD, steps: int, cut: int) -> Any:
    """Base and head trained together; the mean of the bases travels, the heads stay."""
    base, heads = start[:cut], [start[cut:] for _ in clients]
    for _ in range(rounds):
        trained = [
            sgd.descend(np.concatenate([base, head]), client.gradient, steps)
            for client, head in zip(clients, heads, strict=True)
        ]
        heads = [w[cut:] for w in trained]
        base = weighted_mean([w[:cut] for w in trained], [client.size for client in clients])
    return base, np.stack([np.concatenate([base, head]) for head in heads])


@pytest.mark.parametrize("kind", ["label", "feature", "concept", "quantity"])
def test_every_method_of_the_page_is_the_references(kind: str) -> None:
    o, rounds = SETTINGS, 3
    methods = [
        "local", "fedavg", "pfl_ft", "fedprox", "scaffold", "fedper", "ditto", "pfedme", "ifca", "pfedmb",
    ]  # fmt: skip
    dealt = {"kind": kind, "strength": 0.7, "seed": 5, "offices": 8}
    page = javascript(DEAL, pool=digits(), dealt=dealt, hidden=HIDDEN, methods=methods, o=o, rounds=rounds)
    clients = [learner(one["train"]) for one in page["offices"]]
    tests = [learner(one["test"]) for one in page["offices"]]
    starts, everyone, sgd = np.array(page["starts"]), [range(len(clients))] * rounds, SGD(o["lr"])
    usual = (starts[0], clients, everyone, o["steps"], sgd)
    theirs: dict[str, Any] = {
        "local": reference.local(*usual),
        "fedavg": reference.fedavg(*usual),
        "pfl_ft": reference.fedavg(*usual, ft_epochs=o["tuning"]),
        "fedprox": reference.fedprox(*usual, mu=o["mu"]),
        "scaffold": reference.scaffold(*usual),
        "ditto": reference.ditto(*usual, lam=o["lam"]),
        "pfedme": reference.pfedme(*usual, lam=o["lam"], inner_steps=o["inner_steps"], inner_lr=o["inner_lr"]),
        "ifca": reference.ifca(starts[: o["clusters"]], clients, everyone, o["steps"], sgd),
        "pfedmb": reference.pfedmb(
            starts[:, None], [Row(one) for one in clients], everyone, o["steps"], sgd, alpha_lr=o["alpha_lr"]
        ),
    }  # fmt: skip
    for name, found in page["found"].items():
        if name == "fedper":
            server, personal = fedper(starts[0], clients, rounds, sgd, o["steps"], o["cut"])
            found["server"] = [found["server"][0][: o["cut"]]]
        else:
            server, personal = theirs[name].server, theirs[name].personal
        personal = np.reshape(personal, (len(clients), -1))
        assert np.allclose(found["personal"], personal, rtol=0, atol=TIGHT), name
        if name != "local":
            assert np.allclose(
                found["server"],
                np.reshape(server, (-1, len(np.ravel(found["server"][0])))),
                rtol=0,
                atol=TIGHT,
            ), name
        ours = [accuracy(np.array(w), one) for w, one in zip(found["personal"], tests, strict=True)]
        assert found["accuracy"] == pytest.approx(ours, abs=TIGHT), name
    moved = [np.abs(np.array(one["personal"]) - starts[0]).max() for one in page["found"].values()]
    assert min(moved) > 1e-3, "a method that stands still agrees with anything"


class Bowl(NamedTuple):
    """1/2 (x - optimum)' H (x - optimum)."""

    optimum: np.ndarray
    H: np.ndarray
    size: int = 1

    def gradient(self, x: np.ndarray) -> np.ndarray:
        return self.H @ (x - self.optimum)

    def loss(self, x: np.ndarray) -> float:
        return float((x - self.optimum) @ self.gradient(x) / 2)


BOWLS = """(() => {
  const bowls = v.bowls.map(({ optimum, steepness, degrees, size }) => ({ optimum, size, H: P.hessian(steepness, degrees) }));
  const clients = bowls.map(P.bowl);
  return { H: bowls.map(({ H }) => H), lowest: [...P.lowest(bowls)], found: Object.fromEntries(v.methods.map((name) => {
    const method = P.METHODS[name];
    let state = method.start(v.starts.map((w) => Float64Array.from(w)), clients, v.o);
    for (let t = 0; t < v.rounds; t++) state = method.round(state, clients, v.o);
    const plain = (models) => models.map((w) => [...w]);
    return [name, { server: plain(method.server(state)), personal: plain(method.personal(state, clients, v.o)) }];
  })) };
})()"""


def test_the_server_of_the_plane_is_the_references() -> None:
    rng, o = np.random.default_rng(3), {**SETTINGS, "lr": 0.2, "steps": 7}
    given = [
        {"optimum": rng.normal(size=2).tolist(), "steepness": 0.5 + i, "degrees": 40 * i, "size": 1} for i in range(4)
    ]  # fmt: skip
    starts = rng.normal(size=(2, 2))
    methods = ["fedavg", "fedprox", "scaffold", "pfedme", "ifca"]
    page = javascript(BOWLS, bowls=given, starts=starts.tolist(), methods=methods, o=o, rounds=4)
    bowls = []
    for one in given:
        angle = np.deg2rad(one["degrees"])
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        bowls.append(Bowl(np.array(one["optimum"]), turn @ np.diag([1, 0.1]) @ turn.T * one["steepness"]))
    assert [[h["a"], h["b"], h["c"]] for h in page["H"]] == [
        pytest.approx([bowl.H[0, 0], bowl.H[0, 1], bowl.H[1, 1]]) for bowl in bowls
    ]
    assert np.allclose(sum(bowl.gradient(np.array(page["lowest"])) for bowl in bowls), 0, atol=TIGHT)
    everyone, sgd = [range(4)] * 4, SGD(o["lr"])
    usual = (starts[0], bowls, everyone, o["steps"], sgd)
    theirs: dict[str, Any] = {
        "fedavg": reference.fedavg(*usual),
        "fedprox": reference.fedprox(*usual, mu=o["mu"]),
        "scaffold": reference.scaffold(*usual),
        "pfedme": reference.pfedme(
            *usual, lam=o["lam"], inner_steps=o["inner_steps"], inner_lr=o["inner_lr"]
        ),
        "ifca": reference.ifca(starts, bowls, everyone, o["steps"], sgd),
    }
    for name, found in page["found"].items():
        assert np.allclose(found["server"], theirs[name].server, rtol=0, atol=TIGHT), name
        assert np.allclose(found["personal"], theirs[name].personal, rtol=0, atol=TIGHT), name


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_page_computes_what_node_computes() -> None:
    expression = "[...P.METHODS.fedprox.round({ w: Float64Array.of(1, 2) }, [P.bowl(v.bowl)], v.o).w]"
    values = {"bowl": {"optimum": [0, 1], "H": {"a": 1, "b": 0.2, "c": 2}}, "o": SETTINGS}
    assert in_chromium(f"const v = {json.dumps(values)};", expression) == javascript(expression, **values)


class TestDeal:
    def deal(self, **how: Any) -> Any:
        chosen = {"kind": "none", "strength": 1, "seed": 2, "offices": 8} | how
        return javascript(
            "O.deal(O.unpack(v.pool), v.chosen).map(({ train, test }) => ({ train: { y: train.y, images: train.images }, "
            "test: { y: test.y, images: test.images } }))",
            pool=digits(), chosen=chosen,
        )  # fmt: skip

    @pytest.mark.parametrize("kind", ["none", "label", "feature", "concept", "quantity"])
    def test_no_image_is_trained_on_twice_or_tested_where_one_trains(self, kind: str) -> None:
        offices = self.deal(kind=kind)
        trained = [number for one in offices for number in one["train"]["images"]]
        tested = {number for one in offices for number in one["test"]["images"]}
        assert len(trained) == len(set(trained)) and not set(trained) & tested
        assert len(trained) == 320 or kind == "quantity"

    def test_label_skew_leaves_two_digits(self) -> None:
        assert [len(set(one["train"]["y"])) for one in self.deal(kind="label")] == [2] * 8
        assert [len(set(one["train"]["y"])) for one in self.deal(kind="label", strength=0)] == [10] * 8

    def test_the_other_country_reads_otherwise(self) -> None:
        offices = self.deal(kind="concept", strength=0.2)
        for place, one in enumerate(offices):
            meant = {
                (number % 10, label)
                for number, label in zip(one["test"]["images"], one["test"]["y"], strict=True)
            }
            assert ((1, 7) in meant) == ((7, 1) in meant) == (place >= 4) and (4, 4) in meant

    def test_villages_get_less_mail(self) -> None:
        sizes = [len(one["train"]["y"]) for one in self.deal(kind="quantity")]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] > 20 * sizes[-1] > 0

    def test_another_hand_keeps_the_ink(self) -> None:
        image = (load("digits").train_images[0] / 16).ravel().tolist()
        same, turned = javascript(
            "[[0, 0, 1, 1], [90, 0, 1, 1]].map((hand) => [...O.written(Float64Array.from(v.image), hand, 1)])",
            image=image,
        )
        assert np.allclose(same, image) and np.allclose(
            np.rot90(np.reshape(image, (8, 8)), -1), np.reshape(turned, (8, 8))
        )


def test_the_digits_of_the_page_are_the_books() -> None:
    pool = javascript(
        "(({ pixels, labels }) => ({ pixels: [...pixels.slice(0, 640)], labels }))(O.unpack(v.pool))",
        pool=digits(),
    )
    images = load("digits")
    labels = np.concatenate([images.train_labels, images.test_labels])
    pixels = np.concatenate([images.train_images, images.test_images]).reshape(-1, 64)
    first = np.stack([pixels[labels == c][0] for c in range(10)]) / pixels.max()
    assert np.abs(np.reshape(pool["pixels"], (10, 64)) - first).max() <= 0.5 / 15 + 1e-12
    assert len(pool["labels"]) == 10 * PER_CLASS


@pytest.mark.parametrize("kind", PLAYGROUNDS)
def test_a_playground_is_whole_and_small(kind: str) -> None:
    page = playground(kind)
    assert all(office.name in page for office in OFFICES) and PLAYGROUNDS[kind] in page
    assert "http:" not in page.replace("http://www.w3.org", "") and "https:" not in page
    assert len(page) < 110_000 and page.count("</script>") == 2


def test_the_folder_of_playgrounds_needs_nothing_outside_itself(tmp_path: Path) -> None:
    write_folder(tmp_path / "site")
    files = {path.name for path in (tmp_path / "site").iterdir()}
    assert files == {"index.html", *(f"{kind}.html" for kind in PLAYGROUNDS)}
    for name in files:
        text = (tmp_path / "site" / name).read_text(encoding="utf-8")
        page = BeautifulSoup(text, "html.parser")
        named = {tag.get(key) for tag in page.find_all(True) for key in ("src", "href") if tag.get(key)}
        if name != "index.html":
            assert page.find("h2").text in {"Three things to try", "Five bets", "How to tell"}
            words = " ".join(part.text for part in page.find_all(["p", "li", "summary", "td"]))
            assert not re.search(r"[`{]|\]\(|:class:", words), "directives are no words"
        assert named == (files - {name} if name == "index.html" else set())
        assert not re.search(
            r"url\((?!['\"]?data:)|@import|\bfetch\(|XMLHttpRequest|importScripts|import\(", text
        )
        assert "//" not in re.sub(r"http://www\.w3\.org|(?m:(?<![\w:])// .*$)|[A-Za-z0-9+/=]{60,}", "", text)
    (tmp_path / "moved").mkdir()  # a folder that holds nothing else, opened as file://
    for name in files:
        shutil.move(tmp_path / "site" / name, tmp_path / "moved" / name)
    if CHROMIUM:
        address = (tmp_path / "moved" / "server.html").as_uri()
        for theme, system in (("light", "1"), ("dark", "0")):  # as the reader's system prefers
            shown = dumped(address, f"--blink-settings=preferredColorScheme={system}")
            page = BeautifulSoup(shown, "html.parser")
            assert page.html is not None and page.html.get("data-theme") == theme
            widget = page.select_one(".pfl-play")
            assert widget is not None and widget.find("button") and "needs JavaScript" not in widget.text


def test_a_page_that_names_a_playground_gets_it_whole() -> None:
    tool = importlib.import_module("mended_pages")
    named = {
        kind
        for path in (ROOT / "book").glob("*.md")
        for kind in tool.PLAY.findall(path.read_text(encoding="utf-8"))
    }
    assert named == set(PLAYGROUNDS)
    source = ["# A\n\n```{playground} server\n```\n\nAfter it."]
    tool.with_playground(None, "a", source)
    assert source[0] == f"# A\n\n````{{raw}} html\n{playground('server')}\n````\n\nAfter it."


def test_an_unknown_playground_is_refused() -> None:
    with pytest.raises(InputError, match="server"):
        playground("sever")


BETS = """(() => {
  const pool = O.unpack(v.pool), shape = { pixels: O.PIXELS, hidden: 16, classes: O.CLASSES };
  const o = { lr: 0.5, steps: 5, tuning: 10, cut: 16 * (O.PIXELS + 1), lam: 0.3, clusters: 2, branches: 3, alpha_lr: 1 };
  return v.bets.map(([kind, strength]) => v.seeds.map((seed) => {
    const offices = O.deal(pool, { kind, strength, seed });
    const [train, test] = ["train", "test"].map((split) => offices.map((one) => P.learner({ ...one[split], ...shape })));
    const starts = [0, 1, 2].map((copy) => P.drawn(100 * seed + copy, O.PIXELS, 16, O.CLASSES));
    return v.methods.map((name) => {
      let state = P.METHODS[name].start(starts, train, o);
      for (let t = 0; t < 20; t++) state = P.METHODS[name].round(state, train, o);
      return P.METHODS[name].personal(state, train, o).map((w, i) => test[i].accuracy(w));
    });
  }));
})()"""


@pytest.mark.slow
def test_the_bets_ended_as_the_page_says() -> None:
    page = (ROOT / "book/train-a-federation.md").read_text(encoding="utf-8")
    script = (STATIC / "play_federation.js").read_text(encoding="utf-8")
    for words in (
        "lr: 0.5,",
        "tuning: 10,",
        "lam: 0.3,",
        "clusters: 2,",
        "branches: 3,",
        "alpha_lr: 1 ",
        "= [16, 20]",
    ):
        assert words in script
    methods = ["local", "fedavg", "pfl_ft", "fedper", "ditto", "ifca", "pfedmb"]
    bets = [("none", 0), ("label", 0.9), ("concept", 0.2), ("concept", 1), ("feature", 1), ("quantity", 1)]
    found = javascript(BETS, pool=digits(), bets=bets, seeds=list(range(1, 11)), methods=methods)
    read = 100 * np.array(found)  # [bets, seeds, methods, offices]
    rows = [line.split("|")[2:-1] for line in page.splitlines() if re.match(r"\| \d, ", line)]
    # a mean that ends in .5 may be printed either way
    assert np.abs(read.mean((1, 3)) - np.array(rows, dtype=float)).max() < 0.51
    nothing, label, weak, strong, feature, quantity = (
        dict(zip(methods, bet.mean(0), strict=True)) for bet in read
    )
    assert nothing["fedavg"].mean() - nothing["local"].mean() == pytest.approx(12, abs=0.5)
    assert [round(x) for x in label["fedavg"][[4, 3]]] == [71, 72] and np.delete(
        label["fedavg"], [3, 4]
    ).min() > 90.5
    for bet in (2, 3):
        lucky = read[bet, :, 5].mean(1) > 88
        assert lucky.sum() in (2, 3) and abs(read[bet, lucky, 5].mean() - 91) < 1
    assert strong["fedper"].mean() > 85 and weak["fedper"].mean() > 85
    assert round(feature["local"].mean() - feature["fedavg"].mean()) == 16 and max(feature["fedavg"][6:]) < 50
    assert feature["pfl_ft"].mean() < feature["local"].mean()
    assert [round(quantity["local"][i]) for i in (0, 7)] == [94, 16] and quantity["fedavg"].min() > 91.5
    assert round(quantity["fedavg"][7] - quantity["pfl_ft"][7]) == 26


UPLOADS = """(() => {
  const pool = O.unpack(v.pool), w = U.untrained(2);
  const mail = [U.image(pool, v.number), ...U.others(pool, v.amount, 4)];
  const sent = U.upload(w, mail, v.steps), z = U.normals(3), noise = U.noisy(sent.map(() => 0), 2, z);
  return { mail: mail.map(({ x, y }) => ({ x: [...x], y })), w: [...w], sent: [...sent], noise: [...noise],
    rows: Array.from({ length: 10 }, (_, c) => [...U.rebuilt(sent, c)]), told: U.told(sent),
    misplaced: U.misplaced(U.told(sent), mail), likeness: U.likeness(sent.subarray(0, 64), mail[0].x),
    trained: [...U.common(mail, { offices: 4, sigma: 0, seed: 2, rounds: 3, lr: 0.2 })],
    noisy: [...U.common(mail, { offices: 4, sigma: 2, seed: 3, rounds: 1, lr: 1 })],
    start: [...U.untrained(3)], right: U.accuracy(w, mail) };
})()"""


@pytest.mark.parametrize(("amount", "steps"), [(0, 1), (5, 1), (5, 4)])
def test_an_upload_is_the_references_gradient(amount: int, steps: int) -> None:
    page = javascript(UPLOADS, pool=digits(), number=13, amount=amount, steps=steps)
    x, y = np.array([one["x"] for one in page["mail"]]), np.array([one["y"] for one in page["mail"]])
    data, start = (
        Learner(Client(join(x, np.ones(len(x))), y), {"classes": np.zeros((10, 65))}),
        np.array(page["w"]),
    )
    assert len(y) == amount + 1 == len({tuple(one) for one in x}) and y[0] == 3
    sent = np.array(page["sent"])
    end = SGD(0.3).descend(start, data.gradient, steps)
    assert np.allclose(sent, (start - end) / (0.3 * steps), rtol=0, atol=TIGHT)
    rows = sent.reshape(10, 65)
    assert np.allclose(page["rows"], rows[:, :64] / rows[:, 64:], rtol=1e-9)
    if amount == 0:  # eq-up-image: each row is the image, whatever the number of steps
        assert np.allclose(page["rows"], np.tile(x, (10, 1)), atol=1e-8)
    told = np.clip(0.1 - rows[:, 64], 0, None)
    told /= told.sum()
    true = np.bincount(y, minlength=10) / len(y)
    assert np.allclose(page["told"], told, atol=TIGHT)
    assert page["misplaced"] == pytest.approx(np.abs(told - true).sum() / 2)
    assert page["likeness"] == pytest.approx(np.corrcoef(sent[:64], x[0])[0, 1])
    assert page["right"] == pytest.approx(accuracy(start, data))
    trained = SGD(0.2).descend(start, data.gradient, 3)
    assert np.allclose(page["trained"], trained, rtol=0, atol=TIGHT), (
        "the mean of equal offices is one gradient"
    )
    begun = np.array(page["start"])  # noise 2 of four offices is noise 1 on their mean
    assert np.allclose(
        begun - data.gradient(begun) - page["noisy"], np.array(page["noise"]) / 2, rtol=0, atol=TIGHT
    )
    assert abs(np.std(page["noise"]) / 2 - 1) < 0.1 and np.abs(start).max() < 1 / 8


SEEN = """(() => {
  const pool = O.unpack(v.pool), images = pool.labels.map((_, n) => U.image(pool, n));
  const mean = (some) => some.reduce((a, b) => a + b, 0) / some.length;
  const seen = ([batch, steps, sigma, watched]) => images.slice(0, 100).map((mine, n) => {
    const mail = [mine, ...U.others(pool, batch - 1, n)];
    const sent = U.noisy(U.upload(U.untrained(n), mail, steps), sigma / Math.sqrt(watched), U.normals(n + 1));
    const told = U.told(sent);
    const [alike, wrong] = [U.likeness(U.rebuilt(sent, mine.y), mine.x), 100 * U.misplaced(told, mail)];
    return [alike, wrong, told.indexOf(Math.max(...told)) === mine.y];
  });
  const price = ([sigma, offices]) => mean([0, 1, 2].map((seed) =>
    100 * U.accuracy(U.common(images.slice(0, 500), { offices, sigma, seed }), images.slice(500))));
  return { seen: v.looks.map(seen), price: v.priced.map(price) };
})()"""


@pytest.mark.slow
def test_the_server_saw_what_the_page_says() -> None:
    page = (ROOT / "book/what-the-server-sees.md").read_text(encoding="utf-8")
    rows = [re.findall(r"[\d.]+", row) for row in page.splitlines() if re.match(r"\| [\d.]+ \|", row)]
    crowds, noises = ([row for row in rows if len(row) == size] for size in (7, 6))
    assert len(crowds) == 6 and len(noises) == 5
    looks = [(int(row[0]), steps, 0, 1) for row in crowds for steps in (1, 5, 20)]
    looks += [(1, 1, float(row[0]), watched) for row in noises for watched in (1, 25)]
    priced = [(float(row[0]), offices) for row in noises for offices in (5, 50, 500)]
    found = javascript(SEEN, pool=digits(), looks=looks, priced=priced)
    seen = np.array(
        found["seen"], dtype=float
    )  # [looks, images, likeness and wrong and whether the label leads]
    crowded = seen[:18].reshape(6, 3, 100, 3)  # [batches, steps, ...]
    for row, look in zip(crowds, crowded, strict=True):
        assert np.allclose(
            np.median(look[..., 0], 1), [float(value) for value in row[1:4]], rtol=0, atol=0.0051
        )
        assert round(100 * (look[0, :, 0] < 0).mean()) == int(row[4])
        assert np.allclose(look[[0, 2], :, 1].mean(1), [float(value) for value in row[5:]], rtol=0, atol=0.51)
    assert crowded[0, ..., 2].all(), "the label of a lone image is told after any number of steps"
    alone = [float(value) for row in noises for value in row[1:3]]
    assert np.allclose(seen[18:, :, 0].mean(1), alone, rtol=0, atol=0.0051)
    assert np.allclose(
        found["price"], [float(value) for row in noises for value in row[3:]], rtol=0, atol=0.51
    )


def test_a_guess_without_any_share_is_even() -> None:
    sent = "Float64Array.from({ length: 650 }, () => 1)"
    assert javascript(f"U.told({sent})") == [0.1] * 10
