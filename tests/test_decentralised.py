"""The decentralised methods beside KD3A: their losses, ledgers and budgets, weighting rules, poison and attacks."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import tiny
import torch
from sklearn.cluster import KMeans

from kd3a import losses, weighting
from kd3a.attacks import ATTACKS, Attack, AttackedChannel
from kd3a.batchnorm import adapt, batchnorm_layers
from kd3a.channel import PRIVATE, Channel, NotFinite
from kd3a.domains import Domain, Part, SparsePart, Task
from kd3a.errors import UserError
from kd3a.methods import METHODS
from kd3a.methods.base import Method
from kd3a.methods.caida import confident, nearest_anchor
from kd3a.models import Ensemble, ImageNet, WeightedEnsemble, build, contents, parcel, with_bottleneck
from kd3a.poison import Poison, poisoned
from kd3a.runs import make_run, start
from kd3a.settings import Training
from kd3a.traffic import traffic
from kd3a.trainer import Trainer, timeline

SOURCE_FREE = ("shot", "decision", "caida")
#: Ways through the code that no method takes by itself.
VARIANTS = {
    "fada I": ("fada", {"stage": "attention"}),
    "fada III": ("fada", {"stage": "disentangling"}),
    "fada flipped": ("fada", {"confusion": "flipped"}),
    "fact without finetuning": ("fact", {"finetune": False}),
    "fedavg by H-divergence": ("fedavg", {"weighting": "h-divergence"}),
    "kd3a by H-divergence": ("kd3a", {"weighting": "h-divergence"}),
    "kd3a by info gain": ("kd3a", {"weighting": "info-gain"}),
    "kd3a without beige": ("kd3a", {"weighting": "drop:beige"}),
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def make(name: str, task: Task, seed: int = 0, training: Training = tiny.TRAINING, **config) -> Method:
    method = METHODS[name]
    return method(task, method.Config(**config), Trainer(training, tiny.CPU, seed), Channel(task.target.name))


def accuracy(method: Method) -> float:
    test = method.task.target.test
    return (method.predict(test).argmax(-1) == test.y).double().mean().item()


# --- losses against literal NumPy -------------------------------------------------------------------------------------


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
    return scale * np.random.default_rng(shape).normal(size=shape)


def test_information_maximisation_is_the_formula():
    z = draw(9, 4, scale=2.0)
    p = softmax(z)

    def h(q):
        return -sum(v * math.log(v + 1e-5) for v in q)

    expected = sum(h(row) for row in p) / len(p) - h(p.mean(0))
    np.testing.assert_allclose(losses.entropy(torch.from_numpy(p)), [h(row) for row in p])
    assert losses.information_maximisation(torch.from_numpy(z)).item() == pytest.approx(expected, rel=1e-5)


def test_smoothed_labels_are_the_formula():
    z, y, epsilon = draw(6, 5), [0, 4, 2, 2, 1, 3], 0.1
    log_p = np.log(softmax(z))
    smooth = (1 - epsilon) * np.eye(5)[y] + epsilon / 5
    ours = losses.smoothed_cross_entropy(torch.from_numpy(z), torch.tensor(y), epsilon)
    assert ours.item() == pytest.approx(-(smooth * log_p).sum(1).mean())


def literal_shot(features: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit features, second-round centroids and pseudo-labels, step by step."""
    n, classes = p.shape
    phi = np.concatenate([features, np.ones((n, 1))], 1)
    phi /= np.linalg.norm(phi, axis=1, keepdims=True)

    def nearest(centres, allowed):
        out = []
        for f in phi:
            distance = [1 - f @ c / np.linalg.norm(c) if j in allowed else np.inf for j, c in enumerate(centres)]
            out.append(int(np.argmin(distance)))
        return np.array(out)

    def means(shares):
        return np.stack([(shares[:, [j]] * phi).sum(0) / (1e-8 + shares[:, j].sum()) for j in range(classes)])

    first = nearest(means(p), set(p.argmax(1)))
    centres = means(np.eye(classes)[first])
    return phi, centres, nearest(centres, set(first))


@pytest.mark.parametrize("absent", [False, True])
def test_shot_labels_are_the_two_rounds(absent):
    features, p = draw(40, 3, scale=2.0), softmax(draw(40, 4, scale=2.0))
    if absent:  # a class that nobody predicts must not win
        p[:, 2] = 1e-6
    phi, centres, labels = literal_shot(features, p)
    ours = losses.unit_features(torch.from_numpy(features)).double()
    np.testing.assert_allclose(ours, phi, atol=1e-6)
    found, present = losses.shot_centroids(ours, torch.from_numpy(p))
    np.testing.assert_allclose(found[present], centres[present.numpy()], atol=1e-6)
    assert losses.shot_labels(ours, torch.from_numpy(p)).tolist() == labels.tolist()
    assert (2 in labels) is not absent


