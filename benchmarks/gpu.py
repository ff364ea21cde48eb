"""Everything about the engines' speed on one GPU, in one command of nine minutes: python benchmarks/gpu.py --out results

    PYTHONPATH=. python benchmarks/gpu.py --out results                    # on a GPU
    PYTHONPATH=. python benchmarks/gpu.py --out results --device cpu --tiny   # the same script, dry, in a minute or two

It needs torch, NumPy and tqdm only. Where CIFAR-10 is not at hand it makes random images of that shape: speed does not depend on
what is on them (accuracies would, and none is reported). Every part stands alone: one that fails leaves its error and no hole in
the others, and results are written after every row. At the end everything lies in `gpu.tar.gz` in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engines import engine_round, memory, seconds
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from pfl_lite.config import make_config
from pfl_lite.data.images import load
from pfl_lite.engine import batched
from pfl_lite.engine.batched import groups, padded
from pfl_lite.engine.report import device_name, versions
from pfl_lite.engine.simulation import Simulation
from pfl_lite.errors import InputError
from pfl_lite.methods import METHODS
from pfl_lite.papers import EXPERIMENTS, TABLE2_SETTINGS

BATCH = 64
Row = dict[str, Any]


def padding(sizes: list[int], batch_size: int, cut: list[list[int]]) -> float:
    """Share of the computed images that are padding, where these groups of clients are trained for an epoch."""
    computed = sum(len(group) * padded(max(sizes[place] for place in group), batch_size) for group in cut)
    return 1 - sum(sizes) / computed


class Bench:
    """What is measured where, and how long there is for it."""

    def __init__(self, device: str, tiny: bool, peaks: Row) -> None:
        self.device, self.tiny, self.peaks = device, tiny, peaks
        self.counts = (3, 4) if tiny else (15, 50)

    def simulation(self, method: str = "fedavg", **settings: Any) -> Simulation:
        """Ready to train LeNet on two classes a client, all of them in every round."""
        usual = {
            "data": "cifar10", "model": "lenet", "partition": "classes:2", "clients": self.counts[-1],
            "epochs": 1 if self.tiny else 5, "batch_size": BATCH, "lr": 0.01, "rounds": 10_000, "eval_every": 10_000,
            "device": self.device, "engine": "vmap",
        }  # fmt: skip
        return Simulation(make_config(method, **(usual | settings)))

    def measured(self, sim: Simulation, repeats: int = 2) -> Row:
        """Images/s of the fastest of some rounds after one to warm up, and the largest memory."""
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        rates = [engine_round(sim) for _ in range(1 + repeats)]
        row = {"images_per_second": round(max(rates[1:])), "first_round": round(rates[0])}
        if isinstance(sim.map, batched.Vmap):
            row["padding"] = round(1 - sim.map.images_trained / sim.map.images_computed, 3)
        return row | {"peak_gib": round(memory(self.device), 2)}

    # ---- the parts ------------------------------------------------------------------------------------------------

    def smoke(self) -> Iterator[Row]:
        """Does every method play a round here, with more clients than the first group has? One that fails says how."""
        for method in METHODS:
            row: Row = {"method": method}
            try:
                sim = self.simulation(method, data="cifar10:0.01", clients=9, epochs=1, rounds=1)
                row["seconds"] = round(seconds(sim.advance, self.device), 2)
            except Exception as error:
                row["failed"] = f"{type(error).__name__}: {error}"
            yield row

    def machine(self) -> Iterator[Row]:
        """What the machine can do at best: bytes copied, and products of large matrices, exact and in TF32."""
        size = 2**20 if self.tiny else 2**30
        a = torch.rand(size, device=self.device)
        b = torch.empty_like(a)
        took = min(seconds(lambda: b.copy_(a), self.device) for _ in range(5))
        yield {"what": "copy", "tb_per_second": round(2 * a.nbytes / took / 1e12, 2)}
        a = torch.rand(256 if self.tiny else 8192, 256 if self.tiny else 8192, device=self.device)
        for tf32 in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = tf32
            took = min(seconds(lambda: a @ a, self.device) for _ in range(5))
            yield {"what": "product", "tf32": tf32, "tflops": round(2 * len(a) ** 3 / took / 1e12, 1)}
        torch.backends.cuda.matmul.allow_tf32 = False

    def roofline(self) -> Iterator[Row]:
        """Floating-point operations and bytes an image of FedAvg's step, and the rates that the peaks allow."""
        mflop = 0.0
        for convolution in ("unfold", "grouped"):
            sim = self.simulation(convolution=convolution, epochs=1, graphs=False)
            sim.advance()
            with FlopCounterMode(display=False) as flops, Traffic() as traffic:
                before = sim.map.images_trained
                sim.advance()
            images = sim.map.images_trained - before
            row: Row = {"convolution": convolution, "images": images, "operations": traffic.calls}
            mflop = mflop or flops.get_total_flops() / images / 1e6  # the counter overlooks groups
            row["mflop_per_image"] = round(mflop, 3)
            row["kilobytes_per_image"] = round(traffic.bytes / images / 1e3, 1)
            row["by_flops"] = round(self.peaks["tflops"] * 1e6 / row["mflop_per_image"])
            row["by_bytes"] = round(self.peaks["tb_per_second"] * 1e9 / row["kilobytes_per_image"])
            yield row

    def engines(self) -> Iterator[Row]:
        """Loop and vmap for three methods and two numbers of clients."""
        for clients in self.counts:
            for method in ("fedavg", "pfedmb", "pfedme"):
                rates = {}
                for engine in ("loop", "vmap"):
                    shorter = {"epochs": 1} if engine == "loop" else {}  # its rate does not depend on it
                    row = self.measured(self.simulation(method, clients=clients, engine=engine, **shorter), 1)
                    rates[engine] = row["images_per_second"]
                    yield {"clients": clients, "method": method, "engine": engine} | row
                yield {
                    "clients": clients,
                    "method": method,
                    "times_the_loop": round(rates["vmap"] / rates["loop"], 1),
                }

    def switches(self) -> Iterator[Row]:
        """FedAvg with each kind of convolution, with and without graphs and TF32."""
        for convolution in ("grouped", "unfold", "auto"):
            for graphs in (True, False) if self.device == "cuda" else (False,):
                for tf32 in (True, False) if self.device == "cuda" else (False,):
                    how = {"convolution": convolution, "graphs": graphs, "tf32": tf32}
                    yield how | self.measured(self.simulation(**how))

    def together(self) -> Iterator[Row]:
        """How many clients are computed together, and how many groups side by side."""
        count, lanes = self.counts[-1], batched.LANES
        for clients in (1, 5, 10, 25, 50, 100, 200):
            if clients <= (count if self.tiny else 4 * count):
                yield {"clients_per_batch": clients} | self.measured(
                    self.simulation(clients=clients, clients_per_batch=clients), 1
                )
        try:
            for batched.LANES in (1, lanes):
                for clients in self.counts:
                    sim = self.simulation(partition="dirichlet:0.4", clients=clients)
                    sizes = sim.federation.train_sizes.tolist()
                    cut = groups(sizes, BATCH)
                    row = {"partition": "dirichlet:0.4", "clients": clients, "lanes": batched.LANES}
                    row |= {
                        "groups": [len(group) for group in cut],
                        "share": round(padding(sizes, BATCH, cut), 3),
                    }
                    yield row | self.measured(sim)
        finally:
            batched.LANES = lanes

    def exactness(self) -> Iterator[Row]:
        """How far the engines are apart after a round: largest difference of any parameter."""
        for dtype in ("float64", "float32"):
            common = {"epochs": 1, "dtype": dtype, "clients": self.counts[0]}
            start = self.simulation(engine="loop", tf32=False, **common)
            start.advance()
            for how in ({"tf32": False}, {"tf32": True}, {"tf32": False, "graphs": False}):
                other = self.simulation(**common, **how)
                other.advance()
                apart = max((start.server[name] - w).abs().max().item() for name, w in other.server.items())
                yield {"dtype": dtype, **how, "largest_difference": apart}

    def table2(self) -> Iterator[Row]:
        """Hours that pFedMB's Table II would take, from rounds of its own protocols with 15 and 50 clients."""
        total = 0.0
        for setting in ("dirichlet-15", "dirichlet-50"):
            experiment = EXPERIMENTS[f"pfedmb-table2-{setting}"]
            alike = sum(
                experiment.clients == EXPERIMENTS[f"pfedmb-table2-{name}"].clients for name in TABLE2_SETTINGS
            )
            for arm in experiment.arms:
                asked = experiment.settings(0) | arm.grid[0] | dict(arm.settings)
                asked |= {"device": self.device, "engine": "vmap", "rounds": 10_000, "ft_epochs": 0}
                asked |= {"clients": self.counts[0], "epochs": 1} if self.tiny else {}
                sim = Simulation(make_config(arm.method, **asked))
                sim.advance()
                images = sim.map.images_trained
                took = min(seconds(sim.advance, self.device) for _ in range(2))
                rate = (sim.map.images_trained - images) / 2 / took
                look = seconds(sim.evaluate, self.device)
                seeds = len(experiment.seeds)
                hours = alike * seeds * (took + look / experiment.eval_every) / 3600  # of one round
                total += hours
                yield {
                    "setting": setting, "method": arm.method, "round_seconds": round(took, 4), "look_seconds": round(look, 4),
                    "images_per_second": round(rate), "hours_per_100_rounds": round(100 * hours, 3),
                }  # fmt: skip
        yield {"whole_table_hours": {rounds: round(rounds * total, 2) for rounds in (100, 200, 300)}}

    def vgg(self) -> Iterator[Row]:
        """VGG-16, with the convolutions of libraries and with patches in its first layer."""
        clients, part = (2, "cifar10:0.2") if self.tiny else (10, "cifar10:0.2")
        for convolution in ("grouped", "auto"):
            settings = {"model": "vgg16", "clients": clients, "data": part, "epochs": 1}
            yield {"convolution": convolution} | self.measured(
                self.simulation(convolution=convolution, **settings), 1
            )

    def profile(self) -> Iterator[Row]:
        """Where the time of a round goes, with graphs and without."""
        from torch.profiler import ProfilerActivity, profile

        gpu = self.device == "cuda"
        for graphs in (True, False) if gpu else (False,):
            sim = self.simulation(graphs=graphs, epochs=1)
            sim.advance()
            with profile(
                activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
            ) as seen:
                seconds(sim.advance, self.device)
            order = "self_cuda_time_total" if gpu else "self_cpu_time_total"
            yield {
                "graphs": graphs,
                "table": seen.key_averages().table(sort_by=order, row_limit=30).splitlines(),
            }


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations read and write: what a GPU moves that fuses nothing and caches nothing.

    Views are free, windows that overlap are read once, and a look-up reads what it gives.
    """

    bytes = calls = 0
    looks = ("index", "index_select", "gather")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.is_view or name == "_unsafe_view":
            return result
        self.calls += 1
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        for value in [*(results if name in self.looks else args), *results]:
            if isinstance(value, torch.Tensor):
                real = [
                    size if stride else 1 for size, stride in zip(value.shape, value.stride(), strict=True)
                ]
                self.bytes += min(int(np.prod(real)) * value.element_size(), value.untyped_storage().nbytes())
        return result


def random_images(folder: Path, images: int) -> None:
    """Data sets of CIFAR-10's and CIFAR-100's shape with nothing on the images, in a folder of their own."""
    rng = np.random.default_rng(0)
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        arrays = {}
        for split, count in (("train", images), ("test", images // 5)):
            arrays[f"{split}_images"] = rng.integers(0, 256, size=(count, 32, 32, 3), dtype=np.uint8)
            arrays[f"{split}_labels"] = np.arange(count) % classes
        np.savez(folder / f"{name}.npz", **arrays)
    os.environ["PFL_LITE_DATA"] = str(folder)


def write(path: Path, results: Row) -> None:
    """What is known so far: a machine that is taken away leaves the rows that were done."""
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run the parts that were asked for, in turn, as long as there is time."""
    parts = [
        "smoke",
        "machine",
        "roofline",
        "engines",
        "switches",
        "exactness",
        "together",
        "table2",
        "profile",
        "vgg",
    ]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--tiny", action="store_true", help="few random images and clients, to see that everything runs"
    )
    parser.add_argument("--minutes", type=float, default=9, help="start no part after this time")
    parser.add_argument("--parts", default=",".join(parts), help="which, separated by commas")
    parser.add_argument(
        "--tflops",
        type=float,
        default=67,
        help="the device's peak without tensor cores [an H100's or H200's]",
    )
    parser.add_argument(
        "--tb-per-second", type=float, default=4.8, help="the device's memory bandwidth [an H200's]"
    )
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    pixels = "of the data set"
    try:
        if asked.tiny:
            raise InputError("a small data set will do")
        load("cifar10"), load("cifar100")
    except InputError:
        random_images(Path(tempfile.mkdtemp()), 1000 if asked.tiny else 50_000)
        pixels = "random"
    bench = Bench(asked.device, asked.tiny, {"tflops": asked.tflops, "tb_per_second": asked.tb_per_second})
    results: Row = {
        "device": device_name(asked.device),
        "versions": versions(),
        "pixels": pixels,
        "peaks": bench.peaks,
    }
    path, started = asked.out / "gpu.json", time.monotonic()
    for part in asked.parts.split(","):
        rows: list[Row] = []
        results[part], begun = rows, time.monotonic()
        try:
            if begun - started > 60 * asked.minutes:
                raise TimeoutError("no time was left")
            measure: Callable[[], Iterator[Row]] = getattr(bench, part)
            for row in measure():
                rows.append(row)
                write(path, results)
                shown = {name: value for name, value in row.items() if name != "table"}
                print(f"{part:<10} {json.dumps(shown)}", flush=True)
        except Exception as error:
            traceback.print_exc()
            rows.append({"failed": f"{type(error).__name__}: {error}"})
        rows.append({"seconds": round(time.monotonic() - begun, 1)})
        write(path, results)
    with tarfile.open(asked.out / "gpu.tar.gz", "w:gz") as archive:
        archive.add(path, path.name)
    print(f"wrote {path} in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
