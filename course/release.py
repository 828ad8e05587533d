"""Make the course: the student release, the instructor edition and the table of points, in ``_build/course``.

    python course/release.py [--book FOLDER_OR_ADDRESS] [--nbgrader PYTHON]

``release/`` holds notebooks without solutions and hidden tests, ``instructor/`` the same with both, ``points.csv`` what
every property is worth. ``work/`` is nbgrader's course directory, which grading starts from.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
from kd3a.checks import ASSIGNMENTS
from kd3a.errors import UserError

from sources import BUILD, COURSE, ROOT, leaks, played, prepared

NBGRADER = ROOT / ".venv-course" / "bin" / "python"


def points() -> pd.DataFrame:
    """One row per property and per written question."""
    rows = []
    for assignment in ASSIGNMENTS.values():
        for question in assignment.questions:
            rows += [(assignment.name, question.name, p.name, p.points, "machine") for p in question.properties]
        rows.append((assignment.name, "written", "rubric in the notebook", assignment.written, "person"))
    return pd.DataFrame(rows, columns=["assignment", "question", "property", "points", "graded by"])


def overview() -> str:
    """Hours and points of every assignment, as the rows of a Markdown table."""
    rows = [f"| {a.title} | {a.hours} | {a.points} | {a.written} |" for a in ASSIGNMENTS.values()]
    total = [sum(a.points for a in ASSIGNMENTS.values()), sum(a.written for a in ASSIGNMENTS.values())]
    return "\n".join([*rows, f"| together | | {total[0]} | {total[1]} |"])


def command(python: Path, *words: str) -> list[str]:
    """What calls with_nbgrader.py."""
    if not python.exists():
        raise UserError(f"nbgrader's interpreter {python} does not exist: run `make course`, which installs it.")
    return [str(python.absolute()), str(COURSE / "with_nbgrader.py"), *words]


def environment(python: Path) -> dict[str, str]:
    """nbgrader calls programs that are installed beside it."""
    return os.environ | {"PATH": f"{python.absolute().parent}{os.pathsep}{os.environ['PATH']}"}


def make(book: str, python: Path, only: list[str] | None = None, into: Path = BUILD) -> None:
    """Make everything; nothing of a solution is in the release when this returns."""
    names = only or list(ASSIGNMENTS)
    for folder in ("work", "release", "instructor"):  # and nothing else: grades are kept
        shutil.rmtree(into / folder, ignore_errors=True)
    work = into / "work"
    for name in names:
        prepared(name, work / "source", book)
        picture = played(name)["picture"]
        (work / "source" / name / "picture.svg").write_text(picture._repr_svg_())
    words = command(python, "release", str(work), *names)
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment(python))
    if done.returncode:
        raise UserError(f"nbgrader could not make the release: {(done.stdout + done.stderr)[-2000:]}")
    for name in names:
        shutil.copytree(work / "release" / name, into / "release" / name)
        shutil.copytree(work / "source" / name, into / "instructor" / name)
    for path in (into / "release").rglob("*.ipynb"):
        if seen := leaks(path.read_text()):
            raise UserError(f"{path.name} of the release holds a line of a solution: {seen[0]!r}.")
    points().to_csv(into / "points.csv", index=False)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the student release and the instructor edition.")
    parser.add_argument(
        "--book", default="../../../../book", help="where links into the book lead: a folder or an address"
    )
    parser.add_argument("--nbgrader", type=Path, default=NBGRADER, help="the interpreter that has nbgrader")
    arguments = parser.parse_args()
    try:
        make(arguments.book, arguments.nbgrader)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(points().groupby(["assignment", "question"], sort=False)["points"].sum().to_string())
    print(BUILD)
    return 0


if __name__ == "__main__":
    sys.exit(main())
