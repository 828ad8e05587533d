"""Assignment 1: Knowledge Vote. Every case is one sample, except where samples are compared with one another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from kd3a.checks.core import Broken, Case, Cases, Question, Student, close, number, numbers, pair, require

GROWING = [(1, 2), (2, 2), (2, 3), (3, 3), (4, 5), (6, 10)]  # teachers, classes


def answer(classes: int, first: int, confidence: float, rng: np.random.Generator) -> np.ndarray:
    """Class probabilities with this first choice and confidence; the rest is spread at random, but nearly evenly."""
    rest = rng.uniform(0.9, 1.1, classes)
    rest[first] = 0
    q = (1 - confidence) * rest / rest.sum()
    q[first] = confidence
    return q


def hardly(classes: int) -> np.ndarray:
    """Class probabilities of one who hardly prefers class 1."""
    return np.full(classes, 1 / classes) + 0.01 * (np.eye(classes)[1] - np.eye(classes)[0])


def ballot(*answers: np.ndarray) -> Tensor:
    """The answers of K teachers about one sample, (1, K, C)."""
    return torch.from_numpy(np.stack(answers)[None]).float()


def asked(vote: Student, q: Tensor, gate: float) -> tuple[np.ndarray, np.ndarray]:
    """p (N, C) and n (N,) as a student's vote gives them."""
    p, n = pair(vote(q, gate), "p", "n")
    return numbers(p, (q.shape[0], q.shape[2])), numbers(n, (q.shape[0],))


def _basics(vote: Student) -> None:
    p, n = asked(vote, torch.tensor([[[0.04, 0.96], [0.02, 0.98]]]), 0.9)
    require(p[0].argmax() == 1 and n[0] > 0, "two teachers are sure of class 1, and the consensus is another")


KNOWLEDGE_VOTE = Question("knowledge_vote", "knowledge_vote(q, gate) -> p, n", _basics)
question = KNOWLEDGE_VOTE.property


def _at_the_gate(rng: np.random.Generator) -> Iterator[Case]:
    for gate in (0.75, 0.875, 0.5625):  # exact in binary
        for classes in (2, 3, 5):
            sure = answer(classes, 0, 0.95, rng)
            other = np.zeros(classes)
            other[:2] = gate, 1 - gate
            yield {"q": ballot(sure, other), "gate": gate}


@question("the gate is strict", 2, _at_the_gate)
def _strict(vote: Student, q: Tensor, gate: float) -> None:
    """A teacher whose confidence equals the gate is no more heard than one just below it."""
    below = q.clone()
    below[0, 1, :2] += torch.tensor([-1e-3, 1e-3])
    (_, at), (_, under) = asked(vote, q, gate), asked(vote, below, gate)
    require(close(at, under), "the second call had the last teacher a little less sure, and n is another")


def _unsure_majority(rng: np.random.Generator) -> Iterator[Case]:
    for unsure in (2, 3, 5):
        for classes in (2, 3, 10):
            sure = answer(classes, 0, 0.9, rng)
            yield {"q": ballot(sure, *(answer(classes, 1, 0.8, rng) for _ in range(unsure))), "gate": 0.85}


@question("only confident teachers vote", 2, _unsure_majority)
def _confident(vote: Student, q: Tensor, gate: float) -> None:
    """The class is elected by those who passed the gate; however many unsure ones prefer another, n stays as it is."""
    silent = q.clone()
    silent[0, 1:] = torch.from_numpy(hardly(q.shape[2])).to(q)
    (_, n), (_, alone) = asked(vote, q, gate), asked(vote, silent, gate)
    require(close(n, alone), "the second call had the unsure teachers almost without a preference, and n is another")


def _close_elections(rng: np.random.Generator) -> Iterator[Case]:
    for others in (2, 3, 4):
        for classes in (3, 4, 6):
            rows = [np.eye(classes)[0] * 0.9 + np.eye(classes)[2] * 0.1]
            for _ in range(others):
                share = rng.uniform(0.51, 0.54)
                rows.append(np.eye(classes)[1] * share + np.eye(classes)[0] * (1 - share))
            yield {"q": ballot(*rows), "gate": 0.5}


@question("probabilities are added, not heads", 2, _close_elections)
def _added(vote: Student, q: Tensor, gate: float) -> None:
    """The consensus class is the one with the largest sum of probabilities; a half-hearted majority may lose."""
    p, _ = asked(vote, q, gate)
    require(p[0].argmax() == 0, "the class that p names first is not the one with the largest sum")


