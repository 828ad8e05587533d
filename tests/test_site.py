"""The built book: no warning, every link followed, light pages; and each page in a real browser, offline: at two
widths, in light and dark, by keyboard and by search."""

from __future__ import annotations

import sys

import links
import mend
import pdf
import pytest
from playwright.sync_api import Page
from reader import MATHJAX, UNFOLD, open_page, pages_of

from kd3a.records import ROOT

BOOK = ROOT / "book"
WIDTHS = {"desktop": 1280, "phone": 390}


# --- files ------------------------------------------------------------------------------------------------------------


def test_no_solution_of_the_course_is_in_the_built_pages(site):
    """Nor in the sources that ship with them, nor in the search index."""
    sys.path.insert(0, str(ROOT / "course"))
    import sources

    files = [p for p in site.rglob("*") if p.suffix in (".html", ".md", ".ipynb", ".txt") or p.name == "searchindex.js"]
    assert len(files) > 20
    for path in files:
        assert not sources.leaks(path.read_text()), path
    index = (site / "searchindex.js").read_text()
    assert len(sources.marks()) > 3 and not [name for name in sources.marks() if name in index]


def test_every_internal_link_leads_somewhere_and_the_others_are_listed(site):
    assert links.check(site) == []
    listed = dict(line.split("\t") for line in (site.parent / "external-links.txt").read_text().splitlines())
    assert listed and all(url.startswith("https://") for url in listed)
    assert "reference/bibliography.html" in ", ".join(listed.values())


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "a.html").write_text('<h1 id="top">A</h1><a href="part/b.html#here">b</a><a href="#top">a</a>')
    good = '<a name="here"></a><a href="../a.html">a</a><a href="https://example.org/x">x</a><img src="data:,">'
    (tmp_path / "part" / "b.html").write_text(good)
    assert links.check(tmp_path) == []
    assert links.external(tmp_path, links.read(tmp_path)) == {"https://example.org/x": ["part/b.html"]}
    bad = (
        '<a href="b.html#gone">b</a><a href="c.html">c</a><img src="https://example.org/i.png"><a href="../part">d</a>'
    )
    (tmp_path / "part" / "b.html").write_text(bad)
    told = links.check(tmp_path)
    wrong = ("part/b.html#here", "b.html#gone", "c.html", "https://example.org/i.png", "../part")
    assert len(told) == len(wrong)
    assert all(any(f" {link}" in sentence for sentence in told) for link in wrong)


def test_pages_are_light(site):
    """A page with its figures is under 1.5 MB, what all pages share and a browser keeps under 1 MB, MathJax aside."""
    heavy = {}
    for name in pages_of(site):
        page = site / name
        loads = {url.split("?")[0] for url in links.Reader(page.read_text()).loads if not url.startswith("data:")}
        sizes = {url: (page.parent / url).stat().st_size for url in loads if not url.endswith(MATHJAX)}
        shared = sum(size for url, size in sizes.items() if "_static/" in url)
        own = page.stat().st_size + sum(sizes.values()) - shared
        assert shared > 100_000, "styles and scripts are counted"
        if own > 1_500_000 or shared > 1_000_000:
            heavy[name] = own, shared
    assert not heavy


def test_no_first_paint_waits_for_a_large_script(site):
    for name in pages_of(site):
        page = mend.BeautifulSoup((site / name).read_text(), "html.parser")
        waited = [s["src"].split("?")[0] for s in page.select("script[src]:not([defer]):not([async])")]
        large = [src for src in waited if ((site / name).parent / src).stat().st_size > 500_000]
        assert waited and not large, name


def test_the_book_can_be_printed_whole(site):
    page = links.Reader(pdf.whole(site, pdf.names()))
    inside = {link.removeprefix("#") for link in page.links if not links.outside(link)}
    assert len(inside) > 300 and inside <= page.anchors
    assert all((site.parent / url.split("?")[0]).exists() for url in page.loads if not url.startswith("data:"))


SICK = """<!DOCTYPE html><html lang="en"><head><script src="_static/vendor/fontawesome/6/js/all.min.js"></script>
<link rel="preload" as="font" href="webfonts/fa-brands-400.woff2"/><script src="own.js"></script></head><body>
<div class="bd-sidebar-primary"><ul><li><a href="#">API</a><details><summary><i></i></summary></details></li></ul></div>
<details><summary>Show code</summary></details><pre>a  =  1\n\n    b &lt; 2</pre>
<dl class="py"><dt class="sig">f(<dl><dd>x,</dd><dd>y</dd></dl>)</dt><dd>Text.</dd></dl>
<div class="citation-list" role="list"><div class="citation" role="doc-biblioentry">Book</div><a>x</a></div>
<table class="dataframe"><thead><tr><th></th><th>mean</th></tr></thead><tbody><tr><th>row</th><td>1 ± 2 (3)</td></tr>
<tr><th>time</th><td>4 min</td></tr><tr><th>settings</th><td>a: 1, b: 2, c: 3, d: 4, e: 5</td></tr></tbody></table>
<code class="xref"><span class="pre">kd3a.source_only.Config</span></code> <code class="pre">a.b_c</code>
<p>\\(a &lt; b\\)</p></body></html>"""


