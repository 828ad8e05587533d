"""The built book, and what is needed to read it in a browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page

from kd3a.records import ROOT

SOURCES = ("book", "kd3a", "params", "results", "requirements.lock")  # what the built pages depend on
PATIENCE = 120_000  # milliseconds; a page takes one second, on a busy machine many
MATHJAX = "tex-svg.js"

#: Hidden cells and solutions are read too.
UNFOLD = """() => {
    for (const fold of document.querySelectorAll('details')) fold.open = true;
    for (const fold of document.querySelectorAll('.toggle-hidden')) fold.classList.remove('toggle-hidden');
}"""


def built() -> Path:
    """The book's folder: as it is there if nothing has changed since, or built anew."""
    index = ROOT / "_build" / "html" / "index.html"
    if index.exists() and index.stat().st_mtime > newest_source():
        return index.parent
    done = subprocess.run(
        [sys.executable, str(ROOT / "book" / "build.py")], capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert Path(done.stdout.splitlines()[-1]) == index, "the last line is the path of index.html"
    return index.parent


def newest_source() -> float:
    files = [f for name in SOURCES for f in ((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name])]
    return max(f.stat().st_mtime for f in files if f.is_file() and not {"__pycache__", ".ruff_cache"} & set(f.parts))


def pages_of(site: Path) -> list[str]:
    hidden = {"search.html", "genindex.html", "py-modindex.html"}
    return sorted(
        str(p.relative_to(site)) for p in site.rglob("*.html") if p.name not in hidden and "_static" not in p.parts
    )


def open_page(chromium: Browser, **options) -> Page:
    page = chromium.new_page(**options)
    page.set_default_timeout(PATIENCE)
    return page
