"""How fast the engine is, against a bare PyTorch loop that does the same steps on the same images in the same process."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from threading import Barrier
from typing import Any

import torch
import torch.nn.functional as F

from pfl_lite.engine.config import make_config
from pfl_lite.engine.local_sgd import epoch_orders
from pfl_lite.engine.rounds import Simulation, device_name, versions
from pfl_lite.models import NETWORKS

_barrier: Any = None


def simulation(
    data: str, clients: int, batch_size: int, method: str = "fedavg", **settings: Any
) -> Simulation:
    """A LeNet federation of `classes:2` clients, ready to train; its rounds are not scored."""
    return Simulation(
        make_config(
            method, data=data, model="lenet", partition="classes:2", clients=clients, batch_size=batch_size, lr=0.05,
            rounds=10_000, eval_every=10_000, device="cpu", **settings,
        )
    )  # fmt: skip


def engine_round(sim: Simulation) -> float:
    """Images/s of one round of local work (download, SGD, upload) of all clients, without scoring."""
    before, started = sim.map.images_trained, time.perf_counter()
    sim.advance()
    return (sim.map.images_trained - before) / (time.perf_counter() - started)


def bare_round(sim: Simulation, module: torch.nn.Module) -> float:
    """Images/s of the same round as anyone would write it: a module, torch's SGD, a loop over clients and mini-batches."""
    config, data, images = sim.config, sim.federation, 0
    start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    total = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    started = time.perf_counter()
    for i in range(config.clients):
        module.load_state_dict(start)
        optimiser = torch.optim.SGD(module.parameters(), lr=config.lr)
        orders = epoch_orders(config.seed, sim.round, i, "weights", len(data.train[i]), config.epochs)
        for order in torch.from_numpy(orders):
            for rows in data.train[i][order].split(config.batch_size):
                optimiser.zero_grad()
                F.cross_entropy(module(data.images[rows]), data.labels[rows]).backward()
                optimiser.step()
        images += orders.size
        for name, tensor in module.state_dict().items():
            total[name] += tensor * len(data.train[i])
    module.load_state_dict({name: tensor / data.train_sizes.sum() for name, tensor in total.items()})
    return images / (time.perf_counter() - started)


def _start_worker(barrier: Any) -> None:
    global _barrier
    _barrier = barrier
    torch.set_num_threads(1)


def _worker(data: str, clients: int, batch_size: int, repeats: int) -> float:
    """Images/s of one worker's rounds, all workers starting together after a warm-up."""
    sim = simulation(data, clients, batch_size)
    engine_round(sim)
    _barrier.wait()
    return statistics.median(engine_round(sim) for _ in range(repeats))


def workers_rate(count: int, *arguments: Any) -> float:
    """Images/s of `count` one-thread processes together."""
    context = multiprocessing.get_context("spawn")
    barrier: Barrier = context.Manager().Barrier(count)
    with ProcessPoolExecutor(
        count, mp_context=context, initializer=_start_worker, initargs=(barrier,)
    ) as pool:
        return sum(job.result() for job in [pool.submit(_worker, *arguments) for _ in range(count)])


def bench(
    data: str = "cifar10", *, clients: int = 15, batch_size: int = 64, repeats: int = 3
) -> dict[str, Any]:
    """Measure the loop engine, the bare loop (plain and channels-last), pFedMB, and one and two workers; medians of repeats.

    Returns:
        images/s (`images_per_second`), their ratios (`ratios`), and the machine they were taken on.

    Raises:
        InputError: the data set is not at hand.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sim, branches = simulation(data, clients, batch_size), simulation(data, clients, batch_size, "pfedmb")
        spec = NETWORKS["lenet"].module
        bare = spec(sim.federation.channels, sim.federation.size, sim.federation.classes)
        last = spec(sim.federation.channels, sim.federation.size, sim.federation.classes).to(
            memory_format=torch.channels_last
        )
        timed: dict[str, list[float]] = {}
        for repeat in range(repeats + 1):  # the first is a warm-up; what is compared takes turns
            for name, rate in (
                ("loop engine, fedavg", lambda: engine_round(sim)),
                ("bare PyTorch loop", lambda: bare_round(sim, bare)),
                ("bare PyTorch loop, channels-last weights", lambda: bare_round(sim, last)),
                ("loop engine, pfedmb (B = 5)", lambda: engine_round(branches)),
            ):
                value = rate()
                if repeat:
                    timed.setdefault(name, []).append(value)
        rates = {name: statistics.median(values) for name, values in timed.items()}
        for count in (1, 2):
            rates[f"{count} worker{'s' if count > 1 else ''}, fedavg"] = workers_rate(
                count, data, clients, batch_size, repeats
            )
    finally:
        torch.set_num_threads(threads)
    best_bare = max(rates["bare PyTorch loop"], rates["bare PyTorch loop, channels-last weights"])
    return {
        "data": data,
        "clients": clients,
        "batch_size": batch_size,
        "images_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "ratios": {
            "loop engine / bare loop": round(rates["loop engine, fedavg"] / rates["bare PyTorch loop"], 3),
            "loop engine / best bare loop": round(rates["loop engine, fedavg"] / best_bare, 3),
            "two workers / one": round(rates["2 workers, fedavg"] / rates["1 worker, fedavg"], 3),
        },
        "device": device_name("cpu"),
        "versions": versions(),
    }


def show(numbers: dict[str, Any]) -> str:
    """The measured numbers as a small table."""
    lines = [
        f"LeNet-5 on {numbers['data']}, {numbers['clients']} clients, batch {numbers['batch_size']}, {numbers['device']}"
    ]
    lines += [f"  {name:<44}{rate:>10,.0f} images/s" for name, rate in numbers["images_per_second"].items()]
    lines += [f"  {name:<44}{ratio:>10.2f}" for name, ratio in numbers["ratios"].items()]
    return "\n".join(lines)
