"""Assignment 2: Consensus Focus and Shapley values. Values are asked of games, whose worth is known for every set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from kd3a.checks.core import Case, Question, Student, close, number, numbers, require
from kd3a.checks.vote import answer, ballot
from kd3a.consensus import consensus_quality

Game = Callable[[tuple[int, ...]], float]
GATE = 0.9


# --- the quality of a coalition -----------------------------------------------------------------------------------


def _quality_basics(quality: Student) -> None:
    q = torch.tensor([[[0.95, 0.05], [0.97, 0.03]]])
    require(number(quality(q, GATE, (0, 1))) > 0, "two teachers agree, and the consensus has no quality")


QUALITY = Question("quality", "quality(q, gate, coalition) -> number", _quality_basics)


def _agreeing(samples: int, teachers: int, classes: int, rng: np.random.Generator) -> Tensor:
    rows = [
        ballot(*(answer(classes, i % classes, rng.uniform(0.92, 0.99), rng) for _ in range(teachers)))
        for i in range(samples)
    ]
    return torch.cat(rows)


def _one_sample(rng: np.random.Generator) -> Iterator[Case]:
    for teachers, classes in ((1, 2), (2, 2), (3, 3), (4, 10)):
        yield {"q": _agreeing(1, teachers, classes, rng), "coalition": tuple(range(teachers))}


@QUALITY.property("support times confidence", 2, _one_sample)
def _support(quality: Student, q: Tensor, coalition: tuple[int, ...]) -> None:
    """For one sample the quality is the number of supporters times the largest probability of their consensus."""
    value = number(quality(q, GATE, coalition))
    require(close(value, consensus_quality(q, GATE, list(coalition)).item()), "it is not that product")


def _samples(rng: np.random.Generator) -> Iterator[Case]:
    for samples, teachers, classes in ((2, 1, 2), (2, 2, 2), (5, 3, 3), (20, 4, 10)):
        yield {"q": _agreeing(samples, teachers, classes, rng), "coalition": tuple(range(teachers))}


@QUALITY.property("samples add up", 1, _samples)
def _adds(quality: Student, q: Tensor, coalition: tuple[int, ...]) -> None:
    """The quality is a sum over the target's samples: every sample brings what it brings alone."""
    alone = sum(number(quality(sample[None], GATE, coalition)) for sample in q)
    require(close(number(quality(q, GATE, coalition)), alone), "the last call had all samples, and it is not the sum")


def _members(rng: np.random.Generator) -> Iterator[Case]:
    for teachers, classes in ((2, 2), (3, 3), (5, 10)):
        for size in range(1, teachers):
            q = _agreeing(1, teachers, classes, rng)
            yield {"q": q, "coalition": tuple(sorted(rng.choice(teachers, size, replace=False).tolist()))}


@QUALITY.property("outsiders are not heard", 2, _members)
def _outsiders(quality: Student, q: Tensor, coalition: tuple[int, ...]) -> None:
    """Only members vote: what the others say does not matter, as long as they are sure of the same class."""
    other = q.clone()
    outside = [k for k in range(q.shape[1]) if k not in coalition]
    other[:, outside] = 0.5 * q[:, outside] + 0.5 * torch.eye(q.shape[2])[q[:, outside].argmax(-1)]
    values = number(quality(q, GATE, coalition)), number(quality(other, GATE, coalition))
    require(close(*values), "the second call had the outsiders surer, and the quality is another")


def _overruled(rng: np.random.Generator) -> Iterator[Case]:
    for outsiders in (2, 3):
        for classes in (2, 3, 10):
            rows = [answer(classes, 1, 0.95, rng), *(answer(classes, 0, 0.96, rng) for _ in range(outsiders))]
            yield {"q": ballot(*rows), "coalition": (0,)}


@QUALITY.property("every coalition holds its own vote", 2, _overruled)
def _own_vote(quality: Student, q: Tensor, coalition: tuple[int, ...]) -> None:
    """A member that all teachers together would outvote may well win the vote of its own coalition."""
    require(number(quality(q, GATE, coalition)) > 0.5, "its own vote has a supporter, and this quality is too low")


@QUALITY.property("nobody has no quality", 1, _one_sample)
def _nobody(quality: Student, q: Tensor, coalition: tuple[int, ...]) -> None:
    """The empty coalition has the quality 0."""
    require(number(quality(q, GATE, ())) == 0, "this is for the coalition ()")


# --- what one source is worth ---------------------------------------------------------------------------------------


