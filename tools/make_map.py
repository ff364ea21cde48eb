"""Print the map of the methods as one A3 page: headless Chromium prints the picture."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from cards import poster
from make_pdf import ROOT, chromium

PAGE = "<style>@page { size: A3 landscape; margin: 0 } body { margin: 0 } svg { width: 420mm; height: 296mm }</style>"


def main() -> int:
    """Write _build/map-of-methods.pdf."""
    browser, output = chromium(), ROOT / "_build/map-of-methods.pdf"
    if browser is None:
        print("the map as a PDF needs Chromium; the picture is book/figures/cards/map-of-methods.svg")
        return 1
    output.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "map.html"
        page.write_text(f'<!doctype html><meta charset="utf-8">{PAGE}{poster()}', encoding="utf-8")
        command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
        command += [f"--user-data-dir={folder}/profile", f"--print-to-pdf={output}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True)
    print(f"wrote {output.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
