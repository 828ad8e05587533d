"""Domain weights against the formulas of the paper and of the released code."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kd3a.consensus import consensus_focus
from kd3a.weighting import domain_weights, smooth

quick = settings(max_examples=50, deadline=None, derandomize=True)
both_variants = pytest.mark.parametrize("variant", ["paper", "official"])
values = st.floats(-100, 100, allow_subnormal=False).map(lambda v: 0.0 if abs(v) < 1e-9 else v)
share = st.floats(0, 1)
source = st.tuples(values, st.integers(1, 10**5))  # a CF value and a size N_k
some_sources = st.lists(source, min_size=1, max_size=6)


def split(sources) -> tuple[torch.Tensor, list[int]]:
    return torch.tensor([cf for cf, _ in sources], dtype=torch.float64), [size for _, size in sources]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sources", [1, 2, 5])
def test_weights_are_the_formulas(sources, dtype):
    rng = np.random.default_rng(sources)
    focus, sizes = rng.normal(1, 1, sources), rng.integers(100, 5000, sources).tolist()
    tensor = torch.from_numpy(focus).to(dtype)
    tolerance = {"rtol": 1e-5 if dtype == torch.float32 else 1e-12, "atol": 1e-12}
    alpha = domain_weights(tensor, sizes, 700)
    assert alpha.shape == (sources + 1,) and alpha.dtype == dtype
    np.testing.assert_allclose(alpha, reference.domain_weights(focus, sizes, 700), **tolerance)
    positive = np.abs(focus)  # the released code's Shapley values never are negative
    alpha = domain_weights(tensor.abs(), sizes, 700, "official", gated_share=0.75)
    assert alpha.shape == (sources + 1,) and alpha.dtype == dtype
    np.testing.assert_allclose(alpha, reference.official_weights(positive, 0.75), **tolerance)


@both_variants
@given(sources=some_sources, target_size=st.integers(1, 10**5), gated_share=share)
@quick
def test_weights_are_a_distribution(variant, sources, target_size, gated_share):
    alpha = domain_weights(*split(sources), target_size, variant, gated_share)
    assert alpha.shape == (len(sources) + 1,)
    assert (alpha >= 0).all()
    assert alpha.sum().item() == pytest.approx(1)


@both_variants
@given(data=st.data(), sources=some_sources)
@quick
def test_order_of_the_sources_does_not_matter(variant, data, sources):
    order = data.draw(st.permutations(range(len(sources))))
    permuted = domain_weights(*split([sources[k] for k in order]), 500, variant)
    torch.testing.assert_close(permuted, domain_weights(*split(sources), 500, variant)[[*order, len(sources)]])


@both_variants
@given(sources=some_sources)
@quick
def test_negative_focus_counts_as_zero(variant, sources):
    focus, sizes = split(sources)
    alpha = domain_weights(focus, sizes, 500, variant)
    torch.testing.assert_close(alpha, domain_weights(focus.clamp(min=0), sizes, 500, variant))
    if (focus > 0).any():
        assert ((alpha[:-1] > 0) == (focus > 0)).all()


@pytest.mark.parametrize("focus", [[0.0, 0.0, 0.0], [-1.0, 0.0, -2.0]])
def test_without_any_focus_sizes_decide(focus):
    sizes = [100, 300, 200]
    assert domain_weights(torch.tensor(focus), sizes, 400).tolist() == pytest.approx([0.1, 0.3, 0.2, 0.4])
    uniform = domain_weights(torch.tensor(focus), sizes, 400, "official", gated_share=0.4)
    assert uniform.tolist() == pytest.approx([0.3, 0.3, 0.3, 0.1])
    np.testing.assert_allclose(uniform, reference.official_weights([0.0] * 3, 0.4), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.1, 0.6, 0.3]),
        ({"size_factor": False}, [0.7 / 3, 1.4 / 3, 0.3]),
        ({"target_share": "gated", "gated_share": 0.9}, [0.1, 0.6, 0.3]),
        ({"target_share": "gated", "gated_share": 0.0}, [1 / 7, 6 / 7, 0.0]),
        ({"variant": "official", "gated_share": torch.tensor(0.3)}, [0.3, 0.6, 0.1]),
        ({"variant": "official", "size_factor": True, "gated_share": 0.9}, [0.1, 0.6, 0.3]),
        ({"variant": "official", "target_share": "size"}, [0.7 / 3, 1.4 / 3, 0.3]),
    ],
)
def test_target_comes_last_and_each_switch_turns_one_difference(options, expected):
    alpha = domain_weights(torch.tensor([1.0, 2.0]), [100, 300], target_size=400 * 3 / 7, **options)
    assert alpha.tolist() == pytest.approx(expected)


def test_a_teacher_whose_removal_improves_the_consensus_gets_no_weight():
    q = torch.tensor([[[0.6, 0.4, 0.0], [0.6, 0.4, 0.0], [0.0, 0.55, 0.45]]] * 3 + [[[0.9, 0.1, 0.0]] * 3])
    focus = consensus_focus(q, 0.5)
    assert focus[2] < 0 < focus[0]
    assert domain_weights(focus, [100, 100, 100], 100).tolist() == pytest.approx([0.375, 0.375, 0.0, 0.25])


@given(sources=some_sources, gated_share=share)
@quick
def test_released_code_rounds_each_weight(sources, gated_share):
    focus = split(sources)[0].abs()
    ours = smooth(domain_weights(focus, [1] * len(focus), 1, "official", gated_share), None, 0.9, decimals=4)
    theirs = reference.official_weights(focus.tolist(), gated_share, decimals=4)
    # it rounds the target's weight first: the last digit of a source may differ by one
    np.testing.assert_allclose(ours, theirs, atol=1.001e-4)
    assert ours[-1].item() == pytest.approx(theirs[-1], abs=1e-9)


def test_moving_average_starts_with_the_first_weights():
    first, second = torch.tensor([0.2, 0.8]), torch.tensor([0.6, 0.4])
    assert smooth(first, None, 0.9).tolist() == pytest.approx([0.2, 0.8])
    assert smooth(second, first, 0.9).tolist() == pytest.approx([0.24, 0.76])
    assert smooth(second, first, 0.0).tolist() == pytest.approx([0.6, 0.4])


def test_moving_average_rounds_before_and_after():
    new, previous = torch.tensor([0.12346], dtype=torch.float64), torch.tensor([0.5002], dtype=torch.float64)
    assert smooth(new, None, 0.1, 4).item() == pytest.approx(0.1235, abs=1e-12)
    # 0.1 * 0.5002 + 0.9 * 0.1235 = 0.16117; from the unrounded 0.12346 it would be 0.16113
    assert smooth(new, previous, 0.1, 4).item() == pytest.approx(0.1612, abs=1e-12)
