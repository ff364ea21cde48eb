"""The site as a reader gets it: no warning, no broken link, nothing from other hosts, words for pictures."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import build_site
import nbformat
import plain_docstrings
import pytest
import yaml
from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).resolve().parent.parent
OTHER_HOST = re.compile(r"^(https?:)?//", re.IGNORECASE)
# What a browser loads by itself, as opposed to a link that a reader follows.
LOADED = dict.fromkeys(("script", "img", "iframe", "source", "video", "audio", "embed"), "src")
LOADED |= {"link": "href", "object": "data"}
NOT_LOADED_LINKS = {"canonical", "next", "prev", "search", "index", "genindex", "author", "license"}

FEWEST = 60  # characters that describe a page
WITHOUT_TEXT = {"index", "genindex", "search"}  # lists, and what leads to the first page


def links(soup: BeautifulSoup) -> Iterator[str]:
    """Addresses of links, pictures, scripts and styles of a page."""
    for tag in soup.find_all(True):
        for attribute in ("href", "src"):
            if value := tag.get(attribute):
                yield str(value)


def anchors(soup: BeautifulSoup) -> set[str]:
    named = {str(tag["id"]) for tag in soup.find_all(id=True)}
    return named | {str(tag["name"]) for tag in soup.find_all("a", attrs={"name": True})}


def loaded(soup: BeautifulSoup) -> Iterator[str]:
    """What a browser fetches when it opens the page."""
    for name, attribute in LOADED.items():
        for tag in soup.find_all(name):
            if name == "link" and set(tag.get("rel") or []) & NOT_LOADED_LINKS:
                continue
            if value := tag.get(attribute):
                yield str(value)
    for style in soup.find_all("style"):
        yield from re.findall(r"(?:url\(|@import\s+)\s*['\"]?([^'\")\s]+)", style.get_text())


def test_builds_without_a_warning(built: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    output, process = built
    assert process.returncode == 0, process.stdout[-3000:]
    assert not re.search(r"WARNING|ERROR", process.stdout), process.stdout[-3000:]
    assert (output / "intro.html").is_file()


def test_internal_links_lead_somewhere(site: Path, pages: dict[Path, BeautifulSoup]) -> None:
    known = {path: anchors(soup) for path, soup in pages.items()}
    broken = []
    for path, soup in pages.items():
        if path.name in {"search.html"}:  # filled by its script
            continue
        for link in links(soup):
            parts = urlsplit(link)
            if parts.scheme or OTHER_HOST.match(link):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists() or (
                parts.fragment and target in known and unquote(parts.fragment) not in known[target]
            ):
                broken.append(f"{path.name}: {link}")
    assert not broken, "\n".join(sorted(set(broken)))


def test_pages_load_nothing_from_other_hosts(pages: dict[Path, BeautifulSoup]) -> None:
    foreign = [
        f"{path.name}: {value}"
        for path, soup in pages.items()
        for value in loaded(soup)
        if OTHER_HOST.match(value)
    ]
    assert not foreign, "\n".join(sorted(set(foreign)))


def test_styles_load_nothing_from_other_hosts(site: Path) -> None:
    foreign = []
    for sheet in site.rglob("*.css"):
        content = re.sub(r"/\*.*?\*/", "", sheet.read_text(encoding="utf-8"), flags=re.DOTALL)
        for value in re.findall(r"(?:url\(|@import\s+)\s*['\"]?([^'\")\s]+)", content):
            if OTHER_HOST.match(value):
                foreign.append(f"{sheet.name}: {value}")
    assert not foreign, "\n".join(foreign)


def test_pages_are_light(pages: dict[Path, BeautifulSoup]) -> None:
    heavy = {path.name: path.stat().st_size for path in pages if path.stat().st_size >= 2_000_000}
    assert not heavy


def test_pictures_speak(pages: dict[Path, BeautifulSoup]) -> None:
    silent = []
    for path, soup in pages.items():
        for image in soup.find_all("img"):
            alternative = str(image.get("alt") or "").strip()
            # Sphinx falls back to the file's name, which tells a listener nothing.
            if (
                len(alternative) < 5
                or re.search(r"\.(png|svg|jpe?g)$", alternative)
                or alternative.startswith("_images")
            ):
                silent.append(f"{path.name}: {image.get('src', '')[:80]}")
    assert not silent, "\n".join(silent)


def test_every_page_says_in_its_head_what_it_is_about(pages: dict[Path, BeautifulSoup]) -> None:
    about = {}
    for page, soup in pages.items():
        if page.stem in WITHOUT_TEXT or "_modules" in page.parts or soup.title is None:
            continue
        (one,), (title,) = soup.select('meta[name="description"]'), soup.select('meta[property="og:title"]')
        (shared,) = soup.select('meta[property="og:description"]')
        assert one["content"] == shared["content"] and FEWEST <= len(str(one["content"])) <= 200, page
        assert soup.title.text.partition(" — ")[0] == title["content"], page
        about[page.stem] = one["content"]
    assert len(set(about.values())) == len(about), "no two pages begin alike"
    assert about["intro"] == "A book that teaches personalized federated learning by running it."


def test_every_page_has_one_title(pages: dict[Path, BeautifulSoup]) -> None:
    for path, soup in pages.items():
        article = soup.find("article")
        if isinstance(article, Tag) and path.parent.name != "_modules":
            assert len(article.find_all("h1")) == 1, path.name


def repository_at(folder: Path, address: str | None) -> Path:
    """An empty repository with this remote."""
    subprocess.run(["git", "init", "-q", "-b", "trunk", str(folder)], check=True)
    if address:
        subprocess.run(["git", "-C", str(folder), "remote", "add", "origin", address], check=True)
    return folder


def test_the_reference_links_to_the_chapters_that_docstrings_name(
    site: Path, pages: dict[Path, BeautifulSoup]
) -> None:
    entry = pages[site / "api.html"].find(id="pfl_lite.methods.pfedmb.PFedMB")
    assert isinstance(entry, Tag) and isinstance(entry.parent, Tag)
    ends = {str(link["href"]) for link in entry.parent.find_all("a", href=True)}
    assert {"pfedmb.html", "reproducing-pfedmb.html"} <= ends


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("Chapter: *Notation*.", "Chapter: :doc:`Notation </notation>`."),
        ("a *share matrix*, `a*b` and *args, **more", r"a *share matrix*, ``a*b`` and \*args, \*\*more"),
        ("2 * B * C of x_ and x_i", r"2 \* B \* C of x\_ and x_i"),
    ],
)
def test_docstrings_are_text_with_emphasis_and_titles(line: str, text: str) -> None:
    assert plain_docstrings.plain(line, plain_docstrings.titles(ROOT / "book")) == text


@pytest.mark.parametrize("address", [None, "/srv/git/pfl.git", "https://git.example.org/a/b.git"])
def test_no_launch_button_without_a_public_remote(tmp_path: Path, address: str | None) -> None:
    config = build_site.configuration(ROOT / "book", repository_at(tmp_path / "here", address))
    buttons = config["launch_buttons"]
    assert "repository" not in config and not buttons["binderhub_url"] and not buttons["colab_url"]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("https://github.com/some-one/pfl.git", "https://github.com/some-one/pfl"),
        ("git@github.com:some-one/pfl.git", "https://github.com/some-one/pfl"),
        ("ssh://git@gitlab.com/some-one/pfl", "https://gitlab.com/some-one/pfl"),
    ],
)
def test_launch_buttons_come_from_the_remote(tmp_path: Path, address: str, public: str) -> None:
    repository = repository_at(tmp_path / "here", address)
    config = build_site.configuration(ROOT / "book", repository)
    assert config["repository"] == {"url": public, "branch": "trunk", "path_to_book": "book"}
    assert config["launch_buttons"]["binderhub_url"] == "https://mybinder.org"
    assert not config["launch_buttons"]["colab_url"], "Colab cannot import pfl_lite from chapters as they are"


def test_colab_gets_a_button_where_the_chapters_install_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from IPython.core.inputtransformer2 import TransformerManager

    book, name = tmp_path / "book", "one-model-or-many.ipynb"
    book.mkdir()
    shutil.copy(ROOT / "book" / name, book)
    before = nbformat.read(book / name, as_version=4)
    command = [sys.executable, str(ROOT / "tools/add_install_cell.py"), "--book", str(book)]
    for address in ("https://github.com/some-one/old", "https://github.com/some-one/pfl"):
        subprocess.run([*command, "--address", address], check=True, capture_output=True)
    after = nbformat.read(book / name, as_version=4)
    code = [cell for cell in after.cells if cell.cell_type == "code"]
    cell = code[0]
    assert len(after.cells) == len(before.cells) + 1 and [one.execution_count for one in code] == list(
        range(1, len(code) + 1)
    )
    assert cell.metadata.tags == ["remove-cell"] and "git+https://github.com/some-one/pfl" in cell.source
    rest = [one for one in after.cells if one is not cell]
    assert [(one.id, one.source) for one in rest] == [(one.id, one.source) for one in before.cells]

    lint = [sys.executable, "-m", "ruff", "check", "--no-cache", "--config=pyproject.toml", "--ignore=E402"]
    said = subprocess.run([*lint, str(book)], capture_output=True, text=True, cwd=ROOT)
    assert said.returncode == 0, said.stdout

    # Here the package is installed, so the cell runs and installs nothing.
    empty = tmp_path / "colab"
    empty.mkdir()
    monkeypatch.chdir(empty)
    calls: list[str] = []
    shell = type("Shell", (), {"run_line_magic": lambda self, *line: calls.append(" ".join(line))})()
    python = TransformerManager().transform_cell(cell.source)
    exec(python, {"get_ipython": lambda: shell})
    assert not calls and not list(empty.iterdir())
    exec(python.replace("is None", "is not None"), {"get_ipython": lambda: shell})
    assert calls == ['pip install --quiet "git+https://github.com/some-one/pfl"']
    assert (empty / "data/paper_tables.csv").is_file() and any((empty / "data/results").iterdir())

    repository = repository_at(tmp_path / "here", "https://github.com/some-one/pfl")
    buttons = build_site.configuration(book, repository)["launch_buttons"]
    assert buttons["colab_url"] == "https://colab.research.google.com"


def test_binder_finds_what_it_runs() -> None:
    """Binder makes environment.yml, which installs this package, and then runs postBuild."""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (pip,) = (part["pip"] for part in listed if isinstance(part, dict))
    assert "-e ." in pip
    names = {re.split(r"[<>=]", line)[0] for line in listed if isinstance(line, str)}
    assert {"jupyterlab", "ipykernel", "ipywidgets"} <= names
    assert not (ROOT / "binder").exists() and not (ROOT / ".binder").exists(), (
        "Binder would read nothing else"
    )
    script = ROOT / "postBuild"
    assert script.stat().st_mode & 0o111, "postBuild is no program"
    program = re.search(r'^python -c "(.*)"$', script.read_text(), re.MULTILINE)
    assert program is not None
    subprocess.run([sys.executable, "-c", program[1]], check=True, cwd=ROOT)
