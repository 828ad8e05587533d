"""The privacy study: updates, gradient inversion, controls, records that resume, claims and the page."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_studies import no_task, shown_by  # noqa: F401 (a fixture)
from test_tutorial_rounds import SMALL as SHAPE
from test_tutorial_rounds import batch as images
from test_tutorial_rounds import net  # noqa: F401 (a fixture)

from kd3a import claims, cli, judging, leakage, models, plots, plots_privacy, probes, report, worker
from kd3a.errors import UserError
from kd3a.page_privacy import PrivacyPage
from kd3a.probes import PrivacyStudy, Probe, Seen, Setting
from kd3a.reconstructions import Reconstructions, control, rivals
from kd3a.study import shipped

# --- updates ----------------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(steps=st.integers(1, 4), batch=st.integers(1, 3), rate=st.sampled_from([0.01, 0.1]))
def test_an_update_is_what_sgd_does(steps, batch, rate):
    fresh = models.build("cnn-sigmoid", SHAPE, 3, seed=steps)
    x, y = images(steps * batch)
    seen = leakage.local_update(fresh, x, y, steps, rate)
    before = {name: p.detach().clone() for name, p in fresh.named_parameters()}
    optimiser = torch.optim.SGD(fresh.parameters(), lr=rate)
    for some, labels in zip(x.split(batch), y.split(batch), strict=True):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(fresh(some), labels).backward()
        optimiser.step()
    after = dict(fresh.named_parameters())
    expected = leakage.update_as_gradient(before, after, rate * steps)
    for name, tensor in expected.items():
        torch.testing.assert_close(seen[name], tensor, atol=1e-4, rtol=1e-3)


def test_an_attacker_that_follows_the_steps_explains_the_update_and_another_does_not(net):  # noqa: F811
    x, y = images(3)
    update = leakage.local_update(net, x, y, 3, 0.5)
    followed = leakage.objective(net, update, steps=3, rate=0.5)
    at_once = leakage.objective(net, update, steps=1)
    assert followed(x, y).item() < 1e-8 < 1e-3 < at_once(x, y).item()
    guess = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(followed(guess + 0.1, y), guess)
    assert slope.isfinite().all() and slope.abs().max() > 0


def test_inversion_finds_the_image_and_stays_in_the_box(net):  # noqa: F811
    x, y = images(1)
    x = torch.nn.functional.interpolate(2 * x[..., ::4, ::4] - 1, scale_factor=4)  # smooth, as images are
    update = leakage.local_update(net, x, y)
    found = leakage.inversion(net, update, y, SHAPE, iterations=150, smoothness=0.001)
    assert found.x.abs().max() <= 1 and found.loss < 0.1 * found.trace[0] and len(found.trace) == 151
    quality = leakage.fidelity(leakage.pixels(x[0], 0.5, 0.5), leakage.pixels(found.x[0], 0.5, 0.5))
    assert quality["psnr"] > 20
    again = leakage.inversion(net, update, y, SHAPE, iterations=3, seed=1)
    assert torch.equal(again.x, leakage.inversion(net, update, y, SHAPE, iterations=3, seed=1).x)
    assert not torch.equal(again.x, leakage.inversion(net, update, y, SHAPE, iterations=3, seed=2).x)


def test_a_search_without_a_way_down_ends():
    """A network that does not look at its input: no guess is better than another."""
    blind = models.build("cnn-sigmoid", SHAPE, 3, seed=1)
    with torch.no_grad():
        for parameter in blind.parameters():
            parameter.zero_()
    update = leakage.local_update(blind, *images(1))
    wrong = update | {"head.bias": update["head.bias"] + 5}
    assert len(leakage.dlg(blind, wrong, (1, *SHAPE), steps=30).trace) < 31


# --- probes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["4", "4x", "x1", "4x0", "-1x1", "axb", "1x2x3"])
def test_an_update_that_cannot_be_read_is_one_sentence(text):
    with pytest.raises(UserError, match="such as 4x1"):
        study_of(attacks=[{"attack": "dlg", "iterations": 1, "seen": [text]}])


@given(classes=st.integers(1, 4), number=st.integers(1, 20), seed=st.integers(0, 2**31))
def test_the_control_shows_other_images_of_the_same_classes(classes, number, seed):
    labels = torch.arange(60) % classes
    rows, others = probes.draw(labels, number, seed)
    assert len(rows.unique()) == len(rows) == number and not set(rows.tolist()) & set(others.tolist())
    assert torch.equal(labels[rows], labels[others])
    first, _ = probes.draw(labels, 1, seed)
    assert first[0] == rows[0], "the first image of a seed is the same for updates of all sizes"


def test_an_unknown_network_is_one_sentence():
    with pytest.raises(UserError, match="vgg"):
        study_of(networks=["vgg"])


def test_a_picture_survives_as_text():
    image = torch.randint(256, (3, 5, 7)) / 255
    assert torch.equal(probes.picture(probes.png(image)), image)


QUICK = {
    "study": "privacy", "scale": "quick", "dataset": "tiny", "domain": "denim", "images": 2, "rate": 0.05, "most": 3,
    "networks": ["cnn-sigmoid"],
    "attacks": [
        {"attack": "dlg", "iterations": 1, "seen": ["1x1", "2x4"]},
        {"attack": "idlg", "iterations": 1, "seen": ["1x1"]},
        {"attack": "inversion", "iterations": 3, "seen": ["1x1", "2x1", "1x4", "2x4"]},
    ],
}  # fmt: skip


def study_of(**changes) -> PrivacyStudy:
    return PrivacyStudy.read(QUICK | changes)


def probe(**changes) -> Probe:
    told = {"model": "cnn-sigmoid", "steps": 1, "batch": 4, "rate": 0.05, "wanted": 3, "attack": "inversion",
            "iterations": 2, "smoothness": 0.01}  # fmt: skip
    return Probe("tiny", "denim", 0, Setting(**told | changes))


def test_a_record_tells_how_close_guesses_came_to_private_and_to_other_images(tiny_task):
    record = probes.execute(probe(), tiny_task, tiny.CPU, "privacy", "quick")
    json.dumps(record, allow_nan=False)
    told = record["images"]
    assert set(told) == {"attack", "control", "mean image"}
    assert all(len(values) == 3 for kind in told.values() for values in kind.values())
    assert told["attack"] != told["control"] and record["provenance"]["versions"]["torch"]
    assert probes.probe_of(record) == probe() and record["key"] == probe().key(tiny_task.sha256)
    assert probes.picture(record["pictures"]["guess"]).shape == SHAPE
    again = probes.execute(probe(), tiny_task, tiny.CPU)
    assert again["images"] == told and again["key"] == record["key"]
    assert probe(rate=0.1).key("") != probe().key("")


def test_images_with_a_scale_for_each_channel_are_refused(tiny_task):
    target = replace(tiny_task.target, train=replace(tiny_task.target.train, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2)))
    with pytest.raises(UserError, match="one scale for all channels"):
        probes.execute(probe(), replace(tiny_task, target=target), tiny.CPU)


def test_inversion_looks_for_all_images_of_a_small_update_and_follows_its_steps(tiny_task, monkeypatch):
    asked = []

    def invert(_, update, labels, shape, iterations, smoothness, seed, steps, rate):
        asked.append((len(labels), steps))
        return leakage.Recovery(torch.zeros(len(labels), *shape), labels, [1.0, 1.0])

    monkeypatch.setattr("kd3a.leakage.inversion", invert)
    for _, one in study_of().runs():
        if one.method == "inversion":
            probes.execute(one, tiny_task, tiny.CPU)
    assert sorted(asked) == [(1, 1), (1, 1), (2, 2), (3, 1), (3, 1)]


def test_a_search_that_blew_up_has_found_nothing(tiny_task, monkeypatch):
    lost = leakage.Recovery(torch.full((3, *SHAPE), torch.nan), torch.zeros(3), [1.0, 1.0])
    monkeypatch.setattr("kd3a.probes.attacked", lambda *_: lost)
    record = probes.execute(probe(), tiny_task, tiny.CPU)
    assert probes.picture(record["pictures"]["guess"]).unique().tolist() == [pytest.approx(0.5, abs=0.01)]


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_data(tiny_task, monkeypatch):
    """Whatever is attacked, it is the tiny task's target."""
    monkeypatch.setattr("kd3a.data.load", lambda name, target, folder=None: tiny_task)


