"""The page *Your own method, your own data*: its code runs from top to bottom, and says what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "book" / "your-own.md"


def test_the_page_s_code_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": __name__}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for number, block in enumerate(blocks, 1):
            exec(compile(block, f"{PAGE.name}, block {number}", "exec", dont_inherit=True), names)
    lines = printed.getvalue().splitlines()
    accuracy = {line.split()[0]: float(line.split()[-2]) for line in lines if line.startswith("Rescaled")}
    assert len(blocks) == 6 and len(lines) == 6
    # private scales help where labels are skewed
    assert accuracy["Rescaled(own_lr=0.5)"] > accuracy["Rescaled(own_lr=0)"]
    assert sum(code_lines(blocks[0])) <= 40, "the page promises forty lines"


def code_lines(block: str) -> list[bool]:
    """One True for every line of code: neither empty nor a docstring alone."""
    return [bool(line.strip()) and not line.strip().startswith('"""') for line in block.splitlines()]
