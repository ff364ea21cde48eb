"""pfl-lite beside its peers: the same network, the same clients, the same steps, in turns on the same machine.

Every peer has an environment of its own in `benchmarks/.envs`, made from its `requirements.txt`, and a `run.py` that does the
work as that peer's users would. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from pfl_lite.atomic_files import write_npz
from pfl_lite.data.images import load
from pfl_lite.errors import InputError
from pfl_lite.models import make_network

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OURS = "ours"
TIMEOUT = 1800  # seconds after which a run is given up
LISTEN = 0.1  # seconds between two looks at the memory


class Peer(NamedTuple):
    """Somebody who does the work."""

    title: str
    methods: tuple[str, ...]
    """By the names that our package gives them."""
    settings: tuple[tuple[int, int], ...]
    """(processes, threads of each) that are tried; the fastest counts."""
    apart: str
    """How its work differs from ours."""


PEERS = {
    OURS: Peer(
        "pfl-lite",
        ("fedavg", "fedper", "pfl_ft", "apfl"),
        ((1, 1), (1, 2), (2, 1)),
        "scores every client's validation images besides, and the starting model",
    ),
    "fluke": Peer(
        "fluke",
        ("fedavg", "fedper"),
        ((1, 1), (1, 2)),
        "no second process on a CPU: its parallel server asks for two GPUs",
    ),
    "flower": Peer(
        "Flower",
        ("fedavg", "fedper"),
        ((2, 1),),
        "ships no personalized method: FedPer keeps the head in the client's context",
    ),
    "pfl-research": Peer(
        "pfl-research",
        ("fedavg", "pfl_ft"),
        ((1, 2), (2, 1)),
        "does not shuffle; its Reptile is PFL-FT that also scores the training images, twice a round",
    ),
    "fedjax": Peer(
        "FedJAX",
        ("fedavg", "apfl"),
        ((1, 2), (2, 1)),
        "batches run on from one epoch into the next; its APFL learns alpha by layer and step, ours one alpha a round; "
        "needs a JAX of 2024",
    ),
}
BARE = Peer("bare PyTorch loops", ("bare", "bare-channels-last"), ((2, 1),), "score nothing, keep no clients")


class Item(NamedTuple):
    """What is run in one turn."""

    peer: str
    method: str
    processes: int
    threads: int


@dataclass
class Row:
    """What came of an item: medians over the turns."""

    peer: str
    method: str
    processes: int
    threads: int
    images_per_second: float | None = None
    """Training images by the seconds of the rounds after the first, with their evaluation."""
    of_ours: float | None = None
    """By our fastest setting's images/s for the same method (the bare loops: FedAvg)."""
    seconds: float | None = None
    """Of the whole run, from the start of Python to its end."""
    memory: float | None = None
    """Largest memory of all processes together, in MiB; what they share is counted once."""
    accuracy: float | None = None
    version: str = ""
    error: str = ""
    every: list[float] = field(default_factory=list)
    """images/s of every turn that counts."""


# ---- before the runs ----------------------------------------------------------------------------------------------


def write_clients(path: Path, data: str, clients: int) -> None:
    """Write the file that all peers read: images, the clients of `pfl-lite partition`, and the starting parameters.

    Raises:
        InputError: the data set or the clients cannot be had.
    """
    images = load(data)
    split = path.with_name("partition.npz")
    dealt = subprocess.run(
        [sys.executable, "-m", "pfl_lite", "partition", "--data", data, "--partition", "classes:2",
         "--clients", str(clients), "--seed", "0", "--out", str(split)],
        capture_output=True, text=True,
    )  # fmt: skip
    if dealt.returncode:
        raise InputError(f"pfl-lite partition failed: {dealt.stderr.strip()}")
    with np.load(split) as stored:
        indices = {name: stored[name] for name in stored.files if name.startswith(("train/", "test/"))}
    start = make_network("lenet", images.card.channels, 32, len(images.card.classes)).init(0)
    arrays = {
        "train_images": images.train_images, "train_labels": images.train_labels,
        "test_images": images.test_images, "test_labels": images.test_labels,
        "mean": np.array(images.card.mean, np.float32), "std": np.array(images.card.std, np.float32),
        **indices, **{f"start/{name}": tensor.numpy() for name, tensor in start.items()},
    }  # fmt: skip
    write_npz(path, arrays)


