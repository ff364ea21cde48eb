"""pfl-research: its FedAvg, and its Reptile (FedAvg whose clients are scored before and after their local training).

Several processes are started by torchrun, as its documentation says.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lenet import LeNet
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams, PersonalizedNNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.reptile import Reptile
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.version import __version__
from torch import Tensor
from work import Clients, Clock, Work


class Net(LeNet):
    """LeNet with the two functions that pfl-research asks for."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"accuracy": Weighted((self(x).argmax(1) == y).sum().item(), len(y))}


class User(Dataset):
    """A client's training images; its test images are what it is scored on."""

    def __init__(self, data: Clients, i: int) -> None:
        super().__init__(tensors(data.images, data.labels, data.train[i]), user_id=str(i))
        self.test = Dataset(tensors(data.test_images, data.test_labels, data.test[i]))

    def split(self, *_: Any) -> tuple[Dataset, Dataset]:
        return self, self.test


class Watch(TrainingProcessCallback):
    """Notes when rounds end, and the accuracies that pfl-research computes."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.metrics = clock, dict[str, float]()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.clock.round()
        self.metrics = aggregate_metrics.to_simple_dict()
        return False, Metrics()


def tensors(images: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Some images and their labels."""
    return torch.from_numpy(images[rows]), torch.from_numpy(labels[rows])


def main() -> None:
    work = Work.asked()
    torch.set_num_threads(work.threads)
    data, watch = work.load(), Watch(Clock(work))
    users = {str(i): User(data, i) for i in range(len(data.train))}
    federation = FederatedDataset(
        users.__getitem__,
        get_user_sampler("minimize_reuse", list(users)),
        user_id_to_weight={name: len(user) for name, user in users.items()},
    )
    net = Net(data.start)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    rounds: dict[str, Any] = {
        "central_num_iterations": work.rounds, "evaluation_frequency": work.rounds,
        "train_cohort_size": len(users), "val_cohort_size": None,
    }  # fmt: skip
    if personal := work.method == "pfl_ft":
        # a client's tuned model is scored in the round whose training is the tuning
        rounds |= {"central_num_iterations": work.rounds + 1, "evaluation_frequency": 1}
        params = PersonalizedNNAlgorithmParams(
            **rounds, val_split_fraction=0.5, min_train_size=1, min_val_size=1
        )
        callbacks, scored = [watch], "Train population | val set | accuracy after local training"
    else:
        params = NNAlgorithmParams(**rounds)
        everything = tensors(data.test_images, data.test_labels, np.concatenate(data.test))
        callbacks = [CentralEvaluationCallback(Dataset(everything), NNEvalHyperParams(1000)), watch]
        scored = "Central val | accuracy"
    (Reptile if personal else FederatedAveraging)().run(
        params,
        SimulatedBackend(federation, federation, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch_size
        ),
        NNEvalHyperParams(1000),
        callbacks,
    )
    if int(os.environ.get("RANK", 0)) == 0:
        watch.clock.report(watch.metrics[scored], f"pfl {__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    if (count := Work.asked().processes) > 1 and "RANK" not in os.environ:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        os.execv(sys.executable, [sys.executable, *torchrun, *sys.argv])
    main()
