"""Write files that are made from the code."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write(files: Iterable[tuple[Path, str]]) -> None:
    """Write files with their contents, and say which of them were outdated; the command that does so takes no options."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for path, content in files:
        if not path.is_file() or path.read_text(encoding="utf-8") != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
