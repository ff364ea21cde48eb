"""PFL-MoE's tables I and II: three pairs of data and network, three kinds of label skew, as data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pfl_lite.experiments.experiment import Arm, Experiment, printed

MOE_TUNING = {
    "ft_epochs": 50,
    "ft_momentum": 0.9,
    "ft_weight_decay": 0.0005,
    "ft_batch_size": 64,
}
MOE_CODE = {"schedule": "sequential", "gate_optimizer": "adam", "gate_decay": 0.0005}
MOE_LOCAL = {
    "participation": 1.0, "epochs": 1, "batch_size": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0005,
}  # fmt: skip
# name: data set, network, and how the printed tables call them
MOE_PAIRS = {
    "fmnist-lenet": ("fashion_mnist", "lenet", "Fashion-MNIST", "LeNet-5"),
    "cifar10-lenet": ("cifar10", "lenet", "CIFAR10", "LeNet-5"),
    "cifar10-vgg16": ("cifar10", "vgg16", "CIFAR10", "VGG-16"),
}
MOE_ALPHAS = ("0.5", "0.9", "2")


def pflmoe(pair: str, alpha: str) -> Experiment:
    """One setting of PFL-MoE's tables I (local test) and II (global test)."""
    data, model, dataset, network = MOE_PAIRS[pair]

    def arm(key: str, method: str, label: str, paper: str | None, **settings: Any) -> Arm:
        papers = {
            measure: None
            if paper is None
            else printed("PFL-MoE", table, paper, f"alpha={alpha}", dataset=dataset, model=network)
            for measure, table in (("local_test", "I"), ("global_test", "II"))
        }
        heir = None if method in ("local", "fedavg") else "fedavg"
        return Arm(key, method, label, papers["local_test"], (), settings, trained_by=heir, papers=papers)

    augmented = data != "fashion_mnist"
    tuning = MOE_TUNING | {"ft_lr": 0.005 if model == "vgg16" else 0.001}
    code = tuning | MOE_CODE
    arms = (
        arm("local", "local", "Local", "Local", **MOE_LOCAL),
        arm("fedavg", "fedavg", "FedAvg", "FedAvg"),
        arm("pfl_fb", "pfl_fb", "PFL-FB on 3/4 of the images", "PFL-FB", part="per", **tuning),
        arm("pfl_fb-all", "pfl_fb", "PFL-FB on all images", None, part="all", **tuning),
        arm("pfl_mf", "pfl_mf", "PFL-MF (pixels), as in the paper", "PFL-MF", **tuning),
        arm("pfl_mfe", "pfl_mfe", "PFL-MFE (features), as in the paper", "PFL-MFE", **tuning),
        arm("pfl_mf-code", "pfl_mf", "PFL-MF (pixels), as in the code", "PFL-MF", **code),
        arm("pfl_mfe-code", "pfl_mfe", "PFL-MFE (features), as in the code", "PFL-MFE", **code),
    )
    said = (
        "CIFAR-10: training images are cropped and mirrored, as in the code; the paper does not say so."
        if augmented
        else "Fashion-MNIST: no augmentation; the code crops and mirrors training images, which the paper does not say.",
        "Personalised is the model of the last round, instead of the one that did best on the test images.",
        "FedAvg weighs clients by their images, as McMahan et al. do; the code does not.",
        "Each client is cut into three quarters for its expert and one quarter for its gate, as in the code; PFL-FB's "
        "printed numbers come from three quarters too, so that the row on all images is our own addition.",
        "The code's README calls PFL-MF what its program calls PFL-MFE, and the other way round: rows are named by what the "
        "gate reads. The paper's gates learn by SGD in turns with the experts, the code's by Adam after them: the same "
        "numbers stand beside both.",
        "CIFAR-10 is normalised by its own mean and standard deviation."
        if augmented
        else "Fashion-MNIST is normalised by the mean and standard deviation of MNIST, as in the code; the paper is silent.",
        "FedAvg's local test is a plain mean over clients, as in every row; the paper prints the number of the global test.",
        "Personalisation: momentum, weight decay and mini-batches of 64 are those of Local, whose SGD the paper names for it; "
        "its rate stays constant, and is not divided by ten every 100 epochs.",
        "The paper is silent about the random draw of the clients (our own seeds) and whether a gate mixes probabilities or "
        "logits (logits, as in the code).",
    )
    return Experiment(
        name=f"pflmoe-{pair}-{alpha}",
        title=f"PFL-MoE, Tables I and II: {dataset.replace('CIFAR', 'CIFAR-')}, {network}, 100 clients, "
        f"Dirichlet alpha = {alpha}",
        data=data,
        model=model,
        partition=f"dirichlet_rounded:{alpha}",
        clients=100,
        rounds=100,
        epochs=5,
        batch_size=10,
        participation=0.1,
        arms=arms,
        paper_table="PFL-MoE, Tables I and II",
        metric="unweighted mean over clients of accuracy on all test images (%): by class in the proportions of the client's "
        "training images (local test), and overall (global test)",
        measures={"local_test": "local test", "global_test": "global test"},
        deviations=(
            "Rounds: 100 instead of 1,000; personalisation: 50 epochs of experts and gates instead of 200; one seed.",
            "Local: 100 epochs of SGD (rate 0.01, momentum 0.9, weight decay 5e-4, mini-batches of 64) instead of 300 of SGD at "
            "0.1, divided by ten every 100 epochs, or of Adam, whichever came out better.",
            *said,
        ),
        ft_every=0,
        ft_epochs=None,
        eval_every=10,
        seeds=(0,),
        common={"lr": 0.01, "momentum": 0.5, "val_fraction": 0.0, "whole_test": True}
        | ({"augment": "crop_flip"} if augmented else {}),
        paper_budget={
            "rounds": 1000,
            "arms": tuple(map(as_long_as_the_paper, arms)),
            "deviations": (
                "The paper's rounds (1,000) and epochs of personalisation (200); it does not say how many seeds: one here.",
                "Local: 300 epochs of SGD at a constant rate of 0.01 (momentum 0.9, weight decay 5e-4, mini-batches of 64) "
                "instead of at 0.1, divided by ten every 100 epochs, or of Adam, whichever came out better.",
                *said,
            ),
        },
    )


def as_long_as_the_paper(arm: Arm) -> Arm:
    """An arm with the paper's 200 epochs of personalisation, Local with its 300 epochs of training."""
    if arm.key == "local":
        return replace(arm, rounds=300)
    return replace(arm, settings=arm.settings | ({"ft_epochs": 200} if "ft_epochs" in arm.settings else {}))


PFLMOE = tuple(pflmoe(pair, alpha) for pair in MOE_PAIRS for alpha in MOE_ALPHAS)
