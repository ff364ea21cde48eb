"""Sentences of the papers against the papers' own printed numbers."""

from __future__ import annotations

import pytest

from pfl_lite.errors import InputError
from pfl_lite.papers import SENTENCES
from pfl_lite.papers import statement as sentences
from pfl_lite.papers.experiment import paper_tables
from pfl_lite.papers.statement import printed_table as printed
from pfl_lite.results.verdicts import checked


def test_tables_have_the_papers_shapes() -> None:
    shapes = {paper: printed(paper, "II").shape for paper in SENTENCES}
    assert shapes == {"pFedMB": (6, 9), "FedMN": (4, 8), "PFL-MoE": (9, 5)}  # settings, methods
    assert printed("PFL-MoE", "I").loc["Fashion-MNIST, LeNet-5, alpha=0.9", "PFL-MF"] == 92.02


@pytest.mark.parametrize(("paper", "sentences"), [("pFedMB", 8), ("FedMN", 5), ("PFL-MoE", 20)])
def test_every_sentence_has_a_verdict_and_numbers(paper: str, sentences: int) -> None:
    frame = checked(paper)
    assert len(frame) == sentences
    assert set(frame["supported"]) <= {"yes", "partly", "no"}
    assert frame["its own numbers"].str.contains(r"\d").all()


# What can be read off the printed tables by hand
BY_HAND = {
    "pFedMB is the best in almost all the settings": ("partly", "first in 4 of 6; ranks 2, 1, 1, 1, 3, 1"),
    "Clustered FL cannot outperform FedAvg+ on all datasets": ("partly", "CIFAR100 (41.5 against 39.0)"),
    "the number of encoders in FedMN are set as the same as the number of components in FedEM on each dataset": (
        "partly",
        "2 encoders on CIFAR10, 2 encoders on CIFAR100, 3 encoders on EMNIST",
    ),
    "FedEM outperforms the other baselines": ("yes", "leads by 0.9, 1.8, 0.2, 1.0 points"),
    "in all experiments, the accuracy of Local is lower than FedAvg's in both tests": (
        "yes",
        "18 of 18; -67.90 to -3.34",
    ),
    "the smaller the alpha, the worse the performance of FedAvg": ("yes", "+0.19 to +1.99"),
    "[alpha = 0.5] the local tests of the three are 2% ~ 10% higher than that of FedAvg": (
        "yes",
        "+2.47 to +8.54",
    ),
    "[PFL-MF's] local test accuracy is always higher than FedAvg": ("yes", "9 of 9; +0.47 to +6.57"),
    "[CIFAR-10] PFL-MF is lower than PFL-FB in the local test, except with LeNet-5 and alpha = 2": (
        "yes",
        "-1.97 to +0.74",
    ),
    "the gain of PFL-FB in the local test comes at the cost of a significant drop in the global test": (
        "partly",
        "-14.64 to -0.40 points; no gain, or a drop of less than one point, in Fashion-MNIST, LeNet-5, alpha=2;",
    ),
    "our proposed FedMN outperforms all the baselines": ("yes", "leads by 0.2, 2.0, 0.3, 2.3 points"),
    "PFL-MF performs better than PFL-FB in both local and global test": (
        "partly",
        "ahead in 9 of 9; local test: ahead in 4 of 9",
    ),
    "[FedAvg's global test] is exactly the average local test": ("yes", "the same number in 9 of 9"),
    "in all experiments, overall, PFL-MFE achieves the best average local test accuracy among three personalization algorithms": (
        "yes",
        "PFL-FB 85.94, PFL-MF 85.56, PFL-MFE 86.06; best or equal in 4 of 9",
    ),
    "Even in 15 clients with random 2 classes [...] and 15 clients setting using CIFAR100, pFedMB is comparable to the best "
    "methods FedAMP and pFedMe, respectively": ("yes", "behind FedAMP by 0.04 and pFedMe by 0.84 points"),
    "FedAvg and FedProx also perform well especially in random 2 classes": (
        "yes",
        "at most 1.05 and 0.66 points behind the best, elsewhere up to 2.08 and 3.71; with 15 clients FedAvg 89.69 is below",
    ),
    "pFedMB is the most balanced method that is effective in every setting": (
        "yes",
        "above Local in 6 of 6; its largest distance to the best of a setting is 0.84 points, that of FedAvg",
    ),
    "[CIFAR100, with more classes shared among clients,] results in fewer branches": (
        "yes",
        "3, 3 against 6, 10, 7, 6",
    ),
    "[relatively large alpha] PFL-FB [...] makes the personalized model worse than the global model": (
        "partly",
        "-0.19 to +1.23 points, worse in 2 of 3; else worse in 0 of 6",
    ),
    "as alpha gets smaller, the potential for personalization is growing": ("yes", "-4.54 to -0.29 points"),
}


@pytest.mark.parametrize("text", BY_HAND)
def test_verdicts_are_those_that_a_reader_finds(text: str) -> None:
    frame = checked().set_index("it says")
    supported, numbers = BY_HAND[text]
    assert frame.loc[text, "supported"] == supported
    assert numbers in frame.loc[text, "its own numbers"]


def test_another_number_gives_another_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were pFedMB ahead everywhere, the sentence would be supported."""
    better = [
        row | {"value_percent": "99"} if row["table"] == "II" and row["method"] == "pFedMB" else row
        for row in paper_tables()
    ]
    monkeypatch.setattr(sentences, "paper_tables", lambda: tuple(better))
    frame = checked("pFedMB").set_index("it says")
    assert frame.loc["pFedMB is the best in almost all the settings", "supported"] == "yes"


def test_an_unknown_paper_is_refused() -> None:
    with pytest.raises(InputError, match="FedAvg"):
        checked("FedAvg")
