"""The course: every reference solution has full marks, every stub none, every wrong answer loses exactly its own."""

from __future__ import annotations

import ast
import contextlib
import doctest
import re
import sys
from collections import Counter

import nbformat
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kd3a import checks, houses, plots_course
from kd3a.checks import ASSIGNMENTS, QUESTIONS, check, grade
from kd3a.checks.core import LENGTH, Property, Question, TooSlow, require, show, time_limit
from kd3a.errors import UserError
from kd3a.records import ROOT

sys.path.insert(0, str(ROOT / "course"))

import grade as grading
import planted
import sources
from grade import imported, put_aside, submissions, unreadable
from release import overview, points

LIVE = "beats_source_only"  # plays eight rounds
WRONG = planted.load()


def lost(findings: list[checks.Finding]) -> set[str]:
    return {finding.name for finding in findings if not finding.holds}


# --- answers --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference() -> dict:
    return {name: f for a in ASSIGNMENTS for name, f in sources.solutions(a).items()}


@pytest.mark.parametrize("name", [name for name in QUESTIONS if name != LIVE])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_reference_has_full_marks(name, seed, reference, capsys):
    assert grade(name, reference[name], seed) == QUESTIONS[name].points, capsys.readouterr().out


def test_the_reference_beats_source_only(reference, digits_file):
    (finding,) = QUESTIONS[LIVE].examine(reference[LIVE])
    assert finding.holds, finding.what


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_stub_has_no_points(name):
    def stub(*_):
        raise NotImplementedError()

    findings = QUESTIONS[name].examine(stub)
    assert lost(findings) == {p.name for p in QUESTIONS[name].properties}
    assert all("still to be written" in finding.what for finding in findings)


@pytest.mark.parametrize("answer", [lambda *_: None, lambda *_: 0.0, lambda *_: (torch.zeros(1, 2), torch.zeros(1))])
@pytest.mark.parametrize("name", [name for name in QUESTIONS if name not in (LIVE, "risk")])
def test_a_constant_has_no_points(name, answer):
    assert lost(QUESTIONS[name].examine(answer)) == {p.name for p in QUESTIONS[name].properties}


@pytest.mark.parametrize("answer", [w for w in WRONG if w.question != LIVE], ids=lambda w: f"{w.question}-{w.name}")
def test_a_wrong_answer_loses_exactly_its_properties(answer, capsys):
    names: dict = {}
    exec(answer.source, names)  # as it stands in a submission
    question = QUESTIONS[answer.question]
    findings = question.examine(names[question.function])
    assert lost(findings) == set(answer.loses), "\n".join(map(str, findings))
    expected = question.points - sum(p.points for p in question.properties if p.name in answer.loses)
    assert grade(answer.question, names[question.function], seed=3) == expected
    told = capsys.readouterr().out
    assert all(f"FAILS  {name}" in told for name in answer.loses)


@pytest.mark.parametrize("name", ["nothing_learned", "never_shared"])  # the two that end soon; all four: course/
def test_a_poor_round_does_not_beat_source_only(name, digits_file):
    answer = next(w for w in WRONG if w.name == name)
    (finding,) = QUESTIONS[LIVE].examine(answer.function)
    assert not finding.holds and "source-only" in finding.what


def test_every_question_has_four_wrong_answers():
    counts = Counter(answer.question for answer in WRONG)
    assert set(counts) == set(QUESTIONS) and min(counts.values()) >= 4


def test_every_property_is_lost_by_somebody():
    broken = {(w.question, name) for w in WRONG for name in w.loses}
    assert broken == {(q.name, p.name) for q in QUESTIONS.values() for p in q.properties}


# --- what a check says ------------------------------------------------------------------------------------------------


def test_the_smallest_counter_example_is_shown(capsys):
    check("trimmed_mean", lambda updates, trim: updates.mean(0))
    told = capsys.readouterr().out
    assert "4 of 5 points" not in told and "3 of 5 points" in told
    shown = re.search(r"for updates = (.*)", told).group(1)
    assert len(ast.literal_eval(shown)) == 3, "the first case has three houses"


