"""The centralised methods: their losses against NumPy, their networks and steps, and that adapting helps."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kd3a.adversarial import domain_loss, domain_mlp, reverse, source_surprise
from kd3a.channel import Channel
from kd3a.domains import Batch, Domain, Part, Task
from kd3a.losses import (
    collaboration,
    curriculum,
    dann_ramp,
    discrepancy,
    distances,
    moment_distance,
    most_confident,
    moving_centroids,
    negative_log,
    soft_maximum,
)
from kd3a.methods import METHODS
from kd3a.methods.base import Joint
from kd3a.methods.dsbn import SELF_TRAINING
from kd3a.models import DomainBatchNorm, Experts, build, enter, with_domain_bn
from kd3a.settings import Hardware, Training
from kd3a.trainer import Trainer
from kd3a.views import OPERATIONS, moved, painted, strong_view

TRAINING = Training(model="mlp-small", epochs=10, epoch_samples=240, batch_size=30)
SMALL = {"hidden": (32,)}  # discriminators as small as the classifier

#: Every centralised method, and the variants that take other ways through their code.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mdan": ("mdan", {"mu": 1.0, **SMALL}),
    "mdan hard": ("mdan", {"mode": "hard", "mu": 1.0, "ramp": False, **SMALL}),
    "mdan theory": ("mdan", {"weight_sign": -1, "mu": 1.0, **SMALL}),
    "m3sda": ("m3sda", {}),
    "m3sda without pairs": ("m3sda", {"beta": False}),
    "m3sda shared pair": ("m3sda", {"shared_pair": True}),
    "m3sda raw moments": ("m3sda", {"moments": "raw", "moment_weight": 0.1}),
    "dael": ("dael", {}),
    "cmss": ("cmss", SMALL),
    "dsbn": ("dsbn", SMALL),
    "dsbn fresh student": ("dsbn", {"student": "fresh", "student_rate": 1.0, "self_training": 0.5, **SMALL}),
    "dsbn features": ("dsbn", {"aligned": "features", "dropout": 0.5, **SMALL}),
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def draws(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def make(
    variant: str, task: Task, training: Training = TRAINING, hardware: Hardware = tiny.CPU, seed: int = 0
) -> Joint:
    name, config = VARIANTS[variant]
    method = METHODS[name]
    return method(task, method.Config(**config), Trainer(training, hardware, seed), Channel(task.target.name))


def short(**settings: Any) -> Training:
    """A few steps on the images of :mod:`tiny`."""
    return Training(**{"model": "cnn-narrow", "epochs": 2, "epoch_samples": 16, "batch_size": 8} | settings)


def configured(name: str, task: Task, **config: Any) -> Joint:
    method = METHODS[name]
    return method(task, method.Config(**config), Trainer(short(), tiny.CPU, 0), Channel(task.target.name))


def first_batches(method: Joint) -> tuple[list[Batch], Tensor]:
    *sources, target = next(method.trainer.batches(method.stages()[0], method.parts)).values()
    return sources, target.x


def losses_of_a_step(
    method: Joint, progress: float = 0.5, phase: str = "train", made: int = 0
) -> list[tuple[Tensor, tuple[nn.Module, ...]]]:
    """Every loss of a step, with the modules it would move; only the first ``made`` updates are really made."""
    played, update = [], method.update

    def watched(loss: Tensor, *only: nn.Module) -> None:
        played.append((loss, only))
        if len(played) <= made:
            update(loss, *only)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(method, "update", watched)
        method.step(*first_batches(method), progress, phase)
    return played


# --- losses against literal NumPy -------------------------------------------------------------------------------------


def test_soft_maximum_is_its_formula_and_does_not_overflow():
    values = draws(4)
    expected = np.log(sum(np.exp(10 * v) for v in values)) / 10
    assert soft_maximum(torch.from_numpy(values), 10).item() == pytest.approx(expected)
    assert torch.isfinite(soft_maximum(torch.tensor([20.0, 30.0]), 10))


@pytest.mark.parametrize("moments", ["central", "raw"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_moment_distance_is_its_formula(moments, number):
    sources, target = [draws(6, 5, seed=i) for i in range(number)], 2 * draws(6, 5, seed=9) + 1

    def apart(a: np.ndarray, b: np.ndarray) -> float:
        first = np.linalg.norm(a.mean(0) - b.mean(0))
        if moments == "raw":
            return first + np.linalg.norm((a**2).mean(0) - (b**2).mean(0))
        return first + np.linalg.norm(a.var(0, ddof=1) - b.var(0, ddof=1))

    to_target = [apart(source, target) for source in sources]
    between = [apart(a, b) for a, b in combinations(sources, 2)]
    expected = np.mean(to_target) + (np.mean(between) if between else 0)
    if moments == "central":
        expected = np.mean(to_target + between) / 2
    ours = moment_distance([torch.from_numpy(s) for s in sources], torch.from_numpy(target), moments)
    assert ours.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("moments", ["central", "raw"])
def test_moment_distance_vanishes_and_does_not_know_an_order(moments):
    sources, target = [torch.from_numpy(draws(6, 5, seed=i)) for i in range(3)], torch.from_numpy(draws(6, 5, seed=9))
    same = [target.clone().requires_grad_() for _ in range(3)]
    nothing = moment_distance(same, target, moments)
    assert nothing.item() == pytest.approx(0, abs=1e-5)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(nothing, same))
    values = [moment_distance([sources[i] for i in order], target, moments) for order in ([0, 1, 2], [2, 0, 1])]
    torch.testing.assert_close(*values)


def test_distance_of_equal_points_has_a_gradient():
    point = torch.zeros(1, 3, requires_grad=True)
    assert torch.autograd.grad(distances(point, torch.zeros(1, 3)).sum(), point)[0].abs().max() == 0


def test_discrepancy_is_the_mean_absolute_difference():
    one, other = draws(4, 3), draws(4, 3, seed=1)
    total = sum(abs(softmax(one)[b, c] - softmax(other)[b, c]) for b in range(4) for c in range(3))
    assert discrepancy(torch.from_numpy(one), torch.from_numpy(other)).item() == pytest.approx(total / 12)


def test_pseudo_labels_are_those_of_the_most_confident_expert():
    experts = softmax(3 * draws(20, 3, 4))
    best = [max(range(3), key=lambda k, b=b: experts[b, k].max()) for b in range(20)]
    labels, mask = most_confident(torch.from_numpy(experts), 0.9)
    assert labels.tolist() == [experts[b, k].argmax() for b, k in enumerate(best)]
    assert mask.tolist() == [float(experts[b, k].max() >= 0.9) for b, k in enumerate(best)]
    assert 0 < mask.sum() < 20
    assert most_confident(torch.from_numpy(experts), 1.01)[1].sum() == 0


def test_negative_log_is_bounded():
    p, labels = softmax(draws(5, 3)), [0, 2, 1, 1, 0]
    expected = [-np.log(p[b, y] + 1e-5) for b, y in enumerate(labels)]
    np.testing.assert_allclose(negative_log(torch.from_numpy(p), torch.tensor(labels)), expected)
    assert torch.isfinite(negative_log(torch.tensor([[1.0, 0.0]]), torch.tensor([1])))


def test_collaboration_is_its_formula():
    experts, teacher = softmax(draws(5, 3, 4)), softmax(draws(5, 4, seed=1))
    expected = np.mean([sum((experts[b, [0, 2]].mean(0) - teacher[b]) ** 2) for b in range(5)])
    strong, weak = torch.from_numpy(experts).requires_grad_(), torch.from_numpy(teacher).requires_grad_()
    loss = collaboration(strong, weak, own=1)
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert weak.grad is None and strong.grad[:, 1].abs().max() == 0  # neither the teacher nor the own expert learns


def test_equal_experts_and_views_have_nothing_to_teach():
    p = torch.from_numpy(softmax(draws(5, 4)))
    assert collaboration(p[:, None].expand(5, 3, 4), p, own=2).item() == pytest.approx(0, abs=1e-12)


def test_curriculum_weights_sum_to_the_batch_and_are_clipped():
    scores = draws(8)
    np.testing.assert_allclose(curriculum(torch.from_numpy(scores)), 8 * softmax(scores))
    wild = curriculum(torch.tensor([1000.0, -1000.0, 0.0]), clip=5.0)
    np.testing.assert_allclose(wild, 3 * softmax(np.array([5.0, -5.0, 0.0])), rtol=1e-4)
    assert wild.sum().item() == pytest.approx(3)


def test_centroids_move_where_the_class_is_present():
    old, features, labels = draws(3, 2), draws(4, 2, seed=1), [0, 2, 0, 0]
    expected = old.copy()
    for c in (0, 2):
        expected[c] = 0.7 * old[c] + 0.3 * np.mean([f for f, y in zip(features, labels, strict=True) if y == c], axis=0)
    before, now = torch.from_numpy(old).requires_grad_(), torch.from_numpy(features).requires_grad_()
    moved_on = moving_centroids(before, now, torch.tensor(labels))
    np.testing.assert_allclose(moved_on.detach(), expected)
    moved_on.sum().backward()
    assert before.grad is None and (now.grad != 0).all()


def test_domain_loss_is_its_formula():
    torch.manual_seed(0)
    discriminator = domain_mlp(3, hidden=(5, 4)).double()
    source, target, weights = draws(6, 3), draws(4, 3, seed=1), softmax(draws(6, seed=2)) * 6

    def probability_of_source(x: np.ndarray) -> np.ndarray:
        for layer in discriminator:
            if isinstance(layer, nn.Linear):
                x = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
            else:
                x = np.maximum(x, 0)
        return softmax(x)[:, 1]

    on_source, on_target = probability_of_source(source), probability_of_source(target)
    plain = -np.log(on_source).mean() - np.log(1 - on_target).mean()
    weighted = -(weights * np.log(on_source)).mean() - np.log(1 - on_target).mean()
    batches = torch.from_numpy(source), torch.from_numpy(target)
    assert domain_loss(discriminator, *batches).item() == pytest.approx(plain)
    assert domain_loss(discriminator, *batches, torch.from_numpy(weights)).item() == pytest.approx(weighted)


def test_ramp_rises_from_zero_to_one():
    values = [dann_ramp(q / 10) for q in range(11)]
    assert values[0] == 0 and values[-1] == pytest.approx(2 / (1 + np.exp(-10)) - 1) and values == sorted(values)


# --- gradient reversal, MDAN and CMSS ---------------------------------------------------------------------------------


def test_reversal_is_the_identity_forwards_and_flips_the_gradient():
    x = torch.from_numpy(draws(3, 2)).requires_grad_()
    assert torch.equal(reverse(x, 0.3), x)
    (plain,) = torch.autograd.grad((x**2).sum(), x)
    (flipped,) = torch.autograd.grad((reverse(x, 0.3) ** 2).sum(), x)
    torch.testing.assert_close(flipped, -0.3 * plain)


def test_soft_mdan_tends_to_the_largest_sum_which_is_not_the_hard_one(tiny_task):
    task, domain = torch.tensor([0.3, 0.9, 0.5]), torch.tensor([0.8, 0.1, 0.7])
    sharp, weights = configured("mdan", tiny_task, gamma=1e4).combine(task, domain)
    assert sharp.item() == pytest.approx((task + domain).max().item(), abs=1e-3)
    assert weights.tolist() == [0, 0, 1]
    hard, weights = configured("mdan", tiny_task, mode="hard").combine(task, domain)
    assert hard.item() == pytest.approx(0.9 + 0.1) and weights.tolist() == [0, 1, 0]
    even, _ = configured("mdan", tiny_task, gamma=10).combine(torch.full((3,), 0.4), torch.full((3,), 0.2))
    assert even.item() == pytest.approx(0.6 + np.log(3) / 10)


@pytest.mark.parametrize("sign", [1, -1])
def test_soft_weights_are_the_gradient_of_the_combination(sign, tiny_task):
    task = torch.tensor([0.3, 0.5, 0.4], requires_grad=True)
    domain = torch.tensor([0.2, 0.1, 0.3])
    loss, weights = configured("mdan", tiny_task, weight_sign=sign).combine(task, domain)
    torch.testing.assert_close(torch.autograd.grad(loss, task)[0], weights)
    torch.testing.assert_close(weights, torch.softmax(10 * (task + sign * domain).detach(), 0))


@pytest.mark.parametrize("progress", [0, 0.2])
def test_mdan_ramps_mu_unless_it_is_constant(progress, tiny_task):
    settings = {"mu": 1.0}, {"mu": dann_ramp(progress), "ramp": False}
    ramped, constant = (losses_of_a_step(configured("mdan", tiny_task, **c), progress)[0][0] for c in settings)
    torch.testing.assert_close(ramped, constant)


def test_a_manager_raises_the_scores_of_samples_that_surprise_more_than_average():
    scores = torch.from_numpy(draws(12)).requires_grad_()
    surprise = source_surprise(nn.Identity(), torch.from_numpy(draws(12, 2, seed=1)))
    weights = curriculum(scores)
    (gradient,) = torch.autograd.grad(-(weights * surprise).mean(), scores)
    average = (weights * surprise).sum() / weights.sum()
    assert torch.equal(gradient < 0, surprise > average.detach())  # descent raises what has a negative gradient


def terms_of_cmss(method: Joint) -> tuple[Tensor, Tensor, Tensor]:
    """Of the first batches: the classifier's loss, the weighted surprise on the sources, the weighted domain loss."""
    sources, target = first_batches(method)
    x, y = torch.cat([batch.x for batch in sources]), torch.cat([batch.y for batch in sources])
    features, unknown, d = method.net.backbone(x), method.net.backbone(target), method.nets["discriminator"]
    weights = curriculum(method.nets["manager"](x)[:, 0])
    surprise = (weights * source_surprise(d, features)).mean()
    return F.cross_entropy(method.net.head(features), y), surprise, domain_loss(d, features, unknown, weights)


