"""Parameters that cannot be meant end a page at its first cell; estimates go by this machine's processor."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

from kd3a import records
from kd3a.errors import UserError
from kd3a.page import Page
from kd3a.page_privacy import PrivacyPage
from kd3a.parameters import assigned, positive
from kd3a.settings import Hardware
from kd3a.study import Results, Study

BOOK = records.ROOT / "book"
DECLARED = 'scale: str = "cpu"  # which file\ntrain: bool = False\nresults: str = ""\n'
FILE = yaml.safe_load((records.ROOT / "params" / "gate" / "quick.yaml").read_text())


def open_page(folder="", train=False, scale="quick", names=None, study="gate") -> Page:
    return Page("studies/gate", study, scale, folder, train, names)


def injected(values: dict, *later: str) -> dict:
    """What a notebook knows when papermill gave it these values, and later cells ran."""
    cell = "# Parameters\n" + "".join(f"{name} = {value!r}\n" for name, value in values.items())
    return {"In": ["", DECLARED, cell, *later], "scale": "cpu", "train": False, "results": ""} | values


# --- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("train", ["false", "true", "False", "no", "", 0, 1, None])
@pytest.mark.parametrize("kind", [Page, PrivacyPage])
def test_train_is_true_or_false(kind, train, tmp_path):
    with pytest.raises(UserError, match=f"^Parameter train = {train!r}: write True or False.$"):
        kind("studies/gate", "gate", "quick", str(tmp_path), train)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("told", [{"scale": 3}, {"folder": 2024}, {"study": 1.5}, {"folder": None}])
def test_texts_are_texts(told, tmp_path):
    with pytest.raises(UserError, match=r"is not a text: pass it with papermill's -r instead of -p\.$"):
        open_page(**{"folder": str(tmp_path)} | told)


@pytest.mark.parametrize("value", [0, 0.0, -30.0, float("nan"), float("inf"), "30", "many", None, True])
def test_a_speed_is_a_number_above_zero(value):
    with pytest.raises(UserError, match=r"^Parameter teraflops = .*: write a number above 0\.$"):
        positive("teraflops", value)


def test_the_page_of_domainnet_checks_its_speed():
    cells = nbformat.read(BOOK / "benchmarks" / "domainnet.ipynb", as_version=4).cells
    first = next(cell.source for cell in cells if "import" in cell.source)
    with pytest.raises(UserError, match=r"^Parameter teraflops = 0:"):
        exec(first, {"teraflops": 0})


# --- the folder ---------------------------------------------------------------------------------------------------


def test_a_folder_to_show_must_be_there(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=f"^Parameter results: there is no folder {tmp_path / 'nope'}; name one"):
        open_page(str(tmp_path / "nope"))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="there is no folder"):
        open_page(str(tmp_path / "file"))
    monkeypatch.setenv("KD3A_RESULTS", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=f"^KD3A_RESULTS: there is no folder {tmp_path / 'gone'}"):
        open_page()
    assert not len(open_page(str(tmp_path)).frame)


def test_a_folder_to_train_into_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(Page, "task", lambda _: "at hand")
    monkeypatch.setattr(Results, "train", lambda *_, **__: None)
    open_page(str(tmp_path / "new" / "folder"), train=True)
    assert (tmp_path / "new" / "folder").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^Parameter results: the folder .*file cannot be made \(File exists\)"):
        open_page(str(tmp_path / "file"), train=True)


# --- names --------------------------------------------------------------------------------------------------------


def test_names_that_a_cell_assigns():
    assert assigned(DECLARED) == ["scale", "train", "results"]
    assert assigned("# Parameters\nmethods = [{'a': b}]\n") == ["methods"]
    assert assigned("%matplotlib inline") == assigned("import os\nprint(os)") == []


def test_a_misspelt_name_is_told(tmp_path):
    told = "^book/studies/gate.ipynb has no parameter 'sclae': choose one of scale, train, results, or pass a whole"
    with pytest.raises(UserError, match=told):
        open_page(str(tmp_path), names=injected({"sclae": "quick"}))
    with pytest.raises(UserError, match=told):  # beside a whole study, too
        open_page(str(tmp_path), names=injected(FILE | {"sclae": "quick"}))


@pytest.mark.parametrize("values", [{"seeds": [0]}, {name: FILE[name] for name in FILE if name != "dataset"}])
def test_a_part_of_a_study_is_refused(values, tmp_path):
    with pytest.raises(UserError, match="has no parameter"):
        open_page(str(tmp_path), names=injected(values))


def test_a_cell_that_is_run_again_is_judged_again(tmp_path):
    wrong, right = injected({"sclae": "quick"}), injected({"scale": "quick"})
    again = {"In": [*wrong["In"], "page = …", wrong["In"][2]]}
    with pytest.raises(UserError, match="'sclae'"):
        open_page(str(tmp_path), names=wrong | again)
    open_page(str(tmp_path), names=wrong | {"In": [*again["In"], right["In"][2]]})


@pytest.mark.parametrize("values", [{}, {"scale": "quick"}, {"scale": "quick", "train": False}, FILE])
def test_what_a_notebook_makes_itself_is_its_own(values, tmp_path):
    names = injected(values, "question = ['KD3A']", "limit = 3", "%matplotlib inline", "x = = 1")
    names |= {"question": ["KD3A"], "limit": 3, "_i1": "text"}
    assert open_page(str(tmp_path), names=names).study.study == "gate"
    del names["In"]
    assert open_page(str(tmp_path), names=names).study.study == "gate"


def calls(path: Path) -> list[tuple[list[str], ast.Call]]:
    """Every page that a notebook opens, with the names of its parameters."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    declared = [name for c in cells if "parameters" in c.metadata.get("tags", []) for name in assigned(c.source)]
    nodes = [node for c in cells for node in ast.walk(ast.parse(c.source)) if isinstance(node, ast.Call)]
    return [(declared, n) for n in nodes if getattr(n.func, "id", "") in ("Page", "PrivacyPage")]


