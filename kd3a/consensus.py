"""Knowledge Vote and Consensus Focus: pure tensor functions of the teachers' predictions.

Every function takes ``q``, the class probabilities that K teachers give to N target samples, shape (N, K, C).
Teachers are never touched here. Derived in the book's chapters *Knowledge Vote* and *Consensus Focus*.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from kd3a.errors import Diverged, UserError

Variant = Literal["paper", "official"]
Value = Literal["leave-one-out", "shapley"]

#: What ``variant`` stands for: the switches of :func:`knowledge_vote`, one name per difference.
VOTE = {
    "paper": {"class_vote": "sum", "consensus": "soft", "support": "count", "fallback": 0.001},
    "official": {"class_vote": "max", "consensus": "one-hot", "support": "mask", "fallback": 0.0},
}
CHUNK = 1 << 23  # elements of the largest intermediate tensor when coalitions are compared
CACHED = 256  # samples whose ensembles are formed at a time on a CPU: they stay in its cache


@dataclass(frozen=True)
class Ballots:
    """All that a vote needs to know of ``q``. Samples come last: K is small, and inner loops should be long."""

    q: Tensor  # (N, K, C)
    class_vote: str
    confidence: Tensor  # (K, N), the largest probability
    choice: Tensor  # (K, N) int32, its class; among equals the lower index
    given: Tensor  # (K, K, N), what k would give to the first choice of j

    def split(self, size: int) -> Iterator[Ballots]:
        """The same in groups of at most ``size`` samples."""
        parts = zip(*(t.split(size, -1) for t in (self.confidence, self.choice, self.given)), strict=True)
        for q, part in zip(self.q.split(size), parts, strict=True):
            yield Ballots(q, self.class_vote, *part)


def cast(q: Tensor, class_vote: str = "sum") -> Ballots:
    """Every teacher's ballot on every sample; independent of gate and coalition."""
    if q.ndim != 3:
        raise UserError(f"q must have shape (N, K, C), one distribution per sample and teacher, not {tuple(q.shape)}.")
    if class_vote not in ("sum", "max"):
        raise ValueError(f"Unknown class_vote {class_vote!r}: choose 'sum' or 'max'.")
    # on a CPU, NumPy's argmax is ten times as fast as torch's, and torch reduces int32 far faster than int64
    choice = torch.from_numpy(q.detach().numpy().argmax(-1)) if q.device.type == "cpu" else q.argmax(-1)  # (N, K)
    if class_vote == "sum":
        given = q.gather(2, choice[:, None, :].expand(-1, q.shape[1], -1)).permute(1, 2, 0).contiguous()
        confidence, choice = given.diagonal().T.contiguous(), choice.T.int().contiguous()
    else:
        confidence = q.gather(2, choice[..., None])[..., 0].T.contiguous()
        choice = choice.T.int().contiguous()
        given = (choice[:, None] == choice) * confidence[:, None]
    return Ballots(q, class_vote, confidence, choice, given)


def check(ballots: Ballots, names: list[str] | None = None, softmax: bool = False) -> Ballots:
    """Refuse predictions that are not finite, naming the teacher. Reads one flag per teacher.

    What comes out of a ``softmax`` is finite or NaN, and NaN is the largest of its row to argmax: then the confidences
    tell, and the predictions need not be read again.
    """
    told = ballots.confidence if softmax else ballots.q.sum(-1).T  # (K, N); a sum is finite only if all its terms are
    for k, fine in enumerate(torch.isfinite(told).all(1).tolist()):
        if not fine:
            raise Diverged(f"The predictions of teacher {names[k] if names else k} are not finite.")
    return ballots