def test_cmss_plays_with_the_weights_from_before_the_manager_moves(tiny_task):
    method, strength = make("cmss", tiny_task, short()), dann_ramp(0.5)
    task, surprise, domain = terms_of_cmss(method)
    losses, moved_parts = zip(*losses_of_a_step(method, made=1), strict=True)
    assert moved_parts == tuple((method.nets[name],) for name in ("manager", "discriminator", "net"))
    torch.testing.assert_close(losses, (-strength * surprise, strength * domain, task - strength * domain))


def test_the_manager_moves_to_where_the_discriminator_errs_more(tiny_task):
    method = make("cmss", tiny_task, short())
    _, before, _ = terms_of_cmss(method)
    losses_of_a_step(method, made=1)
    _, after, _ = terms_of_cmss(method)
    assert after > before + 1e-3


def test_cmss_reports_what_the_manager_prefers(tiny_task):
    log = tiny.train(make("cmss", tiny_task, short()))[-1]
    assert log["weights"].sum().item() == pytest.approx(1, abs=1e-5)


def test_the_manager_may_be_another_network(tiny_task):
    nets = configured("cmss", tiny_task, manager="mlp-small", **SMALL).nets
    assert nets["manager"](torch.zeros(2, 3, 8, 8)).shape == (2, 1) and len(nets["manager"].backbone) == 5


