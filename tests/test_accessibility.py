"""The built book as axe-core sees it: benchmarks, studies, theory, course, search and index; and axe-core itself.

The other pages are as much work and have a file of their own, so that two workers share them.
"""

from __future__ import annotations

import pytest
from axe import CHAPTERS, CONTRAST, EVERYWHERE, serious, violations
from reader import open_page, pages_of


def test_axe_finds_nothing_serious(site, address, chromium):
    names = [name for name in pages_of(site) if not name.startswith(CHAPTERS)]
    assert {"index.html", "studies/claims.html", "benchmarks/digits.html", "theory/bounds.html"} <= set(names)
    assert not serious(chromium, address, [*names, "search.html?q=vote", "genindex.html"])


@pytest.fixture
def blank(chromium):
    page = open_page(chromium)
    yield page
    page.close()


def test_axe_would_find_something(blank):
    blank.set_content(
        '<html lang="en"><title>x</title><main><h1>x</h1><img src="data:,"><p style="color:#aaa">pale</p>'
    )
    assert set(violations(blank, set(), rules_on=EVERYWHERE)) == {"image-alt", CONTRAST}


def test_contrast_is_measured_once_for_each_look_on_each_ground(blank):
    known: set[str] = set()
    text = '<html lang="en"><body style="background:white"><p style="color:#aaa">{}</p>'
    for content, looks in (("pale", 1), ("the same", 0), ("<b>bold</b>", 1)):
        blank.set_content(text.format(content))
        assert bool(violations(blank, known, rules_on=None)) == bool(looks)
    blank.set_content(text.format("on black").replace("white", "black"))
    before = len(known)
    assert not violations(blank, known, rules_on=None)
    assert len(known) == before + 1