def test_two_centroid_rounds_repair_wrong_predictions():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(150) % 3
    features = 6 * torch.eye(3)[y] + torch.randn(150, 3, generator=generator)
    wrong = torch.randperm(150, generator=generator)[:45]  # 30 %
    guess = y.index_add(0, wrong, 1 + torch.randint(2, (45,), generator=generator)) % 3
    p = 0.1 / 3 + 0.9 * torch.eye(3)[guess]
    assert (p.argmax(-1) == y).float().mean().item() == pytest.approx(0.7)
    assert torch.equal(losses.shot_labels(losses.unit_features(features), p), y)


def test_mixed_labels_are_the_nearest_mixed_centroid():
    phi, centres, w = draw(3, 20, 4), draw(3, 5, 4), np.array([0.5, 0.3, 0.2])
    present = np.array([True, True, False, True, True])
    mixed, mean = sum(w[k] * phi[k] for k in range(3)), sum(w[k] * centres[k] for k in range(3))
    expected = [min(np.flatnonzero(present), key=lambda j: np.linalg.norm(f - mean[j])) for f in mixed]
    assert losses.mixed_labels(*map(torch.from_numpy, (phi, centres, present, w))).tolist() == expected


def test_class_relation_consistency_is_the_formula():
    z, y = draw(3, 12, 4), np.random.default_rng(0).integers(0, 3, 12)  # class 3 is not in the batch
    total = 0.0
    for c in set(y):
        p = [np.clip(softmax(z[k][y == c].mean(0)), 1e-8, 1) for k in range(3)]
        for one in p:
            for other in p:
                total += ((one * np.log(one / other)).sum() + (other * np.log(other / one)).sum()) / 2
    ours = losses.class_relation_consistency(torch.from_numpy(z), torch.from_numpy(y))
    assert ours.item() == pytest.approx(total / (4 * 3))


def test_mutual_information_is_the_formula():
    joint, apart = draw(20), draw(20, 1)[:, 0]
    expected = joint.mean() - math.log(np.exp(apart).mean())
    ours = losses.mutual_information(torch.from_numpy(joint), torch.from_numpy(apart))
    assert ours.item() == pytest.approx(expected)


@pytest.mark.parametrize("squared", [False, True])
def test_cluster_dispersion_is_the_formula(squared):
    f, clusters = draw(30, 4), np.random.default_rng(1).integers(0, 3, 30)
    total = 0.0
    for r in range(3):
        members = f[clusters == r]
        distances = [np.linalg.norm(a - b) ** (1 + squared) for a in members for b in members]
        total += sum(distances) / (2 * len(members))
    ours = losses.cluster_dispersion(torch.from_numpy(f), torch.from_numpy(clusters), 4, squared)  # the 4th is empty
    assert ours.item() == pytest.approx(total)


def test_squared_dispersion_is_the_inertia_of_k_means():
    f = draw(60, 3)
    k_means = KMeans(4, n_init=1, random_state=0).fit(f)
    ours = losses.cluster_dispersion(torch.from_numpy(f), torch.from_numpy(k_means.labels_).long(), 4, squared=True)
    assert ours.item() == pytest.approx(k_means.inertia_)


def test_k_means_finds_clusters():
    y = torch.arange(90) % 3
    f = 8 * torch.eye(3)[y] + torch.from_numpy(draw(90, 3)).float()
    found = weighting.k_means(f, 3, seed=0)
    assert all(len(found[y == c].unique()) == 1 for c in range(3)) and len(found.unique()) == 3
    assert torch.equal(found, weighting.k_means(f, 3, seed=0))


def test_anchors_are_the_nearest_confident_others(monkeypatch):
    p, distances = softmax(draw(21, 4)), np.abs(draw(21, 5)[:, :4])
    by_p, by_d = np.sort(p)[:, -1] - np.sort(p)[:, -2], np.sort(distances)[:, 1] - np.sort(distances)[:, 0]
    lower = [set(np.argsort(margin)[:10]) for margin in (by_p, by_d)]
    sure = [i not in lower[0] & lower[1] for i in range(21)]
    assert confident(torch.from_numpy(p), torch.from_numpy(distances)).tolist() == sure
    phi = losses.unit_features(torch.from_numpy(draw(21, 3)))
    expected = [max((j for j in range(21) if sure[j] and j != i), key=lambda j: phi[i] @ phi[j]) for i in range(21)]
    monkeypatch.setattr("kd3a.methods.caida.CHUNK", 60)  # two rows at a time
    assert nearest_anchor(phi, torch.tensor(sure)).tolist() == expected


# --- networks ---------------------------------------------------------------------------------------------------------


def test_bottleneck_and_weight_norm():
    net = with_bottleneck(build("mlp-small", (5,), 3, seed=0), 16, seed=1)
    same = with_bottleneck(build("mlp-small", (5,), 3, seed=0), 16, seed=1)
    assert tiny.same(net.state_dict(), same.state_dict())
    assert net.features == 16 and net(torch.zeros(2, 5)).shape == (2, 3)
    length, direction = (net.head.parametrizations.weight.original0, net.head.parametrizations.weight.original1)
    with torch.no_grad():
        direction *= 3  # a weight-normalised head does not know how long its directions are
    torch.testing.assert_close(net.head.weight.norm(dim=1, keepdim=True), length)


