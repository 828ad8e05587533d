"""The searches: the same trials for every method, and the values they chose where they are used."""

from __future__ import annotations

import pytest

from kd3a import report
from kd3a.methods import METHODS
from kd3a.study import Study, shipped

SEARCHES = ("tuning", "tuning-digit5", "tuning-amazon", "tuning-office")


#: Where authors use another network for a kind of data: settings that a method's trials have there in addition.
OWN = {
    ("tuning-office", "dsbn"): {"hidden": [1024, 1024], "dropout": 0.5},
}
LINEAR = {"hidden": [], "ramp": False, "mu": 0.01}  # MDAN's authors on reviews


def trials(study: Study) -> dict[str, list[dict]]:
    """The settings of each method's trials, without order: published ones come first, and differ between data."""
    out: dict[str, list[dict]] = {}
    for entry in study.methods:
        own = OWN.get((study.study, entry.method), {})
        told = {} if entry.config == LINEAR else {k: v for k, v in entry.config.items() if own.get(k) != v}
        assert own.items() <= entry.config.items() and not entry.training
        out.setdefault(entry.method, []).append(told)
    return {method: sorted(settings, key=str) for method, settings in out.items()}


@pytest.mark.parametrize("scale", ["quick", "cpu"])
@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_has_the_same_four_trials_for_every_method(name, scale):
    search, first = shipped(name, scale), trials(shipped("tuning", "cpu"))
    assert trials(search) == first and {len(settings) for settings in first.values()} == {4}
    assert [e.config for e in search.methods] == [e.config for e in shipped(name, "cpu").methods]
    assert [e.title[-1] for e in search.methods] == list("1234") * len(first)


def test_a_method_that_maximises_the_criterion_keeps_its_published_values():
    published = {name for name, method in METHODS.items() if method.maximises_information}
    assert published == {"shot", "fedavg-shot", "decision", "caida"}
    for search in SEARCHES:
        chosen = report.trials(report.open_results(search, "cpu")).query("chosen")
        assert all(title.endswith(" 1") for title in chosen[chosen["method"].isin(published)]["trial"])


def test_the_first_trial_is_called_as_published_and_no_other():
    for search in SEARCHES:
        methods = shipped(search, "cpu").methods
        for entry in methods:
            first = next(e for e in methods if e.method == entry.method)
            told = report.changed(entry, first)
            assert told and told.startswith("as published") == entry.title.endswith(" 1")


@pytest.mark.parametrize(("search", "beta"), [("tuning", 0.1), ("tuning-digit5", 0.1), ("tuning-office", 0.3)])
@pytest.mark.parametrize("method", ["shot", "fedavg-shot", "decision"])
def test_pseudo_labels_weigh_less_on_digits_as_published(search, beta, method):
    first, second, *_ = (e for e in shipped(search, "cpu").methods if e.method == method)
    assert METHODS[method].Config.read(first.config).beta == beta
    assert report.changed(second, first) == f"beta: {0.4 - beta:g}"


@pytest.mark.parametrize(
    ("search", "benchmark"),
    [
        ("tuning", "digits"),
        ("tuning-digit5", "digit5"),
        ("tuning-amazon", "amazon"),
        ("tuning-office", "office-caltech10-features"),
        ("tuning-office", "office-caltech10"),
    ],
)
def test_every_method_has_a_row_with_what_its_search_chose(search, benchmark):
    found = report.open_results(search, "cpu")
    trials = {entry.title: entry for entry in found.study.methods}
    chosen = [trials[title] for title in report.trials(found).query("chosen")["trial"]]
    rows = [(entry.method, entry.config) for entry in shipped(benchmark, "cpu").methods]
    assert {entry.method for entry in chosen} == {entry.method for entry in found.study.methods}
    assert [entry.title for entry in chosen if (entry.method, entry.config) not in rows] == []
