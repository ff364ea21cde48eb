"""The site in a browser: what pages load, show and say, for eye, ear and keyboard, on a desk and on a phone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from bs4 import BeautifulSoup
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from pfl_lite.data.images import load
from pfl_lite.data.partition import class_counts, heterogeneity, partition
from pfl_lite.show import explorers
from tests import explored
from tests.explored import carried

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="chromium or chromedriver is missing; on Debian: apt-get install chromium chromium-driver",
)

CHAPTERS = [
    chapter["file"]
    for part in yaml.safe_load((ROOT / "book/_toc.yml").read_text())["parts"]
    for chapter in part["chapters"]
]
# Of the pages of source code, which one template makes, the longest and the list of all.
MADE = ["genindex", "search", "_modules/index", "_modules/pfl_lite/show/plots"]
PAGES = ["intro", *CHAPTERS, *MADE]
PATIENCE = 600.0  # seconds
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    """One browser for all tests."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1440,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    browser.set_script_timeout(PATIENCE)
    browser.command_executor.client_config.timeout = 2 * PATIENCE
    yield browser
    browser.quit()


@pytest.fixture
def go(driver: webdriver.Chrome, site: Path) -> Callable[..., None]:
    """Opens a page of the site, on a desk or on a phone, and waits until its formulas are typeset."""

    def opened(name: str, *, phone: bool = False) -> None:
        if phone:
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
        else:
            driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.get((site / f"{name}.html").as_uri())
        driver.execute_async_script(TYPESET)

    return opened


# Waits until every formula is typeset, and gives up after two minutes without a new one.
TYPESET = """
const done = arguments[0];
let [left, since] = [Infinity, Date.now()];
const wait = () => {
  const now = document.querySelectorAll(".math:not(:has(mjx-container))").length;
  if (now < left) [left, since] = [now, Date.now()];
  if (!left || Date.now() - since > 120000) done(); else setTimeout(wait, 50);
};
wait();
"""

# Formulas that are not typeset, or not understood; marks of formulas in the text; links within the page to nowhere.
READ = r"""
const faults = [];
for (const formula of document.querySelectorAll(".math"))
  if (!formula.querySelector("mjx-container")) faults.push("not typeset: " + formula.textContent.slice(0, 60));
for (const wrong of document.querySelectorAll("mjx-merror")) faults.push("formula: " + wrong.textContent.slice(0, 60));
const walker = document.createTreeWalker(document.querySelector("article") ?? document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const { data, parentElement } = walker.currentNode;
  if (/\\\(|\\\[|\$\$/.test(data) && !parentElement.closest("script, style, pre, code, mjx-container"))
    faults.push("raw formula: " + data.trim().slice(0, 60));
}
const here = location.href.split("#")[0];
for (const link of document.querySelectorAll("a[href*='#']")) {
  const [page, name] = link.href.split("#");
  if (page === here && name && !document.getElementById(decodeURIComponent(name)))
    faults.push("leads nowhere: #" + name);
}
return faults;
"""

# A page that is wider than the screen, and what hangs over its edge without a box that scrolls.
NARROW = """
const faults = [];
const { scrollWidth } = document.documentElement;
if (scrollWidth > innerWidth) faults.push(`the page is ${scrollWidth} pixels wide`);
const scrolls = (element) => {
  for (; element && element !== document.body; element = element.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(element).overflowX)) return true;
  return false;
};
for (const element of document.querySelectorAll("article :is(p, li, table, pre, img, svg, mjx-container, figcaption)")) {
  const box = element.getBoundingClientRect();
  if (box.width && box.right > innerWidth + 1 && !scrolls(element))
    faults.push("cut off: " + element.outerHTML.slice(0, 80));
}
return faults;
"""

