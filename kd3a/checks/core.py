"""What a check is made of: questions, their properties, and the search for the smallest counter-example.

A :class:`Question` asks for one function. A :class:`Property` of it is a sentence, its points, a list of growing cases
and a test of one case. The first case that fails is the smallest, and it is what a student is shown: the inputs, what
the function returned and the sentence, never what would have been right.
"""

from __future__ import annotations

import copy
import io
import signal
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kd3a.errors import UserError

SECONDS = 3  # of computing that one property of a function may take
LENGTH = 400  # characters of a value that are shown
TOLERANCE = 1e-4

Student = Callable[..., Any]
Case = dict[str, Any]  # arguments by name
Cases = Callable[[np.random.Generator], Iterable[Case]]


class Broken(Exception):
    """A property does not hold. The text says what was seen."""


class TooSlow(BaseException):
    """Not an Exception, so that a bare ``except Exception`` in a student's function does not swallow it."""


@dataclass(frozen=True)
class Finding:
    """How one property of one function came out."""

    name: str
    points: int
    sentence: str
    holds: bool
    what: str = ""  # was seen, if it does not hold

    def __str__(self) -> str:
        head = f"{'  ok ' if self.holds else 'FAILS'}  {self.name} ({self.points} {plural(self.points)})"
        return head if self.holds else "\n".join([head, f"       {self.sentence}", indent(self.what)])


@dataclass(frozen=True)
class Property:
    """A sentence about a function that must be true for every case."""

    name: str
    points: int
    sentence: str
    cases: Cases
    test: Callable[..., None]
    seconds: int = SECONDS

    def examine(self, student: Student, seed: int) -> Finding:
        """Try the cases in order; stop at the first that fails."""
        rng = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        told: list[str] = []
        try:
            with time_limit(self.seconds), silence():
                for case in self.cases(rng):
                    told = [f"for {name} = {show(value)}" for name, value in case.items()]
                    watched = Watched(student)
                    try:
                        self.test(watched, **case)
                    except Broken as broken:
                        return self._fails([*told, *watched.told, str(broken)])
        except TooSlow:
            return self._fails([*told, f"it had not returned after {self.seconds} s of computing"])
        except NotImplementedError:
            return self._fails(["the function is still to be written (it raises NotImplementedError)"])
        except (Exception, SystemExit, KeyboardInterrupt, RecursionError) as error:  # whatever a student's code does
            return self._fails([*told, f"it raised {type(error).__name__}: {show_text(str(error))}"])
        return Finding(self.name, self.points, self.sentence, True)

    def _fails(self, lines: list[str]) -> Finding:
        return Finding(self.name, self.points, self.sentence, False, "\n".join(line for line in lines if line))


@dataclass
class Question:
    """One function that a student writes."""

    name: str
    signature: str
    basics: Callable[[Student], None] | None = None  # must pass before any property earns points
    properties: list[Property] = field(default_factory=list)
    answered_by: str = ""  # the function's name, where it is not the question's

    @property
    def function(self) -> str:
        """Name of the function that a student writes."""
        return self.answered_by or self.name

    @property
    def points(self) -> int:
        return sum(p.points for p in self.properties)

    def property(self, name: str, points: int, cases: Cases, seconds: int = SECONDS):
        """Register the decorated test as a property; its docstring is the sentence."""

        def register(test: Callable[..., None]) -> Callable[..., None]:
            sentence = " ".join((test.__doc__ or "").split())
            self.properties.append(Property(name, points, sentence, cases, test, seconds))
            return test

        return register

    def examine(self, student: Student, seed: int = 0) -> list[Finding]:
        """How every property comes out for a student's function."""
        if not callable(student):
            raise UserError(f"check needs the function {self.name} itself, not {show(student)}.")
        if self.basics is not None:
            first = Property("the simplest case", 0, "", lambda rng: [{}], self.basics).examine(student, seed)
            if not first.holds:
                return [p._fails([f"already on the simplest case: {first.what}"]) for p in self.properties]
        return [p.examine(student, seed) for p in self.properties]


class Watched:
    """A student's function that remembers what it returned last, and may do to its arguments what it likes."""

    def __init__(self, student: Student):
        self.student, self.returned = student, []

    def __call__(self, *args: Any) -> Any:
        value = self.student(*copy.deepcopy(args))
        self.returned.append(show(value))
        return value

    @property
    def told(self) -> list[str]:
        return [f"it returned {value}" for value in self.returned]


class Nowhere(io.TextIOBase):
    """Takes what a function prints and keeps nothing of it."""

    def write(self, text: str) -> int:
        return len(text)


@contextmanager
def silence() -> Iterator[None]:
    """Whatever the block prints or warns of is lost: a megabyte would drown the report."""
    with redirect_stdout(Nowhere()), redirect_stderr(Nowhere()):
        yield


# --- for the tests of properties ------------------------------------------------------------------------------------


def require(condition: Any, what: str = "") -> None:
    """The case fails unless the condition is true."""
    if not bool(condition):
        raise Broken(what)


def number(value: Any) -> float:
    """A returned value as a number."""
    array = numbers(value)
    require(array.size == 1, f"one number was expected, not an array of shape {array.shape}")
    return float(array.reshape(()))


def numbers(value: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """A returned value (tensor, array, list or number) as a float array, perhaps of a given shape."""
    require(value is not None, "nothing was returned: is there a return statement?")
    if isinstance(value, torch.Tensor):
        value = value.detach().double().numpy()
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise Broken(f"numbers were expected, not {show(value)}") from None
    require(shape is None or array.shape == shape, f"the shape is {array.shape}, it should be {shape}")
    return array


def close(a: Any, b: Any, tolerance: float = TOLERANCE) -> bool:
    """Equal up to rounding; NaN is equal to nothing."""
    a, b = numbers(a), numbers(b)
    return a.shape == b.shape and bool(np.all(np.abs(a - b) <= tolerance * np.maximum(1, np.abs(b))))


def pair(value: Any, first: str, second: str) -> tuple[Any, Any]:
    """Two returned values."""
    fine = isinstance(value, tuple | list) and len(value) == 2
    require(fine, f"two values were expected: {first} and {second}")
    return value[0], value[1]


# --- showing --------------------------------------------------------------------------------------------------------


def show(value: Any) -> str:
    """A value as a short text."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        value = value.round(4).tolist() if value.dtype.kind == "f" else value.tolist()
    if isinstance(value, tuple | list):
        opening, closing = "()" if isinstance(value, tuple) else "[]"
        return show_text(opening + ", ".join(show(v) for v in value) + closing)
    if isinstance(value, dict):
        return show_text("{" + ", ".join(f"{k!r}: {show(v)}" for k, v in value.items()) + "}")
    if isinstance(value, float):
        return f"{value:.5g}"
    return show_text(repr(value))


def show_text(text: str) -> str:
    return text if len(text) <= LENGTH else f"{text[:LENGTH]} …"


def indent(text: str) -> str:
    return "\n".join(f"       {line}" for line in text.splitlines())


def plural(points: float) -> str:
    return "point" if points == 1 else "points"


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise :class:`TooSlow` inside the block after some seconds of computing, where the system can (not on Windows).

    Computing time and not the clock's, so that a busy machine costs nobody points. Who sleeps is left to the grader's
    limit for a cell.
    """
    if not hasattr(signal, "SIGPROF") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: Any) -> None:
        raise TooSlow

    old = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1)  # again every second, if the first was swallowed
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)