# --- networks ---------------------------------------------------------------------------------------------------------


def test_experts_answer_with_their_mean_probability():
    net = build("mlp-small", (4,), 3, seed=0)
    net.head = Experts(nn.Linear(64, 3) for _ in range(2))
    x = torch.from_numpy(draws(5, 4)).float()
    mean = sum(expert(net.backbone(x)).softmax(-1) for expert in net.head) / 2
    torch.testing.assert_close(net(x).softmax(-1), mean)


def norms_of(net: nn.Module) -> list[DomainBatchNorm]:
    return [module for module in net.modules() if isinstance(module, DomainBatchNorm)]


def test_every_batchnorm_gets_a_copy_per_domain():
    plain, branched = (build("cnn-narrow", (3, 8, 8), 3, seed=0) for _ in range(2))
    x = torch.from_numpy(draws(6, 3, 8, 8)).float()
    plain(x)  # in training mode: the statistics that are copied differ from the initial ones
    branched.load_state_dict(plain.state_dict())
    norms = norms_of(with_domain_bn(branched, 4))
    kinds = [nn.BatchNorm2d, nn.BatchNorm2d, nn.BatchNorm2d, nn.BatchNorm1d]
    assert [type(norm.branches[0]) for norm in norms] == kinds
    assert not [m for m in branched.backbone.children() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    for domain in range(4):
        assert torch.equal(enter(branched, domain).eval()(x), plain.eval()(x))


def test_a_target_batch_leaves_the_branches_of_the_sources_alone():
    net = with_domain_bn(build("cnn-narrow", (3, 8, 8), 3, seed=0), 3)
    before = tiny.copied(net.state_dict())
    enter(net, 2)(torch.from_numpy(draws(6, 3, 8, 8)).float()).sum().backward()
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]) is not ("branches.2.running" in name or "branches.2.num" in name)
    used = {name for name, p in net.named_parameters() if p.grad is not None}
    assert used == {name for name, _ in net.named_parameters() if "branches" not in name or "branches.2" in name}


