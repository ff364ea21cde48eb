"""Put the chapters and the results that they read into the wheel, for `pfl-lite notebooks`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ChaptersHook(BuildHookInterface):
    """Adds files to a wheel; an editable install reads the repository itself."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Say which files go where: book/*.ipynb and data/ under pfl_lite/book."""
        if version == "editable":
            return
        root = Path(self.root)
        for path in [*root.glob("book/*.ipynb"), *root.glob("data/**/*")]:
            if path.is_file():
                below = path.relative_to(root / "book") if path.suffix == ".ipynb" else path.relative_to(root)
                build_data["force_include"][str(path)] = f"pfl_lite/book/{below.as_posix()}"
