"""Files that are made from the code are written where they are outdated, and left alone where they are not."""

from __future__ import annotations

import sys
from pathlib import Path

import generated
import pytest


def test_what_is_outdated_or_absent_is_written_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generated, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["tool"])
    fresh, stale, absent = (tmp_path / name for name in ("fresh.md", "stale.md", "new/absent.md"))
    for path, content in ((fresh, "ä"), (stale, "before")):
        path.write_text(content, encoding="utf-8")
    before = fresh.stat()
    generated.write([(fresh, "ä"), (stale, "after"), (absent, "1\n")])
    assert capsys.readouterr().out == "wrote stale.md\nwrote new/absent.md\n"
    assert [path.read_text(encoding="utf-8") for path in (fresh, stale, absent)] == ["ä", "after", "1\n"]
    assert fresh.stat().st_mtime_ns == before.st_mtime_ns


def test_a_command_that_writes_them_takes_no_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tool", "--check"])
    with pytest.raises(SystemExit):
        generated.write([(tmp_path / "file", "")])
    assert "unrecognized arguments: --check" in capsys.readouterr().err and not (tmp_path / "file").exists()
