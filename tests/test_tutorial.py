"""The tutorial's first chapters: their figures and formulas, a run stopped half way, and the explorers' own vote and
focus, in a real browser, against the package's."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CPU, TRAINING, same

from kd3a import explorers, plots, shift
from kd3a import plots_tutorial as figures
from kd3a.consensus import consensus_focus, consensus_quality, knowledge_vote, supporters
from kd3a.errors import UserError
from kd3a.halfway import halfway, open_round
from kd3a.poison import Poison, poisoned
from kd3a.records import ROOT
from kd3a.runs import make_run, start
from kd3a.softlabels import gate_sweep, kl, largest_deviation, task_risk, tempered, weighted_accuracy
from kd3a.weighting import domain_weights

STATIC = ROOT / "book" / "_static"
NAMES, CLASSES = ["one", "two", "three"], list("abcd")


def sharp(*shape: int) -> torch.Tensor:
    return torch.softmax(6 * torch.randn(*shape, 4, generator=torch.Generator().manual_seed(3)), -1)


# --- a run stopped half way -----------------------------------------------------------------------------------------


def test_a_run_stopped_half_way_is_the_same_from_its_checkpoint(own_cache, tiny_task, monkeypatch):
    run = make_run("tiny", "denim", "kd3a", 0, TRAINING, {"gate_begin": 0.35, "gate_end": 0.4})
    trained = halfway(run, tiny_task, CPU, 1)
    monkeypatch.setattr(type(trained), "run", lambda *_: pytest.fail("it was trained again"))
    again = halfway(run, tiny_task, CPU, 1)
    monkeypatch.undo()
    assert same(trained.state(), again.state()) and trained.channel.ledger == again.channel.ledger
    for method in (trained, again):
        method.run(method.stages()[1])
    assert same(trained.state(), again.state())


@pytest.mark.parametrize("rounds", [0, 3])
def test_a_run_is_not_stopped_outside_its_rounds(own_cache, tiny_task, rounds):
    with pytest.raises(UserError, match="has 2 rounds"):
        halfway(make_run("tiny", "denim", "fedavg", 0, TRAINING, {}), tiny_task, CPU, rounds)


def test_an_open_round_is_the_one_that_the_run_makes(own_cache, tiny_task):
    """Its teachers are those of the run, its student too, and asking what if changes nothing."""
    run = make_run("tiny", "denim", "kd3a", 0, TRAINING, {"gate_begin": 0.35, "gate_end": 0.4, "mixup": 0.0})
    now = open_round(run, tiny_task, CPU, 1)
    q = now.ask()
    assert q.shape == (48, 3, 3) and now.names == ["amber", "beige", "coral"]
    again = now.trained("beige", tiny_task.sources[1].train)
    assert torch.equal(now.method.trainer.predict(again.net, tiny_task.target.train), q[:, 1])
    lied = now.trained("beige", poisoned(tiny_task, Poison("beige", 1.0, "fixed"), 0).sources[1].train)
    assert not torch.equal(now.method.trainer.predict(lied.net, tiny_task.target.train), q[:, 1])
    student = now.distilled(*knowledge_vote(q, now.gate))
    torch.testing.assert_close(now.ask(torch.tensor([3, 1])), q[[3, 1]])
    assert torch.equal(now.ask(), q)

    whole = halfway(run, tiny_task, CPU, 1)
    kept = {}
    whole.average = lambda *_: kept.update(whole.target.net.state_dict())  # the student, before the models are averaged
    whole.run(now.stage)
    assert same(dict(kept), student.net.state_dict())
    assert all(same(p.net.state_dict(), whole.sources[n].net.state_dict()) for n, p in now.method.sources.items())


def test_a_round_that_does_not_exist_is_not_opened(own_cache, tiny_task):
    for method, rounds in (("fedavg", 1), ("kd3a", 2)):
        with pytest.raises(UserError, match="that has a round left"):
            open_round(make_run("tiny", "denim", method, 0, TRAINING, {}), tiny_task, CPU, rounds)


# --- formulas -------------------------------------------------------------------------------------------------------

LOGITS = st.lists(st.floats(-8, 8), min_size=3, max_size=3).map(lambda row: torch.tensor(row, dtype=torch.float64))


@given(LOGITS, st.floats(0.2, 10), st.floats(0.2, 10))
def test_temperature_divides_the_logits(z, one, other):
    torch.testing.assert_close(tempered(z.softmax(-1), one), (z / one).softmax(-1))
    torch.testing.assert_close(tempered(tempered(z.softmax(-1), one), other), tempered(z.softmax(-1), one * other))


@given(LOGITS, LOGITS)
def test_divergence_and_pinsker(a, b):
    p, q = a.softmax(-1), b.softmax(-1)
    assert kl(p, q).item() == pytest.approx(
        reference.distillation(b[None].numpy(), p[None].numpy(), [1.0])[0], abs=1e-9
    )
    assert largest_deviation(p, q) <= (kl(p, q).clamp(min=0) / 2).sqrt() + 1e-9
    assert kl(p, p).item() == pytest.approx(0, abs=1e-12)


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=30))
def test_wrong_labels_bound_the_gap_of_risks(rows):
    answers, labels, truth = torch.tensor(rows).T
    said = torch.nn.functional.one_hot(answers, 3).double()
    soft = torch.nn.functional.one_hot(labels, 3).double()
    gap = abs(task_risk(said, soft) - task_risk(said, truth))
    assert gap <= (labels != truth).double().mean().item() + 1e-12
    assert task_risk(said, soft) == np.mean([a != b for a, b, _ in rows])


def test_the_sweep_of_gates():
    q, y = sharp(200, 3), torch.arange(200) % 4
    table = gate_sweep(q, y, [0.3, 0.6, 0.9, 0.999])
    heard = table["images with a supporter"]
    assert heard.is_monotonic_decreasing and heard.iloc[0] > heard.iloc[-1]
    p, n = knowledge_vote(q, 0.9)
    right = (p.argmax(-1) == y).double()
    assert table.loc[0.9, "right among these"] == pytest.approx(right[n >= 1].mean().item())
    assert table.loc[0.9, "right, weighted by n"] == pytest.approx(np.average(right, weights=n))
    assert weighted_accuracy(p, n, p.argmax(-1)) == 1


def test_shift_is_measured_pair_by_pair(tiny_task):
    domains = {d.name: d for d in (*tiny_task.sources, tiny_task.target)}
    method = start(make_run("tiny", "denim", "fedavg", 0, TRAINING, {}), tiny_task, CPU)
    nets = {name: party.net for name, party in method.sources.items()}
    accuracy = shift.transfer(nets, domains, method.trainer)
    test = tiny_task.target.test
    hits = (method.trainer.predict(nets["amber"], test).argmax(-1) == test.y).double().mean().item()
    assert accuracy.shape == (3, 4) and accuracy.loc["amber", "denim"] == hits

    features = {name: shift.coarse_pixels(d.train, cells=2) for name, d in domains.items()}
    assert features["amber"].shape == (40, 4)
    image = tiny_task.sources[0].train.x[0].double() / 255
    assert features["amber"][0, 0].item() == pytest.approx(image[:, :4, :4].mean().item(), abs=1e-6)
    distance = shift.distances(features, 0)
    assert (distance.to_numpy() == distance.to_numpy().T).all() and (np.diag(distance) == 0).all()
    assert distance.to_numpy().min() >= 0 and distance.to_numpy().max() <= 2

    ways = shift.pairs(distance, accuracy)
    assert len(ways) == 9 and (ways["source"] != ways["target"]).all()
    first = ways.iloc[0]
    lost = accuracy.loc[first["source"], first["source"]] - accuracy.loc[first["source"], first["target"]]
    assert first["loss"] == lost and first["distance"] == distance.loc[first["source"], first["target"]]


def test_what_crossed_is_a_table_with_private_kinds_first():
    table = shift.crossed({"a": {"params": 5.0, "stats": 1.0}, "b": {"data": 7.0}})
    assert table.columns.tolist() == ["data", "params", "stats"]
    assert table.loc["a"].tolist() == [0, 5, 1] and table.loc["b"].tolist() == [7, 0, 0]


# --- figures --------------------------------------------------------------------------------------------------------


def drawings(tiny_task) -> dict:
    """A call of every figure of the chapters."""
    domains = {d.name: d for d in (*tiny_task.sources, tiny_task.target)}
    q, y = sharp(60, 3), torch.arange(60) % 4
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [3.0, np.nan]}, index=[0.1, 0.2])
    square = pd.DataFrame([[0.0, 1.5], [1.5, 0.0]], index=["a", "b"], columns=["a", "b"])
    return {
        "one_class": lambda: figures.one_class(domains, 1, 4),
        "distance_matrix": lambda: figures.distance_matrix(square),
        "distance_against_loss": lambda: figures.distance_against_loss(shift.pairs(square, square)),
        "wire": lambda: figures.wire(shift.crossed({"a": {"params": 5e6, "features": 1e6}, "b": {"data": 7e6}})),
        "soft_labels": lambda: figures.soft_labels(domains["amber"].train.x[0], {"T = 1": q[0, 0]}, CLASSES),
        "pinsker": lambda: figures.pinsker(kl(q[:, 0], q[:, 1]), largest_deviation(q[:, 0], q[:, 1])),
        "grouped_bars": lambda: figures.grouped_bars(frame.fillna(0), "value"),
        "lines": lambda: figures.lines(frame, "x", "y", mark=0.15),
        "reliability": lambda: figures.reliability(q, y, NAMES, [0, 0.5, 0.9, 1.0]),
        "coalitions": lambda: figures.coalitions({(): 0.0, (0,): 1.0, (0, 2): 3.0}, NAMES),
    }


def test_figures_of_the_chapters_are_deterministic_and_light(tiny_task, tmp_path, monkeypatch):
    monkeypatch.setenv("KD3A_FIGURES", str(tmp_path))
    made = drawings(tiny_task)
    own = {n for n, f in vars(figures).items() if callable(f) and getattr(f, "__module__", "") == figures.__name__}
    assert own == set(made), "every figure is drawn here"
    for name, draw in made.items():
        first, second = (plots.save(draw(), name).path.read_bytes() for _ in range(2))
        assert first == second and len(first) < 300_000, name


def test_reliability_shows_confidence_and_truth():
    """A teacher that is always sure and right half of the time has one point, at (100, 50)."""
    q = torch.zeros(20, 1, 2)
    q[..., 0] = 1.0
    figure = figures.reliability(q, torch.arange(20) % 2, ["one"], [0, 0.9, 1.0])
    assert [line.get_xydata().tolist() for line in figure.axes[0].lines if line.get_label() == "one"] == [[[100, 50]]]


# --- explorers ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script(chromium):
    """An empty page with the explorers' functions."""
    page = chromium.new_page()
    page.add_script_tag(path=STATIC / "explorers.js")
    yield page
    page.close()


