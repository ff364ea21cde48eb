"""Flower's simulation: its FedAvg, and FedPer as its documentation of stateful clients builds it (the head stays in the context).

One Ray worker a core, one thread each. Flower leaves the training loop to its users: it is the plain one.
"""

from __future__ import annotations

from functools import partial

import flwr
import ray
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from lenet import LeNet
from work import Clock, Work

HEAD = ("fc3.weight", "fc3.bias")


def shared(net: LeNet, work: Work) -> ArrayRecord:
    """The parameters that travel."""
    kept = HEAD if work.method == "fedper" else ()
    return ArrayRecord({name: tensor for name, tensor in net.state_dict().items() if name not in kept})


def received(message: Message, context: Context, work: Work) -> LeNet:
    """What came from the server, and the client's own head if it has one."""
    net = LeNet(work.load().start)
    own = context.state["head"].to_torch_state_dict() if "head" in context.state else {}
    net.load_state_dict(message.content["arrays"].to_torch_state_dict() | own, strict=False)
    return net


def train(message: Message, context: Context, work: Work) -> Message:
    """E epochs of SGD on the client's images."""
    torch.set_num_threads(work.threads)
    data, net = work.load(), received(message, context, work)
    rows = torch.from_numpy(data.train[int(context.node_config["partition-id"])])
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    optimiser = torch.optim.SGD(net.parameters(), lr=work.lr)
    for _ in range(work.epochs):
        for batch in rows[torch.randperm(len(rows))].split(work.batch_size):
            optimiser.zero_grad()
            F.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimiser.step()
    if work.method == "fedper":
        context.state["head"] = ArrayRecord({name: net.state_dict()[name] for name in HEAD})
    content = {"arrays": shared(net, work), "metrics": MetricRecord({"num-examples": len(rows)})}
    return Message(content=RecordDict(content), reply_to=message)


@torch.no_grad()
def evaluate(message: Message, context: Context, work: Work) -> Message:
    """Accuracy on the client's test images."""
    torch.set_num_threads(work.threads)
    data, net = work.load(), received(message, context, work)
    rows = data.test[int(context.node_config["partition-id"])]
    right = net(torch.from_numpy(data.test_images[rows])).argmax(1) == torch.from_numpy(
        data.test_labels[rows]
    )
    metrics = MetricRecord({"accuracy": right.float().mean().item(), "num-examples": len(rows)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


def main() -> None:
    work = Work.asked()
    clock, accuracies = Clock(work), list[float]()
    client, server = ClientApp(), ServerApp()
    client.train()(partial(train, work=work))
    client.evaluate()(partial(evaluate, work=work))

    def scored(answers: list[RecordDict], _: str) -> MetricRecord:
        clock.round()
        each = [answer["metrics"]["accuracy"] for answer in answers]
        accuracies.append(sum(each) / len(each))
        return MetricRecord({"accuracy": accuracies[-1]})

    @server.main()
    def play(grid: Grid, context: Context) -> None:
        count = len(work.load().train)
        strategy = FedAvg(
            min_train_nodes=count, min_evaluate_nodes=count, min_available_nodes=count,
            evaluate_metrics_aggr_fn=scored,
        )  # fmt: skip
        strategy.start(grid, shared(LeNet(work.load().start), work), num_rounds=work.rounds)

    run_simulation(
        server, client, len(work.load().train),
        backend_config={
            "init_args": {"num_cpus": work.processes, "num_gpus": 0},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )  # fmt: skip
    clock.report(accuracies[-1], f"flwr {flwr.__version__}, ray {ray.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
