"""Charts that are read point by point: their data are the records', and the script draws and tells them."""

from __future__ import annotations

import json
import re

import pandas as pd

from kd3a import charts
from kd3a.records import ROOT

STATIC = ROOT / "book" / "_static"
POINTS = pd.DataFrame(
    {
        "row": ["K, r = 1", "K, r = 2", "S"],
        "megabytes": [10.0, 100.0, 2.0],
        "mean": [0.5, 0.45, 0.4],
        "std": [0.1, float("nan"), 0.0],
        "n": [2, 1, 2],
    }
)
FAMILIES = {"K": ["K, r = 1", "K, r = 2"], "S": ["S"], "none": ["x"]}
HISTORY = pd.DataFrame(
    {"row": ["a", "a", "a", "b", "c"], "epoch": [1, 1, 2, 1, 1], "weight": [0.1, 0.3, 0.4, 0.5, 0.2]}
)
PANELS = {"first": {"rule": "a", "other": "b"}, "second": {"other": "b"}, "never run": {"rule": "x"}}


def test_a_trade_is_told_with_its_front():
    chart = charts.trade_chart(POINTS, FAMILIES)
    (panel,) = chart.data["panels"]
    assert [series["name"] for series in panel["series"]] == ["K", "S"]
    assert panel["series"][0]["points"] == [[10.0, 50.0, 40.0, 60.0], [100.0, 45.0, 45.0, 45.0]]
    assert panel["series"][0]["texts"] == [
        "K, r = 1: 50.0 % with 10.0 MB, on the front",
        "K, r = 2: 45.0 % with 100.0 MB",
    ]
    assert panel["front"] == [[2.0, 40.0], [10.0, 50.0]]
    assert charts.trade_chart(POINTS[:0], FAMILIES) is None
    json.dumps(chart.data, allow_nan=False)


def test_weights_are_told_by_situation_and_epoch():
    chart = charts.weight_chart(HISTORY, PANELS, "c")
    assert [panel["name"] for panel in chart.data["panels"]] == ["first", "second"]
    first = {series["name"]: series for series in chart.data["panels"][0]["series"]}
    assert first["rule"]["points"] == [[1, 0.2, 0.0586, 0.3414], [2, 0.4, 0.4, 0.4]]
    assert list(first) == ["c", "rule", "other"] and first["c"]["texts"] == ["epoch 1, c: 0.200"]
    other = chart.data["panels"][1]["series"][1]
    assert other["colour"] == first["other"]["colour"], "a rule keeps its colour"
    assert charts.weight_chart(HISTORY[:0], PANELS, "c") is None
    json.dumps(chart.data, allow_nan=False)


def test_a_chart_is_read_by_keyboard_and_pointer_on_a_phone(chromium):
    page = chromium.new_page(viewport={"width": 390, "height": 900})
    html = charts.weight_chart(HISTORY, PANELS, "c")._repr_html_() + charts.trade_chart(POINTS, FAMILIES)._repr_html_()
    page.set_content(f'<!doctype html><html lang="en"><body>{html}</body></html>')
    for name in ("explorers", "charts"):
        page.add_style_tag(path=STATIC / f"{name}.css")
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for name in ("explorers", "charts"):
        page.add_script_tag(path=STATIC / f"{name}.js")
    weights, trade = page.locator("[data-chart]").all()
    said = weights.locator(".explorer-said")
    assert said.inner_text() == "epoch 1, c: 0.200; epoch 1, rule: 0.200; epoch 1, other: 0.500."
    weights.locator("input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    assert said.inner_text() == "epoch 2, rule: 0.400."
    weights.locator("select").select_option(label="second")
    assert said.inner_text() == "epoch 1, c: 0.200; epoch 1, other: 0.500."
    box = trade.locator("svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 15, box["y"] + 100)
    assert trade.locator(".explorer-said").inner_text() == "K, r = 2: 45.0 % with 100.0 MB."
    page.mouse.move(box["x"] + 60, box["y"] + 100)
    assert trade.locator(".explorer-said").inner_text() == "S: 40.0 % with 2.0 MB, on the front."
    assert trade.locator("circle").count() == 3 and trade.locator("select").count() == 0
    assert not re.search("NaN|Infinity", trade.inner_html() + weights.inner_html()) and wrong == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()
