"""pfl-lite's loop engine, and two bare loops in plain PyTorch: `method` bare or bare-channels-last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from engines import Setting, workers_rate
from work import Clock, Work

from pfl_lite.config import make_config
from pfl_lite.engine.processes import over_processes
from pfl_lite.engine.report import versions
from pfl_lite.engine.simulation import Simulation

BARE = {"bare": "bare loop", "bare-channels-last": "bare loop, channels-last"}


def bare(work: Work, kind: str) -> dict[str, Any]:
    """What bare loops reach together, each doing the whole round by itself, without evaluation; nobody's model is kept."""
    count = len(work.load().train)
    setting = Setting(work.data, "lenet", count, work.batch_size, work.epochs)
    rate = workers_rate(work.processes, setting, kind, work.rounds - 1)
    return {"images_per_second": rate, "accuracy": None, "version": f"torch {torch.__version__}"}


def main() -> None:
    work = Work.asked()
    torch.set_num_threads(work.threads)
    if work.method in BARE:
        Path(work.out).write_text(json.dumps(bare(work, BARE[work.method])))
        return
    tuned = {"ft_epochs": work.epochs, "ft_every": 1} if work.method == "pfl_ft" else {}
    config = make_config(
        work.method, data=work.data, model="lenet", partition="classes:2", clients=len(work.load().train),
        rounds=work.rounds, epochs=work.epochs, batch_size=work.batch_size, lr=work.lr, engine="loop", device="cpu",
        **tuned,
    )  # fmt: skip
    sim, clock = Simulation(config, mapping=over_processes(work.processes, config)), Clock(work)
    for _ in range(work.rounds):
        entry = sim.step()
        clock.round()
    own = versions()
    clock.report(
        entry["tuned_accuracy" if tuned else "personal_accuracy"],
        f"pfl-lite {own['pfl_lite']}, torch {own['torch']}",
    )


if __name__ == "__main__":
    main()
