"""Knowledge Vote and Consensus Focus: pure tensor functions of the teachers' predictions.

Every function takes ``q``, the class probabilities that K teachers give to N target samples, shape (N, K, C).
Teachers are never touched here. Derived in the book's chapter *KD3A in ten minutes*.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Literal

import torch
from torch import Tensor

from kd3a.errors import UserError

Variant = Literal["paper", "official"]
Value = Literal["leave-one-out", "shapley"]

#: What ``variant`` stands for: the switches of :func:`knowledge_vote`, one name per difference.
VOTE = {
    "paper": {"class_vote": "sum", "consensus": "soft", "support": "count", "fallback": 0.001},
    "official": {"class_vote": "max", "consensus": "one-hot", "support": "mask", "fallback": 0.0},
}
CHUNK = 1 << 23  # elements of the largest intermediate tensor when coalitions are compared


def check_predictions(q: Tensor, names: list[str] | None = None) -> None:
    """Refuse predictions that are not (N, K, C) or not finite, naming the teacher. Reads one flag per teacher."""
    if q.ndim != 3:
        raise UserError(f"q must have shape (N, K, C), one distribution per sample and teacher, not {tuple(q.shape)}.")
    finite = torch.isfinite(q).all(-1).all(0)  # (K,)
    for k, fine in enumerate(finite.tolist()):
        if not fine:
            raise UserError(f"The predictions of teacher {names[k] if names else k} are not finite.")


def supporters(q: Tensor, gate: float, class_vote: str = "sum") -> Tensor:
    r"""Who supports the consensus class of each sample: steps 1 and 2 of Knowledge Vote.

    *Confidence gate*: teacher k stays when :math:`\max_c q^k_c > g`, strictly. *Class vote*: the predictions of those
    who stay are added up, :math:`\hat c = \arg\max_c \sum_k q^k_c`, and teachers with another argmax are dropped. With
    ``class_vote="max"`` (released code) each adds only its largest probability to its argmax class. Ties go to the
    lower class index.

    Args:
        q: probabilities, (N, K, C).
        gate: the confidence gate g.

    Returns:
        bool (N, K). A row is all false when nobody passed the gate, or when the summed predictions elect a class that
        is nobody's first choice (only possible for gates below K / (K + 1)).
    """
    if class_vote not in ("sum", "max"):
        raise ValueError(f"Unknown class_vote {class_vote!r}: choose 'sum' or 'max'.")
    confidence, choice = q.max(-1)  # (N, K), (N, K)
    confident = confidence > gate  # (N, K)
    if class_vote == "sum":
        votes = (q * confident[..., None]).sum(1)  # (N, C)
    else:
        votes = q.new_zeros(q.shape[0], q.shape[2]).scatter_add_(1, choice, confidence * confident)  # (N, C)
    return confident & (choice == votes.argmax(-1, keepdim=True))  # (N, K)


def knowledge_vote(q: Tensor, gate: float, variant: Variant = "paper", **switches) -> tuple[Tensor, Tensor]:
    r"""The consensus :math:`p` of K teachers and its weight :math:`n_p` (section 3.2 of the paper).

    .. math:: p_i = \frac{1}{|S_i|} \sum_{k \in S_i} q^k(x_i), \qquad n_{p_i} = |S_i|

    with :math:`S_i` the :func:`supporters`. Where :math:`S_i` is empty, all K teachers are averaged and
    :math:`n_p` = 0.001. The released code makes :math:`p` one-hot, :math:`n_p` 1 (0 where nobody passed).

    Args:
        q: probabilities, (N, K, C); a teacher with NaN is refused.
        gate: the confidence gate g; "more confident than g" is strict.
        variant: ``paper`` or ``official``; single ``switches`` of :data:`VOTE` may be turned by keyword.

    Returns:
        ``p`` (N, C), rows sum to one, and ``n`` (N,).

    >>> p, n = knowledge_vote(torch.tensor([[[0.95, 0.05], [0.99, 0.01], [0.4, 0.6]]]), gate=0.9)
    >>> [round(v, 2) for v in p[0].tolist()], n.tolist()
    ([0.97, 0.03], [2.0])
    """
    check_predictions(q)
    return vote(q, gate, **{**VOTE[variant], **switches})


def vote(q: Tensor, gate: float, *, class_vote: str, consensus: str, support: str, fallback: float):
    """:func:`knowledge_vote` without the check of its input: no host sync, for the training loop."""
    supporting = supporters(q, gate, class_vote)  # (N, K)
    number = supporting.sum(1)  # (N,)
    agreed = number > 0
    chosen = torch.where(agreed[:, None], supporting, True).to(q.dtype)  # nobody left: everybody speaks
    p = torch.einsum("nkc,nk->nc", q, chosen) / chosen.sum(1, keepdim=True)  # (N, C)
    if consensus == "one-hot":
        best = p.argmax(-1) if class_vote == "sum" else _loudest(q, chosen)
        p = torch.zeros_like(p).scatter_(1, best[:, None], 1.0)
    weight = number.to(q.dtype) if support == "count" else agreed.to(q.dtype)
    return p, torch.where(agreed, weight, fallback)


def _loudest(q: Tensor, chosen: Tensor) -> Tensor:
    """Class with the largest sum of maximal probabilities: the released code's label, fallback included."""
    confidence, choice = q.max(-1)
    return q.new_zeros(q.shape[0], q.shape[2]).scatter_add_(1, choice, confidence * chosen).argmax(-1)


