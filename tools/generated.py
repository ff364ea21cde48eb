"""Write files that are made from the code, or only say which of them are outdated."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write(files: Iterable[tuple[Path, str]], about: str | None) -> int:
    """Write files with their contents, or with --check only say which are outdated; the exit code."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is outdated")
    check, outdated = parser.parse_args().check, 0
    for path, content in files:
        if path.is_file() and path.read_text(encoding="utf-8") == content:
            continue
        outdated += 1
        name = path.relative_to(ROOT)
        if check:
            print(f"{name} is not up to date: make reference")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
            print(f"wrote {name}")
    return 1 if check and outdated else 0