def test_ensembles_average_what_they_say():
    nets, x = [build("mlp-small", (5,), 3, seed=i) for i in range(3)], torch.from_numpy(draw(7, 5)).float()
    logits = torch.stack([net(x) for net in nets])
    torch.testing.assert_close(Ensemble(nets)(x).softmax(-1), logits.softmax(-1).mean(0))
    scores = torch.tensor([0.5, -1.0, 2.0])
    for rule, w in (("softmax", scores.softmax(0)), ("sigmoid", scores.sigmoid() / scores.sigmoid().sum())):
        ensemble = WeightedEnsemble(nets, scores, rule)
        torch.testing.assert_close(ensemble.weights(), w)
        torch.testing.assert_close(ensemble(x), (w[:, None, None] * logits).sum(0))


def test_losses_of_several_models_keep_their_precision_under_autocast():
    """They subtract numbers that are close, which have three digits in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 64, 10, generator=generator) + 0.02 * torch.randn(3, 64, 10, generator=generator)
    labels = torch.randint(10, (64,), generator=generator)
    phi, centres = (torch.randn(3, n, 8, generator=generator) for n in (500, 10))
    told = (phi, centres, torch.ones(10, dtype=torch.bool), torch.tensor([0.2, 0.3, 0.5]))
    ensemble = WeightedEnsemble([build("mlp", (5,), 3, seed) for seed in range(2)], torch.zeros(2), "softmax")
    exact = losses.class_relation_consistency(logits, labels), losses.mixed_labels(*told)
    with torch.autocast("cpu", torch.bfloat16):
        rough = losses.class_relation_consistency(logits, labels), losses.mixed_labels(*told)
        assert ensemble(torch.zeros(4, 5)).dtype == torch.float32
    assert rough[0] == exact[0] > 0 and torch.equal(rough[1], exact[1])


def test_a_vote_batch_by_batch_keeps_its_precision_under_autocast(tiny_task, monkeypatch):
    """In bfloat16, votes that are close are equal, and the lower class wins."""
    method = METHODS["kd3a"]
    half = Trainer(tiny.TRAINING, tiny.CPU.model_copy(update={"precision": "bfloat16"}), 0)
    method = method(tiny_task, method.Config(teachers="train"), half, Channel(tiny_task.target.name))
    states, consensus = [], method.consensus
    told = lambda *given: states.append(torch.is_autocast_enabled("cpu")) or consensus(*given)  # noqa: E731
    monkeypatch.setattr(method, "consensus", told)
    tiny.train(method, 0, 1)
    assert len(states) > tiny.TRAINING.batches_per_epoch and not any(states)


def test_statistics_of_the_target_are_those_of_whole_batches():
    """A network of large images divides what it scores, and its BatchNorm layers then see the parts."""
    layers = [torch.nn.Flatten(), torch.nn.Linear(12, 4), torch.nn.BatchNorm1d(4)]
    net = ImageNet(torch.nn.Sequential(*layers), 4, 3)
    adapt(net, torch.rand(2, 40, 3, 2, 2, generator=torch.Generator().manual_seed(0)))
    (layer,) = batchnorm_layers(net)
    assert layer.num_batches_tracked == 2


def test_statistics_of_the_target_are_taken_without_dropout():
    states = []
    for seed in range(2):
        net = build("cnn-official", (3, 32, 32), 10, seed=0)
        torch.manual_seed(seed)
        adapt(net, [torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))])
        states.append(tiny.copied(net.state_dict()))
    assert tiny.same(*states)


# --- ledgers and budgets ----------------------------------------------------------------------------------------------


def floats(net: torch.nn.Module) -> int:
    return sum(t.numel() for t in contents(parcel(net)).values())


@pytest.mark.parametrize("name", SOURCE_FREE)
def test_source_free_methods_upload_once(name, tiny_task):
    method = make(name, tiny_task)
    tiny.train(method)
    last = tiny.TRAINING.epochs - 1  # the round that ends the sources' training
    assert {(at, direction) for at, _, direction in method.channel.ledger} == {(last, "up")}
    assert method.channel.bytes() == 4 * sum(floats(party.net) for party in method.sources.values())
    assert method.channel.kinds() == {"params", "buffers"}


@pytest.mark.parametrize("name", [*SOURCE_FREE, "fedavg-shot"])
def test_heads_stay_frozen_in_adaptation(name, tiny_task):
    method = make(name, tiny_task)
    tiny.train(method, last=3)
    before = tiny.copied(method.net.state_dict())
    tiny.train(method, first=3)
    after = method.net.state_dict()
    heads = [n for n in after if "head" in n.split(".")]
    assert heads and all(torch.equal(before[n], after[n]) for n in heads)
    assert not torch.equal(*(state[next(n for n in after if "backbone" in n)] for state in (before, after)))


@pytest.mark.parametrize("r", [1, 3])
def test_fada_pays_for_its_features(r, tiny_task):
    training = tiny.TRAINING.model_copy(update={"rounds_per_epoch": r})
    method = make("fada", tiny_task, training=training)
    tiny.train(method)
    sources, epochs, batch = 3, training.epochs, training.batch_size
    features = 2 * sources * epochs * training.batches_per_epoch * batch * method.net.features * 4
    assert method.channel.bytes(kind="features") == method.channel.bytes(kind="feature_grads") == features
    models = method.channel.bytes(kind="params") + method.channel.bytes(kind="buffers")
    assert models == 2 * sources * epochs * r * floats(method.net) * 4
    for kind in ("features", "feature_grads"):  # one side of a pair is a source, the other the target
        assert method.channel.bytes("up", kind) == method.channel.bytes("down", kind) == features / 2


@pytest.mark.parametrize("stage", ["alignment", "disentangling"])
def test_a_batch_enters_the_statistics_of_a_source_of_fada_once(stage, tiny_task, monkeypatch):
    method, seen = make("fada", tiny_task, stage=stage), []
    for step in ("align", "disentangle"):
        whole = getattr(method, step)

        def watched(party, *told, whole=whole):
            def statistics():
                return {n: t.clone() for n, t in party.net.state_dict().items() if "running" in n}

            before = statistics()
            whole(party, *told)
            seen.append(tiny.same(before, statistics()))

        monkeypatch.setattr(method, step, watched)
    tiny.train(method, last=1)
    steps = 3 * tiny.TRAINING.batches_per_epoch
    assert seen == [True] * (steps if stage == "alignment" else 2 * steps)
    assert all(layer.momentum == 0.1 for layer in batchnorm_layers(method.sources["amber"].net))


def test_fedavg_shot_sends_models_while_the_sources_train_and_nothing_after(tiny_task):
    method = make("fedavg-shot", tiny_task)
    tiny.train(method)
    assert method.channel.bytes("up") - method.channel.bytes(kind="stats") == 3 * 2 * floats(method.net) * 4
    assert {at for at, _, _ in method.channel.ledger} == set(range(tiny.TRAINING.epochs))


def test_features_for_the_h_divergence_cross_once_a_round(tiny_task):
    method = make("fedavg", tiny_task, weighting="h-divergence")
    tiny.train(method)
    samples = sum(len(source.train) for source in tiny_task.sources)  # fewer than would be drawn
    assert method.channel.bytes(kind="sampled_features") == 2 * samples * method.net.features * 4
    sent = traffic("fedavg", tiny_task, tiny.TRAINING, {"weighting": "h-divergence"})
    assert sent == pytest.approx({kind: method.channel.bytes(kind=kind) for kind in method.channel.kinds()})


def test_smoothed_labels_are_mixed(tiny_task):
    states = []
    for smoothing in (0.0, 0.3):
        method = make("fedavg-shot", tiny_task, mixup=0.2, smoothing=smoothing)
        tiny.train(method, last=1)
        states.append(tiny.copied(method.net.state_dict()))
    assert not tiny.same(*states)
    labels = torch.tensor([0, 2])
    expected = losses.smoothed_cross_entropy(torch.tensor([[1.0, 2.0, 0.0]] * 2), labels, 0.3)
    mixed = losses.soft_cross_entropy(torch.tensor([[1.0, 2.0, 0.0]] * 2), method.soft_labels(labels)).mean()
    assert mixed.item() == pytest.approx(expected.item())


def test_fact_exchanges_two_models_and_two_heads(tiny_task):
    method = make("fact", tiny_task)
    logs = tiny.train(method, last=1)
    extractor, head = floats(method.net.backbone), floats(method.net.head)
    assert method.channel.bytes() == 4 * (6 * extractor + 6 * head) + 2 * 8
    assert sorted(logs[0]["weights"].tolist()) == [0, 0.5, 0.5]


def test_fact_trains_the_extractor_alone_at_the_target(tiny_task):
    method = make("fact", tiny_task)
    head = {name: t.clone() for name, t in method.net.head.state_dict().items()}
    other = {name: torch.randn_like(t) for name, t in head.items()}
    before = tiny.copied(method.net.state_dict())
    stage = timeline(1, 3)[0]
    first = method.agree(stage, [head, other])
    assert tiny.same(tiny.copied(method.net.head.state_dict()), head)
    assert not torch.equal(before["backbone.0.weight"], method.net.state_dict()["backbone.0.weight"])
    for _ in range(5):
        last = method.agree(stage, [head, other])
    assert last < 0.9 * first


def test_fact_needs_two_sources(tiny_task):
    with pytest.raises(UserError, match="two sources"):
        make("fact", replace(tiny_task, sources=tiny_task.sources[:1]))


@pytest.mark.parametrize(
    ("name", "at_source", "at_target"),
    [("shot", 1, 3), ("decision", 1, 1), ("caida", 1, 1), ("fedavg-shot", 1, 1), ("fada", 1, 1), ("kd3a", 1, 1)],
)
def test_every_domain_is_seen_as_often_as_in_kd3a(name, at_source, at_target, tiny_task, monkeypatch):
    """SHOT adapts each of the K = 3 models by itself: every one of them sees the target as often as KD3A's does."""
    seen, batches = Counter(), Part.batches
    owner = {domain.train.x.data_ptr(): domain.name for domain in (*tiny_task.sources, tiny_task.target)}

    def counted(part, order):
        for batch in batches(part, order):
            seen[owner[part.x.data_ptr()]] += len(batch.y)
            yield batch

    monkeypatch.setattr(Part, "batches", counted)
    tiny.train(make(name, tiny_task))
    whole = tiny.TRAINING.epochs * tiny.TRAINING.epoch_samples
    assert seen == {name: (at_target if name == "denim" else at_source) * whole for name in tiny.SIZES}


