"""Every claim on ledgers in which the right verdict is known by hand: held, failed and undecided."""

import itertools
import re

import numpy as np
import pytest

from pfl_lite.errors import InputError
from pfl_lite.papers import EXPERIMENTS, GROUPS, get_experiment, members
from pfl_lite.papers.pfedmb import branches_used, by_chance
from pfl_lite.papers.statement import CLAIMS, estimate
from pfl_lite.papers.statistics import resampled, widening
from pfl_lite.results.ledger import Ledger
from pfl_lite.results.verdicts import claims, paired_runs, remarks
from pfl_lite.show.text import render_verdicts

NAME = "pfedmb-table1"
CHAIN = ("pfedmb", "pfedmb-plain", "fedavg", "local")
LEVEL = {"pfedmb": 0.89, "pfedmb-plain": 0.88, "fedavg": 0.87, "local": 0.86}
GAIN = {"pfedmb": 0.01, "pfedmb-plain": 0.02, "fedavg": 0.04, "local": 0.0}
SLOW = {"pfedmb": 1, "pfedmb-plain": 3, "fedavg": 5, "local": 6}  # round in which the curve arrives
SEPARATE = [0, 1, 2, 3, 4]
SHARED = [0, 1, 2, 0, 1]
MODEL = 62_006


def one_hot(branches, sure):
    """Alpha [10 clients, 5 branches]: pair p has `sure` on branches[p], the rest evenly on the others."""
    alpha = np.full((10, 5), (1 - sure) / 4)
    alpha[np.arange(10), np.repeat(branches, 2)] = sure
    return alpha


def make_run(
    arm, seed=0, level=None, gain=None, slow=None, branches=None, sure=0.9, final_alpha=None, times=5
):
    """A run of ten clients and six rounds; the level wavers over the clients, equally in every arm."""
    level, gain = LEVEL[arm] if level is None else level, GAIN[arm] if gain is None else gain
    accuracy = np.broadcast_to(level, 10) + 0.02 * np.sin(np.arange(10) + seed)
    lists = {"test_loss": [1.0] * 10, "train_size": [40] * 10, "test_size": [10] * 10}
    multi, rounds = arm.startswith("pfedmb"), []
    for t in range(7):
        reached = 1.0 if t >= (SLOW[arm] if slow is None else slow) else 0.9
        after = float(accuracy.mean()) * reached
        down = MODEL * 10 * (times if multi else 1) * (t > 0)
        rounds.append(
            {
                "round": t,
                "clients": list(range(10)) if t else [],
                "personal_accuracy": after - gain,
                "tuned_accuracy": after,
                "floats_down": down,
                "floats_up": down + 50 * multi * (t > 0),
            }
        )
    run = {
        "kind": "run",
        "experiment": NAME,
        "arm": arm,
        "seed": seed,
        "method": arm.partition("-")[0],
        "config": {"seed": seed, "method": {"name": arm.partition("-")[0]}},
        "complete": True,
        "rounds": rounds,
        "final": {**lists, "test_accuracy": accuracy},
        "final_before_ft": {**lists, "test_accuracy": accuracy - gain},
    }
    if multi:
        branches = (SEPARATE if arm == "pfedmb" else SHARED) if branches is None else branches
        speed = 1.0 if arm == "pfedmb" else 0.5
        alpha = {t: one_hot(branches, 0.2 + (sure - 0.2) * min(1.0, speed * t / 2)) for t in (0, 1, 2, 5)}
        run["watch"] = {
            "alpha": {**alpha, 6: one_hot(branches, sure) if final_alpha is None else final_alpha}
        }
    return run


@pytest.fixture
def verdict(tmp_path):
    """Fill a ledger (three seeds, the arms' changes by key, by seed if a function) and test one claim."""

    def test(id, seeds=(0, 1, 2), leave_out=(), **changes):
        ledger = Ledger(tmp_path)
        for arm in CHAIN:
            for seed in seeds:
                change = changes.get(arm.replace("-", "_"), {})
                if (arm, seed) not in leave_out:
                    ledger.write(make_run(arm, seed, **(change(seed) if callable(change) else change)))
        (result,) = [result for result in claims(NAME, ledger) if result.id == id]
        return result

    return test


