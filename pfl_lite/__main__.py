"""The program `pfl-lite`, also as `python -m pfl_lite`: it answers signals before anything slow is imported."""

from __future__ import annotations

import _thread
import io
import os
import signal
import sys
import time
from types import FrameType

put_off: list[int] = []  # signals that came in the middle of an import


def how_ended(number: int) -> str:
    """What is said of a command that a signal has ended."""
    return "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"


def later(number: int) -> None:
    """Send this process a signal once more, in a moment."""
    time.sleep(0.05)
    os.kill(os.getpid(), number)


def interrupted(number: int, frame: FrameType | None) -> None:
    """Answer a signal with a KeyboardInterrupt that knows its number; at once outside a command.

    In the middle of an import, which would turn the exception into one of its own, the signal comes again a little later: torch
    imports also while it trains. After two seconds it is answered at once, without a word on what is kept.
    """
    importing = begun = False
    while frame is not None:
        importing |= frame.f_code.co_filename.startswith("<frozen importlib")
        begun |= frame.f_code.co_qualname == "PoliteGroup.invoke"  # which answers the exception
        frame = frame.f_back
    if importing and begun and len(put_off) < 40 and os.name == "posix":
        put_off.append(number)
        _thread.start_new_thread(later, (number,))  # it takes no lock that the import may hold
        return
    if importing or not begun:
        os.write(2, f"pfl-lite: {how_ended(number)}\n".encode())
        os._exit(128 + number)
    raise KeyboardInterrupt(number)


def main() -> None:
    """Entry point of the console script."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        one = getattr(signal, name, None)
        if one is not None and signal.getsignal(one) != signal.SIG_IGN:  # as under nohup
            signal.signal(one, interrupted)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a file's name may hold what a terminal cannot show; a line is there at once also in a pipe or a file
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    from pfl_lite.cli import app

    app()


if __name__ == "__main__":
    main()
