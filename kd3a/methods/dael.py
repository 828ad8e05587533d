"""DAEL: one expert per source; each teaches the others, and the most confident one labels the target."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from kd3a.domains import Batch
from kd3a.losses import collaboration, most_confident, negative_log
from kd3a.methods.base import Joint
from kd3a.models import Experts
from kd3a.settings import Settings
from kd3a.views import strong_view


class Config(Settings):
    """DAEL's switches."""

    threshold: float = Field(0.95, ge=0)
    """Confidence from which a pseudo-label of the target counts; above 1 none does."""
    target_weight: float = Field(0.5, ge=0)
    """Weight of the target's loss."""
    strong_view: bool = True
    """Strong augmentation of the second view; off, both views are the sample as it is."""


class DAEL(Joint):
    r"""Domain adaptive ensemble learning (Zhou et al., 2021): :math:`L_x + L_{cr} + w_u L_u`.

    :math:`L_x` trains each expert on its own source, :math:`L_{cr}` draws the other experts' mean on the strong view
    to it, and :math:`L_u` draws the mean of all on the target's strong view to the label of the most confident expert,
    where that is confident enough; it divides by the whole batch, not by the samples kept. Every batch is forwarded
    alone, the target's weak view without gradient but in training mode, as in the authors' code. The strong view of
    the original, RandAugment, is rewritten for whole batches in :mod:`kd3a.views`; for plain features it is dropout.
    """

    name = "dael"
    summary = "an expert per source, taught by the others and by confident pseudo-labels (Zhou et al., 2021)"
    Config = Config

    def build(self) -> None:
        super().build()
        part, device = self.task.target.train, self.trainer.device
        self.pixels = [torch.as_tensor(v, device=device).view(-1, 1, 1) for v in (part.mean, part.std)]

    def networks(self) -> dict[str, nn.Module]:
        net, number, classes = self.new_net(), len(self.task.sources), len(self.task.classes)
        net.head = Experts(self.several(number, lambda: nn.Linear(net.features, classes), "experts"))
        return {"net": net}

    def step(self, sources: list[Batch], target: Tensor, progress: float, phase: str) -> dict[str, Tensor]:
        with torch.no_grad():
            labels, mask = most_confident(self.ask(target), self.config.threshold)
        own = [self.ask(batch.x)[:, i] for i, batch in enumerate(sources)]  # K times (B, C)
        task = torch.stack([negative_log(e, batch.y).mean() for e, batch in zip(own, sources, strict=True)]).mean()
        taught = [collaboration(self.ask(self.second(b.x)), own[i], i) for i, b in enumerate(sources)]
        taught = torch.stack(taught).mean() if len(sources) > 1 else 0.0  # a single expert has no others
        guess = (mask * negative_log(self.ask(self.second(target)).mean(1), labels)).mean()
        self.update(task + taught + self.config.target_weight * guess)
        return {"loss": task}

    def ask(self, x: Tensor) -> Tensor:
        """All experts' probabilities, (B, K, C)."""
        return self.net.head.probabilities(self.net.backbone(x))

    def second(self, x: Tensor) -> Tensor:
        """The strong view of a batch, or the batch itself."""
        return strong_view(x, *self.pixels) if self.config.strong_view else x