def test_without_batchnorm_there_is_nothing_to_branch():
    net = build("mlp-small", (4,), 3, seed=0)
    assert not norms_of(with_domain_bn(net, 3)) and enter(net, 2) is net


# --- views ------------------------------------------------------------------------------------------------------------

HALF = torch.tensor(0.5)


def test_no_operation_leaves_the_image_as_it_is():
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(painted(images, torch.zeros(4, 4)), images)
    torch.testing.assert_close(moved(images, torch.zeros(4, 5)), images)


def test_operations_do_what_their_names_say():
    images = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    brightness, contrast, colour, solarise = (painted(images, row[None]) for row in -torch.eye(4))
    torch.testing.assert_close(brightness, 0.1 * images)
    assert contrast.std().item() == pytest.approx(0.1 * images.std().item(), rel=1e-4)
    assert colour.std(1).mean() < 0.2 * images.std(1).mean() and colour.mean(1).std() > 0.9 * images.mean(1).std()
    torch.testing.assert_close(solarise, torch.where(images > 0.1, 1 - images, images))
    ramp = torch.linspace(0, 1, 8).expand(1, 3, 8, 8)
    shifted = moved(ramp, torch.tensor([[0.0, 0, 0, 1, 0]]))  # 0.3 of 8 pixels
    torch.testing.assert_close(shifted[..., :5], ramp[..., :5] + 2.4 / 7)
    quarter = moved(ramp, torch.tensor([[3.0, 0, 0, 0, 0]]))  # 90°
    torch.testing.assert_close(quarter, ramp.mT.flip(2), atol=1e-5, rtol=0)