@st.composite
def predictions(draw) -> torch.Tensor:
    """(N, K, C) in 1/1024: their sums are exact, so that ties are ties in both languages."""
    samples, teachers, classes = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(2, 4))
    row = st.lists(st.integers(0, 1023), min_size=classes - 1, max_size=classes - 1).map(sorted)
    cuts = torch.tensor(draw(st.lists(row, min_size=samples * teachers, max_size=samples * teachers)))
    ends = torch.full((len(cuts), 1), 1024)
    return torch.diff(torch.cat([0 * ends, cuts, ends], 1)).view(samples, teachers, classes).double() / 1024


GATES = st.integers(102, 1023).map(lambda n: n / 1024)


@given(predictions(), GATES)
@settings(max_examples=60, deadline=None)
def test_the_script_votes_as_the_package_does(script, q, gate):
    found = script.evaluate("([q, gate]) => q.map((one) => kd3a.vote(one, gate))", [q.tolist(), gate])
    p, n = knowledge_vote(q, gate)
    agree, confident = supporters(q, gate), q.amax(-1) > gate
    for key, truth in (("supporters", agree), ("confident", confident)):
        assert [one[key] for one in found] == [row.nonzero()[:, 0].tolist() for row in truth]
    torch.testing.assert_close(torch.tensor([one["p"] for one in found], dtype=p.dtype), p)
    torch.testing.assert_close(torch.tensor([one["n"] for one in found], dtype=n.dtype), n)


