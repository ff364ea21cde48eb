"""The batched engine: groups of like clients, memory, recorded steps change no number."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from test_methods import QUICK
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode
from toy import FAST, Dropped, five_clients, same, tiny_clients

from pfl_lite.config import make_config
from pfl_lite.data.partition import partition_labels
from pfl_lite.engine.batched import IDLE, groups, padded
from pfl_lite.engine.gpu import PROBE, ClientLimit, Driver, Graphs, Replay
from pfl_lite.engine.mapping import in_client_order
from pfl_lite.engine.rounds import floats_sent
from pfl_lite.engine.simulation import Simulation
from pfl_lite.errors import InputError
from pfl_lite.methods import METHODS
from pfl_lite.models import NETWORKS, NetworkSpec


def padding(sizes: list[int], batch_size: int, cut: list[list[int]]) -> float:
    """Share of the computed images that are padding, where these groups of clients are trained for an epoch."""
    computed = sum(len(group) * padded(max(sizes[place] for place in group), batch_size) for group in cut)
    return 1 - sum(sizes) / computed


def tiny(method: str, **settings: Any) -> Simulation:
    """A simulation of clients of one to four images, one image a mini-batch, so that their steps differ fourfold."""
    usual = {
        "clients": 4, "model": "linear", "batch_size": 1, "participation": 0.75, "lr": 0.05, "momentum": 0.5,
    }  # fmt: skip
    usual |= {"fedamp": {"lam": 0.5}}.get(method, {}) | QUICK.get(method, {})
    usual |= {} if method == "fedem" else {"ft_epochs": 1}
    return Simulation(make_config(method, **(FAST | usual | settings)), tiny_clients())


def agree(a: Simulation, b: Simulation) -> bool:
    """Whether two finished runs trained as many images and hold the same models."""
    models = same(a.server, b.server, 1e-10) and same(a.scored_models(), b.scored_models(), 1e-10)
    return models and a.map.images_trained == b.map.images_trained


# ---- who is computed together ---------------------------------------------------------------------------------------


def sizes_at_random(seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return rng.integers(1, 10 ** rng.integers(1, 4), size=rng.integers(1, 30)).tolist()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("at_most", [30, 1, 3])
def test_groups_hold_every_client_once_and_idle_little(seed: int, at_most: int) -> None:
    sizes = sizes_at_random(seed)
    cut = groups(sizes, 16, at_most)
    assert sorted(place for group in cut for place in group) == list(range(len(sizes)))
    assert all(1 <= len(group) <= at_most for group in cut)
    alone = sum(padded(size, 16) for size in sizes)
    computed = sum(len(group) * max(padded(sizes[place], 16) for place in group) for group in cut)
    assert alone >= (1 - IDLE) * computed
    one = len(sizes) * max(padded(size, 16) for size in sizes)
    if at_most == 30:  # any number
        assert (len(cut) == 1) == (alone >= (1 - IDLE) * one)
    if len(cut) == 1:
        assert cut[0] == list(range(len(sizes)))


def test_clients_of_like_size_are_put_together() -> None:
    assert groups([1000, 10, 10, 990], 64, 4) == [[0, 3], [1, 2]]
    assert groups([5] * 5, 64, 2) == [[0], [1, 2], [3, 4]]
    assert groups([0, 0], 64, 2) == [[0, 1]]


@pytest.mark.parametrize("clients", [15, 50])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_little_of_the_work_is_padding_at_the_papers_skew(clients: int, seed: int) -> None:
    labels, test = np.repeat(np.arange(10), 5000), np.repeat(np.arange(10), 1000)  # as many as CIFAR-10 has
    shares = partition_labels(labels, test, 10, "dirichlet:0.4", clients, seed)
    sizes = [len(share.train) for share in shares]
    cut = groups(sizes, 64, clients)
    assert padding(sizes, 64, cut) < 0.15 < padding(sizes, 64, [list(range(clients))])
    assert len(cut) <= 5


def test_padding_is_what_the_engine_computes() -> None:
    sim = Simulation(make_config("fedavg", **FAST, engine="vmap", clients_per_batch=5), five_clients())
    sim.advance()
    sizes = sim.federation.train_sizes.tolist()
    share = padding(sizes, 32, groups(sizes, 32, len(sizes)))
    assert 1 - sim.map.images_trained / sim.map.images_computed == pytest.approx(share) and share > 0  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("together", [1, 2])
def test_numbers_do_not_depend_on_who_is_computed_together(method: str, together: int) -> None:
    loop, batched = tiny(method), tiny(method, engine="vmap", clients_per_batch=together)
    loop.run()
    batched.run()
    assert agree(loop, batched)


def test_answers_of_groups_come_back_in_the_callers_order() -> None:
    answers = [([2, 0], ({"w": torch.tensor([20, 0])},)), ([1], ({"w": torch.tensor([10])},))]
    assert in_client_order(answers, torch.device("cpu"))[0]["w"].tolist() == [0, 10, 20]


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_a_group_that_does_not_fit_is_halved_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, small = tiny("fedavg", participation=1.0), tiny("fedavg", participation=1.0, engine="vmap")
    together, tried = type(small.map).one_group, []  # type: ignore[attr-defined]

    def greedy(self: Any, function: Any, server: Any, clients: Any, work: Any) -> Any:
        answers = together(self, function, server, clients, work)
        tried.append(len(work.ids))
        if len(work.ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return answers

    monkeypatch.setattr(type(small.map), "one_group", greedy)
    monkeypatch.setattr("pfl_lite.engine.batched.IDLE", 0.9)  # so that all four begin together
    loop.run()
    small.run()
    assert agree(loop, small) and tried.count(4) == len(small.map.limits)  # type: ignore[attr-defined]


def test_groups_that_wait_are_cut_as_soon_as_one_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = tiny("fedavg", participation=1.0, engine="vmap", clients_per_batch=2)
    together, tried = type(sim.map).one_group, []  # type: ignore[attr-defined]

    def greedy(self: Any, function: Any, server: Any, clients: Any, work: Any) -> Any:
        tried.append(len(work.ids))
        if len(work.ids) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return together(self, function, server, clients, work)

    monkeypatch.setattr(type(sim.map), "one_group", greedy)
    monkeypatch.setattr("pfl_lite.engine.gpu.SORTED_GROUPS", False)  # so that there are two groups of two
    sim.run()
    assert tried[:5] == [2, 1, 1, 1, 1] and tried.count(2) == len(sim.map.limits)  # type: ignore[attr-defined]


def test_one_client_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    sim = tiny("fedavg", engine="vmap")
    monkeypatch.setattr(type(sim.map), "one_group", never)
    with pytest.raises(InputError, match="one client alone does not fit"):
        sim.run()


def out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_gpu_is_filled_by_what_the_first_clients_took(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"memory_allocated": 100, "memory_reserved": 300, "max_memory_allocated": 100 + 8 * 50}
    for name, value in state.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (5000 - 200, 10_000))
    room = ClientLimit(Driver(torch.device("cuda")))
    assert room.clients == PROBE == 8 and room.attempt(8, lambda: "done") == "done"
    assert room.clients == 40  # 0.4 * 5000 / 50
    room.limit = 3
    room.attempt(8, out_of_memory)
    assert room.clients == 3  # a larger group that was on its way raises nothing
    assert ClientLimit(Driver(torch.device("cuda")), 7).clients == 7
    assert ClientLimit(Driver(torch.device("cpu"))).clients is None


# ---- recorded steps -------------------------------------------------------------------------------------------------


class Again:
    """The stand-in where there are no graphs: does the same work on the same buffers, by Python."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work itself."""
        return work


