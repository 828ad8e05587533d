"""FedAvg: KD3A's loop without adaptation. Sources train, the target averages their models by size."""

from __future__ import annotations

from typing import Literal

from kd3a import batchnorm
from kd3a.channel import Message
from kd3a.methods.base import Logs, Supervised
from kd3a.methods.weighted import Weighted
from kd3a.trainer import Stage
from kd3a.weighting import RuleName


class FedAvg(Weighted):
    r"""The decentralised source-only: :math:`\Theta = \sum_k \frac{N_k}{\sum_j N_j} \Theta_k`."""

    name = "fedavg"
    summary = "average of the sources' models by size: the decentralised lower reference"

    class Config(Supervised):
        """Settings of FedAvg."""

        weighting: RuleName = "size"
        """How sources are weighed: size, uniform, drop:names, consensus-focus, shapley, h-divergence or info-gain."""
        statistics: Literal["averaged", "target"] = "averaged"
        """BatchNorm statistics: the average of the sources', or those of the round's target batches (AdaBN)."""

    def collect(self, stage: Stage, uploads: dict[str, Message]) -> Logs:
        logs = super().collect(stage, uploads)
        if self.config.statistics == "target":
            name = self.target.name
            rounds = self.trainer.batches(stage, {name: self.target.part})
            batchnorm.adapt(self.net, (batch[name].x for batch in rounds))
        return logs
