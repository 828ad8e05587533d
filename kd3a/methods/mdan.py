"""MDAN: adversarial alignment of every source with the target, sources combined by a soft or hard maximum."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from kd3a.adversarial import domain_loss, domain_mlp, reverse
from kd3a.domains import Batch
from kd3a.losses import dann_ramp, soft_maximum
from kd3a.methods.base import Joint
from kd3a.settings import Settings


class Config(Settings):
    """MDAN's switches."""

    mode: Literal["soft", "hard"] = "soft"
    """soft: log-sum-exp over the sources' task and domain losses; hard: largest task loss, smallest domain loss."""
    mu: float = Field(0.1, ge=0)
    """Weight of the domain losses: 0.01 in the original on Amazon, 1 on digits."""
    ramp: bool = True
    """Let mu grow by DANN's schedule; the original keeps it constant."""
    gamma: float = Field(10.0, gt=0)
    """Sharpness of the soft maximum."""
    weight_sign: Literal[1, -1] = 1
    """Soft weights by task loss plus (1) or minus (-1) domain loss: the PyTorch original adds, which favours sources
    that look like the target; the bound behind it subtracts."""
    hidden: tuple[int, ...] = (1024,)
    """Hidden layers of a discriminator; none makes it linear, as in the original on Amazon."""


class MDAN(Joint):
    r"""Multi-source domain adversarial network (Zhao et al., 2018).

    With L_k the cross-entropy of source k and A_k the loss of its discriminator behind gradient reversal,

    .. math:: \text{soft: } \frac1\gamma \log \sum_k e^{\gamma (L_k + \mu A_k)}, \qquad
              \text{hard: } \max_k L_k + \mu \min_k A_k.

    Every domain is forwarded alone, so BatchNorm normalises each by itself. One optimiser updates all networks at once.
    """

    name = "mdan"
    summary = "adversarial alignment, one discriminator per source (Zhao et al., 2018)"
    Config = Config

    def networks(self) -> dict[str, nn.Module]:
        net, number = self.new_net(), len(self.task.sources)
        pairs = self.several(number, lambda: domain_mlp(net.features, self.config.hidden), "discriminators")
        return {"net": net, "discriminators": pairs}

    def step(self, sources: list[Batch], target: Tensor, progress: float, phase: str) -> dict[str, Tensor]:
        mu = self.config.mu * (dann_ramp(progress) if self.config.ramp else 1.0)
        features = [self.net.backbone(batch.x) for batch in sources]
        unknown = reverse(self.net.backbone(target))
        task = [F.cross_entropy(self.net.head(f), batch.y) for f, batch in zip(features, sources, strict=True)]
        pairs = zip(self.nets["discriminators"], features, strict=True)
        task, domain = torch.stack(task), torch.stack([domain_loss(d, reverse(f), unknown) for d, f in pairs])  # (K,)
        loss, weights = self.combine(task, mu * domain)
        self.update(loss)
        return {"loss": task.mean(), "weights": weights}

    def combine(self, task: Tensor, domain: Tensor) -> tuple[Tensor, Tensor]:
        """One loss of all sources', and the sources' weights in the task's gradient, (K,)."""
        c = self.config
        if c.mode == "hard":
            return task.max() + domain.min(), F.one_hot(task.argmax(), len(task)).float()
        weights = torch.softmax(c.gamma * (task + c.weight_sign * domain).detach(), 0)
        if c.weight_sign > 0:
            return soft_maximum(task + domain, c.gamma), weights
        return (weights * (task + domain)).sum(), weights
