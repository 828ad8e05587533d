"""The studies: what they add to methods, records and reports, their params, and pages with and without records."""

from __future__ import annotations

import ast
import json
import pickle
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
import tiny
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kd3a import claims, consensus, judging, page, paper, plots, plots_studies, records, report
from kd3a.channel import Channel, NotFinite
from kd3a.cli import main
from kd3a.errors import UserError
from kd3a.judging import Claim
from kd3a.methods.base import Poll
from kd3a.methods.kd3a import KD3A
from kd3a.methods.kd3a_switches import OFFICIAL, Config
from kd3a.page import Page
from kd3a.reconstructions import rivals
from kd3a.records import ROOT
from kd3a.runs import execute, make_run, score, start
from kd3a.settings import Training
from kd3a.study import Results, Study, expected_seconds, load_study, shipped, study_given
from kd3a.trainer import Trainer

STUDIES = ("ablation", "augmentation", "gate", "negative-transfer", "rounds", "paper-against-code", "sensitivity")
every_study = pytest.mark.parametrize("study", STUDIES)

# --- ensembles instead of the vote ----------------------------------------------------------------------------------

predictions = st.tuples(*(st.integers(1, n) for n in (6, 4, 5)), st.integers(0, 2**31)).map(
    lambda s: np.random.default_rng(s[3]).dirichlet(np.ones(s[2]), s[:2])
)


def literal_ensemble(q: np.ndarray, kind: str) -> np.ndarray:
    """Sample by sample: the mean of the teachers, or the one that is surest."""
    rows = []
    for teachers in q:
        surest = max(range(len(teachers)), key=lambda k: (teachers[k].max(), -k))
        rows.append(sum(teachers) / len(teachers) if kind == "mean" else teachers[surest])
    return np.array(rows)


@pytest.mark.parametrize("kind", ["mean", "max"])
@given(q=predictions)
def test_ensembles_are_their_formulas(kind, q):
    p, n = consensus.ensemble(torch.from_numpy(q), kind)
    np.testing.assert_allclose(p, literal_ensemble(q, kind), atol=1e-12)
    assert n.tolist() == [1.0] * len(q)


def test_an_unknown_ensemble_is_refused():
    with pytest.raises(ValueError, match="median"):
        consensus.ensemble(torch.ones(1, 1, 1), "median")


SMALL = tiny.TRAINING.model_copy(update={"model": "small"})


def kd3a_on(task, training: Training = SMALL, **config) -> KD3A:
    return KD3A(task, Config(**config), Trainer(training, tiny.CPU, 0), Channel(task.target.name))


@pytest.mark.parametrize("teachers", ["eval", "train"])
@pytest.mark.parametrize("kind", ["mean", "max"])
def test_the_student_learns_the_ensemble(kind, teachers, tiny_task, monkeypatch):
    method = kd3a_on(tiny_task, ensemble=kind, teachers=teachers, mixup=0.0)
    seen = []
    monkeypatch.setattr(
        "kd3a.methods.kd3a.distillation", lambda logits, p, n: seen.append((p, n)) or (logits - p).square().mean()
    )
    asked, real = [], consensus.ensemble
    monkeypatch.setattr("kd3a.methods.kd3a.ensemble", lambda q, k: asked.append((q, k)) or real(q, k))
    (log,) = tiny.train(method, last=1)
    assert {k for _, k in asked} == {kind} and log["vote"].accepted.all()
    q = torch.cat([q for q, _ in asked[:-1]]).numpy()  # the last one is asked for the record
    known = {tuple(row) for row in literal_ensemble(q, kind).astype(np.float32).round(5).tolist()}
    learned = torch.cat([p for p, _ in seen]).numpy().astype(np.float32).round(5).tolist()
    assert len(learned) == 24 and {tuple(row) for row in learned} <= known
    assert all((n == 1).all() for _, n in seen)


# --- the vote in the record -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.booleans()), min_size=1, max_size=20))
def test_a_vote_is_scored_on_what_it_accepted(ballots):
    labels = torch.tensor([0, 1, 2, 0, 1])
    rows, choice, accepted = zip(*ballots, strict=True)
    told = score(Poll(torch.tensor(rows), torch.tensor(choice), torch.tensor(accepted)), labels)
    counted = [int(labels[r]) == c for r, c, a in ballots if a]
    assert told["accepted"] == pytest.approx(len(counted) / len(ballots))
    assert told["accuracy"] == (pytest.approx(sum(counted) / len(counted)) if counted else None)


@pytest.mark.parametrize("vote_on", ["all", "stage"])
def test_the_vote_that_is_told_is_the_vote_that_was_held(vote_on, tiny_task):
    method = kd3a_on(tiny_task, vote_on=vote_on, **tiny.LOW_GATE)
    (log,) = tiny.train(method, last=1)
    poll = log["vote"]
    assert len(poll.rows) == (len(tiny_task.target.train) if vote_on == "all" else 24)
    q = method.consult(poll.rows)  # in eval mode the teachers are still what they were
    p, n = consensus.knowledge_vote(q, log["gate"])
    assert torch.equal(poll.choice, p.argmax(-1)) and torch.equal(poll.accepted, n >= 1)
    assert poll.accepted.sum() > 0


def test_the_vote_is_told_once_an_epoch(tiny_task):
    training = SMALL.model_copy(update={"rounds_per_epoch": 3.0})
    logs = tiny.train(kd3a_on(tiny_task, training, teachers="train", **tiny.LOW_GATE))
    assert ["vote" in log for log in logs] == [log["stage"].closes_epoch for log in logs] == 2 * [False, False, True]
    assert [len(log["vote"].rows) for log in logs if "vote" in log] == [8, 8]


