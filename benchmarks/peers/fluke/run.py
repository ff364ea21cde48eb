"""fluke: its FedAvg (`CentralizedFL`) and its FedPer; one process, as its parallel server asks for two GPUs or more."""

from __future__ import annotations

from typing import Any

import fluke
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.algorithms.fedper import FedPer
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.nets import EncoderHeadNet
from fluke.utils import ClientObserver, FederationObserver
from lenet import LeNet
from torch import Tensor, nn
from torchmetrics import Accuracy
from work import Clients, Clock, Work

LAST = -1  # fluke's name for the evaluation after the last round


class Encoder(nn.Module):
    """LeNet without its last layer."""

    def __init__(self, net: LeNet) -> None:
        super().__init__()
        self.net = net
        self.net.fc3 = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.net.encode(x)


class Watch(FederationObserver, ClientObserver):
    """Notes when rounds end, and the accuracies that fluke computes."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.server, self.clients = clock, 0.0, list[float]()

    def end_round(self, round: int) -> None:
        self.clock.round()

    def server_evaluation(self, round: int, eval_type: str, evals: dict[str, float], **_: Any) -> None:
        self.server = evals["accuracy"]

    def client_evaluation(
        self, round: int, client_id: int, phase: str, evals: dict[str, float], **_: Any
    ) -> None:
        if round == LAST:
            self.clients.append(evals["accuracy"])


def loaders(work: Work, data: Clients) -> DummyDataContainer:
    """fluke's containers of tensors; the server tests on the images of all clients."""

    def loader(images: Tensor, labels: Tensor, batch_size: int, shuffle: bool) -> FastDataLoader:
        return FastDataLoader(images, labels, num_labels=10, batch_size=batch_size, shuffle=shuffle)

    x, y, test_x, test_y = map(
        torch.from_numpy, (data.images, data.labels, data.test_images, data.test_labels)
    )
    train = [loader(x[rows], y[rows], work.batch_size, True) for rows in data.train]
    test = [loader(test_x[rows], test_y[rows], 1000, False) for rows in data.test]
    return DummyDataContainer(train, test, loader(test_x, test_y, 1000, False), num_classes=10)


def main() -> None:
    work = Work.asked()
    torch.set_num_threads(work.threads)
    data, watch = work.load(), Watch(Clock(work))
    personal = work.method == "fedper"
    env = FlukeENV()
    env.set_seed(0)
    env.set_device("cpu")
    env.set_evaluator(ClassificationEval(1, 10, accuracy=Accuracy(task="multiclass", num_classes=10)))
    # FedPer is scored as the next round begins: the server's base under the client's head
    env.set_eval_cfg(pre_fit=personal, post_fit=False, locals=False, server=not personal)
    model: nn.Module = LeNet(data.start)
    if personal:
        head = model.fc3
        model = EncoderHeadNet(Encoder(model), head)
    client = DDict(
        batch_size=work.batch_size, local_epochs=work.epochs, loss=nn.CrossEntropyLoss, model=model,
        optimizer=DDict(name="SGD", lr=work.lr), scheduler=DDict(name="StepLR", step_size=1, gamma=1),
    )  # fmt: skip
    algorithm = (FedPer if personal else CentralizedFL)(
        len(data.train),
        DataSplitter(loaders(work, data)),
        DDict(
            model=model.encoder if personal else model,
            client=client if personal else client.exclude("model"),
            server=DDict(weighted=True),
        ),
    )
    algorithm.set_callbacks([watch])
    algorithm.run(work.rounds, 1.0)
    accuracy = sum(watch.clients) / len(watch.clients) if personal else watch.server
    watch.clock.report(accuracy, f"fluke-fl {fluke.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
