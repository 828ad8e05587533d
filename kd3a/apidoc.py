"""A Sphinx extension for the book's API pages: what autodoc and napoleon would misread of this module's docstrings."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

BEFORE, AFTER = 400, 600  # napoleon works at 500


def setup(app: Any) -> dict[str, bool]:
    """Connect to autodoc."""
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