def test_a_study_of_attacks_resumes(tiny_data, tmp_path):
    results, lines = Reconstructions(study_of(), tmp_path), []
    assert results.estimate() == "11 of 11 runs to train; no recorded run tells yet how long they take."
    results.train(tiny.CPU, say=lines.append)
    whole = results.path.read_text().splitlines()
    assert len(whole) == 11 and results.estimate() == "Every run is recorded."
    results.path.write_text("\n".join(whole[:5]) + "\n" + whole[5][:40])  # stopped while it wrote
    assert "6 of 11 runs" in results.estimate()
    results.train(tiny.CPU)
    facts = ("key", "images", "config", "seed")
    parsed = [[{f: json.loads(line)[f] for f in facts} for line in text] for text in
              (whole, results.path.read_text().splitlines())]  # fmt: skip
    assert parsed[0] == parsed[1]
    assert "PSNR" in lines[1] and "control" in lines[1]
    only = Reconstructions(study_of(), tmp_path, {"method": {"dlg"}})
    assert {run.method for _, run in only.grid} == {"dlg"} and len(only.grid) == 4


def test_a_worker_makes_an_attack_as_it_is_made_here(tiny_data, tiny_task):
    told = {"hardware": tiny.CPU.model_dump(), "study": "privacy", "scale": "quick", "folder": None}
    call = worker.call("train", told=probe().facts(), key=probe().key(tiny_task.sha256), **told)
    record = worker.heard(worker.answer(call))
    assert record["images"] == probes.execute(probe(), tiny_task, tiny.CPU)["images"]
    assert Reconstructions(study_of()).spreads


