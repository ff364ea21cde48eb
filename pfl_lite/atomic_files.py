"""Read files that are files, and write them so that a reader never sees half of one."""

from __future__ import annotations

import errno
import glob
import gzip
import json
import math
import os
import secrets
import stat
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from pfl_lite.errors import InputError, refused

ABANDONED = 3600.0  # seconds after which a half-written file is abandoned
_GZIP = b"\x1f\x8b"  # how every file that gzip wrote begins


def regular(path: Path | str) -> Path:
    """The path of an ordinary file, or of one that is still to be made: opening a pipe or a device may never end.

    Raises:
        OSError: something else is there, or this is no name of a file.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    except FileNotFoundError:
        pass
    except ValueError as error:  # a null character
        raise OSError(errno.EINVAL, "no name of a file", str(path)) from error
    return Path(path)


def read_json(source: Path | bytes) -> Any:
    """What a JSON file, or its content, holds, be it compressed by gzip or not; NaN and infinities are None.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not valid JSON.
    """
    content = source if isinstance(source, bytes) else regular(source).read_bytes()
    if content.startswith(_GZIP):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"broken gzip: {error}") from error
    try:
        return json.loads(content.decode(), parse_constant=lambda _: None)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_npz(source: Path | bytes) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file, or of its content.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, or of another kind.
    """
    with BytesIO(source) if isinstance(source, bytes) else regular(source).open("rb") as file:
        try:
            with np.lib.npyio.NpzFile(file, allow_pickle=False) as zipped:
                # reading an array to its end also checks the CRC-32 that the zip file keeps of it
                arrays = {name: zipped[name] for name in zipped.files}
            if all(isinstance(array, np.ndarray) for array in arrays.values()):
                return arrays
            raise ValueError("other files than arrays")
        except Exception as error:
            # a broken archive fails in many ways: zip, zlib, header, a shape too large
            raise ValueError("it is damaged, or no file of arrays") from error


def told(path: Path) -> AbstractContextManager[None]:
    """What the system refuses about writing a file as one sentence."""
    return refused(OSError, lambda error: f"{path} cannot be written ({error.strerror or error})")


def check_writable(path: Path, force: bool = True) -> None:
    """Find out by writing whether a file can be written later; nothing stays.

    Raises:
        InputError: it cannot, or is there and is to stay (not `force`).
    """
    with told(path):
        if os.path.lexists(regular(path)) and not force:
            raise InputError(f"{path} is there already: name another file, or replace it with --force")
        if not path.parent.is_dir():
            raise OSError(errno.ENOTDIR, f"{path.parent} is not a folder that exists")
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".part") as file:
            os.write(file.fileno(), b"?")


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Make a folder where there is none, and those above it; those that are still empty at the end of the block go again."""
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for one in new:
            with suppress(OSError):  # something has been written
                one.rmdir()


@contextmanager
def locked(path: Path | str | None, inside: bool = False) -> Iterator[None]:
    """Keep others from training into a file or folder until the block, or this process, ends; nothing is done for None.

    The lock is a hidden file beside it, or `inside` a folder, for the one around it may not be ours to write into.

    Raises:
        InputError: another call trains into it, or its folder cannot be written.
    """
    if path is None:
        yield
        return
    folder, name = (Path(path), "") if inside else (Path(path).parent, f".{Path(path).name}")
    file = folder / f"{name}.lock"
    with ExitStack() as folders:
        with told(folder):
            lock = FileLock(regular(file))
            folders.enter_context(made(folder))
            with refused(Timeout, f"another call trains into {path}: wait for its end, or name another"):
                lock.acquire(timeout=0)
        try:
            yield
        finally:
            with suppress(OSError):
                file.unlink()  # while it is locked: a process that opened it meanwhile sees that it is gone, and tries again
            lock.release()


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes when it does not.

    Raises:
        InputError: the file cannot be written.
    """
    with told(path), made(regular(path).parent):
        for old in path.parent.glob(f".{glob.escape(path.name)}.*.part"):  # of a process that was killed
            with suppress(OSError):
                if time.time() - old.stat().st_mtime > ABANDONED:
                    old.unlink()
        # `tempfile` would tell the name too late: an interrupt in its last line would leave the file
        temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                yield temporary
                # the content before the name: a crash of the machine leaves the old file or the new one
                os.fsync(handle)
            finally:
                os.close(handle)  # Windows renames and deletes no open file
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file, atomically; raises InputError where that cannot be."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_npz(path: Path, arrays: Mapping[str, np.ndarray], compress: bool = False) -> None:
    """Write named arrays to one `.npz` file, atomically."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        # mypy cannot know that no key of `arrays` is the keyword `allow_pickle`
        (np.savez_compressed if compress else np.savez)(file, **arrays)  # type: ignore[arg-type]


def plain(value: Any) -> Any:
    """Turn arrays, tensors, tuples and paths into what JSON knows; numbers not finite become null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)


def write_json(path: Path, content: Mapping[str, Any], **layout: Any) -> None:
    """Write a JSON file, atomically; the same content makes the same bytes."""
    text = json.dumps(content, allow_nan=False, **(layout or {"indent": 1}))
    write_bytes(path, text.encode() + b"\n")


def script_json(record: object) -> str:
    """A record as JSON inside a page's <script>: no text in it can be taken for the page's own."""
    # others than ASCII are escaped already
    return json.dumps(record, separators=(",", ":")).replace("<", "\\u003c")