# Everything that folds is opened. Of the spans that color code one of each kind stays, and of the entries that one template
# makes, and the links to them, the first: thousands of equal ones would take most of axe's time.
UNFOLD = """
document.querySelectorAll("details").forEach((one) => { one.open = true; });
document.querySelectorAll(".toggle-hidden").forEach((one) => one.classList.remove("toggle-hidden"));
for (const made of ["article dl.py", ".bd-sidebar-secondary li"])
  [...document.querySelectorAll(made)].slice(40).forEach((one) => one.remove());
const seen = new Set();
for (const span of document.querySelectorAll("pre span:not(:has(*))")) {
  const box = [span.closest(".cell_input, .cell_output, .highlight"), span.closest(".admonition, .solution")];
  const kind = [span.className, ...box.map((one) => one?.className)].join("|");
  if (seen.has(kind)) span.replaceWith(span.textContent);
  seen.add(kind);
}
"""

# Left out is the icon inside the theme's button, which has a name: the theme draws it in a moment of its own.
AXE = """
const done = arguments[1];
const parts = { exclude: [[".theme-switch"]] };
axe.run(parts, { resultTypes: ["violations"], preload: false, ...arguments[0] }).then(({ violations }) => done(
  violations.filter(({ impact }) => ["serious", "critical"].includes(impact)).map(({ id, nodes }) =>
    `${id} (${nodes.length} times): ` + nodes.slice(0, 3).map(({ html, any, all, none }) =>
      html.slice(0, 110) + " " + ([...any, ...all, ...none][0]?.message ?? "")).join(" AND "))));
"""


def theme(driver: webdriver.Chrome, mode: str) -> None:
    """Light or dark, at once: colors half-way from one to the other are nobody's."""
    driver.execute_script(
        "const style = document.head.appendChild(document.createElement('style'));"
        "style.textContent = '* { transition: none !important; animation: none !important }';"
        "Object.assign(document.documentElement.dataset, { mode: arguments[0], theme: arguments[0] })",
        mode,
    )


def wrong_answers(driver: webdriver.Chrome) -> Iterator[str]:
    """Answers of quizzes that do not open, by a click or by a key, or do not say in words whether they are right."""
    for number, quiz in enumerate(driver.find_elements(By.CSS_SELECTOR, ".quiz")):
        for answer in quiz.find_elements(By.CSS_SELECTOR, "details"):
            summary = answer.find_element(By.CSS_SELECTOR, "summary")
            named = f"quiz {number + 1}, {summary.text}"
            if answer.get_attribute("open"):
                yield f"{named}: open from the start"
            if number % 2:
                summary.send_keys(Keys.ENTER)
            else:
                driver.execute_script("arguments[0].scrollIntoView({ block: 'center' })", summary)
                summary.click()
            right = "right" in (answer.get_attribute("class") or "").split()
            said = answer.text.removeprefix(summary.text).strip()
            mark = driver.execute_script("return getComputedStyle(arguments[0], '::after').content", summary)
            if said.split()[:1] != ["Right." if right else "No."] or len(said.split()) < 5:
                yield f"{named}: says {said[:60]!r}"
            if ("✓" if right else "✗") not in mark:
                yield f"{named}: is marked {mark}"


def shown(widget: WebElement) -> str:
    """What an explorer or a player shows, its controls left out."""
    return str(
        widget.parent.execute_script(
            "const copy = arguments[0].cloneNode(true);"
            "copy.querySelectorAll('form, .controls, script, style').forEach((part) => part.remove());"
            "return copy.innerHTML",
            widget,
        )
    )


