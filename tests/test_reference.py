"""The book's reference part: every module is in the API, timings come from the records, the glossary holds."""

from __future__ import annotations

import pkgutil
import re

import pytest
from pybtex.database import parse_file
from pybtex.plugin import find_plugin

import kd3a
from kd3a import apidoc, names, records, timings
from kd3a.errors import UserError
from kd3a.probes import PrivacyStudy
from kd3a.records import ROOT
from kd3a.settings import Training
from kd3a.study import MethodEntry, Study, load_study

REFERENCE = ROOT / "book" / "reference"


# --- API --------------------------------------------------------------------------------------------------------------


def test_every_module_is_in_the_api():
    """A new module needs two lines: one in api.md, one in the page it links."""
    modules = {m.name for m in pkgutil.walk_packages(kd3a.__path__, "kd3a.")}
    public = {name for name in modules if "._" not in name} - {"kd3a.apidoc"}
    listed = set(re.findall(r"^   (kd3a\S+)$", (REFERENCE / "api.md").read_text(), re.MULTILINE))
    pages = "\n".join(path.read_text() for path in REFERENCE.glob("api-*.md"))
    described = re.findall(r"automodule:: (\S+)\n   :members:", pages)
    assert sorted(public - listed) == [] and sorted(public - set(described)) == []
    assert listed <= public and len(described) == len(set(described))


class App:
    """As much of Sphinx as the extension sees: handlers by event, called in the order of their priority."""

    def __init__(self):
        self.handlers = []

    def connect(self, event, handler, priority=500):
        self.handlers.append((priority, event, handler))

    def process(self, what: str, lines: list[str]) -> list[str]:
        for _, event, handler in sorted(self.handlers, key=lambda h: h[0]):
            if event == "autodoc-process-docstring":
                handler(self, what, "name", None, None, lines)
        return lines


@pytest.mark.parametrize(("what", "kept"), [("attribute", True), ("data", True), ("function", False)])
def test_the_line_under_a_setting_is_a_sentence(what, kept):
    app = App()
    apidoc.setup(app)

    def napoleon(app, what, name, obj, options, lines):
        lines[:] = ["read", "", ":type: auto"]

    app.connect("autodoc-process-docstring", napoleon)
    assert (app.process(what, ["auto: read"]) == ["auto: read"]) is kept


def test_settings_have_no_signature():
    assert apidoc.signature(None, "class", "", Training, None, "(x)", "") == ("", None)
    assert apidoc.signature(None, "class", "", App, None, "(x)", "") is None


# --- timings ----------------------------------------------------------------------------------------------------------


def record(key: str, method: str, seconds: float, device: str = "cpu", dataset: str = "digits") -> dict:
    notes = {"started": "2026-01-01T00:00:00", "device": device, "cpu": "a CPU", "threads": 1, "commit": "c" * 40,
             "dirty": False, "versions": {"python": "3", "torch": "2"}}  # fmt: skip
    told = {"key": key, "method": method, "dataset": dataset, "seconds": seconds, "peak_mb": 500.0}
    return told | {"provenance": notes}


def test_timings_are_those_of_the_records(tmp_path):
    for line in (record("a", "kd3a", 10), record("b", "kd3a", 30), record("c", "fedavg", 5, "a GPU")):
        records.append(tmp_path / "one-quick.jsonl", line)
    records.append(tmp_path / "two-cpu.jsonl", record("d", "kd3a", 7200, dataset="amazon"))
    records.append(tmp_path / "less-cpu.jsonl", record("e", "kd3a", 1))
    (tmp_path / "empty-cpu.jsonl").write_text("")
    found = timings.recorded(tmp_path)
    assert list(found) == ["less-cpu", "one-quick", "two-cpu"]
    studies = timings.by_study(found)
    assert studies.loc["one-quick", ["runs", "in all", "shortest run", "longest run"]].tolist() == [
        "3", "45 s", "5 s", "30 s"]  # fmt: skip
    assert studies.loc["two-cpu", "in all"] == "2.0 h"
    methods = timings.by_method(found)
    assert list(methods) == ["one-quick", "two-cpu"], "of each dataset the file with the most methods"
    assert methods.loc["kd3a"].tolist() == ["20", "7,200"] and methods.loc["fedavg"].tolist() == ["5", ""]
    assert timings.machines(found)["runs"].to_dict() == {"a CPU": 4, "a GPU": 1}


