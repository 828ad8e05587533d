"""The tutorial's first chapters: their figures and formulas, a run stopped half way, and the explorers' own vote and
focus, in a real browser, against the package's."""

from __future__ import annotations

import browser
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import sync_playwright
from tiny import CPU, TRAINING, same

from kd3a import explorers
from kd3a.consensus import consensus_focus, consensus_quality, knowledge_vote, supporters
from kd3a.errors import UserError
from kd3a.halfway import halfway
from kd3a.records import ROOT
from kd3a.runs import make_run
from kd3a.weighting import domain_weights

STATIC = ROOT / "book" / "_static"

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


# --- explorers ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        instance = playwright.chromium.launch(
            executable_path=browser.executable(), args=["--no-sandbox", "--disable-gpu"]
        )
        yield instance
        instance.close()


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


NAMES, CLASSES = ["one", "two", "three"], list("abcd")


def sharp(*shape: int) -> torch.Tensor:
    return torch.softmax(6 * torch.randn(*shape, 4, generator=torch.Generator().manual_seed(3)), -1)


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
