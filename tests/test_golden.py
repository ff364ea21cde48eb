"""The comparison of two records of the package's numbers, which every change of its structure leans on."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import compare


def test_records_are_compared_in_the_parts_that_both_hold(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for root, text in ((a, "1\n2\n"), (b, "1\n3\n")):
        (root / "runs").mkdir(parents=True)
        (root / "runs" / "fedavg.txt").write_text(text)
    (a / "partitions.csv").write_text("only here")
    assert compare(a, a) == [] and compare(a, b) == ["runs/fedavg.txt:2: 2 | 3"]
    (b / "runs" / "local.txt").write_text("")
    assert f"runs/local.txt: only in {b}" in compare(a, b)


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "another part"])
def test_a_record_that_holds_nothing_in_common_is_not_equal(there: str, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    (a / "runs").mkdir(parents=True)
    (a / "runs" / "fedavg.txt").write_text("1")
    if there != "nothing":
        b.mkdir()
    if there == "another part":
        (b / "partitions.csv").write_text("1")
    for pair in ((a, b), (b, a), (b, tmp_path / "neither")):
        assert len(compare(*pair)) == 1
