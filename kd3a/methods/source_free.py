"""What the SHOT family shares: source models with a bottleneck, then adaptation that sees target data only.

The protocol of all methods holds: host optimiser, schedule and batch size in both phases (a share of the learning rate
in the second, the same for all layers, where the published codes move the backbone ten times slower than the rest), no
dropout in the bottleneck, the last model of a source, not the best on a held-out tenth, and accuracy on the target's
test split, where the published codes adapt to and score the same images.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from kd3a.channel import Message
from kd3a.errors import UserError, listing
from kd3a.losses import shot_labels, smoothed_cross_entropy, unit_features
from kd3a.methods.base import Logs, Method
from kd3a.models import Ensemble, Net, contents, parcel, unpack, with_bottleneck
from kd3a.settings import Settings
from kd3a.trainer import Party, Stage, in_sequence, timeline


class Config(Settings):
    """Settings of the SHOT family."""

    smoothing: float = Field(0.1, ge=0, lt=1)
    """Label smoothing of the sources' cross-entropy."""
    bottleneck: int = Field(256, ge=1)
    """Width of the bottleneck between backbone and head."""
    beta: float = Field(0.3, ge=0)
    """Weight of the pseudo-labels' cross-entropy; the published codes use 0.3 for objects and 0.1 for digits."""
    adapt_rate: float = Field(0.2, gt=0)
    """Learning rate of the adaptation, as a share of the schedule's."""


class Bottlenecked(Method):
    """Two phases. ``train``: sources on smoothed labels; ``adapt``: the target alone, as many epochs and samples.

    Budget: in each phase a network sees epochs × epoch_samples samples of its domain, as in KD3A.
    """

    Config = Config
    maximises_information = True

    def new_net(self, *purpose: object) -> Net:
        seed = self.trainer.derive("bottleneck", *purpose)
        return with_bottleneck(super().new_net(*purpose), self.config.bottleneck, seed=seed)

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return smoothed_cross_entropy(logits, labels, self.config.smoothing)

    def soft_labels(self, labels: Tensor) -> Tensor:
        share = self.config.smoothing
        return (1 - share) * super().soft_labels(labels) + share / len(self.task.classes)

    def stages(self) -> list[Stage]:
        t = self.trainer.training
        return in_sequence(super().stages(), timeline(t.epochs, t.batches_per_epoch, phase="adapt"))

    def adapt(self, stage: Stage) -> Logs:
        """One epoch of adaptation at the target; pseudo-labels are made anew in each."""
        raise NotImplementedError

    def adapter(self, name: str, net: torch.nn.Module) -> Party:
        """Who trains a network (or several in one) on the target; heads are frozen, for the classes live there."""
        parameters = [p for path, p in net.named_parameters() if "head" not in path.split(".")]
        optimiser = self.trainer.optimiser(parameters, rate=self.config.adapt_rate)
        return Party(name, net, optimiser, self.task.target.train)

    @torch.no_grad()
    def look(self, net: Net) -> tuple[Tensor, Tensor]:
        """Features (N, d) and logits (N, C) of the whole target, in eval mode and in fixed order."""
        features = self.trainer.forward(net.backbone, self.task.target.train)
        return features, net.head(features)

    def pseudo_labels(self, net: Net) -> Tensor:
        features, logits = self.look(net)
        return shot_labels(unit_features(features), logits.softmax(-1))


class SourceFree(Bottlenecked):
    """Every source trains alone and uploads once; what the target makes of the K models is the method's own.

    In the curve of a run, epochs before the upload show the mean of the sources' models, which the target then lacks;
    where sources are other machines, it shows untrained networks there.
    """

    federated = True

    def build(self) -> None:
        """A party per source, as many networks at the target that wait for the upload, and who adapts them."""
        self.sources = {s.name: self.trainer.party(s.name, self.new_net(s.name), s.train) for s in self.task.sources}
        self.received = {name: self.new_net(name) for name in self.sources}
        self.at_home = Ensemble(party.net for party in self.sources.values())
        self.adapters, self.ensemble = self.adaptation()
        self.parties = [*self.sources.values(), *self.adapters]

    def adaptation(self) -> tuple[list[Party], Ensemble]:
        """The parties that adapt ``self.received`` at the target, and the ensemble that is scored."""
        raise NotImplementedError

    @property
    def net(self) -> Ensemble:
        return self.ensemble if "uploaded" in self.memory else self.at_home

    def run(self, stage: Stage) -> Logs:
        self.losses = {}
        if stage.phase == "adapt":
            return self.adapt(stage)
        last = stage.last == stage.total
        form = parcel(next(iter(self.received.values()))) if last else {}
        uploads = self.exchange(self, stage, self.broadcast(), form)
        if last:
            self.take(uploads)
        return {"loss": self.source_loss()}

    def local(self, party: Party, stage: Stage, received: Message) -> Message:
        """Nothing is received, and nothing is uploaded before the last stage of training."""
        self.losses[party.name] = self.supervised(party, stage)
        return parcel(party.net) if stage.last == stage.total else {}

    def take(self, uploads: dict[str, Message]) -> None:
        """The only upload of a source: none may be missing."""
        if missing := [name for name in self.sources if name not in uploads]:
            raise UserError(f"No upload of {listing(missing)}: method {self.name} needs one of every source.")
        for name, message in uploads.items():
            unpack(self.received[name], contents(message))
        self.memory["uploaded"] = torch.ones((), device=self.trainer.device)
