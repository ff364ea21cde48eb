"""Everything about the engines on one GPU, in one command of less than ten minutes:

    PYTHONPATH=. python benchmarks/gpu.py                                  # on a GPU; writes $OUT/gpu.json
    PYTHONPATH=. python benchmarks/gpu.py --device cpu --dry-run --out .   # the same script, small, in a minute or two

It needs torch, NumPy, pandas and tqdm only. CIFAR-10 comes from the folder $PFL_LITE_DATA (`cifar10.npz`); without it random
images of that shape are made: speed does not depend on what is on them (accuracies would, and none is reported). Every
row stands alone: one that fails leaves its error, and the file is written after every row.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from engines import bare_module, bare_round, engine_round, memory, seconds
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from pfl_lite.config import make_config
from pfl_lite.data.images import load
from pfl_lite.engine import gpu
from pfl_lite.engine.batched import Vmap
from pfl_lite.engine.report import code_version, device_name, versions
from pfl_lite.engine.simulation import Simulation
from pfl_lite.errors import InputError
from pfl_lite.methods import METHODS

BATCH = 64
Row = dict[str, Any]
PLAIN: Row = {"graphs": False}
MECHANISMS: dict[str, Row] = {
    "none": PLAIN,
    "graphs": {},
    "tf32": PLAIN | {"tf32": True},
    "graphs, tf32": {"tf32": True},
    "groups not sorted": PLAIN | {"SORTED_GROUPS": False},
    "graphs, groups not sorted": {"SORTED_GROUPS": False},
}
"""What is switched for a row: settings of a run, and in capitals the switches of `pfl_lite.engine.gpu`."""
OWN: dict[str, Row] = {  # settings with which a round or two do what a method is made for
    "cfl": {"warmup": 0, "eps1": 0.7, "eps2": 0.8},
    "fedem": {"ft_epochs": 0},
    "fedfomo": {"models": 3},
    "fedmn": {"encoder_width": 64, "width": 32, "gate": "soft"},
}


@contextmanager
def switched(how: Row) -> Iterator[Row]:
    """The settings of a mechanism, while its switches in `pfl_lite.engine.gpu` are on."""
    switches = {name: value for name, value in how.items() if name.isupper()}
    before = {name: getattr(gpu, name) for name in switches}
    try:
        for name, value in switches.items():
            setattr(gpu, name, value)
        yield {name: value for name, value in how.items() if name not in switches}
    finally:
        for name, value in before.items():
            setattr(gpu, name, value)


def apart(a: Simulation, b: Simulation) -> float:
    """Largest difference of any number in what two runs have made: server, clients' states, scored models."""
    pairs = [(a.server, b.server), (a.clients, b.clients), (a.scored_models(), b.scored_models())]
    each = [(x[name].double(), y[name].double()) for x, y in pairs for name in x]
    return max((float((x - y).abs().max()) for x, y in each if x.numel()), default=0.0)


