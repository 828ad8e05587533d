"""Weighted average of state dicts, tensor class by tensor class."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from kd3a.batchnorm import State, closed_form

BatchNormRule = Literal["closed-form", "plain"]


def aggregate(states: list[State], alpha: Tensor, batchnorm: BatchNormRule = "closed-form") -> State:
    r"""The average model :math:`\Theta = \sum_k \alpha_k \Theta_k` (algorithm 1, line 13).

    Parameters and BatchNorm means are averaged; BatchNorm variances go through second moments
    (:func:`kd3a.batchnorm.closed_form`), or are averaged directly with ``batchnorm="plain"`` as the released code
    does; integer buffers such as ``num_batches_tracked`` are counters, not quantities, and are kept from the first
    model. The average of identical models is that model, exactly up to rounding, BatchNorm included.

    Args:
        states: the models' state dicts, same names and shapes.
        alpha: (len(states),), should sum to one.
    """
    if len(states) != len(alpha):
        raise ValueError(f"{len(states)} models need as many weights, not {len(alpha)}.")
    out: State = {}
    for name, first in states[0].items():
        if not first.is_floating_point():
            out[name] = first.clone()
            continue
        if name.endswith("running_var") and batchnorm == "closed-form":
            variances = torch.stack([s[name] for s in states])
            means = torch.stack([s[name.replace("running_var", "running_mean")] for s in states])
            out[name] = closed_form(means, variances, alpha)[1]
        else:  # one model after the other: a stack of large ones would be new memory in every round
            out[name] = states[0][name] * alpha[0]
            for state, weight in zip(states[1:], alpha[1:], strict=True):
                out[name] += weight * state[name]
    return out
