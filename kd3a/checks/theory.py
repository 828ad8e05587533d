"""Assignment 5: the bounds on a finite hypothesis class. Tables and classes are as in :mod:`kd3a.bounds`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kd3a import bounds
from kd3a.checks.core import Case, Question, Student, close, number, numbers, require

# --- risk -------------------------------------------------------------------------------------------------------------


def _risks(risk: Student, H: np.ndarray, D: np.ndarray) -> np.ndarray:
    """The risks (M,); for a single hypothesis a number will do."""
    values = numbers(risk(H, D))
    require(values.size == len(H), f"{len(H)} hypotheses need as many risks, not {values.size}")
    return values.reshape(len(H))


def _risk_basics(risk: Student) -> None:
    values = _risks(risk, np.array([[0, 1]]), bounds.domain(np.ones(2), np.array([0, 1])))
    require(-1e-6 <= values[0] <= 1 + 1e-6, "a risk is a probability")


RISK = Question("risk", "risk(H, D) -> (M,) risks", _risk_basics)


def _guess(inputs: int, rng: np.random.Generator, classes: int = 2) -> np.ndarray:
    return rng.integers(classes, size=(1, inputs))


def _sure_labels(rng: np.random.Generator) -> Iterator[Case]:
    for inputs in (2, 3, 5, 8):
        mass = np.append(rng.uniform(0.1, 0.5, inputs - 1), 3.0)  # the last input is met most often
        yield {"H": _guess(inputs, rng), "D": bounds.domain(mass, rng.integers(2, size=inputs))}


@RISK.property("inputs count by probability", 1, _sure_labels)
def _weighed(risk: Student, H: np.ndarray, D: np.ndarray) -> None:
    """An input that is met more often counts more; whether errors or successes are counted is another question."""
    value = _risks(risk, H, D)
    require(close(np.abs(value - 0.5), np.abs(bounds.risks(H, D) - 0.5)), "the inputs do not count as D says")


@RISK.property("errors are counted", 1, lambda rng: [{"inputs": n} for n in (1, 2, 5)])
def _errors(risk: Student, inputs: int) -> None:
    """A hypothesis that is right on every input has no risk."""
    labels = np.arange(inputs) % 2
    value = _risks(risk, labels[None], bounds.domain(np.ones(inputs), labels))
    require(close(value, [0.0]), "the only hypothesis is right everywhere, all inputs are equally likely")


def _noisy(rng: np.random.Generator) -> Iterator[Case]:
    for inputs in (1, 2, 4):
        labels = rng.integers(2, size=inputs)
        yield {
            "H": _guess(inputs, rng),
            "D": bounds.domain(np.ones(inputs), labels, wrong=float(rng.uniform(0.2, 0.4))),
        }


@RISK.property("labels may be noisy", 1, _noisy)
def _noise(risk: Student, H: np.ndarray, D: np.ndarray) -> None:
    """An input may have one label sometimes and another at other times, and a hypothesis is wrong on a share of it."""
    value = _risks(risk, H, D)
    require(close(np.abs(value - 0.5), np.abs(bounds.risks(H, D) - 0.5)), "D gives some inputs two labels")


def _three_classes(rng: np.random.Generator) -> Iterator[Case]:
    for inputs in (3, 6):
        labels = np.arange(inputs) % 3
        yield {"H": np.stack([(labels + 1) % 3]), "D": bounds.domain(np.ones(inputs), labels, classes=3)}


@RISK.property("any number of classes", 1, _three_classes)
def _classes(risk: Student, H: np.ndarray, D: np.ndarray) -> None:
    """With three classes and a hypothesis that is never right, everything is an error."""
    value = _risks(risk, H, D)
    require(close(np.abs(value - 0.5), [0.5]), "the only hypothesis is wrong everywhere")


def _many(rng: np.random.Generator) -> Iterator[Case]:
    for hypotheses in (2, 3, 10):
        H = rng.integers(2, size=(hypotheses, 4))
        yield {"H": H, "D": bounds.domain(np.ones(4), rng.integers(2, size=4))}


@RISK.property("every hypothesis has its own", 1, _many)
def _each(risk: Student, H: np.ndarray, D: np.ndarray) -> None:
    """M hypotheses have M risks, in their order."""
    alone = [_risks(risk, row[None], D)[0] for row in H]
    require(close(_risks(risk, H, D), alone), "the last call had all hypotheses, and a risk is another than alone")


# --- divergence -------------------------------------------------------------------------------------------------------


def _divergence_basics(divergence: Student) -> None:
    apart = [bounds.domain(np.array(m), np.array([0, 1])) for m in ([1, 0], [0, 1])]
    value = number(divergence(np.array([[0, 0], [0, 1], [1, 1]]), *apart))
    require(value > 0.1, "two domains without a common input have no divergence")


DIVERGENCE = Question("divergence", "divergence(H, S, T) -> number", _divergence_basics)


def _problems(rng: np.random.Generator, sizes=((2, 3), (3, 4), (4, 6))) -> Iterator[Case]:
    for inputs, hypotheses in sizes:
        for _ in range(4):
            H = np.unique(rng.integers(2, size=(hypotheses, inputs)), axis=0)
            S, T = (bounds.domain(rng.dirichlet(np.ones(inputs)), rng.integers(2, size=inputs)) for _ in range(2))
            yield {"H": H, "S": S, "T": T}


@DIVERGENCE.property("labels do not matter", 2, lambda rng: _problems(rng))
def _inputs_only(divergence: Student, H: np.ndarray, S: np.ndarray, T: np.ndarray) -> None:
    """Hypotheses are compared with one another: domains with the same inputs and different labels are at distance 0."""
    relabelled = S[:, ::-1].copy()
    require(close(number(divergence(H, S, relabelled)), 0.0), "this call had S with all labels exchanged for T")


def _disjoint(rng: np.random.Generator) -> Iterator[Case]:
    for inputs in (2, 4):
        mass = np.zeros(inputs)
        mass[: inputs // 2] = 1
        H = np.array([np.zeros(inputs), np.arange(inputs) >= inputs // 2, np.ones(inputs)], dtype=int)
        labels = np.zeros(inputs, dtype=int)
        yield {"H": H, "S": bounds.domain(mass, labels), "T": bounds.domain(1 - mass, labels)}


@DIVERGENCE.property("twice the largest difference", 1, _disjoint)
def _twice(divergence: Student, H: np.ndarray, S: np.ndarray, T: np.ndarray) -> None:
    """The divergence goes up to 2, and domains that a pair of hypotheses tells apart entirely have it."""
    require(close(number(divergence(H, S, T)), 2.0), "S and T have no input in common here")


def _parities(rng: np.random.Generator) -> Iterator[Case]:
    for weight in (1.0, 3.0):
        mass = np.array([weight, 1.0, 1.0, weight])  # the corners of a square; two half-planes disagree on a diagonal
        H = np.array([[0, 0, 1, 1], [0, 1, 0, 1]])
        other = mass[[1, 0, 3, 2]] if weight > 1 else np.array([1.0, 3.0, 3.0, 1.0])
        yield {"H": H, "S": bounds.domain(mass, np.zeros(4, int)), "T": bounds.domain(other, np.zeros(4, int))}


@DIVERGENCE.property("pairs of hypotheses", 2, _parities)
def _pairs(divergence: Student, H: np.ndarray, S: np.ndarray, T: np.ndarray) -> None:
    """It is where two hypotheses disagree that is compared; each of them alone may see no difference at all."""
    require(number(divergence(H, S, T)) > 0.1, "no single hypothesis tells S from T here, but a pair does")


def _lopsided(rng: np.random.Generator) -> Iterator[Case]:
    H = np.array([[0, 0, 0], [0, 1, 0]])
    for low, high in ((0.1, 0.8), (0.2, 0.6)):
        S, T = (bounds.domain(np.array([(1 - m) / 2, m, (1 - m) / 2]), np.zeros(3, int)) for m in (low, high))
        yield {"H": H, "S": S, "T": T}


@DIVERGENCE.property("symmetric", 1, _lopsided)
def _symmetric(divergence: Student, H: np.ndarray, S: np.ndarray, T: np.ndarray) -> None:
    """From S to T it is as far as from T to S."""
    values = number(divergence(H, S, T)), number(divergence(H, T, S))
    require(close(*values), "the second call had S and T exchanged")


# --- the bound --------------------------------------------------------------------------------------------------------


def _bound_basics(bound: Student) -> None:
    values = numbers(bound(np.array([0.1, 0.3]), np.array([0.2, 0.2]), 0.5), (2,))
    require(np.isfinite(values).all(), "a bound is a finite number")


BOUND = Question("bound", "bound(source_risks, target_risks, d) -> (M,) bounds", _bound_basics)


def _worlds(rng: np.random.Generator) -> Iterator[Case]:
    for hypotheses in (2, 3, 8):
        source, target = np.sort(rng.uniform(0, 0.5, hypotheses)), np.sort(rng.uniform(0, 0.5, hypotheses))[::-1]
        yield {"source_risks": source.round(3), "target_risks": target.round(3).copy(), "d": 0.0}


@BOUND.property("half the divergence", 1, _worlds)
def _half(bound: Student, source_risks: np.ndarray, target_risks: np.ndarray, d: float) -> None:
    """A divergence of d adds d / 2 to every bound."""
    near, far = (numbers(bound(source_risks, target_risks, v), source_risks.shape) for v in (0.0, 1.2))
    require(close(far - near, np.full(len(near), 0.6)), "the second call had d = 1.2")


@BOUND.property("λ is one hypothesis' joint error", 2, _worlds)
def _joint(bound: Student, source_risks: np.ndarray, target_risks: np.ndarray, d: float) -> None:
    """λ is the least that a single hypothesis errs on both domains together, and the least that is added."""
    added = (numbers(bound(source_risks, target_risks, 0.0), source_risks.shape) - source_risks).min()
    floor = numbers(bound(source_risks, target_risks, 0.0)).min() - source_risks.min()
    least = (source_risks + target_risks).min()
    require(close(added, least) or close(floor, least), "with d = 0, the least that is added is another")


@BOUND.property("the same for all but the source risk", 2, _worlds)
def _same(bound: Student, source_risks: np.ndarray, target_risks: np.ndarray, d: float) -> None:
    """Two hypotheses' bounds differ by exactly as much as their source risks: the rest is a constant."""
    added = numbers(bound(source_risks, target_risks, d), source_risks.shape) - source_risks
    require(np.ptp(added) < 1e-6, "what is added to the source risk differs from hypothesis to hypothesis")
