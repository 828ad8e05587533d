"""What the tutorial's later chapters are made of: gradient leakage, the quadratic kernel, FedProx and figures."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kd3a import batchnorm, leakage, models, plots_rounds
from kd3a.channel import Channel
from kd3a.errors import UserError
from kd3a.methods import METHODS
from kd3a.trainer import Trainer

SMALL = (3, 8, 8)
TRAINING = tiny.TRAINING.model_copy(update={"model": "small"})


# --- leakage ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def net() -> models.Net:
    return models.build("cnn-sigmoid", SMALL, 3, seed=0)


def batch(size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(size, *SMALL, generator=generator), torch.randint(3, (size,), generator=generator)


def test_the_network_is_the_attack_authors(net):
    """Strides 2, 2, 1 and 12 channels, so that 32×32 gives 768 features; weights uniform in [-0.5, 0.5]."""
    large = models.build("cnn-sigmoid", (3, 32, 32), 10, seed=0)
    assert large.features == 768 and large(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    weights = torch.cat([p.detach().flatten() for p in large.parameters()])
    assert weights.abs().max() <= 0.5 and weights.std() == pytest.approx(12**-0.5, rel=0.05)
    odd = models.build("cnn-sigmoid", (3, 30, 31), 10, seed=0)
    assert odd(torch.zeros(1, 3, 30, 31)).shape == (1, 10)


def test_the_gradient_is_that_of_the_mean_cross_entropy(net):
    x, y = batch(4)
    loss = torch.nn.functional.cross_entropy(net(x), y)
    expected = torch.autograd.grad(loss, list(net.parameters()))
    for probabilities in (y, torch.nn.functional.one_hot(y, 3).float()):
        got = leakage.gradient(net, x, probabilities)
        assert list(got) == [n for n, _ in net.named_parameters()]
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got.values(), expected, strict=True))


def test_an_update_of_one_step_is_its_gradient(net):
    grads = leakage.gradient(net, *batch(4))
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    after = {n: p - 0.05 * grads[n] for n, p in before.items()}
    seen = leakage.update_as_gradient(before, after, 0.05)
    assert leakage.cosine_distance(seen, grads).item() == pytest.approx(0, abs=1e-5)
    assert leakage.squared_distance(seen, grads).item() == pytest.approx(0, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 10))
def test_distances_of_gradients(seed, factor):
    generator = torch.Generator().manual_seed(seed)
    a, b = ({n: torch.randn(4, generator=generator) for n in "wv"} for _ in range(2))
    scaled = {n: factor * t for n, t in a.items()}
    assert leakage.squared_distance(a, b) == pytest.approx(leakage.squared_distance(b, a).item())
    assert leakage.squared_distance(a, scaled).item() == pytest.approx(
        (factor - 1) ** 2 * leakage.squared_distance(a, {n: 0 * t for n, t in a.items()}).item(), rel=1e-4, abs=1e-9
    )
    assert leakage.cosine_distance(scaled, b).item() == pytest.approx(leakage.cosine_distance(a, b).item(), abs=1e-5)
    assert -1e-6 <= leakage.cosine_distance(a, b).item() <= 2 + 1e-6


def test_the_objective_adds_the_total_variation(net):
    x, y = batch(1)
    observed = leakage.gradient(net, x, y)
    rough = leakage.objective(net, observed, leakage.cosine_distance, smoothness=0.5)(x, y)
    assert leakage.objective(net, observed)(x, y).item() == pytest.approx(0, abs=1e-9)
    assert rough.item() == pytest.approx(0.5 * leakage.total_variation(x).item(), abs=1e-5)
    assert leakage.total_variation(torch.full((1, 3, 4, 4), 0.3)) == 0


@pytest.mark.parametrize("attack", [leakage.dlg, leakage.idlg])
def test_an_image_is_recovered_from_its_gradient(net, attack):
    x, y = batch(1, seed=1)
    frames = []
    found = attack(net, leakage.gradient(net, x, y), x.shape, steps=30, seed=0, on_step=frames.append)
    assert found.labels.tolist() == y.tolist()
    assert found.loss < 1e-3 * found.trace[0] and len(frames) == len(found.trace) - 1
    assert leakage.fidelity(x[0], found.x[0].clamp(0, 1))["psnr"] > 20
    assert leakage.fidelity(x[0], frames[0][0].clamp(0, 1))["psnr"] < 12


def test_an_attack_is_determined_by_its_seed(net):
    observed = leakage.gradient(net, *batch(1))
    one, same, other = (leakage.dlg(net, observed, (1, *SMALL), steps=2, seed=s).x for s in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_the_sum_of_many_gradients_gives_no_image(net):
    x, y = batch(64)
    found = leakage.dlg(net, leakage.gradient(net, x, y), (1, *SMALL), steps=8)
    ((_, nearest),) = leakage.matched(x, found.x.clamp(0, 1))
    assert leakage.fidelity(x[nearest], found.x[0].clamp(0, 1))["psnr"] < 15


def test_the_label_of_one_image_is_in_the_last_layer(net):
    for seed in range(20):
        x, y = batch(1, seed)
        assert leakage.label_of(leakage.gradient(net, x, y)) == y.item()
    with pytest.raises(UserError, match="use dlg"):
        leakage.idlg(net, leakage.gradient(net, *batch(2)), (2, *SMALL))


def test_fidelity_of_equal_and_of_shifted_images():
    image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0)) * 0.5
    assert leakage.fidelity(image, image) == {"mse": 0.0, "psnr": float("inf"), "ssim": pytest.approx(1.0)}
    worse = leakage.fidelity(image, image + 0.1)
    assert worse["mse"] == pytest.approx(0.01, rel=1e-4) and worse["psnr"] == pytest.approx(20, abs=0.01)
    assert leakage.pixels(torch.tensor([-3.0, 0.0, 3.0]), 0.5, 0.5).tolist() == [0.0, 0.5, 1.0]


def test_a_batch_is_matched_whatever_its_order():
    truth = torch.rand(5, *SMALL, generator=torch.Generator().manual_seed(0))
    order = [3, 0, 4]
    assert leakage.matched(truth, truth[order] + 0.01) == list(enumerate(order))


# --- the quadratic kernel ---------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 9), st.integers(2, 9))
def test_moments_are_the_kernel_channel_by_channel(seed, channels, n, m):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(n, channels, generator=generator, dtype=torch.float64)
    b = 1 + 2 * torch.randn(m, channels, generator=generator, dtype=torch.float64)
    by_moments = batchnorm.mmd(a.mean(0), a.square().mean(0), b.mean(0), b.square().mean(0))
    by_channel = sum(batchnorm.kernel_mmd(a[:, [c]], b[:, [c]]) for c in range(channels))
    assert by_channel.item() == pytest.approx(by_moments.item(), rel=1e-9, abs=1e-9)
    cross = (a.T @ a / n - b.T @ b / m).square()
    whole = by_moments + cross.sum() - cross.diagonal().sum()
    assert batchnorm.kernel_mmd(a, b).item() == pytest.approx(whole.item(), rel=1e-9, abs=1e-9)


# --- FedProx ----------------------------------------------------------------------------------------------------------


def trained(name: str, task, **config) -> dict[str, torch.Tensor]:
    method = METHODS[name]
    method = method(task, method.Config(**config), Trainer(TRAINING, tiny.CPU, 0), Channel(task.target.name))
    tiny.train(method)
    return method.net.state_dict()


def test_fedprox_without_pull_is_fedavg(tiny_task):
    assert tiny.same(trained("fedprox", tiny_task, proximal=0.0), trained("fedavg", tiny_task))


def test_the_pull_of_fedprox_keeps_sources_close(tiny_task):
    def distance(proximal: float) -> float:
        method = METHODS["fedprox"]
        trainer = Trainer(TRAINING, tiny.CPU, 0)
        method = method(tiny_task, method.Config(proximal=proximal), trainer, Channel(tiny_task.target.name))
        shared = method.broadcast()
        before = {n: t.clone() for n, t in shared["params"].items()}
        party = next(iter(method.sources.values()))
        after = method.local(party, method.stages()[0], shared)["params"]
        return sum((after[n] - t).square().sum().item() for n, t in before.items())

    near, middle, free = (distance(mu) for mu in (10.0, 1.0, 0.0))
    assert near < middle < free


# --- figures ----------------------------------------------------------------------------------------------------------


def teachers(samples: int = 40, number: int = 3, classes: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.softmax(5 * torch.randn(samples, number, classes, generator=generator), -1)


def test_figures_of_statistics(drawn):
    means, variances = torch.tensor([0.0, 1.0, 3.0]), torch.tensor([1.0, 2.0, 1.0])
    alpha, path = torch.tensor([0.5, 0.3, 0.2]), torch.stack([torch.linspace(3, 1, 6), torch.linspace(1, 2, 6)], 1)
    drawn(lambda: plots_rounds.moving_statistics(means, variances, alpha, path, [5, 4, 3, 2], list("abc")), "moving")
    q = {"own": teachers(), "target": teachers().flip(0)}
    drawn(lambda: plots_rounds.first_choices(q, list("abc"), list("01234")), "choices")


@pytest.mark.parametrize("number", [1, 3, 6])
def test_the_vote_over_rounds(drawn, number):
    q, y = teachers(number=number), torch.arange(40) % 5
    facts = plots_rounds.vote_summary(q, 0.8, y)
    levels = [facts[f"supporters {k}"] for k in range(number + 1)]
    assert sum(levels) == pytest.approx(1) and all(0 <= v <= 1 for v in facts.values())
    assert facts["teacher 0"] == (q[:, 0].argmax(-1) == y).double().mean()
    history = pd.DataFrame([facts | {"average model": 0.5}] * 4)
    drawn(lambda: plots_rounds.vote_over_rounds(history, [f"source {k}" for k in range(number)]), "vote")


def test_a_perfect_vote_is_summed_up_as_one():
    y = torch.arange(10) % 5
    q = torch.nn.functional.one_hot(y, 5).float()[:, None].expand(-1, 3, -1)
    facts = plots_rounds.vote_summary(q, 0.9, y)
    assert facts["consensus"] == facts["consensus (weighted)"] == facts["supporters 3"] == 1
    assert np.allclose(plots_rounds.prediction_shares(q), 0.2)


def test_features_on_the_plane(drawn):
    """Two groups far apart stay apart; with fewer samples than the perplexity asks for it still works."""
    features = torch.cat([torch.randn(20, 5, generator=torch.Generator().manual_seed(0)) + shift for shift in (0, 50)])
    labels = torch.arange(2).repeat_interleave(20)
    at = plots_rounds.embedded(features, seed=1)
    assert at.shape == (40, 2) and np.array_equal(at, plots_rounds.embedded(features, seed=1))
    assert plots_rounds.same_class_neighbours(torch.from_numpy(at), labels) == 1
    assert plots_rounds.same_class_neighbours(features, torch.arange(40)) == 0
    drawn(lambda: plots_rounds.feature_map({"before": at, "after": -at}, labels, ["0", "1"]), "features")


def test_figures_of_communication(drawn):
    drawn(lambda: plots_rounds.round_borders([0.5, 1, 5], 4, 10), "rounds")
    floats = pd.DataFrame({"kind": ["params", "params", "stats"], "bytes": [4000, 40, 8]}, index=list("abc"))
    drawn(lambda: plots_rounds.message_bars(floats), "message")
    svg = drawn(lambda: plots_rounds.image_row({"one": torch.zeros(3, 8, 8), "two": torch.ones(3, 8, 8)}), "images")
    assert svg.count("<image") == 2
