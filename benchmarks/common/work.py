"""What everybody in the comparison is given, and what everybody reports; NumPy only, as it is imported in every environment."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Work:
    """One run: a method on the clients of a file, with plain SGD, all clients in every round."""

    clients: str
    """The file that `compare.py` wrote."""
    out: str
    """Where the answer goes, as JSON."""
    data: str
    """The name of the data in our package: only ours loads them by name."""
    method: str
    processes: int
    threads: int
    """Threads of each process."""
    rounds: int
    epochs: int
    batch_size: int
    lr: float

    @classmethod
    def asked(cls) -> Work:
        """The work that the command line asks for."""
        return cls(**json.loads(sys.argv[1]))

    def load(self) -> Clients:
        """The clients' data, read once a process."""
        return Clients.read(self.clients)


@dataclass(frozen=True)
class Clients:
    """Images once, and for every client the indices of its training and test images.

    `images` and `test_images` are normalised, float32 [n, 3, 32, 32]; `labels` and `test_labels` int64 [n]; `start` are the
    parameters that everybody starts from, under the names of `lenet.LeNet`.
    """

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    train: list[np.ndarray]
    test: list[np.ndarray]
    start: dict[str, np.ndarray]

    @classmethod
    @cache
    def read(cls, path: str) -> Clients:
        """Read the file, and normalise the images."""
        with np.load(path) as stored:
            arrays = {name: stored[name] for name in stored.files}

        def pixels(name: str) -> np.ndarray:
            scaled = (arrays[name].astype(np.float32) / 255 - arrays["mean"]) / arrays["std"]
            return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))

        count = sum(name.startswith("train/") for name in arrays)
        return cls(
            images=pixels("train_images"),
            labels=arrays["train_labels"].astype(np.int64),
            test_images=pixels("test_images"),
            test_labels=arrays["test_labels"].astype(np.int64),
            train=[arrays[f"train/{i}"] for i in range(count)],
            test=[arrays[f"test/{i}"] for i in range(count)],
            start={k.removeprefix("start/"): v for k, v in arrays.items() if k.startswith("start/")},
        )


@dataclass
class Clock:
    """The ends of the rounds: the first round warms up, the others count."""

    work: Work
    ends: list[float] = field(default_factory=list)

    def round(self) -> None:
        """A round is over, its evaluation too."""
        self.ends.append(time.perf_counter())

    @property
    def images_per_second(self) -> float:
        """Training images of the rounds after the first, by the seconds that these took."""
        images = self.work.epochs * sum(map(len, self.work.load().train))
        return images * (len(self.ends) - 1) / (self.ends[-1] - self.ends[0])

    def report(self, accuracy: float, version: str) -> None:
        """Write the answer: `accuracy` is the mean over clients of the test accuracy after the last round."""
        answer = {
            "images_per_second": self.images_per_second,
            "accuracy": float(accuracy),
            "version": version,
        }
        Path(self.work.out).write_text(json.dumps(answer))