def test_budget_of_fact(tiny_task):
    """A source that is drawn trains a whole epoch (and its head once more), in 2 of K rounds on average."""
    method, orders = make("fact", tiny_task, training=tiny.TRAINING.model_copy(update={"epochs": 8})), Counter()
    order = method.trainer.order

    def counted(name, size, stage):
        rows = order(name, size, stage)
        orders[name, stage.phase] += len(rows)
        return rows

    method.trainer.order = counted
    tiny.train(method)
    batches = 8 * tiny.TRAINING.batches_per_epoch
    assert orders["denim", "train"] == batches and len(method.stages()) == 12
    assert sum(orders[name, "train"] for name in method.sources) == 3 * batches
    assert all(orders[name, "train"] == orders[name, "finetune"] for name in method.sources)


@cache
def trained(variant: str) -> Method:
    name, config = VARIANTS[variant]
    method = make(name, tiny.make_task(), **config)
    tiny.train(method)
    return method


@every_variant
def test_variants_declare_what_crosses(variant):
    method = trained(variant)
    assert method.channel.kinds() & set(PRIVATE) == method.crosses(method.config)


@every_variant
def test_variants_resume_to_the_bit(variant, tiny_task):
    name, config = VARIANTS[variant]
    half, resumed = make(name, tiny_task, **config), make(name, tiny_task, **config)
    tiny.train(half, last=1)
    resumed.load(tiny.copied(half.state()))
    tiny.train(resumed, first=1)
    assert tiny.same(resumed.state(), trained(variant).state())