@pytest.mark.parametrize("teachers", ["eval", "train"])
def test_labels_of_the_target_score_the_vote_and_change_nothing_else(teachers, tiny_task, own_cache):
    config = {"teachers": teachers} | tiny.LOW_GATE
    run = make_run("digits", "denim", "kd3a", 0, SMALL, config)
    one, other = (execute(run, task, tiny.CPU, quiet=True) for task in (tiny_task, relabelled(tiny_task)))
    votes = [[epoch.pop("vote") for epoch in record["epochs"]] for record in (one, other)]
    assert one["epochs"] == other["epochs"]
    assert [v["accepted"] for v in votes[0]] == [v["accepted"] for v in votes[1]]
    assert [v["accuracy"] for v in votes[0]] != [v["accuracy"] for v in votes[1]]
    json.dumps(votes, allow_nan=False)


def relabelled(task):
    """Another label for every training sample of the target, and a key of its own."""
    changed = tiny.relabelled(task, "train")
    return type(task)(task.dataset, task.sources, changed.target, task.classes, "1" * 64)


# --- rows with settings of their own, and the estimate ----------------------------------------------------------------


def study_of(*methods: dict, **changes) -> Study:
    values = {
        "study": "tiny", "scale": "quick", "dataset": "digits", "targets": ["mnist"], "seeds": [0],
        "training": {"epochs": 4, "epoch_samples": 500}, "methods": list(methods),
    }  # fmt: skip
    return Study.read(values | changes)


def test_a_row_may_have_its_own_training():
    study = study_of({"method": "fedavg"}, {"method": "fedavg", "label": "r", "training": {"rounds_per_epoch": 2}})
    (_, one), (_, two) = study.runs()
    assert (one.training.rounds_per_epoch, two.training.rounds_per_epoch) == (1, 2)
    assert one.training.epochs == two.training.epochs == 4 and one.key("") != two.key("")


def test_a_whole_params_file_may_be_a_notebooks_parameters():
    file = yaml.safe_load((ROOT / "params" / "gate" / "quick.yaml").read_text())
    names = {"train": False, "results": "", "_": [1], **file, "seeds": [7]}
    assert (
        study_given(names, "gate").seeds == [7]
        and study_given(names, "gate").methods == shipped("gate", "quick").methods
    )
    assert study_given(names | {"study": "gate-other"}, "gate") is None  # another study of the page
    assert study_given({"scale": "quick", "train": True, "methods": ["KD3A"]}, "gate") is None
    with pytest.raises(UserError, match="those of study gate, and this page shows rounds"):
        study_given(names, "rounds")
    with pytest.raises(UserError, match=r"the notebook's parameters: unknown key 'training.epoch'"):
        study_given(names | {"training": {"epoch": 1}}, "gate")
    attacks = yaml.safe_load((ROOT / "params" / "privacy" / "quick.yaml").read_text())
    assert study_given(attacks | {"images": 3}, "privacy").images == 3


ELSEWHERE = [
    path.parent.name for path in (ROOT / "params").glob("*/cpu.yaml") if path.parent.name.rpartition("-")[0] in STUDIES
]


@pytest.mark.parametrize("study", ELSEWHERE)
def test_a_study_on_other_data_has_the_same_rows(study):
    base, _, end = study.rpartition("-")
    here, there = shipped(base, "cpu"), shipped(study, "cpu")
    rows = {e.title: e.config | e.training for e in here.methods}
    bad = {"negative-transfer-digit5": ("synth", "up")}.get(study, ("", ""))
    assert there.dataset == end
    for entry in there.methods:
        assert str(rows.pop(entry.title)).replace(*bad) == str(entry.config | entry.training)
    assert not rows or end == "amazon", "reviews need no row that differs by BatchNorm alone"


def test_without_batchnorm_there_is_nothing_to_say_of_it():
    rows = [entry.title for entry in shipped("ablation-amazon", "cpu").methods]
    asked = claims.of("ablation", rows)
    assert {row for claim in asked for row in (claim.above, *claim.below)} <= set(rows)
    whole = claims.of("ablation", [entry.title for entry in shipped("ablation", "cpu").methods])
    assert [claim.text for claim in whole if claim.text not in [c.text for c in asked]] == [
        "BatchNorm MMD improves on that",
        "BatchNorm MMD does so on every target",
        "The closed form does as well as the loss",
    ]


def test_a_page_tells_what_other_data_say(tmp_path, capsys):
    for name in ("gate", "gate-digit5"):
        study = shipped(name, "cpu")
        records.append(tmp_path / f"{name}-cpu.jsonl", *recorded(study))
    own = Page("studies/gate", "gate", "cpu", str(tmp_path))
    told = own.elsewhere()
    assert list(told.columns) == ["digits", "Digit-5"] and len(told) == 3
    assert Page("studies/gate", "gate", "quick", str(tmp_path)).elsewhere() is None
    (tmp_path / "gate-digit5-cpu.jsonl").unlink()
    assert Page("studies/gate", "gate", "cpu", str(tmp_path)).elsewhere() is None


def test_a_page_shows_the_study_it_is_given(tmp_path):
    file = yaml.safe_load((ROOT / "params" / "gate" / "quick.yaml").read_text())
    page = Page("studies/gate", "gate", "quick", str(tmp_path), names=file | {"seeds": [3, 4]})
    assert page.study.seeds == [3, 4] and "-f params/gate/quick.yaml" in page.commands().data


@pytest.mark.parametrize("wrong", [{"round": 2}, {"rounds_per_epoch": 1000}, {"poison": "street"}])
def test_a_wrong_setting_of_a_row_is_one_sentence(wrong):
    with pytest.raises(UserError, match=r"training of row 'odd'") as told:
        study_of({"method": "fedavg", "label": "odd", "training": wrong}).runs()
    assert "\n" not in str(told.value)


