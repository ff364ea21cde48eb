"""Every kind of test against simulations: where nothing is true it errs as seldom as it says, and a planted effect it sees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from pfl_lite.papers.statement import LOOKED_AT_TWICE
from pfl_lite.papers.statistics import (
    ONE_SIDED,
    Estimate,
    agreement,
    best_rank,
    combined,
    holm,
    kendall,
    ranks,
    resampled,
    settling,
    two_way,
    verdict,
    widening,
)

TIMES = 400
RARELY = 0.05 + 3 * np.sqrt(0.05 * 0.95 / TIMES)  # three standard errors above the level


def differences(
    random: np.random.Generator, effect: float = 0.0, seeds: int = 3, clients: int = 15, of_seed: float = 1.0
) -> np.ndarray:
    """Paired differences [seeds, clients] with spread between seeds, between clients, and of both together."""
    return np.asarray(
        effect
        + of_seed * random.normal(size=(seeds, 1))
        + random.normal(size=(1, clients))
        + random.normal(size=(seeds, clients))
    )


def share(says: Callable[[np.random.Generator], bool]) -> float:
    return float(np.mean([says(np.random.default_rng(i)) for i in range(TIMES)]))


@pytest.mark.parametrize("of_seed", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_an_interval_misses_as_seldom_as_it_says(seeds: int, of_seed: float) -> None:
    def misses(random: np.random.Generator) -> bool:
        low, high = two_way(differences(random, seeds=seeds, of_seed=of_seed)).interval
        return not low < 0 < high

    assert share(misses) <= RARELY


def test_looks_after_three_and_five_seeds_err_as_seldom_as_one() -> None:
    seeds = np.random.default_rng(0).normal(size=(200_000, 5))
    looks = [stats.ttest_1samp(seeds[:, :some], 0, axis=1, alternative="greater").pvalue for some in (3, 5)]
    level = 0.025
    assert np.mean(np.min(looks, 0) < level) > 0.04  # why the level is another
    assert np.mean(np.min(looks, 0) < LOOKED_AT_TWICE) == pytest.approx(level, abs=0.001)


def test_an_interval_sees_an_effect() -> None:
    assert share(lambda random: two_way(differences(random, effect=8.0)).interval[0] > 0) > 0.9


def test_with_one_seed_it_is_the_t_interval_over_clients() -> None:
    values = np.random.default_rng(0).normal(size=(1, 12))
    low, high = stats.t.interval(0.95, 11, values.mean(), stats.sem(values[0]))
    assert two_way(values).interval == pytest.approx((low, high))
    same = two_way(np.repeat(values[:, :1], 12, 1))
    assert same.se == 0 and same.p_above(values[0, 0] - 1) == 0 and same.p_above(values[0, 0]) == 1


def test_a_p_value_is_the_tail_beyond_the_bound() -> None:
    five = Estimate(5, 2, 4)
    assert five.p_above(3) == pytest.approx(stats.t.sf(1, 4)) and five.p_below(8) == pytest.approx(
        stats.t.cdf(-1.5, 4)
    )
    assert five.p_above(3) + five.p_below(3) == pytest.approx(1)
    assert five.p_above() < ONE_SIDED * 2 < 0.9 < five.p_below()


def test_with_one_number_nothing_is_known() -> None:
    one = two_way(np.array([[7.0]]))
    assert one.interval == (-np.inf, np.inf) and one.p_above() == one.p_below() == 1


def test_three_seeds_that_agree_on_no_client_have_the_interval_of_three_numbers() -> None:
    seeds = np.array([1.0, 2.0, 4.0])
    low, high = stats.t.interval(0.95, 2, seeds.mean(), stats.sem(seeds))
    assert two_way(np.repeat(seeds[:, None], 4, 1)).interval == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("values", "variance"),
    [
        ([[0, 2], [4, 8]], 25 + 9 - 1),  # mean squares of seeds, of clients and of the rest
        ([[0, 2], [6, 4]], 16),  # seeds alone tell more than 16 + 0 - 4
    ],
)
def test_seeds_and_clients_by_hand(values: list[list[float]], variance: float) -> None:
    found = two_way(np.array(values))
    assert found.se == pytest.approx(np.sqrt(variance / 4)) and found.df == 1


def test_one_seed_is_widened_by_what_seeds_do_to_all_clients_alike() -> None:
    assert [widening(clients) for clients in (15, 50, 100)] == pytest.approx([1.33, 1.9, 2.5], abs=0.05)
    values = np.random.default_rng(0).normal(size=(1, 50))
    means = resampled(values)
    assert means.mean() == pytest.approx(values.mean(), abs=0.02)
    assert means.std() == pytest.approx(widening(50) * values.std() / np.sqrt(50), rel=0.03)


def test_seeds_are_drawn_with_the_same_clients() -> None:
    client = np.random.default_rng(0).normal(size=40)  # in both seeds alike: a second seed tells nothing new
    assert resampled(np.stack([client, client])).std() == pytest.approx(client.std() / np.sqrt(40), rel=0.03)


def test_independent_estimates_add_up() -> None:
    both = combined([Estimate(1, 3, 5), Estimate(2, 4, 9)])
    assert (both.value, both.se) == (3, 5) and both.df == 5
    assert combined([Estimate(1, np.inf, 1), Estimate(2, 4, 5)]).interval == (-np.inf, np.inf)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]


def test_links_that_are_still_to_come_count_as_looks() -> None:
    below = Estimate(-2.2, 1, 100)  # p = 0.015
    assert verdict([below], ONE_SIDED) == "failed"
    assert verdict([below], ONE_SIDED, planned=2) == "undecided"


@pytest.mark.parametrize("links", [2, 8, 18])
def test_a_chain_of_equal_methods_seldom_fails_and_seldom_holds(links: int) -> None:
    def found(random: np.random.Generator) -> str:
        return verdict([two_way(differences(random)) for _ in range(links)], ONE_SIDED)

    assert share(lambda random: found(random) == "failed") <= RARELY / 2 + 0.02  # one-sided
    assert share(lambda random: found(random) == "held") <= 0.02


def test_a_chain_that_is_true_holds_and_one_with_a_false_link_fails() -> None:
    def found(random: np.random.Generator, *effects: float) -> str:
        return verdict([two_way(differences(random, effect)) for effect in effects], ONE_SIDED)

    assert share(lambda random: found(random, 9, 9, 9) == "held") > 0.8
    assert share(lambda random: found(random, 9, 9, -14) == "failed") > 0.8


SETTINGS, METHODS = 6, 9


def scores(random: np.random.Generator, lead: float = 0.0) -> np.ndarray:
    table = random.normal(size=(SETTINGS, METHODS))
    table[:, 0] += lead
    return np.asarray(table)


def test_the_best_mean_rank_of_equal_methods_is_seldom_decided() -> None:
    def found(random: np.random.Generator, lead: float = 0.0) -> str:
        return best_rank(scores(random, lead), 0, draws=500).verdict(ONE_SIDED)

    assert share(lambda random: found(random) == "held") <= RARELY / 2
    assert share(lambda random: found(random) == "failed") <= RARELY
    assert share(lambda random: found(random, 4.0) == "held") > 0.9
    assert share(lambda random: found(random, -4.0) == "held") == 0


def test_a_method_that_a_rival_beats_everywhere_fails() -> None:
    def found(random: np.random.Generator) -> str:
        table = scores(random, -4.0)
        table[:, 1] += 4
        return best_rank(table, 0, draws=500).verdict(ONE_SIDED)

    assert share(lambda random: found(random) == "failed") > 0.9


def test_ranks_by_hand() -> None:
    ahead = np.tile([1.0, 0.0], (SETTINGS, 1))  # one rival, beaten everywhere
    assert best_rank(ahead, 0).p_best == 1 / 2**SETTINGS and best_rank(ahead, 0).lead == 1
    assert best_rank(ahead, 0, blocks=list("aabbcc")).p_best == 1 / 2**3
    behind = best_rank(ahead, 1)
    assert behind.p_best == 1 and behind.p_beaten == pytest.approx(1 / 2**SETTINGS, rel=0.1)
    assert best_rank(ahead, 1, blocks=list("aabbcc")).p_beaten == pytest.approx(1 / 2**3, rel=0.1)
    ahead[:2] = 0.0, 1.0  # but in one block of three
    assert best_rank(ahead, 0, blocks=list("aabbcc")).p_beaten == pytest.approx(7 / 8, rel=0.1)
    many = np.tile(np.arange(METHODS, dtype=float), (SETTINGS, 1))  # of ten draws none is as far behind
    assert best_rank(many, 0, draws=10).p_beaten == 1 / 11


def test_settings_that_move_together_are_no_independent_evidence() -> None:
    def found(random: np.random.Generator, blocks: str | None) -> str:
        table = np.repeat(
            random.normal(size=(SETTINGS // 2, METHODS)), 2, axis=0
        )  # equal methods, pairs of equal settings
        return best_rank(table, 0, draws=500, blocks=blocks and list(blocks)).verdict(ONE_SIDED)

    apart, together = (
        share(lambda random, blocks=blocks: found(random, blocks) == "failed") for blocks in (None, "aabbcc")
    )
    assert together <= RARELY < apart


def test_leads_in_settings_that_move_together_hold_no_more_often_than_they_may() -> None:
    """Against one equal rival, three pairs of settings: ahead in each pair by luck in one of eight."""

    def found(random: np.random.Generator, blocks: str | None) -> bool:
        table = np.repeat(random.normal(size=(SETTINGS // 2, 2)), 2, axis=0)
        return best_rank(table, 0, draws=10, blocks=blocks and list(blocks)).p_best < ONE_SIDED

    assert share(lambda random: found(random, None)) == pytest.approx(1 / 8, abs=0.05)
    assert share(lambda random: found(random, "aabbcc")) == 0


def test_ranks_share_places_and_put_what_is_no_number_last() -> None:
    assert ranks(np.array([0.3, 0.9, np.nan, 0.3])).tolist() == [2.5, 1.0, 4.0, 2.5]


def test_kendall_is_scipy_s() -> None:
    random = np.random.default_rng(0)
    a = random.integers(5, size=9).astype(float)
    many = random.integers(5, size=(20, 9)).astype(float)
    wanted = [stats.kendalltau(a, one).statistic for one in many]
    assert kendall(a, many) == pytest.approx(wanted)


def test_an_order_settles_when_it_is_planted_and_its_interval_knows_how_well() -> None:
    order = np.arange(7.0)
    random = np.random.default_rng(0)
    planted = np.stack(
        [-order, 0 * order, order, order]
    )  # [rounds, methods]: reversed, equal, there, and at the end
    noise = random.normal(size=(2, 30, 4, 7))
    tau, (low, high) = settling(planted + 0.1 * noise, draws=200)
    assert tau[[0, 2, 3]].tolist() == [-1, 1, 1] and abs(tau[1]) < 0.7
    assert (
        (low <= tau).all()
        and (tau <= high).all()
        and low[3] == high[3] == 1
        and high[0] < -0.8 < 0.8 < low[2]
    )
    _, (low, high) = settling(planted + 40 * noise, draws=200)  # the clients do not tell the order
    assert low[2] < 0 < high[0] and low[3] == high[3] == 1


def test_the_interval_of_tau_holds_the_order_that_is_planted_and_none_where_there_is_none() -> None:
    paper = np.arange(9.0)
    random = np.random.default_rng(0)
    ours = paper + 0.1 * random.normal(size=(1, 30, 9))
    good = agreement(paper, ours)
    assert good.tau == 1 and good.interval[0] > 0.9 and good.gap < 0.1
    assert agreement(paper, paper + np.tile((-1, 1, 0), 3) + np.zeros((1, 2, 9))).gap == pytest.approx(2 / 3)

    def tells(random: np.random.Generator) -> bool:
        low, high = agreement(paper, random.normal(size=(3, 15, 9)), draws=200).interval
        return low > 0.5 or high < -0.5

    assert share(tells) < 0.1
