"""Soft labels: the few formulas that turn a consensus into a labelled domain, and how good its labels are.

Derived in the book's chapters *Knowledge distillation and the (K+1)-th domain* and *Knowledge Vote*.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
import torch
from torch import Tensor

from kd3a.consensus import knowledge_vote


def tempered(p: Tensor, temperature: float) -> Tensor:
    r"""The distribution at another temperature, :math:`p_c^{1/T} / \sum_j p_j^{1/T}`.

    It is the softmax of the logits divided by T, and needs no logits. T > 1 flattens, T < 1 sharpens.

    Args:
        p: probabilities, (..., C).

    >>> import torch
    >>> [round(v, 2) for v in tempered(torch.tensor([0.9, 0.1]), 2.0).tolist()]
    [0.75, 0.25]
    """
    return (p.log() / temperature).softmax(-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    r""":math:`\mathrm{KL}(p \| q) = \sum_c p_c \log(p_c / q_c)`, (...,); a class with :math:`p_c = 0` adds nothing.

    >>> import torch
    >>> round(kl(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])).item(), 4)  # log 2
    0.6931
    >>> kl(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0])).item()
    0.0
    """
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1)


def largest_deviation(p: Tensor, q: Tensor) -> Tensor:
    r""":math:`\max_c |p_c - q_c|`, (...,). Pinsker's inequality bounds it by :math:`\sqrt{\mathrm{KL}(p \| q) / 2}`."""
    return (p - q).abs().amax(-1)


def task_risk(predictions: Tensor, labels: Tensor) -> float:
    r"""Share of samples on which a model's class differs from the label; a soft label counts by its largest entry.

    .. math:: \epsilon(h) = \Pr[h(x) \ne \arg\max_c p_c]

    Args:
        predictions: the model's probabilities, (N, C).
        labels: classes (N,) or soft labels (N, C).

    >>> import torch
    >>> task_risk(torch.eye(2), torch.tensor([0, 0]))
    0.5
    """
    classes = labels.argmax(-1) if labels.ndim == 2 else labels
    return (predictions.argmax(-1) != classes).double().mean().item()


def weighted_accuracy(p: Tensor, n: Tensor, y: Tensor) -> float:
    r"""Share of right labels when a sample counts by its weight, :math:`\sum n_i [\arg\max p_i = y_i] / \sum n_i`.

    Args:
        p: soft labels, (N, C); ``n``: weights, (N,); ``y``: classes, (N,).

    >>> import torch
    >>> weighted_accuracy(torch.eye(2), torch.tensor([3.0, 1.0]), torch.tensor([0, 0]))
    0.75
    """
    right = (p.argmax(-1) == y).double()
    return ((n * right).sum() / n.double().sum()).item()


def gate_sweep(q: Tensor, y: Tensor, gates: Iterable[float]) -> pd.DataFrame:
    """What Knowledge Vote gains and loses as the gate moves: a line per gate, fractions.

    Args:
        q: the teachers' probabilities, (N, K, C); ``y``: classes, (N,).
    """
    rows = {}
    for gate in gates:
        p, n = knowledge_vote(q, gate)
        heard = n >= 1
        rows[gate] = {
            "images with a supporter": heard.double().mean().item(),
            "right among these": (p.argmax(-1) == y)[heard].double().mean().item(),
            "right, weighted by n": weighted_accuracy(p, n, y),
        }
    return pd.DataFrame(rows).T
