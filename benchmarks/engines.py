"""How fast the engines are, beside a bare PyTorch loop that does FedAvg's steps and beside one model on large batches.

    python benchmarks/engines.py --methods fedavg,pfedmb --clients 15 --json mine.json

All numbers of a table come from one process and one run: what is compared takes turns, the first turn is a warm-up, and the
median of the others counts.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F

from pfl_lite.config import make_config
from pfl_lite.engine.local_training import epoch_orders
from pfl_lite.engine.processes import over_processes
from pfl_lite.engine.report import device_name, versions
from pfl_lite.engine.simulation import Simulation
from pfl_lite.errors import InputError
from pfl_lite.models import NETWORKS

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedper": {},
    "pfedme": {},
    "fedamp": {},
    "fedem": {},
    "pfedmb": {"branches": 5},
    "pfl_mfe": {"ft_epochs": 1},
}
"""What is timed, with its settings. PFL-MFE trains as FedAvg: here one epoch of its experts and gates follows every round."""
LARGE_BATCH = 1024
BARRIER_SECONDS = 600  # a worker that failed never comes
_barrier: Any = None

Timed = Callable[[], float]


class Setting(NamedTuple):
    """One federation to be timed: `data` may be a part of a data set (`cifar10:0.1`)."""

    data: str
    model: str
    clients: int
    batch_size: int = 64
    epochs: int = 5
    device: str = "cpu"

    def simulation(self, method: str = "fedavg", engine: str = "loop", workers: int = 1) -> Simulation:
        """Ready to train; two classes per client."""
        config = make_config(
            method, **self._asdict(), engine=engine, partition="classes:2", lr=0.01, rounds=10_000, eval_every=10_000,
            **METHODS[method],
        )  # fmt: skip
        return Simulation(config, mapping=over_processes(workers, config))


def seconds(work: Callable[[], Any], device: str) -> float:
    """Wall time of one call, waiting for a GPU to finish."""
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def engine_round(sim: Simulation) -> float:
    """Images/s of one round of all clients, and of fine-tuning where the method does its own; nothing is scored."""

    def work() -> None:
        sim.advance()
        if sim.config.ft_epochs:
            sim.tuned_models()

    before = sim.map.images_trained
    took = seconds(work, sim.config.device)
    return (sim.map.images_trained - before) / took


def scored_round(sim: Simulation) -> tuple[float, float]:
    """Rounds/min of a round with its evaluation, and the share of its seconds that is not local work."""
    trained = sim.training_seconds

    def work() -> None:
        sim.advance()
        sim.evaluate()

    took = seconds(work, sim.config.device)
    return 60 / took, 1 - (sim.training_seconds - trained) / took


def whole_round(sim: Simulation) -> float:
    """Images/s of a round with its evaluation."""
    before, started = sim.map.images_trained, time.perf_counter()
    scored_round(sim)
    return (sim.map.images_trained - before) / (time.perf_counter() - started)


def bare_module(sim: Simulation, *, channels_last: bool = False) -> torch.nn.Module:
    """The plain network of a run, as anyone would build it."""
    data = sim.federation
    module = NETWORKS[sim.config.model].module(data.channels, data.size, data.classes).to(sim.config.device)
    return module.to(memory_format=torch.channels_last) if channels_last else module


def bare_round(sim: Simulation, module: torch.nn.Module) -> float:
    """Images/s of FedAvg's round as anyone would write it: a module, torch's SGD, a loop over clients and mini-batches."""
    config, data, images = sim.config, sim.federation, 0

    def work() -> None:
        nonlocal images
        start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        total = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        for i in range(config.clients):
            module.load_state_dict(start)
            optimiser = torch.optim.SGD(module.parameters(), lr=config.lr)
            orders = epoch_orders(config.seed, sim.round + 1, i, "weights", len(data.train[i]), config.epochs)
            for order in torch.from_numpy(orders).to(config.device):
                for rows in data.train[i][order].split(config.batch_size):
                    optimiser.zero_grad()
                    F.cross_entropy(module(data.images[rows]), data.labels[rows]).backward()
                    optimiser.step()
            images += orders.size
            for name, tensor in module.state_dict().items():
                total[name] += tensor * len(data.train[i])
        module.load_state_dict({name: tensor / data.train_sizes.sum() for name, tensor in total.items()})

    took = seconds(work, config.device)
    return images / took


def limit(sim: Simulation, module: torch.nn.Module) -> float:
    """Images/s of one model on the same images in large batches: what the machine could do if nobody were separate."""
    data, images = sim.federation, 0
    rows = torch.cat(list(data.train))
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-4)

    def work() -> None:
        nonlocal images
        for part in rows.split(LARGE_BATCH):
            optimiser.zero_grad()
            F.cross_entropy(module(data.images[part]), data.labels[part]).backward()
            optimiser.step()
            images += len(part)

    took = seconds(work, sim.config.device)
    return images / took


def in_turns(timed: dict[str, Timed], repeats: int, warm_ups: int = 1) -> dict[str, float]:
    """The median of `repeats` calls of each, taking turns, after the calls that only warm up."""
    kept: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(warm_ups + repeats):
        for name, rate in timed.items():
            value = rate()
            if turn >= warm_ups:
                kept[name].append(value)
    return {name: statistics.median(values) for name, values in kept.items()}


def start_worker(barrier: Any) -> None:
    """Let all workers of a pool begin together, each with one thread."""
    global _barrier
    _barrier = barrier
    torch.set_num_threads(1)


def _worker(setting: Setting, kind: str, repeats: int) -> float:
    """Images/s of one worker: the loop engine with its evaluation, or the bare loop without."""
    sim = setting.simulation()
    module = bare_module(sim, channels_last=kind == "bare loop, channels-last")

    def one() -> float:
        return whole_round(sim) if kind == "loop engine" else bare_round(sim, module)

    one()
    _barrier.wait(timeout=BARRIER_SECONDS)
    return statistics.median(one() for _ in range(repeats))


def workers_rate(count: int, setting: Setting, kind: str, repeats: int) -> float:
    """Images/s of `count` one-thread processes together."""
    context = multiprocessing.get_context("spawn")
    barrier: Barrier = context.Manager().Barrier(count)
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=start_worker, initargs=(barrier,))
    with pool:
        jobs = [pool.submit(_worker, setting, kind, repeats) for _ in range(count)]
        return sum(job.result() for job in jobs)


def single_run(setting: Setting, repeats: int) -> dict[str, int]:
    """Images/s of one run, evaluation included, by one process and with its clients shared out over two."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as alone:  # a process that holds nothing else
        rates = alone.submit(_single_run, setting, repeats).result()
    return {name: round(rate) for name, rate in rates.items()}


