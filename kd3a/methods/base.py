"""The contract of a method, and the three loop shapes every method is made of.

* :class:`Local`: one party trains on its own batches (Oracle; source-only on pooled data).
* :class:`Joint`: one place sees a batch of every domain in each step (centralised methods).
* :class:`Rounds`: the target broadcasts, every source trains at home and uploads, the target collects.

A method writes only what is its own; batches, schedules, devices, checkpoints and bytes live elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kd3a.channel import Channel, Message
from kd3a.domains import Batch, Domain, Task
from kd3a.losses import beta_draws, mixup, soft_cross_entropy
from kd3a.models import Net, contents, parcel, unpack
from kd3a.settings import Settings
from kd3a.trainer import Party, Stage, Trainer, timeline

Logs = dict[str, Any]  # "loss": Tensor, "gate": float, "weights": Tensor over self.weighted


class Method:
    """What the runner needs of a method: stages, what to do in one, a state, and predictions."""

    name: ClassVar[str]
    summary: ClassVar[str]
    needs_source_data: ClassVar[bool] = False
    uses_target_labels: ClassVar[bool] = False

    class Config(Settings):
        """The method's own settings."""

    def __init__(self, task: Task, config: Settings, trainer: Trainer, channel: Channel):
        self.task, self.config, self.trainer, self.channel = task, config, trainer, channel
        self.parties: list[Party] = []
        self.memory: dict[str, Tensor] = {}  # whatever else must survive from round to round
        self.build()

    def build(self) -> None:
        """Make the networks and parties."""
        raise NotImplementedError

    @property
    def net(self) -> Net:
        """The network that is scored on the target."""
        raise NotImplementedError

    @property
    def weighted(self) -> list[str]:
        """Names of the domains that ``logs["weights"]`` speaks of."""
        return [source.name for source in self.task.sources]

    def stages(self) -> list[Stage]:
        """The plan of the run."""
        t = self.trainer.training
        return timeline(t.epochs, t.batches_per_epoch)

    def run(self, stage: Stage) -> Logs:
        """Do one stage."""
        raise NotImplementedError

    def predict(self, part) -> Tensor:
        """Class probabilities, (N, C)."""
        return self.trainer.predict(self.net, part)

    def state(self) -> dict[str, Tensor]:
        out = {f"{party.name}/{k}": v for party in self.parties for k, v in party.state().items()}
        return out | {f"memory/{k}": v for k, v in self.memory.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        for party in self.parties:
            prefix = f"{party.name}/"
            party.load({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
        device = self.trainer.device
        self.memory = {k.removeprefix("memory/"): v.to(device) for k, v in state.items() if k.startswith("memory/")}

    def mixing(self, name: str, stage: Stage, alpha: float, steps: int | None = None) -> tuple[Tensor, Tensor]:
        """Mixup's draws for a whole stage: lambda (steps,) and partners (steps, B), on the device."""
        steps = len(stage) if steps is None else steps
        generator = self.trainer.generator("mixup", name, stage.phase, stage.round)
        lam = beta_draws(steps, alpha, generator)
        partner = torch.rand(steps, self.trainer.training.batch_size, generator=generator).argsort(-1)
        return lam.to(self.trainer.device), partner.to(self.trainer.device)

    def supervised(self, party: Party, stage: Stage, mixup_alpha: float = 0.0) -> Tensor:
        """Train a party on its own labels for a stage, with mixup or without; returns the mean loss."""
        if not mixup_alpha:
            return self.trainer.local(party, stage, lambda batch, _: F.cross_entropy(party.net(batch.x), batch.y))
        lam, partner = self.mixing(party.name, stage, mixup_alpha)

        def mixed(batch: Batch, step: int) -> Tensor:
            labels = F.one_hot(batch.y, len(self.task.classes)).to(batch.x.dtype)
            logits = party.net(mixup(batch.x, partner[step], lam[step]))
            return soft_cross_entropy(logits, mixup(labels, partner[step], lam[step])).mean()

        return self.trainer.local(party, stage, mixed)


class Supervised(Settings):
    """Settings of methods that only train on labels."""

    mixup: float = 0.0
    """Beta(mixup, mixup) of mixup on labelled batches; 0 turns it off."""


class Local(Method):
    """One network, one party: ``self.party``, trained on its labels."""

    Config = Supervised
    party: Party

    @property
    def net(self) -> Net:
        return self.party.net

    def run(self, stage: Stage) -> Logs:
        return {"loss": self.supervised(self.party, stage, self.config.mixup)}


class Joint(Method):
    """One place sees all domains: ``step`` gets a batch of each, by domain name, and makes its own updates."""

    needs_source_data = True

    def step(self, batches: dict[str, Batch], stage: Stage, number: int) -> Tensor:
        raise NotImplementedError

    def run(self, stage: Stage) -> Logs:
        parts = {domain.name: domain.train for domain in (*self.task.sources, self.task.target)}
        total = torch.zeros((), device=self.trainer.device)
        torch.manual_seed(self.trainer.derive("dropout", "joint", stage.phase, stage.round))
        for number, batches in enumerate(self.trainer.batches(stage, parts)):
            total += self.step(batches, stage, number)
        return {"loss": total / max(1, len(stage))}


class Rounds(Method):
    """The decentralised loop. ``broadcast`` and ``collect`` run at the target, ``local`` at a source."""

    shared = ""  # prefix of the tensors that the target sends back; all of them by default

    def build(self) -> None:
        """One party per source and one for the target, all starting from the same weights."""
        self.sources = {source.name: self.source_party(source) for source in self.task.sources}
        target = self.task.target
        self.target = self.trainer.party(target.name, self.trainer.net(self.task), target.train)
        self.parties = [*self.sources.values(), self.target]
        self.losses: dict[str, Tensor] = {}  # of the sources, for the log only

    def source_party(self, source: Domain) -> Party:
        return self.trainer.party(source.name, self.trainer.net(self.task), source.train)

    @property
    def net(self) -> Net:
        return self.target.net

    def stages(self) -> list[Stage]:
        t = self.trainer.training
        return timeline(t.epochs, t.batches_per_epoch, t.rounds_per_epoch)

    def broadcast(self) -> Message:
        """What the target sends to every source at the start of a round."""
        return parcel(self.net, self.shared)

    def local(self, party: Party, stage: Stage, received: Message) -> Message:
        """A source's round: take the shared model, train it at home, return weights, statistics and N_k."""
        unpack(party.net, contents(received))
        self.losses[party.name] = self.supervised(party, stage, self.source_mixup())
        return parcel(party.net) | {"stats": {"samples": torch.tensor(len(party.part))}}

    def source_mixup(self) -> float:
        return self.config.mixup

    def collect(self, stage: Stage, uploads: dict[str, Message]) -> Logs:
        """What the target makes of the uploads; it ends with the new shared model in ``self.net``."""
        raise NotImplementedError

    def source_loss(self) -> Tensor:
        return torch.stack(list(self.losses.values())).mean()

    def run(self, stage: Stage) -> Logs:
        hub, uploads = self.task.target.name, {}
        form = parcel(self.net) | {"stats": {"samples": torch.tensor(0)}}
        message = self.broadcast()
        for name, party in self.sources.items():
            received = self.channel.send(message, hub, name)
            uploads[name] = self.channel.send(self.local(party, stage, received), name, hub, like=form)
        return self.collect(stage, uploads)