def test_pages_are_mended():
    text = mend.mended(SICK)
    page = mend.BeautifulSoup(text, "html.parser")
    assert [s["src"] for s in page.select("script")] == ["own.js"] and not page.select("link")
    assert [s.get("aria-label") for s in page.select("summary")] == ["Pages under API", None]
    assert page.select_one("pre").text == "a  =  1\n\n    b < 2" and "\\(a &lt; b\\)" in text
    assert [line.text for line in page.select("dt > .sig-lines > div")] == ["x,", "y"]
    assert [dd.text for dd in page.select("dd")] == ["Text."] and len(page.select("dl")) == 1
    assert not page.select('[role="list"], [role="doc-biblioentry"]')
    assert [cell.text for cell in page.select("th")] == ["mean", "row", "time", "settings"]
    cells = page.select("tbody td")
    assert [cell.text for cell in cells[:2]] == ["1 ±\N{NO-BREAK SPACE}2 (3)", "4\N{NO-BREAK SPACE}min"]
    assert [cell.get("class") for cell in cells] == [["mean"], ["mean"], ["text", "mean"]]
    assert [cell.text for cell in page.select(".mean")] == ["mean", *(cell.text for cell in cells)]
    assert "kd3a.<wbr/>source_<wbr/>only.<wbr/>Config" in text and "a.b_c" in text
    assert page.select_one(".bd-sidebar-primary")["role"] == "complementary"


# --- in a browser -----------------------------------------------------------------------------------------------------


def watch(page: Page, home: str) -> list[str]:
    """A list that fills with what goes wrong on the page; nothing but this machine is reachable."""
    found: list[str] = []
    page.on("console", lambda m: found.append(f"console: {m.text}") if m.type == "error" else None)
    page.on("pageerror", lambda e: found.append(f"page error: {e}"))
    left = "ERR_ABORTED"  # the reader went on before it had come
    page.on("requestfailed", lambda r: None if left in (r.failure or "") else found.append(f"failed: {r.url}"))

    def outside(request) -> None:
        if not request.url.startswith((home, "data:", "blob:")):
            found.append(f"leaves the machine: {request.url}")

    page.on("request", outside)
    return found


LOOK = """() => {
    const bad = [];
    const main = document.querySelector('main');
    for (const image of main.querySelectorAll('img')) {
        if (!image.complete || !image.naturalWidth) bad.push('missing image: ' + image.src);
        if (!image.alt.trim()) bad.push('image without alternative text: ' + image.src);
    }
    const wide = document.documentElement.scrollWidth;
    if (wide > window.innerWidth) bad.push('horizontal overflow: ' + wide + ' of ' + window.innerWidth);
    if (!main.querySelector('h1')) bad.push('no heading');
    const narrow = window.innerWidth < 500;
    const table = box => box.querySelector('table')?.innerText.trim().slice(0, 60).replace(/\\s+/g, ' ');
    const scrolls = box => box.scrollWidth > box.clientWidth + 1;
    for (const box of main.querySelectorAll('.output:has(table), .pst-scrollable-table-container')) {
        if (!narrow && scrolls(box)) bad.push('a table that hides a column: ' + table(box));
        const head = [...box.querySelectorAll('thead tr:first-child > *')];
        const told = head.find(cell => ['outcome', 'verdict'].includes(cell.textContent.trim()));
        const mean = head.length && head.at(-1).textContent.trim() === 'mean' && head.at(-1);
        for (const [cell, name] of [[told, 'an outcome'], [mean, 'a mean']])
            if (cell && cell.getBoundingClientRect().right > box.getBoundingClientRect().right)
                bad.push(name + ' out of sight: ' + table(box));
    }
    for (const formula of main.querySelectorAll('mjx-container')) {
        const box = formula.hasAttribute('display') ? formula : formula.closest('.math') ?? formula;
        if (!scrolls(box)) continue;
        if (location.pathname.includes('/theory/') && box === formula) bad.push('a display formula is cut');
        if (!['auto', 'scroll'].includes(getComputedStyle(box).overflowX)) bad.push('a formula is cut for good');
    }
    const unread = 'mjx-merror, mjx-container [data-mml-node="merror"], mjx-container [fill="red"]';
    if (document.querySelector(unread)) bad.push('a formula that MathJax cannot read');
    const words = document.createTreeWalker(main, NodeFilter.SHOW_TEXT, node =>
        node.parentElement.closest('pre, code, script, style, mjx-container')
            ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
    while (words.nextNode()) {
        const text = words.currentNode.data;
        if (/\\$[^$]+\\$|\\\\[([]|\\{[a-z:]+\\}`/.test(text)) bad.push('not rendered: ' + text.trim().slice(0, 80));
    }
    return bad;
}"""


