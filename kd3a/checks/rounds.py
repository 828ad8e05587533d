"""Assignment 4: the round. What a student's round asks of the houses is recorded; then it plays for real."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor

from kd3a.batchnorm import State
from kd3a.checks.core import Case, Question, Student, close, numbers, require
from kd3a.checks.vote import answer, ballot
from kd3a.consensus import consensus_focus, knowledge_vote
from kd3a.houses import play, source_only
from kd3a.weighting import domain_weights

GATE = 0.9

# --- the average of models ------------------------------------------------------------------------------------------


def _states(models: int, rng: np.random.Generator) -> list[State]:
    """Small models: a weight, a BatchNorm layer and a counter."""
    return [
        {
            "weight": torch.from_numpy(rng.normal(0, 1, 2)).float(),
            "norm.running_mean": torch.tensor([4.0 * k]),
            "norm.running_var": torch.tensor([1.0]),
            "norm.num_batches_tracked": torch.tensor(10 + k),
        }
        for k in range(models)
    ]


def _averaged(average: Student, states: list[State], alpha: Tensor, name: str) -> Tensor:
    merged = average(states, alpha)
    require(isinstance(merged, dict), "a dict of tensors was expected, as each of the states is")
    require(name in merged, f"the average has no {name}")
    require(isinstance(merged[name], Tensor), f"{name} is not a tensor")
    return merged[name]


def _average_basics(average: Student) -> None:
    one = {"weight": torch.ones(2)}
    merged = _averaged(average, [one, one], torch.tensor([0.5, 0.5]), "weight")
    require(close(merged, one["weight"]), "the average of two equal models is another model")


AVERAGE = Question("average", "average(states, alpha) -> state", _average_basics)


def _models(rng: np.random.Generator) -> Iterator[Case]:
    for models in (2, 3, 5):
        alpha = torch.full((models,), 0.1)
        alpha[-1] = 1 - 0.1 * (models - 1)
        yield {"states": _states(models, rng), "alpha": alpha}


def _equal_weights(rng: np.random.Generator) -> Iterator[Case]:
    for models in (2, 3, 5):
        yield {"states": _states(models, rng), "alpha": torch.full((models,), 1 / models)}


@AVERAGE.property("alpha weighs the models", 1, _models)
def _alpha(average: Student, states: list[State], alpha: Tensor) -> None:
    """Every weight and every running mean is the sum over the models, each times its alpha."""
    for name in ("weight", "norm.running_mean"):
        expected = (alpha[:, None] * torch.stack([s[name] for s in states])).sum(0)
        require(close(_averaged(average, states, alpha, name), expected), f"{name} is another")


@AVERAGE.property("variances take the spread", 2, _equal_weights)
def _spread(average: Student, states: list[State], alpha: Tensor) -> None:
    """Running variances go through second moments: models with different means have a larger variance together."""
    variance = _averaged(average, states, alpha, "norm.running_var")
    means = torch.stack([s["norm.running_mean"] for s in states])
    require(close(variance, 1 + means.var(0, unbiased=False)), "norm.running_var is another")


@AVERAGE.property("counters are not averaged", 1, _equal_weights)
def _counters(average: Student, states: list[State], alpha: Tensor) -> None:
    """An integer tensor counts batches; it is taken from the first model as it is."""
    name = "norm.num_batches_tracked"
    merged = _averaged(average, states, alpha, name)
    fine = not merged.is_floating_point() and int(merged) == int(states[0][name])
    require(fine, f"{name} is not the first model's")


@AVERAGE.property("the models stay as they are", 1, _equal_weights)
def _untouched(average: Student, states: list[State], alpha: Tensor) -> None:
    """Averaging does not change the models that are averaged."""
    before = [{name: t.clone() for name, t in s.items()} for s in states]
    average.student(states, alpha)
    same = all(torch.equal(t, old[name]) for s, old in zip(states, before, strict=True) for name, t in s.items())
    require(same, "afterwards the states are not what they were")


# --- one round --------------------------------------------------------------------------------------------------------


class Recorded:
    """Houses that train nothing and remember what they were asked. Model k of K + 1 is the k-th unit vector, so the
    weights of an average can be read off it."""

    def __init__(self, q: Tensor, sizes: Tensor, target_size: int):
        self.q, self.sizes, self.target_size, self.gate = q, sizes, target_size, GATE
        self.began: list[State] = []
        self.learned: tuple[Tensor, Tensor] | None = None

    def _unit(self, k: int) -> State:
        return {"w": torch.eye(len(self.sizes) + 1)[k]}

    def train(self, shared: State) -> list[State]:
        self.began.append(shared)
        return [self._unit(k) for k in range(len(self.sizes))]

    def ask(self, states: list[State]) -> Tensor:
        require(len(states) == len(self.sizes), f"{len(states)} models were asked, there are {len(self.sizes)} sources")
        return self.q.clone()

    def distil(self, shared: State, p: Tensor, n: Tensor) -> State:
        self.began.append(shared)
        self.learned = p, n
        return self._unit(len(self.sizes))


def _played(one_round: Student, case: Case) -> tuple[Recorded, np.ndarray]:
    """The houses after a student's round, and the weights of the model it returned."""
    houses = Recorded(**case)
    state = one_round.student(houses, {"w": torch.full((len(houses.sizes) + 1,), 7.0)})
    require(isinstance(state, dict) and "w" in state, "a round returns the new shared model, a dict of tensors")
    return houses, numbers(state["w"], (len(houses.sizes) + 1,))


