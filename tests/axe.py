"""The built book as axe-core sees it, and what is serious there."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from reader import MATHJAX, UNFOLD, open_page

IMPACTS = {"serious", "critical"}
CONTRAST = "color-contrast"
EVERYWHERE = {"include": [["html"]]}
CHAPTERS = ("tutorial/", "reference/")  # half of the work

#: Marks the texts that look like none in ``known``: colour, size, weight, and what lies behind. Returns their looks.
FRESH = """known => {
    const looks = new Set(known), grounds = new Map([[null, '']]);
    const ground = element => {
        if (!grounds.has(element)) {
            const {backgroundColor, backgroundImage, opacity} = getComputedStyle(element);
            const plain = backgroundColor === 'rgba(0, 0, 0, 0)' && backgroundImage === 'none' && opacity === '1';
            const own = plain ? '' : `${backgroundColor} ${backgroundImage} ${opacity} / `;
            grounds.set(element, own + ground(element.parentElement));
        }
        return grounds.get(element);
    };
    const fresh = [];
    for (const element of document.querySelectorAll('body *')) {
        const text = [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim());
        const shown = element.checkVisibility({visibilityProperty: true}) && element.getClientRects().length;
        if (!shown || !(text || element.matches('input, select'))) continue;
        const {color, fontSize, fontWeight, textShadow} = getComputedStyle(element);
        const look = [color, fontSize, fontWeight, textShadow, ground(element)].join(' ');
        if (looks.has(look)) continue;
        looks.add(look);
        fresh.push(look);
        element.dataset.fresh = '';
    }
    return fresh;
}"""


def violations(page: Page, known: set[str], rules_on: dict | None) -> dict[str, list[str]]:
    """What is serious on a page, by rule: contrast, once for each look, as it is most of axe-core's time; and if
    ``rules_on`` says in which part of the page, all other rules."""
    fresh = page.evaluate(FRESH, sorted(known))
    known.update(fresh)
    found = []
    if rules_on is not None:
        options = {"resultTypes": ["violations"], "rules": {CONTRAST: {"enabled": False}}}
        found += Axe().run(page, rules_on, options).response["violations"]
    if fresh:
        options = {"resultTypes": ["violations"], "runOnly": [CONTRAST]}
        found += Axe().run(page, {"include": [["[data-fresh]"]]}, options).response["violations"]
    return {v["id"]: [node["html"] for node in v["nodes"]][:3] for v in found if v["impact"] in IMPACTS}


def serious(chromium: Browser, address: str, names: list[str]) -> dict[tuple[str, str], dict[str, list[str]]]:
    """What is serious on these pages, by name and scheme: every rule in light; in dark, where the same elements have
    other colours, that about contrast."""
    page = open_page(chromium, viewport={"width": 1280, "height": 900}, color_scheme="light", reduced_motion="reduce")
    page.route(f"**/{MATHJAX}", lambda route: route.fulfill(body=""))  # a formula is thousands of elements
    found, known = {}, set()
    for name in names:
        page.emulate_media(color_scheme="light")
        page.goto(address + name, wait_until="load")
        page.evaluate(UNFOLD)
        page.wait_for_timeout(500)  # the theme gives tab stops to what can scroll now
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_function("scheme => document.documentElement.dataset.theme === scheme", arg=scheme)
            sides = {"exclude": [[".bd-sidebar-primary"]]}  # the same on every page: looked at on the first
            rules_on = (EVERYWHERE if name == names[0] else sides) if scheme == "light" else None
            if bad := violations(page, known, rules_on):
                found[name, scheme] = bad
    page.close()
    assert len(known) > 50, "looks of both schemes"
    return found