def recorded(study: Study, seconds: float = 10.0) -> list[dict]:
    """A record of every run of a study, all alike but for what tells them apart; without mixup no vote is held."""
    lines = []
    for i, (_, run) in enumerate(study.runs()):
        weights = {name: 0.2 for name in ("mnist", "mnist_m", "optdigits", "synth", "street")}
        vote = {"accepted": 0.5, "accuracy": None if run.config.model_dump().get("mixup") == 0 else 0.75}
        entry = {"epoch": 1, "target_accuracy": 0.5 + 0.01 * i, "loss": 1.0, "gate": 0.9, "weights": weights,
                 "bytes_up": 10**6, "bytes_down": 10**6}  # fmt: skip
        entry |= {"vote": vote} if run.method == "kd3a" else {}
        notes = {"started": "2026-01-01", "device": "cpu", "cpu": "a CPU", "threads": 1, "commit": "c" * 40,
                 "dirty": False, "versions": {"torch": "1"}}  # fmt: skip
        lines.append(
            {"key": run.key("0" * 64), "data_sha256": "0" * 64, "dataset": run.dataset, "method": run.method,
             "target": run.target, "seed": run.seed, "config": run.settings, "epochs": [entry],
             "target_accuracy": entry["target_accuracy"], "seconds": seconds, "peak_mb": 1.0, "provenance": notes}
        )  # fmt: skip
    return lines


def results_with(study: Study, folder, lines: list[dict]) -> Results:
    results = Results(study, folder)
    results.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return results


@given(epochs=st.integers(1, 50), samples=st.integers(50, 5000), seconds=st.floats(0.1, 1e4))
def test_time_is_expected_to_grow_with_the_samples(epochs, samples, seconds):
    known = recorded(study_of({"method": "fedavg"}), seconds)
    training = Training(epochs=epochs, epoch_samples=samples)
    run = make_run("digits", "street", "fedavg", 7, training, {})
    assert expected_seconds(run, known) == pytest.approx(seconds * epochs * samples / (4 * 500))
    assert expected_seconds(make_run("digits", "street", "kd3a", 7, training, {}), known) is None
    assert expected_seconds(make_run("digits", "street", "fedavg", 7, Training(model="cnn-paper"), {}), known) is None


def test_runs_with_as_many_rounds_tell_more_than_others():
    rows = [{"method": "fedavg", "label": f"r = {r}", "training": {"rounds_per_epoch": r}} for r in (1, 10)]
    known = recorded(study_of(*rows))
    known[1]["seconds"] = 90.0
    times = {r: expected_seconds(one_run(rounds_per_epoch=r), known) for r in (1, 10, 2)}
    assert times == {1: pytest.approx(10), 10: pytest.approx(90), 2: pytest.approx(50)}


def one_run(**training):
    return make_run("digits", "street", "fedavg", 7, Training(epochs=4, epoch_samples=500, **training), {})


def test_the_estimate_says_what_is_left(tmp_path):
    study = study_of({"method": "fedavg"}, {"method": "kd3a"}, seeds=[0, 1])
    assert Results(study, tmp_path).estimate() == "4 of 4 runs to train; no recorded run tells yet how long they take."
    lines = recorded(study, seconds=30.0)
    results = results_with(study, tmp_path, lines[:1])
    runs = "going by recorded runs of 1 of them (1 on other processors)."
    told = f"3 of 4 runs to train: about 90 s one after the other, {runs}"
    assert results.estimate() == told
    assert results_with(study, tmp_path, lines).estimate() == "Every run is recorded."


def test_a_study_says_its_estimate_before_and_after_the_first_run(tmp_path, monkeypatch):
    study = study_of({"method": "fedavg"}, seeds=[0, 1, 2])
    waiting = iter(recorded(study))

    def train(run, task, hardware, name, scale, quiet, out):
        record = next(waiting)
        records.append(out, record)
        return record

    monkeypatch.setattr("kd3a.study.execute", train)
    monkeypatch.setattr(Results, "task", lambda self, target, folder=None: SimpleNamespace(sha256="0" * 64))
    lines: list[str] = []
    Results(study, tmp_path).train(tiny.CPU, say=lines.append)
    assert [("runs to train" in line) for line in lines] == [True, False, True, False, False]
    assert "about 20 s" in lines[2]


def test_a_run_that_diverges_does_not_stop_the_study(tmp_path, monkeypatch):
    study = study_of({"method": "fedavg"}, seeds=[0, 1])
    waiting = iter([NotFinite("Message of amber: params is refused."), recorded(study)[1]])

    def train(run, task, hardware, name, scale, quiet, out):
        if isinstance(outcome := next(waiting), Exception):
            raise outcome
        records.append(out, outcome)
        return outcome

    monkeypatch.setattr("kd3a.study.execute", train)
    monkeypatch.setattr(Results, "task", lambda self, target, folder=None: SimpleNamespace(sha256="0" * 64))
    lines: list[str] = []
    results = Results(study, tmp_path)
    results.train(tiny.CPU, say=lines.append)
    assert "diverged, no record: Message of amber" in lines[1] and "seed 0" in lines[1]
    assert [record is None for _, _, record in results.recorded()] == [True, False]


def test_a_study_without_its_data_is_passed_over(tmp_path, monkeypatch, capsys):
    def absent(*_):
        raise UserError("The digits are not here.")

    monkeypatch.setattr("kd3a.data.load", absent)
    command = ["study", str(ROOT / "params" / "gate" / "quick.yaml"), "--results", str(tmp_path)]
    assert main([*command, "--if-there"]) == 0
    assert capsys.readouterr().out == "gate, quick is passed over. The digits are not here.\n"
    assert main(command) == 2


# --- sources that take part, and runs in processes of their own ------------------------------------------------------


@given(seed=st.integers(0, 2**31), number=st.integers(0, 3))
def test_a_larger_number_of_sources_adds_to_a_smaller(seed, number):
    task = tiny.make_task()
    drawn = [source.name for source in task.with_sources(number, seed).sources]
    more = [source.name for source in task.with_sources(3, seed).sources]
    assert len(drawn) == (number or 3) and drawn == [name for name in more if name in drawn]
    fewer = {source.name for source in task.with_sources(max(1, number - 1), seed).sources}
    assert number == 0 or fewer <= set(drawn)


