"""Instant feedback on the course's assignments, without any grader.

>>> from kd3a.checks import check
>>> check("clip", lambda update, limit: update)
clip(update, limit) -> update: 3 of 4 points
FAILS  never longer than the limit (1 point)
       However long an update is, its Euclidean length is at most the limit afterwards.
       for update = [1.5]
       for limit = 1
       it returned [1.5]
       it is longer than the limit
  ok   the direction is kept (1 point)
  ok   short updates are left alone (1 point)
  ok   nothing stays nothing (1 point)

A check tries each property of a function on growing cases and shows the first that fails: the inputs, what the function
returned, and what should be true of it. Points and properties stand in the modules of this package and nowhere else;
the assignments, the grader and the table of points read them through ``ASSIGNMENTS``.
"""

from __future__ import annotations

from dataclasses import dataclass

from kd3a.checks import focus, moments, privacy, rounds, theory, vote
from kd3a.checks.core import Finding, Question, Student, plural
from kd3a.errors import choose

__all__ = ["ASSIGNMENTS", "QUESTIONS", "Assignment", "Finding", "Question", "check", "grade"]


@dataclass(frozen=True)
class Assignment:
    """One notebook of the course: functions that are graded by machine, and a written question graded by a person."""

    name: str
    title: str
    chapter: str  # page of the book, without suffix
    hours: str
    questions: tuple[Question, ...]
    written: int  # points

    @property
    def points(self) -> int:
        """That a machine gives."""
        return sum(question.points for question in self.questions)


ASSIGNMENTS = {
    assignment.name: assignment
    for assignment in (
        Assignment(
            "1-knowledge-vote",
            "Knowledge Vote",
            "tutorial/3-knowledge-vote",
            "1–2",
            (vote.KNOWLEDGE_VOTE, vote.VOTE_LOSS),
            5,
        ),
        Assignment(
            "2-consensus-focus",
            "Consensus Focus and Shapley values",
            "tutorial/4-consensus-focus",
            "2–3",
            (focus.QUALITY, focus.LEAVE_ONE_OUT, focus.SHAPLEY, focus.WEIGHTS),
            5,
        ),
        Assignment(
            "3-batchnorm-mmd",
            "BatchNorm MMD",
            "tutorial/5-batchnorm-mmd",
            "1–2",
            (moments.MOMENT_DISTANCE, moments.MERGE, moments.KERNEL_MMD),
            5,
        ),
        Assignment(
            "4-the-round",
            "The round",
            "tutorial/6-the-algorithm",
            "2–3",
            (rounds.AVERAGE, rounds.ONE_ROUND, rounds.BEATS_SOURCE_ONLY),
            5,
        ),
        Assignment(
            "5-bounds",
            "The bounds on a finite hypothesis class",
            "theory/bounds",
            "2–3",
            (theory.RISK, theory.DIVERGENCE, theory.BOUND),
            5,
        ),
        Assignment(
            "6-attack-and-defend",
            "Attack and defend",
            "tutorial/7-communication-and-privacy",
            "2–3",
            (privacy.READ_LABEL, privacy.READ_INPUT, privacy.CLIP, privacy.TRIMMED_MEAN),
            5,
        ),
    )
}

QUESTIONS = {question.name: question for a in ASSIGNMENTS.values() for question in a.questions}


def check(name: str, student: Student, seed: int = 0) -> None:
    """Print which properties of a student's function hold, and for those that do not the smallest counter-example.

    Args:
        name: of the question, such as ``"knowledge_vote"``.
        student: the function.
        seed: of the random cases.
    """
    grade(name, student, seed)


def grade(name: str, student: Student, seed: int = 0) -> float:
    """The same, and the points earned: what a grader reads."""
    question = choose("question", name, QUESTIONS)
    findings = question.examine(student, seed)
    earned = sum(finding.points for finding in findings if finding.holds)
    print(f"{question.signature}: {earned} of {question.points} {plural(question.points)}")
    print(*findings, sep="\n")
    return float(earned)