def test_a_strong_view_is_two_operations_in_the_range_of_pixels():
    x = 2 * torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0)) - 1
    torch.manual_seed(1)
    view = strong_view(x, HALF, HALF)
    assert view.shape == x.shape and view.abs().max() <= 1 + 1e-5
    assert ((view - x).abs().amax((1, 2, 3)) > 1e-3).float().mean() > 0.9
    torch.manual_seed(1)
    assert torch.equal(view, strong_view(x, HALF, HALF))
    assert len(OPERATIONS) == 4 + 5  # what painted and moved do


def test_the_strong_view_of_features_drops_some():
    view = strong_view(torch.ones(50, 40), HALF, HALF)
    assert (view == 0).float().mean().item() == pytest.approx(0.2, abs=0.05)


# --- steps ------------------------------------------------------------------------------------------------------------


def test_only_the_named_modules_move(tiny_task):
    method = make("m3sda", tiny_task, short())
    before = tiny.copied(method.nets.state_dict())
    x = torch.zeros(8, 3, 8, 8)
    method.update(method.disagreement(method.net.backbone(x)), method.net.head, method.nets["rivals"])
    changed = {name for name, tensor in method.nets.named_parameters() if not torch.equal(tensor, before[name])}
    assert changed and all("head" in name or "rivals" in name for name in changed)


