"""Sources elsewhere, without Flower: bytes, orders, files, and runs that end with the bits of one process."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save

from kd3a import cli, data, plots_federation, records, runs
from kd3a.channel import Channel, RefusedMessage
from kd3a.domains import Domain, SparsePart
from kd3a.errors import UserError
from kd3a.federation import files, order, report, wire
from kd3a.federation.scaling import scaling, shards
from kd3a.federation.source import Shelf, answer
from kd3a.federation.target import Plan, RemoteExchange, Reply
from kd3a.methods import METHODS
from kd3a.models import parcel
from kd3a.settings import Training
from kd3a.trainer import Trainer

TRAINING = Training(model="small", epochs=2, epoch_samples=16, batch_size=8, rounds_per_epoch=2)
FEDERATED = [case for case, (name, _) in tiny.CASES.items() if METHODS[name].federated]
SOURCES = ("amber", "beige", "coral")


def run_of(case: str = "kd3a", **changes) -> runs.Run:
    name, config = tiny.CASES[case]
    return runs.make_run("tiny", "denim", name, 0, TRAINING.model_copy(update=changes), config)


class Houses(RemoteExchange):
    """Every source behind bytes, with the samples of its own file and a folder for its state; some are out at times."""

    def __init__(self, run: runs.Run, task, folder, out=None, spoil=None, **plan):
        told = {"dataset": "tiny", "method": run.method, "training": run.training, "config": run.config.model_dump()}
        told |= {"sources": SOURCES, "domain": folder / "denim.safetensors", "out": folder, "deadline": 0.01}
        super().__init__(run, Plan(**told | plan), task)
        self.folder, self.out, self.spoil = folder, out or {}, spoil or {}
        self.heard: list[tuple[int, str, bytes]] = []
        files.export(task, folder)

    def online(self) -> list[str]:
        return list(SOURCES)

    def ask(self, stage, text, sent) -> dict[str, Reply]:
        replies = {}
        for name in sorted(sent, reverse=True):  # who answers first must not matter
            if name in self.out.get(stage.round, ()):
                continue
            holding = files.read(self.folder / f"{name}.safetensors")
            given = answer(holding, self.folder / "state" / name, text, sent[name], tiny.CPU)
            upload = wire.encode(given.upload)
            self.heard.append((stage.round, name, upload))
            replies[name] = self.spoil.get((stage.round, name), lambda reply: reply)(Reply(upload, given.loss))
        return replies


@pytest.fixture
def cache(own_cache, monkeypatch):
    monkeypatch.setattr(records, "provenance", lambda *_: {})
    return own_cache


def final(cache, record) -> dict:
    """The checkpoint that a finished run leaves, which is then forgotten."""
    path = cache / "runs" / f"{record['key']}.safetensors"
    tensors = load_file(path)
    path.unlink()
    return tensors


def result(record: records.Record) -> records.Record:
    return {name: value for name, value in record.items() if name not in ("seconds", "peak_mb", "provenance")}


# --- the same bits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FEDERATED)
def test_sources_elsewhere_give_the_bits_of_one_process(case, cache, tmp_path, tiny_task):
    run = run_of(case)
    alone = runs.execute(run, tiny_task, tiny.CPU)
    expected = final(cache, alone)
    task = files_of(tmp_path, tiny_task)
    record = runs.execute(run, task, tiny.CPU, exchange=Houses(run, tiny_task, tmp_path))
    reached = final(cache, record)
    at_home = {name for name in expected if name.startswith(tuple(f"{source}/" for source in SOURCES))}
    assert reached.keys() == expected.keys() - at_home  # momentum stays at the source
    assert all(torch.equal(reached[name], expected[name]) for name in reached)
    if "uploaded" in str(sorted(reached)):  # before its only upload, the target has nothing to score
        for entry in (*alone["epochs"], *record["epochs"]):
            entry.pop("target_accuracy") if entry["epoch"] <= TRAINING.epochs else None
    assert result(record) == result(alone)


def files_of(folder, task):
    """The task as the target alone sees it."""
    files.export(task, folder)
    return files.read(folder / "denim.safetensors").task(SOURCES, "denim")


@pytest.mark.parametrize("changes", [{"poison": "amber:0.5:fixed"}, {"attack": "coral:scaled:3"}], ids=str)
def test_bad_sources_are_bad_at_home(changes, cache, tmp_path, tiny_task):
    run = run_of(**changes)
    expected = final(cache, runs.execute(run, tiny_task, tiny.CPU))
    houses = Houses(run, tiny_task, tmp_path)
    reached = final(cache, runs.execute(run, files_of(tmp_path, tiny_task), tiny.CPU, exchange=houses))
    assert all(torch.equal(reached[name], expected[name]) for name in reached)


def test_the_target_sees_its_own_samples_only(tmp_path, tiny_task):
    task = files_of(tmp_path, tiny_task)
    assert [len(source.train) for source in task.sources] == [0, 0, 0]
    assert torch.equal(task.target.train.x, tiny_task.target.train.x)
    mine = files.read(tmp_path / "beige.safetensors").task(SOURCES, "denim")
    assert [len(d.train) for d in (*mine.sources, mine.target)] == [0, tiny.SIZES["beige"], 0, 0]


def test_a_task_without_some_sources_is_another_one(tmp_path, tiny_task):
    files.export(tiny_task, tmp_path)
    mine = files.read(tmp_path / "amber.safetensors")
    whole = mine.task(("coral", "amber", "beige"), "denim")
    assert [s.name for s in whole.sources] == list(SOURCES) and whole.sha256 == tiny_task.sha256
    fewer = mine.task(("coral", "amber"), "denim")
    assert [s.name for s in fewer.sources] == ["amber", "coral"] and fewer.sha256 != whole.sha256
    assert mine.task(("amber", "coral"), "denim").sha256 == fewer.sha256
    with pytest.raises(UserError, match="domain of tiny 'indigo'"):
        mine.task(("amber", "indigo"), "denim")


def test_uploads_hold_no_sample(cache, tmp_path, tiny_task):
    """Everything a source ever sends: the tensors of its network, and how many samples it has."""
    run = run_of("kd3a")
    houses = Houses(run, tiny_task, tmp_path)
    runs.execute(run, files_of(tmp_path, tiny_task), tiny.CPU, exchange=houses)
    net = Trainer(TRAINING, tiny.CPU, 0).net(tiny_task)
    form = parcel(net) | {"stats": {"samples": torch.tensor(0)}}
    assert len(houses.heard) == 3 * 4
    for _, name, upload in houses.heard:
        Channel("denim").check(wire.decode(upload, name), name, like=form)
        assert len(upload) < wire.largest(form)


# --- sources that are missing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in FEDERATED if c not in ("shot", "decision", "caida")])
def test_a_missing_source_weighs_nothing_in_its_round(case, cache, tmp_path, tiny_task):
    run, seen = run_of(case), []
    houses = Houses(run, tiny_task, tmp_path, out={1: ["beige"]})

    def look(method, stage):
        seen.append(method.memory.get("alpha"))

    record = runs.execute(run, files_of(tmp_path, tiny_task), tiny.CPU, exchange=houses, on_stage=look)
    notes = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [note["silent"] for note in notes] == [[], ["beige"], [], []]
    weights = record["epochs"][0]["weights"]  # of round 1, which closes the first epoch
    assert weights["beige"] == 0 and sum(weights.values()) == pytest.approx(1, abs=1e-3)
    assert record["epochs"][1]["weights"]["beige"] > 0 or "kd3a" in case  # it is back; focus may still give it nothing
    if seen[1] is not None:
        assert seen[1][1] == 0 and seen[1].sum() == pytest.approx(1)


def test_a_missing_source_is_as_if_it_were_not_there(cache, tmp_path, tiny_task):
    """FedAvg's average without beige is that of a task without beige."""
    run = run_of("fedavg", epochs=1, rounds_per_epoch=1)
    houses = Houses(run, tiny_task, tmp_path, out={0: ["beige"]})
    reached = final(cache, runs.execute(run, files_of(tmp_path, tiny_task), tiny.CPU, exchange=houses))
    pair = replace(tiny_task, sources=(tiny_task.sources[0], tiny_task.sources[2]))
    expected = final(cache, runs.execute(run, pair, tiny.CPU))
    assert all(torch.equal(reached[name], expected[name]) for name in reached if name.startswith("denim/net"))


