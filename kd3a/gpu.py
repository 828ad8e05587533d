"""How long a study would take on a GPU, from the operations of its network and the images that it reads.

An estimate to plan by, not a measurement: the throughput is assumed, and reading images from disk is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode

from kd3a import models
from kd3a.methods import METHODS
from kd3a.settings import Settings, Training
from kd3a.study import Study

#: Images of DomainNet's official lists, cleaned version: training and test part of every domain.
DOMAINNET = {
    "clipart": (33_525, 14_604),
    "infograph": (36_023, 15_582),
    "painting": (50_416, 21_850),
    "quickdraw": (120_750, 51_750),
    "real": (120_906, 52_041),
    "sketch": (48_212, 20_916),
}
BACKWARD = 2  # a backward pass costs two forward passes: by the weights and by the inputs


@cache
def forward_flops(model: str, shape: tuple[int, ...], classes: int) -> int:
    """Floating-point operations of one image's forward pass, a multiplication and an addition counted as two.

    The network is built without its weights, on PyTorch's device ``meta``: nothing is computed.
    """
    make = models.MODELS[f"{model}-random" if f"{model}-random" in models.MODELS else model]
    with torch.device("meta"):
        net = make(shape, classes).eval()
        with FlopCounterMode(display=False) as counter:
            net(torch.empty(1, *shape))
    return counter.get_total_flops()


@dataclass(frozen=True)
class Images:
    """What a run sends through networks: images it trains on, and images it only reads."""

    trained: int
    read: int

    def flops(self, forward: int) -> int:
        """Operations of the run, given those of one image's forward pass."""
        return ((1 + BACKWARD) * self.trained + self.read) * forward


def images_of(method: str, config: Settings, training: Training, sources: int, train: int, test: int) -> Images:
    r"""Images of a run on a target with ``train`` and ``test`` images.

    In every one of E epochs a network sees S images. Oracle and Source-only train one network, FedAvg K, KD3A K + 1. In
    every round K teachers of KD3A read the V target images that are voted on, all or those of the round, and scoring
    reads the test part once an epoch:

    .. math:: \text{trained} = E (K + 1) S, \qquad \text{read} = E \, (r K V + N_\text{test})
    """
    networks = {"oracle": 1, "source-only": 1, "fedavg": sources, "kd3a": sources + 1}[method]
    seen, votes = training.batches_per_epoch * training.batch_size, 0
    if method == "kd3a":
        visited = config.vote_on == "stage" or config.teachers == "train"
        votes = sources * (seen if visited else round(training.rounds_per_epoch * train))
    return Images(training.epochs * networks * seen, training.epochs * (votes + test))


def hours(flops: float, teraflops: float) -> float:
    """Hours at so many sustained tera-operations a second.

    >>> hours(3.6e15, 1)
    1.0
    """
    return flops / (teraflops * 1e12) / 3600


def estimate(
    study: Study, sizes: dict[str, tuple[int, int]], shape: tuple[int, ...], classes: int, teraflops: float
) -> pd.DataFrame:
    """Per row of a study: images of a run in millions and GPU-hours, as means over targets; then the hours of all runs.

    Args:
        sizes: training and test images of every domain.
        shape: of one image, (C, H, W).
    """
    forward = forward_flops(study.training.model, shape, classes)
    lines = {}
    for entry in study.methods:
        told = (METHODS[entry.method].Config.read(entry.config), study.training_of(entry), len(sizes) - 1)
        runs = [images_of(entry.method, *told, *sizes[target]) for target in study.domains()]
        each = [hours(run.flops(forward), teraflops) for run in runs]
        lines[entry.title] = {
            "images trained on (M)": sum(run.trained for run in runs) / len(runs) / 1e6,
            "images read (M)": sum(run.read for run in runs) / len(runs) / 1e6,
            "GPU-hours of a run": sum(each) / len(each),
            "GPU-hours of all runs": sum(each) * len(study.seeds),
        }
    return pd.DataFrame(lines).T
