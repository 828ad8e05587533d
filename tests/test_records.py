"""Records: one line per run, written once, whole, and found again."""

from __future__ import annotations

import json
import multiprocessing
import platform
import re
import subprocess
import sys

import pytest
import torch

from kd3a import records
from kd3a.errors import UserError
from kd3a.runs import criterion, execute, make_run
from kd3a.settings import Hardware, Training


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "study-quick.jsonl"  # its folder does not exist yet


def record(key: str, accuracy: float = 0.5) -> records.Record:
    return {"key": key, "target_accuracy": accuracy, "note": "é → 数"}


def fill(path, *keys: str) -> None:
    for key in keys:
        records.append(path, record(key))


def keys(path) -> list[str]:
    return [r["key"] for r in records.read(path)]


def test_append_then_read(path):
    assert records.read(path) == []
    fill(path, "a", "b")
    assert records.read(path) == [record("a"), record("b")]
    assert [json.loads(line) for line in path.read_text().splitlines()] == records.read(path)


def test_a_key_is_written_once(path):
    fill(path, "a", "b")
    before = path.read_bytes()
    records.append(path, record("a", accuracy=0.9))
    assert path.read_bytes() == before


def test_the_first_of_two_lines_with_one_key_counts(path):
    fill(path, "a")
    with open(path, "a") as file:
        file.write(json.dumps(record("a", accuracy=0.9)) + "\n")
    assert records.read(path) == [record("a")]


@pytest.mark.parametrize("cut", [1, 10, -10, -2])
def test_a_cut_last_line_is_ignored_and_repaired(path, cut):
    fill(path, "a")
    whole = path.read_bytes()
    path.write_bytes(whole + whole.replace(b'"a"', b'"b"')[:cut])
    assert keys(path) == ["a"]
    fill(path, "c")
    assert keys(path) == ["a", "c"]
    assert path.read_bytes() == whole + whole.replace(b'"a"', b'"c"')


def test_a_whole_last_line_without_newline_is_kept(path):
    """The writer was cut off before the very last byte, or an editor left the newline out."""
    fill(path, "a", "b")
    path.write_bytes(path.read_bytes()[:-1])
    assert keys(path) == ["a", "b"]
    fill(path, "c")
    assert keys(path) == ["a", "b", "c"]


@pytest.mark.parametrize("line", ['{"key": "b', "<<<<<<< HEAD", "\x00\x00", "3", "[]", "{}"])
def test_a_broken_line_in_the_middle_is_a_clear_error(path, line):
    fill(path, "a")
    with open(path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=rf"{re.escape(str(path))}, line 2 ") as caught:
        records.read(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError):
        fill(path, "c")


def test_empty_lines_are_harmless(path):
    fill(path, "a")
    with open(path, "a") as file:
        file.write("\n")
    fill(path, "b")
    assert keys(path) == ["a", "b"]


def write_many(path, writer: int) -> None:
    for i in range(15):
        records.append(path, record(f"{writer}-{i}") | {"ballast": "x" * 5000})
        records.append(path, record(f"shared-{i}"))


