"""Grade a folder of submissions: ``grades.csv``, ``details.csv`` and feedback in HTML, in ``_build/course/graded``.

    python course/grade.py SUBMISSIONS [--seconds 60] [--minutes 10] [--jobs N] [--nbgrader PYTHON]

Submissions lie as nbgrader has them, ``SUBMISSIONS/student/assignment/notebook.ipynb``. Each is graded in a process and
in a temporary course directory of its own, so whatever it does to its files, its kernel or its time, it does to itself.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import files
from pathlib import Path

import nbformat
import pandas as pd
import psutil
from kd3a import data
from kd3a.checks import ASSIGNMENTS
from kd3a.data import digits
from kd3a.errors import UserError
from nbformat import NotebookNode

from release import NBGRADER, command, environment
from sources import BUILD, ROOT, grade_id, notebook_path

MATHJAX = "tex-svg.js"
LARGEST = 20_000_000  # bytes of a submitted notebook
KERNEL = {
    "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
    "display_name": "Python 3",
    "language": "python",
}


@dataclass
class Result:
    """What one submission earned, by question, and what went wrong with it as a whole."""

    student: str
    assignment: str
    points: dict[str, float] = field(default_factory=dict)
    imports: str = ""  # what its answers take from kd3a
    note: str = ""

    def row(self) -> dict[str, object]:
        """For grades.csv. The written answer is for a person to grade."""
        assignment = ASSIGNMENTS[self.assignment]
        return {
            "student": self.student,
            "assignment": self.assignment,
            "points": sum(self.points.values()),
            "of": assignment.points,
            "written": "",
            "of written": assignment.written,
            "imports": self.imports,
            "note": self.note,
        }

    def details(self) -> list[dict[str, object]]:
        """For details.csv: one row per question."""
        questions = ASSIGNMENTS[self.assignment].questions
        who = {"student": self.student, "assignment": self.assignment}
        return [who | {"question": q.name, "points": self.points.get(q.name, 0.0), "of": q.points} for q in questions]


def submissions(folder: Path) -> list[tuple[str, str]]:
    """Student and assignment of every submission, sorted."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: give one that holds student/assignment/notebook.ipynb.")
    found = [(p.parent.name, p.name) for p in sorted(folder.glob("*/*")) if p.is_dir()]
    if unknown := sorted({name for _, name in found} - set(ASSIGNMENTS)):
        raise UserError(f"Unknown assignment {unknown[0]!r} in {folder}: known are {', '.join(ASSIGNMENTS)}.")
    if not found:
        raise UserError(f"{folder} holds no submission: they lie in student/assignment/notebook.ipynb.")
    return found


def imported(notebook: NotebookNode) -> list[str]:
    """The modules of kd3a that the answers of a submission import: the package holds much of what is asked for."""
    found = set()
    for cell in notebook.cells:
        if grade_id(cell).startswith("answer-"):
            with contextlib.suppress(SyntaxError):
                for node in ast.walk(ast.parse(cell.source)):
                    if isinstance(node, ast.ImportFrom):
                        found |= {f"{node.module}.{alias.name}" for alias in node.names}
                    elif isinstance(node, ast.Import):
                        found |= {alias.name for alias in node.names}
    return sorted(name for name in found if name.split(".")[0] == "kd3a")


def unreadable(path: Path) -> str:
    """Why a submitted notebook cannot be graded at all; nothing if it can."""
    if not path.is_file() or path.is_symlink():
        return f"{path.name} is missing"
    if path.stat().st_size > LARGEST:
        return f"{path.name} is larger than {LARGEST // 1_000_000} MB"
    try:
        nbformat.validate(nbformat.read(path, as_version=4))
    except Exception as error:  # whatever can be wrong with a file
        return f"{path.name} is not a notebook: {str(error).splitlines()[0][:200]}"
    return ""


def grade_one(
    submitted: Path, student: str, assignment: str, work: Path, out: Path, python: Path, seconds: int, minutes: float
) -> Result:
    """Grade one submission in a directory that is thrown away; its feedback goes to ``out``."""
    result = Result(student, assignment)
    feedback = out / "feedback" / student / assignment
    feedback.mkdir(parents=True, exist_ok=True)
    notebook = notebook_path(assignment, submitted.parent)
    result.note = unreadable(notebook)
    if not result.note:
        result.imports = " ".join(imported(nbformat.read(notebook, as_version=4)))
        with tempfile.TemporaryDirectory(prefix="kd3a-grade-", ignore_cleanup_errors=True) as name:
            course = Path(name)
            furnish(course, notebook, student, assignment, work)
            words = command(python, "grade", str(course), assignment, student, str(seconds))
            result.note = run(words, course, python, 60 * minutes)
            scores = course / "scores.json"
            if scores.is_file():
                known = {question.name for question in ASSIGNMENTS[assignment].questions}
                read = json.loads(scores.read_text())
                result.points = {name: read[name]["points"] or 0.0 for name in read if name in known}
            for page in (course / "feedback" / student / assignment).glob("*.html"):
                (feedback / page.name).write_text(offline(page.read_text()))
            shutil.copy(work / "source" / assignment / "picture.svg", feedback)
    if result.note:
        told = html.escape(result.note)
        (feedback / "note.html").write_text(f"<!doctype html><title>{assignment}</title><p>Not graded: {told}.</p>\n")
    return result


