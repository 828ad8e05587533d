"""The searches: the same trials for every method, and the values they chose where they are used."""

from __future__ import annotations

from collections import Counter

from kd3a.study import shipped

SEARCHES = ("tuning", "tuning-office")


def test_every_search_has_the_same_four_trials_for_every_method():
    searches = [shipped(name, scale) for name in SEARCHES for scale in ("quick", "cpu")]
    first, *others = [[(e.method, e.title, e.config, e.training) for e in search.methods] for search in searches]
    assert all(rows == first for rows in others)
    assert set(Counter(method for method, *_ in first).values()) == {4}
