"""The source notebooks: what is in them, which parts are solutions, and what must not be seen outside."""

from __future__ import annotations

import ast
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from kd3a.checks import ASSIGNMENTS, QUESTIONS
from nbformat import NotebookNode

COURSE = Path(__file__).resolve().parent
ROOT = COURSE.parent
BUILD = ROOT / "_build" / "course"
REGION = re.compile(r"### BEGIN (SOLUTION|HIDDEN TESTS)\n(.*?)### END \1", re.DOTALL)
LEAST = 16  # characters; shorter lines of code are nobody's secret


def notebook_path(assignment: str, folder: Path = COURSE / "source") -> Path:
    """``1-knowledge-vote`` is ``1-knowledge-vote/knowledge-vote.ipynb``."""
    return folder / assignment / f"{assignment.partition('-')[2]}.ipynb"


def read(assignment: str, folder: Path = COURSE / "source") -> NotebookNode:
    return nbformat.read(notebook_path(assignment, folder), as_version=4)


def grade_id(cell: NotebookNode) -> str:
    return cell.metadata.get("nbgrader", {}).get("grade_id", "")


@cache
def secrets(assignment: str) -> set[str]:
    """The lines of an assignment's solutions, hidden tests and keys to written questions, without indentation."""
    cells = read(assignment).cells
    regions = [body for cell in cells for _, body in REGION.findall(cell.source)]
    regions += [cell.source for cell in cells if grade_id(cell) == "written"]  # the key
    lines = {line.strip() for body in regions for line in body.splitlines()}
    return {line for line in lines if len(line) >= LEAST and not line.startswith(("from ", "import ", "#"))}


@cache
def marks() -> frozenset[str]:
    """Names that only solutions give to things: a search index, which keeps words and no lines, must not know them."""
    found = set()
    for assignment in ASSIGNMENTS:
        for cell in read(assignment).cells:
            if grade_id(cell).startswith("answer-"):
                nodes = [n for n in ast.walk(ast.parse(cell.source)) if isinstance(n, ast.Name)]
                found |= {n.id for n in nodes if isinstance(n.ctx, ast.Store) and "_" in n.id and len(n.id) > 7}
    return frozenset(found)


def leaks(text: str) -> list[str]:
    """The secret lines that a text holds, whatever its escapes and spaces."""
    plain = squeezed(text)
    return sorted(line for name in ASSIGNMENTS for line in secrets(name) if squeezed(line) in plain)


def squeezed(text: str) -> str:
    """Without spaces, quotes, backslashes and marks of HTML: the same in a notebook, a page and a search index."""
    text = re.sub(r"<[^<>]*>", "", text).replace("&quot;", '"').replace("&gt;", ">").replace("&lt;", "<")
    return re.sub(r"""[\s"'\\]|\\n""", "", text.replace("&#39;", "'").replace("&amp;", "&"))


def played(assignment: str) -> dict[str, Any]:
    """The names that exist after the setup, the solutions and the picture of an assignment have run."""
    names: dict[str, Any] = {}
    for cell in read(assignment).cells:
        wanted = grade_id(cell).startswith(("setup", "answer-")) or "picture" in cell.metadata.get("tags", [])
        if cell.cell_type == "code" and wanted:
            exec(compile(cell.source, assignment, "exec"), names)
    return names


def solutions(assignment: str) -> dict[str, Any]:
    """The reference solution of every question, by the question's name; no picture is drawn."""
    names: dict[str, Any] = {}
    for cell in read(assignment).cells:
        if grade_id(cell).startswith(("setup", "answer-")):
            exec(compile(cell.source, assignment, "exec"), names)
    return {q.name: names[q.function] for q in ASSIGNMENTS[assignment].questions}


def prepared(assignment: str, folder: Path, book: str) -> None:
    """Write the assignment for nbgrader: points from :mod:`kd3a.checks`, links to the book where it is."""
    notebook = read(assignment)
    for cell in notebook.cells:
        if grade_id(cell) in QUESTIONS:
            cell.metadata.nbgrader["points"] = QUESTIONS[grade_id(cell)].points
        elif grade_id(cell) == "written":
            cell.metadata.nbgrader["points"] = ASSIGNMENTS[assignment].written
        elif cell.cell_type == "markdown":
            cell.source = linked(cell.source, book)
    path = notebook_path(assignment, folder)
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)


def linked(text: str, book: str) -> str:
    """Links into the book, to its published pages if ``book`` is an address, else to the files below a folder.

    >>> linked("[x](../../../book/theory/bounds.md)", "https://example.org/")
    '[x](https://example.org/theory/bounds.html)'
    """
    suffix = ".html" if "://" in book else r"\2"
    return re.sub(r"\.\./\.\./\.\./book/([\w/-]+)(\.\w+)\b", rf"{book.rstrip('/')}/\1{suffix}", text)