@pytest.fixture(scope="module")
def stumbled(site, address, chromium) -> dict[tuple[str, str], dict[str, list[str]]]:
    """What a reader would stumble over, by width and scheme, then by page. A page is loaded once and then changed."""
    page = open_page(chromium)
    found = watch(page, address)
    seen = {(width, scheme): {} for scheme in ("light", "dark") for width in WIDTHS}
    for name in pages_of(site):
        for (width, scheme), pages in seen.items():
            page.set_viewport_size({"width": WIDTHS[width], "height": 900})
            page.emulate_media(color_scheme=scheme)
            if not page.url.endswith("/" + name):
                arrive(page, address + name)
            if words := found + page.evaluate(LOOK):
                pages[name] = words
            found.clear()
            page.wait_for_function("scheme => document.documentElement.dataset.theme === scheme", arg=scheme)
    page.close()
    return seen


def arrive(page: Page, url: str) -> None:
    """Load a page, wait for its formulas and open its folds."""
    page.goto(url, wait_until="load")
    if page.locator(".math").count():
        page.wait_for_function(
            "document.querySelectorAll('.math').length <= document.querySelectorAll('mjx-container').length"
        )
    page.evaluate(UNFOLD)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_reads_well_offline(site, stumbled, width, scheme):
    assert {"index.html", "tutorial/ten-minutes.html", "benchmarks/digits.html"} <= set(pages_of(site))
    assert not stumbled[width, scheme]


def test_theme_switch(address, chromium):
    page = open_page(chromium, color_scheme="light")
    found = watch(page, address)
    page.goto(address + "tutorial/ten-minutes.html", wait_until="load")
    modes = set()
    for _ in range(3):
        page.locator("button.theme-switch-button:visible").first.click()
        modes.add(page.evaluate("document.documentElement.dataset.theme"))
    page.close()
    assert modes == {"light", "dark"} and not found


@pytest.mark.parametrize(
    ("words", "title"), [("Shapley coalitions", "Consensus Focus"), ("closed form kernel", "BatchNorm MMD")]
)
def test_search_finds_the_page(address, chromium, words, title):
    """Opened, typed and followed by keyboard alone."""
    page = open_page(chromium)
    found = watch(page, address)
    page.goto(address + "index.html", wait_until="load")
    page.keyboard.press("Control+k")
    page.keyboard.type(words)
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=*")
    result = page.locator("#search-results li a", has_text=title).first
    result.wait_for()
    assert title in page.locator("#search-results li a").first.inner_text()
    result.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/tutorial/*")
    assert page.locator("main h1").first.inner_text().startswith(title)
    page.close()
    assert not found


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.textContent.trim() || document.activeElement.ariaLabel || ''")


def test_the_tab_key_reaches_everything(address, chromium):
    page = open_page(chromium, viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page.goto(address + "tutorial/3-knowledge-vote.html", wait_until="load")
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to main content"
    assert page.locator("#pst-skip-link a").bounding_box()["y"] >= 0, "it is seen"
    reached = []
    for _ in range(150):
        page.keyboard.press("Tab")
        reached.append(focused(page))
    assert {"Consensus Focus", "API", "Pages under API"} <= set(reached)
    assert any(name.startswith("Search") for name in reached)
    page.goto(address + "tutorial/3-knowledge-vote.html", wait_until="load")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("Boolean(document.activeElement.closest('main'))")
    page.close()


@pytest.mark.parametrize("name", ["tutorial/3-knowledge-vote.html", "tutorial/4-consensus-focus.html"])
def test_explorers_work_by_keyboard_on_their_pages(address, chromium, name):
    page = open_page(chromium)
    found = watch(page, address)
    page.goto(address + name, wait_until="load")
    slider = page.locator(".kd3a-explorer input[type=range]").last
    told = [page.locator(".kd3a-explorer").inner_text()]
    slider.focus()
    for key in ("Home", "End"):
        page.keyboard.press(key)
        told.append(page.locator(".kd3a-explorer").inner_text())
    page.close()
    assert len(set(told)) == 3 and not found


def test_what_a_fold_hides_can_be_scrolled_by_keyboard(address, chromium):
    page = open_page(chromium, viewport={"width": 390, "height": 900})
    page.goto(address + "tutorial/3-knowledge-vote.html", wait_until="load")
    page.evaluate(UNFOLD)
    page.wait_for_function(
        """() => {
            const boxes = [...document.querySelectorAll('details pre')];
            const wide = boxes.filter((box) => box.scrollWidth > box.clientWidth);
            return wide.length && wide.every((box) => box.tabIndex === 0);
        }""",
    )
    page.close()