def test_timings_without_any_record(tmp_path):
    found = timings.recorded(tmp_path)
    assert timings.by_study(found).empty and timings.by_method(found).empty and timings.machines(found).empty


# --- glossary ---------------------------------------------------------------------------------------------------------


def test_terms_of_the_glossary_are_there_once():
    text = (REFERENCE / "glossary.md").read_text()
    blocks = re.findall(r"```\{glossary\}\n(.*?)```", text, re.DOTALL)
    terms = [line for block in blocks for line in block.splitlines() if line and not line.startswith(" ")]
    assert len(terms) > 60 and len(terms) == len({term.lower() for term in terms})
    for used in re.findall(r"\{term\}`([^`<]+)`", text):
        assert used in terms


# --- names of rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((ROOT / "params").glob("*/*.yaml")), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_study_with_rows_of_kd3a_or_fedavg_is_in_the_table_of_names(path):
    study = load_study(path)
    if isinstance(study, PrivacyStudy) or study.study.startswith("tuning"):  # whose rows have numbers
        return
    page = names.page_of(study.study)
    assert (ROOT / "book" / f"{page}.ipynb").exists() and names.meanings(study)


def test_a_name_means_what_its_row_sets_or_what_its_rows_share():
    def row(method: str, label: str, training: dict | None = None, **told) -> MethodEntry:
        return MethodEntry(method=method, label=label, set=told, training=training or {})

    rows = [
        row("kd3a", "gate 0.5", teachers="train", gate_begin=0.5),
        row("kd3a", "gate 0.9", {"poison": "street:0.5"}, teachers="train"),
        row("kd3a", "KD3A as written, r = 1"),
        row("kd3a", "paper", mixup=0.0),
        row("kd3a", "paper + mixup", mixup=2.0),
        row("fedavg", "scaled · FedAvg", {"attack": "street:scaled:4"}),
        row("oracle", "Oracle"),
    ]
    told = {"study": "s", "scale": "cpu", "dataset": "digits", "seeds": [0], "training": Training()}
    assert names.meanings(Study(**told, methods=rows)) == {
        "KD3A": {"teachers": "train"},
        "KD3A as written": {},
        "paper": {"mixup": 0.0},
        "FedAvg": {},
    }


def test_the_tables_of_names_have_every_page_and_know_their_scales():
    tables = names.plain("cpu") + names.others("cpu")
    assert [page for page in names.PAGES if f"(../{page}.ipynb)" not in tables] == []
    with pytest.raises(UserError, match="choose one of quick, cpu, paper"):
        names.plain("large")


def test_pages_whose_rows_have_these_names_link_their_table():
    unlinked = [page for page in names.PAGES if "reference/names" not in (ROOT / "book" / f"{page}.ipynb").read_text()]
    assert unlinked == []


# --- bibliography -----------------------------------------------------------------------------------------------------


def test_works_are_called_by_author_and_year():
    apidoc.setup(App())
    entries = parse_file(ROOT / "book" / "references.bib").entries
    style = find_plugin("pybtex.style.formatting", "author_year")()
    works = style.sort(entries.values())
    labels = list(style.format_labels(works))
    assert labels == sorted(set(labels), key=str.lower) and len(labels) == len(entries)
    shown = {entry.key: label for entry, label in zip(works, labels, strict=True)}
    assert shown["feng2021"] == "Feng et al., 2021" and shown["ioffe2015"] == "Ioffe and Szegedy, 2015"
    assert shown["vandermaaten2008"] == "van der Maaten and Hinton, 2008"
    for key, label in shown.items():
        author, year = key[:-4], key[-4:]
        assert label.endswith(year) and author in re.sub("[^a-z]", "", label.partition(" et al")[0].lower()), key