@given(predictions(), GATES, st.lists(st.integers(1, 5000), min_size=5, max_size=5))
@settings(max_examples=60, deadline=None)
def test_the_script_weighs_as_the_package_does(script, q, gate, sizes):
    teachers = q.shape[1]
    sizes, target_size = sizes[:teachers], sizes[-1]
    for name, value in (("leaveOneOut", "leave-one-out"), ("shapley", "shapley")):
        focus, alpha, whole = script.evaluate(
            """([q, gate, name, sizes, size]) => {
                const focus = kd3a.consensusFocus(q, gate);
                const all = focus.qualities[focus.qualities.length - 1];
                return [focus[name], kd3a.domainWeights(focus[name], sizes, size), all];
            }""",
            [q.tolist(), gate, name, sizes, target_size],
        )
        expected = consensus_focus(q, gate, value)
        torch.testing.assert_close(torch.tensor(focus, dtype=q.dtype), expected, atol=1e-9, rtol=1e-9)
        assert whole == pytest.approx(consensus_quality(q, gate, list(range(teachers))).item())
        if expected.clamp(min=0).sum() > 1e-6:  # below, which of two roundings of zero is above it decides
            weights = domain_weights(expected, sizes, target_size)
            torch.testing.assert_close(torch.tensor(alpha, dtype=q.dtype), weights, atol=1e-6, rtol=1e-6)


