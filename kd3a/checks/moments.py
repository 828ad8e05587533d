"""Assignment 3: BatchNorm MMD."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from kd3a.checks.core import Case, Question, Student, close, number, numbers, pair, require


def _draw(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.normal(0, 2, shape)).float()


def _variance(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.uniform(0.5, 3, shape)).float()


# --- the distance of two layers ---------------------------------------------------------------------------------------


def _distance_basics(distance: Student) -> None:
    one = torch.ones(1)
    far = number(distance(one, one, 5 * one, 9 * one))
    require(far > 0, "two layers with different statistics have no distance")


MOMENT_DISTANCE = Question(
    "moment_distance", "moment_distance(mean_a, variance_a, mean_b, variance_b) -> number", _distance_basics
)


def _one_channel(rng: np.random.Generator) -> Iterator[Case]:
    for mean in (1.0, 2.0, -3.0):
        yield {"mean": torch.tensor([mean]), "variance": torch.tensor([4 * mean**2 + 1.0])}


@MOMENT_DISTANCE.property("means count, squared", 2, _one_channel)
def _means(distance: Student, mean: Tensor, variance: Tensor) -> None:
    """Layers with the same second moment about zero are apart by the squared difference of their means alone."""
    other = 1.5 * mean
    value = number(distance(mean, variance, other, variance + mean**2 - other**2))
    require(close(value, (mean - other).square().item()), "the second mean is 1.5 times the first, E[π²] is the same")


def _zero_means(rng: np.random.Generator) -> Iterator[Case]:
    for channels in (1, 2, 8):
        yield {"variance_a": _variance(rng, channels)[:1].repeat(channels), "variance_b": _variance(rng, channels)}


@MOMENT_DISTANCE.property("second moments count, squared", 1, lambda rng: list(_zero_means(rng))[:1])
def _seconds(distance: Student, variance_a: Tensor, variance_b: Tensor) -> None:
    """With means of zero the distance is the squared difference of the variances."""
    zero = torch.zeros_like(variance_a)
    value = number(distance(zero, variance_a, zero, variance_b))
    require(close(value, (variance_a - variance_b).square().sum().item()), "the means are 0 here")


def _shifted(rng: np.random.Generator) -> Iterator[Case]:
    for mean, step in ((1.0, 1.0), (2.0, 1.0), (3.0, 2.0)):
        yield {"mean": torch.tensor([mean]), "step": step, "variance": torch.tensor([1.5])}


@MOMENT_DISTANCE.property("about zero, not about the mean", 2, _shifted)
def _raw(distance: Student, mean: Tensor, step: float, variance: Tensor) -> None:
    """E[π²] is not the variance: two layers of one variance and different means differ in their second moments too."""
    value = number(distance(mean, variance, mean + step, variance))
    require(value > step**2 + 1e-3, "the means are mean and mean + step, and only they seem to count")


@MOMENT_DISTANCE.property("channels add up", 1, lambda rng: list(_zero_means(rng))[1:])
def _channels(distance: Student, variance_a: Tensor, variance_b: Tensor) -> None:
    """The distance of two layers is the sum over their channels."""
    zero = torch.zeros(1)
    alone = sum(number(distance(zero, a[None], zero, b[None])) for a, b in zip(variance_a, variance_b, strict=True))
    zeros = torch.zeros_like(variance_a)
    require(close(number(distance(zeros, variance_a, zeros, variance_b)), alone), "the means are 0 here")


# --- the closed form ----------------------------------------------------------------------------------------------


def _merged(merge: Student, means: Tensor, variances: Tensor, alpha: Tensor) -> tuple[np.ndarray, np.ndarray]:
    mean, variance = pair(merge(means, variances, alpha), "mean", "variance")
    shape = tuple(means.shape[1:])
    return numbers(mean, shape), numbers(variance, shape)


def _merge_basics(merge: Student) -> None:
    mean, variance = _merged(merge, torch.ones(2, 1), torch.ones(2, 1), torch.tensor([0.5, 0.5]))
    require(np.isfinite(mean).all() and (variance > 0).all(), "two equal models have no sensible mean")


MERGE = Question("merge", "merge(means, variances, alpha) -> mean, variance", _merge_basics)


def _models(rng: np.random.Generator, spread: bool) -> Iterator[Case]:
    for models, channels in ((1, 1), (2, 1), (3, 2), (5, 8)):
        means = _draw(rng, models, channels) if spread else _draw(rng, 1, channels).repeat(models, 1)
        alpha = torch.from_numpy(rng.dirichlet(np.full(models, 2.0))).float()
        yield {"means": means, "variances": _variance(rng, models, channels), "alpha": alpha}


@MERGE.property("the weighted mean", 1, lambda rng: _models(rng, True))
def _merged_mean(merge: Student, means: Tensor, variances: Tensor, alpha: Tensor) -> None:
    """The mean is the sum of the models' means, each times its weight."""
    mean, _ = _merged(merge, means, variances, alpha)
    require(close(mean, (alpha[:, None] * means).sum(0)), "the mean is another")


