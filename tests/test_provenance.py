"""The version of a file is that of its code: words about it do not change it, and every line that computes does."""

from __future__ import annotations

import ast

import pytest

from pfl_lite.engine.provenance import PACKAGE, code_of, essence
from pfl_lite.engine.rounds import run
from pfl_lite.methods import METHODS, FedAvg

CODE = '''
def f(x: float, y: int = 2) -> float:
    """What it does."""
    # why it does
    return x + y
'''


def same(a: str, b: str) -> bool:
    return essence(ast.parse(a)) == essence(ast.parse(b))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("What it does", "What else"),
        ("    # why it does\n", ""),
        ("x + y", "(x\n     + y)"),
        ("\n    # why", "\n\n\n    # why"),
    ],
)
def test_words_and_layout_do_not_count(old: str, new: str) -> None:
    assert old in CODE and same(CODE, CODE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"), [("x + y", "x - y"), ("= 2", "= 3"), ("x + y", "y + x"), ("return ", "")]
)
def test_code_counts(old: str, new: str) -> None:
    assert old in CODE and not same(CODE, CODE.replace(old, new))
    assert not same('x = "a"', 'x = "b"'), "a string that is used is no docstring"


def test_a_run_names_the_files_that_define_it_and_no_other_method() -> None:
    files = {name: set(code_of(METHODS[name], "lenet")) for name in ("fedavg", "pfedmb", "pfl_mfe")}
    assert all((PACKAGE / file).is_file() for some in files.values() for file in some)
    shared = {
        "engine/rounds.py",
        "engine/local_sgd.py",
        "data/partition.py",
        "data/recipes.py",
        "models/lenet.py",
        "methods/base.py",
    }
    assert all(shared <= some for some in files.values())
    assert {"methods/pfedmb.py", "models/multi_branch.py"} <= files["pfedmb"] - files["fedavg"]
    assert "methods/fedavg.py" not in files["pfedmb"]
    assert {"methods/pfl_moe.py", "methods/pfl_mfe.py"} <= files["pfl_mfe"]
    assert "models/large.py" in code_of(FedAvg, "mlp256x8") and "models/large.py" not in files["fedavg"]


def test_every_report_says_which_code_made_it() -> None:
    class Mine(FedAvg):
        """A method that is not the package's."""

    simulation = run("fedavg", data="digits", model="linear", clients=3, rounds=1)
    assert simulation.report()["code"] == code_of(FedAvg, "linear") == code_of(Mine, "linear")
