"""Wrong answers of assignment 5."""

import numpy as np

from planted import wrong


@wrong("risk", "inputs count by probability")
def inputs_alike(H, D):
    share = D / D.sum(1, keepdims=True)
    return 1 - share[np.arange(len(D)), H].mean(1)


@wrong("risk", "errors are counted")
def successes_counted(H, D):
    return D[np.arange(len(D)), H].sum(1)


@wrong("risk", "labels may be noisy")
def likeliest_label(H, D):
    return (D.sum(1) * (D.argmax(1) != H)).sum(1)


@wrong("risk", "any number of classes")
def two_classes_only(H, D):
    return (D[:, 0] * (H != 0) + D[:, 1] * (H != 1)).sum(1)


@wrong("risk", "every hypothesis has its own")
def best_hypothesis(H, D):
    return (1 - D[np.arange(len(D)), H].sum(1)).min()


def disagreement(H, D):
    """Of all pairs, right."""
    return ((H[:, None] != H) * D.sum(1)).sum(-1)


@wrong("divergence", "labels do not matter", "pairs of hypotheses")
def risks_compared(H, S, T):
    def risk(D):
        return 1 - D[np.arange(len(D)), H].sum(1)

    return 2 * np.abs(risk(S) - risk(T)).max()


@wrong("divergence", "twice the largest difference")
def once(H, S, T):
    return np.abs(disagreement(H, S) - disagreement(H, T)).max()


@wrong("divergence", "pairs of hypotheses")
def single_hypotheses(H, S, T):
    return 2 * np.abs((H * (S.sum(1) - T.sum(1))).sum(1)).max()


@wrong("divergence", "symmetric")
def absolute_value_forgotten(H, S, T):
    return 2 * (disagreement(H, T) - disagreement(H, S)).max()


@wrong("bound", "half the divergence")
def whole_divergence(source_risks, target_risks, d):
    return source_risks + d + (source_risks + target_risks).min()


@wrong("bound", "λ is one hypothesis' joint error")
def two_hypotheses(source_risks, target_risks, d):
    return source_risks + d / 2 + source_risks.min() + target_risks.min()


@wrong("bound", "λ is one hypothesis' joint error")
def lambda_forgotten(source_risks, target_risks, d):
    return source_risks + d / 2


@wrong("bound", "the same for all but the source risk")
def own_joint_error(source_risks, target_risks, d):
    return source_risks + d / 2 + source_risks + target_risks


@wrong("bound", "the same for all but the source risk")
def one_bound_for_all(source_risks, target_risks, d):
    return np.full_like(source_risks, source_risks.min() + d / 2 + (source_risks + target_risks).min())
