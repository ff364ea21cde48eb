"""Numbers instead of classes: tables in CSV files, squared error, and the share of variance that is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_lite import run
from pfl_lite.data.csv_clients import TableCard, read_tables
from pfl_lite.data.federation import Federation
from pfl_lite.errors import InputError
from pfl_lite.methods import METHODS

NEEDS_CLASSES = {"fedem", "fedmn"}
SIZES = (40, 25, 60, 31)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Four clients whose y follows x, the last one's with another sign."""
    random, found = np.random.default_rng(5), []
    for i, size in enumerate(SIZES):
        x = random.normal([1.0, -20.0, 300.0], [1.0, 5.0, 80.0], (size, 3))
        z = (x - [1.0, -20.0, 300.0]) / [1.0, 5.0, 80.0]
        y = 50 + 10 * (z @ [1.0, -0.5, 0.3]) * (-1 if i == 3 else 1) + random.normal(0, 1, size)
        path = tmp_path / f"client-{i}.csv"
        lines = [f"{a!r},{float(b)!r},{c!r},{d!r}" for (a, c, d), b in zip(x.tolist(), y, strict=True)]
        path.write_text("\n".join(["a,y,b,c", *lines]) + "\n")
        found.append(path)
    return found


@pytest.fixture
def federation(files: list[Path]) -> Federation:
    return read_tables(files, "y", dtype=torch.float64)


def test_a_client_has_the_rows_of_its_file_scaled_by_all_training_rows(
    files: list[Path], federation: Federation
) -> None:
    card = federation.card
    assert isinstance(card, TableCard) and card.columns == ("a", "b", "c") and card.classes == ("y",)
    raw = [np.loadtxt(path, delimiter=",", skiprows=1) for path in files]
    trained = np.concatenate([federation.train[i].numpy() for i in range(4)])
    whole = np.concatenate(raw)
    for i, rows in enumerate(raw):
        mine = np.concatenate([getattr(federation, split)[i].numpy() for split in ("train", "val", "test")])
        assert sorted(mine - sum(SIZES[:i])) == list(range(len(rows)))
        assert len(federation.test[i]) == len(federation.val[i]) == round(0.2 * len(rows))
        back = federation.labels[mine].numpy() * card.target_std + card.target_mean
        assert np.allclose(back, whole[mine, 1])
        x = federation.images[mine, :, 0, 0].numpy() * card.std + card.mean
        assert np.allclose(x, whole[mine][:, [0, 2, 3]])
    assert card.target_mean == pytest.approx(whole[trained, 1].mean())
    assert card.std == pytest.approx(whole[trained][:, [0, 2, 3]].std(0))
    assert "mean of the target" in federation.summary() and "numbers" in repr(federation)
    with pytest.raises(InputError, match="no classes to count"):
        federation.class_counts()


def settings(**more: Any) -> dict[str, Any]:
    return {"model": "linear", "rounds": 2, "lr": 0.1, "batch_size": 16, "seed": 3} | more


def test_one_step_of_a_linear_model_is_the_gradient_of_the_squared_error(federation: Federation) -> None:
    done = run("local", federation=federation, **settings(rounds=1, batch_size=1000))
    start = {name: t.numpy() for name, t in done.start.items()}
    for i in range(4):
        x = federation.images[federation.train[i], :, 0, 0].numpy()  # [n, d]
        y = federation.labels[federation.train[i]].numpy()
        error = x @ start["fc.weight"][0] + start["fc.bias"] - y  # [n]
        w = start["fc.weight"][0] - 0.1 * 2 * (error @ x) / len(y)
        b = start["fc.bias"] - 0.1 * 2 * error.mean()
        models = done.scored_models()
        assert np.allclose(models["fc.weight"][i, 0].numpy(), w, atol=1e-12)
        assert np.allclose(models["fc.bias"][i].numpy(), b, atol=1e-12)
        x, y = (t[federation.test[i]].numpy() for t in (federation.images[:, :, 0, 0], federation.labels))
        error = (x @ w + b - y) ** 2
        final = done.report()["final"]
        assert final["test_r2"][i] == pytest.approx(1 - error.mean())
        assert final["test_loss"][i] == pytest.approx(error.mean())


def test_local_training_comes_to_least_squares(federation: Federation) -> None:
    done = run("local", federation=federation, **settings(rounds=300, batch_size=1000, eval_every=300))
    for i in range(4):
        x = federation.images[federation.train[i], :, 0, 0].numpy()
        y = federation.labels[federation.train[i]].numpy()
        best = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)[0]
        models = done.scored_models()
        found = [*models["fc.weight"][i, 0].tolist(), *models["fc.bias"][i].tolist()]
        assert found == pytest.approx(best.tolist(), abs=1e-6)
    assert min(done.report()["final"]["test_r2"]) > 0.9


