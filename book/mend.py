"""Mend the rendered pages: what the themes leave out for readers who listen, type or wait.

:func:`mended` is a pure function of one page's HTML; ``build.py`` calls :func:`mend` on the whole site.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from bs4 import BeautifulSoup


def drop_icon_script(page: BeautifulSoup) -> None:
    """The icons are drawn by a font; the script that draws them again is 1.5 MB that every page would wait for."""
    for script in page.select('script[src*="fontawesome"]'):
        script.decompose()


def load_fonts_when_used(page: BeautifulSoup) -> None:
    """Of the three icon fonts one draws every page; a page that needs another loads it then."""
    for link in page.select('link[rel="preload"][href*="fa-brands"], link[rel="preload"][href*="fa-regular"]'):
        link.decompose()


def name_folds(page: BeautifulSoup) -> None:
    """A fold of the contents shows an arrow; it is called after the page that it belongs to."""
    for summary in page.find_all("summary"):
        if not summary.get_text(strip=True) and (item := summary.find_parent("li")) and (link := item.find("a")):
            summary["aria-label"] = f"Pages under {link.get_text(strip=True)}"


def lines_of_signatures(page: BeautifulSoup) -> None:
    """The lines of a long signature are no definitions: a list of definitions needs terms."""
    for lines in page.select("dt.sig > dl"):
        for line in lines.find_all("dd", recursive=False):
            line.name = "div"
        lines.name, lines["class"] = "div", "sig-lines"


def plain_bibliography(page: BeautifulSoup) -> None:
    """Entries of the bibliography have a role that is no longer used, in a list that holds other things too."""
    for entry in page.select('[role="doc-biblioentry"], .citation-list[role="list"]'):
        del entry["role"]


def empty_corners(page: BeautifulSoup) -> None:
    """The empty corner of a table heads nothing."""
    for cell in page.select("table th"):
        if not cell.get_text(strip=True) and not cell.find("img"):
            cell.name = "td"


#: Spaces at which a cell of numbers does not break: after a sign, and before a unit at its end.
JOINED = re.compile(r"(?<=[±/≥>]) | (?=(?:s|min|h|MB)$)")


def cells_that_wrap(page: BeautifulSoup) -> None:
    """A cell keeps its numbers whole; one longer than a number with its spread, or with an interval too, is a text."""
    for cell in page.select("table.dataframe tbody td"):
        text = cell.string or ""
        if JOINED.search(text):
            cell.string = JOINED.sub("\N{NO-BREAK SPACE}", text)
        if len(text) > 24 or ("(" in text and " to " in text):
            cell["class"] = "text"


def means_in_sight(page: BeautifulSoup) -> None:
    """Where a table ends in a column of means, that column stays in sight while the others scroll."""
    for table in page.select("table.dataframe:has(thead)"):
        *_, last = table.select("thead tr:first-child > *")
        if last.get_text(strip=True) == "mean":
            for cell in table.select("tr > :last-child"):
                cell["class"] = [*cell.get_attribute_list("class"), "mean"]


def names_that_wrap(page: BeautifulSoup) -> None:
    """The name of a module, function or column breaks after its dots and underscores."""
    for name in page.select("code.xref .pre, dt.sig .pre, article h2, table.dataframe th"):
        for string in name.find_all(string=re.compile("[._][A-Za-z]")):
            first, *others = re.split("(?<=[A-Za-z0-9][._])(?=[A-Za-z])", string)
            string.replace_with(first, *(piece for other in others for piece in (page.new_tag("wbr"), other)))


def landmarks(page: BeautifulSoup) -> None:
    """The side with the book's contents is a part of the page with a name."""
    for side in page.select("div.bd-sidebar-primary"):
        side["role"], side["aria-label"] = "complementary", "Book"


MENDS: tuple[Callable[[BeautifulSoup], None], ...] = (
    drop_icon_script,
    load_fonts_when_used,
    name_folds,
    lines_of_signatures,
    plain_bibliography,
    empty_corners,
    cells_that_wrap,
    means_in_sight,
    names_that_wrap,
    landmarks,
)


def mended(text: str) -> str:
    """The page with everything mended."""
    page = BeautifulSoup(text, "html.parser")
    for one in MENDS:
        one(page)
    return str(page)


def mend(site: Path) -> None:
    """Mend every page of a built book, and remove what no page uses any more."""
    for path in site.rglob("*.html"):
        if "_static" not in path.relative_to(site).parts:
            path.write_text(mended(path.read_text()))
    for folder in site.glob("_static/vendor/fontawesome/*/js"):
        shutil.rmtree(folder)
