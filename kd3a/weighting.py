"""Domain weights: how much each of the K sources and the (K+1)-th, distilled domain counts in the average.

:func:`domain_weights` are KD3A's. The rules below it distribute the weight over the sources for any method that
averages models, all with one signature: ``(context) -> alpha``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import AfterValidator
from torch import Tensor

from kd3a.consensus import Value, Variant, consensus_focus
from kd3a.errors import listing
from kd3a.losses import cluster_dispersion

#: What ``variant`` stands for: the switches of :func:`domain_weights`.
WEIGHTS = {
    "paper": {"size_factor": True, "target_share": "size"},
    "official": {"size_factor": False, "target_share": "gated"},
}


def domain_weights(
    focus: Tensor,
    sizes: Tensor | list[int],
    target_size: int,
    variant: Variant = "paper",
    gated_share: Tensor | float = 1.0,
    *,
    size_factor: bool | None = None,
    target_share: str | None = None,
) -> Tensor:
    r"""Weights :math:`\alpha` of the K sources and, last, of the distilled target domain.

    .. math::
        \alpha_{K+1} = \frac{N_T}{\sum_k N_k + N_T}, \qquad
        \alpha_k = (1 - \alpha_{K+1}) \frac{N_k\,\mathrm{CF}_k}{\sum_j N_j\,\mathrm{CF}_j}

    A negative :math:`\mathrm{CF}_k` (possible for leave-one-out) counts as zero: a source whose removal improves the
    consensus gets no weight. If no source is left, weights go by :math:`N_k` alone (uniform without the size factor),
    as in the first rounds of the released code, when nobody passes the gate. In the paper's variant the 0.001 of the
    fallback decides there: sources whose removal blurs the mean of all get weight, and if there is none, size decides.

    Args:
        focus: CF values, (K,).
        sizes: N_k, (K,).
        target_size: N_T.
        variant: ``official`` drops the N_k and sets :math:`\alpha_{K+1}` = ``gated_share`` / (K + 1), the share of
            target samples that passed the gate. ``size_factor`` and ``target_share`` turn these one at a time.

    Returns:
        (K + 1,), non-negative, sums to one, the target last.

    >>> [round(v, 3) for v in domain_weights(torch.tensor([3.0, 1.0, -1.0]), [100, 100, 100], 100).tolist()]
    [0.562, 0.188, 0.0, 0.25]
    """
    size_factor = WEIGHTS[variant]["size_factor"] if size_factor is None else size_factor
    target_share = WEIGHTS[variant]["target_share"] if target_share is None else target_share
    focus = focus.clamp(min=0)
    sizes = torch.as_tensor(sizes).to(focus)
    factor = sizes if size_factor else torch.ones_like(sizes)
    score = focus * factor
    score = torch.where(score.sum() <= 0, factor, score)  # NaN stays visible
    if target_share == "size":
        target = target_size / (sizes.sum() + target_size)
    else:
        target = torch.as_tensor(gated_share, dtype=focus.dtype, device=focus.device) / (len(focus) + 1)
    return torch.cat([(1 - target) * score / score.sum(), target.reshape(1)])


def smooth(alpha: Tensor, previous: Tensor | None, momentum: float, decimals: int | None = None) -> Tensor:
    """Moving average of the weights over rounds; the released code uses momentum 0.9 and rounds to 4 decimals."""
    if decimals is not None:
        alpha = alpha.round(decimals=decimals)
    if previous is not None and momentum:
        alpha = momentum * previous + (1 - momentum) * alpha
        if decimals is not None:
            alpha = alpha.round(decimals=decimals)
    return alpha


# --- rules ------------------------------------------------------------------------------------------------------------

SAMPLES = 2000  # of a domain, at the most, when features are compared


@dataclass(frozen=True)
class Context:
    """What a rule may look at, in one round. Whatever costs something is computed when it is asked for."""

    names: list[str]  # of the sources
    sizes: Tensor  # N_k, (K,)
    classes: int
    gate: float
    seed: int
    predictions: Callable[[], Tensor]
    """q of the sources' models on the target, (N, K, C)."""
    target_features: Callable[[], list[Tensor]]
    """Of the same target samples, by each source's model: K × (n, d)."""
    domain_features: Callable[[], list[Tensor]]
    """By the shared model, of samples of each source and, last, of the target: (K + 1) × (n, d). They leave home."""


Rule = Callable[[Context], Tensor]  # alpha of the sources, (K,), sums to one


def uniform(context: Context) -> Tensor:
    r""":math:`\alpha_k = 1 / K`."""
    return torch.ones(len(context.sizes), device=context.sizes.device) / len(context.sizes)


def size(context: Context) -> Tensor:
    r"""FedAvg's :math:`\alpha_k = N_k / \sum_j N_j`."""
    return context.sizes / context.sizes.sum()


def drop(*names: str) -> Rule:
    """By size, without the named sources: what somebody would do who knows which ones are bad."""

    def rule(context: Context) -> Tensor:
        kept = torch.tensor([name not in names for name in context.names], device=context.sizes.device)
        return context.sizes * kept / (context.sizes * kept).sum()

    return rule


def focus(value: Value) -> Rule:
    """KD3A's consensus focus, N_k · CF_k, as :func:`domain_weights` has it."""

    def rule(context: Context) -> Tensor:
        values = consensus_focus(context.predictions(), context.gate, value)
        return domain_weights(values, context.sizes, 0)[:-1]

    return rule