def test_too_few_sources_stop_the_run_which_resumes(cache, tmp_path, tiny_task):
    run = run_of("kd3a")
    expected = final(cache, runs.execute(run, tiny_task, tiny.CPU))
    task = files_of(tmp_path, tiny_task)
    lonely = Houses(run, tiny_task, tmp_path, out={2: ["amber", "beige"]}, min_sources=2)
    with pytest.raises(UserError, match=r"Round 2: 1 of 3 sources \(coral\) .* min_sources = 2"):
        runs.execute(run, task, tiny.CPU, exchange=lonely)
    again = Houses(run, tiny_task, tmp_path, min_sources=2)
    reached = final(cache, runs.execute(run, task, tiny.CPU, exchange=again))
    assert [at for at, *_ in again.heard] == [2, 2, 2, 3, 3, 3]  # coral trained round 2 twice, from the same state
    assert all(torch.equal(reached[name], expected[name]) for name in reached)


def test_the_one_upload_of_shot_may_not_be_missing(cache, tmp_path, tiny_task):
    run = run_of("shot")
    houses = Houses(run, tiny_task, tmp_path, out={1: ["beige"]})
    with pytest.raises(UserError, match="No upload of beige"):
        runs.execute(run, files_of(tmp_path, tiny_task), tiny.CPU, exchange=houses)