@given(st.integers(0, 200))
def test_the_first_failing_case_is_reported(limit):
    question = Question("q", "q(x)")

    @question.property("small", 1, lambda rng: [{"x": x} for x in range(201)])
    def small(f, x):
        """x is below the limit."""
        require(f(x) < limit)

    (finding,) = question.examine(lambda x: x)
    assert not finding.holds and f"for x = {limit}\n" in finding.what + "\n"


def test_a_check_survives_whatever_a_function_does(capsys):
    def raises(update, limit):
        raise SystemExit

    def prints(update, limit):
        print("x" * 10**6)
        return update

    def changes(update, limit):
        return update.mul_(min(1.0, limit / max(update.norm().item(), 1e-9)))

    assert grade("clip", raises) == 0 and grade("clip", prints) == 3 and grade("clip", changes) == 4
    told = capsys.readouterr().out
    assert len(told) < 5000 and "SystemExit" in told


def test_an_endless_function_is_stopped():
    def endless(f):
        """It ends."""
        f()

    finding = Property("ends", 1, "It ends.", lambda rng: [{}], endless, seconds=1).examine(loops_forever, 0)
    assert not finding.holds and "1 s" in finding.what
    with pytest.raises(TooSlow), time_limit(1):
        loops_forever()


def loops_forever():
    while True:
        with contextlib.suppress(Exception):
            pass


def test_the_examples_of_the_docstrings_are_true():
    for module in (checks, grading, sources):
        failed, tried = doctest.testmod(module)
        assert tried and not failed


def test_wrong_calls_say_what_to_do():
    with pytest.raises(UserError, match="choose one of knowledge_vote"):
        check("knowledge_votes", print)
    with pytest.raises(UserError, match="the function clip itself"):
        check("clip", 3)


@given(st.lists(st.lists(st.floats(-1, 1), max_size=40), max_size=40))
@settings(max_examples=30)
def test_values_are_shown_short(value):
    assert len(show(value)) <= LENGTH + 2


def test_arrays_are_shown_short():
    assert len(show(np.zeros((100, 100)))) <= LENGTH + 2 and show(torch.tensor([0.123456])) == "[0.1235]"


# --- notebooks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignment", ASSIGNMENTS.values(), ids=lambda a: a.name)
def test_a_source_notebook_is_whole(assignment):
    notebook = sources.read(assignment.name)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    graded = {
        sources.grade_id(c): c.metadata.nbgrader["points"]
        for c in notebook.cells
        if sources.grade_id(c)
        if c.metadata.nbgrader["grade"]
    }
    assert graded == {q.name: q.points for q in assignment.questions} | {"written": assignment.written}
    for question in assignment.questions:
        (cell,) = [c for c in code if sources.grade_id(c) == question.name]
        assert cell.source.startswith(f'check("{question.name}", {question.function})\n### BEGIN HIDDEN TESTS')
        assert f'grade("{question.name}", {question.function}, seed=' in cell.source
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for part in ("**You will**", "**Before you start**", "**Time:**", "![", "**Rubric.**", "## Further"):
        assert part in text, part
    for link in re.findall(r"\]\(\.\./\.\./\.\./(book/[^)]+)\)", text):
        assert (ROOT / link).exists(), link
    assert (ROOT / "book" / assignment.chapter).with_suffix(".ipynb").exists() or (
        ROOT / "book" / assignment.chapter
    ).with_suffix(".md").exists()


@pytest.mark.parametrize("name", [name for name in ASSIGNMENTS if name != "4-the-round"])
def test_a_right_solution_draws_its_picture(name, digits_file):
    assert "</svg>" in sources.played(name)["picture"]._repr_svg_()


def test_a_picture_tells_right_from_wrong(reference):
    right, wrong = (
        plots_course.vote_map(f)._repr_svg_()
        for f in (reference["knowledge_vote"], next(w.function for w in WRONG if w.name == "dissenters_stay"))
    )
    assert right != wrong