def _one_more(numbers: tuple[int, ...], sizes: tuple[int, ...], choice: int, sure: float) -> Cases:
    """Teachers that are sure of class 0, and one more that names ``choice`` with probability ``sure``."""

    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for agreeing in numbers:
            for classes in sizes:
                rows = [answer(classes, 0, rng.uniform(0.93, 0.99), rng) for _ in range(agreeing)]
                yield {"q": ballot(*rows, answer(classes, choice, sure, rng)), "gate": 0.9}

    return cases


@question("dissenters are dropped", 2, _one_more((2, 3, 4), (2, 3, 10), choice=1, sure=0.95))
def _dropped(vote: Student, q: Tensor, gate: float) -> None:
    """A teacher that is sure of another class than the elected one supports nothing: n does not count it."""
    quiet = q.clone()
    quiet[0, -1] = torch.from_numpy(hardly(q.shape[2])).to(q)
    (_, n), (_, without) = asked(vote, q, gate), asked(vote, quiet, gate)
    require(close(n, without), "the second call had the dissenter silent, and n is another")


@question("the unsure do not support", 1, _one_more((1, 2, 4), (3, 4, 10), choice=0, sure=0.6))
def _unsure(vote: Student, q: Tensor, gate: float) -> None:
    """A teacher below the gate is no supporter, even if its first choice is the elected class."""
    turned = q.clone()
    turned[0, -1] = q[0, -1].roll(1)
    (_, n), (_, other) = asked(vote, q, gate), asked(vote, turned, gate)
    require(close(n, other), "the second call had the unsure teacher prefer another class, and n is another")


def _agreement(rng: np.random.Generator) -> Iterator[Case]:
    for teachers, classes in GROWING:
        rows = [answer(classes, 1, rng.uniform(0.92, 0.99), rng) for _ in range(teachers)]
        if teachers > 2:
            rows[rng.integers(teachers)] = answer(classes, 0, 0.55, rng)  # one is unsure
        yield {"q": ballot(*rows), "gate": 0.9}


@question("p is the mean of the supporters", 2, _agreement)
def _mean(vote: Student, q: Tensor, gate: float) -> None:
    """Where teachers support the consensus, p is the plain mean of what they, and nobody else, say."""
    sure = q[0].amax(-1) > gate
    require(close(asked(vote, q, gate)[0], q[:, sure].mean(1)), "p is not the supporters' mean")


@question("n is the number of supporters", 1, _agreement)
def _count(vote: Student, q: Tensor, gate: float) -> None:
    """Where teachers support the consensus, n says how many."""
    require(close(asked(vote, q, gate)[1], (q.amax(-1) > gate).sum(1)), "n is not how many support p")


def _nobody(rng: np.random.Generator) -> Iterator[Case]:
    for teachers, classes in GROWING:
        rows = [answer(classes, int(rng.integers(classes)), rng.uniform(0.6, 0.85), rng) for _ in range(teachers)]
        yield {"q": ballot(*rows), "gate": 0.9}


@question("nobody is sure: p", 1, _nobody)
def _fallback(vote: Student, q: Tensor, gate: float) -> None:
    """Where nobody passes the gate, everybody is averaged."""
    require(close(asked(vote, q, gate)[0], q.mean(1)), "p is not the mean of all")


@question("nobody is sure: n", 1, _nobody)
def _little(vote: Student, q: Tensor, gate: float) -> None:
    """Where nobody passes the gate, the weight is next to nothing, as the text says, but not nothing."""
    n = number(asked(vote, q, gate)[1])
    require(close(1000 * n, 1.0), "the weight is another")


def _batches(rng: np.random.Generator) -> Iterator[Case]:
    for samples, (teachers, classes) in zip((2, 2, 3, 5, 20), GROWING[1:], strict=True):
        rows = [
            ballot(*(answer(classes, i % classes, rng.uniform(0.91, 0.99), rng) for _ in range(teachers)))
            for i in range(samples)
        ]
        yield {"q": torch.cat(rows), "gate": 0.9}


@question("samples do not see one another", 1, _batches)
def _independent(vote: Student, q: Tensor, gate: float) -> None:
    """A batch gives for each sample what the sample alone gives."""
    alone = [asked(vote, sample[None], gate) for sample in q]
    p, n = asked(vote, q, gate)
    same = close(p, np.concatenate([a[0] for a in alone])) and close(n, np.concatenate([a[1] for a in alone]))
    require(same, "the last call had all samples together, and it is another result")


