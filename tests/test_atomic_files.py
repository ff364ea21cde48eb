"""Files are written whole or not at all, and nothing half-written stays for ever."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pfl_lite.atomic_files import ABANDONED, atomic_path, check_writable, locked, write_bytes
from pfl_lite.errors import InputError


def test_the_content_is_on_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    for name in ("fsync", "replace"):
        usual = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, usual=usual: (order.append(name), usual(*a))[1])
    write_bytes(tmp_path / "run.json", b"{}")
    assert order == ["fsync", "replace"] and (tmp_path / "run.json").read_bytes() == b"{}"


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_is_closed_before_it_is_renamed_or_deleted(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows does neither with one that is open."""
    order: list[str] = []
    for holder, name in ((os, "close"), (os, "replace"), (Path, "unlink")):
        usual = getattr(holder, name)
        noted = lambda *a, name=name, usual=usual, **k: (order.append(name), usual(*a, **k))[1]  # noqa: E731
        monkeypatch.setattr(holder, name, noted)
    with suppress(ZeroDivisionError), atomic_path(tmp_path / "run.json") as temporary:
        temporary.write_bytes(b"{}")
        assert whole or 1 / 0
    assert order == ["close", "replace" if whole else "unlink"]


def test_an_interrupt_in_the_moment_in_which_a_file_is_made_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = os.open

    def interrupted(*given: Any) -> int:
        os.close(usual(*given))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic_path(tmp_path / "run.pt"):
        pass
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_swept_once_it_is_old(tmp_path: Path) -> None:
    old, young, other = (
        tmp_path / f".{name}.part" for name in ("run.pt.abc", "run.pt.def", "models.npz.abc")
    )
    for path in (old, young, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, 2 * (time.time() - ABANDONED - 60,))
    write_bytes(tmp_path / "run.pt", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, young.name, "run.pt"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_what_the_system_refuses_is_one_sentence_and_the_old_file_stays(number: int, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("mine")
    refused = pytest.raises(InputError, match=rf"run\.json cannot be written \({os.strerror(number)}\)$")
    with refused, atomic_path(path) as temporary:
        temporary.write_text("half")
        raise OSError(number, os.strerror(number), str(temporary))
    assert path.read_text() == "mine" and list(tmp_path.iterdir()) == [path]


def test_whether_a_file_can_be_written_is_found_out_by_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable(tmp_path / "run.json")
    assert not list(tmp_path.iterdir())

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(InputError, match="No space left on device"):
        check_writable(tmp_path / "run.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["none\0", "file/run.pt", "fifo"])
def test_what_cannot_be_locked_is_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / ".fifo.lock")
    with pytest.raises(InputError, match=r" cannot be written \(.+\)$"), locked(tmp_path / name):
        pass
    with locked(None):
        assert len(list(tmp_path.iterdir())) == 2