def _single_run(setting: Setting, repeats: int) -> dict[str, float]:
    torch.set_num_threads(1)
    one, two = (setting.simulation(workers=count) for count in (1, 2))
    whole_round(two)  # learns what is worth sharing out
    timed: dict[str, Timed] = {
        "single run, 1 worker": lambda: whole_round(one),
        "single run, 2 workers": lambda: whole_round(two),
    }
    return in_turns(timed, repeats)


def machine(device: str) -> dict[str, Any]:
    """What numbers were taken on, and how busy it was: device, processor, cores, load of the last minute, date, versions."""
    known = Path("/proc/cpuinfo")
    names = known.read_text().splitlines() if known.exists() else []
    model = next((line.partition(":")[2].strip() for line in names if line.startswith("model name")), "")
    return {
        "device": device_name(device),
        "processor": model or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
    }


def memory(device: str) -> float:
    """Largest memory so far, in GiB: of the GPU, or of this process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def rows(
    setting: Setting, methods: Iterable[str], engines: Iterable[str], repeats: int
) -> list[dict[str, Any]]:
    """One row a method and engine, after the rows of the bare loops and of the limit."""
    plain = setting.simulation()
    bare, last, one = (bare_module(plain, channels_last=flag) for flag in (False, True, True))
    timed: dict[str, Timed] = {
        "bare loop": lambda: bare_round(plain, bare),
        "bare loop, channels-last": lambda: bare_round(plain, last),
        f"limit: one model, batches of {LARGE_BATCH}": lambda: limit(plain, one),
    }
    simulations = {
        f"{method}, {engine}": setting.simulation(method, engine) for method in methods for engine in engines
    }
    timed |= {name: (lambda sim=sim: engine_round(sim)) for name, sim in simulations.items()}  # type: ignore[misc]
    rates = in_turns(timed, repeats)
    table = []
    for name, rate in rates.items():
        row = {
            "model": setting.model,
            "clients": setting.clients,
            "what": name,
            "images_per_second": round(rate),
        }
        row["of_bare_loop"] = round(rate / rates["bare loop"], 3)
        if name in simulations:
            per_minute, outside = scored_round(simulations[name])
            row |= {"rounds_per_minute": round(per_minute, 2), "outside_training": round(outside, 3)}
        table.append(row | {"peak_gib": round(memory(setting.device), 2)})
    return table


def bench(
    data: str = "cifar10:0.1",
    *,
    methods: Sequence[str] = tuple(METHODS),
    clients: Sequence[int] = (15, 50),
    models: Sequence[str] = ("lenet",),
    engines: Sequence[str] = ("loop", "vmap"),
    batch_size: int = 64,
    epochs: int = 5,
    repeats: int = 3,
    device: str = "cpu",
) -> dict[str, Any]:
    """Measure every method, engine, number of clients and network; on a CPU with one thread, and two workers beside one.

    Returns:
        `rows` of the table, `workers` (CPU only: images/s of one and two processes), and the machine they were taken on.

    Raises:
        InputError: the data set is not at hand, or a method is not among those that are timed.
    """
    if strange := [method for method in methods if method not in METHODS]:
        raise InputError(f"bench times {', '.join(METHODS)}, not {', '.join(strange)}")
    if repeats < 1:
        raise InputError(f"bench takes 1 repeat or more, not {repeats}")
    if device not in ("cpu", "cuda"):
        raise InputError(f"bench measures on cpu or cuda, not {device}")
    taken_on = machine(device)  # before the measurement makes a load of its own
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if device == "cpu" else threads)
    settings = [
        Setting(data, model, count, batch_size, epochs, device) for model in models for count in clients
    ]
    try:
        table = [row for setting in settings for row in rows(setting, methods, engines, repeats)]
        shared: dict[str, int] = {}
        if device == "cpu":
            pairs: dict[str, Timed] = {
                f"{count} x {kind}": partial(workers_rate, count, settings[0], kind, 1)
                for kind in ("bare loop", "bare loop, channels-last", "loop engine")
                for count in (1, 2)
            }
            # new processes every turn, which warm up by themselves: what else the machine does, it does to all of them
            shared = {name: round(rate) for name, rate in in_turns(pairs, repeats, warm_ups=0).items()}
            shared |= single_run(settings[0], repeats)
    finally:
        torch.set_num_threads(threads)
    return {
        "data": data,
        "batch_size": batch_size,
        "epochs": epochs,
        "repeats": repeats,
        "rows": table,
        "workers": shared,
        **taken_on,
    }


def show(numbers: dict[str, Any]) -> str:
    """The measured numbers as a table."""
    table = pd.DataFrame(numbers["rows"])
    head = f"{numbers['data']}, E = {numbers['epochs']}, batch {numbers['batch_size']}, {numbers['device']}"
    parts = [head, table.to_string(index=False, na_rep="")]
    if numbers["workers"]:
        parts.append("images/s of processes with one thread each; the engine's with its evaluation")
        parts.append(pd.Series(numbers["workers"]).to_string())
    return "\n".join(parts)


def main() -> None:
    """Measure, print the table, and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="cifar10:0.1", help="data set, or NAME:0.1 for a tenth of it")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
    parser.add_argument("--clients", default="15,50", help="numbers of clients, separated by commas")
    parser.add_argument("--models", default="lenet", help="networks, separated by commas")
    parser.add_argument("--engines", default="loop,vmap", help="loop, vmap, or both")
    parser.add_argument("--batch-size", type=int, default=64, help="images a mini-batch")
    parser.add_argument("--epochs", type=int, default=5, help="local epochs E")
    parser.add_argument("--repeats", type=int, default=3, help="timed repeats; medians are reported")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    asked = vars(parser.parse_args())
    path = asked.pop("json")
    for name in ("methods", "models", "engines", "clients"):
        asked[name] = asked[name].split(",")
    numbers = bench(**asked | {"clients": list(map(int, asked["clients"]))})
    print(show(numbers))
    if path is not None:
        path.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
