"""The bench: what is timed does the same steps, and the table holds what was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pfl_lite.chapter import stored
from pfl_lite.config import make_config
from pfl_lite.errors import InputError
from tests.scripts import FOLDER, benchmark

module = benchmark("engines")
METHODS, bench, in_turns, limit = module.METHODS, module.bench, module.in_turns, module.limit
bare_module, bare_round = module.bare_module, module.bare_round

SMALL = module.Setting("digits", "linear", clients=4, batch_size=16, epochs=2)


def test_the_bare_loop_takes_the_engine_s_steps() -> None:
    sim = SMALL.simulation()
    bare = bare_module(sim)
    bare.load_state_dict(sim.server)
    assert bare_round(sim, bare) > 0
    sim.advance()
    for name, tensor in bare.state_dict().items():
        assert torch.allclose(tensor, sim.server[name], atol=1e-6) and (tensor != sim.start[name]).any()


def test_the_limit_sees_every_training_image_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SMALL.simulation()
    monkeypatch.setattr(module, "seconds", lambda work, device: work() or 1.0)
    assert limit(sim, bare_module(sim)) == sum(sim.federation.train_sizes)


def test_medians_leave_the_first_turn_out() -> None:
    values: dict[str, Any] = {"a": iter([100.0, 1.0, 5.0, 3.0]), "b": iter([0.0, 2.0, 2.0, 8.0])}
    timed = {name: (lambda numbers=numbers: next(numbers)) for name, numbers in values.items()}
    assert in_turns(timed, 3) == {"a": 3.0, "b": 2.0}
    at_once = iter([1.0, 5.0])
    assert in_turns({"a": lambda: next(at_once)}, 1, warm_ups=0) == {"a": 1.0}


def test_the_table_has_a_row_for_everything_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "workers_rate", lambda count, *_: 1000.0 * count)
    numbers = bench(
        "digits:0.2", methods=("fedavg", "pfl_mfe"), clients=(3, 4), models=("mlp",), repeats=1, epochs=1
    )
    names = [(row["clients"], row["what"]) for row in numbers["rows"]]
    engines = [f"{method}, {engine}" for method in ("fedavg", "pfl_mfe") for engine in ("loop", "vmap")]
    assert [what for count, what in names if count == 3][3:] == engines
    assert len(names) == 2 * (3 + 4)
    assert numbers["rows"][0]["of_bare_loop"] == 1
    assert all(0 < row["outside_training"] < 1 for row in numbers["rows"] if "rounds_per_minute" in row)
    assert numbers["workers"]["2 x loop engine"] == 2000
    lines = module.show(numbers).splitlines()
    assert len(lines) == 2 + len(names) + 1 + 8 and "pfl_mfe, vmap" in lines[-10]


def test_a_method_that_is_not_timed_is_refused() -> None:
    with pytest.raises(InputError, match=f"bench times {', '.join(METHODS)}, not fedfoo"):
        bench("digits", methods=("fedfoo",))


def test_stored_measurements_are_read_and_a_missing_one_is_one_sentence() -> None:
    assert stored("tries")["flops_per_image"]
    with pytest.raises(
        InputError, match=r"no measurement is stored as .*nothing\.json: benchmarks/README\.md says"
    ):
        stored("nothing")


def test_the_command_for_a_gpu_runs_dry_with_the_few_libraries_that_it_names(tmp_path: Path) -> None:
    missing = ("typer", "rich", "ipywidgets", "matplotlib", "seaborn", "torchvision", "sklearn", "dask")
    options = ["--device", "cpu", "--dry-run", "--out", str(tmp_path), "--methods", "fedavg,fedper"]
    script = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({missing!r})); sys.argv[1:] = {options!r}; "
        f"runpy.run_path({str(FOLDER / 'gpu.py')!r}, run_name='__main__')"
    )
    paths = os.pathsep.join(str(folder) for folder in (FOLDER.parent, FOLDER))
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    rows = [row for part in found.values() if isinstance(part, list) for row in part]
    assert not [row for row in rows if "failed" in row]
    assert [row["equal"] for row in found["equality"]] == [True, True]
    batched = [row["mechanism"] for row in found["rates"] if row.get("engine") == "vmap"]
    assert set(batched) == set(benchmark("gpu").MECHANISMS)
    assert {row["images_per_second"] > 0 for row in found["rates"]} == {True}
    assert [row["mechanism"] for row in found["together"]] == ["none", "graphs"]
    assert all(row["images_per_second"] > 0 for row in found["together"])
    assert found["roofline"][0]["mflop_per_image"] > 3 and found["profile"][0]["table"]


def test_every_switch_of_a_mechanism_is_there_and_comes_back() -> None:
    gpu = benchmark("gpu")
    before = dict(vars(gpu.gpu))
    for how in gpu.MECHANISMS.values():
        with gpu.switched(how) as settings:
            make_config("fedavg", engine="vmap", **settings)
            assert all(getattr(gpu.gpu, name) == how[name] for name in how if name.isupper())
    assert vars(gpu.gpu) == before
