"""Rounds whose uploads are averaged by a rule: the one place where the rules of :mod:`kd3a.weighting` meet methods."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kd3a.aggregate import aggregate
from kd3a.channel import Message
from kd3a.errors import UserError, choose, listing
from kd3a.methods.base import Logs, Rounds
from kd3a.models import Net, contents, unpack
from kd3a.settings import Settings
from kd3a.trainer import Party, Stage
from kd3a.weighting import SAMPLES, Context, dropped, rule_of

GATE = 0.9  # of the consensus, for methods that have no gate of their own


class Weighted(Rounds):
    """The average of the sources' models; ``config.weighting`` names the rule that weighs them."""

    attended = SAMPLES  # of the target, at the most, when the rule looks at its features

    @classmethod
    def crosses(cls, config: Settings) -> set[str]:
        return super().crosses(config) | ({"sampled_features"} if config.weighting == "h-divergence" else set())

    def build(self) -> None:
        super().build()
        for name in dropped(self.config.weighting):
            choose("source to drop", name, self.sources)
        self.kept(list(self.sources))
        self.samples: dict[str, Tensor] = {}  # features of the round by domain, for the rule that compares them

    def kept(self, names: list[str]) -> list[str]:
        """Of these sources, all but those that the rule drops."""
        bad = dropped(self.config.weighting)
        if set(names) <= set(bad):
            raise UserError(f"weighting = {self.config.weighting!r} drops every source, {listing(names)}; keep one.")
        return [name for name in names if name not in bad]

    def collect(self, stage: Stage, uploads: dict[str, Message]) -> Logs:
        self.kept(list(uploads))
        alpha = rule_of(self.config.weighting)(self.context(uploads)).to(self.trainer.device)
        unpack(self.net, aggregate([contents(message) for message in uploads.values()], alpha))
        return {"loss": self.source_loss(), "weights": self.spread(alpha, uploads)}

    def spread(self, alpha: Tensor, uploads: dict[str, Message]) -> Tensor:
        """The weights over all of ``self.weighted``: zero for a source that was not heard in this round."""
        if len(uploads) == len(self.sources):
            return alpha
        out = alpha.new_zeros(len(self.weighted))
        out[self.heard(uploads)] = alpha
        return out

    def heard(self, uploads: dict[str, Message]) -> list[int]:
        """Positions in ``self.weighted`` of the sources that were heard and of the target."""
        return [i for i, name in enumerate(self.weighted) if name in uploads or name == self.target.name]

    def context(self, uploads: dict[str, Message], gate: float = GATE, q: Tensor | None = None) -> Context:
        """What the target knows at the end of a round; ``q`` are the models' predictions, where they are at hand."""
        part, predict, forward = self.target.part, self.trainer.predict, self.trainer.forward

        def predictions() -> Tensor:
            return torch.stack([predict(net, part) for net in self.models(uploads)], 1) if q is None else q

        def target_features() -> list[Tensor]:
            rows = self.sample(self.target)[: self.attended]
            return [forward(net.backbone, part, rows) for net in self.models(uploads)]

        return Context(
            names=list(uploads),
            sizes=torch.stack([message["stats"]["samples"] for message in uploads.values()]),
            classes=len(self.task.classes),
            gate=gate,
            seed=self.trainer.derive("weighting"),
            predictions=predictions,
            target_features=target_features,
            domain_features=lambda: [self.samples[name] for name in (*uploads, self.target.name)],
        )

    def models(self, uploads: dict[str, Message]) -> Iterator[Net]:
        """The uploaded models one after the other, all in one network."""
        net = self.new_net()
        for message in uploads.values():
            unpack(net, contents(message))
            yield net

    # --- features of all domains, for the H-divergence ------------------------------------------------------------

    def sample(self, party: Party) -> Tensor:
        """Positions of the samples whose features are compared, the same in every round."""
        order = torch.randperm(len(party.part), generator=self.trainer.generator("sample", party.name))
        return order[:SAMPLES].to(self.trainer.device)

    def broadcast(self) -> Message:
        if self.config.weighting == "h-divergence":
            self.show(self.target)
        return super().broadcast()

    def receive(self, party: Party, received: Message) -> None:
        super().receive(party, received)
        if self.config.weighting == "h-divergence":
            self.show(party)

    def show(self, party: Party) -> None:
        """Hand features of a party's samples to the target; they are made by the shared model of the round."""
        features = self.trainer.forward(party.net.backbone, party.part, self.sample(party))
        if party is not self.target:
            message = self.channel.send({"sampled_features": {"sample": features}}, party.name, self.target.name)
            features = message["sampled_features"]["sample"]
        self.samples[party.name] = features
