"""FedJAX: its FedAvg and its APFL; one process with its jit backend, or its pmap backend with one device of XLA's a core."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

import numpy as np
from work import Clients, Clock, Work

WORK = Work.asked()
if WORK.processes > 1:  # both are read when JAX is imported
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={WORK.processes}"
    os.environ["JAX_PMAP_NO_RANK_REDUCTION"] = "0"  # FedJAX's pmap backend is older than the new ranks

import fedjax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from fedjax.algorithms import apfl, fed_avg  # noqa: E402

Params = dict[str, Any]


def from_torch(start: dict[str, np.ndarray]) -> Params:
    """PyTorch's parameters as XLA likes them on a CPU: channels last, and the first dense layer reading them so."""
    params: Params = {}
    for name, array in start.items():
        if name == "fc1.weight":
            array = array.reshape(120, 16, 5, 5).transpose(0, 2, 3, 1).reshape(120, 400)
        if name.endswith("weight"):
            array = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
        params[name] = jnp.asarray(array)
    return params


def lenet(params: Params, batch: dict[str, jax.Array]) -> jax.Array:
    """Logits [b, 10] of images [b, 32, 32, 3]: two 5 x 5 convolutions, then 400 -> 120 -> 84 -> 10."""
    x = batch["x"]
    for layer in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(
            x, params[f"{layer}.weight"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        b, h, w, c = x.shape
        x = x.reshape(b, h // 2, 2, w // 2, 2, c).max((2, 4)) + params[f"{layer}.bias"]
        x = jax.nn.relu(x)
    x = x.reshape(len(x), -1)
    for layer in ("fc1", "fc2"):
        x = jax.nn.relu(x @ params[f"{layer}.weight"] + params[f"{layer}.bias"])
    return x @ params["fc3.weight"] + params["fc3.bias"]


def datasets(images: np.ndarray, labels: np.ndarray, rows: list[np.ndarray]) -> list[fedjax.ClientDataset]:
    """One data set a client."""
    images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    return [fedjax.ClientDataset({"x": images[own], "y": labels[own].astype(np.int32)}) for own in rows]


def train(work: Work, data: Clients, clock: Clock) -> float:
    """Play all rounds; the mean accuracy of the clients after the last one."""
    model = fedjax.Model(
        init=lambda rng: from_torch(data.start),
        apply_for_train=lambda params, batch, rng: lenet(params, batch),
        apply_for_eval=lenet,
        train_loss=lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits),
        eval_metrics={"accuracy": fedjax.metrics.Accuracy()},
    )
    own = datasets(data.images, data.labels, data.train)
    test = list(enumerate(datasets(data.test_images, data.test_labels, data.test)))
    scored = fedjax.PaddedBatchHParams(batch_size=256)
    common = (
        fedjax.model_grad(model), fedjax.optimizers.sgd(work.lr), fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch_size, num_epochs=work.epochs),
    )  # fmt: skip
    if personal := work.method == "apfl":
        algorithm = apfl.adaptive_personalized_federated_learning(*common, client_coefficient=0.5)
        evaluator = apfl.eval_adaptive_personalized_federated_learning(model, scored)
    else:
        algorithm = fed_avg.federated_averaging(*common)
        evaluator = fedjax.ModelEvaluator(model)
    state = algorithm.init(from_torch(data.start))
    for number in range(work.rounds):
        keys = jax.random.split(jax.random.PRNGKey(number), len(own))
        state, _ = algorithm.apply(state, [(i, own[i], keys[i]) for i in range(len(own))])
        if personal:
            each = [answer["accuracy"].result() for _, answer in evaluator(state, test)]
        else:
            batches = [(i, images.padded_batch(scored)) for i, images in test]
            each = [
                answer["accuracy"] for _, answer in evaluator.evaluate_global_params(state.params, batches)
            ]
        accuracy = float(np.mean([float(one) for one in each]))
        clock.round()
    return accuracy


def main() -> None:
    clock = Clock(WORK)
    with fedjax.for_each_client_backend("pmap" if WORK.processes > 1 else "jit"):
        accuracy = train(WORK, WORK.load(), clock)
    clock.report(accuracy, f"fedjax {version('fedjax')}, jax {jax.__version__}")


if __name__ == "__main__":
    main()
