"""Wrong answers of assignment 1."""

import torch

from planted import wrong


def supporters(q, gate):
    """Who supports the consensus, right; (N, K) bool."""
    sure = q.amax(-1) > gate
    elected = (q * sure[..., None]).sum(1).argmax(-1)
    return sure & (q.argmax(-1) == elected[:, None])


def finish(q, S):
    """Mean of supporters and their number, right."""
    count = S.sum(1)
    chosen = torch.where((count > 0)[:, None], S, True).to(q.dtype)
    p = (q * chosen[..., None]).sum(1) / chosen.sum(1, keepdim=True)
    return p, torch.where(count > 0, count.to(q.dtype), torch.tensor(0.001))


@wrong("knowledge_vote", "the gate is strict")
def gate_not_strict(q, gate):
    sure = q.amax(-1) >= gate
    elected = (q * sure[..., None]).sum(1).argmax(-1)
    return finish(q, sure & (q.argmax(-1) == elected[:, None]))


@wrong("knowledge_vote", "only confident teachers vote")
def everybody_votes(q, gate):
    sure, elected = q.amax(-1) > gate, q.sum(1).argmax(-1)
    return finish(q, sure & (q.argmax(-1) == elected[:, None]))


@wrong("knowledge_vote", "probabilities are added, not heads")
def heads_are_counted(q, gate):
    sure = q.amax(-1) > gate
    heads = torch.nn.functional.one_hot(q.argmax(-1), q.shape[2]) * sure[..., None]
    return finish(q, sure & (q.argmax(-1) == heads.sum(1).argmax(-1)[:, None]))


@wrong("knowledge_vote", "dissenters are dropped")
def dissenters_stay(q, gate):
    return finish(q, q.amax(-1) > gate)


@wrong("knowledge_vote", "the unsure do not support")
def unsure_support(q, gate):
    sure = q.amax(-1) > gate
    elected = (q * sure[..., None]).sum(1).argmax(-1)
    return finish(q, sure.any(1)[:, None] & (q.argmax(-1) == elected[:, None]))


@wrong("knowledge_vote", "p is the mean of the supporters")
def mean_over_all(q, gate):
    return q.mean(1), finish(q, supporters(q, gate))[1]


@wrong("knowledge_vote", "p is the mean of the supporters")
def sum_of_supporters(q, gate):
    p, n = finish(q, supporters(q, gate))
    return torch.where(n[:, None] >= 1, p * n[:, None], p), n


@wrong("knowledge_vote", "n is the number of supporters")
def weight_of_one(q, gate):
    p, n = finish(q, supporters(q, gate))
    return p, n.clamp(max=1)


@wrong("knowledge_vote", "nobody is sure: p")
def nobody_is_uniform(q, gate):
    p, n = finish(q, supporters(q, gate))
    return torch.where(n[:, None] < 1, torch.full_like(p, 1 / q.shape[2]), p), n


@wrong("knowledge_vote", "nobody is sure: n")
def nobody_weighs_nothing(q, gate):
    p, n = finish(q, supporters(q, gate))
    return p, torch.where(n < 1, torch.zeros(()), n)


@wrong("knowledge_vote", "samples do not see one another")
def one_vote_for_the_batch(q, gate):
    sure = q.amax(-1) > gate
    elected = (q * sure[..., None]).sum((0, 1)).argmax(-1)
    return finish(q, sure & (q.argmax(-1) == elected))


@wrong("vote_loss", "the direction of KL", "zeros in p are harmless")
def wrong_way_round(p, n, student):
    return (n * torch.nn.functional.kl_div(p.log(), student, reduction="none").sum(-1)).mean()


@wrong("vote_loss", "the direction of KL")
def divided_by_classes(p, n, student):
    return (n * torch.nn.functional.kl_div(student.log(), p, reduction="none").mean(-1)).mean()


@wrong("vote_loss", "n multiplies")
def supporters_ignored(p, n, student):
    return torch.nn.functional.kl_div(student.log(), p, reduction="none").sum(-1).mean()


@wrong("vote_loss", "n multiplies")
def divided_by_supporters(p, n, student):
    divergence = torch.nn.functional.kl_div(student.log(), p, reduction="none").sum(-1)
    return (n * divergence).sum() / n.sum()


@wrong("vote_loss", "zeros in p are harmless")
def logarithm_of_zero(p, n, student):
    return (n * (p * (p.log() - student.log())).sum(-1)).mean()


@wrong("vote_loss", "the mean over the batch")
def summed_over_the_batch(p, n, student):
    return (n * torch.nn.functional.kl_div(student.log(), p, reduction="none").sum(-1)).sum()
