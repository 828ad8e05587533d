"""CMSS: a manager weighs single source samples so that the domain discriminator errs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from kd3a import models
from kd3a.adversarial import domain_loss, domain_mlp, source_surprise
from kd3a.domains import Batch
from kd3a.losses import curriculum, dann_ramp
from kd3a.methods.base import Joint
from kd3a.settings import Settings


class Config(Settings):
    """CMSS's switches."""

    domain_weight: float = Field(1.0, ge=0)
    """λ of the domain loss at the end of DANN's schedule."""
    manager: str | None = None
    """The manager's network, with one output; None takes the classifier's own."""
    clip: float = Field(5.0, gt=0)
    """Largest absolute score of the manager: without it the weight may fall on a single sample."""
    hidden: tuple[int, ...] = (1024, 1024)
    """Hidden layers of the discriminator."""


class CMSS(Joint):
    r"""Curriculum manager for source selection (Yang et al., 2020).

    DANN on the pooled sources whose domain loss :math:`L_{wdom}` weighs the B source samples by
    :math:`w = B\,\mathrm{softmax}(S(x))`. In turn, the manager S maximises :math:`\lambda L_{wdom}`, the discriminator
    minimises it, and the classifier minimises :math:`L_{cls} - \lambda L_{wdom}`; :math:`L_{cls}` is not weighted.

    No official code could be had: formulas from the paper; ramp, networks and rates are choices of this book. The pool
    is a batch of every source side by side, so each is seen as often as in the other methods, and is forwarded in one.
    In a step the discriminator and the classifier use the weights from before the manager's update.
    """

    name = "cmss"
    summary = "adversarial alignment with a manager that weighs source samples (Yang et al., 2020)"
    Config = Config

    def networks(self) -> dict[str, nn.Module]:
        net, t = self.new_net(), self.trainer
        (discriminator,) = self.several(1, lambda: domain_mlp(net.features, self.config.hidden), "discriminator")
        manager = models.build(self.config.manager or t.training.model, self.task.shape, 1, t.derive("init", "manager"))
        return {"net": net, "discriminator": discriminator, "manager": manager.to(t.device, memory_format=t.layout)}

    def step(self, sources: list[Batch], target: Tensor, progress: float, phase: str) -> dict[str, Tensor]:
        strength = self.config.domain_weight * dann_ramp(progress)
        d, manager = self.nets["discriminator"], self.nets["manager"]
        x, y = torch.cat([batch.x for batch in sources]), torch.cat([batch.y for batch in sources])
        features, unknown = self.net.backbone(x), self.net.backbone(target)
        weights = curriculum(manager(x)[:, 0].float(), self.config.clip)  # (K B,)
        with torch.no_grad():
            surprise = source_surprise(d, features)
        self.update(-strength * (weights * surprise).mean(), manager)
        weights = weights.detach()
        self.update(strength * domain_loss(d, features.detach(), unknown.detach(), weights), d)
        task = F.cross_entropy(self.net.head(features), y)
        self.update(task - strength * domain_loss(d, features, unknown, weights), self.net)
        shares = weights.view(len(sources), -1).sum(1) / len(weights)
        return {"loss": task, "weights": shares}
