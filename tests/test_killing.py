"""Sweeps that are killed, or that fill the disk, and are asked for again: `make kill` tries many more moments."""

from __future__ import annotations

import importlib.util
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.killing import KINDS, Cluster, counted, entries, killed, left_alone, start

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes as Linux does")
Alone = tuple[dict[str, str], float]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """The sweep that nothing kills, and its seconds."""
    return left_alone(tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_killed_is_neither_lost_nor_doubled_and_has_the_same_numbers(
    kind: str, alone: Alone, tmp_path: Path
) -> None:
    cluster = None
    if kind == "Dask worker":
        if importlib.util.find_spec("distributed") is None:
            pytest.skip("Dask is not installed: pip install 'pfl-lite[cluster]'")
        cluster = Cluster(tmp_path / "cluster")
    try:
        here = killed(kind, kind, alone[1], tmp_path / "sweep", cluster)
    finally:
        if cluster:
            cluster.close()
    found = counted(here, alone[0])
    assert not Counter(found) - Counter(resumed=found["resumed"]), found


@pytest.mark.parametrize("room", [200, 10_000])
def test_a_full_disk_is_one_sentence_and_the_same_command_goes_on(
    room: int, alone: Alone, tmp_path: Path
) -> None:
    def full() -> None:
        """As on a full disk no file can grow beyond `room` bytes."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    stopped = start(tmp_path, preexec_fn=full, stderr=subprocess.PIPE)
    said = stopped.communicate(timeout=900)[1].decode()
    assert stopped.returncode == 2 and "Traceback" not in said, said
    last = said.strip().splitlines()[-1]
    assert last.startswith("pfl-lite: ") and last.endswith("cannot be written (File too large)"), said
    assert not [path for path in tmp_path.rglob("*.part")]
    assert start(tmp_path).wait(900) == 0 and entries(tmp_path) == alone[0]
