"""Wrong answers of assignment 4."""

import torch
from kd3a.aggregate import aggregate
from kd3a.consensus import consensus_focus, knowledge_vote
from kd3a.weighting import domain_weights

from planted import wrong


@wrong("average", "alpha weighs the models")
def models_alike(states, alpha):
    merged = aggregate(states, alpha)
    names = ("weight", "norm.running_mean")
    return {n: torch.stack([s[n] for s in states]).mean(0) if n in names else t for n, t in merged.items()}


@wrong("average", "variances take the spread")
def variances_averaged(states, alpha):
    return aggregate(states, alpha, "plain")


@wrong("average", "counters are not averaged")
def counters_averaged(states, alpha):
    merged = aggregate(states, alpha)
    for name, t in merged.items():
        if not t.is_floating_point():
            merged[name] = sum(a * s[name] for a, s in zip(alpha, states))
    return merged


@wrong("average", "the models stay as they are")
def first_model_overwritten(states, alpha):
    merged = aggregate(states, alpha)
    for name, t in states[0].items():
        t.copy_(merged[name])
    return states[0]


def focus_weights(houses, q):
    """Right."""
    return domain_weights(consensus_focus(q, houses.gate), houses.sizes, houses.target_size)


@wrong("one_round", "everybody begins with the shared model")
def student_begins_elsewhere(houses, shared):
    states = houses.train(shared)
    q = houses.ask(states)
    student = houses.distil(states[0], *knowledge_vote(q, houses.gate))
    return aggregate([*states, student], focus_weights(houses, q))


@wrong("one_round", "the student learns the vote")
def student_learns_the_mean(houses, shared):
    states = houses.train(shared)
    q = houses.ask(states)
    student = houses.distil(shared, q.mean(1), torch.ones(len(q)))
    return aggregate([*states, student], focus_weights(houses, q))


@wrong("one_round", "the student takes part")
def student_left_out(houses, shared):
    states = houses.train(shared)
    q = houses.ask(states)
    student = houses.distil(shared, *knowledge_vote(q, houses.gate))
    alpha = focus_weights(houses, q)[:-1]
    nothing = {name: torch.zeros_like(t) for name, t in student.items()}
    return aggregate([*states, nothing], torch.cat([alpha / alpha.sum(), torch.zeros(1)]))


@wrong("one_round", "sources weigh by size and focus")
def sources_alike(houses, shared):
    states = houses.train(shared)
    q = houses.ask(states)
    student = houses.distil(shared, *knowledge_vote(q, houses.gate))
    share = houses.target_size / (houses.sizes.sum() + houses.target_size)
    alike = torch.full((len(states),), 1 / len(states))
    return aggregate([*states, student], torch.cat([(1 - share) * alike, share.reshape(1)]))


@wrong("one_round", "sources weigh by size and focus")
def student_alone(houses, shared):
    states = houses.train(shared)
    return houses.distil(shared, *knowledge_vote(houses.ask(states), houses.gate))


@wrong("beats_source_only", "better than source-only")
def nothing_learned(houses, shared):
    return shared


@wrong("beats_source_only", "better than source-only")
def first_source_alone(houses, shared):
    return houses.train(shared)[0]


@wrong("beats_source_only", "better than source-only")
def statistics_summed(houses, shared):
    states = houses.train(shared)
    return aggregate(states, torch.ones(len(states)))


@wrong("beats_source_only", "better than source-only")
def never_shared(houses, shared):
    return houses.distil(shared, torch.full((houses.target_size, 10), 0.1), torch.ones(houses.target_size))
