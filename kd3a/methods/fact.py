"""FACT: two sources train from the same model; the target learns features on which their heads agree."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.func import functional_call

from kd3a.aggregate import aggregate
from kd3a.domains import Batch
from kd3a.errors import UserError
from kd3a.losses import discrepancy
from kd3a.methods.base import Logs, Rounds, Supervised
from kd3a.models import contents, parcel, unpack
from kd3a.trainer import Party, Stage, timeline


class FACT(Rounds):
    r"""Federated adversarial cross training (Schrod et al., 2023).

    A round: two random sources train one epoch from the shared model; the mean of their extractors goes back to them
    and each retrains its head on it; the target trains the extractor, and nothing else, on the discrepancy
    :math:`\frac1{BC} \sum |p_{H_1} - p_{H_2}|`; the two heads are averaged. Heads give logits; the published ones apply
    softmax twice. There the head also holds all fully connected layers; here it is the host's, one linear layer.

    Mixup, where it is on, is of the sources' training; heads are retrained on plain batches.

    Budget: with K sources a round is 2/K of an epoch, so K/2 times as many rounds let every domain be seen as often as
    in KD3A: a source trains a whole epoch when it is drawn, in 2 of K rounds. Retraining the heads comes on top. The
    target is the server, so ``6 |G| + 6 |H|`` floats cross in a round where the paper's server has
    ``8 |G| + 10 |H|``.
    """

    name = "fact"
    federated = False  # a round has two exchanges
    summary = "two sources a round; the target removes the disagreement of their heads"

    class Config(Supervised):
        """Settings of FACT."""

        finetune: bool = True
        """Whether the two heads are retrained on the averaged extractor."""

    def build(self) -> None:
        super().build()
        if len(self.sources) < 2:
            raise UserError("Method fact compares the heads of two sources; this task has only one.")
        self.share = len(self.sources) / 2

    def stages(self) -> list[Stage]:
        t = self.trainer.training
        return timeline(t.epochs, t.batches_per_epoch, min(t.batches_per_epoch, self.share * t.rounds_per_epoch))

    def run(self, stage: Stage) -> Logs:
        hub, form, message = self.target.name, self.report(self.target), self.broadcast()
        names = sorted(self.sources)  # drawn by name, not by place in the task
        drawn = torch.randperm(len(names), generator=self.trainer.generator("pair", stage.round))[:2].tolist()
        pair = [self.sources[names[i]] for i in drawn]
        scaled = {field: round(getattr(stage, field) * self.share) for field in ("first", "last", "total")}
        home, self.losses = replace(stage, **scaled), {}
        reports = [self.local(party, home, self.channel.send(message, hub, party.name)) for party in pair]
        uploads = [self.channel.send(report, p.name, hub, like=form) for p, report in zip(pair, reports, strict=True)]
        states, even = [contents(upload) for upload in uploads], torch.full((2,), 0.5, device=self.trainer.device)
        unpack(self.net, aggregate(states, even))
        if self.config.finetune:
            states = [self.retrain(party, replace(home, phase="finetune")) for party in pair]
        heads = [{n.removeprefix("head."): t for n, t in s.items() if n.startswith("head.")} for s in states]
        loss = self.agree(stage, heads)
        unpack(self.net.head, aggregate(heads, even))
        chosen = [0.5 * (name in self.losses) for name in self.sources]
        return {"loss": loss, "weights": torch.tensor(chosen).to(self.trainer.device)}

    def retrain(self, party: Party, stage: Stage) -> dict[str, Tensor]:
        """Send a source the averaged extractor; it fits its own head to it and returns that."""
        self.receive(party, self.channel.send(parcel(self.net, "backbone."), self.target.name, party.name))

        def loss_of(batch: Batch, step: int) -> Tensor:
            return self.label_loss(party.net.head(party.net.backbone(batch.x).detach()), batch.y)

        self.trainer.local(party, stage, loss_of)
        head = parcel(party.net, "head.")
        return contents(self.channel.send(head, party.name, self.target.name, like=parcel(self.net, "head.")))

    def agree(self, stage: Stage, heads: list[dict[str, Tensor]]) -> Tensor:
        """Train the target's extractor, and nothing else, until the two heads agree; returns their discrepancy."""
        net = self.target.net

        def loss_of(batch: Batch, step: int) -> Tensor:
            features = net.backbone(batch.x)
            return discrepancy(*(functional_call(net.head, head, features) for head in heads))

        return self.trainer.local(self.target, stage, loss_of)
