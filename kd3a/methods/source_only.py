"""Source-only: pool all sources, train one classifier, apply it to the target unchanged. The lower reference."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from kd3a.methods.base import Local, Logs, Supervised
from kd3a.trainer import Stage, timeline


class SourceOnly(Local):
    """Cross-entropy on the pooled sources; the pool crosses the channel once, as raw data."""

    name = "source-only"
    summary = "one classifier on the pooled sources: the lower reference"
    needs_source_data = True

    class Config(Supervised):
        """Settings of source-only."""

        budget: Literal["network", "domains", "joint"] = "network"
        """network: the one network sees as many samples as each network of a decentralised method; domains: as many as
        the K networks of the sources together, in K times the steps, shares by size; joint: a batch of every source in
        each step, as in the centralised methods."""

    def build(self) -> None:
        hub = self.task.target.name
        parts = [self.channel.share(s.train, s.name, hub) for s in self.task.sources]
        self.party = self.trainer.party("pool", self.trainer.net(self.task), parts[0].pool(parts))
        self.parties = [self.party]

    def run(self, stage: Stage) -> Logs:
        order = self.batch_of_every_source(stage) if self.config.budget == "joint" else None
        return {"loss": self.supervised(self.party, stage, self.config.mixup, order)}

    def batch_of_every_source(self, stage: Stage) -> Tensor:
        """Places in the pool, (steps, K B): the orders of the sources side by side."""
        sizes = [len(source.train) for source in self.task.sources]
        orders = [self.trainer.order(s.name, len(s.train), stage) for s in self.task.sources]
        return torch.cat([order + sum(sizes[:k]) for k, order in enumerate(orders)], 1)

    def stages(self) -> list[Stage]:
        t = self.trainer.training
        times = len(self.task.sources) if self.config.budget == "domains" else 1
        return timeline(t.epochs, times * t.batches_per_epoch)
