"""What a method sends in a run, without the cost of one: the first two rounds and the last of each phase are made, with
one tiny batch each.

Nothing here is a formula of any method: a phase's second round stands for all up to its last, and what goes with every
batch or for every sample is scaled up to the true ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from kd3a.channel import KINDS
from kd3a.domains import Domain, Part, Task
from kd3a.methods.base import Method
from kd3a.methods.weighted import SAMPLES
from kd3a.runs import make_run, start
from kd3a.settings import Hardware, Training
from kd3a.trainer import Stage

PER_BATCH = ("features", "feature_grads")  # what is sent with every batch; everything else goes once a round
BATCH = 4


def traffic(method: str, task: Task, training: Training, config: dict | None = None) -> dict[str, float]:
    """Bytes that cross in a run, by kind, when ``method`` trains as ``training`` says."""
    tiny = training.model_copy(update={"epoch_samples": BATCH, "batch_size": BATCH, "rounds_per_epoch": 1.0})
    small = task_of_few(task, 4 * BATCH)
    with torch.random.fork_rng([]):
        whole, sample = (
            start(make_run(task.dataset, task.target.name, method, 0, told, config or {}), some, Hardware(device="cpu"))
            for told, some in ((training, task), (tiny, small))
        )
        total = Counter({kind: float(whole.channel.bytes(kind=kind)) for kind in KINDS})  # data cross before training
        rounds = Counter(stage.phase for stage in whole.stages())
        for phase in rounds:
            stages = [stage for stage in sample.stages() if stage.phase == phase]  # an epoch each
            sent = [send(sample, stages[i]) for i in sorted({0, min(1, len(stages) - 1), len(stages) - 1})]
            for kind in KINDS:
                often, size = rounds[phase], 1.0
                if kind in PER_BATCH:
                    often, size = len(stages), training.batches_per_epoch * training.batch_size / BATCH
                elif kind == "sampled_features":
                    size = sampled(task) / sampled(small)
                first, middle, last = (sent[i][kind] for i in (0, min(1, len(sent) - 1), -1))
                total[kind] += size * (first + (often - 2) * middle + last if often > 1 else first)
    return {kind: total[kind] for kind in KINDS if total[kind]}


def send(method: Method, stage: Stage) -> dict[str, int]:
    """Make one round; bytes that crossed in it, by kind."""
    method.channel.ledger.clear()
    method.run(stage)
    return {kind: method.channel.bytes(kind=kind) for kind in KINDS}


def sampled(task: Task) -> int:
    """Of how many samples sources show features in a round, where they do."""
    return sum(min(SAMPLES, len(source.train)) for source in task.sources)


def task_of_few(task: Task, n: int) -> Task:
    """The task with at most ``n`` samples in every part."""

    def few(part: Part) -> Part:
        return replace(part, **{name: tensor[:n] for name, tensor in part.tensors().items()})

    def shorter(domain: Domain) -> Domain:
        return replace(domain, train=few(domain.train), test=few(domain.test))

    return replace(task, sources=tuple(map(shorter, task.sources)), target=shorter(task.target))


def in_words(sent: dict[str, float], epochs: int) -> str:
    """``17.6 MB an epoch: params 351.8 MB, buffers 0.4 MB in all``."""
    if not sent:
        return "nothing"
    kinds = ", ".join(f"{kind} {amount / 1e6:,.3g} MB" for kind, amount in sent.items())
    return f"{sum(sent.values()) / epochs / 1e6:,.3g} MB an epoch; in all {kinds}"