def test_more_sources_than_there_are_is_one_sentence(tiny_task):
    with pytest.raises(UserError, match="sources = 4"):
        tiny_task.with_sources(4, 0)


def test_a_run_has_the_sources_that_its_seed_draws(tiny_task):
    training = SMALL.model_copy(update={"sources": 1})
    names = {start(make_run("digits", "denim", "fedavg", seed, training, {}), tiny_task, tiny.CPU).task.sources[0].name
             for seed in range(12)}  # fmt: skip
    assert names == {"amber", "beige", "coral"}
    run = make_run("digits", "denim", "fedavg", 0, SMALL, {})
    assert len(start(run, tiny_task, tiny.CPU).task.sources) == 3
    assert run.key("") == make_run("digits", "denim", "fedavg", 0, SMALL.model_copy(update={"sources": 0}), {}).key("")


def test_a_study_may_give_every_run_a_process_of_its_own(tmp_path, monkeypatch):
    study = study_of({"method": "fedavg"}, apart=True, seeds=[0, 1])
    waiting, handed = iter(recorded(study)), []

    class Pool:
        """Stands for the pool of processes: what is handed over must survive the way, then it is done here."""

        def __init__(self, workers, context):
            assert workers == 1 and context.get_start_method() == "forkserver"

        def __enter__(self):
            return self

        def __exit__(self, *_):
            handed.append("closed")

        def submit(self, function, *told):
            handed.append(pickle.loads(pickle.dumps((function, told)))[1][0])
            return SimpleNamespace(result=lambda: function(*told))

    def train(run, task, hardware, name, scale, quiet, out):
        record = next(waiting)
        records.append(out, record)
        return record

    monkeypatch.setattr("kd3a.study.ProcessPoolExecutor", Pool)
    monkeypatch.setattr("kd3a.study.execute", train)
    monkeypatch.setattr("kd3a.data.load", lambda name, target, folder=None: SimpleNamespace(sha256="0" * 64))
    Results(study, tmp_path).train(tiny.CPU)
    assert handed == [study.runs()[0][1], "closed", study.runs()[1][1], "closed"], "a new process for every run"
    assert Results(study, tmp_path).estimate() == "Every run is recorded."


def test_rows_that_vary_a_setting_are_found_by_their_settings():
    rows = [{"method": "kd3a"}, {"method": "kd3a", "label": "a", "training": {"batch_size": 20}},
            {"method": "kd3a", "label": "b", "training": {"sources": 2}}, {"method": "fedavg"},
            {"method": "kd3a", "label": "c", "training": {"batch_size": 100, "sources": 1}},
            {"method": "kd3a", "label": "d", "training": {"batch_size": 100}, "set": {"mixup": 0.0}}]  # fmt: skip
    panels = report.varied(study_of(*rows), "kd3a")
    assert panels == {"batch size": {50: "kd3a", 20: "a"}, "sources": {4: "kd3a", 2: "b"}}


def test_memory_is_shown_where_it_is_asked_for():
    data = frame_of(a=[[0.5, 0.7]]).assign(seconds=3.0, processor="fast", memory=[100.0, 300.0])
    assert "peak memory (MB)" not in report.exchange(data, ["a"])
    assert report.exchange(data, ["a", "not run"], memory=True)["peak memory (MB)"].tolist() == ["200", "–"]


# --- what the pages are made of ---------------------------------------------------------------------------------------


def frame_of(value: str = "accuracy", **rows: list[list[float]]) -> pd.DataFrame:
    """Values as row=[seed][target]; underscores in names stand for blanks."""
    return pd.DataFrame(
        [
            {"row": row.replace("_", " "), "target": f"t{t}", "seed": str(s), "megabytes": 2.0 + t, value: number}
            for row, seeds in rows.items()
            for s, numbers in enumerate(seeds)
            for t, number in enumerate(numbers)
        ]
    )


points = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


@given(points)
def test_the_front_holds_exactly_the_points_that_nobody_beats(points):
    front = report.pareto([c for c, _ in points], [g for _, g in points])
    chosen = [points[i] for i in front]
    beaten = [any(c <= cost and g >= gain and (c, g) != (cost, gain) for c, g in points) for cost, gain in points]
    assert set(chosen) == {point for point, bad in zip(points, beaten, strict=True) if not bad}
    assert chosen == sorted(set(chosen)) and len(chosen) == len(set(chosen))


def test_a_claim_may_be_about_another_value_and_allow_a_loss():
    data = frame_of(bad=[[0.3, 0.3]], good=[[0.1, 0.2]]).rename(columns={"accuracy": "bad_weight"})
    asked = [
        Claim("heavier", "bad", ("good",), value="bad_weight"),
        Claim("lighter", "good", ("bad",), -0.2, "bad_weight"),
        Claim("much lighter", "good", ("bad",), -0.1, "bad_weight"),
    ]
    findings = judging.judge(data, asked, ["t0", "t1"])
    assert [f.holds for f in findings] == [True, True, False]
    assert findings[0].lead == pytest.approx(0.15)
    assert judging.findings_table(findings)["needed"].tolist() == ["> 0", "≥ −20.0", "≥ −10.0"]
    assert "the bad domain's weight" in page.measured(asked)


