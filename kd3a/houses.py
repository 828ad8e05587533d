"""The houses of the course's round: four sources and a target of small digits, trained in seconds.

The embedded digits at half their size, 16×16. A round is a function ``one_round(houses, shared) -> shared`` of these
houses and the shared model; :func:`play` plays all rounds with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from kd3a import data
from kd3a.batchnorm import State
from kd3a.domains import Batch, Domain, Part, Task
from kd3a.errors import UserError
from kd3a.losses import confidence_gate, distillation
from kd3a.methods.base import Method
from kd3a.models import contents, parcel, unpack
from kd3a.runs import accuracy, make_run, start
from kd3a.settings import Hardware, Training

TARGET = "mnist_m"
TRAINING = Training(epochs=8, epoch_samples=500)
HARDWARE = Hardware(device="cpu", precision="float32")


def _small(part: Part) -> Part:
    """The part with images of half the height and width."""
    return replace(part, x=F.avg_pool2d(part.x.float(), 2).round().to(torch.uint8))


@cache
def small_digits() -> Task:
    """The embedded digits at 16×16."""
    task = data.load("digits", target=TARGET)

    def shrunk(domain: Domain) -> Domain:
        return Domain(domain.name, _small(domain.train), _small(domain.test))

    return replace(task, sources=tuple(map(shrunk, task.sources)), target=shrunk(task.target))


def _started(name: str, seed: int) -> Method:
    """A method on the small digits, ready for its first round."""
    torch.set_num_threads(HARDWARE.threads)
    values = {"mixup": 0.0} | ({"vote_on": "all"} if name == "kd3a" else {})
    return start(make_run("digits", TARGET, name, seed, TRAINING, values), small_digits(), HARDWARE)


class Houses:
    """What a round may ask of the houses. Nobody hands out a sample, and nobody the target's labels."""

    def __init__(self, seed: int = 0):
        self.method = _started("kd3a", seed)
        self.stages = self.method.stages()
        self.stage = self.stages[0]
        self.names = list(self.method.sources)
        self.sizes = torch.tensor(self.method.task.sizes, dtype=torch.float)  # N_k, (K,)
        self.target_size = len(self.method.target.part)  # N_T

    @property
    def gate(self) -> float:
        """The confidence gate of this round."""
        return confidence_gate(self.stage.progress, self.method.config.gate_begin, self.method.config.gate_end)

    def train(self, shared: State) -> list[State]:
        """Every source trains the shared model on its own labelled samples; the K models that come back."""
        states = []
        for party in self.method.sources.values():
            unpack(party.net, shared)
            self.method.supervised(party, self.stage)
            states.append(copied(contents(parcel(party.net))))
        return states

    def ask(self, states: list[State]) -> Tensor:
        """What these K models say about the target's training samples: q, (N, K, C)."""
        method = self.method
        if len(states) != len(method.teachers):
            raise UserError(f"ask needs the {len(method.teachers)} models of the sources, not {len(states)}.")
        for teacher, state in zip(method.teachers, states, strict=True):
            unpack(teacher, state)
        return torch.stack([method.trainer.predict(t, method.target.part) for t in method.teachers], 1)

    def distil(self, shared: State, p: Tensor, n: Tensor) -> State:
        """The target trains ``shared`` on the consensus p (N, C) with weights n (N,); the model that this gives."""
        method = self.method
        unpack(method.target.net, shared)

        def loss(batch: Batch, step: int) -> Tensor:
            return distillation(method.target.net(batch.x), p[batch.index], n[batch.index])

        method.trainer.local(method.target, self.stage, loss)
        return copied(contents(parcel(method.target.net)))

    def accuracy(self, shared: State) -> float:
        """Share of the target's test samples that a model classifies correctly: for scoring only."""
        unpack(self.method.net, shared)
        return accuracy(self.method)


Round = Callable[[Houses, State], State]


def copied(state: State) -> State:
    return {name: tensor.clone() for name, tensor in state.items()}


def play(one_round: Round, seed: int = 0, on_round: Callable[[float], None] = lambda reached: None) -> float:
    """Play all rounds; returns the accuracy of the last shared model on the target.

    Args:
        on_round: is given the accuracy after every round.
    """
    houses = Houses(seed)
    shared = copied(contents(parcel(houses.method.net)))
    for stage in houses.stages:
        houses.stage = stage
        shared = one_round(houses, shared)
        wrong = [name for name, tensor in shared.items() if not torch.isfinite(tensor.float()).all()]
        if wrong:
            raise UserError(f"After round {stage.round + 1} the shared model's {wrong[0]} is not finite.")
        on_round(houses.accuracy(shared))
    return houses.accuracy(shared)


@cache
def source_only(seed: int = 0) -> float:
    """Accuracy on the target of one model, trained as long on the pooled samples of all sources."""
    method = _started("source-only", seed)
    for stage in method.stages():
        method.run(stage)
    return accuracy(method)