def test_every_claim_needs_arms_that_exist():
    for claim in CLAIMS.values():
        assert claim.experiment in EXPERIMENTS or claim.experiment in GROUPS
        assert set(claim.needs) <= set(members(claim.experiment)) or claim.experiment in claim.needs
        for name, arms in claim.needs.items():
            assert set(arms) <= {arm.key for arm in EXPERIMENTS[name].arms}


def test_the_good_ledger_holds_everything(verdict, tmp_path):
    verdict("B1")
    results = claims(NAME, Ledger(tmp_path))
    assert {result.id: result.verdict for result in results} == dict.fromkeys(
        ("B1", "B2", "B3", "B4", "B5", "B13", "B14", "B15"), "held"
    )
    text = render_verdicts(results)
    assert all(one.value is not None for one in results)
    assert {result.says for result in results} == {"held at 6 rounds"} and {
        result.kind for result in results
    } == {"held"}
    words = " ".join(text.split())  # long statistics are wrapped
    assert all(
        re.search(rf"^{one.id} +held at 6 rounds", text, re.M) and one.statistic in words for one in results
    )
    assert max(map(len, text.splitlines())) <= 100


def test_an_empty_ledger_decides_nothing(tmp_path):
    results = claims(ledger=Ledger(tmp_path))
    assert {result.verdict for result in results} == {"undecided"}
    assert results[0].note == (
        "no complete run of pFedMB (eq. 5), pFedMB without alpha-weighting (eq. 6), FedAvg, Local"
    )
    assert results[0].value is None and "no statistic" in render_verdicts(results)
    by_id = {one.id: one.note for one in results}
    assert by_id["B7"] == "no complete run of any of its 9 rows"  # rather than nine names


def test_paired_differences_by_hand():
    assert estimate(np.full((3, 10), 0.5)).interval == (0.5, 0.5)
    difference = np.tile([-1.0, 1.0], (1, 50))  # one seed, 100 clients: s.e. of the mean is 1/10
    found = estimate(difference)
    assert found.value == 0 and found.se == pytest.approx(0.1 * widening(100), rel=0.01)
    redrawn = resampled(difference)
    assert redrawn.std() == pytest.approx(found.se, rel=0.03)
    assert np.array_equal(redrawn, resampled(difference))  # the draws are fixed
    seeds = np.repeat([[-1.0], [1.0]], 10, axis=1)  # the spread is between seeds: no client averages it out
    assert estimate(seeds).se == pytest.approx(1) and resampled(seeds).std() == pytest.approx(
        0.5**0.5, rel=0.03
    )


def test_b1_reports_the_weakest_link(verdict):
    result = verdict("B1", pfedmb={"level": 0.885})
    assert result.verdict == "held" and result.value == pytest.approx(0.5) and result.threshold == 0
    assert result.statistic == "the paired difference whose interval reaches lowest, points"
    assert "pfedmb - pfedmb-plain +0.50" in result.note and "fedavg - local +1.00" in result.note


def test_b1_fails_if_one_link_is_reversed(verdict):
    result = verdict("B1", local={"level": 0.875})
    assert result.verdict == "failed" and result.value == pytest.approx(-0.5)


def test_b1_is_undecided_if_the_clients_disagree(verdict):
    result = verdict("B1", local={"level": 0.87 + 0.01 * np.tile([1, -1], 5)})
    assert result.verdict == "undecided" and result.interval[0] < 0 < result.interval[1]


def test_missing_runs_and_few_seeds_are_named(verdict):
    one = verdict("B1", seeds=(0,))
    assert (
        one.says == "held at 6 rounds (1 seed)"
        and one.kind == "held (1 seed)"
        and one.says in render_verdicts([one])
    )
    assert one.verdict == "held" and one.note.endswith(
        f"1 of 5 seeds; 6 of {EXPERIMENTS[NAME].rounds} rounds"
    )


def test_only_seeds_that_every_arm_has_are_used(verdict):
    result = verdict("B1", leave_out=[("fedavg", 2)])
    assert result.seeds == 2 and result.verdict == "undecided" and "two seeds never decide" in result.note
    assert "2 of 5 seeds" in result.note and "seeds not used because an arm lacks them: 2" in result.note


