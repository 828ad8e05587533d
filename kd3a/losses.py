"""Losses and schedules as pure functions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def distillation(logits: Tensor, p: Tensor, n: Tensor) -> Tensor:
    r"""Knowledge-vote loss :math:`L^{kv} = n_p \cdot KL(p \,\|\, q)` (equation kvloss), mean over the batch.

    Args:
        logits: the student's, (B, C).
        p: consensus, (B, C).
        n: consensus weights, (B,).

    >>> distillation(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]), torch.ones(1)).item()
    0.0
    """
    divergence = F.kl_div(F.log_softmax(logits, -1), p, reduction="none").sum(-1)  # (B,)
    return (n * divergence).mean()


def full_precision(tensor: Tensor) -> torch.autocast:
    """Inside the block, products on the tensor's device have the precision of their factors."""
    return torch.autocast(tensor.device.type, enabled=False)


def soft_cross_entropy(logits: Tensor, p: Tensor) -> Tensor:
    """Cross-entropy to soft labels, (B,): the KL divergence plus the entropy of ``p``."""
    return -(p * F.log_softmax(logits, -1)).sum(-1)


def mixup(x: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
    r"""Mixed inputs (or labels) :math:`\lambda x + (1 - \lambda) x_\pi`, with ``partner`` the permutation."""
    return lam * x + (1 - lam) * x[partner]


def cosine(progress: float, begin: float, end: float) -> float:
    """Cosine decay from ``begin`` at progress 0 to ``end`` at progress 1.

    >>> cosine(0.0, 0.05, 0.001), round(cosine(1.0, 0.05, 0.001), 6)
    (0.05, 0.001)
    """
    return end + (begin - end) * (1 + math.cos(math.pi * progress)) / 2


def confidence_gate(progress: float, begin: float, end: float) -> float:
    """The gate's schedule: linear in training progress, from ``begin`` towards ``end``.

    A round uses the value at its start, so the first one sees ``begin`` and the last one stops one step short of
    ``end``, as the released code does.

    >>> confidence_gate(0.5, 0.9, 0.95)
    0.925
    """
    return begin + (end - begin) * progress


def beta_draws(number: int, alpha: float, generator: torch.Generator) -> Tensor:
    """``number`` draws from Beta(alpha, alpha), alpha of 0.01 or more, deterministic in the generator, on the CPU."""
    gamma = torch._standard_gamma(torch.full((2, number), alpha, dtype=torch.float64), generator=generator)
    return (gamma[0] / gamma.sum(0)).float()


# --- centralised adaptation -------------------------------------------------------------------------------------------


def dann_ramp(progress: float) -> float:
    r"""DANN's schedule :math:`\lambda(q) = \frac{2}{1 + e^{-10 q}} - 1` of an adversarial term, from 0 to almost 1.

    >>> dann_ramp(0.0), round(dann_ramp(1.0), 4)
    (0.0, 0.9999)
    """
    return 2 / (1 + math.exp(-10 * progress)) - 1


def soft_maximum(values: Tensor, gamma: float) -> Tensor:
    r"""MDAN's combination of the sources, :math:`\frac1\gamma \log \sum_k e^{\gamma v_k}`: the maximum as γ grows.

    Args:
        values: one per source, (K,).
        gamma: sharpness.

    >>> round(soft_maximum(torch.tensor([1.0, 3.0]), 100.0).item(), 4)
    3.0
    """
    return torch.logsumexp(gamma * values, 0) / gamma


def distances(one: Tensor, other: Tensor) -> Tensor:
    r"""Euclidean distances of rows, :math:`\sqrt{\|a - b\|^2 + 10^{-12}}`, whose gradient is finite at zero too.

    Args:
        one, other: (..., d).

    >>> distances(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)).item()
    5.0
    """
    return ((one - other).square().sum(-1) + 1e-12).sqrt()


def moment_distance(sources: list[Tensor], target: Tensor, moments: str = "central") -> Tensor:
    r"""M³SDA's distance of the first two moments between all pairs of domains.

    ``raw`` is the paper's, with element-wise powers:

    .. math:: \sum_{q=1}^2 \Big( \tfrac1K \sum_k \| E f_k^q - E f_T^q \|
              + \tbinom{K}{2}^{-1} \sum_{i<j} \| E f_i^q - E f_j^q \| \Big).

    ``central`` takes the mean and the unbiased variance instead, averages over all :math:`K + \binom K2` pairs alike
    and halves (Dassl's form, steadier).

    Args:
        sources: features of the K sources, each (B, d).
        target: features of the target, (B, d).

    >>> round(moment_distance([torch.ones(4, 3)], torch.zeros(4, 3)).item(), 4)  # half of the means' distance, √3
    0.866
    """
    domains = [f.float() for f in (*sources, target)]
    first = torch.stack([f.mean(0) for f in domains])  # (K + 1, d)
    central = moments == "central"
    second = torch.stack([f.var(0) if central else f.square().mean(0) for f in domains])  # (K + 1, d)
    i, j = torch.triu_indices(len(domains), len(domains), 1, device=target.device)  # the target is the last row
    pairs = distances(first[i], first[j]) + distances(second[i], second[j])
    if central:
        return pairs.mean() / 2
    with_target = j == len(sources)
    between = pairs * ~with_target
    return (pairs * with_target).sum() / len(sources) + between.sum() / max(1, len(pairs) - len(sources))


def discrepancy(one: Tensor, other: Tensor) -> Tensor:
    r"""Classifier discrepancy :math:`\frac1{BC} \sum |p - p'|` of two heads' softmax outputs.

    Args:
        one, other: logits, (B, C).

    >>> discrepancy(torch.tensor([[50.0, -50.0]]), torch.tensor([[-50.0, 50.0]])).item()
    1.0
    """
    return (one.softmax(-1) - other.softmax(-1)).abs().mean()


def negative_log(p: Tensor, labels: Tensor) -> Tensor:
    r""":math:`-\log(p_y + 10^{-5})`, (B,): cross-entropy of probabilities, bounded where a label seems impossible.

    Args:
        p: probabilities, (B, C).
        labels: classes, (B,).

    >>> round(negative_log(torch.tensor([[1.0, 0.0]]), torch.tensor([1])).item(), 3)
    11.513
    """
    return -(p.gather(1, labels[:, None])[:, 0] + 1e-5).log()


def most_confident(experts: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    r"""DAEL's pseudo-labels: class of the most confident expert, and 1 where its confidence reaches the threshold.

    Args:
        experts: probabilities of K experts, (B, K, C).

    Returns:
        labels (B,) and mask (B,), without gradient.

    >>> most_confident(torch.tensor([[[0.6, 0.4], [0.1, 0.9]]]), 0.95)
    (tensor([1]), tensor([0.]))
    """
    confidence, labels = experts.detach().amax(1).max(-1)
    return labels, (confidence >= threshold).to(experts.dtype)


def collaboration(experts: Tensor, teacher: Tensor, own: int) -> Tensor:
    r"""DAEL's consistency: the other experts' mean on the strong view follows the domain's own expert on the weak one.

    .. math:: \frac1B \sum_x \Big\| \frac1{K-1} \sum_{j \ne i} e_j(\tilde x) - \mathrm{sg}[e_i(x)] \Big\|_2^2

    Args:
        experts: probabilities of all experts on the strong view, (B, K, C).
        teacher: those of the own expert on the weak view, (B, C); receives no gradient.
        own: i, which of the experts is the domain's own.

    >>> collaboration(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), torch.tensor([[1.0, 0.0]]), own=0).item()
    2.0
    """
    others = (experts.sum(1) - experts[:, own]) / max(1, experts.shape[1] - 1)
    return (others - teacher.detach()).square().sum(-1).mean()


def curriculum(scores: Tensor, clip: float = 5.0) -> Tensor:
    r"""CMSS's sample weights :math:`w = B \cdot \mathrm{softmax}(s)`, which sum to B; scores are clipped to ±clip.

    Args:
        scores: of the manager, (B,).

    >>> curriculum(torch.zeros(4))
    tensor([1., 1., 1., 1.])
    """
    return len(scores) * scores.clamp(-clip, clip).softmax(0)


def moving_centroids(old: Tensor, features: Tensor, labels: Tensor, keep: float = 0.7) -> Tensor:
    r"""Class centroids :math:`c \leftarrow \kappa\,\mathrm{sg}[c] + (1 - \kappa) \bar f_c` of the classes in a batch.

    Args:
        old: centroids so far, (C, d); those of absent classes stay.
        features: (B, d), the part that receives gradient.
        labels: (B,).

    >>> moving_centroids(torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]))
    tensor([[0.6000],
            [0.0000]])
    """
    members = F.one_hot(labels, len(old)).to(old.dtype)  # (B, C)
    count = members.sum(0)[:, None]  # (C, 1)
    with full_precision(old):
        mean = members.T @ features.to(old.dtype) / count.clamp(min=1)
    return torch.where(count > 0, keep * old.detach() + (1 - keep) * mean, old.detach())


# --- decentralised adaptation: the SHOT family and FADA ---------------------------------------------------------------


def entropy(p: Tensor) -> Tensor:
    r"""Entropy :math:`h(p) = -\sum_c p_c \log(p_c + 10^{-5})` of distributions, in SHOT's form, finite at zero.

    Args:
        p: probabilities, (..., C).

    >>> round(entropy(torch.tensor([0.5, 0.5])).item(), 3)
    0.693
    """
    return -(p * (p + 1e-5).log()).sum(-1)


def information_maximisation(logits: Tensor) -> Tensor:
    r"""SHOT's loss :math:`\frac1B \sum_i h(p_i) - h(\bar p)`: each sample certain of its class, all classes in use.

    It lies between :math:`-\log C`, reached by certain predictions in equal shares, and 0. The second term takes the
    classes for balanced, which strongly imbalanced targets are not.

    Args:
        logits: (B, C).

    >>> round(information_maximisation(torch.tensor([[50.0, -50.0], [-50.0, 50.0]])).item(), 3)
    -0.693
    """
    p = logits.float().softmax(-1)
    return entropy(p).mean() - entropy(p.mean(0))


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.1) -> Tensor:
    r"""Cross-entropy to smoothed labels :math:`\tilde y = (1 - \epsilon)\,\mathrm{onehot}(y) + \epsilon / C`.

    Args:
        logits: (B, C).
        labels: classes, (B,).
        smoothing: :math:`\epsilon`.

    >>> round(smoothed_cross_entropy(torch.tensor([[50.0, -50.0]]), torch.tensor([0])).item(), 3)
    5.0
    """
    return F.cross_entropy(logits, labels, label_smoothing=smoothing)


def unit_features(features: Tensor) -> Tensor:
    r"""SHOT's :math:`\phi`: features with a constant 1 appended, scaled to length one.

    Args:
        features: (..., d).

    >>> unit_features(torch.tensor([[0.0, 0.0]]))
    tensor([[0., 0., 1.]])
    """
    return F.normalize(F.pad(features.float(), (0, 1), value=1.0), dim=-1)


def centroids(phi: Tensor, shares: Tensor) -> Tensor:
    r"""Weighted class means :math:`c_j = \sum_i s_{ij} \phi_i / (10^{-8} + \sum_i s_{ij})`.

    Args:
        phi: unit features, (N, d).
        shares: how much of a sample belongs to each class, (N, C): probabilities, or one-hot labels.

    >>> centroids(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor([[0.5000, 0.5000],
            [0.0000, 0.0000]])
    """
    return shares.T @ phi / (1e-8 + shares.sum(0)[:, None])


def cosine_distances(phi: Tensor, centres: Tensor, present: Tensor) -> Tensor:
    """Cosine distances (N, C) of samples (N, d) to class centres (C, d), infinite for classes that are not present."""
    return (1 - F.normalize(phi, dim=-1) @ F.normalize(centres, dim=-1).T).masked_fill(~present, math.inf)


def shot_centroids(phi: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    r"""SHOT's class centres in two rounds: means weighted by the predictions, then means of whoever is nearest to them.

    Args:
        phi: unit features of the whole target, (N, d); see :func:`unit_features`.
        p: predictions, (N, C).

    Returns:
        centres (C, d), and which classes are present, bool (C,).

    >>> phi = unit_features(torch.tensor([[5.0], [4.0], [-5.0]]))
    >>> shot_centroids(phi, torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]))[1]
    tensor([True, True])
    """
    classes = p.shape[1]
    predicted = F.one_hot(p.argmax(-1), classes)
    nearest = cosine_distances(phi, centroids(phi, p), predicted.any(0)).argmin(-1)
    members = F.one_hot(nearest, classes)
    return centroids(phi, members.to(phi)), members.any(0)


def shot_labels(phi: Tensor, p: Tensor) -> Tensor:
    r"""SHOT's pseudo-labels, (N,): the class whose centre is nearest by cosine distance; see :func:`shot_centroids`.

    >>> phi = unit_features(torch.tensor([[5.0], [4.0], [-5.0], [-4.0]]))
    >>> p = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.1, 0.9], [0.2, 0.8]])  # the second looks like the first
    >>> shot_labels(phi, p).tolist()
    [0, 0, 1, 1]
    """
    return cosine_distances(phi, *shot_centroids(phi, p)).argmin(-1)


def mixed_labels(phi: Tensor, centres: Tensor, present: Tensor, weights: Tensor) -> Tensor:
    r"""DECISION's pseudo-labels from K models, :math:`\arg\min_j \|\sum_k w_k \phi_i^k - \sum_k w_k c_j^k\|_2`, (B,).

    Args:
        phi: unit features by each model, (K, B, d).
        centres: class centres of each model, (K, C, d).
        present: classes that some model has seen, (C,).
        weights: w, (K,).
    """
    with full_precision(phi):
        mixed, mean = torch.einsum("k,kbd->bd", weights, phi), torch.einsum("k,kcd->cd", weights, centres)
        return torch.cdist(mixed, mean).masked_fill(~present, math.inf).argmin(-1)


def class_relation_consistency(logits: Tensor, labels: Tensor) -> Tensor:
    r"""CAiDA's consistency: for every pseudo-class of the batch, the K models' mean predictions should agree.

    .. math:: \frac1{CK} \sum_{c \in \hat y} \sum_{k,l} \tfrac12 \big(KL(p_c^k \| p_c^l) + KL(p_c^l \| p_c^k)\big),
              \qquad p_c^k = \mathrm{softmax}\Big(\frac1{n_c} \sum_{\hat y_i = c} w_k z_i^k\Big)

    Args:
        logits: weighted logits :math:`w_k z^k`, (K, B, C).
        labels: pseudo-labels, (B,).

    >>> class_relation_consistency(torch.ones(2, 4, 3), torch.tensor([0, 0, 1, 2])).item()
    0.0
    """
    models, _, classes = logits.shape
    members = F.one_hot(labels, classes).to(logits.dtype)  # (B, C)
    count = members.sum(0)  # (C,)
    with full_precision(logits):  # the difference of two close numbers
        mean = torch.einsum("bj,kbc->jkc", members, logits) / count.clamp(min=1)[:, None, None]
        p = mean.softmax(-1).clamp(1e-8, 1)  # (class, K, C)
        cross = torch.einsum("jkc,jlc->jkl", p, p.log())  # sum_c p^k log p^l
    own = cross.diagonal(dim1=1, dim2=2)  # (class, K)
    divergence = (own[:, :, None] - cross).sum((1, 2))  # over all ordered pairs the two halves are the same
    return (divergence * (count > 0)).sum() / (classes * models)


def mutual_information(joint: Tensor, shuffled: Tensor) -> Tensor:
    r"""MINE's bound :math:`\frac1n \sum T(a_i, b_i) - \log \frac1n \sum e^{T(a_i, b_i')}` on the mutual information.

    Args:
        joint: scores T of pairs that belong together, (B,).
        shuffled: scores of pairs drawn apart, (B,).

    >>> mutual_information(torch.ones(4), torch.ones(4)).item()
    0.0
    """
    return joint.mean() - (torch.logsumexp(shuffled, 0) - math.log(len(shuffled)))


def cluster_dispersion(features: Tensor, clusters: Tensor, number: int, squared: bool = False) -> Tensor:
    r"""FADA's :math:`I = \sum_r \frac1{2 n_r} \sum_{i,j \in C_r} \|f_i - f_j\|_2`: how loose the clusters are.

    With squared norms it is the K-means inertia :math:`\sum_i \|f_i - \mu_{r(i)}\|^2`.

    Args:
        features: (N, d).
        clusters: the cluster of each sample, (N,).
        number: of clusters.

    >>> cluster_dispersion(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1]), 2).item()
    1.0
    """
    members = F.one_hot(clusters, number).to(features)  # (N, R)
    size = members.sum(0)
    if squared:
        centres = members.T @ features / size.clamp(min=1)[:, None]
        return (features - centres[clusters]).square().sum()
    within = (members * (torch.cdist(features, features) @ members)).sum(0)  # (R,)
    return (within / (2 * size.clamp(min=1))).sum()
