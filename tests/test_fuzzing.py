"""Hostile inputs of every class, in this process; `python -m tests.fuzzing` tries many more, each in a process of its own."""

from __future__ import annotations

from tests.fuzzing import CLASSES, attempt, cases, workshop

CASES = 300


def test_hostile_inputs_end_in_one_sentence() -> None:
    with workshop():
        drawn = list(cases(CASES, seed=0))
        faults = [f"{kind} | {case.name} | {fault}" for kind, case in drawn if (fault := attempt(case))]
    assert {kind for kind, _ in drawn} == set(CLASSES) and len(drawn) >= CASES - len(CLASSES)
    assert not faults, "\n".join(faults)


def test_the_same_seed_draws_the_same_cases() -> None:
    with workshop():
        names = [[case.name for _, case in cases(60, seed)] for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]
