"""Source-only: pool all sources, train one classifier, apply it to the target unchanged. The lower reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from kd3a.methods.base import Local, Supervised
from kd3a.trainer import Stage, timeline


class SourceOnly(Local):
    """Cross-entropy on the pooled sources; the pool crosses the channel once, as raw data."""

    name = "source-only"
    summary = "one classifier on the pooled sources: the lower reference"
    needs_source_data = True

    class Config(Supervised):
        """Settings of source-only."""

        budget: Literal["domains", "network"] = "domains"
        """domains: every source sample is seen as often as in the decentralised methods, so the one network makes K
        times their steps; network: the one network sees as many samples as one network does there."""

    def build(self) -> None:
        hub = self.task.target.name
        crossed = [
            self.channel.send({"data": {"x": s.train.x, "y": s.train.y}}, s.name, hub)["data"]
            for s in self.task.sources
        ]
        pool = replace(
            self.task.sources[0].train,
            x=torch.cat([message["x"] for message in crossed]),
            y=torch.cat([message["y"] for message in crossed]),
        )
        self.party = self.trainer.party("pool", self.trainer.net(self.task), pool)
        self.parties = [self.party]

    def stages(self) -> list[Stage]:
        t = self.trainer.training
        times = len(self.task.sources) if self.config.budget == "domains" else 1
        return timeline(t.epochs, times * t.batches_per_epoch)
