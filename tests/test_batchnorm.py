"""BatchNorm MMD: the loss, its closed form and the moments they are made of."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kd3a.batchnorm import adapt, capture_moments, closed_form, mmd, mmd_loss, second_moment, stack_statistics

quick = settings(max_examples=50, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def random_statistics(seed: int, models: int, channels: int, layers=("first", "second")):
    """Per layer, means and variances of several models (K + 1, C), and domain weights (K + 1,)."""
    rng = np.random.default_rng(seed)
    means = {layer: rng.normal(0, 3, (models, channels)) for layer in layers}
    variances = {layer: rng.gamma(2, 1, (models, channels)) for layer in layers}
    return means, variances, rng.dirichlet(np.ones(models))


def tensors(arrays: dict, dtype=torch.float64) -> dict:
    return {layer: torch.as_tensor(array, dtype=dtype) for layer, array in arrays.items()}


def moments(features: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(features.mean(0)), torch.from_numpy((features**2).mean(0))


# --- the closed form ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
@pytest.mark.parametrize("models", [1, 2, 6])
def test_closed_form_is_the_formula(models, dtype, tolerance):
    means, variances, alpha = random_statistics(models, models, 7, ["layer"])
    stacks = [torch.as_tensor(a, dtype=dtype) for a in (means["layer"], variances["layer"], alpha)]
    for ours, theirs in zip(
        closed_form(*stacks), reference.closed_form(means["layer"], variances["layer"], alpha), strict=True
    ):
        assert ours.shape == (7,) and ours.dtype == dtype
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@given(seed=seeds, sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5))
@quick
def test_closed_form_gives_the_statistics_of_the_pooled_data(seed, sizes):
    rng = np.random.default_rng(seed)
    domains = [rng.normal(rng.normal(0, 5), rng.gamma(2), (size, 3)) for size in sizes]
    means, variances = (torch.from_numpy(np.stack([f(d, axis=0) for d in domains])) for f in (np.mean, np.var))
    mean, variance = closed_form(means, variances, torch.tensor(sizes, dtype=torch.float64) / sum(sizes))
    pooled = np.concatenate(domains)
    np.testing.assert_allclose(mean, pooled.mean(0), atol=1e-10)
    np.testing.assert_allclose(variance, pooled.var(0), atol=1e-9)


@given(seed=seeds, models=st.integers(1, 5), layers=st.integers(1, 3))
@quick
def test_closed_form_minimises_the_loss(seed, models, layers):
    """The loss is a parabola in the moments: no slope at the closed form, and each step d away costs |d|^2."""
    names = [f"layer{i}" for i in range(layers)]
    means, variances, alpha = random_statistics(seed, models, 4, names)
    means, variances, alpha = tensors(means), tensors(variances), torch.from_numpy(alpha)
    batch = {}
    for layer in names:
        mean, variance = closed_form(means[layer], variances[layer], alpha)
        batch[layer] = mean.requires_grad_(), second_moment(mean, variance).detach().requires_grad_()
    best = mmd_loss(batch, means, variances, alpha)
    for slope in torch.autograd.grad(best, [moment for pair in batch.values() for moment in pair]):
        torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-9, rtol=0)
    step = torch.from_numpy(np.random.default_rng(seed + 1).normal(size=(layers, 2, 4)))
    moved = {layer: (batch[layer][0] + d[0], batch[layer][1] + d[1]) for layer, d in zip(names, step, strict=True)}
    torch.testing.assert_close(mmd_loss(moved, means, variances, alpha) - best, step.square().sum(), atol=1e-7, rtol=0)


def test_variance_holds_the_spread_of_the_means():
    mean, variance = closed_form(torch.tensor([[0.0], [4.0]]), torch.tensor([[1.0], [2.0]]), torch.tensor([0.75, 0.25]))
    assert (mean.item(), variance.item()) == (1.0, 1.25 + 3.0)


def test_closed_form_keeps_its_digits_in_single_precision():
    means, variances = torch.tensor([[1000.0], [1000.5]]), torch.tensor([[0.01], [0.03]])
    assert closed_form(means, variances, torch.tensor([0.5, 0.5]))[1].item() == pytest.approx(0.0825, rel=1e-5)


# --- the distance and the loss --------------------------------------------------------------------------------------


@given(seed=seeds)
@quick
def test_distance_is_the_quadratic_kernels_for_one_feature(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0, 1, (9, 1)), rng.normal(rng.normal(), 2, (6, 1))
    assert mmd(*moments(a), *moments(b)).item() == pytest.approx(reference.kernel_mmd(a, b), abs=1e-9, rel=1e-9)


@given(seed=seeds)
@quick
def test_distance_leaves_out_the_products_of_different_features(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0, 1, (9, 3)), rng.normal(rng.normal(), 2, (6, 3))
    products = (a.T @ a / len(a) - b.T @ b / len(b)) ** 2
    expected = reference.kernel_mmd(a, b) - products.sum() + np.trace(products)
    assert mmd(*moments(a), *moments(b)).item() == pytest.approx(expected, abs=1e-8, rel=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
@pytest.mark.parametrize("models", [1, 2, 5])
def test_loss_is_the_formula(models, dtype, tolerance):
    means, variances, alpha = random_statistics(models, models, 6)
    rng = np.random.default_rng(models)
    batch = {layer: (rng.normal(size=6), rng.gamma(2, 1, 6)) for layer in means}
    ours = {layer: tuple(torch.as_tensor(moment, dtype=dtype) for moment in pair) for layer, pair in batch.items()}
    loss = mmd_loss(ours, tensors(means, dtype), tensors(variances, dtype), torch.as_tensor(alpha, dtype=dtype))
    assert loss.shape == () and loss.dtype == dtype
    assert loss.item() == pytest.approx(reference.mmd_loss(batch, means, variances, alpha), rel=tolerance)
    by_distance = sum(
        weight * mmd(*ours[layer], mean, second_moment(mean, variance))
        for layer in ours
        for weight, mean, variance in zip(
            alpha, tensors(means, dtype)[layer], tensors(variances, dtype)[layer], strict=True
        )
    )
    assert loss.item() == pytest.approx(by_distance.item(), rel=tolerance)


# --- real networks --------------------------------------------------------------------------------------------------


@pytest.fixture
def net():
    torch.manual_seed(0)
    convolution = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return nn.Sequential(convolution, nn.Linear(64, 5), nn.BatchNorm1d(5))


def hooks(net: nn.Module) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in net.modules())


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_captured_moments_are_those_of_the_batchnorm_inputs(net, mode):
    getattr(net, mode)()
    x = 2 + torch.randn(8, 3, 6, 6)
    with capture_moments(net) as captured:
        net(x)
    assert hooks(net) == 0
    inputs = {"0.1": net[0][0](x).transpose(0, 1).flatten(1).T, "2": net[1](net[0](x))}  # samples first, (M, C)
    assert captured.keys() == inputs.keys()
    for layer, features in inputs.items():
        mean, second = captured[layer]
        torch.testing.assert_close(mean, features.mean(0))
        torch.testing.assert_close(second, (features**2).mean(0))
    net(x - 5)  # outside the block nothing is recorded any more
    torch.testing.assert_close(captured["0.1"][0], inputs["0.1"].mean(0))


def test_hooks_are_removed_after_an_error(net):
    with pytest.raises(RuntimeError), capture_moments(net):
        net(torch.randn(8, 1, 6, 6))
    assert hooks(net) == 0


def test_the_loss_trains_the_layers_before_the_batchnorm(net):
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with capture_moments(net) as captured:
        net(torch.randn(8, 3, 6, 6))
    mmd_loss(captured, *stack_statistics([state, state]), torch.tensor([0.5, 0.5])).backward()
    assert all(layer.weight.grad.abs().sum() > 0 for layer in (net[0][0], net[1]))


def test_statistics_of_several_models_are_stacked_by_layer(net):
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net(torch.randn(8, 3, 6, 6))
    means, variances = stack_statistics([before, net.state_dict()])
    assert means.keys() == variances.keys() == {"0.1", "2"}
    for layer, bn in (("0.1", net[0][1]), ("2", net[2])):
        torch.testing.assert_close(means[layer], torch.stack([torch.zeros_like(bn.running_mean), bn.running_mean]))
        torch.testing.assert_close(variances[layer], torch.stack([torch.ones_like(bn.running_var), bn.running_var]))


def test_adapt_forgets_the_source_and_takes_the_mean_over_batches():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    net(5 + torch.randn(50, 3))  # another domain leaves its statistics
    batches = torch.randn(6, 20, 3)
    with torch.no_grad():
        features = net[0](batches)
    adapt(net, batches)
    torch.testing.assert_close(net[1].running_mean, features.mean((0, 1)))
    torch.testing.assert_close(net[1].running_var, features.var(1).mean(0))
    assert net[1].momentum == 0.1
