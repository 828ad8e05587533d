"""A Sphinx extension for the book: what autodoc and napoleon would misread of this module's docstrings, and a
bibliography that calls a work as the text does, by author and year.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pybtex.database import Entry
from pybtex.plugin import register_plugin
from pybtex.style.formatting.unsrt import Style
from pybtex.style.labels import BaseLabelStyle
from pybtex.style.sorting import BaseSortingStyle
from pydantic import BaseModel

BEFORE, AFTER = 400, 600  # napoleon works at 500


def setup(app: Any) -> dict[str, bool]:
    """Connect to autodoc, and name the style of the bibliography."""
    register_plugin("pybtex.style.labels", "author_year", AuthorYearLabels)
    register_plugin("pybtex.style.sorting", "author_year", AuthorYearOrder)
    register_plugin("pybtex.style.formatting", "author_year", AuthorYear)
    kept: dict[str, list[str]] = {}

    def keep(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        kept[name] = list(lines)

    def restore(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        """The line under a setting is a sentence, which may hold a colon; napoleon takes it for ``type: text``."""
        if what in ("attribute", "data", "property"):
            lines[:] = kept[name]

    app.connect("autodoc-process-docstring", keep, priority=BEFORE)
    app.connect("autodoc-process-docstring", restore, priority=AFTER)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True}


def signature(
    app: Any, what: str, name: str, obj: Any, options: Any, shown: str, returned: str
) -> tuple[str, None] | None:
    """Settings are listed one by one under their class; a signature of all of them, with every bound, says less."""
    return ("", None) if what == "class" and issubclass(obj, BaseModel) else None


def label(entry: Entry) -> str:
    """What ``{cite:p}`` shows of a work: ``Feng et al., 2021``."""
    names = [" ".join(map(str, p.rich_prelast_names + p.rich_last_names)) for p in entry.persons["author"]]
    several = len(names) > 2 or names[-1] == "others"
    authors = f"{names[0]} et al." if several else " and ".join(names)
    return f"{authors}, {entry.fields['year']}"


class AuthorYearLabels(BaseLabelStyle):
    """Works are called as the text calls them."""

    def format_labels(self, sorted_entries: Sequence[Entry]) -> Iterator[str]:
        """A label for each entry, in order."""
        return map(label, sorted_entries)


class AuthorYearOrder(BaseSortingStyle):
    """Works stand in the order of their labels."""

    def sorting_key(self, entry: Entry) -> str:
        """By what an entry is sorted."""
        return label(entry).lower()


class AuthorYear(Style):
    """The style of the bibliography: ``bibtex_default_style`` in the book's settings."""

    default_label_style = "author_year"
    default_sorting_style = "author_year"
