"""A run stopped between two rounds, so that a page can look inside: trained once, then kept in the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from filelock import FileLock
from torch import Tensor, nn

from kd3a.channel import Message
from kd3a.domains import Batch, Part, Task
from kd3a.errors import UserError
from kd3a.losses import confidence_gate, distillation
from kd3a.methods.base import Method
from kd3a.methods.kd3a import KD3A
from kd3a.runs import Run, checkpoint_folder, resumed, save_checkpoint, start
from kd3a.settings import Hardware
from kd3a.trainer import Party, Stage


def halfway(run: Run, task: Task, hardware: Hardware, rounds: int) -> Method:
    """The run's method after its first ``rounds`` rounds: every party, optimiser and byte of the ledger.

    The first call trains and writes a checkpoint, the next ones read it; both give the same method. It goes on with
    ``method.run(method.stages()[rounds])``.
    """
    method = start(run, task, hardware)
    stages = method.stages()
    if not 0 < rounds <= len(stages):
        raise UserError(f"This run has {len(stages)} rounds; choose from 1 to {len(stages)}, not {rounds}.")
    path = checkpoint_folder() / f"{run.key(task.sha256)}-{rounds}.safetensors"
    with FileLock(path.with_suffix(".lock")):
        journal = resumed(method, path, hardware)
        if not journal.rounds:
            for stage in stages[:rounds]:
                method.channel.round = stage.round
                method.run(stage)
            journal.rounds = rounds
            save_checkpoint(path, method, journal)
    return method


@dataclass(frozen=True)
class OpenRound:
    """A round of KD3A after the sources have trained and before the target votes."""

    method: KD3A
    stage: Stage
    shared: Message  # the model that all sources began with
    gate: float
    before: dict[str, dict[str, Tensor]]  # every party's network and momentum when the round began

    @property
    def names(self) -> list[str]:
        """Of the sources."""
        return list(self.method.sources)

    @property
    def teachers(self) -> list[nn.Module]:
        return [party.net for party in self.method.sources.values()]

    def ask(self, rows: Tensor | None = None) -> Tensor:
        """What the teachers say about the target's training samples, or ``rows`` of them: q, (N, K, C)."""
        trainer, part = self.method.trainer, self.method.target.part
        return torch.stack([trainer.predict(net, part, rows) for net in self.teachers], 1)

    def trained(self, name: str, part: Part) -> Party:
        """Source ``name`` as it would be after this round, had it trained on ``part``; the round stays as it is."""
        party = self.fresh(name, part)
        self.method.supervised(party, self.stage, self.method.source_mixup())
        return party

    def distilled(self, p: Tensor, n: Tensor, rounds: int = 1) -> Party:
        """The student, had the target trained on consensus ``p`` (N, C) with weights ``n`` (N,): for this round, or for
        the steps of several, with the same consensus in all of them."""
        party = self.fresh(self.method.target.name, self.method.target.part)

        def loss(batch: Batch, step: int) -> Tensor:
            return distillation(party.net(batch.x), p[batch.index], n[batch.index])

        for stage in self.method.stages()[self.stage.round :][:rounds]:
            self.method.trainer.local(party, stage, loss)
        return party

    def fresh(self, name: str, part: Part) -> Party:
        """Party ``name`` as the round began for it, with the shared model and this data."""
        trainer = self.method.trainer
        party = trainer.party(name, trainer.net(self.method.task), part)
        party.load(self.before[name])
        self.method.receive(party, self.shared)
        return party


def open_round(run: Run, task: Task, hardware: Hardware, rounds: int) -> OpenRound:
    """The round that follows the run's first ``rounds``, with the sources' training done; see :func:`halfway`."""
    method = halfway(run, task, hardware, rounds)
    if not isinstance(method, KD3A) or rounds == len(method.stages()):
        raise UserError("Only a run of kd3a that has a round left can be opened; choose fewer rounds.")
    stage = method.stages()[rounds]
    shared = {kind: _copied(tensors) for kind, tensors in method.broadcast().items()}
    before = {party.name: _copied(party.state()) for party in method.parties}
    for party in method.sources.values():
        method.local(party, stage, shared)
    gate = confidence_gate(stage.progress, run.config.gate_begin, run.config.gate_end)
    return OpenRound(method, stage, shared, gate, before)


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