# --- uploads that are refused -----------------------------------------------------------------------------------------


def changed(change):
    """A reply whose tensors are not what they should be."""

    def spoil(reply: Reply) -> Reply:
        message = wire.decode(reply.data, "beige")
        name, tensor = max(message["params"].items(), key=lambda item: item[1].numel())
        message["params"][name] = change(tensor)
        return replace(reply, data=wire.encode(message))

    return spoil


SPOILT = {
    "not finite": changed(lambda t: torch.full_like(t, torch.nan)),
    "expected": changed(lambda t: t[:-1]),
    "float64": changed(lambda t: t.double()),
    "bytes": changed(lambda t: torch.cat([t.flatten().float()] * 400)),
    "is torch.uint8": lambda reply: replace(reply, data=save({"params/x": torch.zeros(4, dtype=torch.uint8)})),
    "safetensors format": lambda reply: replace(reply, data=reply.data[:100]),
    "unknown kind": lambda reply: replace(reply, data=wire.encode({"samples": {"x": torch.zeros(2)}})),
    "missing or not expected": lambda reply: replace(
        reply, data=wire.encode({"params": {}, "data": {"x": torch.ones(3)}})
    ),
    "loss": lambda reply: replace(reply, loss=None),
    "Source beige failed: out of memory": lambda reply: Reply(error="out of memory"),
}


