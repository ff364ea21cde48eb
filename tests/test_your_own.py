"""The page *Your own method, your own data*: its code runs from top to bottom, and says what the page says."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from pathlib import Path

from pfl_lite.methods.base import Method

PAGE = Path(__file__).resolve().parent.parent / "book" / "your-own.md"


def test_the_page_s_code_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": __name__}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for number, block in enumerate(blocks, 1):
            exec(compile(block, f"{PAGE.name}, block {number}", "exec", dont_inherit=True), names)
    lines = printed.getvalue().splitlines()
    accuracy = {line.split()[0]: float(line.split()[-2]) for line in lines if line.endswith("%")}
    assert len(blocks) >= 8 and len(lines) >= 8
    # private scales help where labels are skewed
    assert accuracy["Rescaled(own_lr=0.5)"] > accuracy["Rescaled(own_lr=0)"]
    assert min(accuracy["fedavg"], accuracy["pfl_mfe"]) > 50, "the page's network learns"
    assert sum(code_lines(blocks[0])) <= 40, "the page promises forty lines"


def test_the_table_of_answers_is_the_code_s() -> None:
    rows = re.findall(
        r"^\| `(\w+)\((.*?)\)` \|.*\| (.*?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) == 13
    for name, arguments, default in rows:
        function = getattr(Method, name)
        assert ["self", *arguments.split(", ")] == list(inspect.signature(function).parameters), name
        assert ("unanswered" in inspect.getsource(function)) == (default == "an error"), name
        assert ("return None" in inspect.getsource(function)) == (default == "`None`"), name


def code_lines(block: str) -> list[bool]:
    """One True for every line of code: neither empty nor a docstring alone."""
    return [bool(line.strip()) and not line.strip().startswith('"""') for line in block.splitlines()]