def test_m3sda_moves_only_the_backbone_against_the_discrepancy(tiny_task, monkeypatch):
    method, moved_parts = make("m3sda", tiny_task, short()), []
    monkeypatch.setattr(method, "update", lambda loss, *only: moved_parts.append(only))
    tiny.train(method, last=1)
    heads, backbone = (method.net.head, method.nets["rivals"]), (method.net.backbone,)
    assert moved_parts == 2 * [(), heads, *4 * [backbone]]


def test_m3sda_disagrees_on_features_of_the_backbone_that_has_moved(tiny_task):
    method = make("m3sda", tiny_task, short())
    (sources, target), backbone = first_batches(method), method.net.backbone
    _, *losses = (loss for loss, _ in losses_of_a_step(method, made=1))
    task = method.task_loss([backbone(batch.x) for batch in sources], sources)
    apart = method.disagreement(backbone(target))
    torch.testing.assert_close(losses, [task - apart, *4 * [apart]])


@pytest.mark.parametrize("threshold, weight", [(2, 0.5), (0.6, 0.5), (0.6, 2)])
def test_dael_is_its_formula(threshold, weight, tiny_task, monkeypatch):
    method = configured("dael", tiny_task, threshold=threshold, target_weight=weight)
    monkeypatch.setattr(method, "second", lambda x: x.flip(-1) / 2)
    (sources, target), ((loss, _),) = first_batches(method), losses_of_a_step(method)
    own = [method.ask(batch.x)[:, k] for k, batch in enumerate(sources)]
    task = sum(negative_log(p, batch.y).mean() for p, batch in zip(own, sources, strict=True)) / 3
    taught = sum(collaboration(method.ask(method.second(sources[k].x)), own[k], k) for k in range(3)) / 3
    labels, mask = most_confident(method.ask(target), threshold)
    assert 0 < mask.sum() < len(mask) or threshold == 2
    guess = sum(mask * negative_log(method.ask(method.second(target)).mean(1), labels)) / len(mask)
    torch.testing.assert_close(loss, task + taught + weight * guess)


@every_variant
def test_every_domain_is_seen_as_often_as_in_kd3a_and_crosses_once(variant, tiny_task, monkeypatch):
    training = short(epochs=3)
    method, seen = make(variant, tiny_task, training), []
    plain = method.step

    def counted(sources, target, progress, phase):
        seen.append([len(batch.y) for batch in sources] + [len(target)])
        return plain(sources, target, progress, phase)

    monkeypatch.setattr(method, "step", counted)
    tiny.train(method)
    assert np.sum(seen, 0).tolist() == [training.epochs * training.epoch_samples] * 4
    assert method.channel.ledger == {(0, "data", "up"): sum(source.train.nbytes for source in tiny_task.sources)}


@every_variant
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_network_learns(variant, precision, tiny_task):
    """In both precisions: a weight cast without gradient, or before an update, must not be used again."""
    method = make(variant, tiny_task, short(epochs=4), Hardware(device="cpu", precision=precision))
    before = tiny.copied(dict(method.nets.named_parameters()))
    for log in tiny.train(method):
        assert all(torch.isfinite(value).all() for value in log.values() if isinstance(value, Tensor))
    still = {name for name, p in method.nets.named_parameters() if torch.equal(p, before[name])}
    still -= {"manager.head.bias"}  # a constant on all scores is no preference
    if variant == "mdan hard":  # only the pair with the smallest loss learns in a step
        still = {name for name in still if not name.startswith("discriminators")}
    assert not still


# --- DSBN's two stages ------------------------------------------------------------------------------------------------


