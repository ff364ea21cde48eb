"""One split through PFLlib's FedAvg and ours, round by round: writes data/bench/pfllib.json, which a laboratory shows.

    git clone https://github.com/TsingZ0/PFLlib && python benchmarks/pfllib.py PFLlib    # its imports want h5py as well

PFLlib's server and clients run as they are. Twice: with each client's data as one mini-batch, where both must do the same
arithmetic, and with mini-batches of ten, where the libraries shuffle differently and PFLlib leaves out a last batch that is not
full.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pfl_lite import Federation, Simulation, __version__, load, make_config
from pfl_lite.data.exchange import read_pfllib, write_pfllib
from pfl_lite.data.images import Card
from pfl_lite.data.partition import partition
from pfl_lite.engine.rounds import described

ROOT = Path(__file__).resolve().parents[1]
DATA, SPLIT, CLIENTS, ROUNDS, EPOCHS, LR, SEEDS = "digits", "dirichlet:0.4", 8, 20, 2, 0.1, 5
IDLE = {
    "device": "cpu", "dataset": "split", "num_classes": 10, "join_ratio": 1.0, "random_join_ratio": False, "few_shot": 0,
    "algorithm": "FedAvg", "time_select": False, "goal": "test", "time_threthold": 10000, "save_folder_name": "items",
    "top_cnt": 100, "auto_break": False, "eval_gap": 1, "client_drop_rate": 0.0, "train_slow_rate": 0.0, "send_slow_rate": 0.0,
    "dlg_eval": False, "dlg_gap": 100, "batch_num_per_client": 2, "num_new_clients": 0, "fine_tuning_epoch_new": 0,
    "learning_rate_decay_gamma": 0.99, "learning_rate_decay": False,
}  # fmt: skip
"""PFLlib's arguments at its own defaults, and nothing slow, dropped or decayed."""


def theirs(
    seed: int, batch_size: int | None, start: dict[str, Tensor]
) -> tuple[list[float], dict[str, Tensor]]:
    """PFLlib's test accuracy after 0, 1, ... rounds, and its model after one round more; None: a client's data is one batch."""
    from flcore.servers.serveravg import FedAvg

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model.load_state_dict({f"1.{name.removeprefix('fc.')}": t for name, t in start.items()})
    random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
    words = {
        "num_clients": CLIENTS,
        "global_rounds": ROUNDS,
        "local_epochs": EPOCHS,
        "local_learning_rate": LR,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        server = FedAvg(SimpleNamespace(**IDLE, **words, batch_size=batch_size or 1, model=model), 0)
        torch.manual_seed(seed)  # its clients set it to 0 when they are made
        for client in server.clients:
            client.batch_size = batch_size or client.train_samples
        server.train()
    found = {
        f"fc.{name.removeprefix('1.')}": t.detach() for name, t in server.global_model.named_parameters()
    }
    return server.rs_test_acc, found


def ours(federation: Federation, seed: int, batch_size: int | None) -> tuple[list[float], Simulation]:
    """The same from `pfl_lite`."""
    words = described(federation) | {"rounds": ROUNDS + 1, "epochs": EPOCHS, "lr": LR, "seed": seed}
    config = make_config("fedavg", model="linear", engine="loop", batch_size=batch_size or 10_000, **words)
    simulation = Simulation(config, federation)
    simulation.run(progress=False)
    return simulation.history.curve("personal_accuracy_weighted")[1][:-1], simulation


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pfllib", type=Path, help="a checkout of PFLlib")
    parser.add_argument("--commit", help="of the checkout (default: git is asked)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str((given.pfllib / "system").resolve()))
    commit = given.commit or subprocess.run(
        ["git", "-C", given.pfllib, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()  # fmt: skip
    images = load(DATA)
    found: dict[str, Any] = {
        "versions": {"pfl_lite": __version__, "torch": torch.__version__, "PFLlib": commit}
    }
    found["run"] = {"data": DATA, "partition": SPLIT, "clients": CLIENTS, "epochs": EPOCHS, "lr": LR}
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "dataset" / "split"
        write_pfllib(written, images, partition(images, SPLIT, CLIENTS, 0))
        card = Card(
            name=DATA, classes=images.card.classes, mean=(0.5,), std=(0.5,)
        )  # pixels in [-1, 1], as in the files
        federation = Federation.build(*read_pfllib(written, card, pickled=True))
        (Path(folder) / "system").mkdir()
        os.chdir(Path(folder) / "system")  # PFLlib looks for ../dataset
        curve, simulation = ours(federation, 0, None)
        their_curve, model = theirs(0, None, simulation.start)
        apart = max((model[name] - w).abs().max().item() for name, w in simulation.server.items())
        largest = max(w.abs().max().item() for w in simulation.server.values())
        found["one_batch"] = {
            "ours": curve,
            "theirs": their_curve,
            "largest_gap": apart,
            "largest_weight": largest,
        }
        found["mini_batches"] = {"ours": [], "theirs": []}
        for seed in range(SEEDS):
            curve, simulation = ours(federation, seed, 10)
            found["mini_batches"]["ours"].append(curve)
            found["mini_batches"]["theirs"].append(theirs(seed, 10, simulation.start)[0])
    path = ROOT / "data" / "bench" / "pfllib.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path.relative_to(ROOT)}; largest gap of a weight with one batch: {apart:.1e}")


if __name__ == "__main__":
    main()