def elect(ballots: Ballots, gate: float, members: Tensor) -> Tensor:
    r"""Steps 1 and 2 of Knowledge Vote for many coalitions of teachers at once.

    Only classes that a confident teacher names first are compared: for gates of at least K / (K + 1) no other can win,
    because the others' votes for it add up to less than :math:`\sum_k (1 - g) \le g`. Below, all classes are.

    Args:
        members: the coalitions as 0/1 rows, (M, K).

    Returns:
        bool (M, K, N): who supports the consensus class of each sample in each coalition.
    """
    teachers, classes = ballots.q.shape[1:]
    confident, choice = ballots.confidence > gate, ballots.choice  # (K, N)
    eligible = confident & (members[..., None] > 0)  # (M, K, N)
    if ballots.class_vote == "sum" and gate < teachers / (teachers + 1):
        votes = torch.einsum("mk,nkc->mnc", members, ballots.q * confident.T[..., None])  # (M, N, C)
        return eligible & (choice == votes.argmax(-1)[:, None])
    votes = torch.tensordot(members, ballots.given * confident[:, None], 1)  # (M, K, N), for the choice of each
    votes = torch.where(eligible, votes, -1.0)
    best = votes == votes.amax(1, keepdim=True)
    winner = torch.where(best, choice, classes).amin(1, keepdim=True)  # ties: the lower class index
    return eligible & (choice == winner)


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
    return elect(cast(q, class_vote), gate, q.new_ones(1, q.shape[1]))[0].T


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
    switches = {**VOTE[variant], **switches}
    return vote(check(cast(q, switches.pop("class_vote"))), gate, **switches)


def vote(ballots: Ballots, gate: float, *, consensus: str, support: str, fallback: float) -> tuple[Tensor, Tensor]:
    """:func:`knowledge_vote` without the check of its input: no host sync, for the training loop."""
    q, everybody = ballots.q, ballots.q.new_ones(1, ballots.q.shape[1])
    supporting = elect(ballots, gate, everybody)[0].T.contiguous()  # (N, K)
    number = supporting.sum(1)  # (N,)
    agreed = number > 0
    if consensus == "one-hot" and ballots.class_vote == "max":  # where nobody passed the gate, all vote without one
        winners = torch.where(agreed, supporting.T, elect(ballots, -1.0, everybody)[0])  # (K, N)
        best = torch.where(winners, ballots.choice, q.shape[2]).amin(0).long()  # (N,)
    else:
        chosen = torch.where(agreed[:, None], supporting, True).to(q.dtype)  # nobody left: everybody speaks
        p = _sum(chosen, q).div_(chosen.sum(1, keepdim=True))  # (N, C)
        best = p.argmax(-1) if consensus == "one-hot" else None
    if best is not None:
        p = q.new_zeros(q.shape[0], q.shape[2]).scatter_(1, best[:, None], 1.0)
    weight = number.to(q.dtype) if support == "count" else agreed.to(q.dtype)
    return p, torch.where(agreed, weight, fallback)


def _sum(chosen: Tensor, q: Tensor) -> Tensor:
    """The predictions of the ``chosen`` (N, K) teachers added up, (N, C). NumPy's loop is the fastest on a CPU."""
    if q.device.type == "cpu":
        return torch.from_numpy(np.einsum("nk,nkc->nc", chosen.numpy(), q.detach().numpy()))
    return torch.einsum("nk,nkc->nc", chosen, q)


def ensemble(q: Tensor, kind: Literal["mean", "max"]) -> tuple[Tensor, Tensor]:
    r"""What is distilled without a vote: no gate, no supporters, every sample weighs one.

    ``mean`` is :math:`p_i = \frac1K \sum_k q^k(x_i)`; ``max`` is the prediction of the most confident teacher,
    :math:`p_i = q^{k^*}(x_i)` with :math:`k^* = \arg\max_k \max_c q^k_c(x_i)`, the first among equals.

    Args:
        q: probabilities, (N, K, C).

    Returns:
        ``p`` (N, C), rows sum to one, and ``n`` (N,), all ones.

    >>> ensemble(torch.tensor([[[0.9, 0.1], [0.0, 1.0]]]), "max")[0].tolist()
    [[0.0, 1.0]]
    """
    if kind not in ("mean", "max"):
        raise ValueError(f"Unknown ensemble {kind!r}: choose 'mean' or 'max'.")
    surest = q.amax(-1).argmax(1)  # (N,)
    p = q.mean(1) if kind == "mean" else q[torch.arange(len(q), device=q.device), surest]
    return p, q.new_ones(len(q))


