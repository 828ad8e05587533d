"""Domain shift, measured: how well models travel, and how easily domains are told apart.

Used in the book's chapter *The setting*.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import torch.nn.functional as F
from torch import Tensor, nn

from kd3a.channel import PRIVATE
from kd3a.domains import Domain, Part
from kd3a.trainer import Trainer
from kd3a.weighting import proxy_a_distance


def transfer(nets: Mapping[str, nn.Module], domains: Mapping[str, Domain], trainer: Trainer) -> pd.DataFrame:
    """Accuracy of every network (rows) on every domain's test part (columns), fractions."""

    def accuracy(net: nn.Module, part: Part) -> float:
        return (trainer.predict(net, part).argmax(-1) == part.y).cpu().double().mean().item()

    return pd.DataFrame({d.name: {n: accuracy(net, d.test) for n, net in nets.items()} for d in domains.values()})


def coarse_pixels(part: Part, cells: int = 4, samples: int = 500) -> Tensor:
    """The mean grey of cells × cells fields of the first ``samples`` images, (n, cells²): what a blurred eye sees."""
    grey = part.x[:samples].float().mean(1, keepdim=True) / 255  # (n, 1, H, W)
    return F.adaptive_avg_pool2d(grey, cells).flatten(1)


def distances(features: Mapping[str, Tensor], seed: int) -> pd.DataFrame:
    """The :func:`kd3a.weighting.proxy_a_distance` of every pair of domains, symmetric, zero on the diagonal."""
    names = list(features)
    table = pd.DataFrame(0.0, index=names, columns=names)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            distance = proxy_a_distance(features[one], features[other], seed).item()
            table.loc[one, other] = table.loc[other, one] = distance
    return table


def pairs(distance: pd.DataFrame, accuracy: pd.DataFrame) -> pd.DataFrame:
    """One line per ordered pair of different domains: source, target, distance, and what the model loses on the way."""
    rows = [
        {
            "source": source,
            "target": target,
            "distance": distance.loc[source, target],
            "loss": accuracy.loc[source, source] - accuracy.loc[source, target],
        }
        for source in accuracy.index
        for target in accuracy.columns
        if source != target
    ]
    return pd.DataFrame(rows)


def crossed(sent: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Bytes by method (rows) and kind (columns): private kinds first, then the largest.

    ``sent`` holds what :func:`kd3a.traffic.traffic` counted for each method.
    """
    table = pd.DataFrame(sent).T.fillna(0.0)
    order = sorted(table.columns, key=lambda kind: (kind not in PRIVATE, -table[kind].sum()))
    return table[order]
