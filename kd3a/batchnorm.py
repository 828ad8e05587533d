"""BatchNorm MMD: matching the statistics of BatchNorm layers, as a loss and in closed form.

With the quadratic kernel, the MMD between two domains needs only the first two moments of a feature, and BatchNorm
already keeps both: ``E[x]`` is ``running_mean`` and ``E[x^2]`` is ``running_var + running_mean ** 2``.
Derived in the book's chapter *BatchNorm MMD*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

State = dict[str, Tensor]


def second_moment(mean: Tensor, variance: Tensor) -> Tensor:
    r""":math:`E[\pi^2] = \mathrm{Var}(\pi) + E[\pi]^2`."""
    return variance + mean.square()


def closed_form(means: Tensor, variances: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    r"""The statistics that minimise the BatchNorm-MMD loss (appendix E of the paper).

    .. math:: \mu = \sum_k \alpha_k E(\pi^k), \qquad \mu[\pi^2] = \sum_k \alpha_k E[\pi^k]^2

    The variance that goes into the layer is :math:`\mu[\pi^2] - \mu^2`: the mean of the variances *plus* the spread of
    the means.

    Args:
        means: (K + 1, ...), one row per model.
        variances: (K + 1, ...).
        alpha: domain weights, (K + 1,); they should sum to one.

    Returns:
        ``mean`` and ``variance``, each shaped like one row.

    >>> mean, variance = closed_form(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [1.0]]), torch.tensor([.5, .5]))
    >>> mean.item(), variance.item()
    (1.0, 2.0)
    """
    mean = torch.tensordot(alpha.to(means), means, dims=1)
    # the spread form of E[x^2] - E[x]^2: the same number without the cancellation
    spread = torch.tensordot(alpha.to(means), variances + (means - mean).square(), dims=1)
    return mean, spread


def mmd(mean_a: Tensor, second_a: Tensor, mean_b: Tensor, second_b: Tensor) -> Tensor:
    r"""Squared distance of the first two moments, the paper's form of the quadratic-kernel MMD (equation BN-MMD).

    .. math:: \|E(\pi^a) - E(\pi^b)\|_2^2 + \|E[\pi^a]^2 - E[\pi^b]^2\|_2^2
    """
    return (mean_a - mean_b).square().sum() + (second_a - second_b).square().sum()


def kernel_mmd(a: Tensor, b: Tensor) -> Tensor:
    r"""Squared MMD of two samples under the paper's quadratic kernel, from the kernel itself, over all pairs.

    .. math:: \kappa(x, y) = \big( \langle x, y \rangle + \tfrac12 \big)^2, \qquad
        \mathrm{MMD}^2 = \mathrm{mean}\,\kappa(a, a') - 2\,\mathrm{mean}\,\kappa(a, b) + \mathrm{mean}\,\kappa(b, b')

    For one feature it is :func:`mmd` of the samples' moments; for several it also counts the moments of pairs of
    features, which BatchNorm does not keep. Needs the samples: for the book and the tests, not for training.

    Args:
        a, b: features, (N, C) and (M, C).

    >>> a, b = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [1.0]])
    >>> kernel_mmd(a, b).item(), mmd(*(m for x in (a, b) for m in (x.mean(0), x.square().mean(0)))).item()
    (1.0, 1.0)
    """

    def mean_kernel(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y.T + 0.5).square().mean()

    return mean_kernel(a, a) - 2 * mean_kernel(a, b) + mean_kernel(b, b)


def mmd_loss(batch: dict[str, tuple[Tensor, Tensor]], means: State, variances: State, alpha: Tensor) -> Tensor:
    r"""The BatchNorm-MMD loss of one target mini-batch (equation bmmd of the paper).

    .. math::
        \sum_l \sum_{k=1}^{K+1} \alpha_k \big( \|\mu(\pi_l^T) - E(\pi_l^k)\|_2^2
        + \|\mu[\pi_l^T]^2 - E[\pi_l^k]^2\|_2^2 \big)

    Args:
        batch: per layer, the mini-batch's mean and second moment, each (C_l,); see :func:`capture_moments`.
        means, variances: per layer, the stacked statistics of the K + 1 models, (K + 1, C_l).
        alpha: domain weights, (K + 1,).
    """
    total = alpha.new_zeros(())
    for layer, (mu, mu2) in batch.items():
        first = (mu - means[layer]).square().sum(1)  # (K + 1,)
        second = (mu2 - second_moment(means[layer], variances[layer])).square().sum(1)  # (K + 1,)
        total = total + (alpha * (first + second)).sum()
    return total


def stack_statistics(states: list[State]) -> tuple[State, State]:
    """Per BatchNorm layer, the means and variances of several models' state dicts, stacked, (K, C_l)."""
    layers = [name.removesuffix(".running_mean") for name in states[0] if name.endswith(".running_mean")]
    means = {layer: torch.stack([s[f"{layer}.running_mean"] for s in states]) for layer in layers}
    variances = {layer: torch.stack([s[f"{layer}.running_var"] for s in states]) for layer in layers}
    return means, variances


@torch.no_grad()
def adapt(net: nn.Module, inputs: Iterable[Tensor]) -> None:
    """AdaBN: give every BatchNorm layer the statistics of these batches, the mean over them, and nothing else.

    Dropout is off: statistics are those of the network as it is scored.
    """
    layers = batchnorm_layers(net)
    net.eval()
    net.training = True  # of the network alone: one of large images divides the batches that it scores
    for layer in layers:
        layer.reset_running_stats()
        layer.train()
    with momentum(layers, None):  # the plain mean over batches
        for x in inputs:
            net(x)


def batchnorm_layers(net: nn.Module) -> list[_BatchNorm]:
    return [module for module in net.modules() if isinstance(module, _BatchNorm)]


@contextmanager
def momentum(layers: list[_BatchNorm], value: float | None) -> Iterator[None]:
    """Inside the block, the layers' running statistics move by this share; 0: they stay as they are."""
    before = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = value
    try:
        yield
    finally:
        for layer, usual in zip(layers, before, strict=True):
            layer.momentum = usual


@contextmanager
def capture_moments(net: nn.Module) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Inside the block, a forward pass fills the yielded dict with each BatchNorm input's mean and second moment."""
    moments: dict[str, tuple[Tensor, Tensor]] = {}

    def hook(name: str):
        def record(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            x = args[0].float()
            over = [d for d in range(x.ndim) if d != 1]
            moments[name] = (x.mean(over), x.square().mean(over))

        return record

    handles = [m.register_forward_pre_hook(hook(n)) for n, m in net.named_modules() if isinstance(m, _BatchNorm)]
    try:
        yield moments
    finally:
        for handle in handles:
            handle.remove()
