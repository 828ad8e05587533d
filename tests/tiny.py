"""A task small enough to train in a test, and the methods every test runs on it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from kd3a import models
from kd3a.channel import Channel
from kd3a.domains import Domain, Part, Task
from kd3a.methods import METHODS
from kd3a.methods.base import Logs, Method
from kd3a.models import Net
from kd3a.settings import Hardware, Training
from kd3a.trainer import Trainer

CPU = Hardware(device="cpu", precision="float32")
TRAINING = Training(model="cnn-narrow", epochs=2, epoch_samples=24, batch_size=8, lr_begin=0.02)
SIZES = {"amber": 40, "beige": 24, "coral": 56, "denim": 48}  # three sources and the target, denim
LOW_GATE = {"gate_begin": 0.35, "gate_end": 0.4}  # after so few steps nobody is 90 % sure: no vote would be held

#: Every method as it is registered, and the variants of KD3A that take other ways through its code.
CASES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in METHODS} | {
    "kd3a": ("kd3a", LOW_GATE),
    "kd3a official": ("kd3a", {"variant": "official"} | LOW_GATE),
    "kd3a mmd loss": ("kd3a", {"batchnorm_mmd": "loss"} | LOW_GATE),
    "kd3a vote on stage": ("kd3a", {"vote_on": "stage"} | LOW_GATE),
    "kd3a backbone": ("kd3a", {"shared": "backbone"} | LOW_GATE),
    "kd3a without mixup": ("kd3a", {"mixup": 0.0} | LOW_GATE),
}


def part(size: int, shift: int, seed: int) -> Part:
    """8×8 images of three classes: the class's colour channel is bright; ``shift`` makes a domain lighter or darker."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(size)[torch.randperm(size, generator=generator)] % 3
    x = torch.randint(60, 100, (size, 3, 8, 8), generator=generator) + shift
    x[torch.arange(size), y] += 80
    return Part(x.to(torch.uint8), y)


def small(shape: tuple[int, ...], classes: int, dropout: float = 0.2) -> Net:
    """A network of two layers, where cnn-narrow would take too long, but with dropout."""
    layers = [nn.Flatten(), nn.Linear(math.prod(shape), 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout)]
    return Net(nn.Sequential(*layers), 8, classes)


models.MODELS["small"] = small  # settings know it from here on


def make_task() -> Task:
    domains = [Domain(n, part(size, 10 * i, i), part(30, 10 * i, 9 + i)) for i, (n, size) in enumerate(SIZES.items())]
    return Task("tiny", tuple(domains[:-1]), domains[-1], ("red", "green", "blue"), "0" * 64)


def relabelled(task: Task, *splits: str) -> Task:
    """The task with the target's labels of these splits replaced by others."""
    parts = {split: getattr(task.target, split) for split in splits}
    wrong = {split: replace(part, y=(part.y + 1) % 3) for split, part in parts.items()}
    return replace(task, target=replace(task.target, **wrong))


def make(case: str, task: Task, seed: int = 0, training: Training = TRAINING, hardware: Hardware = CPU) -> Method:
    name, config = CASES[case]
    method = METHODS[name]
    return method(task, method.Config(**config), Trainer(training, hardware, seed), Channel(task.target.name))


def train(method: Method, first: int = 0, last: int | None = None) -> list[Logs]:
    """Run the method's stages ``first`` to ``last``; each log also gets its stage and the loss on the sources."""
    logs = []
    for stage in method.stages()[first:last]:
        method.channel.round = stage.round
        log = method.run(stage)
        logs.append(log | {"stage": stage, "labelled": method.source_loss() if method.losses else log["loss"]})
    return logs


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two states are the same to the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
