"""Knowledge Vote and Consensus Focus against the paper's loops, and the properties that both promise."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kd3a import consensus
from kd3a.consensus import cast, check, consensus_focus, consensus_quality, knowledge_vote, supporters
from kd3a.errors import Diverged

GRID = 16  # property tests use multiples of 1/16: sums are exact, so a tie is a tie and the gate can be hit exactly
VALUES = ("leave-one-out", "shapley")
QUALITY = {"paper": reference.quality, "official": reference.official_quality}
TOLERANCE = {np.float32: {"rtol": 1e-4, "atol": 1e-5}, np.float64: {"rtol": 1e-10, "atol": 1e-12}}
quick = settings(max_examples=50, deadline=None, derandomize=True)
both_variants = pytest.mark.parametrize("variant", ["paper", "official"])
both_values = pytest.mark.parametrize("value", VALUES)


def random_teachers(kind: str, samples: int, teachers: int, classes: int, dtype=np.float64) -> np.ndarray:
    """*Rivals* have each a favourite class, and all the same second choice: their summed votes may elect the latter."""
    rng = np.random.default_rng([teachers, classes])
    if kind == "dirichlet":
        return rng.dirichlet(np.ones(classes), (samples, teachers)).astype(dtype)
    logits = rng.normal(size=(samples, teachers, classes))
    if kind == "rivals":
        logits = logits / 4 + 3 * np.eye(classes)[rng.integers(1, classes, (samples, teachers))]
        logits[..., 0] += 2.5
        return reference.softmax(logits).astype(dtype)
    return reference.softmax(3 * logits).astype(dtype)


@st.composite
def grid_teachers(draw, max_teachers: int = 4):
    """Predictions (N, K, C) and a gate, all multiples of 1/GRID."""
    shape = (draw(st.integers(1, 5)), draw(st.integers(1, max_teachers)), draw(st.integers(1, 3)))
    cuts = np.sort(draw(arrays(np.int64, shape, elements=st.integers(0, GRID))), axis=-1)
    q = np.diff(cuts, prepend=0, append=GRID) / GRID
    return torch.from_numpy(q), draw(st.integers(0, GRID)) / GRID


def one_sample(*predictions) -> torch.Tensor:
    return torch.tensor([predictions], dtype=torch.float64)


def reference_vote(q: torch.Tensor, gate: float, variant: str):
    if variant == "paper":
        return reference.knowledge_vote(q.numpy(), gate)
    return reference.official_vote(q.numpy(), gate)[1:]


def assert_vote(actual, expected, **tolerance) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, **tolerance)


# --- against the loops ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", [0.3, 0.5, 0.8, 0.95])
@pytest.mark.parametrize(("teachers", "classes"), [(1, 2), (2, 3), (3, 10), (5, 4)])
@pytest.mark.parametrize("kind", ["dirichlet", "softmax", "rivals"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@both_variants
def test_vote_and_focus_are_the_formulas(variant, dtype, kind, teachers, classes, gate):
    q = random_teachers(kind, 40, teachers, classes, dtype)
    ours = torch.from_numpy(q)
    p, n = knowledge_vote(ours, gate, variant)
    assert p.shape == (40, classes) and n.shape == (40,) and p.dtype == n.dtype == ours.dtype
    assert_vote((p, n), reference_vote(ours, gate, variant), **TOLERANCE[dtype])
    for value in VALUES:
        focus = consensus_focus(ours, gate, value, variant)
        assert focus.shape == (teachers,) and focus.dtype == ours.dtype
        np.testing.assert_allclose(
            focus, reference.consensus_focus(q, gate, value, QUALITY[variant]), **TOLERANCE[dtype]
        )


def test_the_random_teachers_cover_the_odd_cases():
    q = torch.from_numpy(random_teachers("rivals", 40, 5, 4))
    elected_nobody = (q.amax(-1) > 0.3).any(1) & ~supporters(q, 0.3).any(1)
    assert elected_nobody.any()
    assert (consensus_focus(q[elected_nobody], 0.3) < 0).any()


@both_variants
@given(case=grid_teachers())
@quick
def test_vote_with_ties_is_the_formula(variant, case):
    q, gate = case
    assert_vote(knowledge_vote(q, gate, variant), reference_vote(q, gate, variant), atol=1e-12)


@both_variants
@given(case=grid_teachers(), data=st.data())
@quick
def test_quality_with_ties_is_the_formula(variant, case, data):
    q, gate = case
    coalition = sorted(data.draw(st.sets(st.integers(0, q.shape[1] - 1))))
    expected = QUALITY[variant](q.numpy(), gate, coalition)
    assert consensus_quality(q, gate, coalition, variant).item() == pytest.approx(expected, abs=1e-12)


@both_values
@both_variants
def test_focus_does_not_depend_on_the_chunk(variant, value, monkeypatch):
    q = torch.from_numpy(random_teachers("softmax", 41, 3, 4))
    whole = consensus_focus(q, 0.6, value, variant)
    monkeypatch.setattr(consensus, "CHUNK", 100)
    torch.testing.assert_close(consensus_focus(q, 0.6, value, variant), whole)


# --- symmetries -----------------------------------------------------------------------------------------------------


@both_variants
@given(case=grid_teachers(), data=st.data())
@quick
def test_order_of_the_sources_does_not_matter(variant, case, data):
    q, gate = case
    order = data.draw(st.permutations(range(q.shape[1])))
    assert_vote(knowledge_vote(q[:, order], gate, variant), knowledge_vote(q, gate, variant), atol=1e-12)
    for value in VALUES:
        permuted = consensus_focus(q[:, order], gate, value, variant)
        torch.testing.assert_close(permuted, consensus_focus(q, gate, value, variant)[order])


@given(case=grid_teachers())
@quick
def test_consensus_is_a_distribution_and_support_is_counted(case):
    q, gate = case
    p, n = knowledge_vote(q, gate)
    torch.testing.assert_close(p.sum(1), torch.ones(len(p), dtype=p.dtype))
    assert (p >= 0).all()
    assert set(n.tolist()) <= {0.001, *range(1, q.shape[1] + 1)}


@both_variants
@given(case=grid_teachers())
@quick
def test_shapley_shares_out_the_quality_of_all(variant, case):
    q, gate = case
    whole = consensus_quality(q, gate, list(range(q.shape[1])), variant)
    torch.testing.assert_close(consensus_focus(q, gate, "shapley", variant).sum(), whole)


@given(case=grid_teachers())
@quick
def test_official_focus_is_never_negative(case):
    for value in VALUES:
        assert (consensus_focus(*case, value, "official") >= -1e-12).all()


@given(case=grid_teachers(max_teachers=1))
@quick
def test_a_single_teacher_is_the_consensus(case):
    q, gate = case
    confident = q[:, 0].amax(-1) > gate
    p, n = knowledge_vote(q, gate)
    torch.testing.assert_close(p, q[:, 0])
    assert n.tolist() == [1.0 if c else 0.001 for c in confident]
    for value in VALUES:
        torch.testing.assert_close(consensus_focus(q, gate, value), (n * q[:, 0].amax(-1)).sum().reshape(1))


@given(case=grid_teachers(max_teachers=1), teachers=st.integers(2, 5))
@quick
def test_identical_teachers_agree_and_share_alike(case, teachers):
    q, gate = case
    p, n = knowledge_vote(q.repeat(1, teachers, 1), gate)
    loudness = q[:, 0].amax(-1)
    confident = loudness > gate
    torch.testing.assert_close(p, q[:, 0])
    assert n.tolist() == [teachers if c else 0.001 for c in confident]
    # one of many equal teachers adds its own confidence where it is sure, and nothing where it is not
    alike = loudness[confident].sum().repeat(teachers)
    torch.testing.assert_close(consensus_focus(q.repeat(1, teachers, 1), gate), alike)
    unsure = 0.001 * loudness[~confident].sum() / teachers
    torch.testing.assert_close(consensus_focus(q.repeat(1, teachers, 1), gate, "shapley"), alike + unsure)


# --- single cases, worked by hand -----------------------------------------------------------------------------------


@both_variants
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gate", [0.6, 0.8, 0.9, 0.95])
def test_gate_is_strict(gate, dtype, variant):
    at, above = (
        torch.tensor(gate, dtype=dtype),
        torch.nextafter(torch.tensor(gate, dtype=dtype), torch.tensor(1.0).to(dtype)),
    )
    for confidence, passes in ((at, False), (above, True)):
        q = torch.stack([confidence, 1 - confidence]).view(1, 1, 2)
        assert supporters(q, gate).item() is passes
        assert (knowledge_vote(q, gate, variant)[1].item() == 1) is passes
        assert (consensus_focus(q, gate, variant=variant).item() > 0.5) is passes


def test_only_supporters_are_averaged():
    q = one_sample([0.95, 0.05], [0.99, 0.01], [0.03, 0.97], [0.6, 0.4])  # two supporters, one dissenter, one unsure
    assert supporters(q, 0.9).tolist() == [[True, True, False, False]]
    assert_vote(knowledge_vote(q, 0.9), ([[0.97, 0.03]], [2.0]))
    # without the second teacher, the dissenter's 0.97 beats the first one's 0.95
    np.testing.assert_allclose(consensus_focus(q, 0.9), [1.94 - 0.99, 1.94 - 0.97, 0.0, 0.0], atol=1e-12)


@both_variants
@pytest.mark.parametrize("teachers", [[0, 1], [1, 0], [2, 1], [2, 1, 0], [1, 2, 2, 1]])
def test_a_tie_goes_to_the_lower_class(teachers, variant):
    q = torch.eye(3, dtype=torch.float64)[teachers][None]
    p, n = knowledge_vote(q, 0.9, variant)
    assert p.argmax(-1).item() == min(teachers)
    assert n.item() == (teachers.count(min(teachers)) if variant == "paper" else 1)


@both_variants
def test_a_teacher_undecided_between_two_classes_names_the_lower(variant):
    q = one_sample([0.0, 0.5, 0.5], [0.0, 0.0, 1.0])
    assert supporters(q, 0.4).tolist() == [[False, True]]
    assert knowledge_vote(q[:, :1], 0.4, variant)[1].item() == 1


def test_all_rejected():
    q = one_sample([0.6, 0.4, 0.0], [0.0, 0.3, 0.7], [0.1, 0.3, 0.6])
    mean = q.mean(1)  # argmax 2
    assert_vote(knowledge_vote(q, 0.9), (mean, [0.001]))
    assert_vote(knowledge_vote(q, 0.9, "official"), ([[0.0, 0.0, 1.0]], [0.0]))
    assert consensus_quality(q, 0.9, [0, 1, 2]).item() == pytest.approx(0.001 * mean.max().item())
    assert consensus_focus(q, 0.9, "shapley", "official").tolist() == [0, 0, 0]


def test_all_rejected_released_code_still_adds_only_the_largest_probability():
    q = one_sample([0.45, 0.4, 0.15], [0.15, 0.4, 0.45])  # the mean prefers class 1, which nobody names
    assert knowledge_vote(q, 0.9)[0].argmax().item() == 1
    assert knowledge_vote(q, 0.9, "official")[0].tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize("teachers", [2, 3, 4, 5])
def test_summed_votes_can_elect_nobodys_first_choice_up_to_a_gate(teachers):
    """Everybody has an own favourite at confidence c and gives the rest to a common second class: its votes add up to
    K (1 - c), more than c as long as c < K / (K + 1). With a gate at or above that, it cannot happen."""
    limit = teachers / (teachers + 1)
    for confidence, agreed in ((limit - 0.01, False), (limit + 0.01, True)):
        q = torch.cat([confidence * torch.eye(teachers), torch.full((teachers, 1), 1 - confidence)], 1)[None]
        gate = confidence - 0.001
        p, n = knowledge_vote(q, gate)
        assert supporters(q, gate).any().item() is agreed
        assert n.item() == pytest.approx(1 if agreed else 0.001)
        torch.testing.assert_close(p, q[:, 0] if agreed else q.mean(1))
        assert knowledge_vote(q, gate, "official")[0].argmax().item() == 0


@pytest.mark.parametrize(
    ("third", "focus"),
    [
        ([0.0, 0.55, 0.45], 0.55 - 1.2),  # wins the vote for its class 1 and stands there alone
        ([0.0, 0.45, 0.55], 0.001 * 1.25 / 3 - 1.2),  # elects class 1, which is nobody's first choice
    ],
)
def test_leave_one_out_can_be_negative_by_turning_the_vote(third, focus):
    q = one_sample([0.6, 0.4, 0.0], [0.6, 0.4, 0.0], third)
    assert consensus_focus(q, 0.5)[2].item() == pytest.approx(focus)
    assert consensus_focus(q, 0.5, variant="official").tolist() == pytest.approx([0.6, 0.6, 0.0])


def test_leave_one_out_can_be_negative_by_blurring_the_mean():
    q = one_sample([0.8, 0.2], [0.2, 0.8])
    assert consensus_focus(q, 0.9).tolist() == pytest.approx([-0.0003, -0.0003])


# --- the switches between paper and released code -------------------------------------------------------------------


def test_each_switch_turns_one_difference():
    q = torch.cat(
        [
            one_sample([0.6, 0.4, 0.0], [0.6, 0.4, 0.0], [0.0, 0.55, 0.45]),  # summed votes elect class 1, loudest 0
            one_sample([0.4, 0.3, 0.3], [0.4, 0.3, 0.3], [0.4, 0.3, 0.3]),  # all rejected
        ]
    )
    p, n = knowledge_vote(q, 0.5)
    assert p.argmax(1).tolist() == [1, 0] and n.tolist() == [1.0, 0.001]
    one_hot = torch.eye(3, dtype=q.dtype)[p.argmax(1)]
    loudest = torch.stack([q[0, 0], p[1]])
    assert_vote(knowledge_vote(q, 0.5, consensus="one-hot"), (one_hot, n))
    assert_vote(knowledge_vote(q, 0.5, class_vote="max"), (loudest, [2.0, 0.001]))
    assert_vote(knowledge_vote(q, 0.5, class_vote="max", support="mask"), (loudest, [1.0, 0.001]))
    assert_vote(knowledge_vote(q, 0.5, fallback=0.0), (p, [1.0, 0.0]))


def test_each_switch_of_the_focus_turns_one_difference():
    q = one_sample([0.6, 0.4, 0.0], [0.6, 0.4, 0.0], [0.0, 0.45, 0.55])
    assert consensus_focus(q, 0.5, fallback=0.0)[2].item() == pytest.approx(-1.2)
    assert consensus_focus(q, 0.5, class_vote="max")[2].item() == pytest.approx(0.0)
    assert consensus_focus(q, 0.58, class_vote="max", fallback=0.0)[2].item() == pytest.approx(0.0)
    unsure = one_sample([0.4, 0.3, 0.3])
    assert consensus_focus(unsure, 0.5, class_vote="max").item() == pytest.approx(0.0004)
    assert consensus_focus(unsure, 0.5, "shapley", "official").item() == 0


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("function", [knowledge_vote, consensus_focus])
def test_a_broken_teacher_is_refused_by_index(function, bad):
    q = torch.full((4, 3, 2), 0.5)
    q[2, 1, 0] = bad
    with pytest.raises(Diverged, match="teacher 1 are not finite"):
        function(q, 0.9)


def test_a_broken_teacher_is_refused_by_name():
    q = torch.full((4, 2, 2), 0.5)
    q[0, 1, 1] = torch.nan
    with pytest.raises(Diverged, match="teacher svhn are not finite"):
        check(cast(q), ["mnist", "svhn"])


@pytest.mark.parametrize("class_vote", ["sum", "max"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_a_softmax_makes_of_a_broken_network_shows_in_the_confidences(class_vote, bad):
    """Wherever one of its logits is broken; a logit of minus infinity is a probability of 0."""
    for place in range(3):
        logits = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
        logits[2, 1, 0] = float("-inf")
        check(cast(logits.softmax(-1), class_vote), softmax=True)
        logits[2, 1, place] = bad
        with pytest.raises(Diverged, match="teacher 1 are not finite"):
            check(cast(logits.softmax(-1), class_vote), softmax=True)


@pytest.mark.parametrize("shape", [(2,), (4, 2), (4, 3, 2, 1)])
@pytest.mark.parametrize("function", [knowledge_vote, consensus_focus])
def test_a_wrong_rank_is_refused(function, shape):
    with pytest.raises(ValueError, match=r"shape \(N, K, C\)"):
        function(torch.full(shape, 0.5), 0.9)


def test_an_unknown_value_is_refused():
    with pytest.raises(ValueError, match="banzhaf"):
        consensus_focus(one_sample([0.5, 0.5]), 0.9, "banzhaf")
