"""Every study of the embedded digits as a reader trains it: its notebook with its quick file, here of one target."""

from __future__ import annotations

import papermill
import pytest
import yaml

from kd3a.names import page_of
from kd3a.records import ROOT
from kd3a.study import Results, load_study

FILES = [path for path in sorted((ROOT / "params").glob("*/quick.yaml")) if "dataset: digits" in path.read_text()]


def shortened(values: dict) -> dict:
    """The same study with one target, an epoch as short as its rounds allow, and fewer steps of attacks."""
    if "attacks" in values:
        return values | {"attacks": [{**attack, "iterations": 2} for attack in values["attacks"]], "images": 1}
    seldom = any(row.get("training", {}).get("rounds_per_epoch", 1) < 1 for row in values["methods"])
    training = values["training"] | ({} if seldom else {"epochs": 1})
    return values | {"targets": values.get("targets", ["mnist_m"])[:1], "training": training}


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.parent.name)
def test_a_study_trains_and_renders_from_nothing(file, tmp_path, digits_cache, monkeypatch):
    monkeypatch.delenv("KD3A_DATA", raising=False)
    monkeypatch.setenv("KD3A_FIGURES", str(tmp_path / "figures"))
    name, values = file.parent.name, shortened(yaml.safe_load(file.read_text()))
    (tmp_path / "short.yaml").write_text(yaml.safe_dump(values, allow_unicode=True))
    study = load_study(tmp_path / "short.yaml")
    done = papermill.execute_notebook(
        str(ROOT / "book" / f"{page_of(name) or f'studies/{name}'}.ipynb"),
        str(tmp_path / "out.ipynb"),
        parameters=values | {"train": True, "results": str(tmp_path)},
        progress_bar=False,
    )
    assert not Results(study, tmp_path).missing()
    shown = [output.get("data", {}).get("text/markdown", "") for c in done.cells for output in c.get("outputs", [])]
    assert not [text for text in shown if f"`kd3a study params/{name}/quick.yaml` trains the missing" in text]
    assert name == "tuning" or any("This scale tests the code" in text for text in shown)  # a search has no verdict
