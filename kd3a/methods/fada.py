"""FADA: sources and target align their features at domain identifiers; the target averages by dynamic attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from kd3a.adversarial import domain_loss, domain_mlp, source_surprise
from kd3a.batchnorm import batchnorm_layers, momentum
from kd3a.disentangling import Disentangler, branch
from kd3a.domains import Batch
from kd3a.methods.base import Logs
from kd3a.methods.weighted import Weighted
from kd3a.models import Net, drawn
from kd3a.settings import Settings
from kd3a.trainer import Party, Stage
from kd3a.weighting import SAMPLES, RuleName


class FADA(Weighted):
    r"""Federated adversarial domain adaptation (Peng et al., 2020), from its formulas; its code was not at hand.

    In every step each source k meets the target: cross-entropy at the source; the identifier learns who is who,
    :math:`-\log DI_k(f_k) - \log(1 - DI_k(f_T))`; both extractors follow :math:`-\log DI_k(f_k) - \log DI_k(f_T)`; then
    the disentangler. A round ends with the average by attention (:func:`kd3a.weighting.info_gain`), which replaces
    :math:`G_T` too and is always sent back.

    The identifier of a pair sits with neither side: features of both go to it and gradients come back in every
    batch, 4 K B m d floats an epoch. Of the class loss of the disentangling, the half on the domain-invariant
    features is the source's own cross-entropy, taken once; identifiers have ReLUs. Budget: one batch of every
    domain a step, as in KD3A; :math:`G_T` makes K updates on its.
    """

    name = "fada"
    federated = False  # features cross in every batch
    summary = "adversarial alignment of features that cross in every batch, and dynamic attention"

    class Config(Settings):
        """Settings of FADA."""

        stage: Literal["attention", "alignment", "disentangling"] = "alignment"
        """FADA-I: attention alone; FADA-II: and alignment; FADA-III: and disentangling."""
        confusion: Literal["printed", "flipped"] = "printed"
        """printed: both sides are to look like the source; flipped: each like the other."""
        adversarial: float = Field(0.1, ge=0)
        """Weight of the alignment in the extractors' updates; the authors' earlier code has 0.01, for Adam."""
        information: float = Field(1e-4, ge=0)
        """Weight of the mutual information between the two parts of a feature."""
        reconstruction: float = Field(0.01, ge=0)
        """Weight of the reconstruction of a feature from its parts."""
        weighting: RuleName = "info-gain"
        """How sources are weighed: info-gain is FADA's attention; the others are those of FedAvg."""
        attended: int = Field(SAMPLES, ge=50, le=SAMPLES)
        """Target samples that the attention clusters, at the most."""

    @classmethod
    def crosses(cls, config: Settings) -> set[str]:
        return super().crosses(config) | ({"features", "feature_grads"} if config.stage != "attention" else set())

    def build(self) -> None:
        super().build()
        self.attended = self.config.attended
        self.identifiers: dict[str, Party] = {}
        self.disentanglers: dict[str, Party] = {}
        width, classes = self.net.features, len(self.task.classes)
        for name in self.sources:
            if self.config.stage != "attention":
                self.identifiers[name] = self.extra(lambda: domain_mlp(width, (256,)), name, "identifier")
            if self.config.stage == "disentangling":
                self.disentanglers[name] = self.extra(lambda: Disentangler(width, classes), name, "disentangler")
        self.parties += [*self.identifiers.values(), *self.disentanglers.values()]

    def new_net(self, *purpose: object) -> Net:
        net = super().new_net(*purpose)
        if self.config.stage == "disentangling":  # the classifier reads the domain-invariant branch
            invariant = drawn(self.trainer.derive("invariant", *purpose), lambda: branch(net.features))
            net.backbone = nn.Sequential(net.backbone, invariant.to(self.trainer.device))
        return net

    def extra(self, make: Callable[[], nn.Module], source: str, what: str) -> Party:
        """A network that belongs to one source, besides its model."""
        net = drawn(self.trainer.derive(what, source), make).to(self.trainer.device)
        groups = [{"params": [*module.parameters()]} for module in net.children()]  # steps move some modules, not all
        return Party(f"{source}/{what}", net, self.trainer.optimiser(groups), self.sources[source].part)

    def run(self, stage: Stage) -> Logs:
        hub, message, form = self.target.name, self.broadcast(), self.report(self.target)
        for name, party in self.sources.items():
            self.receive(party, self.channel.send(message, hub, name))
        self.train(stage)
        sent = {name: self.report(party) for name, party in self.sources.items()}
        return self.collect(stage, {name: self.channel.send(m, name, hub, like=form) for name, m in sent.items()})

    def train(self, stage: Stage) -> None:
        """All batches of the round: every source in turn meets the target, by name and not by place in the task."""
        names = sorted(self.sources)
        parts = {name: self.sources[name].part for name in names} | {self.target.name: self.target.part}
        self.losses = {name: torch.zeros((), device=self.trainer.device) for name in names}
        torch.manual_seed(self.trainer.derive("dropout", "fada", stage.round))
        for party in self.parties:
            party.net.train()
        for step, batches in enumerate(self.trainer.batches(stage, parts)):
            for party in self.parties:
                self.trainer.schedule(party.optimiser, stage, step)
            with self.trainer.autocast():
                for name in names:
                    self.losses[name] += self.pair(name, batches[name], batches[self.target.name].x) / len(stage)

    def pair(self, name: str, batch: Batch, target: Tensor) -> Tensor:
        """One step of a source with the target; returns the source's cross-entropy."""
        party = self.sources[name]
        loss = self.label_loss(party.net(batch.x), batch.y)
        self.trainer.update(party.optimiser, loss)
        with momentum(batchnorm_layers(party.net), 0.0):  # the batch has entered the running statistics
            if name in self.identifiers:
                self.align(party, self.identifiers[name], batch.x, target)
            if name in self.disentanglers:
                self.disentangle(party, self.disentanglers[name], batch)
        return loss.detach()

    def align(self, party: Party, identifier: Party, source: Tensor, target: Tensor) -> None:
        """Train the identifier of the pair, then both extractors against it."""
        sides = ((party, party.net.backbone(source)), (self.target, self.target.net.backbone(target)))
        copies = [self.cross("features", features, side.name, identifier.name) for side, features in sides]
        self.trainer.update(identifier.optimiser, domain_loss(identifier.net, *copies))
        own, other = (copy.requires_grad_() for copy in copies)
        if self.config.confusion == "printed":
            confusion = source_surprise(identifier.net, own).mean() + source_surprise(identifier.net, other).mean()
        else:
            confusion = domain_loss(identifier.net, other, own)
        gradients = torch.autograd.grad(self.config.adversarial * confusion, (own, other))
        for (side, features), gradient in zip(sides, gradients, strict=True):
            received = self.cross("feature_grads", gradient, identifier.name, side.name)
            self.trainer.update(side.optimiser, (features * received).sum())  # its gradient is what was received

    def cross(self, kind: str, tensor: Tensor, sender: str, receiver: str) -> Tensor:
        return self.channel.send({kind: {"batch": tensor}}, sender, receiver)[kind]["batch"]

    def disentangle(self, party: Party, extra: Party, batch: Batch) -> None:
        """Class identifier with and against the specific branch, then little mutual information and reconstruction."""
        (extractor, invariant), own, c = party.net.backbone, extra.net, self.config
        loss = F.cross_entropy(own.class_logits(extractor(batch.x)), batch.y)
        self.descend(party, extra, loss, extractor, own.specific, own.class_identifier)
        loss = -own.class_logits(extractor(batch.x)).log_softmax(-1).mean()  # least where all classes are alike
        self.descend(party, extra, loss, extractor, own.specific)
        features = extractor(batch.x).detach()
        one, other = invariant(features), own.specific(features)
        self.descend(party, extra, -own.information(one.detach(), other.detach()), own.information)
        loss = c.information * own.information(one, other)
        loss = loss + c.reconstruction * own.reconstruction_error(one, other, features)
        self.descend(party, extra, loss, invariant, own.specific, own.reconstruction)

    def descend(self, party: Party, extra: Party, loss: Tensor, *modules: nn.Module) -> None:
        """One step of these modules only, which belong to two parties."""
        extra.optimiser.zero_grad(set_to_none=True)
        self.trainer.update(party.optimiser, loss, [p for module in modules for p in module.parameters()])
        self.trainer.step(extra.optimiser)
