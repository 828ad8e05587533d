"""FedAvg + SHOT: the obvious decentralised control. FedAvg over the sources, then SHOT with the one shared model."""

from __future__ import annotations

from kd3a.methods import source_free
from kd3a.methods.base import Logs
from kd3a.methods.fedavg import FedAvg
from kd3a.methods.shot import shot
from kd3a.methods.source_free import Bottlenecked
from kd3a.trainer import Stage


class FedAvgSHOT(Bottlenecked, FedAvg):
    """As many rounds as FedAvg, on smoothed labels; then the target, which has the average already, adapts it.

    Weight-normalised heads are averaged as they are stored, lengths and directions apart. One network at inference.
    """

    name = "fedavg-shot"
    summary = "FedAvg over the sources, then SHOT at the target with the shared model"

    class Config(source_free.Config, FedAvg.Config):
        """Settings of FedAvg + SHOT."""

    def build(self) -> None:
        super().build()
        self.target = self.adapter(self.target.name, self.target.net)
        self.parties = [*self.sources.values(), self.target]

    def run(self, stage: Stage) -> Logs:
        if stage.phase == "adapt":
            self.losses = {self.target.name: shot(self, self.target, stage)}
            return {"loss": self.source_loss()}
        return super().run(stage)