def _round_basics(one_round: Student) -> None:
    rng = np.random.default_rng(0)
    houses, _ = _played(one_round, next(iter(_houses(rng))))
    require(len(houses.began) == 2, "train and distil should be called once each")


ONE_ROUND = Question("one_round", "one_round(houses, shared) -> shared", _round_basics)


def _houses(rng: np.random.Generator) -> Iterator[Case]:
    for sources, samples in ((2, 2), (3, 4), (4, 6)):
        rows = []
        for i in range(samples):
            answers = [answer(3, i % 3, rng.uniform(0.92, 0.99), rng) for _ in range(sources)]
            answers[i % sources] = answer(3, (i + 1) % 3, 0.6, rng)  # one is unsure
            rows.append(ballot(*answers))
        sizes = torch.from_numpy(rng.integers(20, 90, sources)).float()
        yield {"q": torch.cat(rows), "sizes": sizes, "target_size": 50}


@ONE_ROUND.property("everybody begins with the shared model", 1, _houses)
def _begin(one_round: Student, **case) -> None:
    """Sources and student start from the model that was shared, not from one another's."""
    houses, _ = _played(one_round, case)
    require(all(close(s["w"], torch.full_like(s["w"], 7.0)) for s in houses.began), "somebody began with another model")


@ONE_ROUND.property("the student learns the vote", 2, _houses)
def _learns(one_round: Student, **case) -> None:
    """What is distilled is the Knowledge Vote of the teachers' answers, with its weights."""
    houses, _ = _played(one_round, case)
    p, n = knowledge_vote(houses.q, houses.gate)
    given = numbers(houses.learned[0], tuple(p.shape)), numbers(houses.learned[1], tuple(n.shape))
    require(close(given[0], p), f"distil was given p = {numbers(houses.learned[0]).round(3).tolist()}")
    require(close(given[1], n), f"distil was given n = {numbers(houses.learned[1]).round(3).tolist()}")


@ONE_ROUND.property("the student takes part", 1, _houses)
def _takes_part(one_round: Student, **case) -> None:
    """The distilled model is averaged in with the sources' models, by its share of all samples."""
    houses, weights = _played(one_round, case)
    if close(weights[:-1], np.zeros(len(weights) - 1)):  # the sources' part is the business of another property
        return
    share = houses.target_size / (houses.sizes.sum().item() + houses.target_size)
    require(close(weights[-1], share), "its weight is not its share")


@ONE_ROUND.property("sources weigh by size and focus", 2, _houses)
def _weigh(one_round: Student, **case) -> None:
    """Among the sources, weights stand to one another as N_k · CF_k."""
    houses, weights = _played(one_round, case)
    focus = consensus_focus(houses.q, houses.gate)
    expected = domain_weights(focus, houses.sizes, 0)[:-1]
    total = weights[:-1].sum()
    require(total > 0 and close(weights[:-1] / total, expected, 1e-3), "the sources' weights are others")


# --- for real ---------------------------------------------------------------------------------------------------------

BEATS_SOURCE_ONLY = Question(
    "beats_source_only", "one_round(houses, shared) -> shared, in play", answered_by="one_round"
)


@cache
def _reached(one_round: Student, seed: int) -> float:
    """A round is played once, however often it is checked."""
    return play(one_round, seed)


@BEATS_SOURCE_ONLY.property("better than source-only", 4, lambda rng: [{"seed": int(rng.integers(3))}], seconds=60)
def _better(one_round: Student, seed: int) -> None:
    """After all rounds the shared model is right more often on the target than one trained on the pooled sources."""
    reached, lower = _reached(one_round.student, seed), source_only(seed)
    require(reached > lower, f"accuracy on the target: {reached:.1%}; source-only: {lower:.1%}")
