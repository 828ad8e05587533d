"""Wrong answers of assignment 3."""

from planted import wrong


@wrong("moment_distance", "means count, squared")
def means_forgotten(mean_a, variance_a, mean_b, variance_b):
    return ((variance_a + mean_a**2) - (variance_b + mean_b**2)).square().sum()


@wrong("moment_distance", "means count, squared", "about zero, not about the mean")
def variances_compared(mean_a, variance_a, mean_b, variance_b):
    return (mean_a - mean_b).square().sum() + (variance_a - variance_b).square().sum()


@wrong("moment_distance", "second moments count, squared", "about zero, not about the mean")
def means_alone(mean_a, variance_a, mean_b, variance_b):
    return (mean_a - mean_b).square().sum()


@wrong("moment_distance", "channels add up")
def mean_over_channels(mean_a, variance_a, mean_b, variance_b):
    second = (variance_a + mean_a**2) - (variance_b + mean_b**2)
    return (mean_a - mean_b).square().mean() + second.square().mean()


@wrong("moment_distance", "second moments count, squared")
def not_squared(mean_a, variance_a, mean_b, variance_b):
    second = (variance_a + mean_a**2) - (variance_b + mean_b**2)
    return (mean_a - mean_b).square().sum() + second.abs().sum()


@wrong("merge", "the weighted mean")
def mean_without_weights(means, variances, alpha):
    a = alpha[:, None]
    mean = (a * means).sum(0)
    return means.mean(0), (a * (variances + (means - mean) ** 2)).sum(0)


@wrong("merge", "the spread of the means")
def spread_forgotten(means, variances, alpha):
    return (alpha[:, None] * means).sum(0), (alpha[:, None] * variances).sum(0)


@wrong("merge", "variances of models that agree", "the second moment is kept")
def deviations_averaged(means, variances, alpha):
    a = alpha[:, None]
    mean = (a * means).sum(0)
    return mean, (a * variances.sqrt()).sum(0) ** 2 + (a * (means - mean) ** 2).sum(0)


@wrong("merge", "the second moment is kept")
def spread_about_the_plain_mean(means, variances, alpha):
    a = alpha[:, None]
    return (a * means).sum(0), (a * (variances + (means - means.mean(0)) ** 2)).sum(0)


@wrong("merge", "the second moment is kept")
def spread_without_weights(means, variances, alpha):
    a = alpha[:, None]
    return (a * means).sum(0), (a * variances).sum(0) + means.var(0, unbiased=False)


def mean_kernel(a, b):
    """Mean of the quadratic kernel over all pairs, right."""
    return (a @ b.T + 0.5).square().mean()


@wrong("kernel_mmd", "equal samples have no distance", "the quadratic kernel")
def cross_term_once(a, b):
    return mean_kernel(a, a) - mean_kernel(a, b) + mean_kernel(b, b)


@wrong("kernel_mmd", "the quadratic kernel", "pairs of features count")
def linear_kernel(a, b):
    return (a.mean(0) - b.mean(0)).square().sum()


@wrong("kernel_mmd", "the quadratic kernel")
def constant_of_one(a, b):
    def mean(x, y):
        return (x @ y.T + 1).square().mean()

    return mean(a, a) - 2 * mean(a, b) + mean(b, b)


@wrong("kernel_mmd", "means over pairs, not sums")
def summed_over_pairs(a, b):
    def total(x, y):
        return (x @ y.T + 0.5).square().sum()

    return total(a, a) - 2 * total(a, b) + total(b, b)


@wrong("kernel_mmd", "pairs of features count")
def feature_by_feature(a, b):
    def mean(x, y):
        return sum((x[:, i : i + 1] @ y[:, i : i + 1].T + 0.5).square().mean() for i in range(x.shape[1]))

    return mean(a, a) - 2 * mean(a, b) + mean(b, b)
