"""The training loop: batches, schedules, precision, device. Knows no method."""

from __future__ import annotations

import ctypes
import hashlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

from kd3a import models
from kd3a.domains import Batch, Part, Task
from kd3a.errors import UserError
from kd3a.losses import cosine
from kd3a.settings import Hardware, Training

EVALUATION_BATCH = 500


@dataclass(frozen=True)
class Stage:
    """What happens between two communications: batches ``first`` to ``last`` of a timeline all parties share."""

    round: int
    first: int
    last: int
    total: int
    per_epoch: int
    phase: str = "train"
    epochs_before: int = 0
    rounds_before: int = 0

    @property
    def progress(self) -> float:
        """Share of the phase done when the stage begins, in [0, 1)."""
        return self.first / self.total

    @property
    def epochs_done(self) -> int:
        """Whole epochs of the run done when the stage ends."""
        return self.epochs_before + self.last // self.per_epoch

    @property
    def closes_epoch(self) -> bool:
        return self.last == self.total or self.last // self.per_epoch > self.first // self.per_epoch

    def __len__(self) -> int:
        return self.last - self.first


def timeline(epochs: int, per_epoch: int, rounds_per_epoch: float = 1.0, phase: str = "train") -> list[Stage]:
    """All stages of a phase: an epoch's batches are partitioned into r rounds (or 1/r epochs make one round).

    Every r visits the same batches at the same learning rates; only the borders between rounds move.

    >>> [(s.first, s.last) for s in timeline(2, 10, rounds_per_epoch=2)]
    [(0, 5), (5, 10), (10, 15), (15, 20)]
    >>> [(s.first, s.last) for s in timeline(5, 10, rounds_per_epoch=0.5)]
    [(0, 20), (20, 40), (40, 50)]
    """
    total = epochs * per_epoch
    rounds = math.ceil(epochs * rounds_per_epoch - 1e-9)
    borders = [min(total - rounds + i, round(i * per_epoch / rounds_per_epoch)) for i in range(rounds)] + [total]
    return [Stage(i, borders[i], borders[i + 1], total, per_epoch, phase) for i in range(rounds)]


def in_sequence(*phases: list[Stage]) -> list[Stage]:
    """Phases one after the other: rounds are numbered on, schedules start anew in each.

    >>> [(s.round, s.phase, s.epochs_done) for s in in_sequence(timeline(2, 5), timeline(1, 5, phase="adapt"))]
    [(0, 'train', 1), (1, 'train', 2), (2, 'adapt', 3)]
    """
    stages: list[Stage] = []
    for phase in phases:
        rounds, epochs = len(stages), stages[-1].epochs_done if stages else 0
        stages += [replace(s, round=rounds + s.round, epochs_before=epochs, rounds_before=rounds) for s in phase]
    return stages


@dataclass
class Party:
    """One side of the exchange: a name, its network (or several in one module) and optimiser, and its samples."""

    name: str
    net: nn.Module
    optimiser: torch.optim.Optimizer
    part: Part

    def state(self) -> dict[str, Tensor]:
        """Network and momentum as one flat dict of tensors."""
        out = {f"net/{k}": v for k, v in self.net.state_dict().items()}
        for name, parameter in self.net.named_parameters():
            buffer = self.optimiser.state.get(parameter, {}).get("momentum_buffer")
            if buffer is not None:
                out[f"momentum/{name}"] = buffer
        return out

    def load(self, state: dict[str, Tensor]) -> None:
        self.net.load_state_dict({k.removeprefix("net/"): v for k, v in state.items() if k.startswith("net/")})
        for name, parameter in self.net.named_parameters():
            if f"momentum/{name}" in state:
                buffer = state[f"momentum/{name}"].to(parameter.device)
                self.optimiser.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffer)


def pick_device(name: str) -> torch.device:
    """The device asked for; an absent one is an error, never a silent fallback."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    elif name == "cuda" and not torch.cuda.is_available():
        raise UserError("Device cuda is not available here: PyTorch sees no CUDA GPU; use --device auto or cpu.")
    elif name == "mps" and not torch.backends.mps.is_available():
        raise UserError("Device mps is not available here: PyTorch sees no Apple GPU; use --device auto or cpu.")
    return torch.device(name)


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported(False) else torch.float32
    return getattr(torch, name)


@cache
def keep_freed_memory() -> None:
    """Tell glibc to reuse large freed blocks instead of returning them: a fifth less time per CPU step."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(-4, 0)  # M_MMAP_MAX: no block of its own for a large tensor
            libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: never trim the heap