def environment(peer: str) -> str:
    """Make a peer's environment, or bring it up to date; what went wrong, or nothing."""
    if peer == OURS:
        return ""
    folder = HERE / ".envs" / peer
    uv, here = str(ROOT / "tools/uv.sh"), os.environ | {"VIRTUAL_ENV": str(folder)}
    steps = [
        [uv, "pip", "sync", "--quiet", "--compile-bytecode", str(HERE / "peers" / peer / "requirements.txt")]
    ]
    if not (folder / "bin/python").exists():
        steps.insert(0, [uv, "venv", "--quiet", "--python", "3.11", str(folder)])
    for step in steps:
        done = subprocess.run(step, env=here, capture_output=True, text=True)
        if done.returncode:
            return f"does not install: {complaint(done.stderr)}"
    return ""


def complaint(text: str) -> str:
    """The line of a program's last words that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (named or lines or ["it said nothing"])[-1]


# ---- the runs -----------------------------------------------------------------------------------------------------


class Memory(threading.Thread):
    """Listens to the memory of a process and all its descendants until these are gone."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.root, self.peak, self.over = psutil.Process(pid), 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(LISTEN):
            total = 0
            try:
                for process in [self.root, *self.root.children(recursive=True)]:
                    total += process.memory_full_info().pss
            except psutil.Error:  # somebody ended meanwhile: the next look will do
                continue
            self.peak = max(self.peak, total)


def play(item: Item, folder: Path, settings: dict[str, Any], listen: bool) -> dict[str, Any]:
    """Run an item once: its answer with `seconds`, and `memory` where that is listened to; or `error`."""
    out = folder / "answer.json"
    out.unlink(missing_ok=True)
    work = item._asdict() | settings | {"clients": str(folder / "clients.npz"), "out": str(out)}
    python = sys.executable if item.peer == OURS else str(HERE / ".envs" / item.peer / "bin/python")
    script = HERE / "peers" / item.peer / "run.py"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "TQDM_DISABLE": "1"}
    paths = [str(HERE / "common"), *([str(ROOT), str(HERE)] if item.peer == OURS else [])]
    variables = quiet | {"OMP_NUM_THREADS": str(item.threads), "PYTHONPATH": os.pathsep.join(paths)}
    del work["peer"]
    started, memory = time.perf_counter(), None
    with (folder / "errors.txt").open("w+") as errors:
        process = subprocess.Popen(
            [python, "-W", "ignore", str(script), json.dumps(work)],
            env=os.environ | variables, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
        )  # fmt: skip
        if listen:
            memory = Memory(process.pid)
            memory.start()
        try:
            code = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {TIMEOUT} s"}
        finally:
            if memory:
                memory.over.set()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        errors.seek(0)
        said = errors.read()
    if not out.exists():
        return {"error": f"does not run (exit status {code}): {complaint(said)}"}
    answer = json.loads(out.read_text())
    heard = {"memory": memory.peak / 2**20} if memory else {}
    return answer | heard | {"seconds": time.perf_counter() - started}


def in_turns(
    items: Sequence[Item], folder: Path, settings: dict[str, Any], repeats: int
) -> dict[Item, list[dict[str, Any]]]:
    """The answers of every item: one turn that listens to the memory, then `repeats` turns that are timed."""
    answers: dict[Item, list[dict[str, Any]]] = {item: [] for item in items}
    for turn in range(repeats + 1):
        for item, given in answers.items():
            if given and "error" in given[0]:
                continue
            given.append(last := play(item, folder, settings, listen=turn == 0))
            said = last.get("error") or f"{last['images_per_second']:,.0f} images/s, {last['seconds']:.1f} s"
            print(
                f"turn {turn} of {repeats}, {item.peer}, {item.method}, {item.processes} x {item.threads}: {said}",
                file=sys.stderr,
            )
    return answers


# ---- after the runs -----------------------------------------------------------------------------------------------


def summary(answers: dict[Item, list[dict[str, Any]]]) -> list[Row]:
    """One row an item: medians of the timed turns, and the ratio to our fastest setting for the same method."""
    rows = []
    for item, given in answers.items():
        row = Row(*item)
        problems = [answer["error"] for answer in given if "error" in answer]
        if problems:
            row.error = problems[0]
        else:
            first, *timed = given
            row.every = [answer["images_per_second"] for answer in timed]
            row.images_per_second = statistics.median(row.every)
            row.seconds = statistics.median(answer["seconds"] for answer in timed)
            row.memory, row.version = first["memory"], first["version"]
            scores = [answer["accuracy"] for answer in timed]
            row.accuracy = None if None in scores else statistics.median(scores)
        rows.append(row)
    for row in rows:
        mine = [one for one in rows if one.peer == OURS and one.method == group(row.method)]
        rates = [one.images_per_second for one in mine if one.images_per_second]
        if row.images_per_second and rates:
            row.of_ours = row.images_per_second / max(rates)
    return rows


def group(method: str) -> str:
    """The method beside which a row stands: the bare loops do FedAvg."""
    return "fedavg" if method in BARE.methods else method