def test_the_first_three_of_four_seeds_decide_and_are_paired_by_their_number():
    found = {
        "local": [make_run("local", seed) for seed in (3, 1, 0, 2)],
        "fedavg": [make_run("fedavg", seed) for seed in (7, 0, 1, 2, 3)],
    }
    runs, said = paired_runs(get_experiment(NAME), ["local", "fedavg"], found)
    assert {arm: [run["seed"] for run in some] for arm, some in runs.items()} == {
        key: [0, 1, 2] for key in found
    }
    assert "seeds not used because an arm lacks them: 7" in said
    assert any("of four seeds the first three decide" in one for one in said)


def test_a_run_that_diverged_is_named():
    def said():
        return [one for one in remarks(get_experiment(NAME), {"local": [run]}) if "diverged" in one]

    run = make_run("local")
    assert not said()
    run["rounds"][-1]["diverged"] = True
    assert said() == ["with a run that diverged, of Local"]


def test_two_seeds_decide_what_is_counted_by_seed(verdict):
    result = verdict("B3", seeds=(0, 1))  # no test of a difference
    assert result.verdict == "held" and result.seeds == 2


def test_a_missing_arm_leaves_it_undecided(verdict):
    result = verdict("B1", seeds=(0,), leave_out=[("local", 0)])
    assert result.verdict == "undecided" and result.note == "no complete run of Local"


def test_arms_without_a_common_seed_leave_it_undecided(verdict):
    result = verdict("B14", seeds=(0, 1), leave_out=[("fedavg", 0), ("pfedmb", 1)])
    assert result.verdict == "undecided" and "no seed that all of" in result.note


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        (lambda seed: {"slow": 1}, "held"),
        (lambda seed: {"slow": 6}, "failed"),  # behind both, in rounds and in work
        (lambda seed: {"slow": 2}, "undecided"),  # a lead of one round in every seed may be rounding
        (lambda seed: {"slow": 1 if seed else 5}, "undecided"),
    ],
)
def test_b2(verdict, slow, expected):
    result = verdict("B2", pfedmb=slow)
    assert result.verdict == expected
    assert result.statistic.endswith("after fine-tuning") and "before fine-tuning pfedmb" in result.note


def test_b2_counts_two_passes_a_round_of_pfedmb(verdict):
    result = verdict("B2", pfedmb={"slow": 2}, pfedmb_plain={"slow": 6}, fedavg={"slow": 3})
    assert "local work" in result.statistic and result.value == -1
    assert result.verdict == "undecided" and result.se == pytest.approx(
        2 / np.sqrt(18)
    )  # of rounding, in units of work
    leads = {"rounds for good": 1, "rounds for the first time": 1, "local work": -1}
    assert all(f"{way}, over fedavg {lead:+.1f}" in result.note for way, lead in leads.items())
    assert "rounds for good, over pfedmb-plain +4.0" in result.note


def test_b2_also_says_when_a_curve_that_falls_again_was_first_there(tmp_path):
    ledger = Ledger(tmp_path)
    for arm in CHAIN[:3]:
        run = make_run(arm)
        if arm == "fedavg":
            run["rounds"][1]["tuned_accuracy"] = 1.0  # and below 99% again until round `SLOW`
        ledger.write(run)
    (result,) = [result for result in claims(NAME, ledger) if result.id == "B2"]
    assert f"fedavg {SLOW['fedavg']}.0" in result.note  # for good
    leads = {"for good": SLOW["fedavg"] - SLOW["pfedmb"], "for the first time": 1 - SLOW["pfedmb"]}
    assert all(f"rounds {way}, over fedavg {lead:+.1f}" in result.note for way, lead in leads.items())
    assert result.verdict == "undecided"  # one seed


def test_b2_leaves_out_a_last_look_at_a_rate_of_its_own(tmp_path):
    said = []
    for factor in (None, 0.1):
        ledger = Ledger(tmp_path / str(factor))
        for arm in CHAIN[:3]:
            run = make_run(arm)
            if factor and arm == "pfedmb":
                run["rounds"][-1] |= {
                    "factor": factor,
                    "tuned_accuracy": 1.0,
                }  # of which no round before has 99%
            ledger.write(run)
        (result,) = [result for result in claims(NAME, ledger) if result.id == "B2"]
        said.append(result.note.split("leads: ")[1])
    assert said[0] == said[1]