@pytest.mark.parametrize("reason", SPOILT)
def test_a_bad_upload_is_refused_by_name_and_the_round_goes_on(reason, cache, tmp_path, tiny_task):
    run = run_of("fedavg", epochs=1, rounds_per_epoch=1)
    task = files_of(tmp_path, tiny_task)
    without = final(cache, runs.execute(run, task, tiny.CPU, exchange=Houses(run, tiny_task, tmp_path, {0: ["beige"]})))
    (tmp_path / "rounds.jsonl").unlink()
    houses = Houses(run, tiny_task, tmp_path, spoil={(0, "beige"): SPOILT[reason]})
    record = runs.execute(run, task, tiny.CPU, exchange=houses)
    note = json.loads((tmp_path / "rounds.jsonl").read_text())
    assert note["answered"] == ["amber", "coral"]
    assert "beige" in note["refused"]["beige"] and reason in note["refused"]["beige"]
    reached = final(cache, record)
    assert all(torch.equal(reached[name], without[name]) for name in reached)
    form = parcel(Trainer(TRAINING, tiny.CPU, 0).net(tiny_task)) | {"stats": {"samples": torch.tensor(0)}}
    honest = sum(t.nbytes for tensors in form.values() for t in tensors.values())
    assert record["epochs"][0]["bytes_up"] == 2 * honest  # nothing is counted for what was refused


# --- a source's state -------------------------------------------------------------------------------------------------


def party(seed: int):
    trainer = Trainer(TRAINING, tiny.CPU, seed)
    task = tiny.make_task()
    return trainer.party("amber", trainer.net(task), task.sources[0].train)


@given(asked=st.lists(st.integers(0, 5), min_size=1, max_size=12))
@settings(max_examples=25, deadline=None)
def test_a_shelf_gives_the_newest_state_that_is_not_too_new(asked, tmp_path_factory):
    """Whatever rounds a target asks for, a source starts from a state of no later round, and two stay on the shelf."""
    shelf = Shelf(tmp_path_factory.mktemp("shelf"), "key-amber")
    known: dict[int, int] = {}  # rounds done -> which party left that state
    parties = [party(seed) for seed in range(len(asked))]
    for i, rounds in enumerate(asked):
        fresh = party(99)
        found = shelf.load(fresh, rounds)
        below = [r for r in known if r <= rounds]
        assert found == max(below, default=0)
        source = parties[known[found]] if found else party(99)
        assert tiny.same(fresh.state(), source.state())
        shelf.save(parties[i], rounds + 1)
        known[rounds + 1] = i
        keep = sorted(r for r in known if r <= rounds + 1)[-2:]
        known = {r: known[r] for r in keep}
        assert shelf.rounds() == keep


def test_a_damaged_state_is_passed_over(tmp_path):
    shelf, one = Shelf(tmp_path, "key-amber"), party(1)
    shelf.save(one, 1)
    shelf.save(party(2), 2)
    shelf.path(2).write_bytes(b"not a state")
    fresh = party(0)
    assert shelf.load(fresh, 2) == 1 and tiny.same(fresh.state(), one.state())


# --- orders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FEDERATED)
def test_an_order_describes_its_run(case):
    run = run_of(case)
    stage = runs.start(run, tiny.make_task(), tiny.CPU).stages()[-1]
    text = order.write(run, SOURCES, "0" * 64, stage)
    read = order.read(text)
    assert read.run == run and read.stage == stage and read.key == run.key("0" * 64)
    assert text == order.write(read.run, read.sources, read.data_sha256, read.stage)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "../../etc/passwd"}, "cannot be read"),
        ({"key": "0" * 16}, "do not describe"),
        ({"seed": 1}, "do not describe"),
        ({"more": 1}, "cannot be read"),
        ({"stage": {}}, "cannot be read"),
        ({"data_sha256": "0" * 63}, "cannot be read"),
    ],
    ids=str,
)
def test_an_order_that_does_not_fit_is_refused(change, message):
    run = run_of()
    stage = runs.start(run, tiny.make_task(), tiny.CPU).stages()[0]
    text = json.dumps(json.loads(order.write(run, SOURCES, "0" * 64, stage)) | change)
    with pytest.raises(UserError, match=message):
        order.read(text)


def test_an_order_for_other_data_is_refused(tmp_path, tiny_task):
    files.export(replace(tiny_task, sha256="1" * 64), tmp_path)
    run = run_of()
    text = order.write(run, SOURCES, "0" * 64, runs.start(run, tiny_task, tiny.CPU).stages()[0])
    with pytest.raises(UserError, match="not of the data"):
        answer(files.read(tmp_path / "amber.safetensors"), tmp_path, text, b"", tiny.CPU)


