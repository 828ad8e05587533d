"""The contract of a method, and the three loop shapes every method is made of.

* :class:`Local`: one party trains on its own batches (Oracle; source-only on pooled data).
* :class:`Joint`: one place sees a batch of every domain in each step (centralised methods).
* :class:`Rounds`: the target broadcasts, every source trains at home and uploads, the target collects.

A method writes only what is its own; batches, schedules, devices, checkpoints and bytes live elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from kd3a import models
from kd3a.channel import Channel, Message
from kd3a.domains import Batch, Domain, Task
from kd3a.losses import beta_draws, mixup, soft_cross_entropy
from kd3a.models import Net, contents, parcel, unpack
from kd3a.settings import Settings
from kd3a.trainer import Party, Stage, Trainer, timeline

Logs = dict[str, Any]  # "loss": Tensor, "gate": float, "weights": Tensor over self.weighted, "vote": Poll


@dataclass(frozen=True)
class Poll:
    """What a method took the target's training samples for. The method knows no label of them: the runner scores it."""

    rows: Tensor  # (n,), positions in the target's training part; a sample may be asked about twice
    choice: Tensor  # (n,), the class that was distilled
    accepted: Tensor  # (n,) bool, whether it counted in full


Exchange = Callable[["Method", Stage, Message, Message | None], dict[str, Message]]


def in_process(method: Method, stage: Stage, message: Message, form: Message | None) -> dict[str, Message]:
    """Send every source the message, let it train for the stage, and return the uploads, checked against ``form``.

    Here all parties live in one process and work one after the other. :mod:`kd3a.federation` has the same function for
    sources that are other machines; there, a source that gives no answer in time is missing from the uploads.
    """
    hub, uploads = method.task.target.name, {}
    for name, party in method.sources.items():
        received = method.channel.send(message, hub, name)
        uploads[name] = method.channel.send(method.local(party, stage, received), name, hub, like=form)
    return uploads


class Method:
    """What the runner needs of a method: stages, what to do in one, a state, and predictions."""

    name: ClassVar[str]
    summary: ClassVar[str]
    needs_source_data: ClassVar[bool] = False
    uses_target_labels: ClassVar[bool] = False
    maximises_information: ClassVar[bool] = False
    """Whether it trains on :func:`kd3a.runs.criterion` itself, by which it then cannot be judged."""
    federated: ClassVar[bool] = False
    """Whether all that crosses goes through ``exchange``, so that sources may be other machines."""
    exchange: Exchange = staticmethod(in_process)
    sources: dict[str, Party]

    class Config(Settings):
        """The method's own settings."""

    def __init__(self, task: Task, config: Settings, trainer: Trainer, channel: Channel):
        self.task, self.config, self.trainer, self.channel = task, config, trainer, channel
        self.parties: list[Party] = []
        self.memory: dict[str, Tensor] = {}  # whatever else must survive from round to round
        self.losses: dict[str, Tensor] = {}  # of the sources in the last round, for the log only
        self.build()

    @classmethod
    def crosses(cls, config: Settings) -> set[str]:
        """Which of :data:`kd3a.channel.PRIVATE` leave their party under these settings; the ledger proves it."""
        return {"data"} if cls.needs_source_data else set()

    def build(self) -> None:
        """Make the networks and parties."""
        raise NotImplementedError

    def new_net(self, *purpose: object) -> Net:
        """A network for the task; the same purpose gives the same initial weights."""
        return self.trainer.net(self.task, *purpose)

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """What training on labels minimises."""
        return F.cross_entropy(logits, labels)

    def soft_labels(self, labels: Tensor) -> Tensor:
        """The distributions (B, C) that it draws predictions to; mixup mixes them."""
        return F.one_hot(labels, len(self.task.classes))

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

    def broadcast(self) -> Message:
        """What the target sends to every source at the start of a round."""
        return {}

    def local(self, party: Party, stage: Stage, received: Message) -> Message:
        """What a source does in a stage, at home: it takes what it received, trains, and returns its upload."""
        raise NotImplementedError

    def source_loss(self) -> Tensor:
        """Mean loss of the sources that trained in the last round."""
        return torch.stack(list(self.losses.values())).mean()

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

    def mixing(self, name: str, stage: Stage, alpha: float, size: int | None = None) -> tuple[Tensor, Tensor]:
        """Mixup's draws for a whole stage: lambda (steps,) and partners (steps, B), on the device."""
        size = self.trainer.training.batch_size if size is None else size
        generator = self.trainer.generator("mixup", name, stage.phase, stage.round)
        lam = beta_draws(len(stage), alpha, generator)
        partner = torch.rand(len(stage), size, generator=generator).argsort(-1)
        return lam.to(self.trainer.device), partner.to(self.trainer.device)

    def supervised(self, party: Party, stage: Stage, mixup_alpha: float = 0.0, order: Tensor | None = None) -> Tensor:
        """Train a party on its own labels for a stage, with mixup or without; returns the mean loss.

        ``order`` says which samples each step visits, (steps, B), if not the usual ones.
        """
        if not mixup_alpha:
            loss_of = lambda batch, _: self.label_loss(party.net(batch.x), batch.y)  # noqa: E731
            return self.trainer.local(party, stage, loss_of, order)
        size = None if order is None else order.shape[1]
        lam, partner = self.mixing(party.name, stage, mixup_alpha, size=size)

        def mixed(batch: Batch, step: int) -> Tensor:
            labels = self.soft_labels(batch.y).to(batch.x.dtype)
            logits = party.net(mixup(batch.x, partner[step], lam[step]))
            return soft_cross_entropy(logits, mixup(labels, partner[step], lam[step])).mean()

        return self.trainer.local(party, stage, mixed, order)


