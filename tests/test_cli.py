"""The command line: what it prints, what it refuses, and the params files that ship with it."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import pytest
import yaml
from PIL import Image

from kd3a import cli, data, models, records
from kd3a.data import digits
from kd3a.errors import UserError
from kd3a.methods import METHODS
from kd3a.records import ROOT
from kd3a.settings import Hardware, Training
from kd3a.study import Study, load_study, shipped_for

COMMANDS = ("run", "study", "methods", "datasets", "data", "records", "verify")
SHORT = ["--set=epochs=2", "--set=epoch_samples=50", "--set=batch_size=25"]
RUN = ["run", "--target", "optdigits", "--quiet"]
PARAMS = {
    "study": "tiny",
    "scale": "quick",
    "dataset": "digits",
    "targets": ["optdigits", "mnist"],
    "seeds": [0, 1],
    "training": {"model": "small", "epochs": 1, "epoch_samples": 16, "batch_size": 8},
    "methods": [{"method": "oracle", "label": "Upper"}, {"method": "fedavg"}],
}
FIELDS = (
    "key study scale dataset data_sha256 method target seed config epochs target_accuracy criterion seconds peak_mb "
    "provenance"
)


@pytest.fixture
def params(tmp_path):
    """Writes a params file with some keys changed, added or (``None``) left out."""

    def write(**changes) -> Path:
        path = tmp_path / "params.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in (PARAMS | changes).items() if v is not None}))
        return path

    return write


@pytest.fixture
def no_data(monkeypatch):
    """Mistakes must be found before any data are loaded."""

    def refuse(*_):
        raise AssertionError("data were loaded")

    monkeypatch.setattr(data, "load", refuse)
    monkeypatch.setattr(digits, "load", refuse)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)


@pytest.fixture
def tiny_digits(monkeypatch, own_cache, tiny_task):
    """The tiny task under the name of the digits, and a small network for it."""
    monkeypatch.setattr(data, "load", lambda *_: tiny_task)


def sentence(capsys, arguments: list[str]) -> str:
    """The one line on stderr with which the command line refuses ``arguments``."""
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kd3a: ") and captured.err.count("\n") == 1
    assert "Traceback" not in captured.err and len(captured.err) > 20
    return captured.err


# --- run --------------------------------------------------------------------------------------------------------------


def test_json_is_one_record(digits_cache, tmp_path, capsys):
    """The only test here that trains on the real digits: first the record, then the table of the same run."""
    out = tmp_path / "out.jsonl"
    arguments = [*RUN, "--method", "kd3a", *SHORT, "--set=vote_on=stage", "--out", str(out)]
    assert cli.main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert captured.out.count("\n") == 1 and captured.err == ""
    assert " ".join(record) == FIELDS and records.read(out) == [record]

    assert (record["dataset"], record["method"], record["target"], record["seed"]) == ("digits", "kd3a", "optdigits", 0)
    assert record["data_sha256"] == digits.SHA256 and record["scale"] == "quick"
    assert record["config"]["epochs"] == 2 and record["config"]["vote_on"] == "stage"
    assert set(record["config"]) == set(Training.model_fields) | set(METHODS["kd3a"].Config.model_fields)
    assert [entry["epoch"] for entry in record["epochs"]] == [1, 2]
    for entry in record["epochs"]:
        assert " ".join(entry) == "epoch target_accuracy loss gate weights bytes_up bytes_down vote"
        assert list(entry["weights"]) == ["mnist", "mnist_m", "synth", "street", "optdigits"]
        assert sum(entry["weights"].values()) == pytest.approx(1, abs=1e-5)
        assert 0 <= entry["target_accuracy"] <= 1 and entry["bytes_up"] > entry["bytes_down"] > 1_000_000
    assert record["target_accuracy"] == record["epochs"][-1]["target_accuracy"]
    assert record["seconds"] > 0 and record["peak_mb"] > 50
    assert " ".join(record["provenance"]) == "commit dirty versions device cpu threads started command"

    assert cli.main(arguments) == 0  # it is not trained again, or its seconds would differ
    text = capsys.readouterr().out
    assert record["key"] in text and f"{record['target_accuracy']:.3f}" in text and text.count("epoch   ") == 2
    assert records.read(out) == [record]


def test_seed_and_settings_reach_the_run(tiny_digits, capsys):
    short = ["--set=model=small", "--set=epochs=1", "--set=epoch_samples=16", "--set=batch_size=8"]
    for arguments in (["--seed=0"], ["--seed=3"], ["--set=momentum=0.5"], ["--set=mixup=0.4"]):
        assert cli.main([*RUN, "--method=fedavg", *short, *arguments, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len({record["key"] for record in found}) == 4
    assert found[1]["seed"] == 3 and found[2]["config"]["momentum"] == 0.5 and found[3]["config"]["mixup"] == 0.4


@pytest.mark.parametrize("method, what", [("fedavg", "finite"), ("source-only", "loss of epoch 1 is not finite")])
def test_a_run_that_diverges_says_so(method, what, tiny_digits, capsys):
    """Where models are sent, the channel tells; where none is, the loss does."""
    short = ["--set=model=small", "--set=epochs=2", "--set=epoch_samples=16", "--set=batch_size=8"]
    arguments = [*RUN, f"--method={method}", *short, "--set=lr_begin=1e30"]
    assert what in sentence(capsys, arguments)


MISTAKES = {
    "dataset": (["--dataset=svhn"], ["svhn", "digits"]),
    "target": (["--target=usps"], ["usps", *digits.DOMAINS]),
    "method": (["--method=dann"], ["dann", *METHODS]),
    "scale": (["--scale=huge"], ["huge", "quick", "cpu", "paper"]),
    "key": (["--set=epoch=3"], ["epoch", "epochs", "batch_size", "gate_begin"]),
    "key of another method": (["--method=fedavg", "--set=gate_begin=0.5"], ["gate_begin", "mixup"]),
    "no value": (["--set=epochs"], ["epochs", "KEY=VALUE"]),
    "text for a number": (["--set=epochs=many"], ["epochs", "many", "integer"]),
    "zero epochs": (["--set=epochs=0"], ["epochs", "greater than or equal to 1"]),
    "not a number": (["--set=lr_begin=.nan"], ["lr_begin", "finite"]),
    "gate": (["--set=gate_begin=1.5"], ["gate_begin", "less than or equal to 1"]),
    "choice": (["--set=variant=code"], ["variant", "'paper' or 'official'"]),
    "rounds": (["--set=rounds_per_epoch=0.7"], ["rounds_per_epoch", "1/integer"]),
    "budget": (["--set=epoch_samples=3"], ["epoch_samples", "batch"]),
    "negative mixup": (["--method=fedavg", "--set=mixup=-1"], ["mixup", "greater than or equal to 0"]),
    "model": (["--set=model=vgg"], ["vgg", "cnn-narrow", "cnn-paper"]),
    "not YAML": (["--set=epochs=["], ["epochs"]),
    "device": (["--device=tpu"], ["tpu", "'cpu'", "'cuda'"]),
    "absent device": (["--device=mps"], ["mps", "not available"]),
    "precision": (["--precision=float8"], ["float8", "'bfloat16'"]),
    "threads": (["--threads=0"], ["threads", "greater than or equal to 1"]),
}


@pytest.mark.parametrize(("arguments", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence(arguments, words, capsys, no_data):
    text = sentence(capsys, [*RUN, *arguments])
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    "arguments", [["run"], ["run", "--target"], ["--seed=x", *RUN], [*RUN, "--seed=x"], ["fly"], []]
)
def test_argparse_refuses_with_the_same_code(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2 and "kd3a" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([*command.split(), "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert f"kd3a {command}".strip() in text and len(text.splitlines()) > 4


# --- study and its params files ---------------------------------------------------------------------------------------


def test_study_trains_what_is_asked_for_and_prints_the_table(tiny_digits, params, tmp_path, capsys):
    arguments = ["study", str(params()), "--results", str(tmp_path / "out"), "--quiet"]
    assert cli.main([*arguments, "--only=method=oracle", "--only=target=mnist", "--only=seed=1"]) == 0
    found = records.read(tmp_path / "out" / "tiny-quick.jsonl")
    assert [(r["method"], r["target"], r["seed"], r["study"]) for r in found] == [("oracle", "mnist", 1, "tiny")]
    assert "[1/1] Upper" in capsys.readouterr().out

    assert cli.main([*arguments, "--only=row=Upper"]) == 0
    assert capsys.readouterr().out.count("] Upper") == 3  # the fourth was there already
    assert cli.main([*arguments, "--no-train"]) == 0
    *_, head, _, upper, fedavg = capsys.readouterr().out.rstrip().splitlines()
    assert head.split() == ["target", "optdigits", "mnist", "mean"] and fedavg.split() == ["fedavg", "–", "–", "–"]
    found = records.read(tmp_path / "out" / "tiny-quick.jsonl")
    accuracies = [100 * record["target_accuracy"] for record in found if record["target"] == "mnist"]
    assert f"{mean(accuracies):.1f} ± {stdev(accuracies):.1f} (2)" in upper and upper.count("(2)") == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only=colour=red"], ["colour", "method", "target", "seed", "row"]),
        (["--only=method"], ["KEY=VALUE"]),
        (["--only=method=kd3a"], ["No run", "tiny"]),
        (["--threads=0"], ["threads"]),
    ],
)
def test_wrong_options_of_study(arguments, words, params, capsys, no_data):
    text = sentence(capsys, ["study", str(params()), *arguments])
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    "path", sorted((records.ROOT / "params").glob("*/*.yaml")), ids=lambda p: f"{p.parent.name}/{p.name}"
)
def test_shipped_params_are_valid(path, no_data):
    study = load_study(path)
    keys = [run.key("") for _, run in study.runs()]
    assert study.scale == path.stem and len(set(keys)) == len(keys)
    assert len({entry.title for entry in study.methods}) == len(study.methods)
    if isinstance(study, Study):  # the others have attacks in place of methods
        assert study.training.model in models.MODELS
        assert len(keys) == len(study.methods) * len(study.domains()) * len(study.seeds)


BAD_PARAMS = {
    "unknown key": ({"sead": [0]}, ["sead", "seeds"]),
    "unknown training key": ({"training": {"epoch": 3}}, ["training.epoch", "batch_size"]),
    "unknown key of a row": ({"methods": [{"method": "kd3a", "sets": {}}]}, ["sets", "label"]),
    "unknown setting of a method": ({"methods": [{"method": "kd3a", "set": {"gates": 1}}]}, ["gates", "gate_begin"]),
    "row without a method": ({"methods": [{"label": "x"}]}, ["method"]),
    "unknown method": ({"methods": [{"method": "dann"}]}, ["dann", *METHODS]),
    "unknown target": ({"targets": ["usps"]}, ["usps", *digits.DOMAINS]),
    "unknown dataset": ({"dataset": "svhn"}, ["svhn", "digits"]),
    "unknown scale": ({"scale": "huge"}, ["huge", "'paper'"]),
    "unknown model": ({"training": {"model": "vgg"}}, ["vgg", "cnn-narrow"]),
    "bad value": ({"training": {"epochs": -1}}, ["training.epochs", "-1"]),
    "text for a number": ({"seeds": ["first"]}, ["seeds.0", "first"]),
    "no seeds": ({"seeds": []}, ["seeds"]),
    "the same seed twice": ({"seeds": [0, 0]}, ["seeds"]),
    "missing key": ({"training": None}, ["training", "missing"]),
    "one seed, no list": ({"seeds": 3}, ["seeds", "list"]),
}


@pytest.mark.parametrize(("changes", "words"), BAD_PARAMS.values(), ids=BAD_PARAMS)
def test_a_wrong_params_file_is_one_sentence(changes, words, params, capsys, no_data):
    text = sentence(capsys, ["study", str(params(**changes))])
    assert [word for word in words if word not in text] == []


BAD_FILES = {
    "not YAML": b"study: [tiny\n  - {",
    "two documents": b"study: a\n---\nstudy: b\n",
    "empty": b"",
    "a list": b"- study\n- scale\n",
    "text": b"just words",
    "not text": b"\xff\xfe\x00\x80" * 9,
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_holds_no_params_is_one_sentence(content, tmp_path, capsys, no_data):
    path = tmp_path / "params.yaml"
    path.write_bytes(content)
    assert "params.yaml" in sentence(capsys, ["study", str(path)])


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_missing_params_file_is_one_sentence(name, tmp_path, capsys, no_data):
    assert str(tmp_path) in sentence(capsys, ["study", str(tmp_path / name)])


# --- the other commands -----------------------------------------------------------------------------------------------


def test_methods_lists_all(capsys, monkeypatch):
    monkeypatch.setattr(cli, "traffic", lambda name, task, training: {"params": 4e6} if name == "kd3a" else {})
    assert cli.main(["methods"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert "cnn-narrow" in head
    assert [line.split()[0] for line in lines if line and not line.startswith(" ")] == list(METHODS)
    sends = [line.strip() for line in lines if "sends" in line]
    assert len(sends) == len(METHODS) and sends.count("sends nothing") == len(METHODS) - 1


@pytest.mark.parametrize("name", METHODS)
def test_a_method_tells_its_settings(name, capsys, monkeypatch):
    monkeypatch.setattr(cli, "traffic", lambda *_: {})
    assert cli.main(["methods", name]) == 0
    text = capsys.readouterr().out
    for key, field in METHODS[name].Config.model_fields.items():
        assert f"{key} = {field.default}: " in text and field.description


def test_datasets_lists_all(capsys, no_data):
    assert cli.main(["datasets"]) == 0
    text = capsys.readouterr().out
    assert all(f"{name} " in text for name in data.DATASETS) and ", ".join(digits.DOMAINS) in text


@pytest.mark.filterwarnings("ignore:The digits built here have hash")
@pytest.mark.parametrize(("action", "pinned", "code"), [("check", True, 0), ("check", False, 1), ("build", False, 0)])
def test_data(action, pinned, code, digits_cache, capsys, monkeypatch):
    actual = digits.SHA256
    if not pinned:
        monkeypatch.setattr(digits, "SHA256", "f" * 64)
    assert cli.main(["data", action, "digits"]) == code
    text = capsys.readouterr().out
    assert all(f"{name} " in text for name in digits.DOMAINS) and "3×32×32" in text and actual in text
    assert ("differs from the pinned" in text) is not pinned


def test_data_show_draws_the_digits(digits_cache, tmp_path, capsys):
    out = tmp_path / "sheet.png"
    assert cli.main(["data", "show", "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")


def test_data_of_an_unknown_dataset(capsys, no_data):
    assert "digits" in sentence(capsys, ["data", "check", "svhn"])


def test_verify(tiny_digits, params, tmp_path, capsys):
    file = tmp_path / "tiny-quick.jsonl"
    assert cli.main(["study", str(params()), "--results", str(tmp_path), "--only=seed=0", "--quiet"]) == 0
    capsys.readouterr()
    assert cli.main(["verify", str(file), "--sample=9", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all(line.endswith("identical in every epoch") for line in lines)
    assert {line.split()[0] for line in lines} == {record["key"] for record in records.read(file)}

    record = records.read(file)[0]
    wrong = record["target_accuracy"] - 0.5 if record["target_accuracy"] > 0.5 else record["target_accuracy"] + 0.5
    record["target_accuracy"] = record["epochs"][-1]["target_accuracy"] = wrong
    file.write_text(json.dumps(record) + "\n")
    assert cli.main(["verify", str(file), "--quiet"]) == 1
    assert "differs by 0.5000 at the end, on the same processor" in capsys.readouterr().out
    assert cli.main(["verify", str(file), "--quiet", "--tolerance=0.6"]) == 1

    record["provenance"]["cpu"] = "another"
    file.write_text(json.dumps(record) + "\n")
    assert cli.main(["verify", str(file), "--quiet"]) == 1
    assert "differs by 0.5000 at the end, 0.0200 allowed on another machine" in capsys.readouterr().out
    assert cli.main(["verify", str(file), "--quiet", "--tolerance=0.6"]) == 0

    sibling = record | {"key": "sibling", "seed": 7, "target_accuracy": float(wrong < 0.5)}  # seeds lie as far apart
    file.write_text("".join(json.dumps(r) + "\n" for r in (record, sibling)))
    assert record in records.siblings(record, records.read(file)) and len(records.read(file)) == 2
    arguments = cli.parser().parse_args(["verify", "--quiet"])
    assert cli.verify_one(record, records.read(file), Hardware(device="cpu"), arguments) == 0


def test_verify_without_records(tmp_path, capsys, no_data):
    assert "no record" in sentence(capsys, ["verify", str(tmp_path / "none.jsonl")])


def test_verify_of_a_broken_file(tmp_path, capsys, no_data):
    (tmp_path / "broken.jsonl").write_text("{\n{}\n")
    assert "line 1" in sentence(capsys, ["verify", str(tmp_path / "broken.jsonl")])


def test_ctrl_c_says_how_to_go_on(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run_of", interrupt)
    assert cli.main(RUN) == 130
    assert "same command" in capsys.readouterr().err


@pytest.mark.parametrize("dataset", sorted(data.DATASETS))
def test_every_dataset_has_settings(dataset):
    scale = "paper" if dataset.startswith("domainnet") else "quick"
    study = shipped_for(dataset, scale)
    assert study.scale == scale and dataset.replace("folder", "office").startswith(study.study[:6])


def test_a_scale_that_a_dataset_does_not_have():
    with pytest.raises(UserError, match=r"^Unknown scale of domainnet126 'quick': choose one of paper\.$"):
        shipped_for("domainnet126", "quick")


def paint(folder: Path) -> None:
    """Two domains of two classes, as plain images."""
    for domain, label, number in product(("here", "there"), ("cat", "dog"), range(5)):
        (folder / domain / label).mkdir(parents=True, exist_ok=True)
        colour = (40 * number, 200 * (label == "cat"), 90)
        Image.new("RGB", (30, 20), colour).save(folder / domain / label / f"{number}.png")


def test_runs_on_a_folder_of_ones_own(tmp_path, capsys):
    paint(tmp_path)
    run = ["run", "--dataset=folder", f"--data={tmp_path}", "--method=fedavg", "--set=model=small", *SHORT]
    cli.main([*run, "--target=here", f"--out={tmp_path / 'records.jsonl'}"])
    assert "fedavg → here: accuracy" in capsys.readouterr().out
    assert cli.main([*run, "--target=nowhere"]) != 0
    assert "choose one of here, there." in capsys.readouterr().err


def test_the_study_of_chapter_8_runs_on_a_folder_of_ones_own(tmp_path, capsys, own_cache, monkeypatch):
    """The page's own params file, with two domains and a smaller network."""
    monkeypatch.delenv("KD3A_DATA", raising=False)
    chapter = json.loads((ROOT / "book" / "tutorial" / "8-your-own-domains.ipynb").read_text())
    text = "".join(line for cell in chapter["cells"] for line in cell["source"])
    (params,) = re.findall(r"```yaml\n(study: mine.*?)```", text, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(params.replace("cnn-narrow, epochs: 6", "small, epochs: 1"))
    paint(tmp_path / "images")
    study = ["study", str(tmp_path / "mine.yaml"), f"--results={tmp_path}", "--quiet"]
    assert cli.main([*study, f"--data={tmp_path / 'images'}", "--only=seed=0"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in ("here", "there", "fedavg", "KD3A (no mixup)")) and "(1)" in table
    assert cli.main(study) != 0
    assert "name its folder with --data" in capsys.readouterr().err


def test_user_errors_are_sentences():
    with pytest.raises(UserError, match=r"^There is no params file .*\.$"):
        load_study(Path("nowhere.yaml"))
    with pytest.raises(UserError, match=r"cpu\.yaml; its folder has paper\.yaml\.$"):
        load_study(ROOT / "params" / "domainnet" / "cpu.yaml")