def dead_sliders(driver: webdriver.Chrome) -> Iterator[str]:
    """Sliders of explorers and players that a key moves, or a box that is ticked, without changing what is shown."""
    for widget in driver.find_elements(By.CSS_SELECTOR, ".pfl-explorer, .pfl-player"):
        named = widget.get_attribute("aria-label")
        sliders = [
            one for one in widget.find_elements(By.CSS_SELECTOR, "input[type=range]") if one.is_displayed()
        ]
        boxes = [] if sliders else widget.find_elements(By.CSS_SELECTOR, "input[type=checkbox]")
        if not sliders and not boxes:
            yield f"{named}: neither a slider nor a box to tick"
        if boxes:
            before = shown(widget)
            driver.execute_script("arguments[0].click()", boxes[0])
            if shown(widget) == before:
                yield f"{named}: a box that changes nothing"
        for slider in sliders:
            before = shown(widget)
            for key in (Keys.ARROW_RIGHT, Keys.ARROW_LEFT):  # it may stand at an end
                if shown(widget) == before:
                    slider.send_keys(key)
            if shown(widget) == before:
                yield f"{named}: {slider.get_attribute('name')} changes nothing"


def logged(driver: webdriver.Chrome) -> Iterator[str]:
    """Errors on the console, and requests to other hosts."""
    for entry in driver.get_log("browser"):
        if entry["level"] == "SEVERE":
            yield f"console: {entry['message'][-200:]}"
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            address = message["params"]["request"]["url"]
            if not address.startswith(("file:", "data:", "blob:")):
                yield f"request: {address}"


@pytest.mark.parametrize("name", PAGES)
def test_page(driver: webdriver.Chrome, go: Callable[..., None], name: str) -> None:
    axe = (ROOT / "tests/vendor/axe.min.js").read_text(encoding="utf-8")
    go(name)
    theme(driver, "light")
    faults = driver.execute_script(READ)
    faults += wrong_answers(driver)
    faults += dead_sliders(driver)
    driver.execute_script(UNFOLD)
    driver.execute_script(axe)
    faults += [f"light: {fault}" for fault in driver.execute_async_script(AXE, {})]
    theme(driver, "dark")
    # The same page in other colors.
    rules = {"runOnly": ["color-contrast"]}
    faults += [f"dark: {fault}" for fault in driver.execute_async_script(AXE, rules)]
    go(name, phone=True)
    faults += [f"phone: {fault}" for fault in driver.execute_script(NARROW)]
    faults += logged(driver)
    assert not faults, "\n".join(faults)


def test_icons_that_are_drawn_late_do_not_name_the_theme_s_button(
    driver: webdriver.Chrome, go: Callable[..., None]
) -> None:
    go("intro")
    drawn = "<svg class='theme-switch late' aria-labelledby='x'><title id='x'>Light</title></svg>"
    driver.execute_script("document.querySelector('.theme-switch-button').innerHTML = arguments[0]", drawn)
    late = driver.find_element(By.CSS_SELECTOR, ".theme-switch-button .late")
    assert late.get_attribute("aria-labelledby") is None and not late.find_elements(By.CSS_SELECTOR, "title")


def test_the_first_page_leads_to_the_book(driver: webdriver.Chrome, site: Path) -> None:
    driver.get((site / "index.html").as_uri())
    assert driver.current_url.endswith("/intro.html")