def coalition_qualities(ballots: Ballots, gate: float, members: Tensor, fallback: float) -> Tensor:
    r"""Consensus quality of many coalitions at once.

    .. math:: Q(S') = \sum_i n_{p_i}(S') \cdot \max_c p_i(S')_c

    For a sample with supporters, :math:`n_p \max p` is the sum of the supporters' confidences, because all of them
    have the same argmax; so no ensemble needs to be formed there.

    Args:
        members: the coalitions as 0/1 rows, (M, K).

    Returns:
        (M,), float64 so that differences of large sums keep their digits.
    """
    q = ballots.q
    members = members.to(q)
    means = members / members.sum(1, keepdim=True).clamp(min=1)  # (M, K)
    quality = torch.zeros(len(members), dtype=torch.float64 if q.device.type != "mps" else q.dtype, device=q.device)
    for some in ballots.split(max(1, CHUNK // (len(members) * max(q.shape[1:])))):
        supporting = elect(some, gate, members)  # (M, K, n)
        value = (supporting * some.confidence).sum(1)  # (M, n)
        if fallback:
            agreed = supporting.any(1)  # (M, n)
            if q.device.type == "cpu":  # only samples without a consensus in some coalition: elsewhere a host sync
                rows = (~agreed).any(0).nonzero()[:, 0]
                best = [(means @ some.q.index_select(0, few)).amax(-1) for few in rows.split(CACHED)]
                blurred = fallback * torch.cat(best).T  # (M, rows)
                value[:, rows] = torch.where(agreed[:, rows], value[:, rows], blurred)
            else:
                value = torch.where(agreed, value, fallback * (means @ some.q).amax(-1).T)
        quality += value.to(quality.dtype).sum(1)
    return quality


def consensus_quality(q: Tensor, gate: float, coalition: list[int], variant: Variant = "paper") -> Tensor:
    """Q of one coalition, given as teacher indices; the empty coalition has quality 0."""
    members = torch.zeros(1, q.shape[1])
    members[0, coalition] = 1
    preset = VOTE[variant]
    return coalition_qualities(cast(q, preset["class_vote"]), gate, members, preset["fallback"])[0]


def consensus_focus(
    q: Tensor, gate: float, value: Value = "leave-one-out", variant: Variant = "paper", **switches
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
        variant: ``paper`` or ``official``; ``class_vote`` and ``fallback`` of :data:`VOTE` may be turned by keyword.

    Returns:
        (K,), one value per source.

    >>> q = torch.tensor([[[0.95, 0.05], [0.99, 0.01], [0.4, 0.6]]])
    >>> [round(v, 2) for v in consensus_focus(q, 0.9).tolist()]
    [0.95, 0.99, 0.0]
    """
    chosen = {name: VOTE[variant][name] for name in ("class_vote", "fallback")} | switches
    return focus(check(cast(q, chosen.pop("class_vote"))), gate, value, **chosen)


def focus(ballots: Ballots, gate: float, value: Value, fallback: float) -> Tensor:
    """:func:`consensus_focus` without the check of its input."""
    q = ballots.q
    teachers = q.shape[1]
    if value == "leave-one-out":
        members = torch.cat([torch.ones(1, teachers), 1 - torch.eye(teachers)])  # (K + 1, K)
        quality = coalition_qualities(ballots, gate, members, fallback)
        return (quality[0] - quality[1:]).to(q.dtype)
    if value != "shapley":
        raise ValueError(f"Unknown value {value!r}: choose 'leave-one-out' or 'shapley'.")
    members, coefficients = _shapley_game(teachers)
    quality = coalition_qualities(ballots, gate, members, fallback)  # (2^K,)
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