def test_every_row_has_as_many_images_and_updates_as_were_asked_for():
    for scale in ("quick", "cpu", "paper"):
        study = shipped("privacy", scale)
        tried = pd.Series([title for title, _ in study.runs()]).value_counts()
        for cell in study.methods:
            wanted = 1 if cell.entry.attack != "inversion" else min(cell.seen.images, study.most)
            images = tried[cell.title] * wanted
            assert study.images <= images and study.updates <= tried[cell.title]
            assert images < study.images + wanted or tried[cell.title] == study.updates
    assert [Seen.parse(t).images for t in ("1x1", "20x50")] == [1, 1000]


def recorded(
    study: PrivacyStudy, psnr: dict[tuple[str, str], float], other: float = 10.0, average: float = 12.0
) -> list[dict]:
    """A record of every probe: ``psnr`` of an attack by (attack, update), 10 dB where it has none."""
    lines = []
    for title, run in study.runs():
        _, attack, seen = title.split(" · ")
        value, s = psnr.get((attack, seen), 10.0), run.setting
        told = {kind: {"psnr": [v] * s.wanted, "ssim": [v / 50] * s.wanted}
                for kind, v in (("attack", value), ("control", other), ("mean image", average))}  # fmt: skip
        notes = {"started": "2026-01-01", "device": "cpu", "cpu": "a CPU", "threads": 1, "commit": "c" * 40,
                 "dirty": False, "versions": {"torch": "1"}}  # fmt: skip
        picture = probes.png(torch.full((3, 32, 32), 0.5))
        lines.append({"key": run.key("0" * 64), "data_sha256": "0" * 64, "dataset": run.dataset, "method": run.method,
                      "target": run.target, "seed": run.seed, "config": vars(s), "images": told, "seconds": 1.0,
                      "peak_mb": 1.0, "provenance": notes,
                      "pictures": {"private": picture, "guess": picture}})  # fmt: skip
    return lines