def test_switches_are_ranked_by_what_the_codes_value_adds():
    data = frame_of(
        paper=[[0.5], [0.5]], **{"paper_+_a": [[0.6], [0.62]], "paper_+_b": [[0.5], [0.49]]},
        official=[[0.7], [0.7]], **{"official_−_b": [[0.9], [1.0]]},
    )  # fmt: skip
    rows = [*dict.fromkeys(data["row"]), "paper + never run"]
    effects = report.effects(data, rows, ["t0"])
    assert effects[["switch", "company"]].to_numpy().tolist() == [["b", "paper"], ["b", "official"], ["a", "paper"]]
    assert effects["lead"].tolist() == pytest.approx([-0.005, -0.25, 0.11])
    half = 12.7062 * np.std([0.10, 0.12], ddof=1) / np.sqrt(2)  # Student's t with one degree of freedom
    assert effects.loc[2, ["low", "high"]].tolist() == pytest.approx([0.11 - half, 0.11 + half], rel=1e-4)
    table = report.effects_table(effects)
    assert list(table.columns) == ["in paper", "in official"] and table.loc["a", "in official"] == "–"
    assert table.loc["b", "in official"].startswith("−25.0 (") and "clear" not in table.loc["b", "in official"]
    assert report.effects_table(report.effects(data[:0], rows, ["t0"])).empty


def test_an_effect_is_clear_when_its_interval_leaves_out_zero():
    data = frame_of(paper=[[0.5], [0.5], [0.5]], **{"paper_+_a": [[0.6], [0.61], [0.6]]})
    assert (
        report.effects_table(report.effects(data, list(data["row"].unique()), ["t0"]))
        .loc["a", "in paper"]
        .endswith(" clear")
    )


def test_a_crossed_table_has_the_mean_over_targets():
    data = frame_of(a=[[0.5, 0.7], [0.6, 0.8]], b=[[0.1, 0.2]])
    cells = {("x", "one"): "a", ("x", "two"): "b", ("y", "one"): "not run"}
    table = report.cross(data, cells, ["t0", "t1"])
    assert table.to_numpy().tolist() == [["65.0 ± 7.1 (2)", "15.0 (1)"], ["–", "–"]]
    assert list(table.index) == ["x", "y"] and list(table.columns) == ["one", "two"]


def test_bytes_stand_beside_accuracy():
    trade = report.trade(frame_of(a=[[0.5, 0.7], [0.6, 0.8]]), ["a", "not run"], ["t0", "t1"])
    assert trade["row"].tolist() == ["a"] and trade.loc[0, "megabytes"] == pytest.approx(2.5)
    assert trade.loc[0, "mean"] == pytest.approx(0.65) and trade.loc[0, "n"] == 2


POISONED = {"method": "kd3a", "label": "bad", "training": {"poison": "synth:0.3"}}


def test_the_bad_domain_is_what_rows_poison_or_let_attack():
    attacked = {"method": "fedavg", "label": "attacked", "training": {"attack": "synth:random"}}
    assert report.bad_domain(study_of({"method": "fedavg"}, POISONED, attacked)) == "synth"
    assert report.bad_domain(study_of({"method": "fedavg"})) is None
    other = {"method": "fedavg", "label": "other", "training": {"attack": "street:random"}}
    assert report.bad_domain(study_of(POISONED, other)) is None


def test_outcomes_tell_of_the_last_vote_and_the_bad_domain(tmp_path):
    unsure = {"method": "kd3a", "set": {"mixup": 0.0}}
    study = study_of({"method": "fedavg"}, POISONED, unsure)
    results = results_with(study, tmp_path, recorded(study))
    told = report.outcomes(results).set_index("row")
    assert told["bad_weight"].tolist() == [0.2, 0.2, 0.2]
    assert np.array_equal(told["accepted"], [np.nan, 0.5, 0.5], equal_nan=True)
    assert np.array_equal(told["vote_accuracy"], [np.nan, 0.75, np.nan], equal_nan=True)
    assert report.outcomes(Results(study, tmp_path / "none")).empty
    history = report.weights(report.finished(results), "synth")
    assert history["weight"].tolist() == [0.2, 0.2, 0.2] and set(history["epoch"]) == {1}


# --- figures ----------------------------------------------------------------------------------------------------------


def svg(figure, folder, monkeypatch) -> str:
    monkeypatch.setenv("KD3A_FIGURES", str(folder))
    text = plots.save(figure, "drawn").path.read_bytes()
    assert len(text) < 300_000
    return text.decode()


def outcome_frame() -> pd.DataFrame:
    return frame_of(**{"gate_0.5": [[0.5, 0.6], [0.55, 0.6]], "gate_0.5_to_0.9": [[0.7, 0.8]]})