class Bench:
    """What is measured where, and until when."""

    def __init__(self, device: str, dry: bool, methods: list[str], models: list[str], minutes: float) -> None:
        self.device, self.dry, self.methods, self.models = device, dry, methods, models
        self.end = time.monotonic() + 60 * minutes
        self.peaks: Row = {}

    def simulation(self, method: str = "fedavg", **settings: Any) -> Simulation:
        """Ready to train; clients of unequal size, all of them in every round."""
        usual = {
            "data": "cifar10", "model": "lenet", "partition": "dirichlet:0.4", "clients": 5, "epochs": 1,
            "batch_size": BATCH, "lr": 0.01, "rounds": 10_000, "eval_every": 10_000, "device": self.device, "engine": "vmap",
        }  # fmt: skip
        return Simulation(make_config(method, **(usual | settings)))

    def measured(self, rate: Callable[[], float], repeats: int = 2) -> Row:
        """Images/s of the fastest of some calls after one to warm up, and the largest memory."""
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        rates = [rate() for _ in range(1 + repeats)]
        return {"images_per_second": round(max(rates[1:])), "peak_gib": round(memory(self.device), 2)}

    # ---- the parts ------------------------------------------------------------------------------------------------

    def equality(self) -> Iterator[Callable[[], Row]]:
        """How far each method's round and fine-tuning are from the loop in float64: batched, with recorded steps, in float32
        and in TF32; the first two must be equal, and on a GPU steps must have been recorded.
        """

        def played(method: str, how: Row, **settings: Any) -> Simulation:
            with switched(how) as given:
                images = f"cifar10:{0.1 if self.dry else 0.02}"
                common = {
                    "data": images,
                    "rounds": 1,
                    "epochs": 3,
                    "batch_size": 16,
                    "ft_epochs": 1,
                    "lr": 0.1,
                }
                sim = self.simulation(method, **(common | OWN.get(method, {}) | given | settings))
                sim.run(progress=False)
            return sim

        def compared(method: str) -> Row:
            exact = played(method, {}, engine="loop", dtype="float64")
            row: Row = {"method": method}
            for name, how, dtype in (
                ("batched", PLAIN, "float64"),
                ("graphs", {}, "float64"),
                ("float32", PLAIN, "float32"),
                ("tf32", {"tf32": True}, "float32"),
            ):
                found = played(method, how, dtype=dtype)
                row[name] = apart(exact, found)
                if name == "graphs" and self.device == "cuda":
                    recorder = found.map.replay.recorder  # type: ignore[attr-defined]
                    row["recorded"] = recorder is not None and recorder.newest is not None
            equal = max(row["batched"], row["graphs"]) <= 1e-10
            return row | {"equal": equal and row.get("recorded", True)}

        for method in self.methods:
            yield lambda method=method: compared(method)

    def machine(self) -> Iterator[Callable[[], Row]]:
        """What the machine can do at best: bytes copied, and products of large matrices, exact and in TF32."""

        def copy() -> Row:
            a = torch.rand(2**20 if self.dry else 2**30, device=self.device)
            b = torch.empty_like(a)
            took = min(seconds(lambda: b.copy_(a), self.device) for _ in range(5))
            self.peaks["tb_per_second"] = 2 * a.nbytes / took / 1e12
            return {"what": "copy", "tb_per_second": round(self.peaks["tb_per_second"], 3)}

        def product(tf32: bool) -> Row:
            side = 256 if self.dry else 8192
            a = torch.rand(side, side, device=self.device)
            with gpu.Driver(torch.device(self.device)).products(tf32=tf32):
                took = min(seconds(lambda: a @ a, self.device) for _ in range(5))
            tflops = 2 * side**3 / took / 1e12
            self.peaks.setdefault("tflops", tflops)  # the exact one
            return {"what": "product", "tf32": tf32, "tflops": round(tflops, 3)}

        yield copy
        yield lambda: product(False)
        yield lambda: product(True)

    def roofline(self) -> Iterator[Callable[[], Row]]:
        """Operations and bytes an image of FedAvg's step, and the images/s that the measured peaks allow."""

        def counted(model: str) -> Row:
            data = f"cifar10:{0.2 if self.dry else 0.02}"
            sim = self.simulation(model=model, data=data, graphs=False)
            module, x = bare_module(sim), sim.federation.images[:2]
            with FlopCounterMode(display=False) as flops:
                F.cross_entropy(module(x), torch.zeros(2, dtype=torch.int64, device=x.device)).backward()
            with Traffic() as traffic:
                sim.advance()
            mflop, kilobytes = flops.get_total_flops() / 2e6, traffic.bytes / sim.map.images_trained / 1e3
            return {
                "model": model, "mflop_per_image": round(mflop, 3),
                "kilobytes_per_image": round(kilobytes, 1), "operations": traffic.calls,
                "by_flops": round(self.peaks["tflops"] * 1e6 / mflop),
                "by_bytes": round(self.peaks["tb_per_second"] * 1e9 / kilobytes),
            }  # fmt: skip

        for model in self.models:
            yield lambda model=model: counted(model)

    def rates(self) -> Iterator[Callable[[], Row]]:
        """Images/s of FedAvg's local work: a bare PyTorch loop, the loop, and the batch with each mechanism."""
        parts = {"lenet": "cifar10:0.5" if self.dry else "cifar10", "vgg16": "cifar10:0.2"}
        for model, data in ((name, parts[name]) for name in self.models):
            for clients in (3, 4) if self.dry else (50, 15):
                what = {"model": model, "clients": clients}
                of = {"data": data, **what}

                def bare(tf32: bool, of: Row = of, what: Row = what) -> Row:
                    sim = self.simulation(**of)
                    module = bare_module(sim)
                    with gpu.Driver(torch.device(self.device)).products(tf32=tf32):
                        return {**what, "bare": True, "tf32": tf32} | self.measured(
                            lambda: bare_round(sim, module), 1
                        )

                def ours(name: str, engine: str, of: Row = of, what: Row = what) -> Row:
                    with switched(MECHANISMS[name]) as given:
                        longer = (
                            {"epochs": 5}
                            if engine == "vmap" and of["model"] == "lenet" and not self.dry
                            else {}
                        )
                        sim = self.simulation(**of, **given, **longer, engine=engine)
                        row = {**what, "engine": engine, "mechanism": name} | self.measured(
                            lambda: engine_round(sim), 1 if engine == "loop" else 2
                        )
                    if isinstance(sim.map, Vmap):
                        row["padding"] = round(1 - sim.map.images_trained / sim.map.images_computed, 3)
                    return row

                yield lambda bare=bare: bare(False)
                yield lambda bare=bare: bare(True)
                yield lambda ours=ours: ours("none", "loop")
                for name in MECHANISMS:
                    yield lambda ours=ours, name=name: ours(name, "vmap")

    def profile(self) -> Iterator[Callable[[], Row]]:
        """Where the time of a round goes, with steps recorded and without."""
        from torch.profiler import ProfilerActivity, profile

        on_gpu = self.device == "cuda"
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]

        def seen(name: str) -> Row:
            with switched(MECHANISMS[name]) as given:
                clients, data = (4, "cifar10:0.5") if self.dry else (50, "cifar10")
                sim = self.simulation(clients=clients, data=data, **given)
                sim.advance()
                with profile(activities=kinds) as found:
                    seconds(sim.advance, self.device)
            order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
            return {
                "mechanism": name,
                "table": found.key_averages().table(sort_by=order, row_limit=25).splitlines(),
            }

        yield lambda: seen("none")
        yield lambda: seen("graphs")

    def together(self) -> Iterator[Callable[[], Row]]:
        """Images/s of several processes that share the GPU, each with a run of its own: FedAvg, 10 of 50 clients a round.

        They share it better where NVIDIA's MPS daemon (`nvidia-cuda-mps-control -d`) lets their kernels run side by side, and
        CUDA_MPS_PIPE_DIRECTORY names its folder.
        """

        def shared(name: str) -> Row:
            import gpu as this  # a new process finds the function by its module's name, whatever runs as __main__

            context = multiprocessing.get_context("spawn")
            count, lasting = (2, 0.2) if self.dry else (8, 6.0)
            barrier, answers = context.Barrier(count), context.Queue()
            settings = {"clients": 50, "participation": 0.2, "epochs": 5, "device": self.device}
            if self.dry:
                settings |= {"data": "cifar10:0.5", "clients": 10}
            processes = [
                context.Process(target=this.one_of_many, args=(n, settings, name, lasting, barrier, answers))
                for n in range(count)
            ]
            for process in processes:
                process.start()
            try:
                rates = [answers.get(timeout=120) for _ in processes]
            finally:
                for process in processes:
                    process.join(5)
                    process.kill()  # one that failed may have left the others waiting
            mps = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
            return {
                "processes": count, "mechanism": name, "mps": mps,
                "images_per_second": round(sum(rates)),
            }  # fmt: skip

        yield lambda: shared("none")
        yield lambda: shared("graphs")


