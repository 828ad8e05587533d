"""Networks of FADA's disentangling: a domain-invariant and a domain-specific part of every feature.

The published ones are made for a backbone that ends in 8,192 convolutional features. Here they stand on the features
of any backbone: both branches keep its width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kd3a.losses import mutual_information


def branch(features: int) -> nn.Sequential:
    """One of the two branches: what it lets through is one part of the feature."""
    return nn.Sequential(nn.Linear(features, features), nn.BatchNorm1d(features), nn.ReLU())


class MutualInformation(nn.Module):
    """MINE's statistic T: how much two features look as if they came from one sample."""

    def __init__(self, features: int, hidden: int = 512):
        super().__init__()
        self.one, self.other = nn.Linear(features, hidden), nn.Linear(features, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """The bound on their mutual information; batches are shuffled, so a shift by one makes pairs drawn apart."""
        joint, apart = (F.leaky_relu(self.one(one) + self.other(o), 0.2) for o in (other, other.roll(1, 0)))
        return mutual_information(self.score(joint)[:, 0].float(), self.score(apart)[:, 0].float())


class Disentangler(nn.Module):
    """A source's own networks: the specific branch, what reads the class from it, MINE, and the reconstruction."""

    def __init__(self, features: int, classes: int):
        super().__init__()
        self.specific = branch(features)
        self.class_identifier = nn.Linear(features, classes)
        self.information = MutualInformation(features)
        self.reconstruction = nn.Linear(2 * features, features)

    def class_logits(self, features: Tensor) -> Tensor:
        """What the specific part of features gives away about the class, (B, C)."""
        return self.class_identifier(self.specific(features))

    def reconstruction_error(self, invariant: Tensor, specific: Tensor, features: Tensor) -> Tensor:
        r""":math:`\frac1{Bd} \|R([f_{di}, f_{ds}]) - f\|^2`."""
        return F.mse_loss(self.reconstruction(torch.cat([invariant, specific], 1)), features)