class Guard(TorchDispatchMode):
    """Refuses what a CUDA graph cannot hold: answers that the host waits for, and numbers that come from it."""

    refused: ClassVar = {"_local_scalar_dense", "item", "nonzero", "masked_select", "_unique2", "lift_fresh"}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masked = name == "index" and any(each is not None and each.dtype == torch.bool for each in args[1])
        assert name not in self.refused and not masked, f"{name} inside a training step"
        return func(*args, **(kwargs or {}))


def recorded_by(sim: Simulation, recorder: Again) -> None:
    """Let a simulation record its steps, as it would on a GPU."""
    sim.map.replay = Replay(recorder)  # type: ignore[attr-defined]


class Watched(Again):
    """Records on a CPU, looks at every step that is done again, and counts recordings."""

    count = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.count += 1

        def again() -> None:
            with Guard():
                work()

        return again


@pytest.mark.parametrize("method", METHODS)
def test_a_step_done_again_on_its_buffers_is_the_loop(method: str) -> None:
    loop, batched, recorder = tiny(method), tiny(method, engine="vmap"), Watched()
    recorded_by(batched, recorder)
    loop.run()
    batched.run()
    assert agree(loop, batched) and recorder.count > 1


def test_a_step_with_dropout_and_augmented_images_can_be_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "dropped", NetworkSpec(Dropped, ""))
    settings = {"model": "dropped", "augment": "crop_flip", "participation": 0.6, "epochs": 1}
    loop, batched = (
        Simulation(make_config("fedavg", **(FAST | settings), engine=engine), five_clients())
        for engine in ("loop", "vmap")
    )
    recorder = Watched()
    recorded_by(batched, recorder)
    loop.run()
    batched.run()
    assert agree(loop, batched) and recorder.count > 1


