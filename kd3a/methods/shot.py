"""SHOT with several sources: adapt each source's model to the target by itself, then average their predictions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kd3a.domains import Batch
from kd3a.losses import information_maximisation
from kd3a.methods.base import Logs
from kd3a.methods.source_free import Bottlenecked, SourceFree
from kd3a.models import Ensemble
from kd3a.trainer import Party, Stage


def shot(method: Bottlenecked, party: Party, stage: Stage) -> Tensor:
    r"""One epoch of SHOT: the head is frozen, the rest follows

    .. math:: \frac1B \sum_i h(p_i) - h(\bar p) + \beta \frac1B \sum_i \ell(z_i, \hat y_i)

    with :func:`kd3a.losses.shot_labels` as :math:`\hat y`, made at the start of the epoch. Returns the mean loss.
    """
    labels = method.pseudo_labels(party.net)

    def loss_of(batch: Batch, step: int) -> Tensor:
        logits = party.net(batch.x)
        return information_maximisation(logits) + method.config.beta * F.cross_entropy(logits, labels[batch.index])

    return method.trainer.local(party, stage, loss_of)


class SHOT(SourceFree):
    """Information maximisation and centroid pseudo-labels (Liang et al., 2020); ``beta: 0`` is SHOT-IM.

    The cheapest exchange of all: one upload per source, nothing comes back.
    """

    name = "shot"
    summary = "one upload per source; each model is adapted by information maximisation, their predictions averaged"

    def adaptation(self) -> tuple[list[Party], Ensemble]:
        hub = self.task.target.name
        parties = [self.adapter(f"{hub}/{name}", net) for name, net in self.received.items()]
        return parties, Ensemble(self.received.values())

    def adapt(self, stage: Stage) -> Logs:
        return {"loss": torch.stack([shot(self, party, stage) for party in self.adapters]).mean()}
