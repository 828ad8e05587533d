"""M³SDA: match the features' moments between all domains; the β version adds classifiers that disagree."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from kd3a.domains import Batch
from kd3a.losses import discrepancy, moment_distance
from kd3a.methods.base import Joint
from kd3a.models import Experts
from kd3a.settings import Settings


class Config(Settings):
    """M³SDA's switches."""

    beta: bool = True
    """M³SDA-β: every source has a pair of heads, which first disagree on the target, then the backbone settles it."""
    moment_weight: float = Field(0.5, ge=0)
    """Weight of the moment distance."""
    moments: Literal["central", "raw"] = "central"
    """central: means and variances, averaged over all pairs, halved (Dassl's); raw: the paper's formula, which sums
    raw moments and so wants a moment_weight several times smaller."""
    backbone_steps: int = Field(4, ge=0)
    """How often the backbone moves against the discrepancy in every step of the β version."""
    shared_pair: bool = False
    """One pair of heads for all sources, as in the released digit code; the paper has one for each."""


class M3SDA(Joint):
    r"""Moment matching for multi-source domain adaptation (Peng et al., 2019).

    A) all networks minimise :math:`\frac1K \sum_k L_k + \lambda MD`, and in the β version then
    B) the heads minimise :math:`\frac1K \sum_k (L_k - \mathrm{dis}_k)` with the backbone fixed, and
    C) the backbone minimises :math:`\frac1K \sum_k \mathrm{dis}_k` with the heads fixed, four times.

    L_k sums over the pair of heads. The released digit code is not followed: it pairs single samples by their place in
    the batch, forgets one pair of domains and counts another twice. The paper scores a mean of the heads weighted by
    their accuracy on the target, which needs its labels; here the first heads' plain mean is scored. Every domain is
    forwarded alone; the passes of B and C too move the running statistics of BatchNorm, mostly to the target's.
    """

    name = "m3sda"
    summary = "moment matching of all domains, β with pairs of heads (Peng et al., 2019)"
    Config = Config

    def networks(self) -> dict[str, nn.Module]:
        number = 1 if self.config.shared_pair else len(self.task.sources)
        net, classes = self.new_net(), len(self.task.classes)
        names = ("heads", "rivals") if self.config.beta else ("heads",)
        heads = {name: self.several(number, lambda: nn.Linear(net.features, classes), name) for name in names}
        net.head = Experts(heads.pop("heads"))
        return {"net": net, **heads}

    def heads(self) -> list[list[nn.Module]]:
        """The pair of heads (without β the single head) of every source."""
        pairs = [list(pair) for pair in zip(self.net.head, *self.rivals(), strict=True)]
        return pairs * len(self.task.sources) if self.config.shared_pair else pairs

    def rivals(self) -> list[nn.Module]:
        return [self.nets["rivals"]] if self.config.beta else []

    def step(self, sources: list[Batch], target: Tensor, progress: float, phase: str) -> dict[str, Tensor]:
        c, backbone = self.config, self.net.backbone
        features, unknown = [backbone(batch.x) for batch in sources], backbone(target)
        task = self.task_loss(features, sources)
        self.update(task + c.moment_weight * moment_distance(features, unknown, c.moments))
        if c.beta:
            with torch.no_grad():
                features, unknown = [backbone(batch.x) for batch in sources], backbone(target)
            disagree = self.task_loss(features, sources) - self.disagreement(unknown)
            self.update(disagree, self.net.head, *self.rivals())
            for _ in range(c.backbone_steps):
                self.update(self.disagreement(backbone(target)), backbone)
        return {"loss": task / (2 if c.beta else 1)}

    def task_loss(self, features: list[Tensor], sources: list[Batch]) -> Tensor:
        """Mean over sources of the summed cross-entropy of their heads."""
        triples = zip(features, sources, self.heads(), strict=True)
        losses = [F.cross_entropy(head(f), batch.y) for f, batch, pair in triples for head in pair]
        return torch.stack(losses).sum() / len(sources)

    def disagreement(self, features: Tensor) -> Tensor:
        """Mean over sources of their pair's discrepancy on the target."""
        return torch.stack([discrepancy(*(head(features) for head in pair)) for pair in self.heads()]).mean()
