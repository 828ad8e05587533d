"""Source-only: pool all sources, train one classifier, apply it to the target unchanged. The lower reference."""

from __future__ import annotations

from typing import Literal

from kd3a.methods.base import Local, Supervised
from kd3a.trainer import Stage, timeline


class SourceOnly(Local):
    """Cross-entropy on the pooled sources; the pool crosses the channel once, as raw data."""

    name = "source-only"
    summary = "one classifier on the pooled sources: the lower reference"
    needs_source_data = True

    class Config(Supervised):
        """Settings of source-only."""

        budget: Literal["network", "domains"] = "network"
        """network: the one network sees as many samples as a network does in any other method; domains: it sees every
        source as often as they do, which makes K times the steps."""

    def build(self) -> None:
        hub = self.task.target.name
        parts = [self.channel.share(s.train, s.name, hub) for s in self.task.sources]
        self.party = self.trainer.party("pool", self.trainer.net(self.task), parts[0].pool(parts))
        self.parties = [self.party]

    def stages(self) -> list[Stage]:
        t = self.trainer.training
        times = len(self.task.sources) if self.config.budget == "domains" else 1
        return timeline(t.epochs, times * t.batches_per_epoch)