def test_the_theme_button_darkens_the_page(driver: webdriver.Chrome, go: Callable[..., None]) -> None:
    go("intro")
    button = driver.find_element(By.CSS_SELECTOR, ".theme-switch-button")
    grounds = set()
    for _ in range(3):  # light, dark, and what the system says
        button.click()
        grounds.add(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2


def open_code(driver: webdriver.Chrome) -> set[bool]:
    """Whether the folded code of a page is open."""
    folded = driver.find_elements(By.CSS_SELECTOR, ".bd-article details.hide")
    assert len(folded) > 3
    return {one.get_attribute("open") is not None for one in folded}


def test_one_switch_shows_all_code(driver: webdriver.Chrome, go: Callable[..., None]) -> None:
    go("pfedmb")
    button = driver.find_element(By.CSS_SELECTOR, ".code-switch")
    assert open_code(driver) == {False} and button.get_attribute("aria-pressed") == "false"
    button.click()
    assert open_code(driver) == {True} and button.get_attribute("aria-pressed") == "true"
    go("clusters", phone=True)
    assert open_code(driver) == {True}, "the next page has forgotten it"
    assert driver.find_element(By.CSS_SELECTOR, ".code-switch").is_displayed()
    ActionChains(driver).key_down(Keys.ALT).send_keys("c").key_up(Keys.ALT).perform()
    assert open_code(driver) == {False}
    go("pfedmb")
    assert open_code(driver) == {False}


def test_answers_are_shuffled(driver: webdriver.Chrome, go: Callable[..., None], site: Path) -> None:
    soup = BeautifulSoup((site / "pfedmb.html").read_text(encoding="utf-8"), "html.parser")
    source = tuple(one.get_text(strip=True) for one in soup.select(".quiz summary"))
    seen = set()
    for _ in range(4):
        go("pfedmb")
        shown = driver.find_elements(By.CSS_SELECTOR, ".quiz summary")
        seen.add(tuple("".join(one.text.split()) for one in shown))
    assert len(seen) > 1 and len(source) >= 9
    plain = sorted("".join(one.split()) for one in source)
    assert all(sorted(order) == plain for order in seen), "an answer is lost or doubled"


def slide(widget: WebElement, name: str, value: float) -> None:
    """Set a control of an explorer as a hand would: the input's value, and the event that the browser sends."""
    widget.parent.execute_script(
        "const one = arguments[0].querySelector(`[name='${arguments[1]}']`); one.value = arguments[2];"
        "one.dispatchEvent(new Event('input', { bubbles: true }))",
        widget, name, value,
    )  # fmt: skip


def told(widget: WebElement) -> list[str]:
    """The values that an explorer shows in large digits."""
    return [one.text.split("\n")[0] for one in widget.find_elements(By.CSS_SELECTOR, "dd")]


def record(site: Path, name: str, kind: str) -> Any:
    """What an explorer's page carries inside."""
    return carried((site / f"{name}.html").read_text(encoding="utf-8"), f'[data-kind="{kind}"]')


@pytest.mark.parametrize(("kind", "clients"), [("dirichlet", 7), ("classes", 20)])
def test_the_partition_explorer_counts_right(
    driver: webdriver.Chrome, go: Callable[..., None], kind: str, clients: int
) -> None:
    go("clients-are-not-alike")
    widget = driver.find_element(By.CSS_SELECTOR, ".pfl-explorer")
    for name, value in (("kind", kind), ("clients", clients), ("classes", 10), ("seed", 5), ("k", 3)):
        slide(widget, name, value)  # type: ignore[arg-type]
    counts = np.zeros((clients, 10), dtype=int)
    picture = widget.find_element(By.CSS_SELECTOR, ".picture").get_attribute("innerHTML")
    for client, label, images in re.findall(r"client (\d+), class (\d+): (\d+) images", str(picture)):
        counts[int(client), int(label)] = int(images)
    assert (counts.sum(axis=0) == 100).all()
    measured = heterogeneity(counts)
    digits = {"label_distance": 2, "effective_classes": 1, "size_ratio": 1}
    assert [float(value) for value in told(widget)] == [
        pytest.approx(measured[name], abs=0.5001 * 10**-places) for name, places in digits.items()
    ]
    if kind == "classes":  # no chance in these measures: the package's partition has the same
        labels = load("digits").train_labels
        parts = [one.train for one in partition(load("digits"), "classes:3", clients, 0)]
        ours = heterogeneity(class_counts(labels, parts, 10))
        assert measured["effective_classes"] == pytest.approx(ours["effective_classes"], rel=0.02)
        assert measured["label_distance"] == pytest.approx(ours["label_distance"], rel=0.02)


def test_the_routing_explorer_counts_right(
    driver: webdriver.Chrome, go: Callable[..., None], site: Path
) -> None:
    name = "assembling-a-network-per-client"
    kept = record(site, name, "routing")
    go(name)
    widget = driver.find_element(By.CSS_SELECTOR, '[data-kind="routing"]')
    assert told(widget) == explored.routes(kept, -1)[1], "it opens at the last round"
    for at in (0, len(kept["rounds"]) // 2, len(kept["rounds"]) - 1):
        slide(widget, "at", at)
        bits, values = explored.routes(kept, at)
        assert told(widget) == values
        circles = widget.find_elements(By.CSS_SELECTOR, ".picture g")
        assert len(circles) == len(bits)
        live = sum(len(one.find_elements(By.CSS_SELECTOR, "line.live")) for one in circles)
        assert 0 < live <= bits.sum(), "a wire is live only if its bit is on"


ROUNDS = [0, 3, 5, 10]
ALPHA = explorers.alpha(ROUNDS, {"pfedmb": np.full((4, 2, 2), 0.5)}, [0, 1])
ROUTES = explorers.routing([1, 1], ROUNDS, np.ones((4, 2, 2)), [0, 1])

SCORES = {name: np.full((4, 3), at) for at, name in enumerate(("fedavg", "local"))}
STANDINGS = explorers.standings({"small": (ROUNDS, SCORES, {"fedavg": 1.0, "local": 2.0})})


@pytest.mark.parametrize(
    ("page", "opening"),
    [(ALPHA, "10"), (ROUTES, "10"), (STANDINGS, "0")],
    ids=["alpha", "routing", "standings"],
)
def test_an_explorer_of_rounds_opens_at_its_telling_round_and_plays_from_the_first(
    driver: webdriver.Chrome, tmp_path: Path, page: str, opening: str
) -> None:
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8>{page}", encoding="utf-8")

    def opened(motion: str) -> tuple[list[WebElement], Callable[[], str]]:
        feature = [{"name": "prefers-reduced-motion", "value": motion}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": feature})
        driver.get((tmp_path / "page.html").as_uri())
        output = driver.find_element(By.CSS_SELECTOR, ".rounds output")
        return driver.find_elements(By.CSS_SELECTOR, ".rounds :is(button, input)"), lambda: output.text

    (play, back, forward, slider), now = opened("no-preference")
    # time stands still: each call shows the next round
    driver.execute_script("window.setTimeout = (then) => { window.tick = then; return 1; }")

    def played(*rounds: str) -> None:
        for at in rounds:
            assert play.text == "Pause"
            driver.execute_script("window.tick()")
            assert now() == at

    assert now() == opening and play.text == "Play"
    play.send_keys(Keys.ENTER)
    played(*(["0"] if opening == "10" else []), "3", "5")
    slider.send_keys(Keys.HOME)
    assert now() == "0" and play.text == "Play"
    forward.send_keys(Keys.ENTER)
    assert now() == "3"
    back.send_keys(Keys.SPACE)
    assert now() == "0"
    play.send_keys(Keys.ENTER)
    played("3", "5")
    slider.send_keys(Keys.HOME)
    assert now() == "0" and play.text == "Play", "a hand on the slider stops it"
    play.send_keys(Keys.ENTER)
    played("3", "5", "10")
    assert play.text == "Play"
    (play, *_, slider), now = opened("reduce")
    slider.send_keys(Keys.HOME)
    play.send_keys(Keys.ENTER)
    WebDriverWait(driver, PATIENCE).until(lambda _: play.text == "Play" and now() == "10")
    opened("no-preference")


def test_standings_of_another_setting_open_at_its_first_round(
    driver: webdriver.Chrome, tmp_path: Path
) -> None:
    paper = {"fedavg": 1.0, "local": 2.0}
    later = {name: np.full((2, 3), 9.0 - at) for at, name in enumerate(SCORES)}
    page = explorers.standings({"long": (ROUNDS, SCORES, paper), "short": ([7, 8], later, paper)})
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8>{page}", encoding="utf-8")
    driver.get((tmp_path / "page.html").as_uri())
    widget = driver.find_element(By.CSS_SELECTOR, '[data-kind="standings"]')
    slide(widget, "at", 3)
    output = widget.find_element(By.CSS_SELECTOR, "output")
    assert output.text == "10" and told(widget)[0].startswith("Local")
    slide(widget, "setting", 1)
    assert output.text == "7" and told(widget)[0].startswith("FedAvg")
    slide(widget, "at", 3)  # beyond its last round
    assert output.text == "8"


def test_the_gate_explorer_mixes_right(driver: webdriver.Chrome, go: Callable[..., None], site: Path) -> None:
    name = "a-gate-between-two-experts"
    kept = record(site, name, "gate")
    go(name)
    widget = driver.find_element(By.CSS_SELECTOR, '[data-kind="gate"]')
    last = len(kept["images"]) - 1
    for at, g in ((0, 0.0), (last, 0.37), (last, 1.0)):
        slide(widget, "at", at)
        slide(widget, "g", g)
        picture = widget.find_element(By.CSS_SELECTOR, ".picture").get_attribute("innerHTML")
        percent = re.findall(r"<title>[^:]*: ([\d.]+)%</title>", str(picture))
        found = np.array(percent, dtype=float).reshape(-1, 3).T / 100  # [3, classes]
        mixed = explored.mixed(kept["images"][at], g)
        assert np.allclose(found, mixed, atol=6e-4)
        assert told(widget) == [kept["classes"][best] for best in mixed.argmax(1)]


def test_the_comparison_explorer_follows_its_buttons(
    driver: webdriver.Chrome, go: Callable[..., None], site: Path
) -> None:
    name = "comparing-methods"
    methods = record(site, name, "comparison")["experiments"][0]["methods"]
    go(name)
    widget = driver.find_element(By.CSS_SELECTOR, '[data-kind="comparison"]')
    every, none = widget.find_elements(By.CSS_SELECTOR, "button")
    for button, rows in ((none, 0), (every, len(methods))):
        button.send_keys(Keys.ENTER)
        assert len(widget.find_elements(By.CSS_SELECTOR, "tbody tr")) == rows
        assert bool(widget.find_elements(By.CSS_SELECTOR, ".picture polyline")) == bool(rows)
    slide(widget, "at", 1)
    assert len(widget.find_elements(By.CSS_SELECTOR, "tbody tr")) > 0, (
        "another experiment starts with methods"
    )


def test_a_player_plays(driver: webdriver.Chrome, go: Callable[..., None]) -> None:
    go("clusters")
    player = driver.find_element(By.CSS_SELECTOR, ".pfl-player")
    slider, output = (player.find_element(By.CSS_SELECTOR, kind) for kind in ("input", "output"))
    back, play, forward = player.find_elements(By.CSS_SELECTOR, "button")

    def now() -> str:
        """The frame that is seen, which the words beside the slider must name."""
        seen = [one for one in player.find_elements(By.CSS_SELECTOR, "img") if one.is_displayed()]
        assert len(seen) == 1 and seen[0].get_attribute("data-name") == output.text
        return output.text

    names = [one.get_attribute("data-name") for one in player.find_elements(By.CSS_SELECTOR, "img")]
    assert now() == names[0], "the story is over before it begins"
    slider.send_keys(Keys.END)
    assert now() == names[-1]
    slider.send_keys(Keys.HOME)
    forward.send_keys(Keys.ENTER)
    assert now() == names[1]
    back.send_keys(Keys.SPACE)
    assert now() == names[0]
    driver.execute_script("arguments[0].dataset.interval = 20", player)
    play.send_keys(Keys.ENTER)
    driver.execute_async_script(
        "const [button, done] = arguments;"
        "const wait = () => (button.textContent === 'Play' ? done() : setTimeout(wait, 20)); setTimeout(wait, 20)",
        play,
    )
    assert now() == names[-1], "it stops at the end"


def test_a_player_opens_at_its_telling_frame_and_plays_from_the_first(
    driver: webdriver.Chrome, go: Callable[..., None]
) -> None:
    go("two-models-one-tie")
    player = driver.find_element(By.CSS_SELECTOR, ".pfl-player[data-opens]")
    frames = player.find_elements(By.CSS_SELECTOR, "img")
    assert [one.get_attribute("data-name") for one in frames if one.is_displayed()] == ["λ = 0.4"]
    driver.execute_script("arguments[0].dataset.interval = 60000", player)
    player.find_elements(By.CSS_SELECTOR, "button")[1].send_keys(Keys.ENTER)
    assert [one.is_displayed() for one in frames] == [True] + [False] * (len(frames) - 1)


def changed(driver: webdriver.Chrome, part: WebElement, before: str) -> None:
    """Wait until a part of the page shows something else, and fail if it does not."""
    WebDriverWait(driver, PATIENCE).until(lambda _: part.text != before)


def test_the_server_moves_by_keyboard_alone(driver: webdriver.Chrome, go: Callable[..., None]) -> None:
    go("be-the-server")
    widget = driver.find_element(By.CSS_SELECTOR, ".pfl-play")
    numbers = widget.find_element(By.CSS_SELECTOR, "dl")
    for method in widget.find_elements(By.CSS_SELECTOR, "[name=method]"):
        driver.execute_script("arguments[0].click()", method)
        before = numbers.text
        widget.find_element(By.CSS_SELECTOR, "[name=round]").send_keys(Keys.ENTER)
        assert numbers.text != before, f"{method.get_attribute('value')} stands still"
    widget.find_element(By.CSS_SELECTOR, "[name=again]").send_keys(
        Keys.TAB + Keys.TAB
    )  # to the second office
    named = driver.switch_to.active_element.get_attribute("aria-label")
    assert "Brookline" in str(named)
    ActionChains(driver).send_keys(Keys.ARROW_LEFT).perform()
    moved = driver.switch_to.active_element.get_attribute("aria-label")
    assert moved != named and "Brookline" in str(moved), "it keeps the focus while it moves"
    shadow = "return getComputedStyle(document.activeElement.querySelector('circle')).strokeWidth"
    assert driver.execute_script(shadow) == "5px", "the focus is seen"
    for slider in widget.find_elements(By.CSS_SELECTOR, "input[type=range]"):
        if slider.is_displayed():
            before = shown_in(widget)
            slider.send_keys(Keys.ARROW_RIGHT)
            assert shown_in(widget) != before, slider.get_attribute("name")


def shown_in(widget: WebElement) -> str:
    """All that a playground shows, its controls' values included."""
    return str(widget.get_attribute("innerHTML"))


def test_a_federation_trains_in_the_page(driver: webdriver.Chrome, go: Callable[..., None]) -> None:
    go("train-a-federation")
    widget = driver.find_element(By.CSS_SELECTOR, ".pfl-play")
    table = widget.find_element(By.CSS_SELECTOR, "table")

    def means() -> dict[str, int]:
        rows = [row.text.split() for row in table.find_elements(By.CSS_SELECTOR, "tbody tr")]
        cells = table.find_elements(By.CSS_SELECTOR, "td.mean")
        return {row[0]: int(cell.text) for row, cell in zip(rows, cells, strict=True)}

    select = widget.find_element(By.CSS_SELECTOR, "[name=kind]")
    mail = widget.find_element(By.CSS_SELECTOR, ".mail").text
    driver.execute_script(
        "arguments[0].value = 'concept'; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))",
        select,
    )
    assert widget.find_element(By.CSS_SELECTOR, ".mail").text != mail
    assert len(widget.find_elements(By.CSS_SELECTOR, ".mail li")) == 8
    before, said = means(), table.text
    widget.find_element(By.CSS_SELECTOR, "[name=round]").send_keys(Keys.ENTER)
    changed(driver, table, said)
    assert "round 1" in table.text and means() != before
    widget.find_element(By.CSS_SELECTOR, "[name=play]").send_keys(Keys.ENTER)
    WebDriverWait(driver, PATIENCE).until(lambda _: "round 20" in table.text)
    assert means()["IFCA"] > means()["FedAvg"] + 20, "one model cannot read the digits of two countries"
    widget.find_element(By.CSS_SELECTOR, "[name=again]").send_keys(Keys.ENTER)
    assert "round 0" in table.text and "thousand" not in table.text


def test_an_image_is_drawn_and_hidden_by_keyboard(driver: webdriver.Chrome, go: Callable[..., None]) -> None:
    go("what-the-server-sees")
    widget = driver.find_element(By.CSS_SELECTOR, ".pfl-play")
    sheet = widget.find_element(By.CSS_SELECTOR, ".sheet")
    pictures = "return [...arguments[0].querySelectorAll('canvas')].map((one) => one.toDataURL())"

    def likeness() -> float:
        return float(widget.find_element(By.CSS_SELECTOR, "dd").text)

    assert not widget.find_element(By.CSS_SELECTOR, ".rows").is_displayed(), "to be guessed first"
    widget.find_element(By.CSS_SELECTOR, "[name=send]").send_keys(Keys.ENTER)
    mine, *seen = driver.execute_script(pictures, widget)
    assert len(seen) == 10 and likeness() == 1 and set(seen) == {mine}, "one image comes back from each row"
    sheet.send_keys(Keys.ARROW_RIGHT, Keys.SPACE, Keys.ARROW_UP, Keys.SPACE)
    drawn, *seen = driver.execute_script(pictures, widget)
    assert drawn != mine and set(seen) == {drawn}
    widget.find_element(By.CSS_SELECTOR, "[name=next]").send_keys(Keys.ENTER)
    assert driver.execute_script(pictures, widget)[0] != drawn
    for slider in widget.find_elements(By.CSS_SELECTOR, "input[type=range]"):
        before = shown_in(widget)
        slider.send_keys(Keys.END)
        assert shown_in(widget) != before, slider.get_attribute("name")
    assert likeness() < 0.9

    def price() -> int:
        found = (By.CSS_SELECTOR, "dd")
        WebDriverWait(driver, PATIENCE).until(lambda _: widget.find_elements(*found)[2].text != "…")
        return int(widget.find_elements(*found)[2].text[:-1])

    few = price()
    many = widget.find_element(By.CSS_SELECTOR, "[name=offices][value='500']")
    driver.execute_script("arguments[0].click()", many)
    assert price() > few + 20, "500 offices bear the noise that 50 cannot"
    widget.find_element(By.CSS_SELECTOR, "[name=clear]").send_keys(Keys.ENTER)
    white = (
        "return arguments[0].getContext('2d').getImageData(0, 0, 8, 8).data.every((value) => value === 255)"
    )
    assert driver.execute_script(white, sheet)


def test_a_guess_is_answered_with_a_reason(driver: webdriver.Chrome, go: Callable[..., None]) -> None:
    go("which-difference")
    widget = driver.find_element(By.CSS_SELECTOR, ".pfl-play")
    note = widget.find_element(By.CSS_SELECTOR, ".note")
    right = 0
    for asked in range(1, 6):
        WebDriverWait(driver, PATIENCE).until(lambda _: "worst office" in widget.text)
        widget.find_element(By.CSS_SELECTOR, "[data-kind-of=label]").send_keys(Keys.SPACE)
        said = widget.find_element(By.CSS_SELECTOR, ".said")
        right += said.text.startswith("Right.")
        assert len(said.text.split()) > 12 and note.text == f"{right} right of {asked}."
        assert said.text.startswith("Right.") == ("right" in str(said.get_attribute("class")).split())
        assert driver.switch_to.active_element.get_attribute("name") == "next"
        driver.switch_to.active_element.send_keys(Keys.ENTER)
        assert not widget.find_elements(By.CSS_SELECTOR, ".said")