def offline(page: str) -> str:
    """A page of feedback with the MathJax that lies beside it instead of one on the network.

    >>> offline('<script src="https://cdn.example/mathjax/latest.js?config=x"></script>').count("https://")
    0
    """
    tag = r'<script[^>]*src="https?://[^"]*mathjax[^"]*"[^>]*>\s*</script>'
    settings = "<script>window.MathJax = {tex: {inlineMath: [['$', '$']]}}</script>"
    return re.sub(tag, lambda _: f'{settings}<script src="../../{MATHJAX}" defer></script>', page)


def furnish(course: Path, notebook: Path, student: str, assignment: str, work: Path) -> None:
    """A course directory with one submission and nothing to copy from: no source notebook, no other student."""
    shutil.copy(work / "gradebook.db", course)
    own = course / "submitted" / student / assignment
    own.mkdir(parents=True)
    shutil.copy(notebook, own)
    (course / "source" / assignment).mkdir(parents=True)
    shutil.copy(work / "source" / assignment / "picture.svg", course / "source" / assignment)
    kernel = course / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(json.dumps(KERNEL))
    (course / "cache").mkdir()
    if "houses" in notebook.read_text() or "stolen_image" in notebook.read_text():
        shutil.copy(digits.cache_path(), course / "cache")


def run(words: list[str], course: Path, python: Path, seconds: float) -> str:
    """Call nbgrader; returns what went wrong, if anything did."""
    told = {"HOME": str(course), "KD3A_CACHE": str(course / "cache"), "JUPYTER_PATH": str(course / "jupyter")}
    told |= {"PYTHONPATH": str(ROOT), "JUPYTER_PLATFORM_DIRS": "1", "KD3A_PROGRESS": "0", "OMP_NUM_THREADS": "1"}
    with open(course / "log", "w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd=course, env=environment(python) | told)
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"it was stopped after {seconds:.0f} s"
        finally:
            stop(process)
    if code == 0:
        return ""
    if not (course / "gradebook.db").exists():
        return "it deleted the files that it was graded with"
    text = (course / "log").read_text(errors="replace") if (course / "log").exists() else ""
    if "DeadKernelError" in text or "Kernel died" in text:
        return "it ended its own kernel"
    if "Timeout waiting for IOPub output" in text:
        return "a cell ran on although it was interrupted"
    return "nbgrader could not grade it: " + next((x for x in reversed(text.splitlines()) if x.strip()), "")[:200]


def stop(process: subprocess.Popen) -> None:
    """End the process and what it started; a kernel has a session of its own and would live on."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def put_aside(out: Path) -> None:
    """Keep earlier grades, in which somebody may have written, under the time of their last change."""
    if out.exists():
        out.rename(out.with_name(f"{out.name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(out.stat().st_mtime))}"))


def grade_all(
    folder: Path, work: Path, out: Path, python: Path, seconds: int = 60, minutes: float = 10, jobs: int = 0
) -> pd.DataFrame:
    """Grade every submission, as many at a time as there are processors; returns what grades.csv holds."""
    if not (work / "gradebook.db").exists():
        raise UserError("There is no release to grade against: run `make course` first.")
    found = submissions(folder)
    data.load("digits", target="mnist_m")  # built once, before anybody's time runs
    put_aside(out)
    (out / "feedback").mkdir(parents=True)
    script = next(f for f in files("sphinx-mathjax-offline") if f.name == MATHJAX)
    shutil.copy(script.locate(), out / "feedback" / MATHJAX)

    def one(who: tuple[str, str]) -> Result:
        return grade_one(folder / who[0] / who[1], *who, work, out, python, seconds, minutes)

    results: list[Result] = []
    with ThreadPoolExecutor(jobs or cores()) as pool:
        for result in pool.map(one, found):
            results.append(result)
            row = result.row()
            print(f"{result.student} {result.assignment}: {row['points']:g} of {row['of']} {result.note}", flush=True)
            grades = pd.DataFrame([r.row() for r in results])
            grades.to_csv(out / "grades.csv", index=False)  # after each, so that nothing is lost
    pd.DataFrame([d for r in results for d in r.details()]).to_csv(out / "details.csv", index=False)
    return grades


def main() -> int:
    parser = argparse.ArgumentParser(description="Grade a folder of submissions.")
    parser.add_argument("submissions", type=Path)
    parser.add_argument("--seconds", type=int, default=60, help="that a cell may take")
    parser.add_argument("--minutes", type=float, default=10, help="that a submission may take")
    parser.add_argument("--jobs", type=int, default=0, help="submissions at a time; as many as processors by default")
    parser.add_argument("--nbgrader", type=Path, default=NBGRADER, help="the interpreter that has nbgrader")
    a = parser.parse_args()
    try:
        grade_all(a.submissions, BUILD / "work", BUILD / "graded", a.nbgrader, a.seconds, a.minutes, a.jobs)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(BUILD / "graded" / "grades.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