@MERGE.property("variances of models that agree", 1, lambda rng: _models(rng, False))
def _no_spread(merge: Student, means: Tensor, variances: Tensor, alpha: Tensor) -> None:
    """Where all models have the same mean, the variance is the weighted mean of their variances."""
    _, variance = _merged(merge, means, variances, alpha)
    require(close(variance, (alpha[:, None] * variances).sum(0)), "all means are equal here, the variance is another")


def _far_apart(rng: np.random.Generator) -> Iterator[Case]:
    for models, channels in ((2, 1), (2, 2), (4, 3)):
        means = 4.0 * torch.arange(models)[:, None].repeat(1, channels)
        yield {
            "means": means,
            "variances": torch.ones(models, channels),
            "alpha": torch.full((models,), 1 / models),
        }


@MERGE.property("the spread of the means", 2, _far_apart)
def _spread(merge: Student, means: Tensor, variances: Tensor, alpha: Tensor) -> None:
    """Models that disagree about the mean make the variance larger than any single one has."""
    _, variance = _merged(merge, means, variances, alpha)
    require((variance > variances.amax(0).numpy() + 0.1).all(), "the variance is not larger than each model's own")


@MERGE.property("the second moment is kept", 2, lambda rng: _unequal(rng))
def _kept(merge: Student, means: Tensor, variances: Tensor, alpha: Tensor) -> None:
    """Variance plus squared weighted mean is the weighted mean of the models' second moments, whatever the weights."""
    centre = (alpha[:, None] * means).sum(0)
    _, variance = _merged(merge, means, variances, alpha)
    if close(variance, (alpha[:, None] * variances).sum(0)):  # no spread at all is the business of another property
        return
    second = (alpha[:, None] * (variances + means.square())).sum(0)
    require(close(variance + centre.square().numpy(), second, 1e-3), "the second moment is another")


def _unequal(rng: np.random.Generator) -> Iterator[Case]:
    for models, channels in ((2, 1), (3, 2), (5, 8)):
        alpha = torch.full((models,), 0.1)
        alpha[0] = 1 - 0.1 * (models - 1)
        yield {"means": _draw(rng, models, channels), "variances": _variance(rng, models, channels), "alpha": alpha}


# --- the kernel itself ------------------------------------------------------------------------------------------------


def _kernel_basics(kernel_mmd: Student) -> None:
    far = number(kernel_mmd(torch.zeros(2, 1), torch.full((2, 1), 3.0)))
    require(far > 0, "two samples far apart have no distance")


KERNEL_MMD = Question("kernel_mmd", "kernel_mmd(a, b) -> number", _kernel_basics)


def _same(rng: np.random.Generator) -> Iterator[Case]:
    for samples, features in ((1, 1), (2, 1), (3, 2), (10, 4)):
        a = _draw(rng, samples, features)
        yield {"a": a, "b": a.clone()}


@KERNEL_MMD.property("equal samples have no distance", 1, _same)
def _equal(kernel_mmd: Student, a: Tensor, b: Tensor) -> None:
    """The distance of a sample to itself is 0."""
    require(abs(number(kernel_mmd(a, b))) < 1e-2 * (1 + a.square().sum().item() ** 2), "a and b are the same here")


def _points(rng: np.random.Generator) -> Iterator[Case]:
    for x, y in ((0.0, 1.0), (1.0, 2.0), (-1.0, 2.0)):
        yield {"a": torch.tensor([[x]]), "b": torch.tensor([[y]])}


@KERNEL_MMD.property("the quadratic kernel", 2, _points)
def _quadratic(kernel_mmd: Student, a: Tensor, b: Tensor) -> None:
    """For single points the distance is κ(a,a) − 2κ(a,b) + κ(b,b) with κ(x, y) = (⟨x, y⟩ + ½)²."""
    x, y = a.item(), b.item()
    require(close(number(kernel_mmd(a, b)), (x - y) ** 2 + (x * x - y * y) ** 2), "a and b are single numbers here")


def _unequal_sizes(rng: np.random.Generator) -> Iterator[Case]:
    for m, n in ((1, 2), (2, 3), (5, 3)):
        yield {"a": _draw(rng, m, 1), "b": _draw(rng, n, 1)}


@KERNEL_MMD.property("means over pairs, not sums", 1, _unequal_sizes)
def _pairs(kernel_mmd: Student, a: Tensor, b: Tensor) -> None:
    """A sample that holds each of its points twice is the same distribution, at the same distance."""
    values = number(kernel_mmd(a, b)), number(kernel_mmd(a.repeat(2, 1), b))
    require(close(values[1], values[0], 1e-3), "the second call had every point of a twice")


def _crossed(rng: np.random.Generator) -> Iterator[Case]:
    for scale in (1.0, 2.0):
        a = scale * torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
        yield {"a": a, "b": a * torch.tensor([1.0, -1.0])}


@KERNEL_MMD.property("pairs of features count", 1, _crossed)
def _cross(kernel_mmd: Student, a: Tensor, b: Tensor) -> None:
    """Two features that move together in one sample and against each other in the other are a difference it sees."""
    require(number(kernel_mmd(a, b)) > 0.1, "a and b differ only in how their two features go together")
