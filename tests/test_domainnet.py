"""The page on DomainNet: the estimate of GPU-hours, the paper's table, and a page without any data."""

from __future__ import annotations

from itertools import product

import nbformat
import pandas as pd
import pytest
import tiny  # noqa: F401 (its network)
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from test_studies import no_task, recorded, results_with, shown_by  # noqa: F401 (a fixture)

from kd3a import claims, gpu, paper, plots
from kd3a.data.images import DOMAINNET
from kd3a.methods import METHODS
from kd3a.page import Page
from kd3a.records import ROOT
from kd3a.settings import Training
from kd3a.study import shipped

TRAINING = Training(epochs=3, epoch_samples=100, batch_size=10)


def test_operations_of_a_network_are_those_of_its_layers():
    """cnn-narrow on 3×32×32: convolutions at 32², 16² and 8² pixels, then two linear layers; two for each product."""
    products = 32**2 * 27 * 16 + 16**2 * 144 * 32 + 8**2 * 288 * 64 + 4096 * 128 + 128 * 10
    assert gpu.forward_flops("cnn-narrow", (3, 32, 32), 10) == 2 * products
    assert gpu.forward_flops("resnet18", (3, 64, 64), 7) > gpu.forward_flops("resnet18", (3, 32, 32), 7)


def images(method: str, sources: int = 4, train: int = 1000, test: int = 70, **config) -> gpu.Images:
    return gpu.images_of(method, METHODS[method].Config(**config), TRAINING, sources, train, test)


@settings(deadline=None)  # the first run with so many sources is made, the others read its counts
@given(sources=st.integers(1, 6), train=st.integers(1, 10**5), test=st.integers(1, 10**4))
def test_images_of_a_run_are_counted_network_by_network(sources, train, test):
    trained = {name: images(name, sources, train, test).trained for name in ("oracle", "source-only", "fedavg", "kd3a")}
    assert trained == {"oracle": 300, "source-only": 300, "fedavg": 300 * sources, "kd3a": 300 * (sources + 1)}
    assert images("fedavg", sources, train, test).read == 3 * test
    assert images("kd3a", sources, train, test).read == 3 * (sources * train + test)
    for config in ({"vote_on": "stage"}, {"teachers": "train"}, {"variant": "official"}):
        assert images("kd3a", sources, train, test, **config).read == 3 * (sources * 100 + test)


def test_images_of_rivals_are_counted_too():
    """With four sources, 300 samples of every domain and 1,000 target images; scoring reads 3 · 70 images."""
    assert images("mdan") == gpu.Images(300 * 5, 210)
    assert images("m3sda") == gpu.Images(300 * (5 + 4), 300 * 5 + 210)  # the backbone moves four times on the target
    assert images("shot") == gpu.Images(300 * 4 * 2, 3 * 4 * 1000 + 210)  # labels for all of the target every epoch


def test_what_is_sampled_of_the_target_does_not_grow_with_it():
    small, large = (images("fada", train=size).read for size in (2_000, 200_000))
    assert small == large


def test_long_runs_and_many_rounds_are_counted_by_short_ones():
    long = TRAINING.model_copy(update={"epochs": 30, "rounds_per_epoch": 5.0})
    counted = gpu.images_of("kd3a", METHODS["kd3a"].Config(), long, 4, 1000, 70)
    assert counted == gpu.Images(30 * 100 * 5, 30 * (5 * 4 * 1000 + 70))


def test_hours_grow_with_images_and_shrink_with_speed():
    study = shipped("domainnet", "paper")
    told = (study, gpu.DOMAINNET, (3, 32, 32), 345)
    slow, fast = (gpu.estimate(*told, teraflops) for teraflops in (1.0, 4.0))
    pd.testing.assert_series_equal(slow["GPU-hours of a run"], 4 * fast["GPU-hours of a run"])
    assert slow.loc["KD3A", "GPU-hours of a run"] > slow.loc["FedAvg", "GPU-hours of a run"]
    assert (slow["GPU-hours of all runs"] / slow["GPU-hours of a run"]).tolist() == pytest.approx([30.0] * len(slow))
    one = images("oracle").flops(10)
    assert one == 10 * (3 * 300 + 3 * 70)


