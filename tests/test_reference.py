"""The book's reference part: every module is in the API, timings come from the records, the glossary holds."""

from __future__ import annotations

import pkgutil
import re

import pytest

import kd3a
from kd3a import apidoc, records, timings
from kd3a.records import ROOT
from kd3a.settings import Training

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


def record(key: str, method: str, seconds: float, device: str = "cpu") -> dict:
    notes = {"started": "2026-01-01T00:00:00", "device": device, "cpu": "a CPU", "threads": 1, "commit": "c" * 40,
             "dirty": False, "versions": {"python": "3", "torch": "2"}}  # fmt: skip
    return {"key": key, "method": method, "seconds": seconds, "peak_mb": 500.0, "provenance": notes}


def test_timings_are_those_of_the_records(tmp_path):
    for line in (record("a", "kd3a", 10), record("b", "kd3a", 30), record("c", "fedavg", 5, "a GPU")):
        records.append(tmp_path / "one-quick.jsonl", line)
    records.append(tmp_path / "two-cpu.jsonl", record("d", "kd3a", 7200))
    (tmp_path / "empty-cpu.jsonl").write_text("")
    found = timings.recorded(tmp_path)
    assert list(found) == ["one-quick", "two-cpu"]
    studies = timings.by_study(found)
    assert studies.loc["one-quick", ["runs", "in all", "shortest run", "longest run"]].tolist() == [
        "3", "45 s", "5 s", "30 s"]  # fmt: skip
    assert studies.loc["two-cpu", "in all"] == "2.0 h"
    methods = timings.by_method(found)
    assert methods.loc["kd3a"].tolist() == ["20", "7,200"] and methods.loc["fedavg"].tolist() == ["5", ""]
    assert timings.machines(found)["runs"].to_dict() == {"a CPU": 3, "a GPU": 1}


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
