"""Blocks of adversarial alignment: gradient reversal, discriminators of two domains and what they minimise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SOURCE, TARGET = 1, 0  # what a discriminator calls the two domains


class GradientReversal(torch.autograd.Function):
    r"""The layer :math:`\mathcal R_\lambda` of DANN (Ganin et al., 2016): identity, and the gradient times −λ."""

    @staticmethod
    def forward(ctx, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradient, None


def reverse(x: Tensor, strength: float = 1.0) -> Tensor:
    r"""``x`` itself, seen by the backward pass as :math:`-\lambda x`: what lies behind ascends what lies ahead.

    >>> x = torch.tensor(3.0, requires_grad=True)
    >>> y = reverse(x, strength=0.5)
    >>> y.item(), torch.autograd.grad(y, x)[0].item()
    (3.0, -0.5)
    """
    return GradientReversal.apply(x, strength)


def domain_mlp(features: int, hidden: tuple[int, ...] = (1024,), dropout: float = 0.0) -> nn.Sequential:
    """A discriminator: hidden layers with ReLU, then two logits (target, source); no hidden layer makes it linear.

    >>> domain_mlp(8, hidden=(4,))(torch.zeros(5, 8)).shape
    torch.Size([5, 2])
    """
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(features, width), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, 2))


def domain_loss(discriminator: nn.Module, source: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Cross-entropy of a discriminator on both domains,

    .. math:: -\frac1B \sum_i w_i \log D(f_i^S) - \frac1{B_T} \sum_j \log(1 - D(f_j^T)),

    where D is its softmax probability of the source. It is 2 log 2 where the domains cannot be told apart.

    Args:
        discriminator: makes two logits, see :func:`domain_mlp`.
        source: features, (B, d).
        target: features, (B_T, d).
        weights: w, (B,), of the source samples; ones by default.

    >>> unsure = nn.Identity()
    >>> round(domain_loss(unsure, torch.zeros(3, 2), torch.zeros(5, 2)).item(), 4)
    1.3863
    """
    surprise = source_surprise(discriminator, source)
    if weights is not None:
        surprise = weights * surprise
    return surprise.mean() - F.log_softmax(discriminator(target), -1)[:, TARGET].mean()


def source_surprise(discriminator: nn.Module, source: Tensor) -> Tensor:
    r""":math:`-\log D(f_i^S)`, (B,): how little each source sample looks like a source to the discriminator.

    >>> source_surprise(nn.Identity(), torch.tensor([[0.0, 0.0]]))
    tensor([0.6931])
    """
    return -F.log_softmax(discriminator(source), -1)[:, SOURCE]
