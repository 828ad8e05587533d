"""Shards: together the whole grid, never the same run twice, evenly dealt, whatever is recorded already."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kd3a import cli, records
from kd3a.errors import UserError
from kd3a.shards import Shard, deal
from kd3a.study import Results, Study, table

SHA256 = "0" * 64
DOMAINS = ["mnist", "mnist_m", "optdigits", "synth", "street"]
BUDGETS = st.fixed_dictionaries({"epochs": st.integers(1, 5), "epoch_samples": st.sampled_from([100, 250, 1000])})


@st.composite
def studies(draw) -> Study:
    """Rows of several methods and budgets; two rows may hold the same runs under different labels."""
    rows = draw(st.lists(st.tuples(st.sampled_from(["oracle", "fedavg", "kd3a"]), BUDGETS), min_size=1, max_size=5))
    return Study.read(
        {
            "study": "tiny",
            "scale": "quick",
            "dataset": "digits",
            "targets": DOMAINS[: draw(st.integers(1, 5))],
            "seeds": list(range(draw(st.integers(1, 3)))),
            "training": {"batch_size": 50},
            "methods": [
                {"method": method, "label": f"row {i}", "training": budget} for i, (method, budget) in enumerate(rows)
            ],
        }
    )


def trained_by(study: Study, folder, number: int, of: int) -> list[str]:
    """Keys of the runs that a shard would train."""
    results = Results(study, folder, shard=Shard(number, of))
    return [key for _, _, key in results._mine(lambda run: SHA256)]


def record_of(run) -> records.Record:
    entry = {"target_accuracy": 0.5, "bytes_up": 0, "bytes_down": 0}
    facts = run.facts() | {"key": run.key(SHA256), "data_sha256": SHA256, "seconds": 1.0}
    return facts | {"epochs": [entry], "target_accuracy": 0.5, "provenance": {}}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(study=studies(), of=st.integers(1, 9), data=st.data())
def test_shards_are_a_partition_of_the_grid_whatever_is_recorded(study, of, data, tmp_path_factory, own_cache):
    folder = tmp_path_factory.mktemp("shards")
    runs = {run.key(SHA256): run for _, run in study.runs()}
    parts = [trained_by(study, folder, number, of) for number in range(1, of + 1)]
    assert sorted(key for part in parts for key in part) == sorted(runs)

    done = data.draw(st.sets(st.sampled_from(sorted(runs))))
    if done:
        records.append(folder / "tiny-quick.jsonl", *(record_of(runs[key]) for key in sorted(done)))
    for number, before in enumerate(parts, 1):
        assert trained_by(study, folder, number, of) == [key for key in before if key not in done]


@settings(deadline=None)
@given(study=studies(), of=st.integers(1, 9))
def test_every_shard_gets_as_much_of_each_kind(study, of):
    distinct = {run.key(""): run for _, run in study.runs()}
    shards = deal(list(distinct.values()), of)
    kinds = [(run.method, run.samples) for run in distinct.values()]
    for kind in set(kinds):
        counts = Counter(shard for shard, other in zip(shards, kinds, strict=True) if other == kind)
        assert max(counts.values()) - min(counts[number] for number in range(1, of + 1)) <= 1
    loads = Counter({number: 0 for number in range(1, of + 1)})
    for shard, run in zip(shards, distinct.values(), strict=True):
        loads[shard] += run.samples
    assert max(loads.values()) - min(loads.values()) <= max(run.samples for run in distinct.values())


@pytest.mark.parametrize(
    "text", ["", "1", "0/4", "5/4", "-1/4", "1/0", "1.0/4", "1/4/2", "a/b", " 1/4", "²/4", "1/4\n"]
)
def test_a_wrong_shard_is_one_sentence_before_anything_is_read(text, capsys):
    assert cli.main(["study", "nowhere.yaml", f"--shard={text}"]) == 2
    told = capsys.readouterr().err
    assert "expected i/n" in told and "params file" not in told


@given(number=st.integers(1, 99), more=st.integers(0, 99))
def test_a_shard_reads_as_it_is_written(number, more):
    assert Shard.parse(str(Shard(number, number + more))) == Shard(number, number + more)


def study_of(**changes) -> Study:
    values = {"study": "tiny", "scale": "quick", "dataset": "digits", "targets": ["mnist", "synth"], "seeds": [0, 1]}
    return Study.read(values | {"training": {}, "methods": [{"method": "fedavg"}, {"method": "oracle"}]} | changes)


def test_the_table_counts_the_runs_of_other_shards(tmp_path):
    results = Results(study_of(), tmp_path, shard=Shard(1, 2))
    assert results.estimate().startswith("4 of 4 runs of shard 1/2 to train")
    mine = [run for (_, run), shard in zip(results.grid, results.shards, strict=True) if shard == 1]
    records.append(results.path, *map(record_of, mine))
    assert results.estimate() == "Every run of shard 1/2 is recorded."
    cells = table(results.frame(), ["fedavg", "oracle"], ["mnist", "synth"], results.missing(mine=False))
    assert cells.loc["fedavg"].tolist() == ["50.0 ± 0.0 (2)", "2 elsewhere", "–"]
    records.append(results.path, record_of(results.grid[1][1]))
    cells = table(results.frame(), ["fedavg", "oracle"], ["mnist", "synth"], results.missing(mine=False))
    assert cells.loc["fedavg", "synth"] == "50.0 (1), 1 elsewhere"


def test_a_run_in_two_rows_is_missing_from_one_shard_only(tmp_path):
    study = study_of(methods=[{"method": "fedavg"}, {"method": "fedavg", "label": "again"}])
    parts = [set(trained_by(study, tmp_path, number, 3)) for number in (1, 2, 3)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 4


# --- merging ----------------------------------------------------------------------------------------------------------


def lines(path) -> list[records.Record]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_merging_adds_what_is_new_and_names_what_differs(tmp_path, capsys):
    one, two, into = (tmp_path / name / "tiny-quick.jsonl" for name in ("one", "two", "all"))
    first, second, third = (record_of(run) for _, run in study_of().runs()[:3])
    records.append(into, first)
    records.append(one, first | {"seconds": 9.0}, second)
    records.append(two, second | {"target_accuracy": 0.75}, third)
    two.write_bytes(two.read_bytes()[:-1])  # cut off before the last byte
    assert cli.main(["records", "merge", str(one.parent), str(two.parent), "--into", str(into.parent)]) == 0
    assert lines(into) == [first, second, third]
    told = capsys.readouterr().out
    assert f"{one}: 1 new record\n" in told and f"{two}: 1 new record\n" in told
    assert told.count("another result") == 1 and f"run {second['key']} has another result" in told
    before = into.read_bytes()
    assert cli.main(["records", "merge", str(one.parent), "--into", str(into.parent)]) == 0
    assert into.read_bytes() == before


def test_records_of_other_data_are_not_merged(tmp_path):
    one, into = (tmp_path / name / "tiny-quick.jsonl" for name in ("one", "all"))
    first, second = (record_of(run) for _, run in study_of().runs()[:2])
    records.append(into, first)
    records.append(one, second | {"data_sha256": "1" * 64})
    assert records.merge(one.parent, into.parent) == {one.name: (0, {second["key"]: "other data"})}
    assert lines(into) == [first]


def test_merging_nothing_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"no records in .*: it holds no \.jsonl file\.$"):
        records.merge(tmp_path / "nowhere", tmp_path)
