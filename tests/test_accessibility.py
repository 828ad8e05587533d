"""The built book as axe-core sees it."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from reader import MATHJAX, UNFOLD, open_page, pages_of

IMPACTS = {"serious", "critical"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(site, address, chromium, scheme):
    """Every rule in light; in dark, where the same elements have other colours, that about contrast."""
    page = open_page(chromium, viewport={"width": 1280, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
    page.route(f"**/{MATHJAX}", lambda route: route.fulfill(body=""))  # a formula is thousands of elements
    options = {"resultTypes": ["violations"]} | ({"runOnly": ["color-contrast"]} if scheme == "dark" else {})
    sides = {"exclude": [[".bd-sidebar-primary"]]}  # the same on every page: looked at on the first
    found = {}
    for name in [*pages_of(site), "search.html?q=vote", "genindex.html"]:
        page.goto(address + name, wait_until="load")
        page.evaluate(UNFOLD)
        if scheme == "light":
            page.wait_for_timeout(500)  # the theme gives tab stops to what can scroll now
        seen = Axe().run(page, None if name == "index.html" else sides, options).response["violations"]
        bad = [v for v in seen if v["impact"] in IMPACTS]
        if bad:
            found[name] = {v["id"]: [node["html"] for node in v["nodes"]][:3] for v in bad}
    page.close()
    assert not found


def test_axe_would_find_something(chromium):
    page = open_page(chromium)
    page.set_content('<html lang="en"><title>x</title><main><h1>x</h1><img src="data:,"><p style="color:#aaa">pale</p>')
    seen = Axe().run(page).response["violations"]
    page.close()
    assert {"image-alt", "color-contrast"} <= {v["id"] for v in seen if v["impact"] in IMPACTS}