DRAWINGS = {
    "measures": lambda: plots_studies.measures(
        outcome_frame(), ["gate 0.5", "not run"], ["gate 0.5 to 0.9"], {"accuracy": "accuracy (%)"}, "gate"
    ),
    "weights": lambda: plots_studies.weight_curves(
        pd.DataFrame({"row": ["a", "a", "b"], "epoch": [1, 2, 1], "weight": [0.2, 0.1, 0.3]}),
        {"one": {"rule": "a", "other": "b"}, "two": {"other": "b"}, "three": {"rule": "c"}},
        "a",
    ),
    "bytes": lambda: plots_studies.accuracy_against_bytes(
        pd.DataFrame({"row": ["K, r = 1", "K, r = 2", "S"], "megabytes": [1.0, 10, 2], "mean": [0.5, 0.6, 0.55],
                      "std": [0.1, np.nan, 0.0], "n": [2, 1, 2]}),
        {"K": ["K, r = 1", "K, r = 2", "K, r = 3"], "S": ["S"], "none": ["x"]},
    ),
    "effects": lambda: plots_studies.ranked_effects(
        pd.DataFrame({"switch": ["a", "b"], "company": ["paper", "official"], "lead": [0.1, -0.1], "low": [0.0, np.nan],
                      "high": [0.2, np.nan], "seeds": [3, 1]}),
    ),
    "beta": lambda: plots_studies.beta_densities((0.2, 2.0)),
    "sensitivity": lambda: plots_studies.sensitivity(
        outcome_frame(), {"gate": {0.5: "gate 0.5", 0.9: "gate 0.5 to 0.9", 1.0: "not run"}, "none": {1: "not run"}}
    ),
    "cost": lambda: plots_studies.cost_bars(
        outcome_frame().assign(seconds=1.0, memory=2.0), ["gate 0.5", "not run"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)
def test_figures_are_the_same_every_time(draw, tmp_path, monkeypatch):
    assert svg(draw(), tmp_path, monkeypatch) == svg(draw(), tmp_path, monkeypatch)


def test_figures_without_records_say_so(tmp_path, monkeypatch):
    nothing = svg(plots.nothing(), tmp_path, monkeypatch)
    columns = ["row", "target", "seed", "epoch", "weight", "accuracy", "megabytes"]
    empty = pd.DataFrame(columns=columns)
    for figure in (
        plots_studies.measures(empty, ["a"], [], {"accuracy": ""}, ""),
        plots_studies.sensitivity(empty, {"x": {1: "a"}}),
        plots_studies.cost_bars(empty, ["a"]),
        plots_studies.weight_curves(empty, {"one": {"rule": "a"}}, "a"),
        plots_studies.accuracy_against_bytes(report.trade(empty, ["a"], ["t"]), {"a": ["a"]}),
        plots_studies.ranked_effects(report.effects(empty, ["paper", "paper + a"], ["t"])),
    ):
        assert svg(figure, tmp_path, monkeypatch) == nothing


# --- params -----------------------------------------------------------------------------------------------------------

UNTURNED = {"student_passes", "class_vote"}  # without effect at one round an epoch; a reading of one sentence


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_every_switch_is_turned_alone_and_back(scale):
    rows = {entry.title: entry for entry in shipped("paper-against-code", scale).methods}
    default = Config().model_dump()
    assert rows["paper"].config == {} and rows["official"].config == {"variant": "official"}
    for title, entry in rows.items():
        kind, _, switch = title.partition(" ")
        if not switch or title.endswith(" + weight_decay"):
            continue
        switch = switch[2:]
        names = {switch, "weight_decimals"} if switch == "weight_momentum" else {switch}
        wanted = {name: OFFICIAL[name] for name in names}
        if kind == "official":
            wanted = {"variant": "official"} | {name: default[name] for name in names}
        assert entry.config == wanted, title
    there = {title[8:] for title in rows if title.startswith("paper + ")} | {"weight_decimals"}
    assert there == set(OFFICIAL) - UNTURNED | {"weight_decay"}
    back = {title[11:] for title in rows if title.startswith("official − ")}
    assert back == there - {"weight_decimals", "weight_decay", "vote_on"}


@every_study
def test_a_study_has_three_scales_and_quick_is_small(study):
    quick, cpu, paper = (shipped(study, scale) for scale in ("quick", "cpu", "paper"))
    assert len(quick.runs()) <= 12 and quick.dataset == cpu.dataset == "digits"
    titles = {entry.title for entry in cpu.methods}
    assert {entry.title for entry in quick.methods} <= titles
    assert len(cpu.seeds) == 3 and paper.training.epochs == 40
    same = {entry.title: entry.config for entry in cpu.methods}
    assert all(same[e.title] == e.config for e in quick.methods if e.title in same)


def test_the_ladder_turns_one_thing_at_a_time():
    rows = {
        entry.title: Config(**entry.config) for entry in shipped("ablation", "cpu").methods if entry.method == "kd3a"
    }
    full = rows["+ BatchNorm MMD"].model_dump()
    changes = {
        title: {name for name, value in config.model_dump().items() if value != full[name]}
        for title, config in rows.items()
    }
    assert changes == {
        "+ Knowledge Vote": {"focus", "batchnorm_mmd"},
        "+ Consensus Focus": {"batchnorm_mmd"},
        "+ BatchNorm MMD": set(),
        "mean ensemble": {"ensemble"},
        "max ensemble": {"ensemble"},
        "BatchNorm MMD as a loss": {"batchnorm_mmd", "mmd_rate"},
        "plain average": {"batchnorm_mmd"},
        "KD3A as written": {"teachers"},
    }


# --- pages ------------------------------------------------------------------------------------------------------------


def shown_by(page: str, /, **parameters) -> list:
    """Run the code of a page here, with these parameters; returns what its cells would show."""
    notebook = nbformat.read(ROOT / "book" / "studies" / f"{page}.ipynb", as_version=4)
    names, shown = {}, []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        tree = ast.parse(cell.source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, page, "exec"), names)
        if "parameters" in cell.metadata.get("tags", []):
            assert set(parameters) <= set(names), "a page takes these parameters"
            names |= parameters
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), page, "eval"), names))
    return shown


@pytest.fixture
def no_task(monkeypatch):
    """Pages without their data: what the digits are is tested elsewhere."""
    monkeypatch.setattr(Page, "task", lambda self: None)


@every_study
@pytest.mark.parametrize("there", [True, False], ids=["recorded", "unrecorded"])
def test_a_page_shows_what_is_recorded_and_says_what_is_not(study, there, tmp_path, monkeypatch, no_task, capsys):
    monkeypatch.setenv("KD3A_FIGURES", str(tmp_path / "figures"))
    cpu = shipped(study, "cpu")
    results_with(cpu, tmp_path, recorded(cpu) if there else [])
    shown = shown_by(study, results=str(tmp_path))
    verdict = shown[-1].data
    assert verdict.startswith("**Open**") is not there
    said = capsys.readouterr().out
    assert ("Warning" in said or "Markdown" in said) and (shown[0] is None) is there
    for picture in (item for item in shown if isinstance(item, plots.Picture)):
        assert picture.path.exists()
    for table in (item for item in shown if isinstance(item, pd.DataFrame) and there):
        assert not table.isna().any(axis=None)