RECORDS = [
    path for folder in ("benchmarks", "studies", "reference") for path in sorted((BOOK / folder).glob("*.ipynb"))
]


@pytest.mark.parametrize("path", [p for p in RECORDS if '"parameters"' in p.read_text()], ids=lambda p: p.stem)
def test_every_page_with_parameters_checks_them(path):
    assert calls(path) or f'(\\"book/{path.parent.name}/{path.name}\\", globals()' in path.read_text()


@pytest.mark.parametrize("path", [p for p in sorted(BOOK.glob("*/*.ipynb")) if calls(p)], ids=lambda p: p.stem)
def test_every_page_hands_over_what_is_checked(path):
    for declared, call in calls(path):
        assert {"scale", "train", "results"} <= set(declared)
        assert [ast.unparse(a) for a in call.args[3:]] == ["results", "train", "globals()"]


# --- with papermill -----------------------------------------------------------------------------------------------


def papermill(notebook: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "papermill", str(notebook), str(out), "--no-progress-bar", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize(
    "name, words, told",
    [
        ("gate", ["train", "false"], "UserError: Parameter train = 'false': write True or False."),
        ("gate", ["sclae", "quick"], "UserError: book/studies/gate.ipynb has no parameter 'sclae': choose one of"),
        ("claims", ["sclae", "quick"], "UserError: book/studies/claims.ipynb has no parameter 'sclae': choose one of"),
        ("claims", ["scale", "huge"], "UserError: Unknown scale 'huge': choose one of quick, cpu, paper."),
        ("claims", ["results", "nowhere"], "UserError: Parameter results: there is no folder"),
    ],
)
def test_papermill_ends_at_the_first_cell(name, words, told, tmp_path):
    done = papermill(BOOK / "studies" / f"{name}.ipynb", tmp_path / "out.ipynb", "-p", *words)
    assert done.returncode and told in done.stderr
    cells = [c for c in nbformat.read(tmp_path / "out.ipynb", as_version=4).cells if c.cell_type == "code"]
    ran = [cell for cell in cells if any(output.output_type == "error" for output in cell.outputs)]
    assert len(ran) == 1 and ("check_page(" if name == "claims" else "Page(") in ran[0].source
    assert all(cell.execution_count is None for cell in cells[cells.index(ran[0]) + 1 :])


def test_papermill_may_pass_a_whole_study(tmp_path):
    short = nbformat.read(BOOK / "studies" / "gate.ipynb", as_version=4)
    opening = next(i for i, cell in enumerate(short.cells) if "Page(" in cell.source)
    short.cells = short.cells[: opening + 1]
    short.cells[-1].source += "\nprint(page.study.scale, page.study.seeds)"
    nbformat.write(short, tmp_path / "short.ipynb")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(FILE | {"seeds": [7]}))
    words = ["-f", str(tmp_path / "mine.yaml"), "-p", "results", str(tmp_path)]
    done = papermill(tmp_path / "short.ipynb", tmp_path / "out.ipynb", *words)
    assert done.returncode == 0, done.stderr
    assert "quick [7]" in (tmp_path / "out.ipynb").read_text()