def test_sources_that_add_nothing_are_weighted_by_size(script):
    assert script.evaluate("() => kd3a.domainWeights([0, -1], [3, 1], 4)") == pytest.approx([0.375, 0.125, 0.5])


def show(chromium, explorer: explorers.Explorer, width: int = 390):
    page = chromium.new_page(viewport={"width": width, "height": 900})
    page.set_content(f'<!doctype html><html lang="en"><body>{explorer._repr_html_()}</body></html>')
    page.add_style_tag(path=STATIC / "explorers.css")
    page.add_script_tag(path=STATIC / "explorers.js")
    return page


def test_the_vote_explorer_works_by_keyboard_on_a_phone(chromium):
    q, y = sharp(40, 3), torch.arange(40) % 4
    x = torch.zeros(40, 3, 8, 8, dtype=torch.uint8)
    page = show(chromium, explorers.vote_explorer(x, y, q, [5, 7], 0.9, NAMES, CLASSES))
    slider, said = page.locator("input[type=range]"), page.locator(".explorer-said")
    exact = torch.tensor(explorers.thousandths(q)).double() / 1000

    def told(row: int, gate: float) -> None:
        p, n = knowledge_vote(exact[row : row + 1], gate)
        assert page.locator("tbody").first.locator("tr").last.inner_text().split()[-1] == f"{n.item():g}"
        assert f"At g = {gate:.2f}" in said.inner_text()
        assert f"The label, which the target lacks, is {CLASSES[y[row]]}" in said.inner_text()
        right = p.argmax().item() == y[row]
        assert said.inner_text().endswith("right." if right else "wrong.")

    told(5, 0.9)
    slider.focus()
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext") == "0.85"
    told(5, 0.85)
    page.locator("input[type=radio]").first.focus()
    page.keyboard.press("ArrowRight")
    told(7, 0.85)
    counts = knowledge_vote(exact, 0.85)[1].round().long().bincount(minlength=4)
    shares = [row.split()[1] for row in page.locator("tbody").last.locator("tr").all_inner_texts()]
    assert shares == [f"{int(100 * c / 40 + 0.5)}" for c in counts.tolist()]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_the_focus_explorer_works_by_keyboard_on_a_phone(chromium):
    q, y, rates = sharp(3, 2, 50), torch.arange(50) % 4, [0.0, 1.0]
    page = show(chromium, explorers.focus_explorer(q, y, rates, 0.9, NAMES, [100, 200, 300], 150))
    exact = torch.tensor(explorers.thousandths(q)).double() / 1000

    def told(chosen: list[int], value: str) -> None:
        now = torch.stack([exact[k, r] for k, r in enumerate(chosen)], 1)  # (N, K, C)
        alpha = domain_weights(consensus_focus(now, 0.9, value), [100, 200, 300], 150).tolist()
        rows = [row.split() for row in page.locator("tbody tr").all_inner_texts()]
        assert [float(row[1]) for row in rows] == pytest.approx(alpha, abs=0.0051)

    told([0, 0, 0], "leave-one-out")
    page.locator("input[type=range]").nth(1).focus()
    page.keyboard.press("ArrowRight")
    told([0, 1, 0], "leave-one-out")
    page.locator("select").select_option("shapley")
    told([0, 1, 0], "shapley")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_every_control_of_an_explorer_has_a_label(chromium):
    page = show(chromium, explorers.focus_explorer(sharp(3, 2, 5), torch.zeros(5), [0, 1], 0.9, NAMES, [1, 1, 1], 1))
    assert page.evaluate(
        "[...document.querySelectorAll('input, select')].every((control) => control.labels[0]?.textContent.trim())"
    )
    page.close()


def test_the_focus_explorer_says_what_does_not_fit():
    with pytest.raises(UserError, match="shape"):
        explorers.focus_explorer(sharp(2, 2, 5), torch.zeros(5), [0, 1], 0.9, NAMES, [1, 1, 1], 1)


def test_an_explorer_cannot_end_its_own_script():
    html = explorers.Explorer("vote", {"name": "</script><b>"})._repr_html_()
    assert html.count("</script>") == 1