def one_of_many(
    number: int, settings: Row, mechanism: str, lasting: float, barrier: Any, answers: Any
) -> None:
    """In a process of its own: answer with the images/s of its rounds, begun when all processes are ready."""
    bench = Bench(settings["device"], False, [], [], 10)
    with switched(MECHANISMS[mechanism]) as given:
        sim = bench.simulation(seed=number, **settings, **given)
        sim.advance()
        barrier.wait(60)
        begun, before = time.perf_counter(), sim.map.images_trained
        while time.perf_counter() - begun < lasting:
            seconds(sim.advance, bench.device)
        answers.put((sim.map.images_trained - before) / (time.perf_counter() - begun))


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations read and write: what a GPU moves that fuses nothing and caches nothing.

    Views are free, and a look-up reads what it gives.
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
            if isinstance(value, Tensor):
                real = [n if stride else 1 for n, stride in zip(value.shape, value.stride(), strict=True)]
                self.bytes += min(int(np.prod(real)) * value.element_size(), value.untyped_storage().nbytes())
        return result


def random_images(folder: Path, images: int) -> None:
    """A data set of CIFAR-10's shape with nothing on the images, in a folder of its own."""
    rng, arrays = np.random.default_rng(0), {}
    for split, count in (("train", images), ("test", images // 5)):
        arrays[f"{split}_images"] = rng.integers(0, 256, size=(count, 32, 32, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(count) % 10
    np.savez(folder / "cifar10.npz", **arrays)
    os.environ["PFL_LITE_DATA"] = str(folder)


def main() -> int:
    """Measure the parts that were asked for, in turn, as long as there is time; 1 where a method's engines are not equal."""
    parts = ["equality", "machine", "rates", "together", "roofline", "profile"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")), help="folder [$OUT]")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dry-run", action="store_true", help="few images and clients: does everything run?")
    parser.add_argument("--minutes", type=float, default=9, help="start no row after this time")
    parser.add_argument("--parts", default=",".join(parts), help="which, separated by commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="whose engines are compared")
    parser.add_argument("--models", help="which are timed [lenet,vgg16; lenet in a dry run]")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    pixels = "of the data set"
    try:
        if asked.dry_run:
            raise InputError("a small data set will do")
        load("cifar10")
    except InputError:
        random_images(Path(tempfile.mkdtemp()), 1000 if asked.dry_run else 50_000)
        pixels = "random"
    bench = Bench(
        asked.device,
        asked.dry_run,
        asked.methods.split(","),
        (asked.models or ("lenet" if asked.dry_run else "lenet,vgg16")).split(","),
        asked.minutes,
    )
    results: Row = {
        "device": device_name(asked.device), "versions": versions(), "pixels": pixels, "code": code_version()
    }  # fmt: skip
    for part in asked.parts.split(","):
        results[part] = []
        for row in getattr(bench, part)():
            begun = time.monotonic()
            try:
                if begun > bench.end:
                    raise TimeoutError("no time was left")
                found = row()
            except Exception as error:
                found = {"failed": f"{type(error).__name__}: {error}"}
            results[part].append(found | {"seconds": round(time.monotonic() - begun, 1)})
            print(part, json.dumps({k: v for k, v in results[part][-1].items() if k != "table"}), flush=True)
            (asked.out / "gpu.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    unequal = [row for row in results.get("equality", []) if not row.get("equal")]
    return 1 if unequal else 0


if __name__ == "__main__":
    raise SystemExit(main())