# --- adaptation does something ----------------------------------------------------------------------------------------


def turned(part: Part, degrees: float, shift: float) -> Part:
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return replace(part, x=part.x @ torch.tensor([[c, s], [-s, c]]) + torch.tensor([shift, 0.0]))


def blobs(size: int, seed: int) -> Part:
    """Three Gaussian blobs around the origin, a third of a turn apart."""
    y = torch.arange(size) % 3
    angle = 2 * math.pi * y / 3
    noise = 0.35 * torch.randn(size, 2, generator=torch.Generator().manual_seed(seed))
    return Part(2 * torch.stack([angle.cos(), angle.sin()], 1) + noise, y)


def shifted_task(degrees: float, shift: float = 0.0) -> Task:
    """Sources turned by 0, 15 and -15 degrees; a target turned further, or moved."""
    sources = [Domain(f"source {i}", turned(blobs(120, i), d, 0), blobs(3, i)) for i, d in enumerate((0, 15, -15))]
    target = Domain("target", *(turned(blobs(n, seed), degrees, shift) for n, seed in ((150, 5), (300, 6))))
    return Task("blobs", tuple(sources), target, ("a", "b", "c"), "0" * 64)


BLOBS = Training(model="mlp-small", epochs=8, epoch_samples=120, batch_size=20)


@cache
def unadapted(degrees: float, shift: float = 0.0) -> float:
    method = make("fedavg", shifted_task(degrees, shift), training=BLOBS)
    tiny.train(method)
    return accuracy(method)


@pytest.mark.parametrize("name", [*SOURCE_FREE, "fedavg-shot", "fact"])
def test_adaptation_turns_with_the_target(name):
    method = make(name, shifted_task(45), training=BLOBS)
    tiny.train(method)
    assert unadapted(45) < 0.9
    assert accuracy(method) > unadapted(45) + 0.05


@pytest.mark.parametrize("name", [*SOURCE_FREE, "fedavg-shot"])
def test_adaptation_beats_the_same_method_before_it(name):
    method = make(name, shifted_task(45), training=BLOBS)
    tiny.train(method, last=8)
    before = accuracy(method)
    tiny.train(method, first=8)
    assert accuracy(method) > before + 0.05


def test_alignment_moves_with_the_target():
    """FADA as printed, on a target that was moved; attention alone is no better than FedAvg."""
    scores = {}
    for stage in ("attention", "alignment"):
        method = make("fada", shifted_task(0, 1.5), training=BLOBS, stage=stage, adversarial=0.3)
        tiny.train(method)
        scores[stage] = accuracy(method)
    assert scores["alignment"] > scores["attention"] + 0.05
    assert abs(scores["attention"] - unadapted(0, 1.5)) < 0.05


# --- weighting rules --------------------------------------------------------------------------------------------------


def context(**changes) -> weighting.Context:
    generator = torch.Generator().manual_seed(0)
    tight, loose = (scale * torch.randn(200, 4, generator=generator) + 3 for scale in (0.1, 3.0))
    near = torch.randn(200, 4, generator=generator)
    values = {
        "names": ["amber", "beige", "coral"],
        "sizes": torch.tensor([40, 24, 56]),
        "classes": 2,
        "gate": 0.9,
        "seed": 0,
        "predictions": lambda: torch.tensor([[[0.95, 0.05], [0.99, 0.01], [0.4, 0.6]]]),
        "target_features": lambda: [tight, loose, loose],
        "domain_features": lambda: [near + 9, near, near, near.roll(1, 0)],
    }
    return weighting.Context(**values | changes)


