"""The formulas of KD3A, transcribed slowly and literally to NumPy: one sample, one source, one layer at a time.

Written from the paper (sections 3.2 to 3.4 and Appendix E) and, where a name says *official*, from what the authors'
released code does. Independent of the package: the tests hold its tensor functions against these loops, and the
benchmark times them. Everywhere ``q`` holds the class probabilities of K teachers for N samples, (N, K, C).
"""

from __future__ import annotations

from itertools import permutations

import numpy as np

UNSUPPORTED = 0.001  # n_p of a sample without supporters


def softmax(logits: np.ndarray) -> np.ndarray:
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


# --- Knowledge Vote -------------------------------------------------------------------------------------------------


def vote_on_one(predictions: np.ndarray, gate: float) -> tuple[np.ndarray, float]:
    """The three steps of Knowledge Vote for one sample; ``predictions`` is (K, C)."""
    confident = [q_k for q_k in predictions if q_k.max() > gate]
    votes = np.zeros(predictions.shape[1])
    for q_k in confident:
        votes = votes + q_k
    consensus_class = np.argmax(votes)
    supporters = [q_k for q_k in confident if np.argmax(q_k) == consensus_class]
    if not supporters:  # all teachers eliminated: the mean ensemble of all of them, with a low weight
        return np.mean(predictions, axis=0, dtype=float), UNSUPPORTED
    return np.mean(supporters, axis=0, dtype=float), float(len(supporters))


def knowledge_vote(q: np.ndarray, gate: float) -> tuple[np.ndarray, np.ndarray]:
    """The paper's consensus p (N, C) and number of supporting domains n_p (N,)."""
    consensus = [vote_on_one(predictions, gate) for predictions in q]
    return np.array([p for p, _ in consensus]), np.array([n for _, n in consensus])


