"""Typical wrong answers to every graded question, each with the properties it must lose, and nothing else.

A wrong answer is a function with :func:`wrong` above it. Its source goes into a submission's solution cell, so it
imports what a solution may import and calls no other wrong answer.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kd3a.checks import QUESTIONS


@dataclass(frozen=True)
class Wrong:
    """A planted answer to ``question`` that loses the points of the properties ``loses``."""

    question: str
    loses: tuple[str, ...]
    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def source(self) -> str:
        """Code that defines the function under the question's name: its module without the other wrong answers."""
        tree = ast.parse(inspect.getsource(inspect.getmodule(self.function)))
        kept = []
        for node in tree.body[1:]:  # after the docstring
            if isinstance(node, ast.ImportFrom) and node.module == "planted":
                continue
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                if node.name != self.name:
                    continue
                node.decorator_list = []
            kept.append(ast.unparse(node))
        return "\n\n".join([*kept, f"{QUESTIONS[self.question].function} = {self.name}"])


WRONG: list[Wrong] = []


def wrong(question: str, *loses: str):
    """Register the function below as a wrong answer to a question."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        WRONG.append(Wrong(question, loses, function))
        return function

    return register


def load() -> list[Wrong]:
    """All wrong answers."""
    from planted import bounds, focus, moments, privacy, rounds, vote  # noqa: F401  # they register themselves

    return WRONG
