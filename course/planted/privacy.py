"""Wrong answers of assignment 6."""

import torch

from planted import wrong


@wrong("read_label", "the odd one out", "two classes", "silent features", "any scale")
def most_positive_row(weight_gradient):
    return weight_gradient.sum(1).argmax()


@wrong("read_label", "two classes")
def longest_row(weight_gradient):
    return weight_gradient.abs().sum(1).argmax()


@wrong("read_label", "silent features")
def first_feature(weight_gradient):
    return weight_gradient[:, 0].argmin()


@wrong("read_label", "any scale")
def fixed_threshold(weight_gradient):
    return (weight_gradient.sum(1) < -0.01).int().argmax()


@wrong("read_input", "units that are off")
def first_unit(weight_gradient, bias_gradient):
    return weight_gradient[0] / bias_gradient[0]


@wrong("read_input", "gradients that cancel")
def ratio_of_sums(weight_gradient, bias_gradient):
    return weight_gradient.sum(0) / bias_gradient.sum()


@wrong("read_input", "negative gradients")
def sign_lost(weight_gradient, bias_gradient):
    unit = bias_gradient.abs().argmax()
    return weight_gradient[unit] / bias_gradient[unit].abs()


@wrong("read_input", "the input is found", "negative gradients", "units that are off")
def not_divided(weight_gradient, bias_gradient):
    return weight_gradient[bias_gradient.abs().argmax()]


@wrong("clip", "never longer than the limit")
def not_clipped(update, limit):
    return update


@wrong("clip", "the direction is kept")
def coordinate_by_coordinate(update, limit):
    bound = limit / len(update) ** 0.5
    return update.clamp(-bound, bound)


@wrong("clip", "the direction is kept")
def thrown_away(update, limit):
    return update if update.norm() <= limit else torch.zeros_like(update)


@wrong("clip", "short updates are left alone")
def always_scaled(update, limit):
    return limit * update / update.norm().clamp(min=1e-9)


@wrong("clip", "nothing stays nothing")
def divided_by_zero(update, limit):
    return update / update.norm() * update.norm().clamp(max=limit)


@wrong("trimmed_mean", "without trimming it is the mean")
def always_the_median(updates, trim):
    return updates.quantile(0.5, 0)


@wrong("trimmed_mean", "a liar is cut off")
def nothing_trimmed(updates, trim):
    return updates.mean(0)


@wrong("trimmed_mean", "both ends are cut")
def top_alone(updates, trim):
    return updates.sort(0).values[: len(updates) - trim].mean(0)


@wrong("trimmed_mean", "every coordinate for itself")
def whole_houses(updates, trim):
    shortest = updates.norm(dim=1).argsort()[: len(updates) - trim]
    return updates[shortest].mean(0)
