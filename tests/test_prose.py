"""The prose linter reads all that people read, and nothing that is code."""

from __future__ import annotations

from pathlib import Path

import lint_prose
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = """\
Text `code_one` and $formula$.

```{admonition} Titled
:class: warning
Boxed.
```

```python
program = "code_two"
```

```{exercise-start} Question
:label: ex-code-three
```

Asked, in ``code_four``.

```{exercise-end}
```

$$
formula
$$

Last.
"""


def test_what_is_read() -> None:
    read = lint_prose.blank(PAGE)
    assert [
        word for word in ("Text", "Titled", "Boxed", "Question", "Asked", "Last") if word not in read
    ] == []
    assert "code" not in read and "formula" not in read and "program" not in read
    assert read.count("\n") == PAGE.count("\n"), "a line number would be wrong"


def test_a_word_that_is_not_the_houses_is_found(tmp_path: Path) -> None:
    listed = dict(line.split("->") for line in lint_prose.HOUSE.read_text(encoding="utf-8").splitlines())
    assert {"nobody", "personalised", "towards"} <= set(listed)
    (tmp_path / "book").mkdir()
    (tmp_path / "book/page.md").write_text(PAGE, encoding="utf-8")
    ((name, text),) = lint_prose.prose(tmp_path)
    assert name == Path("book/page.md") and "Asked" in text


@pytest.mark.parametrize(
    "fault", ["9 %", "9\u00a0%", "9\u202f%", "<<<<<<< HEAD", ">>>>>>> 7ff09d9 (Say more)"]
)
def test_what_no_dictionary_knows_is_found(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "book/page.md"
    page.parent.mkdir()
    monkeypatch.setattr(lint_prose, "ROOT", tmp_path)
    page.write_text(PAGE, encoding="utf-8")
    assert lint_prose.main() == 0
    page.write_text(f"{PAGE}\n{fault}\n", encoding="utf-8")
    assert lint_prose.main() == 1
    assert f"book/page.md:{PAGE.count(chr(10)) + 2}: '{fault}'" in capfd.readouterr().out
