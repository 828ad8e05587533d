"""FedAvg: KD3A's loop without adaptation. Sources train, the target averages their models by size."""

from __future__ import annotations

import torch

from kd3a.aggregate import aggregate
from kd3a.channel import Message
from kd3a.methods.base import Logs, Rounds, Supervised
from kd3a.models import contents, unpack
from kd3a.trainer import Stage


class FedAvg(Rounds):
    r"""The decentralised source-only: :math:`\Theta = \sum_k \frac{N_k}{\sum_j N_j} \Theta_k`."""

    name = "fedavg"
    summary = "average of the sources' models by size: the decentralised lower reference"
    Config = Supervised

    def collect(self, stage: Stage, uploads: dict[str, Message]) -> Logs:
        sizes = torch.stack([message["stats"]["samples"] for message in uploads.values()])
        alpha = (sizes / sizes.sum()).to(self.trainer.device)
        unpack(self.net, aggregate([contents(message) for message in uploads.values()], alpha))
        return {"loss": self.source_loss(), "weights": alpha}
