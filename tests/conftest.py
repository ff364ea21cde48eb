"""Settings that every test shares: one thread a process, no windows, and hypothesis that repeats itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

# Before anything imports torch or matplotlib.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("TQDM_DISABLE", "1")

import pytest
from bs4 import BeautifulSoup
from filelock import FileLock
from hypothesis import HealthCheck, settings

from pfl_lite.data import images

# A slow shared machine is no reason to fail, and a failure must come back when the test is run again.
settings.register_profile(
    "book", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("book")


SLOW = {
    *("test_bench", "test_benchmarks", "test_measurements"),  # they time, or start other programs
    *("test_browser", "test_site", "test_pdf", "test_course", "test_notebooks_executed", "test_your_own"),
    *(
        "test_cluster",
        "test_sweep",
        "test_search",
        "test_killing",
        "test_workers",
        "test_listening",
        "test_signals",
    ),  # they start, kill and wait for processes
    # node, kernels, and the whole command line
    *("test_widgets", "test_playgrounds", "test_chapter_setting", "test_cli", "test_fuzzing"),
}
"""Files whose tests are all marked `slow`; a slow test in another file says so itself."""


@pytest.fixture(scope="module")
def federation() -> Any:
    """The five clients of `toy`; a file may have a federation of its own."""
    from toy import five_clients

    return five_clients()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Not even import slow files, and what they need, where only the others are asked for."""
    return True if config.option.markexpr == "not slow" and collection_path.stem in SLOW else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow files, and of the second implementations every case with an option: the paper's case is quick."""
    for item in items:
        if item.path.stem in SLOW or re.match(r"test_package_agrees\[.*-", item.name):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def digits_read_once() -> Iterator[None]:
    """Hundreds of tests train on the digits, and reading them takes as long as some trainings: each gets a copy."""
    read = cache(images._digits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "_digits", lambda: {name: array.copy() for name, array in read().items()})
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder of the repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def built(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The site, and what the build said; built once, also where several processes share the tests."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    output, said = shared / "site", shared / "site.json"
    with FileLock(shared / "site.lock"):
        if not said.exists():
            command = [sys.executable, str(repository / "tools/build_site.py"), "--output", str(output)]
            done = subprocess.run(command, capture_output=True, text=True)
            said.write_text(json.dumps([done.returncode, done.stdout]), encoding="utf-8")
    code, text = json.loads(said.read_text(encoding="utf-8"))
    return output, subprocess.CompletedProcess([], code, text)


@pytest.fixture(scope="session")
def site(built: tuple[Path, subprocess.CompletedProcess[str]]) -> Path:
    """The folder of the site."""
    output, process = built
    assert process.returncode == 0, process.stdout[-3000:]
    return output


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[Path, BeautifulSoup]:
    """Every page, parsed (the theme leaves templates of its own in _static, which are no pages)."""
    paths = [path for path in site.rglob("*.html") if "_static" not in path.relative_to(site).parts]
    return {path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in paths}
