"""CAiDA: DECISION's ensemble with pseudo-labels anchored in confident samples and a consistency between the models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from kd3a.domains import Batch
from kd3a.losses import (
    centroids,
    class_relation_consistency,
    cosine_distances,
    information_maximisation,
    unit_features,
)
from kd3a.methods import source_free
from kd3a.methods.base import Logs
from kd3a.models import WeightedEnsemble
from kd3a.trainer import Party, Stage

CHUNK = 1 << 24  # elements of the largest matrix of distances between samples


class CAiDA(source_free.SourceFree):
    r"""Confident-anchor-induced pseudo-labels (Dong et al., 2021).

    .. math:: L = \mathrm{IM}(\bar z) + \beta\,\ell(\bar z, \hat y) + \kappa\,L_{KL},\qquad \bar z = \sum_k w_k z_k,
              \quad w = \mathrm{softmax}(a)

    with :func:`kd3a.losses.class_relation_consistency` as :math:`L_{KL}`. The published w is a linear layer on one-hot
    sources, which is the same. Its search for anchors walks from neighbour to neighbour in the backbone's features;
    here the nearest confident sample is taken at once, by the features that are then fused.
    """

    name = "caida"
    summary = "as DECISION, with confident anchors for the pseudo-labels and a class-relation consistency"

    class Config(source_free.Config):
        """Settings of CAiDA."""

        beta: float = Field(0.7, ge=0)
        """Weight of the pseudo-labels' cross-entropy."""
        consistency: float = Field(0.01, ge=0)
        """Weight of the class-relation consistency."""

    def adaptation(self) -> tuple[list[Party], WeightedEnsemble]:
        number, generator = len(self.received), self.trainer.generator("scores")
        scores = (2 * torch.rand(number, generator=generator) - 1) / number**0.5  # as PyTorch's linear layer starts
        ensemble = WeightedEnsemble(self.received.values(), scores.to(self.trainer.device), "softmax")
        return [self.adapter(self.task.target.name, ensemble)], ensemble

    def adapt(self, stage: Stage) -> Logs:
        c, ensemble, labels = self.config, self.ensemble, self.anchored_labels(stage)

        def loss_of(batch: Batch, step: int) -> Tensor:
            weighted = ensemble.weights()[:, None, None] * ensemble.logits(batch.x).float()  # (K, B, C)
            logits, y = weighted.sum(0), labels[batch.index]
            loss = information_maximisation(logits) + c.beta * F.cross_entropy(logits, y)
            return loss + c.consistency * class_relation_consistency(weighted, y)

        loss = self.trainer.local(self.adapters[0], stage, loss_of)
        return {"loss": loss, "weights": ensemble.weights().detach()}

    @torch.no_grad()
    def anchored_labels(self, stage: Stage) -> Tensor:
        r"""Pseudo-labels, (N,), by features fused with their anchors', :math:`\gamma\phi + (1-\gamma)\phi'`."""
        w, looks = self.ensemble.weights(), [self.look(net) for net in self.received.values()]
        phi = unit_features(torch.einsum("k,knd->nd", w, torch.stack([features for features, _ in looks])))
        p = torch.einsum("k,knc->nc", w, torch.stack([logits for _, logits in looks])).softmax(-1)
        everywhere = torch.ones(p.shape[1], dtype=torch.bool, device=p.device)
        distances = cosine_distances(phi, centroids(phi, p), everywhere)  # (N, C)
        anchor = nearest_anchor(phi, confident(p, distances))
        generator = self.trainer.generator("fusion", stage.round)
        gamma = (0.85 + 0.15 * torch.randn(len(phi), 1, generator=generator)).to(phi.device)
        fused = gamma * phi + (1 - gamma) * phi[anchor]
        members = F.one_hot(distances.argmin(-1), p.shape[1]).to(phi)
        return cosine_distances(fused, centroids(fused, members), members.sum(0) > 0).argmin(-1)


def confident(p: Tensor, distances: Tensor) -> Tensor:
    """Who may be an anchor, bool (N,): all but those in the lower half by both margins.

    The margins are first minus second probability, and second-nearest minus nearest centroid.

    >>> p = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.5, 0.5]])
    >>> confident(p, 1 - p).tolist()
    [True, False, True, False]
    """
    first, second = p.topk(2).values.T
    near, far = distances.topk(2, largest=False).values.T
    margins = torch.stack([first - second, far - near])  # (2, N)
    rank = margins.argsort(-1).argsort(-1)
    return (rank >= len(p) // 2).any(0)


def nearest_anchor(phi: Tensor, anchors: Tensor) -> Tensor:
    """For each sample the most similar other one among the anchors, (N,); in chunks, for N × N may be too large.

    >>> nearest_anchor(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), torch.tensor([True, False, True])).tolist()
    [2, 0, 0]
    """
    rows = torch.arange(len(phi), device=phi.device)
    best = []
    for chunk in rows.split(max(1, CHUNK // len(phi))):
        similarity = (phi[chunk] @ phi.T).masked_fill(~anchors, -torch.inf)
        best.append(similarity.scatter(1, chunk[:, None], -torch.inf).argmax(-1))
    return torch.cat(best)
