"""How long a study would take on a GPU, from the operations of its network and the images that it reads.

An estimate to plan by, not a measurement: the throughput is assumed, and reading images from disk is not counted.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode

from kd3a import models
from kd3a.domains import Domain, Part, Task
from kd3a.methods import METHODS
from kd3a.runs import Run, make_run, start
from kd3a.settings import Hardware, Settings, Training
from kd3a.study import Study
from kd3a.traffic import BATCH
from kd3a.weighting import SAMPLES

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


FEW = SAMPLES  # target images that the counting begins with: as many as a method samples of them at the most
EPOCHS = 10  # at most, that are made to count


def images_of(method: str, config: Settings, training: Training, sources: int, train: int, test: int) -> Images:
    r"""Images of a run on a target with ``train`` and ``test`` images.

    Nothing here is a formula of any method. Three short runs on noise, with a tiny network, count what enters it: one
    with :math:`S` samples an epoch and :math:`N` target images, one with twice the samples, one with twice the images.
    In an epoch both numbers of images are :math:`a + b S + c N`. Scoring reads the test part once an epoch.
    """
    base, longer, larger = _counted(method, config.model_dump_json(), training.model_dump_json(), sources)
    tiny, samples = _tiny(training), training.batches_per_epoch * training.batch_size

    def scaled(name: str) -> int:
        first, more, wider = (getattr(images, name) for images in (base, longer, larger))
        total = first + (more - first) * (samples / tiny.epoch_samples - 1) + (wider - first) * (train / FEW - 1)
        return round(total * training.epochs / tiny.epochs)

    return Images(scaled("trained"), scaled("read") + training.epochs * test)


def _tiny(training: Training, times: int = 1) -> Training:
    """The training with few epochs of one batch a round, or of so many times as many samples."""
    few = times * BATCH * math.ceil(training.rounds_per_epoch)
    short = {"model": "mlp-small", "epochs": min(EPOCHS, training.epochs), "epoch_samples": few, "batch_size": BATCH}
    return training.model_copy(update=short)


@cache
def _counted(method: str, config: str, training: str, sources: int) -> tuple[Images, Images, Images]:
    """Images of the three runs of :func:`images_of`."""
    told, own = Training.model_validate_json(training), json.loads(config)
    runs = [make_run("noise", "target", method, 0, _tiny(told, times), own) for times in (1, 2)]
    plans = ((runs[0], FEW), (runs[1], FEW), (runs[0], 2 * FEW))
    return tuple(_count(run, _noise(sources, size)) for run, size in plans)


def _count(run: Run, task: Task) -> Images:
    """Make a run, and count what enters its networks with a gradient to follow and without."""
    passed = {True: 0, False: 0}

    def entered(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if isinstance(module, nn.Flatten):  # where mlp-small begins
            passed[torch.is_grad_enabled()] += len(inputs[0])

    hook = register_module_forward_pre_hook(entered)
    try:
        with torch.random.fork_rng([]):
            made = start(run, task, Hardware(device="cpu"))
            for stage in made.stages():
                made.run(stage)
    finally:
        hook.remove()
    return Images(passed[True], passed[False])


def _noise(sources: int, size: int) -> Task:
    """Sources with few images of noise and a target with ``size``."""
    generator = torch.Generator().manual_seed(0)

    def part(n: int) -> Part:
        return Part(torch.randint(0, 256, (n, 3, 8, 8), generator=generator, dtype=torch.uint8), torch.arange(n) % 2)

    few = tuple(Domain(f"source {k}", part(16), part(2)) for k in range(sources))
    return Task("noise", few, Domain("target", part(size), part(2)), ("one", "other"), "")


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