# --- how long it takes --------------------------------------------------------------------------------------------

SLOW = "an older CPU"


def timed(study: Study, seconds: dict[str, float]) -> list[dict]:
    """A record of the study's first row, first target for each processor, under a seed of its own."""
    _, run = study.runs()[0]
    return [
        {"key": f"{i}", "data_sha256": "", "dataset": run.dataset, "method": run.method, "target": run.target,
         "seed": 90 + i, "config": run.settings, "epochs": [], "target_accuracy": 0.5, "seconds": took,
         "peak_mb": 1.0, "provenance": {"cpu": cpu}}
        for i, (cpu, took) in enumerate(seconds.items())
    ]  # fmt: skip


@pytest.mark.parametrize(
    "seconds, told", [({"here": 10.0, SLOW: 35.0}, "30 s"), ({SLOW: 35.0}, "2 min"), ({"here": 10.0}, "30 s")]
)
def test_this_processors_records_tell_most(seconds, told, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_cpu", lambda: "here")
    one = {"targets": ["street"], "seeds": [0, 1, 2], "methods": FILE["methods"][:1]}
    results = Results(Study.read(FILE | one), tmp_path)
    lines = timed(results.study, seconds)
    results.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert f"3 of 3 runs to train: about {told} one after the other" in results.estimate()
    assert ("(3 on other processors)" in results.estimate()) == ("here" not in seconds)


class Crowd:
    """An executor of four workers who must not be asked."""

    workers = 4


def test_runs_that_are_measured_are_trained_one_at_a_time(tmp_path, monkeypatch):
    one = {"targets": ["street"], "seeds": [0, 1], "methods": FILE["methods"][:1], "apart": True}
    results, said = Results(Study.read(FILE | one), tmp_path), []
    results.path.write_text(json.dumps(timed(results.study, {SLOW: 10.0})[0]) + "\n")
    monkeypatch.setattr(results, "_here", lambda *_: iter(()))
    results.train(Hardware(), say=said.append, executor=Crowd())
    told = "about 20 s one after the other, going by recorded runs of 2 of them (2 on other processors)."
    assert said == [f"2 of 2 runs to train: {told}"]
    apart = {path.parent.name for path in records.ROOT.glob("params/*/*.yaml") if "apart: true" in path.read_text()}
    assert apart == {"sensitivity"}  # the help of `make study` names it


@pytest.mark.parametrize(
    "words, told",
    [([], "--executor processes"), (["WORKERS=1"], "--workers 1"), (["SCALE=paper"], ""), (["SCALE=quick"], "--exec")],
)
def test_make_trains_a_run_per_core(words, told):
    line = subprocess.run(["make", "-n", "study", *words], cwd=records.ROOT, capture_output=True, text=True).stdout
    assert f"--if-there {told}" in line and line.count("--executor") + line.count("--workers") == bool(told)