class Table:
    """A game as a callable table; it shows itself, so that a counter-example can be read."""

    def __init__(self, worth: dict[tuple[int, ...], float]):
        self.worth = worth

    def __call__(self, coalition) -> float:
        return self.worth[tuple(sorted(int(k) for k in coalition))]

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{c}: {v:.4g}" for c, v in self.worth.items()) + "}"


def coalitions(players: int) -> list[tuple[int, ...]]:
    return [c for size in range(players + 1) for c in combinations(range(players), size)]


def rising(players: int, rng: np.random.Generator) -> Table:
    """A game in which nobody does harm: additive parts and, on top, what pairs and triples can do together."""
    extra = {c: float(rng.uniform(0.5, 2)) for c in coalitions(players) if len(c) > 1}
    own = rng.uniform(1, 3, players)
    worth = {
        c: float(sum(own[k] for k in c) + sum(v for e, v in extra.items() if set(e) <= set(c)))
        for c in coalitions(players)
    }
    return Table({c: round(v, 3) for c, v in worth.items()})


def _values(rule: Student, game: Table, players: int) -> np.ndarray:
    return numbers(rule(game, players), (players,))


def _games(*sizes: int):
    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for players in sizes:
            yield {"Q": rising(players, rng), "K": players}

    return cases


def _value_basics(rule: Student) -> None:
    game = Table({(): 0.0, (0,): 1.0, (1,): 2.0, (0, 1): 3.0})
    values = _values(rule, game, 2)
    require(values[1] > values[0], "player 1 brings twice as much as player 0, and its value is not larger")


LEAVE_ONE_OUT = Question("leave_one_out", "leave_one_out(Q, K) -> (K,) values", _value_basics)


@LEAVE_ONE_OUT.property("what is lost without it", 2, _games(2, 3, 4, 5))
def _lost(rule: Student, Q: Table, K: int) -> None:
    """Values stand to one another as the losses of quality that each source's leaving causes."""
    everybody = tuple(range(K))
    lost = np.array([Q(everybody) - Q(tuple(j for j in everybody if j != k)) for k in everybody])
    values = _values(rule, Q, K)
    require(np.abs(values).sum() > 0, "all values are 0")
    require(close(values / np.abs(values).sum(), lost / lost.sum()), "they are not in that proportion")


@LEAVE_ONE_OUT.property("values are not rescaled", 2, _games(2, 3, 4))
def _scale(rule: Student, Q: Table, K: int) -> None:
    """A value is in the unit of quality: where every quality is doubled, so is every value."""
    doubled = Table({c: 2 * v for c, v in Q.worth.items()})
    values = _values(rule, Q, K), _values(rule, doubled, K)
    require(close(values[1], 2 * values[0]), "the second call had all qualities doubled")


def _harmful(rng: np.random.Generator) -> Iterator[Case]:
    for players in (2, 3, 4):
        game = rising(players, rng)
        last = players - 1
        best = max(game.worth.values())
        worth = {c: v if last not in c else v - best - 1 for c, v in game.worth.items()}
        yield {"Q": Table(worth), "K": players}


@LEAVE_ONE_OUT.property("harm is negative", 1, _harmful)
def _harm(rule: Student, Q: Table, K: int) -> None:
    """A source whose leaving raises the quality has a negative value, and it is returned as it is."""
    require(_values(rule, Q, K)[-1] < -1e-6, "the last source does harm, and its value is not negative")


@LEAVE_ONE_OUT.property("one source alone", 1, _games(1))
def _alone(rule: Student, Q: Table, K: int) -> None:
    """A single source is worth something: without it nobody is left."""
    require(_values(rule, Q, K)[0] > 0, "its value is not positive")


SHAPLEY = Question("shapley", "shapley(Q, K) -> (K,) values", _value_basics)


@SHAPLEY.property("efficient", 3, _games(3, 4, 5))
def _efficient(rule: Student, Q: Table, K: int) -> None:
    """The values add up to the quality of all sources together."""
    require(close(_values(rule, Q, K).sum(), Q(tuple(range(K)))), "their sum is another")


def _with_null(rng: np.random.Generator) -> Iterator[Case]:
    for players in (2, 3, 4):
        game = rising(players - 1, rng)
        worth = {c: game(tuple(k for k in c if k != players - 1)) for c in coalitions(players)}
        yield {"Q": Table(worth), "K": players}


@SHAPLEY.property("a null player gets nothing", 2, _with_null)
def _null(rule: Student, Q: Table, K: int) -> None:
    """A source that never changes the quality has the value 0."""
    require(close(_values(rule, Q, K)[-1], 0.0), "the last source never changes anything, and it has a value")