# --- the loss -----------------------------------------------------------------------------------------------------


def _loss_basics(loss: Student) -> None:
    p = torch.tensor([[0.7, 0.3]])
    require(abs(number(loss(p, torch.ones(1), p.clone()))) < 1e-3, "the student says p itself, and the loss is not 0")
    worse = number(loss(torch.tensor([[0.9, 0.1]]), torch.ones(1), torch.tensor([[0.1, 0.9]])))
    require(worse > 0.1, "the student contradicts p, and there is no loss")


VOTE_LOSS = Question("vote_loss", "vote_loss(p, n, student) -> number", _loss_basics)


def distribution(classes: int, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.dirichlet(np.full(classes, 2.0))).float()[None]


def divergence(p: Tensor, s: Tensor) -> float:
    p, s = p.double(), s.double()
    return float(torch.where(p > 0, p * (p.clamp(min=1e-30) / s).log(), 0.0).sum())


def _one_soft_label(rng: np.random.Generator) -> Iterator[Case]:
    for classes in (2, 2, 3, 5, 10):
        yield {"p": distribution(classes, rng), "n": torch.ones(1), "student": distribution(classes, rng)}


@VOTE_LOSS.property("the direction of KL", 2, _one_soft_label)
def _direction(loss: Student, p: Tensor, n: Tensor, student: Tensor) -> None:
    """For one sample with n = 1 the loss is KL(p‖student): the consensus comes first, and the logarithm is natural."""
    value = number(loss(p, n, student))
    if close(value, divergence(student, p)) and not close(value, divergence(p, student)):
        raise Broken("this is a divergence, but the two have changed places")
    require(close(value, divergence(p, student), 1e-3), "this is not that divergence")


def _weighted(rng: np.random.Generator) -> Iterator[Case]:
    for classes in (2, 3, 10):
        case = {"p": distribution(classes, rng), "student": distribution(classes, rng)}
        yield {"p": case["p"], "n": torch.tensor([float(rng.integers(2, 5))]), "student": case["student"]}


@VOTE_LOSS.property("n multiplies", 1, _weighted)
def _multiplies(loss: Student, p: Tensor, n: Tensor, student: Tensor) -> None:
    """A sample with n supporters counts n times as much as with one."""
    one = number(loss(p, torch.ones(1), student))
    require(close(number(loss(p, n, student)), one * n.item(), 1e-3), "the second call had this n, the first n = 1")


def _sure(rng: np.random.Generator) -> Iterator[Case]:
    for classes in (2, 3, 10):
        p = torch.nn.functional.one_hot(torch.tensor([classes - 1]), classes).float()
        yield {"p": p, "n": torch.ones(1), "student": distribution(classes, rng)}


@VOTE_LOSS.property("zeros in p are harmless", 1, _sure)
def _zeros(loss: Student, p: Tensor, n: Tensor, student: Tensor) -> None:
    """A class that the consensus excludes adds nothing: 0 log 0 = 0, and never NaN."""
    near = 0.9999 * p + 0.0001 / p.shape[1]
    value, beside = number(loss(p, n, student)), number(loss(near, n, student))
    require(np.isfinite(value), "the loss is not a finite number")
    require(abs(value - beside) < 0.02, "the last call had almost the same p, and it is quite another loss")


def _several(rng: np.random.Generator) -> Iterator[Case]:
    for samples, classes in ((2, 2), (3, 3), (8, 10)):
        p, s = (torch.cat([distribution(classes, rng) for _ in range(samples)]) for _ in range(2))
        yield {"p": p, "n": torch.ones(samples), "student": s}


@VOTE_LOSS.property("the mean over the batch", 1, _several)
def _batch_mean(loss: Student, p: Tensor, n: Tensor, student: Tensor) -> None:
    """The loss of a batch is the mean over its samples: twice the same batch costs no more."""
    twice = number(loss(p.repeat(2, 1), n.repeat(2), student.repeat(2, 1)))
    value = number(loss(p, n, student))
    alone = np.mean([number(loss(p[i : i + 1], n[i : i + 1], student[i : i + 1])) for i in range(len(p))])
    require(close(twice, value, 1e-3) and close(value, alone, 1e-3), "it is not the mean of what single samples cost")