class Supervised(Settings):
    """Settings of methods that only train on labels."""

    mixup: float = Field(0.0, ge=0)
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
    """One place, the hub, sees all domains: every ``step`` gets a labelled batch of each source and target inputs.

    The networks of a method live in one module, ``self.nets``, under one optimiser; its scored one is called ``net``.
    All sources' samples cross the channel once, as raw data. Budget: in a step every domain gives one batch, so each
    is seen as often as in the decentralised methods, epochs × epoch_samples; the network makes as many steps as one of
    theirs and sees all domains in each. The loss that is logged is the sources'
    cross-entropy, the same for all these methods: what they play for otherwise does not fall.
    """

    needs_source_data = True

    def build(self) -> None:
        hub = self.task.target
        self.parts = {s.name: self.channel.share(s.train, s.name, hub.name) for s in self.task.sources}
        self.parts[hub.name] = hub.train
        self.nets = nn.ModuleDict(self.networks())
        self.party = self.trainer.party(hub.name, self.nets, hub.train)
        self.parties = [self.party]

    def networks(self) -> dict[str, nn.Module]:
        """All networks by name; among them ``net``, which is scored."""
        raise NotImplementedError

    def several(self, number: int, make: Callable[[], nn.Module], purpose: str) -> nn.ModuleList:
        """Small networks besides the classifier; the same purpose gives the same initial weights."""
        seed = self.trainer.derive("init", purpose)
        return models.drawn(seed, lambda: nn.ModuleList(make() for _ in range(number))).to(self.trainer.device)

    @property
    def net(self) -> nn.Module:
        return self.nets["net"]

    def step(self, sources: list[Batch], target: Tensor, progress: float, phase: str) -> dict[str, Tensor]:
        """Make the updates of one step; returns what to log, averaged over the stage: ``loss``, perhaps ``weights``."""
        raise NotImplementedError

    def update(self, loss: Tensor, *only: nn.Module) -> None:
        """One optimiser step on ``loss``, of these modules only; of all that it depends on by default."""
        parameters = [p for module in only for p in module.parameters()]
        if parameters or not only:  # a module without parameters has no step to make
            self.trainer.update(self.party.optimiser, loss, parameters or None)

    def run(self, stage: Stage) -> Logs:
        torch.manual_seed(self.trainer.derive("dropout", "joint", stage.phase, stage.round))
        self.nets.train()
        totals: dict[str, Tensor] = {}
        for number, batches in enumerate(self.trainer.batches(stage, self.parts)):
            self.trainer.schedule(self.party.optimiser, stage, number)
            *sources, target = batches.values()
            with self.trainer.autocast():
                logs = self.step(sources, target.x, (stage.first + number) / stage.total, stage.phase)
            totals = {name: totals.get(name, 0) + value.detach() for name, value in logs.items()}
        return {name: total / len(stage) for name, total in totals.items()}


class Rounds(Method):
    """The decentralised loop. ``broadcast`` and ``collect`` run at the target, ``local`` at a source."""

    federated = True
    shared = ""  # prefix of the tensors that the target sends back; all of them by default

    def build(self) -> None:
        """One party per source and one for the target, all starting from the same weights."""
        self.sources = {source.name: self.source_party(source) for source in self.task.sources}
        target = self.task.target
        self.target = self.trainer.party(target.name, self.new_net(), target.train)
        self.parties = [*self.sources.values(), self.target]

    def source_party(self, source: Domain) -> Party:
        return self.trainer.party(source.name, self.new_net(), source.train)

    @property
    def net(self) -> Net:
        return self.target.net

    def stages(self) -> list[Stage]:
        t = self.trainer.training
        return timeline(t.epochs, t.batches_per_epoch, t.rounds_per_epoch)

    def broadcast(self) -> Message:
        return parcel(self.net, self.shared)

    def receive(self, party: Party, received: Message) -> None:
        """A source takes the shared model."""
        unpack(party.net, contents(received))

    def report(self, party: Party) -> Message:
        """What a party tells the target: weights, statistics and N_k."""
        return parcel(party.net) | {"stats": {"samples": torch.tensor(len(party.part))}}

    def local(self, party: Party, stage: Stage, received: Message) -> Message:
        self.receive(party, received)
        self.losses[party.name] = self.supervised(party, stage, self.source_mixup())
        return self.report(party)

    def source_mixup(self) -> float:
        return self.config.mixup

    def collect(self, stage: Stage, uploads: dict[str, Message]) -> Logs:
        """What the target makes of the uploads; it ends with the new shared model in ``self.net``."""
        raise NotImplementedError

    def run(self, stage: Stage) -> Logs:
        self.losses = {}
        return self.collect(stage, self.exchange(self, stage, self.broadcast(), self.report(self.target)))
