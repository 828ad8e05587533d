"""The average of models: parameters, BatchNorm statistics and counters of real networks."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kd3a.aggregate import aggregate

RULES = ("closed-form", "plain")


def trained(seed: int) -> dict[str, torch.Tensor]:
    """State of a small network with BatchNorm that has seen ``seed + 2`` batches of its own domain."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3)
    )
    for _ in range(seed + 2):
        net(seed + (1 + seed) * torch.randn(16, 2, 4, 4))
    return net.state_dict()


def arrays(state: dict) -> dict:
    return {
        name: tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()
        for name, tensor in state.items()
    }


@pytest.fixture(scope="module")
def states():
    return [trained(seed) for seed in range(3)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("alpha", [[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
def test_average_is_the_formula(states, alpha, rule):
    merged = aggregate(states, torch.tensor(alpha), rule)
    expected = reference.aggregate([arrays(state) for state in states], alpha, rule)
    assert list(merged) == list(states[0])
    for name, tensor in merged.items():
        assert tensor.dtype == states[0][name].dtype and tensor.shape == states[0][name].shape
        np.testing.assert_allclose(tensor, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_closed_form_widens_every_variance(states):
    alpha = torch.tensor([0.2, 0.3, 0.5])
    wide, plain = (aggregate(states, alpha, rule) for rule in RULES)
    for name in states[0]:
        if name.endswith("running_var"):
            assert (wide[name] > plain[name]).all()
        else:
            assert torch.equal(wide[name], plain[name])
    assert torch.equal(aggregate(states, alpha)["1.running_var"], wide["1.running_var"])  # the default


@pytest.mark.parametrize("rule", RULES)
@given(shares=st.lists(st.integers(1, 100), min_size=1, max_size=6), seed=st.integers(0, 3))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_average_of_identical_models_is_that_model(rule, shares, seed):
    state = trained(seed)
    merged = aggregate([state] * len(shares), torch.tensor(shares) / sum(shares), rule)
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-5, atol=1e-6)
    assert merged["1.num_batches_tracked"].item() == seed + 2


def test_counters_are_those_of_the_first_model(states):
    for first in range(3):
        merged = aggregate([states[first], *states], torch.full((4,), 0.25))
        assert merged["5.num_batches_tracked"].item() == first + 2


@pytest.mark.parametrize("rule", RULES)
def test_average_is_loadable_and_shares_no_memory(rule):
    state = trained(1)
    kept = {name: tensor.clone() for name, tensor in state.items()}
    for tensor in aggregate([state], torch.ones(1), rule).values():
        tensor.zero_()
    assert all(torch.equal(state[name], kept[name]) for name in state)


@pytest.mark.parametrize("number", [2, 4])
def test_as_many_weights_as_models(states, number):
    with pytest.raises(ValueError, match=f"3 models need as many weights, not {number}"):
        aggregate(states, torch.ones(number) / number)
