"""From a fresh release to grades.csv: planted submissions, graded by nbgrader. `make testcourse` runs it.

It needs nbgrader in ``.venv-course`` (or in the interpreter that ``KD3A_NBGRADER`` names) and fails without it.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
from pathlib import Path

import nbformat
import pandas as pd
import psutil
import pytest

os.environ |= {"OMP_NUM_THREADS": "1", "KD3A_PROGRESS": "0"}
sys.path.insert(0, str(Path(__file__).parent))

from kd3a.checks import ASSIGNMENTS, QUESTIONS

import grade
import planted
import release
import sources
from planted.submissions import FOCUS, IGNORES_INTERRUPTS, VOTE, filled, plant

PYTHON = Path(os.environ.get("KD3A_NBGRADER") or release.NBGRADER)
MINUTES = 5


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A fresh release of the two assignments that are graded here."""
    folder = tmp_path_factory.mktemp("course")
    release.make("https://example.org/book", PYTHON, only=[VOTE, FOCUS], into=folder)
    return folder


def computing() -> float:
    """Seconds that this process and those it started have computed: the same on a busy machine."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


@pytest.fixture(scope="module")
def graded(course, tmp_path_factory) -> tuple[dict, Path, float]:
    """What the planted submissions must get, where the grades are, and the minutes of computing it took."""
    folder, out = tmp_path_factory.mktemp("submitted"), course / "graded"
    expected = plant(course / "release", folder)
    began = computing()
    grade.grade_all(folder, course / "work", out, PYTHON, seconds=60, minutes=4)
    return expected, out, (computing() - began) / 60


def test_grades_are_as_expected(graded):
    expected, out, _ = graded
    table = pd.read_csv(out / "grades.csv").set_index(["student", "assignment"])
    assert len(expected) >= 12
    assert table["points"].to_dict() == expected
    assert table.loc["normalised", "imports"].item() == "kd3a.consensus.knowledge_vote"
    assert table["imports"].notna().sum() == 1
    assert table["of"].to_dict() == {key: ASSIGNMENTS[key[1]].points for key in expected}


def test_it_is_quick(graded):
    *_, minutes = graded
    assert minutes < MINUTES


def test_questions_are_listed_one_by_one(graded):
    expected, out, _ = graded
    details = pd.read_csv(out / "details.csv")
    assert details.groupby(["student", "assignment"])["points"].sum().to_dict() == expected
    loops = details[details["student"] == "loops"].set_index("question")["points"]
    assert loops.to_dict() == {"knowledge_vote": 0, "vote_loss": QUESTIONS["vote_loss"].points}


@pytest.mark.parametrize(
    ("student", "assignment", "words"),
    [
        ("gate_not_strict", VOTE, "FAILS  the gate is strict"),
        ("mean_over_all", VOTE, "FAILS  p is the mean of the supporters"),
        ("wrong_way_round", VOTE, "FAILS  the direction of KL"),
        ("normalised", FOCUS, "FAILS  values are not rescaled"),
        ("prints", VOTE, "the rest was cut off"),
        ("does_not_parse", VOTE, "SyntaxError"),
    ],
)
def test_feedback_names_what_is_wrong(graded, student, assignment, words):
    page = next((graded[1] / "feedback" / student / assignment).glob("*.html"))
    text = page.read_text()
    assert words in text and page.stat().st_size < 3_000_000


@pytest.mark.parametrize(
    ("student", "words"),
    [("not_a_notebook", "is not a notebook"), ("ends_its_kernel", "ended its own kernel"), ("deletes", "deleted")],
)
def test_a_submission_that_cannot_be_graded_is_told_why(graded, student, words):
    table = pd.read_csv(graded[1] / "grades.csv").set_index("student")
    assert words in table.loc[student, "note"]
    assert words in (graded[1] / "feedback" / student / VOTE / "note.html").read_text()


def test_the_release_holds_no_solution_and_no_hidden_test(course):
    for name in (VOTE, FOCUS):
        text = sources.notebook_path(name, course / "release").read_text()
        assert not sources.leaks(text)
        assert "HIDDEN" not in text and "SOLUTION" not in text and "**Key.**" not in text
        assert "raise NotImplementedError()" in text and "https://example.org/book/tutorial/" in text
        assert sources.leaks(sources.notebook_path(name, course / "instructor").read_text())
        assert (course / "release" / name / "picture.svg").stat().st_size > 1000
    assert (course / "points.csv").exists()


def test_one_that_ignores_interrupts_is_stopped(course, tmp_path):
    notebook = filled(course / "release", VOTE, {"answer-knowledge_vote": IGNORES_INTERRUPTS})
    path = sources.notebook_path(VOTE, tmp_path / "stubborn")
    path.parent.mkdir(parents=True)
    path.write_text(nbformat.writes(notebook))
    result = grade.grade_one(path.parent, "stubborn", VOTE, course / "work", tmp_path, PYTHON, seconds=20, minutes=2)
    assert result.points == {} and re.search("ran on although|stopped after", result.note)
    homes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            homes.append(process.environ().get("HOME", ""))
    assert homes and not [home for home in homes if "kd3a-grade-" in home], "a kernel lives on"


@pytest.mark.parametrize("name", ["first_source_alone", "statistics_summed"])
def test_a_poor_round_does_not_beat_source_only(name):
    answer = next(w for w in planted.load() if w.name == name)
    (finding,) = QUESTIONS["beats_source_only"].examine(answer.function)
    assert not finding.holds and "source-only" in finding.what