@pytest.mark.parametrize("case", [case for case in tiny.CASES if case not in FEDERATED])
def test_methods_that_need_more_than_uploads_are_told(case):
    with pytest.raises(UserError, match="does not run on several machines"):
        order.admit(run_of(case))


def test_drawn_sources_are_told():
    with pytest.raises(UserError, match="name those that take part"):
        order.admit(run_of("fedavg", sources=2))


def test_a_rule_that_needs_features_is_told():
    with pytest.raises(UserError, match="send sampled features of samples away"):
        order.admit(runs.make_run("tiny", "denim", "fedavg", 0, TRAINING, {"weighting": "h-divergence"}))


# --- bytes and files --------------------------------------------------------------------------------------------------

numbers = st.sampled_from(wire.DTYPES)


@given(shapes=st.lists(st.lists(st.integers(0, 4), max_size=4), max_size=5), dtype=numbers, data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_message_comes_back_as_it_was(shapes, dtype, data):
    kinds = st.sampled_from(["params", "buffers", "stats"])
    message = {}
    for i, shape in enumerate(shapes):
        message.setdefault(data.draw(kinds), {})[f"layer.{i}"] = torch.randn(shape).to(dtype)
    back = wire.decode(wire.encode(message), "amber", like=message)
    assert back.keys() == message.keys() and all(tiny.same(back[kind], message[kind]) for kind in message)
    assert len(wire.encode(message)) <= wire.largest(message)


def test_a_message_keeps_the_layout_of_its_form():
    form = {"params": {"w": torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)}}
    back = wire.decode(wire.encode(form), "amber", like=form)
    assert back["params"]["w"].stride() == form["params"]["w"].stride()
    assert torch.equal(back["params"]["w"], form["params"]["w"])