def test_the_houses_play_and_refuse(digits_file):
    assert "</svg>" in plots_course.round_curve(lambda houses, shared: shared)._repr_svg_()
    with pytest.raises(UserError, match="ask needs the 4 models"):
        houses.Houses().ask([])
    with pytest.raises(UserError, match="After round 1 the shared model's"):
        houses.play(lambda _, shared: {name: t * float("nan") for name, t in shared.items()})


def test_the_table_of_points_adds_up():
    table = points()
    total = sum(a.points + a.written for a in ASSIGNMENTS.values())
    assert table["points"].sum() == total and not table.duplicated(["question", "property", "assignment"]).any()


def test_the_instructors_page_tells_the_points():
    assert overview() in (ROOT / "book" / "course" / "instructor.md").read_text(), f"it should hold\n{overview()}"


def test_what_an_answer_imports_is_told():
    notebook = sources.read("1-knowledge-vote")
    assert imported(notebook) == []
    answer = next(cell for cell in notebook.cells if sources.grade_id(cell) == "answer-vote_loss")
    answer.source = "import math, kd3a.losses\n\ndef f():\n    from kd3a.consensus import knowledge_vote as v"
    assert imported(notebook) == ["kd3a.consensus.knowledge_vote", "kd3a.losses"]
    answer.source = "def f("
    assert imported(notebook) == []


def test_submissions_are_found_or_refused(tmp_path):
    with pytest.raises(UserError, match="There is no folder"):
        submissions(tmp_path / "none")
    with pytest.raises(UserError, match="holds no submission"):
        submissions(tmp_path)
    (tmp_path / "ada" / "1-knowledge-vote").mkdir(parents=True)
    assert submissions(tmp_path) == [("ada", "1-knowledge-vote")]
    (tmp_path / "ada" / "9-nothing").mkdir()
    with pytest.raises(UserError, match="Unknown assignment '9-nothing'"):
        submissions(tmp_path)


def test_earlier_grades_are_put_aside(tmp_path):
    put_aside(tmp_path / "graded")
    (tmp_path / "graded").mkdir()
    (tmp_path / "graded" / "grades.csv").write_text("mine")
    put_aside(tmp_path / "graded")
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith("graded-") and (kept / "grades.csv").read_text() == "mine"


def test_what_cannot_be_read_is_told(tmp_path):
    path = tmp_path / "x.ipynb"
    assert unreadable(path) == "x.ipynb is missing"
    path.write_text("{")
    assert "is not a notebook" in unreadable(path)
    path.write_text(sources.notebook_path("5-bounds").read_text())
    assert unreadable(path) == ""


# --- nothing leaks ----------------------------------------------------------------------------------------------------


def test_every_assignment_has_secrets():
    for name in ASSIGNMENTS:
        found = sources.secrets(name)
        assert len(found) > 8 and any(line.startswith("grade(") for line in found)


def test_a_leak_is_found_however_it_is_dressed():
    line = 'totals = torch.einsum("nk,nkc->nc", heard.to(q.dtype), q)'
    assert line in sources.secrets("1-knowledge-vote")
    for dressed in (
        line,
        line.replace(" ", "  "),
        line.replace('"', '\\"'),
        f"<span>{line.replace('>', '&gt;')}</span>",
    ):
        assert sources.leaks(f"before\n    {dressed}\nafter") == [line]
    assert not sources.leaks("totals = q.sum(1)")


def test_no_page_of_the_book_holds_a_solution():
    for path in (*(ROOT / "book").rglob("*.ipynb"), *(ROOT / "book").rglob("*.md")):
        if ".ipynb_checkpoints" not in path.parts:
            text = path.read_text()
            assert not sources.leaks(text) and not [name for name in sources.marks() if name in text], path


def test_links_lead_into_the_book():
    text = "[x](../../../book/theory/bounds.md)"
    assert sources.linked(text, "../../../../book") == "[x](../../../../book/theory/bounds.md)"
    assert sources.linked(text, "https://example.org/") == "[x](https://example.org/theory/bounds.html)"
