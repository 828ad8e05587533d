"""Follow every link of the built book without the network: internal ones must lead somewhere, the others are listed.

python book/links.py [folder of the built book]
"""

from __future__ import annotations

import os
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent.parent / "_build" / "html"


class Reader(HTMLParser):
    """What one page links (for readers), what it loads (for itself), and the anchors it has."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = {""}  # the page itself
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values["id"]} if "id" in values else set()
        self.anchors |= {values["name"]} if tag == "a" and "name" in values else set()
        if "href" in values:
            loaded = tag == "link" and set(values.get("rel", "").split()) & {"stylesheet", "preload", "icon"}
            (self.loads if loaded else self.links).append(values["href"])
        if "src" in values:
            self.loads.append(values["src"])


def read(site: Path) -> dict[Path, Reader]:
    """Every page of the site by its path."""
    pages = (p for p in sorted(site.rglob("*.html")) if "_static" not in p.relative_to(site).parts)
    return {path: Reader(path.read_text()) for path in pages}


def outside(link: str) -> bool:
    """Does the link lead to another machine?"""
    return bool(urlsplit(link).netloc)


def broken(site: Path, pages: dict[Path, Reader]) -> list[str]:
    """One sentence for each internal link without a file or an anchor, and for each thing loaded from elsewhere."""
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name} loads {url} from the network." for url in page.loads if outside(url)]
        for link in dict.fromkeys(page.links + page.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            to = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            if not to.is_file():
                found.append(f"{name} links {link}, and there is no such file.")
            elif to in pages and unquote(parts.fragment) not in pages[to].anchors:
                found.append(f"{name} links {link}, and that page has no such anchor.")
    return found


def external(site: Path, pages: dict[Path, Reader]) -> dict[str, list[str]]:
    """Links to other machines, each with the pages that have it."""
    found: dict[str, set[str]] = {}
    for path, page in pages.items():
        for link in filter(outside, page.links):
            found.setdefault(link, set()).add(str(path.relative_to(site)))
    return {link: sorted(found[link]) for link in sorted(found)}


def check(site: Path) -> list[str]:
    """Write the external links beside the site, into ``external-links.txt``; return what is broken inside."""
    pages = read(site)
    lines = [f"{link}\t{', '.join(names)}" for link, names in external(site, pages).items()]
    (site.parent / "external-links.txt").write_text("\n".join(lines) + "\n")
    return broken(site, pages)


if __name__ == "__main__":
    sys.exit("\n".join(check(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)) or 0)