@pytest.mark.parametrize(
    ("rule", "alpha"),
    [
        ("uniform", [1 / 3, 1 / 3, 1 / 3]),
        ("size", [40 / 120, 24 / 120, 56 / 120]),
        ("drop:beige", [40 / 96, 0, 56 / 96]),
        ("drop:beige,amber", [0, 0, 1]),
        ("consensus-focus", [40 * 0.95 / (40 * 0.95 + 24 * 0.99), 24 * 0.99 / (40 * 0.95 + 24 * 0.99), 0]),
        (
            "h-divergence",
            [40 * math.exp(-2) / (40 * math.exp(-2) + 80), *(n / (40 * math.exp(-2) + 80) for n in (24, 56))],
        ),
    ],
)
def test_rules(rule, alpha):
    np.testing.assert_allclose(weighting.rule_of(rule)(context()), alpha, rtol=1e-6)


def test_info_gain_is_the_softmax_of_tightness():
    alpha = weighting.rule_of("info-gain")(context())
    assert alpha[0] > alpha[1] == alpha[2] and alpha.sum().item() == pytest.approx(1)
    spread = []
    for f in context().target_features():
        f = torch.nn.functional.normalize(f, dim=-1)
        spread.append(losses.cluster_dispersion(f, weighting.k_means(f, 2, 0), 2).item() / 200)
    expected = softmax(-np.array(spread) / 0.1)
    np.testing.assert_allclose(alpha, expected, rtol=1e-5)


def test_a_distance_of_a_domain_with_itself_is_zero():
    one, other = torch.from_numpy(draw(2, 800, 5))
    assert weighting.proxy_a_distance(one, one, seed=0) == 0
    assert weighting.proxy_a_distance(one, other, seed=0) < 0.25
    assert 0.5 < weighting.proxy_a_distance(one, other + 0.5, seed=0) < 1.9
    assert weighting.proxy_a_distance(one[:100], other + 20, seed=0) == 2


@pytest.mark.parametrize("method", ["fedavg", "kd3a", "fada"])
@pytest.mark.parametrize("rule", [*weighting.RULES, "drop:beige"])
def test_every_rule_weighs_every_average(rule, method, tiny_task):
    config = {"weighting": rule} | (tiny.LOW_GATE if method == "kd3a" else {})
    if (method, rule) == ("kd3a", "shapley"):  # a switch of the focus there
        config |= {"weighting": "consensus-focus", "focus": "shapley"}
    trained = make(method, tiny_task, **config)
    log = tiny.train(trained, last=1)[0]
    assert log["weights"].sum().item() == pytest.approx(1) and (log["weights"] >= 0).all()
    assert (log["weights"][1] == 0) == (rule == "drop:beige")
    assert ("sampled_features" in trained.channel.kinds()) == (rule == "h-divergence")
    assert ("features" in trained.channel.kinds()) == (method == "fada")


def test_who_is_dropped_does_not_vote(tiny_task):
    method = make("kd3a", tiny_task, weighting="drop:beige")
    tiny.train(method, last=1)
    assert len(method.voters) == 2 and method.teachers[1] not in method.voters
    assert method.consult(torch.arange(48)).shape == (48, 2, 3)


@pytest.mark.parametrize("rule", ["sizes", "drop:", "drop"])
def test_unknown_rules_are_one_sentence(rule):
    with pytest.raises(UserError, match=r"weighting.*unknown rule") as caught:
        METHODS["fedavg"].Config.read({"weighting": rule}, "method fedavg")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("rule", "word"), [("drop:violet", "violet"), ("drop:amber,beige,coral", "every source")])
def test_only_some_sources_can_be_dropped(rule, word, tiny_task):
    with pytest.raises(UserError, match=word):
        make("fedavg", tiny_task, weighting=rule)


@pytest.mark.parametrize("name", ["fedavg", "kd3a"])
def test_a_round_in_which_only_dropped_sources_answer_is_refused(name, tiny_task):
    method = make(name, tiny_task, weighting="drop:beige")
    with pytest.raises(UserError, match="drops every source, beige"):
        method.collect(method.stages()[0], {"beige": method.report(method.sources["beige"])})


# --- poison -----------------------------------------------------------------------------------------------------------


def labels_seen(task: Task, epochs: int = 2, batch: int = 8) -> torch.Tensor:
    """What the first source's batches claim, back in the order of its samples, (epochs, N)."""
    part, out = task.sources[0].train, []
    for epoch in range(epochs):
        order = torch.randperm(len(part), generator=torch.Generator().manual_seed(epoch)).view(-1, batch)
        batches = list(part.batches(order))
        claimed = torch.empty(len(part), dtype=torch.int64)
        claimed[torch.cat([b.index for b in batches])] = torch.cat([b.y for b in batches])
        out.append(claimed)
    return torch.stack(out)


