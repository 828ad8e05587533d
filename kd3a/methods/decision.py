"""DECISION: adapt all source models together, and learn how much each of them counts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kd3a.domains import Batch
from kd3a.losses import information_maximisation, mixed_labels, shot_centroids, unit_features
from kd3a.methods.base import Logs
from kd3a.methods.source_free import SourceFree
from kd3a.models import WeightedEnsemble
from kd3a.trainer import Party, Stage


class DECISION(SourceFree):
    r"""One weight per source, learned with the encoders (Ahmed et al., 2021).

    The logits are :math:`\bar z = \sum_k w_k z_k` with :math:`w_k = \sigma(a_k) / \sum_j \sigma(a_j)`, and the loss is
    SHOT's on :math:`\bar z`. Features and centroids of the K models are mixed with the w of the moment at label time;
    see :func:`kd3a.losses.mixed_labels`. The optional distillation into one network is left out.
    """

    name = "decision"
    summary = "one upload per source; all models are adapted together, their weights learned"

    def adaptation(self) -> tuple[list[Party], WeightedEnsemble]:
        scores = 2 * torch.rand(len(self.received), generator=self.trainer.generator("scores")) - 1  # U(-1, 1)
        ensemble = WeightedEnsemble(self.received.values(), scores.to(self.trainer.device), "sigmoid")
        return [self.adapter(self.task.target.name, ensemble)], ensemble

    def adapt(self, stage: Stage) -> Logs:
        ensemble, looks = self.ensemble, [self.look(net) for net in self.received.values()]
        phi = torch.stack([unit_features(features) for features, _ in looks])  # (K, N, d)
        found = [shot_centroids(f, logits.softmax(-1)) for f, (_, logits) in zip(phi, looks, strict=True)]
        centres = torch.stack([c for c, _ in found])  # (K, C, d)
        present = torch.stack([classes for _, classes in found]).any(0)  # (C,)

        def loss_of(batch: Batch, step: int) -> Tensor:
            labels = mixed_labels(phi[:, batch.index], centres, present, ensemble.weights().detach())
            logits = ensemble(batch.x)
            return information_maximisation(logits) + self.config.beta * F.cross_entropy(logits, labels)

        loss = self.trainer.local(self.adapters[0], stage, loss_of)
        return {"loss": loss, "weights": ensemble.weights().detach()}