def test_the_sizes_of_domainnet_are_those_of_its_lists():
    assert tuple(gpu.DOMAINNET) == DOMAINNET.DOMAINS
    assert f"{sum(map(sum, gpu.DOMAINNET.values())):,}" in DOMAINNET.note


def test_the_papers_table_is_shown_as_printed():
    table = paper.printed("domainnet")
    cells = paper.paper_cells("domainnet").set_index(["row", "column"])
    assert set(table.columns) == {*DOMAINNET.DOMAINS, "mean"} and not table.isna().any(axis=None)
    assert table.loc["Oracle", "clipart"] == " ± ".join(cells.loc[("Oracle", "clipart"), ["mean", "std"]])


@pytest.mark.parametrize("study", ["pacs", "pacs-features", "domainnet", "domainnet126"])
def test_the_page_needs_neither_data_nor_records(study, tmp_path, monkeypatch, no_task, capsys):  # noqa: F811
    monkeypatch.setenv("KD3A_FIGURES", str(tmp_path))
    scale = "paper" if study.startswith("domainnet") else "cpu"
    shown = shown_by("../benchmarks/domainnet", study=study, scale=scale, results=str(tmp_path))
    assert shown[-1].data.startswith("**Open**") and "GPU-hours" in shown[2].data
    assert [item.path.name for item in shown if isinstance(item, plots.Picture)] == ["domainnet-accuracy.svg"]


def test_the_page_judges_what_is_recorded(tmp_path, monkeypatch, no_task, capsys):  # noqa: F811
    monkeypatch.setenv("KD3A_FIGURES", str(tmp_path))
    study = shipped("pacs", "cpu")
    results_with(study, tmp_path, recorded(study))
    assert shown_by("../benchmarks/domainnet", results=str(tmp_path))[-1].data.startswith("**Reproduced**")


def test_any_part_of_domainnet_may_lie_in_the_folder(tmp_path, monkeypatch, own_cache, capsys):
    """The page with a params file of one's own, three domains and two classes; the network is smaller."""
    images, values = tmp_path / "images", yaml.safe_load((ROOT / "params" / "domainnet" / "paper.yaml").read_text())
    for domain, label, number in product(("clipart", "real", "sketch"), ("ant", "bat"), range(8)):
        (images / domain / label).mkdir(parents=True, exist_ok=True)
        colour = (20 * number, 200 * (label == "ant"), 90)
        Image.new("RGB", (40, 30), colour).save(images / domain / label / f"{number}.png")
    monkeypatch.setenv("KD3A_DATA", str(images))
    training = values["training"] | {"model": "small", "epochs": 1, "epoch_samples": 20, "batch_size": 10}
    values |= {"scale": "quick", "dataset": "folder", "seeds": [0], "training": training}
    values["methods"] = [row for row in values["methods"] if row["label"] in ("Source-only", "FedAvg", "KD3A")]
    own = Page("benchmarks/domainnet", "domainnet", "quick", str(tmp_path / "out"), train=True, names=values)
    assert own.targets == ["clipart", "real", "sketch"] and own.gaps() is None
    assert own.compare(claims.of("domainnet", own.rows))["outcome"].ne("open").all()


def test_the_ledger_links_the_page_and_gives_no_verdict():
    entries = [entry for entry in claims.LEDGER if entry.page == "benchmarks/domainnet"]
    assert len(entries) == 3 and {claims.Judged(entry, {}).verdict for entry in entries} == {"not testable here"}
    notebook = nbformat.read(ROOT / "book" / "benchmarks" / "domainnet.ipynb", as_version=4)
    assert "Not testable here" in notebook.cells[0].source
