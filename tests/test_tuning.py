"""The searches: the same trials for every method, and the values they chose where they are used."""

from __future__ import annotations

from collections import Counter

import pytest

from kd3a import report
from kd3a.study import shipped

SEARCHES = ("tuning", "tuning-digit5", "tuning-amazon", "tuning-office")


#: Where authors use another network for a kind of data: settings of a method's trials, or of the first alone.
OWN = {
    ("tuning-office", "DSBN"): {"hidden": [1024, 1024], "dropout": 0.5},
    ("tuning-amazon", "MDAN 1"): {"hidden": [], "ramp": False, "mu": 0.01},
}


@pytest.mark.parametrize("scale", ["quick", "cpu"])
@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_has_the_same_four_trials_for_every_method(name, scale):
    first, search = shipped("tuning", "cpu"), shipped(name, scale)
    for trial, entry in zip(first.methods, search.methods, strict=True):
        own = next(
            (told for (where, title), told in OWN.items() if where == name and trial.title.startswith(title)), {}
        )
        assert (entry.method, entry.title, entry.training) == (trial.method, trial.title, trial.training)
        assert entry.config == own | trial.config
    assert set(Counter(entry.method for entry in first.methods).values()) == {4}


@pytest.mark.parametrize(("search", "benchmark"), [("tuning-office", "office-caltech10-features")])
def test_the_first_row_of_every_method_is_what_its_search_chose(search, benchmark):
    found = report.open_results(search, "cpu")
    trials = {entry.title: entry for entry in found.study.methods}
    chosen = {trials[title].method: trials[title].config for title in report.trials(found).query("chosen")["trial"]}
    first = {entry.method: entry.config for entry in reversed(shipped(benchmark, "cpu").methods)}
    assert len(chosen) == len({entry.method for entry in found.study.methods})
    assert {method: first[method] for method in chosen} == chosen