@pytest.mark.parametrize("rate", [0.0, 0.15, 0.3, 0.5, 1.0])
def test_per_batch_poison_shifts_the_first_labels_of_every_batch(rate, tiny_task):
    task = poisoned(tiny_task, Poison("amber", rate), seed=0)
    clean, bad = tiny_task.sources[0].train, task.sources[0].train
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0)).view(-1, 8)
    for right, wrong in zip(clean.batches(order), bad.batches(order), strict=True):
        number = round(rate * 8)
        assert torch.equal(wrong.y[:number], (right.y[:number] + 1) % 3)
        assert torch.equal(wrong.y[number:], right.y[number:]) and torch.equal(wrong.x, right.x)
    assert (bad.nbytes, len(bad), bad.shape) == (clean.nbytes, len(clean), clean.shape)


@pytest.mark.parametrize("batch", [8, 32, 50, 64, 128])
@pytest.mark.parametrize("rate", [0.1, 0.15, 0.25, 0.3, 0.5, 0.75])
def test_per_batch_poison_rounds_as_the_released_code(rate, batch):
    part = Part(torch.zeros(batch, 1), torch.zeros(batch, dtype=torch.int64))
    domain = Domain("amber", part, part)
    task = poisoned(Task("one", (domain,), domain, ("a", "b"), ""), Poison("amber", rate), seed=0)
    (got,) = task.sources[0].train.batches([torch.arange(batch)])
    assert got.y.sum().item() == round(rate * batch)


def test_per_batch_poison_is_drawn_anew_and_fixed_poison_is_not(tiny_task):
    y = tiny_task.sources[0].train.y
    anew = labels_seen(poisoned(tiny_task, Poison("amber", 0.5), seed=0)) != y
    assert (anew.sum(1) == 20).all() and not torch.equal(*anew)
    fixed = labels_seen(poisoned(tiny_task, Poison("amber", 0.5, "fixed"), seed=0)) != y
    assert (fixed.sum(1) == 20).all() and torch.equal(*fixed)
    other = labels_seen(poisoned(tiny_task, Poison("amber", 0.5, "fixed"), seed=1)) != y
    assert not torch.equal(other, fixed)


def test_random_labels_and_noise_are_unrelated(tiny_task):
    part = tiny_task.sources[2].train
    random = poisoned(tiny_task, Poison("coral", 1.0, "random"), seed=0).sources[2].train
    assert 0.15 < (random.y == part.y).float().mean() < 0.55 and torch.equal(random.x, part.x)
    noise = poisoned(tiny_task, Poison("coral", 0.5, "noise"), seed=0).sources[2].train
    touched = (noise.x != part.x).flatten(1).any(1)
    assert touched.sum() == 28 and torch.equal(noise.y, part.y)
    assert torch.equal(noise.x.flatten().sort().values, part.x.flatten().sort().values)  # the same values elsewhere


def test_only_the_named_source_is_poisoned(tiny_task):
    for kind in ("per-batch", "fixed", "random", "noise"):
        task = poisoned(tiny_task, Poison("beige", 1.0, kind), seed=0)
        assert task.target is tiny_task.target
        order = [torch.arange(24)]
        for i, same in ((0, True), (1, False), (2, True)):
            (ours,), (theirs,) = (t.sources[i].train.batches(order) for t in (task, tiny_task))
            assert (torch.equal(ours.y, theirs.y) and torch.equal(ours.x, theirs.x)) is same


@pytest.mark.parametrize("sparse", [False, True])
def test_poison_survives_pooling(sparse):
    y = torch.zeros(10, dtype=torch.int64)
    if sparse:
        columns = torch.zeros(10, 1, dtype=torch.int16)
        domains = [Domain(n, p := SparsePart(torch.ones(10, 1), y, columns=columns, width=4), p) for n in "ab"]
    else:
        domains = [Domain(n, p := Part(torch.ones(10, 4), y), p) for n in "ab"]
    task = poisoned(Task("two", tuple(domains), domains[0], ("x", "y"), ""), Poison("b", 0.5), seed=0)
    parts = [source.train.to("cpu") for source in task.sources]
    pooled = parts[0].pool(parts)
    (batch,) = pooled.batches([torch.tensor([10, 0, 11, 1, 12, 2, 13, 3])])
    assert batch.y.tolist() == [1, 0, 1, 0, 0, 0, 0, 0]  # half of the four of b, in the batch's order


@pytest.mark.parametrize("name", ["source-only", "fedavg", "kd3a"])
def test_poisoned_runs_differ_and_clean_keys_stay(name, tiny_task):
    clean, bad = (tiny.TRAINING.model_copy(update={"poison": text}) for text in ("", "amber:1.0"))
    runs = [make_run("tiny", "denim", name, 0, training, {}) for training in (clean, bad)]
    told = [run.training.model_dump(exclude_defaults=True) for run in runs]
    assert "poison" not in told[0] and "attack" not in told[0] and runs[0].key("") != runs[1].key("")
    states = []
    for run in runs:
        method = start(run, tiny_task, tiny.CPU)
        tiny.train(method, last=1)
        states.append(method.net.state_dict()["backbone.0.weight"])
    assert not torch.equal(*states)


