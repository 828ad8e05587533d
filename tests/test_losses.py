"""Distillation, mixup and the schedules against NumPy and at their end points."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kd3a.losses import beta_draws, confidence_gate, cosine, distillation, mixup, soft_cross_entropy

both_dtypes = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
both_schedules = pytest.mark.parametrize("schedule", [cosine, confidence_gate])
quick = settings(max_examples=50, deadline=None, derandomize=True)
progress = st.floats(0, 1)


@pytest.fixture
def batch():
    """Logits (B, C), consensus (B, C) with some one-hot rows, and n_p (B,)."""
    rng = np.random.default_rng(0)
    p = np.concatenate([rng.dirichlet(np.ones(5), 9), np.eye(5)[:3]])
    return 4 * rng.normal(size=p.shape), p, rng.choice([0.001, 1.0, 2.0, 3.0], len(p))


@both_dtypes
def test_distillation_is_n_times_kl(batch, dtype, tolerance):
    loss = distillation(*(torch.as_tensor(a, dtype=dtype) for a in batch))
    assert loss.shape == () and loss.dtype == dtype
    assert loss.item() == pytest.approx(reference.distillation(*batch).mean(), rel=tolerance)


@both_dtypes
def test_cross_entropy_is_kl_plus_the_entropy_of_the_labels(batch, dtype, tolerance):
    logits, p, n = batch
    entropy = np.array([-sum(v * math.log(v) for v in row if v > 0) for row in p])
    ours = soft_cross_entropy(torch.as_tensor(logits, dtype=dtype), torch.as_tensor(p, dtype=dtype))
    np.testing.assert_allclose(ours, reference.distillation(logits, p, np.ones_like(n)) + entropy, rtol=tolerance * 10)


def test_a_student_that_has_the_consensus_pays_nothing(batch):
    logits, _, n = (torch.from_numpy(a) for a in batch)
    logits.requires_grad_()
    loss = distillation(logits, logits.detach().softmax(-1), n)
    assert loss.item() == pytest.approx(0, abs=1e-12)
    assert torch.autograd.grad(loss, logits)[0].abs().max() < 1e-12


@pytest.mark.parametrize("shape", [(6, 5), (6, 3, 4, 4)])
def test_mixup_ends_and_middle(shape):
    x, partner = torch.randn(shape, generator=torch.Generator().manual_seed(0)), torch.tensor([5, 3, 1, 0, 2, 4])
    assert torch.equal(mixup(x, partner, torch.tensor(1.0)), x)
    assert torch.equal(mixup(x, partner, torch.tensor(0.0)), x[partner])
    torch.testing.assert_close(mixup(x, partner, torch.tensor(0.25)), x[partner] + 0.25 * (x - x[partner]))


def test_mixed_labels_give_the_mixed_loss(batch):
    """Cross-entropy is linear in the labels, so mixing labels is mixing losses."""
    logits, p, _ = (torch.from_numpy(a) for a in batch)
    partner, lam = torch.arange(len(p)).roll(1), torch.tensor(0.3, dtype=p.dtype)
    mixed = lam * soft_cross_entropy(logits, p) + (1 - lam) * soft_cross_entropy(logits, p[partner])
    torch.testing.assert_close(soft_cross_entropy(logits, mixup(p, partner, lam)), mixed)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.0])
def test_beta_draws_have_the_moments_of_beta(alpha):
    draws = beta_draws(20_000, alpha, torch.Generator().manual_seed(3))
    assert draws.shape == (20_000,) and draws.dtype == torch.float32
    assert ((draws >= 0) & (draws <= 1)).all()
    variance = 1 / (4 * (2 * alpha + 1))
    assert draws.mean().item() == pytest.approx(0.5, abs=5 * math.sqrt(variance / 20_000))
    assert draws.var().item() == pytest.approx(variance, rel=0.03)


def test_beta_draws_follow_their_generator():
    first, again, other = (beta_draws(50, 0.2, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(9)  # the global state plays no part
    assert torch.equal(beta_draws(50, 0.2, generator), first)
    assert not torch.equal(beta_draws(50, 0.2, generator), first)


@both_schedules
@pytest.mark.parametrize(("begin", "end"), [(0.05, 0.001), (0.8, 0.95), (0.9, 0.9)])
def test_schedules_meet_their_ends_and_middle(schedule, begin, end):
    assert schedule(0.0, begin, end) == pytest.approx(begin)
    assert schedule(0.5, begin, end) == pytest.approx((begin + end) / 2)
    assert schedule(1.0, begin, end) == pytest.approx(end)


@both_schedules
@given(early=progress, late=progress)
@quick
def test_schedules_never_turn_back(schedule, early, late):
    early, late = sorted((early, late))
    assert 0.8 - 1e-12 <= schedule(early, 0.8, 0.95) <= schedule(late, 0.8, 0.95) + 1e-12 <= 0.95 + 2e-12


def test_cosine_is_the_annealing_of_torch():
    optimiser = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=10, eta_min=0.001)
    for step in range(11):
        assert cosine(step / 10, 0.05, 0.001) == pytest.approx(schedule.get_last_lr()[0])
        optimiser.step()
        schedule.step()


def test_the_last_round_stops_one_step_short_of_the_final_gate():
    gates = [confidence_gate(r / 10, 0.9, 0.95) for r in range(10)]  # g(e) of the released code
    np.testing.assert_allclose(np.diff(gates), 0.005)
    assert (gates[0], gates[-1]) == (pytest.approx(0.9), pytest.approx(0.945))
