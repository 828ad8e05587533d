"""Thirteen planted submissions: right, empty, wrong in one place, and hostile, each with the points it must get."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
from kd3a.checks import ASSIGNMENTS, QUESTIONS
from nbformat import NotebookNode

import planted
import sources

VOTE = "1-knowledge-vote"
FOCUS = "2-consensus-focus"

LOOPS = """
def knowledge_vote(q, gate):
    while True:
        try:
            gate += 1
        except Exception:
            pass
"""
PRINTS = """
print("x" * 30_000_000)
for line in range(20_000):
    print(line)
"""
DELETES = """
import pathlib, shutil

for place in (pathlib.Path.cwd(), pathlib.Path.cwd().parents[2]):
    shutil.rmtree(place, ignore_errors=True)
"""
IGNORES_INTERRUPTS = """
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
"""
DOES_NOT_PARSE = "def knowledge_vote(q, gate)\n    return q.mean(1)\n"
ENDS_ITS_KERNEL = "import os\n\nos._exit(0)\n"
SHOWS_NOTHING = "get_ipython().ast_node_interactivity = 'none'\n"


def answers(assignment: str) -> dict[str, str]:
    """The reference solution's cells, by grade_id."""
    cells = sources.read(assignment).cells
    return {sources.grade_id(c): c.source for c in cells if sources.grade_id(c).startswith("answer-")}


def filled(release: Path, assignment: str, code: dict[str, str]) -> NotebookNode:
    """The released notebook with code in the place of its stubs."""
    notebook = sources.read(assignment, release)
    for cell in notebook.cells:
        cell.source = code.get(sources.grade_id(cell), cell.source)
    return notebook


def wrong(name: str, release: Path) -> tuple[NotebookNode, int]:
    """The reference solution with one wrong answer planted in it, and its points."""
    answer = next(w for w in planted.load() if w.name == name)
    assignment = next(a for a in ASSIGNMENTS.values() if QUESTIONS[answer.question] in a.questions)
    code = answers(assignment.name) | {f"answer-{QUESTIONS[answer.question].function}": answer.source}
    lost = sum(p.points for p in QUESTIONS[answer.question].properties if p.name in answer.loses)
    return filled(release, assignment.name, code), assignment.points - lost


def plant(release: Path, folder: Path) -> dict[tuple[str, str], float]:
    """Write the submissions below a folder; returns the points each must get, by student and assignment."""
    right, expected = answers(VOTE), {}
    full, loss = ASSIGNMENTS[VOTE].points, QUESTIONS["vote_loss"].points

    def submit(student: str, notebook: NotebookNode | str, points: float, assignment: str = VOTE) -> None:
        path = sources.notebook_path(assignment, folder / student)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(notebook if isinstance(notebook, str) else nbformat.writes(notebook))
        expected[student, assignment] = points

    def changed(change: Callable[[str], str]) -> NotebookNode:
        return filled(release, VOTE, right | {"answer-knowledge_vote": change(right["answer-knowledge_vote"])})

    submit("reference", filled(release, VOTE, right), full)
    submit("empty", filled(release, VOTE, {}), 0)
    for name in ("gate_not_strict", "mean_over_all", "wrong_way_round"):
        submit(name, *wrong(name, release))
    submit("normalised", *wrong("normalised", release), assignment=FOCUS)
    submit("loops", changed(lambda code: LOOPS), loss)
    submit("prints", changed(lambda code: PRINTS + code), full)
    submit("deletes", changed(lambda code: DELETES + code), 0)
    submit("does_not_parse", changed(lambda code: DOES_NOT_PARSE), loss)
    submit("not_a_notebook", '{"cells": [', 0)
    submit("ends_its_kernel", changed(lambda code: code + "\n" + ENDS_ITS_KERNEL), 0)
    submit("shows_nothing", changed(lambda code: LOOPS + SHOWS_NOTHING), 0)
    return expected