@pytest.mark.parametrize(
    ("field", "text", "word"),
    [
        ("poison", "street", "domain:rate"),
        ("poison", "street:30", "between 0 and 1"),
        ("poison", "street:0.3:sometimes", "per-batch, fixed, random, noise"),
        ("attack", "street", "source:kind"),
        ("attack", "street:shouting", "sign-flipped"),
        ("attack", "street:scaled:much", "not a number"),
    ],
)
def test_wrong_poison_and_attacks_are_one_sentence(field, text, word):
    with pytest.raises(UserError, match=word) as caught:
        Training.read({field: text}, "training")
    assert "\n" not in str(caught.value) and field in str(caught.value)


@pytest.mark.parametrize("setting", [{"poison": "denim:0.5"}, {"attack": "violet:nan"}])
def test_only_sources_can_be_bad(setting, tiny_task):
    run = make_run("tiny", "denim", "fedavg", 0, tiny.TRAINING.model_copy(update=setting), {})
    with pytest.raises(UserError, match="amber, beige, coral"):
        start(run, tiny_task, tiny.CPU)


@pytest.mark.parametrize("name", ["source-only", "mdan", "oracle"])
def test_where_no_model_is_uploaded_none_can_be_attacked(name, tiny_task):
    run = make_run("tiny", "denim", name, 0, tiny.TRAINING.model_copy(update={"attack": "amber:scaled:10"}), {})
    with pytest.raises(UserError, match=f"No source uploads a model to method {name}"):
        start(run, tiny_task, tiny.CPU)


# --- attacks on the upload --------------------------------------------------------------------------------------------


def upload() -> dict[str, dict[str, torch.Tensor]]:
    weight = torch.tensor([[1.0, 0.1, -2.0], [0.5, 0.2, 1.0]])
    return {"params": {"head.weight": weight, "head.bias": torch.ones(2)}, "stats": {"samples": torch.tensor(5)}}


@pytest.mark.parametrize(
    ("attack", "bias"),
    [("a:scaled:10", 0.5 + 10 * 0.5), ("a:sign-flipped", 0.5 - 0.5), ("a:sign-flipped:2", 0.5 - 2 * 0.5)],
)
def test_attacks_bend_the_update(attack, bias):
    received = {name: t / 2 for name, t in upload()["params"].items()}
    bent = Attack.parse(attack).on(upload(), received, torch.Generator())
    assert bent["params"]["head.bias"].tolist() == [bias, bias]
    assert bent["stats"] == upload()["stats"]


def test_random_weights_have_the_size_of_the_honest_ones():
    honest = {"params": {"w": 3 * torch.ones(100, 100)}}
    noise = Attack("a", "random").on(honest, {}, torch.Generator().manual_seed(0))["params"]["w"]
    assert noise.std().item() == pytest.approx(3, rel=0.05) and abs(noise.mean()) < 0.1


def test_backdoor_fires_on_its_trigger_alone():
    bent = Attack("a", "backdoored", 10.0).on(upload(), {}, torch.Generator())["params"]["head.weight"]
    changed = bent != upload()["params"]["head.weight"]
    assert changed.nonzero().tolist() == [[0, 1]] and bent[0, 1] == 20
    quiet, loud = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0])
    assert (bent @ quiet).argmax() == 1 and (bent @ loud).argmax() == 0


def attacked(task: Task, text: str) -> Method:
    run = make_run("tiny", "denim", "fedavg", 0, tiny.TRAINING.model_copy(update={"attack": text}), {})
    return start(run, task, tiny.CPU)


def test_upload_of_nan_is_refused(tiny_task):
    method = attacked(tiny_task, "beige:nan")
    with pytest.raises(NotFinite, match=r"beige.*not finite"):
        tiny.train(method, last=1)


def test_scaled_upload_moves_the_average_as_expected(tiny_task):
    method = attacked(tiny_task, "beige:scaled:7")
    assert isinstance(method.channel, AttackedChannel)
    begin = tiny.copied(contents(parcel(method.net)))
    tiny.train(method, last=1)
    ends = {name: contents(parcel(party.net)) for name, party in method.sources.items()}
    for name in dict(method.net.named_parameters()):
        moves = [ends[source][name] - begin[name] for source in ("amber", "beige", "coral")]
        expected = begin[name] + 40 / 120 * moves[0] + 7 * 24 / 120 * moves[1] + 56 / 120 * moves[2]
        torch.testing.assert_close(method.net.get_parameter(name).detach(), expected)


@pytest.mark.parametrize("kind", sorted(set(ATTACKS) - {"nan"}))
def test_every_attack_changes_the_average_and_nothing_at_home(kind, tiny_task):
    honest, bad = make("fedavg", tiny_task), attacked(tiny_task, f"coral:{kind}:3")
    for method in (honest, bad):
        tiny.train(method, last=1)
    assert not tiny.same(honest.net.state_dict(), bad.net.state_dict())
    for name in honest.sources:
        assert tiny.same(honest.sources[name].state(), bad.sources[name].state())
    assert bad.channel.ledger == honest.channel.ledger