def test_the_second_stage_has_its_share_of_the_epochs(tiny_task):
    phases = [stage.phase for stage in make("dsbn", tiny_task, short(epochs=10)).stages()]
    assert phases == 7 * ["train"] + 3 * [SELF_TRAINING]
    assert [stage.phase for stage in make("dsbn", tiny_task, short(epochs=1)).stages()] == ["train"]


@pytest.mark.parametrize("variant", ["dsbn", "dsbn fresh student"])
def test_the_first_stage_becomes_the_teacher(variant, tiny_task):
    method = make(variant, tiny_task, short(epochs=4))
    first = sum(stage.phase == "train" for stage in method.stages())
    tiny.train(method, last=first)
    aligned, centroids = tiny.copied(method.net.state_dict()), method.memory["centroids"].clone()
    assert centroids.abs().sum() > 0
    tiny.train(method, first)
    assert tiny.same(dict(method.nets["teacher"].state_dict()), aligned)
    assert torch.equal(method.memory["centroids"], centroids)
    assert not tiny.same(dict(method.net.state_dict()), aligned)


@pytest.mark.parametrize("last", [1, 2, 3])
def test_a_resumed_self_training_goes_on_as_if_nothing_had_happened(last, tiny_task):
    whole, half = (make("dsbn fresh student", tiny_task, short(epochs=4)) for _ in range(2))
    tiny.train(whole)
    tiny.train(half, last=last)
    resumed = make("dsbn fresh student", tiny_task, short(epochs=4))
    resumed.load(tiny.copied(half.state()))
    tiny.train(resumed, last)
    assert tiny.same(resumed.state(), whole.state())


def test_alignment_is_weighted_for_the_classifier_and_plain_for_the_discriminators(tiny_task):
    method, ramp = make("dsbn", tiny_task, short()), 0.6
    method.nets.double()
    method.memory["centroids"] = old = torch.from_numpy(draws(4, 3, 3))
    aligned = [torch.from_numpy(draws(8, 3, seed=k)).requires_grad_() for k in range(4)]
    labels, discriminators = 4 * [torch.arange(8) % 3], method.nets["discriminators"]
    loss = method.alignment(aligned, labels, ramp)
    adversarial = sum(domain_loss(d, f, aligned[-1]) for d, f in zip(discriminators, aligned, strict=False)) / 3
    *known, unknown = map(moving_centroids, old, aligned, labels)
    semantic = sum((c - unknown).square().mean() for c in known) / 3
    wanted = ramp * (semantic - 0.1 / 2 * adversarial)
    for of, expected in (aligned, wanted), (list(discriminators.parameters()), adversarial):
        torch.testing.assert_close(*(torch.autograd.grad(x, of, retain_graph=True) for x in (loss, expected)))


def scattered(task: Task) -> Joint:
    """DSBN whose teacher and student, and all their branches, disagree on the target."""
    method = make("dsbn", task, short(batch_size=16))
    torch.manual_seed(6)
    for parameter in method.nets.parameters():
        nn.init.normal_(parameter)
    for net in (method.nets["teacher"], method.net):
        for branch in (branch for norm in norms_of(net) for branch in norm.branches):
            branch.momentum = 1  # the last batch's statistics: with the initial ones all samples would look alike
        for domain in range(4):
            enter(net, domain)(first_batches(method)[1])
    return method


def test_the_target_is_aligned_by_the_answers_of_its_branch(tiny_task, monkeypatch):
    method, told = scattered(tiny_task), []
    monkeypatch.setattr(method, "alignment", lambda aligned, labels, ramp: told.extend(labels) or 0)
    (sources, target), _ = first_batches(method), losses_of_a_step(method)
    answers = [enter(method.net.eval(), k)(target).argmax(-1) for k in (0, 3)]
    torch.testing.assert_close(told, [*(batch.y for batch in sources), answers[1]])
    assert not torch.equal(*answers)


