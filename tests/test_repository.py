"""The repository agrees with itself: its lists of dependencies, its version, its pages, its addresses."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from update_reference import PAGES

import pfl_lite

ROOT = Path(__file__).resolve().parent.parent
CONDA_NAMES = {"torch": "pytorch"}


def tracked() -> list[Path]:
    """Files that are, or would be, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    )  # fmt: skip
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).exists()]


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wanted(project: dict) -> dict[str, Requirement]:
    """Every direct dependency of the package, the book and development."""
    lines = project["dependencies"] + [
        one for extra in project["optional-dependencies"].values() for one in extra
    ]
    return {requirement.name: requirement for requirement in map(Requirement, lines)}


def test_conda_environment_has_the_bounds_of_pyproject(project: dict, wanted: dict[str, Requirement]) -> None:
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (pip,) = (part["pip"] for part in listed if isinstance(part, dict))  # what conda-forge does not have
    lines = [*(line for line in listed if isinstance(line, str)), *(line for line in pip if line != "-e .")]
    conda = {(one := Requirement(line)).name: one.specifier for line in lines}
    assert str(conda.pop("python")) == project["requires-python"]
    conda.pop("pip")
    assert conda == {CONDA_NAMES.get(name, name): one.specifier for name, one in wanted.items()}


def test_lock_holds_exact_versions_and_no_address() -> None:
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]*==[0-9][0-9a-z.!+]*( ; .+)?", line), line


def test_lock_satisfies_pyproject(wanted: dict[str, Requirement]) -> None:
    locked: dict[str, list[Version]] = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        name, version = line.split(" ;")[0].split("==")
        locked.setdefault(canonicalize_name(name), []).append(Version(version))
    for name, requirement in wanted.items():
        versions = locked.get(canonicalize_name(name), [])
        assert versions, f"{name} is not locked: make lock"
        assert all(requirement.specifier.contains(version) for version in versions), f"{name}: make lock"


def test_one_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == pfl_lite.__version__
    deposit = json.loads((ROOT / ".zenodo.json").read_text())
    for name in ("version", "title", "keywords"):
        assert deposit[name] == citation[name]
    assert (
        deposit["description"] == citation["abstract"].strip() and deposit["license"] in citation["license"]
    )
    assert [one["name"] for one in deposit["creators"]] == [one["name"] for one in citation["authors"]]


def test_conda_recipe_has_version_and_bounds_of_pyproject(project: dict) -> None:
    text = (ROOT / "conda/meta.yaml").read_text()
    assert f'version = "{pfl_lite.__version__}"' in text
    recipe = yaml.safe_load(re.sub(r"\{%.*?%\}", "", text.replace("{{", "").replace("}}", "")))
    conda = {(one := Requirement(line)).name: one.specifier for line in recipe["requirements"]["run"]}
    assert str(conda.pop("python")) == project["requires-python"]
    names = CONDA_NAMES | {"matplotlib": "matplotlib-base"}
    wanted = [Requirement(line) for line in project["dependencies"]]
    assert conda == {names.get(one.name, one.name): one.specifier for one in wanted}
    (script,) = recipe["build"]["entry_points"]
    assert script == f"pfl-lite = {project['scripts']['pfl-lite']}"


def test_workflows_test_the_oldest_python(project: dict) -> None:
    matrix = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"]["strategy"][
        "matrix"
    ]
    assert f">={min(matrix['python'], key=Version)}" == project["requires-python"]
    assert {system.split("-")[0] for system in matrix["os"]} == {"ubuntu", "macos"}


def test_workflows_and_documents_name_existing_make_targets() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    sources = [*ROOT.glob(".github/workflows/*.yml"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    sources += [ROOT / "book" / name for name in ("intro.md", "how-to-use.md", "command-line.md")]
    for source in sources:
        named = set(re.findall(r"(?:run: |`|^)make ([a-z]+)", source.read_text(), flags=re.MULTILINE))
        assert named <= targets, f"{source.name} names {named - targets}"


def test_contributors_run_every_chapter_that_reads_the_ledger_again() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().replace("\\\n", " ")
    (names,) = re.findall(r'make chapters NAMES="([^"]+ [^"]+)"', text)
    reading = set()
    for path in (ROOT / "book").glob("*.ipynb"):
        code = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        if any("Ledger(" in one or "comparison.record(" in one for one in code):
            reading.add(path.stem)
    assert sorted(names.split()) == sorted(reading)


def test_toc_lists_every_page_and_no_other() -> None:
    toc = yaml.safe_load((ROOT / "book/_toc.yml").read_text())
    listed = [toc["root"]] + [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    pages = {path.stem for suffix in ("md", "ipynb") for path in (ROOT / "book").glob(f"*.{suffix}")}
    assert sorted(listed) == sorted(pages)


def test_reference_pages_describe_the_code() -> None:
    outdated = [name for name, page in PAGES.items() if (ROOT / "book" / name).read_text("utf-8") != page()]
    assert not outdated, f"make reference: {', '.join(outdated)}"


def test_no_registry_address() -> None:
    # Written in two pieces so that this file does not hold them either.
    hosts = ["py" + "pi.org", "files.python" + "hosted.org", "registry.npm" + "js.org", "deb.deb" + "ian.org"]
    for path in tracked():
        content = path.read_bytes()
        found = [host for host in hosts if host.encode() in content]
        assert not found, f"{path.relative_to(ROOT)} names {found}"


def test_nothing_points_to_one_machine() -> None:
    private = re.compile(rb"(?<![\w./-])/(home|Users|root|work)/[\w.-]+/")
    for path in tracked():
        assert not path.is_symlink(), f"{path.relative_to(ROOT)} is a symbolic link"
        if "vendor" in path.parts:
            continue
        found = private.search(path.read_bytes())
        assert not found, f"{path.relative_to(ROOT)} names {found[0].decode() if found else ''}"


def test_files_are_small() -> None:
    for path in tracked():
        assert path.stat().st_size < 4_000_000, f"{path.relative_to(ROOT)} is too large for the repository"


def test_every_mutation_still_finds_its_line() -> None:
    mutations = importlib.import_module("check_mutations")
    for one in mutations.MUTATIONS:
        source = (ROOT / "pfl_lite" / one.file).read_text(encoding="utf-8")
        assert mutations.mutated(source, one.old, one.new) != source, one