def table(rows: Sequence[Row]) -> str:
    """The rows by method, the fastest setting of every peer marked, what does not run with its error, then the remarks."""
    lines = []
    for method in dict.fromkeys(group(row.method) for row in rows):
        lines.append(
            f"{method:<24}{'processes':>10}{'images/s':>10}{'of ours':>9}{'whole run':>11}{'MiB':>8}{'accuracy':>10}"
        )
        members = [row for row in rows if group(row.method) == method]
        best = {
            (row.peer, row.method): row for row in sorted(members, key=lambda row: row.images_per_second or 0)
        }
        for row in members:
            title = row.method if row.method in BARE.methods else PEERS[row.peer].title
            head = f"  {title:<22}{f'{row.processes} x {row.threads}':>10}"
            if row.error:
                lines.append(f"{head}  {row.error}")
                continue
            ratio = "" if row.of_ours is None else f"{row.of_ours:.2f}"
            score = "" if row.accuracy is None else f"{100 * row.accuracy:.1f}%"
            mark = " *" if best[row.peer, row.method] is row else ""
            numbers = f"{row.images_per_second:10,.0f}{ratio:>9}{row.seconds:9.1f} s{row.memory:8,.0f}"
            lines.append(f"{head}{numbers}{score:>10}{mark}".rstrip())
    lines.append(
        "processes x threads of each; * the fastest setting; accuracy: mean over the clients, test images"
    )
    shown = [BARE, *(PEERS[name] for name in dict.fromkeys(row.peer for row in rows))]
    lines += [f"  {peer.title}: {peer.apart}" for peer in shown]
    lines += ["versions", *(f"  {one}" for one in dict.fromkeys(row.version for row in rows) if one)]
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """What the numbers were taken on, and how busy it was with other things."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return {
        "processor": found[1] if found else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
    }


def chosen(peers: Sequence[str], methods: Sequence[str]) -> list[Item]:
    """What is run, in the order of a turn."""
    items = [
        Item(name, method, processes, threads)
        for name in (OURS, *peers)
        for method in PEERS[name].methods
        for processes, threads in PEERS[name].settings
        if method in methods and any(method in PEERS[peer].methods for peer in (peers or (OURS,)))
    ]
    bare = [Item(OURS, method, *setting) for method in BARE.methods for setting in BARE.settings]
    return (bare if "fedavg" in methods else []) + items


def main() -> None:
    known = list(PEERS)[1:]
    parser = argparse.ArgumentParser(
        description="Measure pfl-lite beside its peers; the first use installs these."
    )
    parser.add_argument(
        "--peers", nargs="*", default=known, choices=known, metavar="NAME", help=", ".join(known)
    )
    parser.add_argument(
        "--methods", nargs="+", default=list(PEERS[OURS].methods), choices=PEERS[OURS].methods, metavar="NAME",
        help=", ".join(PEERS[OURS].methods),
    )  # fmt: skip
    parser.add_argument(
        "--fraction", type=float, default=0.1, help="share of CIFAR-10's images (default: 0.1)"
    )
    parser.add_argument("--clients", type=int, default=15)
    parser.add_argument(
        "--rounds", type=int, default=4, help="2 or more: the first one warms up (default: 4)"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--repeats", type=int, default=3, help="timed turns (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers go as well")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that no run is left behind
    for name, least in {"rounds": 2, "epochs": 1, "batch_size": 1, "repeats": 1}.items():
        if getattr(asked, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be {least} or more, not {getattr(asked, name)}")
    settings = {name: getattr(asked, name) for name in ("rounds", "epochs", "batch_size", "lr")}
    settings["data"] = "cifar10" if asked.fraction == 1 else f"cifar10:{asked.fraction}"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        try:
            write_clients(folder / "clients.npz", settings["data"], asked.clients)
        except InputError as error:
            parser.error(str(error))
        faults = {peer: fault for peer in asked.peers if (fault := environment(peer))}
        items = chosen(asked.peers, asked.methods)
        begun, before = datetime.now(UTC), os.getloadavg()
        answers = in_turns(
            [item for item in items if item.peer not in faults], folder, settings, asked.repeats
        )
    after = os.getloadavg()
    rows = summary(answers | {item: [{"error": faults[item.peer]}] for item in items if item.peer in faults})
    print(table(rows))
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        numbers = {
            "settings": settings
            | {"clients": asked.clients, "partition": "classes:2", "repeats": asked.repeats},
            "machine": machine(),
            "begun": begun.isoformat(timespec="minutes"),
            "load": {"before": before, "after": after},
            "rows": [asdict(row) for row in rows],
            "apart": {peer.title: peer.apart for peer in (BARE, *PEERS.values())},
        }
        asked.json.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
