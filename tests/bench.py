"""What is claimed to be fast, measured: every line is a ratio of two things timed in the same run.

python tests/bench.py
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import reference
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from kd3a import data, models
from kd3a.consensus import VOTE, cast, check, focus, vote
from kd3a.data.streamed import StreamedPart
from kd3a.domains import Batch, Domain, Part, Task
from kd3a.runs import make_run, start
from kd3a.settings import Hardware, Training
from kd3a.trainer import Trainer, timeline


def seconds(work: Callable[[], object], repeats: int = 1) -> float:
    """Median duration of ``repeats`` calls."""
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def vote_and_focus(n: int = 10_000, teachers: int = 5, classes: int = 345) -> None:
    """Vectorised vote and focus, as a round of KD3A computes them, against loops that transcribe the paper.

    A quarter of the samples is one on which no teacher is sure. Runs in as many threads as torch takes by itself.
    """
    generator = torch.Generator().manual_seed(0)
    hot = torch.randint(classes, (n, 1, 1), generator=generator).expand(n, teachers, 1)
    lead = 12.0 * (torch.rand(n, 1, 1, generator=generator) > 0.25).expand(n, teachers, 1)
    q = torch.randn(n, teachers, classes, generator=generator).scatter_add(2, hot, lead).softmax(-1)
    array, gate = q.double().numpy(), 0.9
    loops = {
        ("paper", "leave-one-out"): lambda: (
            reference.knowledge_vote(array, gate),
            reference.consensus_focus(array, gate, "leave-one-out"),
        ),
        ("official", "shapley"): lambda: (reference.official_vote(array, gate), reference.official_focus(array, gate)),
    }
    times = []
    for (variant, value), loop in loops.items():
        switches = dict(VOTE[variant])
        class_vote, fallback = switches.pop("class_vote"), switches["fallback"]

        def fast() -> None:
            ballots = check(cast(q, class_vote), softmax=True)  # noqa: B023
            vote(ballots, gate, **switches), focus(ballots, gate, value, fallback)  # noqa: B023

        quick, slow = seconds(fast, 7), seconds(loop)
        times.append((quick, slow))
        what = f"vote + {value} ({variant}), N={n} K={teachers} C={classes}, {torch.get_num_threads()} threads"
        print(f"{what}: {quick * 1e3:.0f} ms, loops {slow:.1f} s: {slow / quick:.0f}×")
    quick, slow = (sum(column) for column in zip(*times, strict=True))
    print(f"both together: {slow / quick:.0f}×")


def bare_loop(task: Task, training: Training, steps: int) -> None:
    """The same tensors, model and optimiser in the fewest lines one would write by hand."""
    trainer = Trainer(training, Hardware(device="cpu"), seed=0)
    net, part = trainer.net(task), task.target.train
    optimiser = torch.optim.SGD(net.parameters(), 0.05, 0.9, fused=True)
    order = torch.randperm(len(part))
    size = training.batch_size
    for step in range(steps):
        index = order[(step * size) % (len(part) - size + 1) :][:size]
        loss = F.cross_entropy(net(part.x[index].float().div_(127.5).sub_(1)), part.y[index])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()


def trainer_against_bare_loop(task: Task) -> None:
    training = Training(epochs=1, epoch_samples=2000)
    trainer = Trainer(training, Hardware(device="cpu"), seed=0)
    party = trainer.party("bench", trainer.net(task), task.target.train)
    stage = timeline(1, training.batches_per_epoch)[0]

    def ours() -> None:
        trainer.local(party, stage, lambda batch, _: F.cross_entropy(party.net(batch.x), batch.y))

    ours(), bare_loop(task, training, 5)
    ratios = [seconds(lambda: bare_loop(task, training, len(stage))) / seconds(ours) for _ in range(5)]
    print(f"trainer against a bare loop: {statistics.median(ratios):.2f}× its speed (five pairs)")


def faded_momentum(size: int = 5_000_000) -> None:
    """The step on momentum that no gradient has renewed for long: PyTorch's, and the trainer's."""
    weight = torch.nn.Parameter(torch.randn(size))
    optimiser = torch.optim.SGD([weight], 0.05, 0.9, fused=True)
    weight.grad, times = torch.zeros(size), []
    trainer = Trainer(Training(), Hardware(device="cpu"), 0)
    for step in (optimiser.step, lambda: trainer.step(optimiser)):
        optimiser.state[weight]["momentum_buffer"] = torch.full((size,), 1e-40)
        times.append(seconds(step, 7))
    print(f"step on faded momentum: {times[0] / times[1]:.1f}× the speed of PyTorch's")


class Pictures(Dataset):
    """The usual way: PIL images, converted one by one."""

    def __init__(self, part: Part):
        self.images = [Image.fromarray(x) for x in part.x.permute(0, 2, 3, 1).numpy()]
        self.labels = part.y.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        array = np.array(self.images[i].resize((32, 32)))
        return torch.from_numpy(array).permute(2, 0, 1).float().div(127.5).sub(1), self.labels[i]


def resident_against_pil(task: Task) -> None:
    part, pictures = task.target.train, Pictures(task.target.train)

    def resident() -> None:
        for batch in part.batches(torch.randperm(len(part)).split(50)):
            batch.x.sum()

    def loader() -> None:
        for x, _ in DataLoader(pictures, batch_size=50, shuffle=True):
            x.sum()

    print(f"uint8 tensors against a PIL DataLoader: {seconds(loader, 3) / seconds(resident, 3):.0f}× faster batches")


def random_task(sources: int, samples: int) -> Task:
    generator = torch.Generator().manual_seed(0)

    def part(n: int) -> Part:
        x = torch.randint(256, (n, 3, 32, 32), generator=generator).to(torch.uint8)
        return Part(x, torch.randint(10, (n,), generator=generator))

    domains = [Domain(f"domain {k}", part(samples), part(100)) for k in range(sources + 1)]
    return Task("random", tuple(domains[1:]), domains[0], tuple("0123456789"), "random")


def round_cost() -> None:
    """Seconds of one KD3A round as the number of sources and of samples grows."""
    times = {}
    for sources, samples in ((2, 500), (4, 500), (8, 500), (4, 1000), (4, 2000)):
        training = Training(epochs=1, epoch_samples=samples)
        method = start(
            make_run("random", "domain 0", "kd3a", 0, training, {}),
            random_task(sources, samples),
            Hardware(device="cpu"),
        )
        stage = method.stages()[0]
        times[sources, samples] = seconds(lambda m=method, s=stage: m.run(s))
    base = times[4, 500]
    for (sources, samples), took in times.items():
        print(f"one KD3A round, K={sources}, N={samples} each: {took:.2f} s, {took / base:.2f}× that of K=4, N=500")


def generated(folder: Path, n: int, side: int) -> StreamedPart:
    """``n`` JPEG files of smooth coloured patterns, as a part that stays on disk."""
    rng, names = np.random.default_rng(0), [f"{i}.jpg" for i in range(n)]
    for name in names:
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        coarse.resize((side, side), Image.Resampling.BICUBIC).save(folder / name, quality=90)
    return StreamedPart.of(folder, names, [i % 10 for i in range(n)], size=side)


def resnet_steps(net: torch.nn.Module, batches: Iterable[Batch]) -> None:
    optimiser = torch.optim.SGD(net.parameters(), 0.01, 0.9, fused=True)
    for batch in batches:
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(net(batch.x), batch.y).backward()
        optimiser.step()


def streamed_against_cached() -> None:
    """Training steps of a ResNet-18 on images decoded from disk, against steps on the same images as tensors."""
    with TemporaryDirectory() as folder:
        streamed = generated(Path(folder), 160, 160)
        order = list(torch.arange(160).split(16))
        pixels = torch.cat([x for x, _ in streamed.read(order)])
        cached = Part(pixels, streamed.y, streamed.mean, streamed.std)
        net = models.build("resnet18-random", streamed.shape, 10, seed=0)
        resnet_steps(net, cached.batches(order[:1]))
        ratios = [
            seconds(lambda: resnet_steps(net, cached.batches(order)))
            / seconds(lambda: resnet_steps(net, streamed.batches(order)))
            for _ in range(3)
        ]
    print(
        f"ResNet-18 on streamed images: {statistics.median(ratios):.2f}× the step rate on cached tensors (three pairs)"
    )


def streaming_memory(n: int = 10_000) -> None:
    """Memory of the training process over three epochs of images from disk; workers hold a fixed number of batches."""
    with TemporaryDirectory() as folder:
        part, held = generated(Path(folder), n, 64), []
        for _ in range(3):
            for batch in part.batches(torch.randperm(n).split(50)):
                batch.x.sum()
            held.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(
        f"largest memory after each of three epochs of {n:,} streamed images: {', '.join(f'{m:.0f} MB' for m in held)}"
    )


def federated_round(digits: Task) -> None:
    """Rounds of KD3A with every source a node of its own on this machine, TLS on, against rounds in one process."""
    from kd3a.federation import demo  # where Flower is installed

    training = Training(model="cnn-narrow", epochs=4, epoch_samples=400, batch_size=20)
    run = make_run("digits", "mnist_m", "kd3a", 0, training, {})
    with TemporaryDirectory() as folder:
        c = demo.compare(run, digits, Path(folder) / "federation", say=lambda line: None)
    took = c.federated["seconds"] / len(c.rounds)
    print(f"one KD3A round over Flower, K={len(c.sockets)}: {took:.1f} s, {c.overhead:.1f}× that in one process")


if __name__ == "__main__":
    vote_and_focus()
    torch.set_num_threads(1)
    digits = data.load("digits", "mnist_m")
    trainer_against_bare_loop(digits)
    faded_momentum()
    resident_against_pil(digits)
    round_cost()
    streamed_against_cached()
    streaming_memory()
    if find_spec("flwr"):
        federated_round(digits)
