"""Write files so that a reader never sees half of one."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes when it does not.

    Raises:
        OSError: the folder cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes private files; a shared folder wants ordinary ones
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