def results_with(study: PrivacyStudy, folder, lines: list[dict]) -> Reconstructions:
    results = Reconstructions(study, folder)
    results.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return results


def test_recovered_is_a_matter_of_decibels(tmp_path):
    study = study_of()
    lines = recorded(study, {("dlg", "1 × 1"): 20.0, ("inversion", "1 × 1"): 19.9})
    frame = results_with(study, tmp_path, lines).frame().groupby("row")["recovered"].mean()
    assert frame["cnn-sigmoid · dlg · 1 × 1"] == 1 and frame["cnn-sigmoid · inversion · 1 × 1"] == 0
    assert frame[control("cnn-sigmoid · dlg · 1 × 1")] == 0
    table = results_with(study, tmp_path, lines).text()
    assert "20.0 ± 0.0 / 10.0 ± 0.0" in table and "100 / 0" in table


def test_an_estimate_goes_by_the_same_attack_and_network(tmp_path):
    study = study_of(networks=["cnn-sigmoid", "cnn-narrow"])
    lines = [line for line in recorded(study, {}) if line["config"]["model"] == "cnn-sigmoid"]
    results = results_with(study, tmp_path, lines)
    assert "11 of 22 runs to train; no recorded run" in results.estimate()
    assert results.expected(probe(iterations=6), lines) == pytest.approx(2.0)
    assert results.expected(probe(model="cnn-narrow"), lines) is None


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_command_line_knows_both_kinds_of_studies(tiny_data, tmp_path, capsys, monkeypatch):
    path = tmp_path / "params.yaml"
    attacks = [{"attack": "inversion", "iterations": 2, "seen": ["1x1"]}]
    path.write_text(json.dumps(QUICK | {"dataset": "digits", "domain": "street", "attacks": attacks}))
    assert cli.main(["study", str(path), "--results", str(tmp_path), "--device", "cpu"]) == 0
    assert "cnn-sigmoid · inversion · 1 × 1" in capsys.readouterr().out
    file = tmp_path / "privacy-quick.jsonl"
    verify = ["verify", str(file), "--sample", "9", "--device", "cpu"]
    assert cli.main(verify) == 0
    assert capsys.readouterr().out.count("identical in every image") == 2
    record = json.loads(file.read_text().splitlines()[0])
    record["images"]["attack"]["psnr"][0] += 1
    file.write_text(json.dumps(record) + "\n")
    assert cli.main(verify) == 1 and "differs by 1.00 dB" in capsys.readouterr().out
    path.write_text(json.dumps(QUICK | {"domain": "nowhere", "dataset": "digits"}))
    assert cli.main(["study", str(path)]) == 2 and "nowhere" in capsys.readouterr().err


# --- claims and the page ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale, small", [("quick", 6), ("cpu", 10), ("paper", 10)])
def test_the_ledger_finds_its_statements_at_every_scale(scale, small):
    asked = claims.of("privacy", [cell.title for cell in shipped("privacy", scale).methods])
    assert ["round" in claim.text for claim in asked] == small * [False] + 6 * [True]
    assert sum("one image" in claim.text for claim in asked) == 4
    assert {claim.value for claim in asked} == {"recovered"}


def test_what_leaks_and_what_does_not_is_judged_against_the_control(tmp_path):
    cpu = shipped("privacy", "cpu")
    asked = claims.of("privacy", [cell.title for cell in cpu.methods])
    good = {(attack, "1 × 1"): 30.0 for attack in ("dlg", "inversion")}
    good |= {(attack, "1 × 50"): 30.0 for attack in ("dlg", "idlg", "inversion")}

    def outcome(psnr, **others) -> list[bool | None]:
        results = results_with(cpu, tmp_path, recorded(cpu, psnr, **others))
        return [f.holds for f in judging.judge(report.outcomes(results), asked, cpu.domains())]

    assert outcome(good) == 16 * [True]
    assert outcome(good | {("dlg", "20 × 50"): 30.0}).count(False) == 2
    assert outcome({}) == 10 * [False] + 6 * [True]
    assert outcome(good, other=30.0) == 10 * [False] + 6 * [True], "a control that does as well takes the claim away"
    assert outcome(good, average=30.0) == 10 * [False] + 6 * [True], "and so does an image that needs no update"