def test_b2_takes_the_curve_before_tuning_if_the_other_was_not_kept(tmp_path):
    ledger = Ledger(tmp_path)
    for arm in CHAIN[:3]:
        run = make_run(arm)
        for r in run["rounds"]:
            r["tuned_accuracy"] = None
        ledger.write(run)
    (result,) = [result for result in claims(NAME, ledger) if result.id == "B2"]
    assert (
        result.verdict == "undecided"
        and result.statistic.endswith("before fine-tuning")
        and result.se is None
    )


def twins(distance):
    """Alpha whose first pair is `distance` apart in L1, the branches all different."""
    alpha = one_hot(SEPARATE, 0.9)
    alpha[0] += np.array([-distance / 2, distance / 2, 0, 0, 0])
    return alpha


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (lambda seed: twins(0.19), "held"),
        (lambda seed: twins(0.21), "failed"),
        (lambda seed: twins(0.21 if seed else 0.19), "undecided"),
    ],
)
def test_b3_distance(verdict, alpha, expected):
    result = verdict("B3", pfedmb=lambda seed: {"final_alpha": alpha(seed)})
    assert result.verdict == expected and result.threshold == 0.2
    assert result.value == pytest.approx(0.19 if expected == "held" else 0.21)


@pytest.mark.parametrize("alpha", [np.full((10, 5), 0.2), np.tile(np.eye(5)[0], (10, 1))])
def test_b3_needs_pairs_that_differ(verdict, alpha):
    """Alphas that never moved, or all on one branch, agree without having found anything."""
    result = verdict("B3", pfedmb={"final_alpha": alpha})
    assert result.verdict == "failed" and "different pairs 0.00 apart" in result.note


def test_b3_needs_the_same_branch_too(verdict):
    alpha = np.full((10, 5), 0.2)
    alpha[::2, 0] += 0.01  # close, but the strongest branch differs inside every pair
    alpha[1::2, 1] += 0.01
    result = verdict("B3", pfedmb={"final_alpha": alpha})
    assert result.verdict == "failed" and "closer than 0.2 in 15, same branch in 0 of 15 pairs" in result.note


@pytest.mark.parametrize(
    ("branches", "expected", "mean"),
    [
        (lambda seed: [4, 2, 0, 1, 3], "held", 5),
        (lambda seed: [4, 2, 0, 1, 3 if seed else 4], "held", 14 / 3),
        (lambda seed: [4, 2, 0, 1, 4], "undecided", 4),
        (lambda seed: [4, 4, 4, 1, 4], "failed", 2),
    ],
)
def test_b4(verdict, branches, expected, mean):
    result = verdict("B4", pfedmb=lambda seed: {"branches": branches(seed)})
    assert (result.verdict, result.value) == (expected, pytest.approx(mean))
    assert result.threshold == pytest.approx(5 * (1 - 0.8**5))  # what five random choices come to


def test_chance_is_counted_exactly():
    every = [len(set(choice)) for choice in itertools.product(range(3), repeat=4)]
    two = [a + b for a in every for b in every]
    more, fewer = by_chance([2, 3], 4, 3)
    assert more == pytest.approx(np.mean([n >= 5 for n in two])) and fewer == pytest.approx(
        np.mean([n <= 5 for n in two])
    )


@pytest.mark.parametrize(
    ("plain", "expected", "slower"),
    [
        (lambda seed: {}, "held", True),
        (lambda seed: {"branches": SEPARATE}, "failed", True),  # slower, but no branch is shared
        (lambda seed: {"sure": 0.99}, "failed", False),  # shared, but the pairs move apart faster
        (lambda seed: {"sure": (0.99, 0.8, 0.7)[seed]}, "undecided", False),  # p = 0.03: one of two parts
        (lambda seed: {"branches": SHARED if seed else SEPARATE}, "undecided", True),
    ],
)
def test_b5(verdict, plain, expected, slower):
    result = verdict("B5", pfedmb_plain=plain, **({} if slower else {"pfedmb": {"sure": 0.3}}))
    assert result.verdict == expected and (result.value > 0) == slower


def test_a_pairs_branch_is_that_of_its_mean_alpha():
    pairs = np.array(
        [[[0.6, 0.4], [0.1, 0.9]], [[0.3, 0.7], [0.3, 0.7]]]
    )  # pair 0 is split, its mean favours 1
    assert branches_used(pairs) == 1


def test_b13(verdict):
    result = verdict("B13")
    assert (result.verdict, result.value, result.threshold) == ("held", 5, 5)