def test_appends_of_several_processes_lose_nothing(path):
    context = multiprocessing.get_context("forkserver")
    writers = [context.Process(target=write_many, args=(path, i)) for i in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    expected = {f"{writer}-{i}" for writer in (*range(3), "shared") for i in range(15)}
    assert set(keys(path)) == expected and len(path.read_text().splitlines()) == len(expected)


# --- keys -------------------------------------------------------------------------------------------------------------

TOLD = {
    "dataset": "digits",
    "target": "mnist",
    "method": "kd3a",
    "seed": 0,
    "training": {"epochs": 4},
    "values": {"mixup": 0.3},
}
CHANGES = {
    "dataset": "digit5",
    "target": "synth",
    "method": "fedavg",
    "seed": 1,
    "training": {"epochs": 5},
    "values": {"mixup": 0.4},
}
OTHER = {
    "model": "cnn-paper",
    "lr_schedule": "released",
    "sampling": "resample",
    "momentum": 0.5,
    "poison": "street:0.3:fixed",
    "attack": "street:scaled:10",
}


def key(data_sha256: str = "0" * 64, **changes) -> str:
    told = TOLD | changes
    return make_run(**told | {"training": Training(**told["training"])}).key(data_sha256)


@pytest.mark.parametrize(("name", "value"), CHANGES.items())
def test_each_determinant_changes_the_key(name, value):
    assert key(**{name: value}) != key()


@pytest.mark.parametrize("field", Training.model_fields)
def test_each_training_setting_changes_the_key(field):
    value = OTHER.get(field) or 2 * Training.model_fields[field].default or 1
    assert key(training={field: value}) != key(training={})


def test_data_and_protocol_change_the_key(monkeypatch):
    before = key()
    assert key("1" * 64) != before
    monkeypatch.setattr(records, "PROTOCOL", records.PROTOCOL + 1)
    assert key() != before


def test_a_default_told_or_not_is_the_same_run():
    assert key(training={"epochs": 4, "momentum": 0.9}, values={"mixup": 0.3, "fallback": 0.001}) == key()


def test_the_key_of_a_run_stays_the_same(monkeypatch):
    """If it moved, every record published under protocol 1 would be orphaned."""
    monkeypatch.setattr(records, "PROTOCOL", 1)
    assert key() == "d3c113f2af04a8b5"


def test_hardware_is_no_part_of_the_run(tiny_task, own_cache):
    run = make_run("tiny", "denim", "oracle", 0, Training(epochs=1, epoch_samples=16, batch_size=8), {})
    places = [Hardware(device="cpu"), Hardware(device="cpu", precision="bfloat16", channels_last=False)]
    one, other = (execute(run, tiny_task, hardware) for hardware in places)
    assert one["key"] == other["key"] and one["config"] == other["config"]


# --- provenance -------------------------------------------------------------------------------------------------------


def test_provenance_says_where_a_run_comes_from(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/opt/x/bin/kd3a", "run", "--target", "mnist"])
    facts = records.provenance(torch.device("cpu"), threads=3)
    assert set(facts) == {"commit", "dirty", "versions", "device", "cpu", "threads", "started", "command"}
    assert re.fullmatch("[0-9a-f]{40}|", facts["commit"]) and isinstance(facts["dirty"], bool)
    assert facts["versions"]["torch"] == torch.__version__ and set(facts["versions"]) >= {"python", "numpy", "kd3a"}
    assert (facts["device"], facts["threads"], facts["command"]) == ("cpu", 3, "kd3a run --target mnist")
    assert facts["cpu"] and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", facts["started"])
    json.dumps(facts)


@pytest.mark.parametrize("option", [["--data", "/home/ada/data"], ["--results=/home/ada/results"]])
def test_provenance_holds_no_absolute_path(monkeypatch, option):
    monkeypatch.setattr(sys, "argv", ["/home/ada/bin/kd3a", "study", "/home/ada/kd3a/params/x.yaml", *option])
    command = records.provenance(torch.device("cpu"), 1)["command"]
    assert "/home/ada" not in command and command.startswith("kd3a study")


def test_provenance_survives_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    facts = records.provenance(torch.device("cpu"), 1)
    assert facts["commit"] == "" and facts["cpu"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "processor : 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\nmodel : 9\n",
            "AMD EPYC, family 26 model 2",
        ),
        ("processor : 0\nmodel name : Some: ARM\n", "Some: ARM"),
        ("no colon\n", platform.machine()),
    ],
)
def test_a_processor_is_told_by_family_and_model(text, told, tmp_path):
    (tmp_path / "cpuinfo").write_text(text)
    assert records._cpu(tmp_path / "cpuinfo") == told
    assert records._cpu(tmp_path / "none")


@pytest.mark.parametrize(
    ("predictions", "value"),
    [
        ([[1.0, 0.0], [0.0, 1.0]], 1.0),  # sure, and both classes in use
        ([[1.0, 0.0], [1.0, 0.0]], 0.0),  # collapsed
        ([[0.5, 0.5], [0.5, 0.5]], 0.0),  # knows nothing
    ],
)
def test_the_criterion_rewards_sure_and_diverse_predictions(predictions, value, tiny_task):
    class Constant:
        task = tiny_task

        def predict(self, part):
            assert part is tiny_task.target.train
            return torch.tensor(predictions)

    assert criterion(Constant()) == pytest.approx(value, abs=1e-4)


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(records.ROOT), *words], capture_output=True, text=True, check=True).stdout


def test_every_record_names_a_commit_of_the_history_or_one_that_is_explained():
    named = {
        r["provenance"]["commit"] for path in (records.ROOT / "results").glob("*.jsonl") for r in records.read(path)
    }
    explained = set(re.findall("[0-9a-f]{40}", (records.ROOT / "results" / "README.md").read_text()))
    assert explained <= named, "explained, but named by no record"
    if git("rev-parse", "--is-shallow-repository").strip() == "false":  # else the history is not here to look at
        assert named <= set(git("rev-list", "HEAD").split()) | explained
