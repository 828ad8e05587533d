"""The book's sources: notebooks without outputs; and what its pages are made of: figures and verdicts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import papermill
import pytest
import seaborn
import torch

from kd3a import judging, page, plots, plots_studies, records, report
from kd3a.claims import elsewhere
from kd3a.consensus import knowledge_vote, supporters
from kd3a.records import ROOT

BOOK = ROOT / "book"
NOTEBOOKS = sorted(p for p in BOOK.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
PAGES = [*NOTEBOOKS, *sorted(BOOK.rglob("*.md"))]

# --- sources ------------------------------------------------------------------------------------------------------


def code_cells(path: Path) -> list:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_hold_no_outputs_and_literal_parameters(path):
    code = code_cells(path)
    assert not any(cell.outputs or cell.execution_count for cell in code)
    tagged = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    for statement in ast.parse(tagged[0].source).body:
        assert isinstance(statement, ast.AnnAssign), "a parameter has a type hint"
        ast.literal_eval(statement.value)


def test_every_figure_of_a_page_is_saved_by_a_notebook_and_described():
    saved = {
        name
        for path in NOTEBOOKS
        for cell in code_cells(path)
        for name in re.findall(r'(?:plots\.save\(.*?,\s+|page\.\w+\(\s*)"([\w-]+)"', cell.source, re.DOTALL)
    }
    saved |= {  # of each page on other data, by the name of its study
        f"{name}-{end}"
        for path in NOTEBOOKS
        for cell in code_cells(path)
        for end in re.findall(r'f"{other\.study\.study}-([\w-]+)"', cell.source)
        for name in elsewhere(path.stem, "cpu").values()
    }
    for path in PAGES:
        text = path.read_text() if path.suffix == ".md" else "\n".join(c.source for c in nbformat.read(path, 4).cells)
        for name, options in re.findall(r"\{figure\} \S*figures/([\w-]+)\.svg\n((?::.*\n)*)", text):
            assert name in saved, f"{path.name}: no notebook saves {name}"
            assert ":alt:" in options, f"{path.name}: {name} has no alternative text"


#: A number that looks measured: a percentage, points, a spread, an accuracy as a fraction.
MEASURED = re.compile(
    r"(?<![.\d])\b\d+(?:\.\d+)?[\s~]*(?:\\?%|per ?cent\b|percentage points?\b|points?\b)"
    r"|\b\d+(?:\.\d+)?\s*(?:±|\\pm\b)\s*\d"
    r"|\baccurac(?:y|ies)\b[^.;:|\n]{0,40}?\b0?\.\d+"
    r"|\b\d\d\.\d\b"
)

#: Numbers that may be typed, each with the reason why no record could hold them.
TYPED = {
    "15, 30 or 50 % of the labels": "the paper's definition of its malicious sources",
    "95 % interval": "the level of every interval in the book",
    "at 95 % one or two intervals": "the same level, where it is explained",
    "says 95 % only when": "what calibration means, by example",
    "95 percent interval": "the same, in a description of a figure",
    "lying in 60 % of their labels": "the made-up world of the page: its liars lie that often",
    "within 1.5 points of the paper's": "a tolerance, stated before the table",
}


def prose(path: Path) -> str:
    """What a page says: its text and the texts that its code shows, without code and what the records fill in."""
    if path.suffix == ".md":
        return without_code(re.sub(r"<!-- headline.*?<!-- end of headline -->", "", path.read_text(), flags=re.DOTALL))
    cells = nbformat.read(path, as_version=4).cells
    trees = [ast.parse(cell.source) for cell in cells if cell.cell_type == "code"]
    constants = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    shown = [value for value in constants if isinstance(value, str)]
    return " | ".join([without_code(c.source) for c in cells if c.cell_type == "markdown"] + shown)


def without_code(text: str) -> str:
    """Markdown on one line without code; what a directive encloses stays."""
    kept, fences = [], []  # of each open fence: its backticks, and whether it encloses code
    for line in text.splitlines():
        ticks = re.match(r"\s*(`{3,})(.*)", line)
        if ticks and fences and not ticks[2].strip() and len(ticks[1]) >= fences[-1][0]:
            fences.pop()
        elif ticks and not (fences and fences[-1][1]):
            fences.append((len(ticks[1]), not ticks[2].startswith("{")))
        elif not (fences and fences[-1][1]):
            kept.append(re.sub(r"`[^`]*`", "", line))
    return " ".join(" ".join(kept).split())


def typed_numbers(text: str) -> list[str]:
    """Measured numbers in a text, each with the words around it."""
    for allowed in TYPED:
        text = text.replace(allowed, "")
    return [text[max(0, m.start() - 40) : m.end() + 20] for m in MEASURED.finditer(text)]


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=lambda p: p.stem)
def test_no_accuracy_is_typed(path):
    assert not typed_numbers(prose(path)), "let the page read it from the records"


@pytest.mark.parametrize(
    "text",
    ["KD3A reaches 83.2 on average", "it gains 3 points", "about 80 % of them", "83\\% of", "1 ± 0.2",
     "$83.2 \\pm 0.4$", "an accuracy of 0.83", "71 per cent"],
)  # fmt: skip
def test_a_typed_accuracy_is_found(text):
    assert typed_numbers(text)


@pytest.mark.parametrize(
    "text",
    ["a weight of 0.001", "$\\delta = 0.05$", "Python 3.11", "ICML 2021, 38 pages", "from 0.9 towards 0.95", "Digit-5"],
)
def test_settings_are_no_accuracies(text):
    assert not typed_numbers(text)


def test_code_is_no_prose_and_a_directive_is():
    text = "one\n````{note}\ntwo `x`\n```python\nthree\n```\nfour\n````\nfive\n```sh\nsix\n```\nseven"
    assert without_code(text) == "one two four five seven"


def test_every_number_that_may_be_typed_still_is():
    everything = " ".join(prose(path) for path in [*PAGES, ROOT / "README.md"])
    assert [allowed for allowed in TYPED if allowed not in everything] == []


def test_a_study_page_renders_without_any_record(tmp_path, monkeypatch):
    """It says what is missing and how to train it, and gives no verdict."""
    monkeypatch.setenv("KD3A_FIGURES", str(tmp_path))
    done = papermill.execute_notebook(
        str(BOOK / "benchmarks" / "digits.ipynb"),
        str(tmp_path / "out.ipynb"),
        parameters={"results": str(tmp_path)},
        progress_bar=False,
    )
    texts = [
        output.data.get("text/markdown", "")
        for cell in done.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "data" in output
    ]
    assert any("are not recorded" in text and "kd3a study params/digits/cpu.yaml" in text for text in texts)
    assert any(text.startswith("**Open**") for text in texts)
    assert (tmp_path / "digits-accuracy.svg").exists()


# --- figures ------------------------------------------------------------------------------------------------------


def test_contact_sheet(drawn):
    image = torch.arange(20 * 3 * 32 * 32).view(20, 3, 32, 32).to(torch.uint8)
    part = type("Part", (), {"x": image, "y": torch.arange(20) % 10})
    domain = type("Domain", (), {"train": part})
    svg = drawn(lambda: plots.contact_sheet({f"domain {i}": domain for i in range(6)}, tuple("0123456789")), "sheet")
    assert svg.count("<image") == 1


def test_vote_figures(drawn):
    q = torch.softmax(4 * torch.randn(60, 3, 5, generator=torch.Generator().manual_seed(0)), -1)
    y = torch.arange(60) % 5
    p, n = knowledge_vote(q, 0.9)
    at = plots.telling_samples(q, n, 0.9)
    assert n[at].tolist() == sorted(n[at].tolist(), reverse=True)
    images = torch.zeros(len(at), 3, 32, 32, dtype=torch.uint8)
    names, classes = ["one", "two", "three"], tuple("abcde")
    drawn(lambda: plots.vote_gallery(images, y[at], q[at], p[at], n[at], 0.9, names, classes), "gallery")
    drawn(lambda: plots.vote_precision(p, n, y, 3), "precision")
    outvoted = ((q.amax(-1) > 0.9) & ~supporters(q, 0.9)).any(1)
    if outvoted.any():
        assert outvoted[at].any(), "a sure teacher that was outvoted is worth showing"


def entry(epoch: int, accuracy: float) -> dict:
    weights = {"a": 0.5, "b": 0.3, "t": 0.2}
    return {"epoch": epoch, "target_accuracy": accuracy, "loss": 1.0, "gate": 0.9, "weights": weights,
            "bytes_up": 1e6, "bytes_down": 1e6}  # fmt: skip


def record(seed: int, accuracy: float, target: str = "t") -> dict:
    notes = {"started": "2026-01-01T00:00:00", "device": "cpu", "cpu": "a CPU", "threads": 1, "commit": "c" * 40,
             "dirty": False, "versions": {"torch": "1"}}  # fmt: skip
    epochs = [entry(1, accuracy / 2), entry(2, accuracy)]
    return {"target": target, "seed": seed, "epochs": epochs, "seconds": 60.0, "peak_mb": 500.0, "provenance": notes}


def test_study_figures(drawn):
    runs = [(row, record(seed, 0.5 + 0.1 * seed)) for row in ("KD3A", "a new row") for seed in (0, 1)]
    drawn(lambda: plots.curves(report.history(runs), ["KD3A", "a new row", "not run"]), "curves")
    drawn(lambda: plots.overview({"KD3A": runs[0][1], "FedAvg": runs[1][1]}, main="KD3A"), "overview")
    drawn(lambda: plots.domain_weights(runs[0][1]), "weights")
    columns = ["row", "target", "mean", "std", "n"]
    cells = [("KD3A", "t", 0.5, 0.1, 2), ("KD3A", "mean", 0.5, float("nan"), 1), ("none", "t", np.nan, np.nan, 0)]
    drawn(lambda: plots.accuracy_bars(pd.DataFrame(cells, columns=columns), ["KD3A", "none"], ["t"]), "bars")
    drawn(lambda: plots.accuracy_bars(pd.DataFrame([cells[-1]], columns=columns), ["none"], ["t"]), "empty")


def test_the_palette_is_the_colour_blind_one():
    assert list(plots.PALETTE) == seaborn.color_palette("colorblind").as_hex()


def test_figures_in_the_repository_are_light():
    for path in (ROOT / "figures").glob("*.svg"):
        assert path.stat().st_size < 300_000, path.name


# --- what a study page says ---------------------------------------------------------------------------------------


def frame(**rows: list[list[float]]) -> pd.DataFrame:
    """Accuracies as row=[seed][target]."""
    return pd.DataFrame(
        [
            {"row": row, "target": f"t{t}", "seed": str(s), "accuracy": value, "megabytes": 1.0, "seconds": 2.0}
            | {"processor": "fast"}
            for row, seeds in rows.items()
            for s, values in enumerate(seeds)
            for t, value in enumerate(values)
        ],
        columns=["row", "target", "seed", "accuracy", "megabytes", "seconds", "processor"],
    )


def test_a_lead_is_taken_seed_by_seed():
    data = frame(a=[[0.5, 0.7], [0.6, 0.8]], b=[[0.5, 0.5], [0.5, 0.5]])
    (finding,) = judging.judge(data, [judging.Claim("", "a", ("b",), 0.11)], ["t0", "t1"])
    assert finding.lead == pytest.approx(0.15) and finding.seeds == 2
    assert finding.std == pytest.approx(np.std([0.1, 0.2], ddof=1)) and finding.holds


def test_a_claim_may_be_about_one_target():
    data = frame(a=[[0.5, 0.7], [0.6, 0.8]], b=[[0.5, 0.5], [0.5, 0.5]])
    findings = judging.judge(data, [judging.Claim("", "a", ("b",), target=t) for t in ("t0", "t1", "")], ["t0", "t1"])
    assert [f.lead for f in findings] == pytest.approx([0.05, 0.25, 0.15])


def test_a_claim_is_held_against_its_strongest_rival():
    data = frame(a=[[0.6]], b=[[0.5]], c=[[0.7]])
    (finding,) = judging.judge(data, [judging.Claim("", "a", ("b", "c"))], ["t0"])
    assert finding.lead == pytest.approx(-0.1) and finding.holds is False


@pytest.mark.parametrize(
    "data", [frame(), frame(a=[[0.5]]), frame(a=[[0.5, 0.5]], b=[[0.4]])], ids=["none", "one row", "one target"]
)
def test_a_claim_without_whole_seeds_stays_open(data):
    findings = judging.judge(data, [judging.Claim("x", "a", ("b",)), judging.Claim("y", "a", ())], ["t0", "t1"])
    assert [f.holds for f in findings] == [None, None] and judging.verdict(findings) == "open"
    assert judging.findings_table(findings)["outcome"].tolist() == ["open", "open"]


def test_verdicts():
    clear, unclear = frame(a=[[0.6], [0.61]], b=[[0.5], [0.5]]), frame(a=[[0.6]], b=[[0.5]])
    yes, no = judging.Claim("yes", "a", ("b",)), judging.Claim("no", "b", ("a",))
    words = {"reproduced": [yes, yes], "partly reproduced": [yes, no], "not reproduced": [no, no]}
    for word, claims in words.items():
        assert judging.verdict(judging.judge(clear, claims, ["t0"])) == word
        assert judging.verdict(judging.judge(unclear, claims, ["t0"])) == f"{word}, not clear", "one seed"
    assert judging.verdict(judging.judge(clear, [yes], ["t0"]), "confirmed") == "confirmed"
    assert judging.verdict([]) == "open"


def test_rows_may_be_claimed_to_be_alike():
    data = frame(a=[[0.50], [0.51]], b=[[0.50], [0.50]], c=[[0.60], [0.56]])
    same, other = (judging.Claim("", "a", (row,), 0.02, alike=True) for row in ("b", "c"))
    findings = judging.judge(data, [same, other], ["t0"])
    assert [f.outcome for f in findings] == ["holds, not clear", "fails, not clear"]
    assert [f.claim.needed for f in findings] == 2 * ["within ± 2.0"]
    data = frame(a=[[0.500], [0.501]], b=[[0.500], [0.500]], c=[[0.60], [0.60]])
    assert [f.outcome for f in judging.judge(data, [same, other], ["t0"])] == ["holds", "fails"]


def test_on_every_target_the_worst_counts():
    data = frame(a=[[0.5, 0.7], [0.6, 0.8]], b=[[0.6, 0.5], [0.6, 0.5]])
    (finding,) = judging.judge(data, [judging.Claim("", "a", ("b",), target=judging.EVERY)], ["t0", "t1"])
    assert finding.lead == pytest.approx(-0.05) and finding.holds is False


def test_an_interval_over_several_rivals_allows_for_the_choice():
    """Lower end: the lowest of all. Upper end: the lowest, when the error is shared among them."""
    data = frame(a=[[0.6], [0.6], [0.6]], b=[[0.5], [0.52], [0.54]], c=[[0.3], [0.5], [0.7]])
    alone = [judging.judge(data, [judging.Claim("", "a", (row,))], ["t0"])[0].interval for row in "bc"]
    (finding,) = judging.judge(data, [judging.Claim("", "a", ("b", "c"))], ["t0"])
    assert finding.lead == pytest.approx(0.08) and finding.interval[0] == pytest.approx(alone[1][0])
    leads = pd.Series([0.1, 0.08, 0.06])
    assert finding.interval[1] == pytest.approx(judging.interval(leads, error=0.025)[1])
    assert finding.interval[1] > alone[0][1]


def test_images_that_are_all_alike_still_have_an_interval():
    low, high = judging.interval(pd.Series([0.0] * 20), "recovered")
    assert low == -high and high == pytest.approx(1.96 / 22, abs=1e-4)
    low, high = judging.interval(pd.Series([1.0] * 15 + [0.0] * 5), "recovered")
    assert 0.4 < low < 0.75 < high < 1


def test_means_are_over_seeds_that_are_whole():
    data = frame(a=[[0.5, 0.7], [0.9]], b=[[0.4, 0.6], [0.4, 0.6]])
    assert report.exchange(data, ["a", "b"])["accuracy (%)"].tolist() == ["60.0", "50.0"]


def test_seconds_of_several_processors_are_not_compared():
    data = frame(a=[[0.5, 0.7]], b=[[0.4, 0.6]])
    assert report.exchange(data, ["a", "b"])["seconds"].tolist() == ["2", "2"]
    data.loc[data["row"] == "b", "processor"] = "slow"
    assert "seconds" in report.exchange(data, ["a"]) and "seconds" not in report.exchange(data, ["a", "b"])


@pytest.mark.parametrize(("margin", "holds"), [(-0.05, True), (-0.03, False)])
def test_a_claim_may_be_held_against_a_printed_number(margin, holds):
    claim = judging.Claim("", "a", printed=0.54, margin=margin)
    (finding,) = judging.judge(frame(a=[[0.5, 0.5], [0.5, 0.5]]), [claim], ["t0", "t1"])
    assert finding.lead == pytest.approx(-0.04) and finding.holds is holds and finding.claim.needed.startswith("≥ −")


def test_a_saving_is_told_as_a_factor():
    data = frame(a=[[-2.0], [-2.0]], b=[[-4.1], [-4.1]]).rename(columns={"accuracy": judging.SAVING})
    claims = [judging.Claim(str(margin), "a", ("b",), margin, judging.SAVING) for margin in (2.0, 3.0)]
    told = judging.findings_table(judging.judge(data, claims, ["t0"]))
    assert told["needed"].tolist() == ["≥ 100 times", "≥ 1,000 times"]
    assert told["measured"].tolist() == 2 * ["126 times (2)"] and told["outcome"].tolist() == ["holds", "fails"]


def test_the_interval_is_students():
    (finding,) = judging.judge(
        frame(a=[[0.5], [0.6], [0.7]], b=[[0.5], [0.5], [0.5]]), [judging.Claim("", "a", ("b",))], ["t0"]
    )
    assert finding.interval == pytest.approx((0.1 - 4.3027 * 0.1 / 3**0.5, 0.1 + 4.3027 * 0.1 / 3**0.5), abs=1e-4)


@pytest.mark.parametrize(
    ("leads", "outcome"),
    [
        ([0.1, 0.11, 0.12], "holds"),
        ([0.1, 0.0, 0.2], "holds, not clear"),
        ([-0.1, -0.11, -0.12], "fails"),
        ([-0.1, 0.05, -0.1], "fails, not clear"),
        ([0.1], "holds, not clear"),
        ([], "open"),
    ],
)
def test_an_outcome_says_whether_it_is_clear(leads, outcome):
    data = frame(a=[[0.5 + lead] for lead in leads], b=[[0.5]] * len(leads)) if leads else frame()
    (finding,) = judging.judge(data, [judging.Claim("", "a", ("b",))], ["t0"])
    assert finding.outcome == outcome


def test_a_tie_does_not_beat():
    (finding,) = judging.judge(frame(a=[[0.5]], b=[[0.5]]), [judging.Claim("", "a", ("b",))], ["t0"])
    assert finding.holds is False


def test_provenance_and_exchange():
    told = report.provenance([("a", record(0, 0.5)), ("a", record(1, 0.5))])
    assert told["runs"] == "2" and told["computing time"] == "2 min in all, 60 s a run" and told["hardware"] == "a CPU"
    assert report.provenance([]) == {}
    cells = report.exchange(frame(a=[[0.5]]), ["a", "b"])
    assert cells.loc["a"].tolist() == ["1.0", "50.0", "2"] and cells.loc["b"].tolist() == ["–", "–", "–"]


def test_the_number_of_seeds_is_said_once_if_it_is_the_same():
    same = pd.DataFrame({"t": ["50.0 ± 1.0 (3)", "60.0 ± 2.0 (3)"]}, index=["a", "b"])
    assert report.compact(same)[0]["t"].tolist() == ["50.0 ± 1.0", "60.0 ± 2.0"]
    for other in ("60.0 (1)", "–"):
        mixed = same.assign(u=["50.0 ± 1.0 (3)", other])
        cells, words = report.compact(mixed)
        assert cells["u"].tolist() == ["50.0 ± 1.0 (3)", other] and "brackets" in words
    assert "brackets" in report.compact(pd.DataFrame({"t": ["–"]}))[1]


def test_the_best_trial_is_the_criterions_not_the_labels(tmp_path):
    results = report.open_results("tuning", "quick", str(tmp_path))
    assert report.trials(results).empty
    values = {"MDAN 1": (0.4, 0.9), "MDAN 2": (0.6, 0.5), "MDAN 3": (0.5, 0.95), "SHOT 1": (0.1, 0.2)}
    for title, run in results.grid:
        if title in values:
            criterion, accuracy = values[title]
            known = {"data_sha256": "0", "criterion": criterion, "target_accuracy": accuracy}
            records.append(results.path, {"key": run.key("0"), **known})
    frame = report.trials(results)
    assert frame[frame["chosen"]]["trial"].tolist() == ["MDAN 2", "SHOT 1"] and len(frame) == 4
    assert frame["settings"][0] == "as published" and frame["settings"][1] == "mu: 0.01"


def test_missing_runs_are_counted(tmp_path):
    results = report.open_results("digits", "quick", str(tmp_path))
    gaps = report.missing(results)
    assert gaps.to_numpy().sum() == len(results.grid) and not report.finished(results)


def test_the_results_folder_is_the_parameter_then_the_environment_then_the_repository(tmp_path, monkeypatch):
    monkeypatch.setenv("KD3A_RESULTS", str(tmp_path / "env"))
    assert report.open_results("digits", "quick", str(tmp_path / "own")).path.parent == tmp_path / "own"
    assert report.open_results("digits", "quick").path.parent == tmp_path / "env"
    monkeypatch.delenv("KD3A_RESULTS")
    assert report.open_results("digits", "quick").path.parent == ROOT / "results"


def test_what_a_choice_without_labels_costs():
    columns = ["method", "trial", "settings", "criterion", "accuracy", "chosen"]
    trials = pd.DataFrame(
        [["a", "a 1", "as published", 0.5, 0.7, False], ["a", "a 2", "x: 1", 0.6, 0.6, True]], columns=columns
    )
    assert report.regret(trials).to_dict("records") == [
        {"method": "a", "chosen": "x: 1", "as published": 0.7, "as chosen": 0.6, "best trial": 0.7}
    ]
    assert len(plots_studies.criterion(trials).axes) == 1
    assert page.percents(trials.set_index("trial"), "accuracy")["accuracy"].tolist() == ["70.0", "60.0"]


def test_what_the_choices_of_a_search_came_to():
    """Over the methods that it decides: SHOT trains on the criterion."""
    columns = ["method", "trial", "settings", "criterion", "accuracy", "chosen"]
    told = {"mdan": (0.7, 0.6), "kd3a": (0.5, 0.7), "shot": (0.1, 0.9)}
    lines = [
        [name, f"{name} {i + 1}", "x: 1" if i else "as published", 0.5, accuracy, i == (name != "shot")]
        for name, accuracies in told.items()
        for i, accuracy in enumerate(accuracies)
    ]
    found = report.choices(pd.DataFrame(lines, columns=columns))
    assert (found["methods decided"], found["within a point of the best trial"]) == ("2", "1")
    assert found["costs most"] == "mdan (10.0)"
    half = 12.7062 * np.std([-10, 20], ddof=1) / 2**0.5
    assert found["against published values"] == f"+5.0 (−{half - 5:.1f} to +{half + 5:.1f})"
    assert found["against the average trial"].startswith("+2.5 (")
    nothing = report.choices(pd.DataFrame(lines[:0], columns=columns))
    assert list(nothing.values()) == ["0", "0", "–", "–", "–"]


def test_families_are_told(tmp_path):
    lines = page.Page("benchmarks/digits", "digits", "quick", str(tmp_path)).families().data.splitlines()[2:]
    families = {row.strip(): family.strip() for _, row, family, *_ in (line.split("|") for line in lines)}
    assert families["Oracle"] == "reads target labels" and families["MDAN"] == "centralised"
    assert {families[row] for row in ("KD3A", "FedAvg", "SHOT")} == {"decentralised"}
