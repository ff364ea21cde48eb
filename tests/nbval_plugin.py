"""Make nbval compare a chapter as JupyterLab runs it; loaded by `make test` with `-p tests.nbval_plugin`.

Three differences to nbval's defaults. A busy machine has time: 10 seconds for a new kernel to answer, and 5 for what a cell
has shown, are not always enough. Cells enter the history: without it IPython ignores the semicolon that
hides the last value of a cell, so that `ax.plot(x);` would print one. And stderr is not compared: libraries
warn as they like.
"""

from __future__ import annotations

from typing import Any

import pytest
from nbval.kernel import RunningKernel
from nbval.plugin import IPyNbCell

PATIENCE = 300.0  # seconds


def execute_cell_input(self: Any, cell_input: str, allow_stdin: bool | None = None) -> str:
    """Send one cell to the kernel as a front end does; return the id of the message."""
    return str(self.kc.execute(cell_input, store_history=True, allow_stdin=allow_stdin, stop_on_error=False))


RunningKernel.execute_cell_input = execute_cell_input
usual_reply = RunningKernel.await_reply
RunningKernel.await_reply = lambda self, asked, timeout: usual_reply(self, asked, max(timeout, PATIENCE))
IPyNbCell.output_timeout = property(lambda _: PATIENCE, lambda *_: None)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Leave stderr out of the comparison of notebooks."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare = (*collector.skip_compare, "stderr")
