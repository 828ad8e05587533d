"""Domain weights: how much each of the K sources and the (K+1)-th, distilled domain counts in the average."""

from __future__ import annotations

import torch
from torch import Tensor

from kd3a.consensus import Variant

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
    **switches,
) -> Tensor:
    r"""Weights :math:`\alpha` of the K sources and, last, of the distilled target domain.

    .. math::
        \alpha_{K+1} = \frac{N_T}{\sum_k N_k + N_T}, \qquad
        \alpha_k = (1 - \alpha_{K+1}) \frac{N_k\,\mathrm{CF}_k}{\sum_j N_j\,\mathrm{CF}_j}

    A negative :math:`\mathrm{CF}_k` (possible for leave-one-out) counts as zero: a source whose removal improves the
    consensus gets no weight. If no source is left, weights go by :math:`N_k` alone (uniform without the size factor),
    as happens in the first rounds when nobody passes the gate.

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
    chosen = {**WEIGHTS[variant], **switches}
    focus = focus.clamp(min=0)
    sizes = torch.as_tensor(sizes).to(focus)
    factor = sizes if chosen["size_factor"] else torch.ones_like(sizes)
    score = focus * factor
    score = torch.where(score.sum() > 0, score, factor)
    if chosen["target_share"] == "size":
        target = target_size / (sizes.sum() + target_size)
    else:
        target = torch.as_tensor(gated_share).to(focus) / (len(focus) + 1)
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
