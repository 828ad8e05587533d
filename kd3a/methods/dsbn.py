"""DSBN: BatchNorm branches per domain; first adversarial and semantic alignment, then self-training."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from kd3a.adversarial import domain_loss, domain_mlp, reverse
from kd3a.domains import Batch
from kd3a.losses import dann_ramp, moving_centroids
from kd3a.methods.base import Joint, Logs
from kd3a.models import Net, enter, with_domain_bn
from kd3a.settings import Settings
from kd3a.trainer import Stage, in_sequence, timeline

SELF_TRAINING = "self-training"


class Config(Settings):
    """DSBN's switches."""

    self_training: float = Field(0.3, ge=0, lt=1)
    """Share of the epochs, rounded down, in which a student learns from the first stage's pseudo-labels."""
    student: Literal["continued", "fresh"] = "continued"
    """The student starts from the first stage's network, or afresh as in the original, whose fresh weights were
    ImageNet's: from random ones, the student of a shared budget would only have begun to learn when it is scored."""
    student_rate: float = Field(0.2, gt=0)
    """Learning rate of self-training, as a share of the schedule's, which starts anew; a fresh student wants 1."""
    adversarial_weight: float = Field(0.1, ge=0)
    """Weight of the domain losses in the first stage."""
    semantic_weight: float = Field(1.0, ge=0)
    """Weight of the distance between the classes' centroids."""
    target_weight: float = Field(1.0, ge=0)
    """Weight of the pseudo-labelled target in self-training."""
    warm_up: float = Field(0.1, ge=0, le=1)
    """Share of a stage before DANN's schedule sets in."""
    keep: float = Field(0.7, ge=0, lt=1)
    """Part of a centroid that stays when its class is in the batch."""
    aligned: Literal["logits", "features"] = "logits"
    """What is aligned: the logits, as the original does by default, or the backbone's features."""
    hidden: tuple[int, ...] = (500, 500)
    """Hidden layers of a discriminator: the original's for digits; (1024, 1024) elsewhere."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout in a discriminator: the original has none for digits, 0.5 elsewhere."""


class DSBN(Joint):
    r"""Domain-specific batch normalisation (Chang et al., 2019) on MSTN, in two stages that share the epochs.

    Stage 1 minimises :math:`L_{cls} - \lambda L_{adv} + \lambda L_{sm}`: one discriminator per source and target, and
    centroids of the classes, the target's by pseudo-label, drawn together. Stage 2 trains a student on the sources and
    on :math:`\hat y = \arg\max[(1 - \lambda) z_{teacher} + \lambda z_{student}]` of the target.

    The original uses Adam, whose steps do not depend on a loss's scale; with SGD the discriminators descend their plain
    cross-entropy, and only what reaches the classifier is weighted. They start from PyTorch's weights. The original
    keeps the checkpoint that is best on target labels; here the last one is scored, with the target's branch. A network
    without BatchNorm makes this MSTN.
    """

    name = "dsbn"
    summary = "BatchNorm branches per domain, alignment, then self-training (Chang et al., 2019)"
    Config = Config

    def build(self) -> None:
        super().build()
        shape = len(self.parts), len(self.task.classes), self.width(self.net)
        self.memory = {"centroids": torch.zeros(shape, device=self.trainer.device)}  # (K + 1, C, d), the target's last

    def width(self, net: Net) -> int:
        return net.features if self.config.aligned == "features" else len(self.task.classes)

    def new_net(self, *purpose: object) -> Net:
        return with_domain_bn(super().new_net(*purpose), len(self.parts))

    def networks(self) -> dict[str, nn.Module]:
        net, c, number = self.new_net(), self.config, len(self.task.sources)
        pairs = self.several(number, lambda: domain_mlp(self.width(net), c.hidden, c.dropout), "discriminators")
        return {"net": net, "teacher": self.new_net(), "discriminators": pairs}

    def stages(self) -> list[Stage]:
        t = self.trainer.training
        second = int(self.config.self_training * t.epochs)
        aligning = timeline(t.epochs - second, t.batches_per_epoch)
        return in_sequence(aligning, timeline(second, t.batches_per_epoch, phase=SELF_TRAINING))

    def run(self, stage: Stage) -> Logs:
        for group in self.party.optimiser.param_groups:
            group["rate"] = self.config.student_rate if stage.phase == SELF_TRAINING else 1.0
        if stage.phase == SELF_TRAINING and stage.first == 0:  # the network becomes the teacher, a student takes over
            self.nets["teacher"].load_state_dict(self.net.state_dict())
            if self.config.student == "fresh":
                self.net.load_state_dict(self.new_net().state_dict())
            self.party.optimiser.state.clear()
        return super().run(stage)

    def step(self, sources: list[Batch], target: Tensor, progress: float, phase: str) -> dict[str, Tensor]:
        ramp = dann_ramp(max(0.0, progress - self.config.warm_up))
        inputs = [*(batch.x for batch in sources), target]
        features = [enter(self.net, domain).backbone(x) for domain, x in enumerate(inputs)]  # K + 1 times (B, d)
        logits = [self.net.head(f) for f in features]  # K + 1 times (B, C)
        task = torch.stack([F.cross_entropy(z, batch.y) for z, batch in zip(logits, sources, strict=False)]).mean()
        guess = self.answer(self.net, target)  # (B, C)
        if phase == SELF_TRAINING:
            labels = torch.lerp(self.answer(self.nets["teacher"], target), guess, ramp).argmax(-1)
            extra = self.config.target_weight * F.cross_entropy(logits[-1], labels)
        else:
            labels = [*(batch.y for batch in sources), guess.argmax(-1)]
            extra = self.alignment(features if self.config.aligned == "features" else logits, labels, ramp)
        self.update(task + extra)
        return {"loss": task}

    def alignment(self, aligned: list[Tensor], labels: list[Tensor], ramp: float) -> Tensor:
        """Domain losses and distance of the centroids, weighted for the classifier; moves the centroids on."""
        c, strength = self.config, ramp * self.config.adversarial_weight / 2
        *known, unknown = (reverse(f, strength) for f in aligned)
        pairs = zip(self.nets["discriminators"], known, strict=True)
        adversarial = torch.stack([domain_loss(d, f, unknown) for d, f in pairs]).mean()
        triples = zip(self.memory["centroids"], aligned, labels, strict=True)
        centroids = torch.stack([moving_centroids(old, f, y, c.keep) for old, f, y in triples])
        self.memory["centroids"] = centroids.detach()
        return adversarial + ramp * c.semantic_weight * (centroids[:-1] - centroids[-1]).square().mean()

    @torch.no_grad()
    def answer(self, net: nn.Module, x: Tensor) -> Tensor:
        """Logits of target inputs in evaluation mode, by the target's branch."""
        logits = enter(net.eval(), len(self.task.sources))(x)
        net.train()
        return logits

    def predict(self, part) -> Tensor:
        enter(self.net, len(self.task.sources))
        return super().predict(part)
