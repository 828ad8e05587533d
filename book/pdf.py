"""Print the built book: all its pages but the API, as one document, by a headless Chromium.

    python book/pdf.py

``make pdf`` builds the book first and installs a Chromium where there is none. The last line printed is the path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import browser
import build
from bs4 import BeautifulSoup, Tag
from playwright.sync_api import Error, sync_playwright

SITE = build.ROOT / "_build" / "html"
PAPER = build.ROOT / "_build" / "kd3a.pdf"
FOOTER = '<p style="width: 100%; text-align: center; font: 9px sans-serif"><span class="pageNumber"></span></p>'

#: What paper needs and a screen does not: the book begins each page anew, and nothing is cut that could stay whole.
STYLE = """
html { scroll-behavior: auto; }
body { max-width: 46rem; margin: 0 auto; font-size: 11pt; }
article { break-before: page; }
article:first-of-type { break-before: auto; }
h1, h2, h3, caption, figcaption { break-after: avoid; }
figure, tr, pre, mjx-container, .sd-card, .kd3a-explorer { break-inside: avoid; }
.bd-article figure img { width: auto; max-width: 100%; max-height: 170mm; }
pre { white-space: pre-wrap; }
a.headerlink, .toggle-button, details > summary, .copybtn { display: none !important; }
"""

READY = """async () => {
    await MathJax.startup.promise;
    for (const fold of document.querySelectorAll('details')) fold.open = true;
    for (const fold of document.querySelectorAll('.toggle-hidden')) fold.classList.remove('toggle-hidden');
    for (const image of document.images) image.loading = 'eager';
    await Promise.all([...document.images].map((image) => image.decode().catch(() => null)));
}"""


def names() -> list[str]:
    """The printed pages, in the order of the book."""
    pages = [page.with_suffix("").as_posix() for page in build.pages()]
    return [page for page in pages if not page.startswith("reference/api")]


def anchor(page: str, fragment: str = "") -> str:
    """What an anchor of a page is called in the whole."""
    return f"{page}--{fragment}" if fragment else page


def article(text: str, page: str, pages: set[str]) -> Tag:
    """A page's article: its anchors carry the page's name, its links lead to anchors, its images lie in the site."""
    body = BeautifulSoup(text, "html.parser").select_one("article")
    here = Path(page).parent
    for element in body.select("[id]"):
        element["id"] = anchor(page, element["id"])
    for element in body.select("[for]"):
        element["for"] = anchor(page, element["for"])
    for image in body.select("img[src]"):
        if not image["src"].startswith("data:"):
            image["src"] = os.path.normpath(SITE.name / here / image["src"])
    for link in body.select("a[href]"):
        parts = urlsplit(link["href"])
        if parts.scheme or parts.netloc:
            continue
        to = os.path.normpath(here / parts.path).removesuffix(".html") if parts.path else page
        if to in pages:
            link["href"] = "#" + anchor(to, parts.fragment)
        else:
            link.unwrap()
    body["id"] = anchor(page)
    return body


def whole(site: Path, pages: list[str]) -> str:
    """All pages as one, with the head of the first, for a file beside the site."""
    document = BeautifulSoup((site / f"{pages[0]}.html").read_text(), "html.parser")
    for element in document.head.select('[rel~="index"], [rel~="search"], [rel~="prev"], [rel~="next"]'):
        element.decompose()  # there is one page now
    for element in document.head.select("[href], [src]"):
        name = "href" if element.has_attr("href") else "src"
        element[name] = f"{SITE.name}/{element[name]}"
    style = document.new_tag("style")
    style.string = STYLE
    document.head.append(style)
    document.body.clear()
    document.body.attrs = {}
    for page in pages:
        document.body.append(article((site / f"{page}.html").read_text(), page, set(pages)))
    return str(document)


def paper(source: Path, target: Path) -> None:
    """Print an HTML file."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser.executable(), args=browser.FLAGS)
        page = chromium.new_page(color_scheme="light", reduced_motion="reduce")
        page.set_default_timeout(0)  # thousands of formulas
        page.goto(source.as_uri(), wait_until="load")
        page.evaluate(READY)
        margin = {"top": "18mm", "bottom": "18mm", "left": "16mm", "right": "16mm"}
        page.pdf(path=target, format="A4", margin=margin, print_background=True, outline=True, tagged=True,
                 display_header_footer=True, header_template="<span></span>", footer_template=FOOTER)  # fmt: skip
        chromium.close()


def main() -> int:
    if not (SITE / "index.html").exists():
        print("There is no built book to print; run make book first.", file=sys.stderr)
        return 1
    source = SITE.with_name("print.html")
    source.write_text(whole(SITE, names()))
    try:
        paper(source, PAPER)
    except Error as error:
        print(
            f"Chromium does not print; install the system package chromium, or set KD3A_BROWSER: {error}",
            file=sys.stderr,
        )
        return 1
    finally:
        source.unlink()
    print(PAPER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