@given(junk=st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_junk_is_refused(junk):
    with pytest.raises(RefusedMessage):
        wire.decode(b"\x01" + junk, "amber")


def test_exported_domains_come_back(tmp_path, tiny_task):
    sparse = SparsePart(
        torch.rand(4, 2), torch.tensor([0, 1, 2, 0]), columns=torch.zeros(4, 2, dtype=torch.int16), width=9
    )
    task = replace(tiny_task, sources=(Domain("thin", sparse, sparse),))
    assert [path.name for path in files.export(task, tmp_path)] == ["thin.safetensors", "denim.safetensors"]
    holding = files.read(tmp_path / "thin.safetensors")
    assert (holding.dataset, holding.classes, holding.sha256) == ("tiny", task.classes, task.sha256)
    back = holding.domain.train
    assert type(back) is SparsePart and back.width == 9 and tiny.same(back.tensors(), sparse.tensors())
    with pytest.raises(UserError, match="domain of the run"):
        holding.task(("amber",), "denim")


@pytest.mark.parametrize("content", [b"", b"junk" * 99, save({"x": torch.ones(2)})])
def test_a_file_that_is_no_domain_is_told(content, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="damaged or not an exported domain"):
        files.read(tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="There is no file"):
        files.read(tmp_path / "y.safetensors")


def test_the_command_exports_every_domain(tmp_path, tiny_task, monkeypatch, capsys):
    domains = {d.name: d for d in (*tiny_task.sources, tiny_task.target)}
    monkeypatch.setattr(data.digits, "load", lambda *_: (domains, "0" * 64))
    monkeypatch.setattr(data.digits, "DOMAINS", tuple(domains))
    data._domains.cache_clear()
    assert cli.main(["data", "export", "digits", "--out", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert files.read(tmp_path / "coral.safetensors").domain.name == "coral"
    data._domains.cache_clear()


# --- what is measured -------------------------------------------------------------------------------------------------


def comparison(**changes) -> report.Comparison:
    def told(seconds: float) -> dict:
        entry = {"target_accuracy": 0.5, "bytes_up": 400, "bytes_down": 300}
        return {"seconds": seconds, "epochs": [entry | {"epoch": 1}, entry | {"epoch": 2}]}

    whole = {"alone": told(2.0), "federated": told(9.0), "differing": [], "sockets": {"a": [600, 500], "b": [600, 501]}}
    return report.Comparison(**whole | {"rounds": [{"payload_up": 450, "payload_down": 350}] * 2} | changes)


def test_the_three_counts_of_bytes():
    c = comparison()
    assert c.bytes()[["up", "down"]].to_numpy().tolist() == [[800, 600], [900, 700], [1200, 1001]]
    assert c.bytes()["more than the ledger"].tolist() == pytest.approx([0, 200 / 1400, 801 / 1400])
    assert c.overhead == 4.5
    assert "is the same to the bit" in report.table(c) and "1,001" in report.table(c) and "57.2%" in report.table(c)
    assert "differs in denim/net/head.weight" in report.table(comparison(differing=["denim/net/head.weight"]))


def test_measurements_are_kept_beside_each_other(tmp_path):
    path = tmp_path / "federation.json"
    assert report.Measured.read(path) == report.Measured()
    report.Measured(comparison=comparison()).write(path)
    scaling = [{"sources": 2, "rounds": 1, "seconds": 1.0, "bytes": 10}]
    report.Measured(scaling=scaling).write(path)
    assert report.Measured.read(path) == report.Measured(comparison(), scaling)
    path.write_text("{}[")
    with pytest.raises(UserError, match="measure again"):
        report.Measured.read(path)


def test_shards_are_the_sources_in_parts():
    task = tiny.make_task()
    assert [s.name for s in shards(task, 2).sources] == ["amber", "beige"]
    six = shards(task, 6)
    assert [s.name for s in six.sources][:3] == ["amber-0", "amber-1", "beige-0"]
    assert sum(six.sizes) == sum(task.sizes) and six.target is task.target
    whole = torch.cat([six.sources[0].train.x, six.sources[1].train.x])
    assert torch.equal(whole.sum(0), task.sources[0].train.x.sum(0))
    with pytest.raises(UserError, match="multiple"):
        shards(task, 5)


def test_bytes_grow_with_the_sources_and_nothing_is_left_behind(cache, tiny_task):
    run = run_of("fedavg", epochs=1, rounds_per_epoch=1)
    one, three, six = scaling(run, tiny_task, [1, 3, 6], say=lambda entry: None)
    assert [e["sources"] for e in (one, three, six)] == [1, 3, 6] and one["rounds"] == 1
    assert three["bytes"] == 3 * one["bytes"] and six["bytes"] == 6 * one["bytes"]
    assert not list((cache / "runs").iterdir())


def test_many_sources_by_formula():
    scaling = [{"sources": k, "rounds": 2, "seconds": 2 * (3 + 0.5 * k), "bytes": 2 * k * 4e6} for k in (2, 4, 8)]
    row = report.projected(scaling, [1000], bandwidth=1e8).loc[1000]
    assert row.tolist() == pytest.approx([4.0, 40.0, 503.0])


def test_figures_of_the_chapter(drawn):
    scaling = [{"sources": k, "rounds": 2, "seconds": 2 * (3 + 0.5 * k), "bytes": 2 * k * 4e6} for k in (2, 4, 8)]
    for name, make in {
        "architecture": plots_federation.architecture,
        "bytes": lambda: plots_federation.byte_bars(comparison()),
        "scale": lambda: plots_federation.many_sources(scaling),
    }.items():
        assert drawn(make, f"federation-{name}").count("<path") > 20
    for make in (plots_federation.byte_bars, plots_federation.many_sources):
        assert drawn(lambda make=make: make(None), "federation-none").count("<path") < 20
