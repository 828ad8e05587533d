"""Losses and schedules as pure functions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def distillation(logits: Tensor, p: Tensor, n: Tensor, normalise: bool = False) -> Tensor:
    r"""Knowledge-vote loss :math:`L^{kv} = n_p \cdot KL(p \,\|\, q)` (equation kvloss), mean over the batch.

    Args:
        logits: the student's, (B, C).
        p: consensus, (B, C).
        n: consensus weights, (B,).
        normalise: divide by the sum of the weights instead of by B.

    >>> distillation(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]), torch.ones(1)).item()
    0.0
    """
    divergence = F.kl_div(F.log_softmax(logits, -1), p, reduction="none").sum(-1)  # (B,)
    return (n * divergence).sum() / (n.sum() if normalise else len(n))


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
    """``number`` draws from Beta(alpha, alpha), deterministic in the generator, on the CPU."""
    gamma = torch._standard_gamma(torch.full((2, number), alpha, dtype=torch.float64), generator=generator)
    total = gamma.sum(0)
    # both draws underflow to zero for tiny alpha: then the mass sits at an end point
    return torch.where(total > 0, gamma[0] / total.clamp(min=1e-300), 0.5).float()