def coalition_qualities(q: Tensor, gate: float, members: Tensor, *, class_vote: str, fallback: float) -> Tensor:
    r"""Consensus quality of many coalitions at once.

    .. math:: Q(S') = \sum_i n_{p_i}(S') \cdot \max_c p_i(S')_c

    For a sample with supporters, :math:`n_p \max p` is the sum of the supporters' confidences, because all of them
    have the same argmax; so no ensemble needs to be formed there.

    Args:
        q: probabilities, (N, K, C).
        members: the coalitions as 0/1 rows, (M, K).

    Returns:
        (M,), float64 so that differences of large sums keep their digits.
    """
    n, teachers, classes = q.shape
    members = members.to(q)
    confidence, choice = q.max(-1)  # (N, K)
    loud = confidence * (confidence > gate)  # (N, K)
    size = members.sum(1).clamp(min=1)  # (M,)
    quality = torch.zeros(len(members), dtype=torch.float64 if q.device.type != "mps" else q.dtype, device=q.device)
    step = max(1, CHUNK // (len(members) * max(classes, teachers)))
    for i in range(0, n, step):
        rows = slice(i, i + step)
        if class_vote == "sum":
            votes = torch.einsum("mk,nkc->nmc", members, q[rows] * (loud[rows] > 0)[..., None])  # (n, M, C)
            agree = choice[rows][:, None, :] == votes.argmax(-1, keepdim=True)  # (n, M, K)
            value = (agree * (loud[rows][:, None, :] * members)).sum(-1)  # (n, M)
        else:  # only the teachers' first choices can win, and the winner's votes are its quality
            same = (choice[rows][:, :, None] == choice[rows][:, None, :]) * loud[rows][:, None, :]  # (n, K, K)
            value = torch.einsum("mk,njk->nmj", members, same).amax(-1)  # (n, M)
        if fallback:
            mean = torch.einsum("mk,nkc->nmc", members / size[:, None], q[rows]).amax(-1)  # (n, M)
            value = torch.where(value > 0, value, fallback * mean)
        quality += value.to(quality.dtype).sum(0)
    return quality


def consensus_quality(q: Tensor, gate: float, coalition: list[int], variant: Variant = "paper") -> Tensor:
    """Q of one coalition, given as teacher indices; the empty coalition has quality 0."""
    members = torch.zeros(1, q.shape[1])
    members[0, coalition] = 1
    vote_switches = VOTE[variant]
    return coalition_qualities(
        q, gate, members, class_vote=vote_switches["class_vote"], fallback=vote_switches["fallback"]
    )[0]


def consensus_focus(
    q: Tensor,
    gate: float,
    value: Value = "leave-one-out",
    variant: Variant = "paper",
    *,
    class_vote: str | None = None,
    fallback: float | None = None,
    check: bool = True,
) -> Tensor:
    r"""What each source contributes to the consensus quality (section 3.3 of the paper).

    ``leave-one-out`` is the paper's :math:`CF_k = Q(S) - Q(S \setminus \{k\})`; ``shapley`` is the exact Shapley value
    :math:`\sum_{S' \not\ni k} \frac{|S'|!\,(K-|S'|-1)!}{K!} [Q(S' \cup k) - Q(S')]` of the released code, which sums
    to :math:`Q(S)`.

    A leave-one-out value **can be negative**: a teacher may pull the class vote towards a class it is not the first
    to name, or blur the mean of samples nobody is sure of. The value is returned as it is;
    :func:`kd3a.weighting.domain_weights` reads a negative one as zero.

    Args:
        q: probabilities, (N, K, C).
        gate: the confidence gate g.

    Returns:
        (K,), one value per source.

    >>> q = torch.tensor([[[0.95, 0.05], [0.99, 0.01], [0.4, 0.6]]])
    >>> [round(v, 2) for v in consensus_focus(q, 0.9).tolist()]
    [0.95, 0.99, 0.0]
    """
    if check:
        check_predictions(q)
    preset = VOTE[variant]
    chosen = {
        "class_vote": preset["class_vote"] if class_vote is None else class_vote,
        "fallback": preset["fallback"] if fallback is None else fallback,
    }
    teachers = q.shape[1]
    if value == "leave-one-out":
        members = torch.cat([torch.ones(1, teachers), 1 - torch.eye(teachers)])  # (K + 1, K)
        quality = coalition_qualities(q, gate, members.to(q.device), **chosen)
        return (quality[0] - quality[1:]).to(q.dtype)
    if value != "shapley":
        raise ValueError(f"Unknown value {value!r}: choose 'leave-one-out' or 'shapley'.")
    members, coefficients = _shapley_game(teachers)
    quality = coalition_qualities(q, gate, members.to(q.device), **chosen)  # (2^K,)
    return (coefficients.to(quality) @ quality).to(q.dtype)


def _shapley_game(teachers: int) -> tuple[Tensor, Tensor]:
    """All coalitions as rows (2^K, K), and the (K, 2^K) matrix that turns their qualities into Shapley values."""
    coalitions = [set(c) for size in range(teachers + 1) for c in combinations(range(teachers), size)]
    members = torch.tensor([[float(k in c) for k in range(teachers)] for c in coalitions])
    coefficients = torch.zeros(teachers, len(coalitions), dtype=torch.float64)
    for column, c in enumerate(coalitions):
        for k in range(teachers):
            if k in c:
                coefficients[k, column] = 1 / (teachers * comb(teachers - 1, len(c) - 1))
            else:
                coefficients[k, column] = -1 / (teachers * comb(teachers - 1, len(c)))
    return members, coefficients
