"""A sweep is killed at random moments and asked for again: no run may be lost or doubled, and no number may change.

`python -m tests.killing --moments 12 --seed 0` (`make kill`) prints how many were; `tests/test_killing.py` tries one moment each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("parent", "group", "worker", "Dask worker")
"""Who is killed: the command, all its processes, or one that trains."""
# a run that was stopped trains some images twice
EFFORT = ("seconds", "images_per_second", "images_trained", "code")
PATIENCE = 900.0  # seconds


def sweep(arguments: list[str]) -> None:
    """`pfl-lite reproduce steady`: two candidates of FedAvg, two seeds of FedAvg and of Local, on the digits."""
    from pfl_lite.__main__ import main
    from pfl_lite.papers import EXPERIMENTS, PFEDMB_TABLE1

    fedavg, local = PFEDMB_TABLE1.arm("fedavg"), PFEDMB_TABLE1.arm("local")
    arms = (replace(fedavg, grid=fedavg.grid[:2]), replace(local, grid=()))
    small: dict[str, Any] = {"data": "digits", "model": "linear", "rounds": 30, "epochs": 1, "ft_epochs": 1}
    EXPERIMENTS["steady"] = replace(
        PFEDMB_TABLE1, name="steady", arms=arms, seeds=(0, 1), search_rounds=3, **small
    )
    sys.argv = ["pfl-lite", "reproduce", "steady", "--device", "cpu", *arguments]
    main()


def start(folder: Path, scheduler: str = "", **more: Any) -> subprocess.Popen[bytes]:
    """The sweep into the ledger `folder/ledger`, in a session of its own; what it says is added to `folder/said`."""
    how = ["--scheduler", scheduler] if scheduler else ["--workers", "2"]
    command = [sys.executable, "-m", "tests.killing", "--sweep", "--ledger", str(folder / "ledger"), *how]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "said").open("ab") as said:
        more = {"stdout": said, "stderr": said} | more
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True, **more)


def entries(folder: Path) -> dict[str, str]:
    """The numbers in the ledger of a sweep, by file."""
    found = {}
    for path in sorted((folder / "ledger").glob("*/*.json")):
        parts = json.loads(
            path.read_text(), object_pairs_hook=lambda pairs: [one for one in pairs if one[0] not in EFFORT]
        )
        found[path.name] = json.dumps(parts)
    return found


@dataclass
class Cluster:
    """A Dask scheduler and two workers, every one a process of its own that only this machine can reach."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.file = self.folder / "scheduler.json"
        self.add("scheduler", "--scheduler-file", str(self.file), "--port", "0")
        until = time.monotonic() + PATIENCE
        while not (self.file.exists() and self.file.stat().st_size) and time.monotonic() < until:
            time.sleep(0.05)
        self.address = json.loads(self.file.read_text())["address"]
        for _ in range(2):
            self.add_worker()

    def add(self, kind: str, *options: str) -> None:
        """Start a process of it."""
        command = [
            sys.executable, "-m", f"distributed.cli.dask_{kind}", "--host", "127.0.0.1", "--no-dashboard",
        ]  # fmt: skip
        with (self.folder / "said").open("ab") as said:
            self.processes.append(
                subprocess.Popen([*command, *options], cwd=self.folder, stdout=said, stderr=said)
            )

    def add_worker(self) -> None:
        """Start another worker."""
        self.add("worker", self.address, "--nthreads", "1", "--no-nanny")

    def kill_worker(self, random: Random) -> None:
        """Kill one, and start another in its place."""
        victim = self.processes.pop(random.randrange(1, 3))
        victim.kill()
        victim.wait()
        self.add_worker()

    def close(self) -> None:
        """Leave nothing of it."""
        for process in self.processes:
            process.kill()
            process.wait()


def workers_of(process: int) -> list[int]:
    """The processes that train for a sweep."""
    found = []
    with suppress(OSError):  # it, or one of them, has just ended
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text().split():
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def kill(kind: str, process: subprocess.Popen[bytes], random: Random, cluster: Cluster | None) -> None:
    """Kill -9."""
    if kind == "parent":
        process.kill()
    elif kind == "group":
        os.killpg(process.pid, signal.SIGKILL)
    elif cluster is not None:
        cluster.kill_worker(random)
    else:
        while process.poll() is None and not workers_of(process.pid):
            time.sleep(0.01)
        for worker in random.sample(some := workers_of(process.pid), min(1, len(some))):
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(worker, signal.SIGKILL)


def at_work(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until the first round of a sweep is kept; most of its seconds before are spent on starting."""
    while process.poll() is None and not any(folder.glob("ledger/.checkpoints/*/*.pt")):
        time.sleep(0.005)


def killed(kind: str, moment: str, span: float, folder: Path, cluster: Cluster | None) -> Path:
    """Kill within `span` seconds of the first round that is kept, go on if the sweep does not by itself; where it lies.

    Once in four times the seconds begin with the sweep, to which starting belongs. A sweep that was over before is tried
    again, and killed sooner.
    """
    random = Random(moment)
    for attempt in range(20):
        here = folder / f"{attempt}"
        process = start(here, cluster.address if cluster else "")
        if random.random() < 0.75:
            at_work(process, here)
        until = time.monotonic() + span * random.random() * 0.7**attempt
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        if process.poll() is None:
            break
    kill(kind, process, random, cluster)
    process.wait(PATIENCE)
    if kind in ("parent", "group"):
        process = start(here)
        process.wait(PATIENCE)
    assert process.returncode == 0, (here / "said").read_text()[-2000:]
    return here


def counted(folder: Path, alone: dict[str, str]) -> Counter[str]:
    """How many runs were lost, landed twice, hold other numbers than in the sweep left alone, and went on from a round."""
    found, said = entries(folder), (folder / "said").read_text()
    done = Counter(re.findall(r"^done (.+) in \d+ s:", said, flags=re.MULTILINE))
    return Counter(
        lost=len(alone.keys() - found.keys()),
        doubled=sum(number > 1 for number in done.values()),
        unequal=sum(found[name] != alone[name] for name in found.keys() & alone.keys()),
        resumed=len(re.findall(r"^go on with | is repeated from round ", said, flags=re.MULTILINE)),
    )


def left_alone(folder: Path) -> tuple[dict[str, str], float]:
    """What the sweep comes to when nothing kills it, and the seconds that it takes from its first round on."""
    process = start(folder)
    at_work(process, folder)
    started = time.monotonic()
    assert process.wait(PATIENCE) == 0, (folder / "said").read_text()
    return entries(folder), time.monotonic() - started


def main() -> int:
    """Try so many moments of each kind, print the table; 1 where a run was lost, doubled or another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    asked = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        alone, span = left_alone(Path(name) / "alone")
        columns = ("moments", "lost", "doubled", "unequal", "resumed")
        print(f"{'killed':<14}" + "".join(f"{column:>9}" for column in columns), flush=True)
        for kind in (one for one in KINDS if asked.only in one):
            cluster = Cluster(Path(name) / "cluster") if kind == "Dask worker" else None
            total = Counter(moments=asked.moments)
            try:
                for number in range(asked.moments):
                    here = killed(
                        kind, f"{asked.seed} {kind} {number}", span, Path(name) / kind / f"{number}", cluster
                    )
                    total += counted(here, alone)
            finally:
                if cluster:
                    cluster.close()
            bad += total["lost"] + total["doubled"] + total["unequal"]
            print(f"{kind:<14}" + "".join(f"{total[column]:>9}" for column in columns), flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--sweep"]:
        sweep(sys.argv[2:])
    else:
        sys.exit(main())