def test_the_ledger_judges_by_the_claims_of_the_pages(tmp_path, capsys):
    cpu = shipped("rounds", "cpu")
    lines = recorded(cpu)
    for line in lines:  # KD3A is always better than FADA; at r = 1 it is bad beside r = 10
        once = line["config"]["rounds_per_epoch"] == 1
        line["target_accuracy"] = {"kd3a": 0.7 if once else 0.9}.get(line["method"], 0.5)
    results_with(cpu, tmp_path, lines)
    entries = claims.judged("cpu", str(tmp_path))
    verdicts = {one.entry.text: one.verdict for one in entries}
    assert verdicts["KD3A beats FADA with fewer rounds."] == "reproduced"
    assert verdicts["One round an epoch is enough."] == "not reproduced"
    assert verdicts["Mixup helps."] == "open"
    assert verdicts["What KD3A sends after a round does not."] == "open"
    assert verdicts["On DomainNet, it beats all other methods by a large margin."] == "not testable here"
    table = claims.ledger_table(entries)
    assert table.count("\n") == len(claims.LEDGER) + 1 and "\n| [KD3A beats FADA with" in table
    assert "](../studies/rounds.ipynb) | section 5.3 | **reproduced** | +20.0, +40.0 |" in table
    assert claims.tally(entries)["claims"].sum() == len(claims.LEDGER)
    table, counts, behind = shown_by("claims", results=str(tmp_path))
    assert table.data == claims.ledger_table(entries) and counts["claims"].sum() == len(claims.LEDGER)
    line = behind.loc["KD3A at r = 1 beats FADA at every r · digits"]
    assert (line["outcome"], line["measured"]) == ("holds", "+20.0 ± 0.0 (3)")
    assert len(behind) == sum(len(found) for one in entries for found in one.findings.values())


def test_a_claim_of_half_the_way():
    frame = pd.DataFrame(
        {"row": row, "target": "t", "seed": seed, "accuracy": value + seed / 1000}
        for row, value in {"start": 0.5, "first": 0.62, "end": 0.7}.items()
        for seed in range(3)
    )
    more, less = (Claim("", row, ("start", "end"), halfway=True) for row in ("first", "start"))
    found = judging.judge(frame, [more, less], ["t"])
    assert [one.holds for one in found] == [True, False]
    assert found[0].lead == pytest.approx(0.02) and found[1].lead == pytest.approx(-0.1)


def test_a_claim_must_hold_on_all_data_that_have_records(tmp_path):
    for name, mixed in (("augmentation", 0.9), ("augmentation-digit5", 0.7)):
        study = shipped(name, "cpu")
        lines = recorded(study)
        for line in lines:
            line["target_accuracy"] = mixed if line["config"]["mixup"] else 0.8
        results_with(study, tmp_path, lines)
    (one,) = (one for one in claims.judged("cpu", str(tmp_path)) if one.entry.text == "Mixup helps.")
    assert one.verdict == "partly reproduced" and one.measured == "digits +10.0, +10.0; Digit-5 −10.0, −10.0"


@pytest.mark.parametrize("entry", [entry for entry in claims.LEDGER if entry.study], ids=lambda e: e.text)
def test_every_line_of_the_ledger_has_a_page_and_statements(entry):
    known = claims.of(entry.study, [e.title for e in shipped(entry.study, "cpu").methods])
    assert entry.chosen(known) and entry.page
    titles = {e.title for e in shipped(entry.study, "cpu").methods}
    titles |= {rival for title in titles for rival in rivals(title)}  # of attacks
    for claim in known:
        assert {claim.above, *claim.below} <= titles, claim.text


def test_the_pages_of_the_ledger_exist():
    for entry in claims.LEDGER:
        assert not entry.page or (ROOT / "book" / f"{entry.page}.ipynb").exists()


@pytest.mark.parametrize("study", ["digit5", "amazon", "office-caltech10"])
def test_the_ledger_and_the_benchmark_pages_ask_for_the_same(study):
    text = (ROOT / "book" / "benchmarks" / f"{study}.ipynb").read_text()
    assert f'of(\\"{study}\\", page.rows)' in text and "page.verdict(claims)" in text


def test_a_benchmark_asks_about_rivals_only_where_it_has_them():
    searched = [entry.title for entry in shipped("office-caltech10-features", "cpu").methods]
    assert claims.of("office-caltech10", searched)[2].below == ("SHOT", "FADA", "FADA (attention alone)")
    rows = [entry.title for entry in shipped("digit5", "cpu").methods]
    assert [claim.below for claim in claims.of("digit5", rows)[2:]] == [
        ("SHOT", "FADA"),
        ("MDAN", "M³SDA-β", "CMSS", "DSBN"),
        ("SHOT", "FADA", "MDAN", "M³SDA-β", "CMSS", "DSBN"),
    ]
    assert [claim.below for claim in claims.of("amazon", rows)[2:]] == [("FADA",), ("MDAN",)]
    assert [claim.below for claim in claims.of("digit5", ["KD3A"])] == [("Source-only",), ("FedAvg",)]


@every_study
def test_every_page_judges_the_claims_of_its_study(study):
    text = (ROOT / "book" / "studies" / f"{study}.ipynb").read_text()
    assert f'claims = of(\\"{study}\\", page.rows)' in text and "page.verdict(claims" in text


@every_study
def test_quick_records_are_whole(study):
    results = Results(load_study(ROOT / "params" / study / "quick.yaml"))
    missing = [title for title, _, record in results.recorded() if record is None]
    assert not missing


def test_a_refused_upload_is_quoted(tmp_path, monkeypatch):
    own = Page("studies/negative-transfer", "negative-transfer", "quick", str(tmp_path))
    task = tiny.make_task()
    monkeypatch.setattr(own, "task", lambda: task)
    assert "amber" in own.refusal("amber:nan").data and "not finite" in own.refusal("amber:nan").data
    assert own.refusal("amber:scaled").data == "The upload was accepted."
    monkeypatch.setattr(own, "task", lambda: None)
    assert "not at hand" in own.refusal("amber:nan").data


