"""The searches: the same trials for every method, and the values they chose where they are used."""

from __future__ import annotations

from collections import Counter

import pytest

from kd3a import report
from kd3a.study import shipped

SEARCHES = ("tuning", "tuning-digit5", "tuning-amazon", "tuning-office")


def test_every_search_has_the_same_four_trials_for_every_method():
    searches = [shipped(name, scale) for name in SEARCHES for scale in ("quick", "cpu")]
    first, *others = [[(e.method, e.title, e.config, e.training) for e in search.methods] for search in searches]
    assert all(rows == first for rows in others)
    assert set(Counter(method for method, *_ in first).values()) == {4}


@pytest.mark.parametrize(("search", "benchmark"), [("tuning-office", "office-caltech10-features")])
def test_the_first_row_of_every_method_is_what_its_search_chose(search, benchmark):
    found = report.open_results(search, "cpu")
    trials = {entry.title: entry for entry in found.study.methods}
    chosen = {trials[title].method: trials[title].config for title in report.trials(found).query("chosen")["trial"]}
    first = {entry.method: entry.config for entry in reversed(shipped(benchmark, "cpu").methods)}
    assert len(chosen) == len({entry.method for entry in found.study.methods})
    assert {method: first[method] for method in chosen} == chosen