@pytest.mark.parametrize("method", [name for name in METHODS if name not in NEEDS_CLASSES])
def test_both_engines_agree_for_every_method(method: str, federation: Federation) -> None:
    ours = settings(model="mlp" if method not in {"fedamp", "fedavg"} else "linear", participation=0.5)
    loop, vmap = (run(method, federation=federation, engine=engine, **ours) for engine in ("loop", "vmap"))
    for name, tensor in loop.scored_models().items():
        assert torch.allclose(tensor, vmap.scored_models()[name], atol=1e-9), name
    scores = [done.report()["final"]["test_r2"] for done in (loop, vmap)]
    assert scores[0] == pytest.approx(scores[1]) and np.isfinite(scores[0]).all()


@pytest.mark.parametrize("method", sorted(NEEDS_CLASSES))
def test_a_method_of_class_probabilities_refuses_numbers(method: str, federation: Federation) -> None:
    with pytest.raises(InputError, match=f"{method} works with probabilities of classes"):
        run(method, federation=federation, **settings())


def test_what_only_classes_have_is_refused(federation: Federation) -> None:
    with pytest.raises(InputError, match="mix=logits"):
        run("pfl_moe", federation=federation, **settings(mix="probs"))
    with pytest.raises(InputError, match="whole_test counts answers by class"):
        run("fedavg", federation=federation, **settings(whole_test=True))


def test_the_metric_takes_the_place_of_accuracy(federation: Federation) -> None:
    ended = run("fedavg", federation=federation, **settings(rounds=200, patience=2))
    assert ended.history.rounds[-1]["converged"] and ended.round < 200
    done = run("fedavg", federation=federation, **settings(ft_epochs=1, ft_factors="0,1"))
    last = done.history.rounds[-1]
    assert "tuned_r2" in last and not [name for name in last if "accuracy" in name]
    assert last["factor"] == max((0.0, 1.0), key=lambda f: last["factors"][f"{f:g}"])
    assert done.history.curve("personal_r2")[1][-1] == last["personal_r2"]
    lost = run("fedavg", federation=federation, **settings(ft_epochs=2, ft_factors="1e200,1")).history.rounds[
        -1
    ]
    assert np.isnan(lost["factors"]["1e+200"]) and lost["factor"] == 1  # what diverged is not the best
    assert set(done.history.frame()["quantity"]) == {"r2", "loss"}
    constant = done.report()["majority"]
    y, test = federation.labels[federation.train[0]].mean(), federation.labels[federation.test[0]]
    assert constant[0] == pytest.approx(float(1 - (y - test).square().mean()), abs=1e-4)


def test_a_checkpoint_goes_on_where_it_stopped(federation: Federation, tmp_path: Path) -> None:
    from pfl_lite import Simulation, make_config
    from pfl_lite.engine.rounds import described

    config = make_config("ditto", **settings(), **described(federation))
    whole, first = Simulation(config, federation), Simulation(config, federation)
    whole.run()
    first.step()
    first.save(tmp_path / "run.ckpt")
    second = Simulation(config, federation)
    second.run(checkpoint=tmp_path / "run.ckpt")
    assert second.history.rounds == whole.history.rounds and second.history.metric == "r2"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "two or more columns"),
        ("a,y,b,c\n", "rows below it"),
        ("a,y,y,c\n1,2,3,4\n", "names of their own"),
        ("a,y,b,c\n1,2,3\n", "line 2: 4 values are wanted"),
        ("a,y,b,c\n1,2,3,nan\n", "line 2, column 'c': 'nan' is no finite number"),
        ("a,y,b,c\n1,,3,4\n", "line 2, column 'y': '' is no finite number"),
        ("a,y,b,c\n1,2,3,__import__('os')\n", "no finite number"),
        ("a,y,b,d\n1,2,3,4\n", "other columns"),
        ("a,y,b,c\n1,2,3,4\n\0", "4 values are wanted"),
    ],
)
def test_what_is_no_table_is_refused(text: str, sentence: str, files: list[Path]) -> None:
    files[1].write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_tables(files, "y")


def test_tables_are_not_shifted_and_mirrored(federation: Federation) -> None:
    with pytest.raises(InputError, match="augment must be none for tables, not crop_flip"):
        run("fedavg", federation=federation, model="linear", augment="crop_flip")


def test_other_bad_input_is_refused(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no column 'z'"):
        read_tables(files, "z")
    with pytest.raises(InputError, match="at least one file"):
        read_tables([], "y")
    with pytest.raises(InputError, match="a list of at least one file"):
        read_tables(str(files[0]), "y")
    with pytest.raises(InputError, match=r"nothing\.csv does not exist"):
        read_tables([tmp_path / "nothing.csv"], "y")
    with pytest.raises(InputError, match="leave rows to train on"):
        read_tables(files, "y", test_fraction=0.8, val_fraction=0.2)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="no table"):
        read_tables([tmp_path / "bytes.csv"], "y")
    for still in ("1", "0.1"):  # the standard deviation of 0.1, 0.1, ... is rounded to more than 0
        (tmp_path / "still.csv").write_text("a,y\n" + "".join(f"{still},{row}\n" for row in range(9)))
        with pytest.raises(InputError, match="'a' never changes"):
            read_tables([tmp_path / "still.csv"], "y")