def test_buffers_are_the_loop_s_own_and_one_a_client() -> None:
    start, slots = torch.zeros(2), torch.arange(3)

    def one(slot: torch.Tensor) -> torch.Tensor:
        def step(carry: Any, number: torch.Tensor) -> Any:
            return ({"w": carry[0]["w"] + number * slot},)

        return Replay(Again()).loop(step, ({"w": start},), 5, slot)[0]["w"]

    assert vmap(one)(slots).tolist() == [[0, 0], [10, 10], [20, 20]] and not start.any()


def test_a_step_that_cannot_be_recorded_is_done_without_and_said_once() -> None:
    class Broken(Again):
        def record(self, work: Callable[[], None]) -> Callable[[], None]:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

    loop, batched = tiny("fedavg"), tiny("fedavg", engine="vmap")
    recorded_by(batched, Broken())
    loop.run()
    with pytest.warns(
        UserWarning, match="runs without: operation not permitted when stream is capturing$"
    ) as said:
        batched.run()
    assert agree(loop, batched) and len(said) == 1


class FakeStream:
    """Writes down which stream waits for which."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said

    def wait_stream(self, other: FakeStream) -> None:
        self.said.append(f"{self.name} waits for {other.name}")


@pytest.mark.parametrize("fails", [False, True])
def test_work_has_a_stream_of_its_own_after_what_came_before_and_before_what_follows(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream("own", said))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream("outside", said))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    driver = Driver(torch.device("cuda"))
    with suppress(ZeroDivisionError), driver.own_stream():
        said.append("work")
        _ = 1 / (not fails)
    assert said == ["own waits for outside", "work", "outside waits for own"]


@pytest.mark.parametrize("graphs", [None, False])
def test_steps_are_recorded_on_a_gpu_unless_a_run_says_no(
    graphs: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Driver, "__init__", lambda self, device: vars(self).update(device=device, gpu=True))
    sim = tiny("fedavg", engine="vmap", **({} if graphs is None else {"graphs": graphs}))
    assert (sim.map.replay is None) == (graphs is False)  # type: ignore[attr-defined]


class FakeGraph:
    """A graph whose recording, once something went wrong, cannot be ended either."""

    ended = 0

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        """Begin."""

    def capture_end(self) -> None:
        FakeGraph.ended += 1
        raise RuntimeError("operation failed due to a previous error during capture")


def test_what_went_wrong_in_a_recording_is_told_and_the_recording_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(FakeGraph, "ended", 0)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def work() -> None:
        raise torch.OutOfMemoryError("too little")

    with pytest.raises(torch.OutOfMemoryError, match="too little"):
        Graphs().record(work)
    assert FakeGraph.ended == 2  # it was tried again, with an empty cache


# ---- settings -------------------------------------------------------------------------------------------------------


def test_tf32_holds_while_clients_are_computed_and_no_longer() -> None:
    libraries = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [library.allow_tf32 for library in libraries]
    for tf32 in (True, False):
        sim = tiny("fedavg", tf32=tf32)
        sim.map.driver.gpu = True
        with sim.map.driver.products(tf32=sim.map.config.tf32):
            assert [library.allow_tf32 for library in libraries] == [tf32, tf32]
        assert [library.allow_tf32 for library in libraries] == before


def test_the_loop_takes_no_settings_of_batches() -> None:
    with pytest.raises(InputError, match="clients_per_batch belongs to the engine vmap"):
        tiny("fedavg", engine="loop", clients_per_batch=3)
    with pytest.raises(InputError, match="clients_per_batch must be 0 or more"):
        make_config("fedavg", clients_per_batch=-1)


def test_a_checkpoint_goes_on_in_other_batches(tmp_path: Path) -> None:
    whole, first, second = (tiny("fedavg", engine="vmap", clients_per_batch=k) for k in (0, 1, 2))
    whole.run()
    first.step()
    first.save(tmp_path / "run.pt")
    assert second.run(checkpoint=tmp_path / "run.pt") and same(whole.server, second.server, 1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_counted_floats_are_where_the_uploads_are(method: str) -> None:
    """On a GPU every answer of a client must be there: `meta` stands for a device that is not the processor."""
    sent = {"w": torch.zeros(3, device="meta"), "places": torch.zeros(2, dtype=torch.int64, device="meta")}
    counted = floats_sent(METHODS[method](), sent, {"w": sent["w"]}, "meta")
    assert counted.device.type == "meta" and counted.shape == (2,)