def _with_twins(rng: np.random.Generator) -> Iterator[Case]:
    for players in (3, 3, 4, 5):
        bonus = np.cumsum(rng.uniform(0.5, 2, players + 1))
        worth = {c: round(float(bonus[len(c)] - bonus[0]), 3) for c in coalitions(players)}
        yield {"Q": Table(worth), "K": players}


@SHAPLEY.property("equals get the same", 2, _with_twins)
def _symmetric(rule: Student, Q: Table, K: int) -> None:
    """Sources that can take one another's place in every coalition have the same value."""
    values = _values(rule, Q, K)
    require(close(values, np.full(K, values.mean())), "all sources are alike here, and their values differ")


def _two_games(rng: np.random.Generator) -> Iterator[Case]:
    for players in (3, 4):
        yield {"Q": rising(players, rng), "other": rising(players, rng), "K": players}


@SHAPLEY.property("additive", 2, _two_games)
def _additive(rule: Student, Q: Table, other: Table, K: int) -> None:
    """The values of the sum of two games are the sums of their values."""
    both = Table({c: v + other(c) for c, v in Q.worth.items()})
    parts = _values(rule, Q, K) + _values(rule, other, K)
    require(close(_values(rule, both, K), parts), "the third call had the sum of the two games")


# --- from values to weights -----------------------------------------------------------------------------------------


def _weight_basics(weights: Student) -> None:
    values = numbers(weights(torch.tensor([2.0, 2.0]), torch.tensor([10.0, 10.0]), 10), (3,))
    require(np.isfinite(values).all() and close(values[0], values[1]), "two equal sources have different weights")


WEIGHTS = Question("domain_weights", "domain_weights(focus, sizes, target_size) -> (K + 1,) weights", _weight_basics)


def _houses(rng: np.random.Generator) -> Iterator[Case]:
    for players in (2, 3, 5):
        focus = torch.from_numpy(rng.uniform(1, 5, players)).float()
        sizes = torch.from_numpy(rng.integers(10, 100, players)).float()
        yield {"focus": focus, "sizes": sizes, "target_size": int(rng.integers(10, 100))}


def _weigh(weights: Student, focus: Tensor, sizes: Tensor, target_size: int) -> np.ndarray:
    return numbers(weights(focus, sizes, target_size), (len(focus) + 1,))


@WEIGHTS.property("the distilled domain goes by size", 1, _houses)
def _target_share(weights: Student, focus: Tensor, sizes: Tensor, target_size: int) -> None:
    """The last weight is the target's share of all samples."""
    share = target_size / (sizes.sum().item() + target_size)
    require(close(_weigh(weights, focus, sizes, target_size)[-1], share), "the last weight is another")


@WEIGHTS.property("focus counts", 1, _houses)
def _focus_counts(weights: Student, focus: Tensor, sizes: Tensor, target_size: int) -> None:
    """Among sources of one size, weights stand to one another as the values do."""
    alike = torch.full_like(sizes, 50.0)
    w = _weigh(weights, focus, alike, target_size)[:-1]
    require(close(w / w.sum(), focus / focus.sum()), "this call had all sizes 50")


@WEIGHTS.property("size counts", 1, _houses)
def _size_counts(weights: Student, focus: Tensor, sizes: Tensor, target_size: int) -> None:
    """Among sources of one value, weights stand to one another as the sizes do."""
    w = _weigh(weights, torch.full_like(focus, 2.0), sizes, target_size)[:-1]
    require(close(w / w.sum(), sizes / sizes.sum()), "this call had all values 2")


def _one_bad(rng: np.random.Generator) -> Iterator[Case]:
    for case in _houses(rng):
        case["focus"][-1] *= -1
        yield case


@WEIGHTS.property("a negative value counts as zero", 1, _one_bad)
def _no_negative(weights: Student, focus: Tensor, sizes: Tensor, target_size: int) -> None:
    """A source with a negative value has no weight."""
    require(close(_weigh(weights, focus, sizes, target_size)[len(focus) - 1], 0.0), "the last source has a weight")


@WEIGHTS.property("weights sum to one", 1, lambda rng: [*_houses(rng), *_one_bad(rng)])
def _sum(weights: Student, focus: Tensor, sizes: Tensor, target_size: int) -> None:
    """All K + 1 weights together are one: what a silenced source loses, the other sources gain."""
    require(close(_weigh(weights, focus, sizes, target_size).sum(), 1.0), "their sum is another")
