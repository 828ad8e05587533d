"""The book: notebooks without outputs, a build without warnings, and every page in a real browser, offline."""

from __future__ import annotations

import ast
import functools
import http.server
import subprocess
import sys
import threading
from pathlib import Path

import browser
import nbformat
import pytest
from playwright.sync_api import Page, sync_playwright

from kd3a.records import ROOT

NOTEBOOKS = sorted(p for p in (ROOT / "book").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
WIDTHS = {"desktop": 1280, "phone": 390}
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_hold_no_outputs_and_literal_parameters(path):
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    tagged = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    for statement in ast.parse(tagged[0].source).body:
        assert isinstance(statement, ast.AnnAssign), "a parameter has a type hint"
        ast.literal_eval(statement.value)


@pytest.fixture(scope="module")
def site() -> Path:
    """The built book."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "book" / "build.py")], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    index = Path(done.stdout.splitlines()[-1])
    assert index.name == "index.html" and index.exists(), "the last line is the path of index.html"
    return index.parent


@pytest.fixture(scope="module")
def address(site):
    """The book, served on this machine."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    handler.log_message = lambda *_: None
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=browser.executable(), args=FLAGS)
        yield instance
        instance.close()


def pages_of(site: Path) -> list[str]:
    hidden = {"search.html", "genindex.html", "py-modindex.html"}
    return sorted(
        str(p.relative_to(site)) for p in site.rglob("*.html") if p.name not in hidden and "_static" not in p.parts
    )


def complaints(page: Page, url: str, home: str) -> list[str]:
    """Everything a reader would stumble over on one page."""
    found: list[str] = []
    page.on("console", lambda m: found.append(f"console: {m.text}") if m.type == "error" else None)
    page.on("pageerror", lambda e: found.append(f"page error: {e}"))
    page.on("requestfailed", lambda r: found.append(f"failed: {r.url}"))

    def allow(route):
        if route.request.url.startswith((home, "data:", "blob:")):
            route.continue_()
        else:
            found.append(f"leaves the machine: {route.request.url}")
            route.abort()

    page.route("**/*", allow)
    page.goto(url, wait_until="load")
    page.wait_for_timeout(300)
    if page.locator(".math").count():
        page.wait_for_function(
            "document.querySelectorAll('.math').length <= document.querySelectorAll('mjx-container').length"
        )
        if page.locator("mjx-merror").count():
            found.append("a formula that MathJax cannot read")
    found += page.evaluate(
        """() => {
            const bad = [];
            for (const image of document.querySelectorAll('main img')) {
                if (!image.complete || !image.naturalWidth) bad.push('missing image: ' + image.src);
                if (!image.alt.trim()) bad.push('image without alternative text: ' + image.src);
            }
            const wide = document.documentElement.scrollWidth;
            if (wide > window.innerWidth) bad.push('horizontal overflow: ' + wide + ' of ' + window.innerWidth);
            if (!document.querySelector('main h1')) bad.push('no heading');
            return bad;
        }"""
    )
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
def test_every_page_reads_well_offline(site, address, chromium, width, scheme):
    found = {}
    pages = pages_of(site)
    assert {"index.html", "tutorial/ten-minutes.html", "benchmarks/digits.html"} <= set(pages)
    for name in pages:
        page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        found[name] = complaints(page, address + name, address)
        page.close()
    assert not any(found.values()), {name: words for name, words in found.items() if words}


def test_search_finds_a_page(site, address, chromium):
    page = chromium.new_page()
    page.goto(address + "search.html?q=consensus", wait_until="load")
    page.wait_for_selector("#search-results li a", timeout=10_000)
    page.close()