class Trainer:
    """Runs stages on a device. Every random number comes from (seed, party, time, purpose), so a resumed run, a run
    in another order of parties and a run spread over machines all see the same ones."""

    def __init__(self, training: Training, hardware: Hardware, seed: int, device: torch.device | None = None):
        keep_freed_memory()
        self.training = training
        self.hardware = hardware
        self.seed = seed
        self.device = device or pick_device(hardware.device)
        self.precision = pick_precision(hardware.precision, self.device)
        self.layout = torch.channels_last if hardware.channels_last else torch.contiguous_format

    # --- randomness -----------------------------------------------------------------------------------------------

    def derive(self, *purpose: object) -> int:
        """A 63-bit seed for one purpose."""
        digest = hashlib.blake2b(repr((self.seed, *purpose)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def generator(self, *purpose: object) -> torch.Generator:
        return torch.Generator().manual_seed(self.derive(*purpose))

    # --- parties --------------------------------------------------------------------------------------------------

    def net(self, task: Task, *purpose: object) -> models.Net:
        """A network for the task; the same purpose gives the same initial weights."""
        net = models.build(self.training.model, task.shape, len(task.classes), self.derive("init", *purpose))
        net = net.to(self.device, memory_format=self.layout)
        if self.hardware.compile:
            net.compile()
        return net

    def optimiser(self, parameters, rate: float = 1.0) -> torch.optim.Optimizer:
        """SGD of the protocol; its learning rate is ``rate`` times the schedule."""
        t = self.training
        fused = self.device.type in ("cpu", "cuda")
        optimiser = torch.optim.SGD(parameters, t.lr_begin, t.momentum, weight_decay=t.weight_decay, fused=fused)
        for group in optimiser.param_groups:
            group["rate"] = rate
        return optimiser

    def party(self, name: str, net: nn.Module, part: Part) -> Party:
        return Party(name, net, self.optimiser(net.parameters()), part)

    # --- batches and schedules ------------------------------------------------------------------------------------

    def order(self, name: str, size: int, stage: Stage) -> Tensor:
        """Which samples party ``name`` visits in the stage, (batches, batch_size), on the device.

        An epoch is one random order of the domain, cut to the epoch's length; a domain smaller than that is repeated
        in fresh orders.
        """
        t, batch = self.training, self.training.batch_size
        if t.sampling == "resample":
            pieces = math.ceil(len(stage) / stage.per_epoch)
            rows = torch.cat([self._epoch(name, size, ("round", stage.round, i), stage) for i in range(pieces)])
            return rows[: len(stage)].to(self.device)
        first, last = stage.first // stage.per_epoch, math.ceil(stage.last / stage.per_epoch)
        rows = torch.cat([self._epoch(name, size, ("epoch", e), stage) for e in range(first, last)])
        begin = stage.first - first * stage.per_epoch
        return rows[begin : begin + len(stage)].view(-1, batch).to(self.device)

    def _epoch(self, name: str, size: int, when: tuple, stage: Stage) -> Tensor:
        needed = stage.per_epoch * self.training.batch_size
        generator = self.generator("order", stage.phase, name, when)
        rows = torch.cat([torch.randperm(size, generator=generator) for _ in range(math.ceil(needed / size))])
        return rows[:needed].view(stage.per_epoch, self.training.batch_size)

    def learning_rate(self, stage: Stage, step: int) -> float:
        """Cosine over the run; ``released`` is the code's: constant in a round, period in rounds, one round late."""
        t = self.training
        if t.lr_schedule == "released":
            return cosine(max(0, stage.round - stage.rounds_before - 1) / t.epochs, t.lr_begin, t.lr_end)
        return cosine((stage.first + step) / stage.total, t.lr_begin, t.lr_end)

    def batches(self, stage: Stage, parts: dict[str, Part]) -> Iterator[dict[str, Batch]]:
        """Mini-batches of several parties in step, for methods that see them in one place."""
        streams = [part.batches(self.order(name, len(part), stage)) for name, part in parts.items()]
        for row in zip(*streams, strict=True):
            yield dict(zip(parts, row, strict=True))

    # --- steps ----------------------------------------------------------------------------------------------------

    def autocast(self):
        """The precision of forward passes. Casts are not cached: a cached weight would outlive an update of it."""
        enabled = self.precision != torch.float32
        return torch.autocast(self.device.type, self.precision, enabled=enabled, cache_enabled=False)

    def update(self, optimiser: torch.optim.Optimizer, loss: Tensor, only: list[nn.Parameter] | None = None) -> None:
        """One optimiser step on ``loss``; ``only`` these parameters move, when given."""
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, enabled=False):  # a backward pass follows its forward pass's types
            loss.backward(inputs=only)
        self.step(optimiser)

    def step(self, optimiser: torch.optim.Optimizer) -> None:
        """The optimiser's step. Momentum of dead units fades to numbers too small to be normal, with which processors
        are up to thirty times slower: here such numbers are zero."""
        torch.set_flush_denormal(True)
        optimiser.step()
        torch.set_flush_denormal(False)

    def schedule(self, optimiser: torch.optim.Optimizer, stage: Stage, step: int) -> None:
        rate = self.learning_rate(stage, step)
        for group in optimiser.param_groups:
            group["lr"] = rate * group["rate"]

    def local(
        self, party: Party, stage: Stage, loss_of: Callable[[Batch, int], Tensor], order: Tensor | None = None
    ) -> Tensor:
        """Train one party on its own batches of the stage; returns the mean loss, still on the device.

        ``order`` says which samples each step visits, (steps, B), if not the usual ones.
        """
        order = self.order(party.name, len(party.part), stage) if order is None else order
        torch.manual_seed(self.derive("dropout", party.name, stage.phase, stage.round))
        party.net.train()
        total = torch.zeros((), device=self.device)
        for step, batch in enumerate(party.part.batches(order)):
            self.schedule(party.optimiser, stage, step)
            with self.autocast():
                loss = loss_of(batch, step)
            self.update(party.optimiser, loss)
            total += loss.detach()
        return total / max(1, len(stage))

    def predict(self, net: nn.Module, part: Part, rows: Tensor | None = None) -> Tensor:
        """Class probabilities in eval mode, (N, C), float32; of ``rows`` only, when given."""
        return self.forward(net, part, rows).softmax(-1)

    @torch.no_grad()
    def forward(self, net: nn.Module, part: Part, rows: Tensor | None = None) -> Tensor:
        """What a network makes of a part in eval mode, (N, ...), float32; of ``rows`` only, when given."""
        was_training = net.training
        net.eval()
        rows = torch.arange(len(part), device=self.device) if rows is None else rows
        with self.autocast():
            outputs = [net(part.inputs(index)).float() for index in rows.split(EVALUATION_BATCH)]
        net.train(was_training)
        return torch.cat(outputs)
