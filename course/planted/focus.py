"""Wrong answers of assignment 2."""

from itertools import combinations, permutations
from math import factorial

import torch
from kd3a.consensus import knowledge_vote

from planted import wrong


@wrong("quality", "support times confidence")
def support_forgotten(q, gate, coalition):
    if not coalition:
        return 0.0
    p, _ = knowledge_vote(q[:, list(coalition)], gate)
    return p.amax(-1).sum().item()


@wrong("quality", "samples add up")
def mean_over_samples(q, gate, coalition):
    if not coalition:
        return 0.0
    p, n = knowledge_vote(q[:, list(coalition)], gate)
    return (n * p.amax(-1)).mean().item()


@wrong("quality", "outsiders are not heard", "nobody has no quality")
def coalition_ignored(q, gate, coalition):
    p, n = knowledge_vote(q, gate)
    return (n * p.amax(-1)).sum().item()


@wrong("quality", "every coalition holds its own vote")
def vote_of_all(q, gate, coalition):
    sure = q.amax(-1) > gate
    elected = (q * sure[..., None]).sum(1).argmax(-1)
    S = sure & (q.argmax(-1) == elected[:, None])
    return (q.amax(-1) * S)[:, list(coalition)].sum().item()


@wrong("quality", "nobody has no quality")
def empty_mean(q, gate, coalition):
    if not coalition:
        return float("nan")
    p, n = knowledge_vote(q[:, list(coalition)], gate)
    return (n * p.amax(-1)).sum().item()


@wrong("leave_one_out", "what is lost without it")
def worth_alone(Q, K):
    return torch.tensor([Q((k,)) for k in range(K)])


@wrong("leave_one_out", "values are not rescaled")
def normalised(Q, K):
    values = torch.tensor([Q(range(K)) - Q([j for j in range(K) if j != k]) for k in range(K)])
    return values / values.abs().sum()


@wrong("leave_one_out", "harm is negative")
def harm_hidden(Q, K):
    return torch.tensor([Q(range(K)) - Q([j for j in range(K) if j != k]) for k in range(K)]).clamp(min=0)


@wrong("leave_one_out", "harm is negative")
def harm_as_gain(Q, K):
    return torch.tensor([Q(range(K)) - Q([j for j in range(K) if j != k]) for k in range(K)]).abs()


@wrong("leave_one_out", "one source alone")
def nobody_left(Q, K):
    if K == 1:
        return torch.zeros(1)
    return torch.tensor([Q(range(K)) - Q([j for j in range(K) if j != k]) for k in range(K)])


def gains(Q, K, weight):
    """Weighted sum of what each source adds to every coalition of the others."""
    values = torch.zeros(K)
    for k in range(K):
        others = [j for j in range(K) if j != k]
        for size in range(K):
            for c in combinations(others, size):
                values[k] += weight(size) * (Q((*c, k)) - Q(c))
    return values


@wrong("shapley", "efficient")
def all_coalitions_alike(Q, K):
    return gains(Q, K, lambda size: 1 / 2 ** (K - 1))


@wrong("shapley", "efficient")
def last_to_join(Q, K):
    return gains(Q, K, lambda size: float(size == K - 1))


@wrong("shapley", "a null player gets nothing")
def shared_equally(Q, K):
    values = gains(Q, K, lambda size: factorial(size) * factorial(K - size - 1) / factorial(K))
    return 0.9 * values + 0.1 * Q(range(K)) / K


@wrong("shapley", "equals get the same")
def one_order(Q, K):
    return torch.tensor([Q(range(k + 1)) - Q(range(k)) for k in range(K)])


@wrong("shapley", "additive")
def rescaled_to_the_whole(Q, K):
    values = gains(Q, K, lambda size: 1 / 2 ** (K - 1))
    return values / values.sum() * Q(range(K))


@wrong("shapley", "efficient")
def orders_summed(Q, K):
    values = torch.zeros(K)
    for order in permutations(range(K)):
        for place, k in enumerate(order):
            values[k] += Q(order[: place + 1]) - Q(order[:place])
    return values


def by_score(score, sizes, target_size):
    """Weights from scores, right."""
    target = target_size / (sizes.sum() + target_size)
    return torch.cat([(1 - target) * score / score.sum(), target.reshape(1)])


@wrong("domain_weights", "the distilled domain goes by size")
def equal_share(focus, sizes, target_size):
    score = focus.clamp(min=0) * sizes
    share = 1 / (len(focus) + 1)
    return torch.cat([(1 - share) * score / score.sum(), torch.tensor([share])])


@wrong("domain_weights", "focus counts", "a negative value counts as zero")
def by_size_alone(focus, sizes, target_size):
    return by_score(sizes, sizes, target_size)


@wrong("domain_weights", "size counts")
def by_focus_alone(focus, sizes, target_size):
    return by_score(focus.clamp(min=0), sizes, target_size)


@wrong("domain_weights", "a negative value counts as zero")
def negative_weight(focus, sizes, target_size):
    return by_score(focus * sizes, sizes, target_size)


@wrong("domain_weights", "a negative value counts as zero")
def absolute_value(focus, sizes, target_size):
    return by_score(focus.abs() * sizes, sizes, target_size)


@wrong("domain_weights", "weights sum to one")
def silenced_without_heirs(focus, sizes, target_size):
    weights = by_score(focus.abs() * sizes, sizes, target_size)
    return torch.where(torch.cat([focus, torch.ones(1)]) < 0, torch.zeros(()), weights)