def test_alignment_sets_in_after_the_warm_up(tiny_task, monkeypatch):
    method, ramps = configured("dsbn", tiny_task, warm_up=0.25, **SMALL), []
    monkeypatch.setattr(method, "alignment", lambda aligned, labels, ramp: ramps.append(ramp) or 0)
    for progress in (0, 0.25, 0.75):
        losses_of_a_step(method, progress)
    assert ramps == [0, 0, dann_ramp(0.5)]


@pytest.mark.parametrize("progress", [0.1, 0.2, 1])
def test_pseudo_labels_pass_from_the_teacher_to_the_student(progress, tiny_task):
    """Both asked by the target's branch; until the warm-up of a tenth is over, the teacher alone."""
    method, ramp = scattered(tiny_task), dann_ramp(progress - 0.1)
    (sources, target), ((loss, _),) = first_batches(method), losses_of_a_step(method, progress, SELF_TRAINING)
    teacher, student = (enter(method.nets[name].eval(), 3)(target) for name in ("teacher", "net"))
    labels = [*(batch.y for batch in sources), ((1 - ramp) * teacher + ramp * student).argmax(-1)]
    method.nets.train()
    logits = [enter(method.net, k)(x) for k, x in enumerate([*(batch.x for batch in sources), target])]
    *known, unknown = map(F.cross_entropy, logits, labels)
    torch.testing.assert_close(loss, sum(known) / 3 + unknown)


def test_a_student_learns_at_its_own_rate(tiny_task):
    method = make("dsbn", tiny_task, short(epochs=4))
    for number, stage in enumerate(method.stages()):
        tiny.train(method, number, number + 1)
        rate = method.trainer.learning_rate(stage, len(stage) - 1) * (0.2 if stage.phase == SELF_TRAINING else 1)
        assert [group["lr"] for group in method.party.optimiser.param_groups] == [pytest.approx(rate)]


def test_dsbn_is_scored_with_the_branch_of_the_target(tiny_task):
    method, test = make("dsbn", tiny_task, short()), tiny_task.target.test
    tiny.train(method)
    scored = method.predict(test)
    enter(method.net, 0)
    assert not torch.equal(method.trainer.predict(method.net, test), scored)
    assert torch.equal(method.predict(test), scored)


# --- adaptation does something ----------------------------------------------------------------------------------------


def blobs(size: int, domain: int, seed: int) -> Part:
    """Three classes in nine features. Features 0 to 2 tell the class in all domains; 3 to 5 tell it louder.

    In the target (domain 3) a constant is added to feature 3, which says *class 0* in the sources: a classifier of the
    sources calls many target samples class 0. As the constant gives the target away, whoever aligns the domains must
    stop using feature 3, and can: the others suffice. Features 6 to 8 tell the sources apart and mean nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(size) % 3
    x = 0.5 * torch.randn(size, 9, generator=generator)
    x += torch.cat([1.5 * torch.eye(3)[y], 2 * torch.eye(3)[y], torch.zeros(size, 3)], 1)
    x[:, 3 if domain == 3 else 6 + domain] += 2.5 if domain == 3 else 1
    return Part(x, y)


@cache
def shifted_task() -> Task:
    domains = [Domain(f"domain {i}", blobs(240, i, i), blobs(240, i, 10 + i)) for i in range(4)]
    return Task("blobs", tuple(domains[:3]), domains[3], ("a", "b", "c"), "0" * 64)


def target_accuracy(method) -> float:
    tiny.train(method)
    test = method.task.target.test
    return (method.predict(test).argmax(-1) == test.y).double().mean().item()


@cache
def unadapted() -> float:
    method, task = METHODS["source-only"], shifted_task()
    config = method.Config(budget="joint")  # a batch of every source in each step, as the others have it
    return target_accuracy(method(task, config, Trainer(TRAINING, tiny.CPU, 0), Channel(task.target.name)))


@every_variant
def test_adaptation_beats_source_only(variant):
    assert 0.5 < unadapted() < 0.85  # above chance, and with something left to gain
    assert target_accuracy(make(variant, shifted_task())) > unadapted() + 0.1