def test_b13_fails_if_one_branch_is_not_sent(verdict):
    result = verdict("B13", pfedmb={"times": 4})
    assert (result.verdict, result.value, result.threshold) == ("failed", 4, 5)


@pytest.mark.parametrize(
    ("gain", "expected"), [(0.01, "held"), (0.06, "failed"), (0.04 + 0.01 * np.tile([1, -1], 5), "undecided")]
)
def test_b14(tmp_path, gain, expected):
    ledger = Ledger(tmp_path)
    for seed in range(3):
        run = make_run("pfedmb", seed)
        run["final_before_ft"]["test_accuracy"] = run["final"]["test_accuracy"] - gain
        ledger.write(run)
        ledger.write(make_run("fedavg", seed))
    (result,) = [result for result in claims(NAME, ledger) if result.id == "B14"]
    assert result.verdict == expected and result.value == pytest.approx(
        100 * (0.04 - np.mean(gain)), abs=1e-9
    )


def test_runs_without_fine_tuning_leave_b14_undecided(tmp_path):
    ledger = Ledger(tmp_path)
    for arm in CHAIN:
        run = make_run(arm)
        del run["final_before_ft"]
        ledger.write(run)
    results = {result.id: result for result in claims(NAME, ledger)}
    assert results["B14"].verdict == "undecided" and "made without fine-tuning" in results["B14"].note
    assert "scored without fine-tuning" in results["B1"].note


def test_alpha_kept_for_each_layer_is_not_mistaken_for_a_shared_one(tmp_path):
    ledger = Ledger(tmp_path)
    run = make_run("pfedmb")
    run["watch"]["alpha"] = {t: np.stack([a, a], axis=1) for t, a in run["watch"]["alpha"].items()}
    ledger.write(run)
    one = make_run("pfedmb", 1)
    results = {result.id: result for result in claims(NAME, ledger)}
    assert results["B3"].verdict == "undecided" and "all layers share" in results["B3"].note
    one["watch"]["alpha"] = {t: a[:, None] for t, a in one["watch"]["alpha"].items()}  # one group of layers
    other = Ledger(tmp_path / "other")
    other.write(one)
    assert {result.id: result.verdict for result in claims(NAME, other)}["B3"] == "held"


def test_unequal_lengths_are_named(tmp_path):
    ledger = Ledger(tmp_path)
    for arm in CHAIN:
        run = make_run(arm)
        run["rounds"] = run["rounds"][:6] if arm == "local" else run["rounds"]
        ledger.write(run)
    results = {result.id: result for result in claims(NAME, ledger)}
    assert "different lengths: 5, 6 rounds" in results["B1"].note and "lengths" not in results["B2"].note


def test_different_numbers_of_clients_are_not_paired(tmp_path):
    ledger = Ledger(tmp_path)
    for arm in CHAIN:
        run = make_run(arm)
        if arm == "local":
            for part in {"final", "final_before_ft"} & run.keys():
                run[part] = {key: list(values)[:8] for key, values in run[part].items()}
        ledger.write(run)
    results = {result.id: result for result in claims(NAME, ledger)}
    assert results["B1"].verdict == "undecided" and "different numbers of clients" in results["B1"].note


def test_unknown_experiment(tmp_path):
    with pytest.raises(InputError, match=r"unknown experiment 'pfedmb-tabel1': did you mean pfedmb-table1"):
        claims("pfedmb-tabel1", Ledger(tmp_path))


def test_seeds_that_were_trained_in_different_ways_are_said_to_be() -> None:
    def said(**of_second):
        runs = [make_run("fedavg", seed) for seed in (0, 1, 2)]
        for run in runs:
            run["config"] |= {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
        method = runs[1]["config"]["method"] | of_second.pop("method", {})
        runs[1]["config"] |= of_second | {"method": method}
        return [one for one in remarks(get_experiment(NAME), {"fedavg": runs}) if "differ in" in one]

    # the second is the default, which older runs did not write down
    assert not said() and not said(method={"weights": "size"})
    for name, changed in (
        ("lr", {"lr": 0.05}),
        ("lr, momentum", {"lr": 0.05, "momentum": 0.9}),
        ("weight_decay", {"weight_decay": 1e-3}),
        ("weights", {"method": {"weights": "uniform"}}),
    ):
        assert said(**changed) == [f"the seeds of FedAvg differ in {name}"]