def h_divergence(context: Context) -> Tensor:
    r""":math:`\alpha_k \propto N_k e^{-d_k}` with d the :func:`proxy_a_distance` between source k and the target.

    Needs features of all domains in one place, so it is not decentralised; and it looks at inputs only, so wrong
    labels do not lower a source's weight. Weights are those of the round: they are not smoothed over rounds.
    """
    *sources, target = context.domain_features()
    distances = torch.stack([proxy_a_distance(source, target, context.seed) for source in sources])  # (K,)
    score = context.sizes * (-distances.to(context.sizes.device)).exp()
    return score / score.sum()


def info_gain(context: Context, temperature: float = 0.1) -> Tensor:
    r"""FADA's dynamic attention: a source is good whose update tightens the clusters of the target's features.

    .. math:: \alpha = \mathrm{softmax}(g_1, \dots, g_K), \qquad g_k = (I^{(p-1)} - I_k^{(p)}) / \tau

    with I the :func:`kd3a.losses.cluster_dispersion` of K-means clusters. :math:`I^{(p-1)}` is that of the model all
    sources started from: the same for all, so the softmax does not see it and it is not computed. Raw gains grow with
    the number of samples and the length of features and make the softmax one-hot: features are scaled to length one, I
    is divided by n, and :math:`\tau` = 0.1. A source that collapses the target's features to a point has the largest
    gain of all. K-means starts anew, from the same draws, for every model and round.
    """
    clusters = min(context.classes, 50)
    spread = []
    for features in context.target_features():
        f = F.normalize(features, dim=-1)
        spread.append(cluster_dispersion(f, k_means(f, clusters, context.seed), clusters) / len(f))
    return (-torch.stack(spread) / temperature).softmax(0)


#: The rules by name; ``drop:names`` is made by :func:`drop`.
RULES: dict[str, Rule] = {
    "uniform": uniform,
    "size": size,
    "consensus-focus": focus("leave-one-out"),
    "shapley": focus("shapley"),
    "h-divergence": h_divergence,
    "info-gain": info_gain,
}


def dropped(name: str) -> list[str]:
    """The sources that ``drop:one,two`` names; none for the other rules."""
    return name.removeprefix("drop:").split(",") if name.startswith("drop:") else []


def rule_of(name: str) -> Rule:
    """The rule a setting names: one of :data:`RULES`, or ``drop:`` and the names of sources.

    >>> rule_of("size") is size
    True
    """
    if any(dropped(name)):
        return drop(*dropped(name))
    if name not in RULES:
        raise ValueError(f"unknown rule: choose one of {listing(RULES)}, or drop: and names of sources")
    return RULES[name]


def _known(name: str) -> str:
    rule_of(name)
    return name


RuleName = Annotated[str, AfterValidator(_known)]


def proxy_a_distance(source: Tensor, target: Tensor, seed: int) -> Tensor:
    r"""The distance :math:`\hat d = 2 (1 - 2 \hat\epsilon)` of two domains: 0 if nobody can tell them apart, at most 2.

    :math:`\hat\epsilon` is the error, at most one half, of a logistic regression that learned on one half of the
    samples which domain each came from, measured on the other half. With strong features all distances approach 2.

    Args:
        source, target: features, (n, d) each; the larger set is cut to the size of the smaller.

    >>> proxy_a_distance(torch.zeros(100, 1), torch.ones(100, 1), seed=0).item()
    2.0
    """
    from sklearn.linear_model import LogisticRegression  # slow to import, and few runs need it

    generator = torch.Generator().manual_seed(seed)
    number = min(len(source), len(target))
    pair = [f.cpu()[torch.randperm(len(f), generator=generator)[:number]] for f in (source, target)]
    learn, test = (torch.cat(halves) for halves in zip(*(f.tensor_split(2) for f in pair), strict=True))
    mean, std = learn.mean(0), learn.std(0).clamp(min=1e-6)
    labels = [torch.arange(2).repeat_interleave(len(half) // 2).numpy() for half in (learn, test)]
    classifier = LogisticRegression(max_iter=200).fit(((learn - mean) / std).numpy(), labels[0])
    error = 1 - classifier.score(((test - mean) / std).numpy(), labels[1])
    return torch.tensor(2 * (1 - 2 * min(error, 0.5)))


def k_means(features: Tensor, clusters: int, seed: int, iterations: int = 20) -> Tensor:
    """Clusters of the samples, (N,), by Lloyd's algorithm from seeded k-means++ centres; reads nothing on the host."""
    draws = torch.rand(clusters, generator=torch.Generator().manual_seed(seed)).to(features.device)
    centres = features[:1]
    for draw in draws[1:]:  # a sample becomes a centre with a chance that grows with its squared distance to all others
        mass = torch.cdist(features, centres).amin(-1).square().cumsum(0)
        chosen = torch.searchsorted(mass, (draw * mass[-1])[None]).clamp(max=len(features) - 1)  # (1,)
        centres = torch.cat([centres, features[chosen]])
    for _ in range(iterations):
        members = F.one_hot(torch.cdist(features, centres).argmin(-1), len(centres)).to(features)  # (N, R)
        number = members.sum(0)[:, None]
        centres = torch.where(number > 0, members.T @ features / number.clamp(min=1), centres)
    return torch.cdist(features, centres).argmin(-1)
