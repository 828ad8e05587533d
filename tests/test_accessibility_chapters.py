"""The tutorial and the reference as axe-core sees them."""

from __future__ import annotations

from axe import CHAPTERS, serious
from reader import pages_of


def test_axe_finds_nothing_serious_in_tutorial_and_reference(site, address, chromium):
    names = [name for name in pages_of(site) if name.startswith(CHAPTERS)]
    assert {"tutorial/ten-minutes.html", "reference/api.html"} <= set(names)
    assert not serious(chromium, address, names)
