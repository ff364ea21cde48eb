"""Settings that every test shares: one thread a process, no windows, and hypothesis that repeats itself."""

from __future__ import annotations

import os
from pathlib import Path

# Before anything imports torch or matplotlib.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("TQDM_DISABLE", "1")

import pytest
from hypothesis import HealthCheck, settings

# A slow shared machine is no reason to fail, and a failure must come back when the test is run again.
settings.register_profile(
    "book", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("book")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder of the repository."""
    return Path(__file__).resolve().parent.parent
