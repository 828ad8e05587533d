"""The part that needs nbgrader, run by the interpreter that has it; release.py and grade.py call it.

    python with_nbgrader.py release COURSE_DIR ASSIGNMENT...
    python with_nbgrader.py grade COURSE_DIR ASSIGNMENT STUDENT SECONDS

``grade`` writes ``scores.json`` into the course directory: the points of every graded cell.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from nbconvert.preprocessors import ClearMetadataPreprocessor
from nbformat.v4 import new_output
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from nbgrader.preprocessors import (
    AssignLatePenalties,
    CheckCellMetadata,
    Execute,
    IgnorePattern,
    LimitOutput,
    NbGraderPreprocessor,
    SaveAutoGrades,
)
from nbgrader.utils import is_grade, is_solution
from traitlets.config import Config

OUTPUT = 20_000  # characters of printed output that a cell keeps


class CarefulExecute(Execute):
    """Executes, and keeps only the beginning of what a cell prints: a gigabyte of it would fill the memory."""

    def preprocess_cell(self, cell, resources, index):
        self._printed = 0
        return super().preprocess_cell(cell, resources, index)

    def output(self, outs, msg, display_id, cell_index):
        if msg["msg_type"] == "stream":
            text = msg["content"]["text"]
            room = max(0, OUTPUT - self._printed)
            self._printed += len(text)
            if not room:
                return None
            if len(text) > room:
                msg["content"]["text"] = text[:room] + "\n… the rest was cut off\n"
        return super().output(outs, msg, display_id, cell_index)


class NoResultNoPoints(NbGraderPreprocessor):
    """A graded cell must end in a number. nbgrader itself gives full marks to a cell that shows nothing at all."""

    def preprocess_cell(self, cell, resources, index):
        if is_grade(cell) and not is_solution(cell) and cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if not (o.output_type == "stream" and o.name == "stderr")]
            kinds = {output.output_type for output in cell.outputs}
            if not kinds & {"execute_result", "error"}:
                text = "This cell gave no result, so it has no points."
                cell.outputs.append(new_output("error", ename="NoResult", evalue=text, traceback=[text]))
        return cell, resources


def api(folder: Path, seconds: int = 60) -> NbGraderAPI:
    config = Config()
    config.CourseDirectory.root = str(folder)
    config.CourseDirectory.course_id = "kd3a"
    config.Exchange.course_id = "kd3a"
    config.CarefulExecute.timeout = seconds
    config.CarefulExecute.iopub_timeout = seconds  # four by default, which a busy machine needs for an honest cell
    config.ClearSolutions.code_stub = {"python": "raise NotImplementedError()"}
    config.Autograde.autograde_preprocessors = [
        CarefulExecute,
        NoResultNoPoints,
        IgnorePattern,
        ClearMetadataPreprocessor,
        LimitOutput,
        SaveAutoGrades,
        AssignLatePenalties,
        CheckCellMetadata,
    ]
    return NbGraderAPI(config=config)


def done(result: dict) -> None:
    if not result["success"]:
        sys.exit(result["log"] + (result["error"] or ""))


def release(folder: Path, assignments: list[str]) -> None:
    for assignment in assignments:
        done(api(folder).generate_assignment(assignment, force=True, create=True))


def grade(folder: Path, assignment: str, student: str, seconds: int) -> None:
    grader = api(folder, seconds)
    done(grader.autograde(assignment, student, force=True, create=True))
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}", "kd3a") as book:
        submission = book.find_submission(assignment, student)
        scores = {
            cell.name: {"points": cell.auto_score, "max": cell.max_score}
            for notebook in submission.notebooks
            for cell in notebook.grades
        }
    (folder / "scores.json").write_text(json.dumps(scores))
    done(grader.generate_feedback(assignment, student, force=True))


if __name__ == "__main__":
    command, folder, *rest = sys.argv[1:]
    if command == "release":
        release(Path(folder), rest)
    else:
        grade(Path(folder), rest[0], rest[1], int(rest[2]))