def test_differences_are_told_and_not_judged(tmp_path, no_task):
    cpu = shipped("augmentation", "cpu")
    results_with(cpu, tmp_path, recorded(cpu))
    own = Page("studies/augmentation", "augmentation", "cpu", str(tmp_path))
    table = own.differences([("Beta(2, 2)", "no mixup")])
    assert table.index.tolist() == ["Beta(2, 2) against no mixup"]
    assert table.columns.tolist() == ["points of accuracy", "95 % interval"]
    assert table.iloc[0].tolist() == ["+4.0 ± 0.0 (3)", "+4.0 to +4.0"]


def test_differences_stand_by_two_names(tmp_path, no_task, capsys):
    cpu = shipped("negative-transfer", "cpu")
    lines, high = recorded(cpu), "scaled · consensus-focus"
    for (title, _), line in zip(cpu.runs(), lines, strict=True):
        line["epochs"][0]["weights"]["synth"] = 0.3 if title == high else 0.2
    results_with(cpu, tmp_path, lines)
    own = Page("studies/negative-transfer", "negative-transfer", "cpu", str(tmp_path))
    pair, value = (high, "no bad domain"), "mean_bad_weight"
    table = own.leads({("scaled", "weight"): (*pair, value), ("scaled", "none"): ("no row", pair[1]), ("x", "y"): pair})
    assert table.loc["scaled"].tolist() == ["+10.0 (+10.0 to +10.0)", "–", "–"]
    assert table.loc["x", "y"] == own.differences([pair])["points of accuracy"].item().replace(" ± 0.0 (3)", "") + (
        f" ({own.differences([pair])['95 % interval'].item()})"
    )


def test_the_vote_of_a_row_by_epoch(tmp_path, no_task):
    cpu = shipped("augmentation", "cpu")
    results_with(cpu, tmp_path, recorded(cpu))
    own = Page("studies/augmentation", "augmentation", "cpu", str(tmp_path))
    assert own.polls("Beta(2, 2)", (1, 2)).to_numpy().tolist() == [["50 / 75", "–"]] * len(own.targets)
    assert own.polls("no mixup", (1,))["epoch 1"].tolist() == ["–"] * len(own.targets)  # nothing was accepted


def test_a_passage_leads_from_an_epoch_to_the_last(tmp_path, no_task):
    cpu = shipped("gate", "cpu")
    lines = recorded(cpu)
    for line in lines:
        first = line["epochs"][0] | {"epoch": 1, "target_accuracy": 0.25}
        line["epochs"] = [first, first | {"epoch": 2, "target_accuracy": 0.75}]
    results_with(cpu, tmp_path, lines)
    own = Page("studies/gate", "gate", "cpu", str(tmp_path))
    table = own.passage(["gate 0", "nobody"], 1)
    assert table.loc["gate 0"].tolist() == ["25.0 → 75.0"] * len(own.targets)
    assert table.loc["nobody"].tolist() == ["–"] * len(own.targets)


def test_shares_are_means_over_epochs_and_seeds(tmp_path, no_task):
    cpu = shipped("digits", "cpu")
    lines = recorded(cpu)
    for line in lines:
        first, weights = line["epochs"][0], {"mnist": 0.25, "synth": 0.75}
        line["epochs"] = [first | {"weights": weights}, first | {"weights": {"mnist": 0.75, "synth": 0.25}}]
    results_with(cpu, tmp_path, lines)
    table = Page("benchmarks/digits", "digits", "cpu", str(tmp_path)).shares("FADA")
    assert table.loc["street", ["mnist", "synth", "street"]].tolist() == ["50", "50", "–"]


def test_gains_stand_beside_the_papers(tmp_path, no_task):
    own = Page("studies/augmentation", "augmentation", "cpu", str(tmp_path))
    gains = own.gains("Beta(0.2, 0.2)", "no mixup", {"domainnet": ("KD3A", "KD3A (no mixup)")})
    assert gains.loc["digits, here"].tolist() == ["–", "–", "–", "–"]
    printed = paper.paper_table("domainnet")
    low, high = float(printed["KD3A (no mixup)", "mean"]), float(printed["KD3A", "mean"])
    assert gains.loc["domainnet, in the paper"].tolist() == [f"{low:.1f}", f"{high:.1f}", f"{high - low:+.1f}", "–"]


def test_gains_are_told_of_other_data_and_other_rows(tmp_path, no_task):
    for name in ("augmentation", "augmentation-digit5", "augmentation-amazon"):
        results_with(shipped(name, "cpu"), tmp_path, recorded(shipped(name, "cpu")))
    own = Page("studies/augmentation", "augmentation", "cpu", str(tmp_path))
    written = {"as written": ("as written, Beta(0.2, 0.2)", "as written, no mixup")}
    gains = own.gains("Beta(0.2, 0.2)", "no mixup", {}, written)
    assert gains.index.tolist() == [
        "digits, here", "digits as written, here", "Digit-5, here", "Digit-5 as written, here", "Amazon Review, here"
    ]  # fmt: skip
    high, low = (own.frame[own.frame["row"] == row]["accuracy"].mean() for row in written["as written"])
    told = [f"{100 * low:.1f}", f"{100 * high:.1f}", f"{100 * (high - low):+.1f}"]
    assert gains.loc["digits as written, here"].tolist()[:3] == told
    assert (gains["95 % interval"] != "–").all()
    assert own.others() is own.others(), "their pages are made once"


def test_effects_that_leave_out_zero_are_counted_over_all_data(tmp_path, no_task):
    study = shipped("paper-against-code", "quick")
    results_with(study, tmp_path, recorded(study))
    own = Page("studies/paper-against-code", "paper-against-code", "quick", str(tmp_path))
    assert own.chances().data.startswith("There are no intervals")
    for name in ("paper-against-code", "paper-against-code-digit5"):
        results_with(shipped(name, "cpu"), tmp_path, recorded(shipped(name, "cpu")))
    own = Page("studies/paper-against-code", "paper-against-code", "cpu", str(tmp_path))
    number = 2 * len(report.effects(own.frame, own.rows, own.targets))
    assert f" {number} intervals; " in own.chances().data and f"about {number / 20:.0f} would" in own.chances().data