def official_vote(q: np.ndarray, gate: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The released code's vote: confidence (N,), one-hot consensus (N, C) and 0/1 mask (N,)."""
    samples, teachers, classes = q.shape
    confidence, one_hot, mask = np.zeros(samples), np.zeros((samples, classes)), np.zeros(samples)
    for b in range(samples):
        passed = [k for k in range(teachers) if q[b, k].max() > gate]
        votes = np.zeros(classes)
        for k in passed or range(teachers):  # nobody passed: everybody votes
            votes[np.argmax(q[b, k])] += q[b, k].max()
        confidence[b] = votes.max()
        one_hot[b, np.argmax(votes)] = 1
        mask[b] = bool(passed)
    return confidence, one_hot, mask


# --- Consensus Focus ------------------------------------------------------------------------------------------------


def quality(q: np.ndarray, gate: float, coalition: list[int]) -> float:
    """Consensus quality Q(S') of the coalition of teachers S', equation (cq); nothing without teachers."""
    if not coalition:
        return 0.0
    p, n = knowledge_vote(q[:, coalition], gate)
    return sum(n_i * p_i.max() for p_i, n_i in zip(p, n, strict=True))


def official_quality(q: np.ndarray, gate: float, coalition: list[int]) -> float:
    """The released code's Q(S'): the confidence of the vote, over the samples where somebody passed the gate."""
    if not coalition:
        return 0.0
    confidence, _, mask = official_vote(q[:, coalition], gate)
    return sum(c * m for c, m in zip(confidence, mask, strict=True))


def consensus_focus(q: np.ndarray, gate: float, value: str = "leave-one-out", quality=quality) -> np.ndarray:
    """CF_k = Q(S) - Q(S without k), or the Shapley value: the mean gain of k's arrival over all K! orders, (K,)."""
    teachers = range(q.shape[1])
    if value == "leave-one-out":
        everybody = quality(q, gate, list(teachers))
        return np.array([everybody - quality(q, gate, [j for j in teachers if j != k]) for k in teachers])
    known: dict[frozenset, float] = {}

    def game(coalition: frozenset) -> float:
        if coalition not in known:
            known[coalition] = quality(q, gate, sorted(coalition))
        return known[coalition]

    focus, orders = np.zeros(len(teachers)), list(permutations(teachers))
    for order in orders:
        for place, k in enumerate(order):
            before = frozenset(order[:place])
            focus[k] += (game(before | {k}) - game(before)) / len(orders)
    return focus


def official_focus(q: np.ndarray, gate: float) -> np.ndarray:
    """The released code's CF: Shapley values of its own quality, (K,)."""
    return consensus_focus(q, gate, "shapley", official_quality)


def domain_weights(focus: np.ndarray, sizes: list[int], target_size: int) -> np.ndarray:
    """The paper's domain weights (K + 1,), target last.

    The paper does not say what a negative CF means, nor what happens when nothing is left. Decided here: it counts as
    zero, and without any positive CF the sources are weighted by their sizes.
    """
    target = target_size / (sum(sizes) + target_size)
    shares = [size * max(cf, 0.0) for size, cf in zip(sizes, focus, strict=True)]
    if sum(shares) == 0:
        shares = list(sizes)
    return np.array([(1 - target) * share / sum(shares) for share in shares] + [target])


def official_weights(focus: np.ndarray, gated_share: float, decimals: int | None = None) -> np.ndarray:
    """The released code's weights of one round (K + 1,), before the moving average; target last."""
    rounded = (lambda weight: weight) if decimals is None else (lambda weight: round(weight, decimals))
    if sum(focus) == 0:
        focus = [cf + 1e-3 for cf in focus]
    target = rounded(gated_share / (len(focus) + 1))
    return np.array([rounded((1 - target) * cf / sum(focus)) for cf in focus] + [target])


# --- BatchNorm MMD and aggregation ----------------------------------------------------------------------------------


def kernel_mmd(a: np.ndarray, b: np.ndarray) -> float:
    """Squared MMD of two samples of features (N, C) under the quadratic kernel (<x, y> + 1/2)^2, pair by pair."""

    def mean_kernel(left: np.ndarray, right: np.ndarray) -> float:
        return np.mean([[(x @ y + 0.5) ** 2 for y in right] for x in left])

    return mean_kernel(a, a) - 2 * mean_kernel(a, b) + mean_kernel(b, b)


def mmd_loss(batch: dict, means: dict, variances: dict, alpha: np.ndarray) -> float:
    """Equation (bmmd): over layers l and domains k, the squared distance of first and second moments."""
    total = 0.0
    for layer, (mu, mu2) in batch.items():
        for k, alpha_k in enumerate(alpha):
            first, second = means[layer][k], variances[layer][k] + means[layer][k] ** 2
            for channel in range(len(mu)):
                total += alpha_k * ((mu[channel] - first[channel]) ** 2 + (mu2[channel] - second[channel]) ** 2)
    return total


def closed_form(means: np.ndarray, variances: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Appendix E: average E[x] and E[x^2], then turn the latter back into a variance."""
    first, second = 0.0, 0.0
    for mean, variance, alpha_k in zip(means, variances, alpha, strict=True):
        first = first + alpha_k * mean
        second = second + alpha_k * (variance + mean**2)
    return first, second - first**2


def aggregate(states: list[dict], alpha: np.ndarray, variance: str = "closed-form") -> dict:
    """The weighted average of state dicts of arrays; counters (integers) are those of the first model."""
    average = {}
    for name, entry in states[0].items():
        if np.issubdtype(entry.dtype, np.integer):
            average[name] = entry
        elif name.endswith("running_var") and variance == "closed-form":
            means = [state[name.replace("running_var", "running_mean")] for state in states]
            average[name] = closed_form(means, [state[name] for state in states], alpha)[1]
        else:
            average[name] = sum(alpha_k * state[name] for alpha_k, state in zip(alpha, states, strict=True))
    return average


# --- losses ---------------------------------------------------------------------------------------------------------


def distillation(logits: np.ndarray, p: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Equation (kvloss), n_p KL(p || q), per sample (B,); a class with p = 0 adds nothing."""
    q = softmax(logits)
    return np.array(
        [
            n_i * sum(p_c * np.log(p_c / q_c) for p_c, q_c in zip(p_i, q_i, strict=True) if p_c > 0)
            for p_i, q_i, n_i in zip(p, q, n, strict=True)
        ]
    )