def test_a_row_is_judged_when_it_is_whole(tmp_path):
    cpu = shipped("privacy", "cpu")
    lines = recorded(cpu, {})
    first = next(line for line in lines if line["method"] == "dlg" and line["seed"] == 3)
    results = results_with(cpu, tmp_path, [line for line in lines if line is not first])
    title = next(title for title, run, record in results.recorded() if record is None)
    left = set(report.outcomes(results)["row"])
    assert set(results.frame()["row"]) - left == {title, *rivals(title)}
    asked = claims.of("privacy", [cell.title for cell in cpu.methods])
    assert [f.holds for f in judging.judge(report.outcomes(results), asked, cpu.domains())].count(None) == 1


@pytest.mark.parametrize("there", [True, False], ids=["recorded", "unrecorded"])
def test_the_page_shows_what_is_recorded(there, tmp_path, monkeypatch, no_task, capsys):  # noqa: F811
    monkeypatch.setenv("KD3A_FIGURES", str(tmp_path / "figures"))
    cpu = shipped("privacy", "cpu")
    results_with(cpu, tmp_path, recorded(cpu, {("dlg", "1 × 1"): 30.0}) if there else [])
    shown = shown_by("privacy", results=str(tmp_path))
    assert shown[-1].data.startswith("**Partly reproduced, not clear**" if there else "**Open**")
    assert (shown[0] is None) is there
    assert sum(isinstance(item, plots.Picture) and item.path.exists() for item in shown) == 2
    tables = [item for item in shown if isinstance(item, pd.DataFrame) and there]
    assert all(not table.isna().any(axis=None) for table in tables)
    assert [len(table) for table in tables] == ([14, 14] if there else [])
    assert "`cnn-sigmoid` 2\u00a0×\u00a01, " in shown[-4].data if there else "No attack" in shown[-4].data
    assert all(set(table["mean image: PSNR (dB)"]) == {"12.0"} for table in tables)


def test_updates_from_which_nothing_was_found_are_named(tmp_path, no_task):  # noqa: F811
    study = shipped("privacy", "cpu")
    found = {("inversion", seen): 30.0 for seen in ("1 × 1", "8 × 1", "1 × 50")}
    results_with(study, tmp_path, recorded(study, found | {("dlg", "4 × 1"): 12.1}))
    page = PrivacyPage("studies/privacy", "privacy", "cpu", str(tmp_path))
    told = page.chance().data.replace("\u00a0", " ")
    assert "`cnn-sigmoid` 2 × 1, 20 × 1, 20 × 50; `cnn-narrow` 2 × 1, 20 × 1, 20 × 50." in told
    results_with(study, tmp_path, recorded(study, {}, average=9.0))
    page = PrivacyPage("studies/privacy", "privacy", "cpu", str(tmp_path))
    assert "`cnn-sigmoid` none; `cnn-narrow` none." in page.chance().data


def test_updates_stand_in_order_on_the_page(tmp_path, no_task):  # noqa: F811
    page = PrivacyPage("studies/privacy", "privacy", "cpu", str(tmp_path))
    assert page.seen() == ["1 × 1", "2 × 1", "4 × 1", "8 × 1", "20 × 1", "1 × 50", "20 × 50"]


def test_figures_are_the_same_every_time(tmp_path, drawn):
    results = results_with(study_of(), tmp_path, recorded(study_of(), {}))
    drawn(lambda: plots_privacy.fidelity_curves(results.frame(), ["1 × 1", "2 × 1", "2 × 4"]), "curves")
    image = (torch.full((3, 4, 4), 0.5), "12 dB")
    drawn(lambda: plots_privacy.reconstruction_grid({"a": {"1 × 1": image}, "b": {}}, ["1 × 1", "2 × 1"]), "grid")
