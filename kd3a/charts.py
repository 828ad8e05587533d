"""The data of charts that a reader can go through point by point; ``book/_static/charts.js`` draws them.

They stand beside the figures of :mod:`kd3a.plots_studies` and show the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from kd3a.explorers import Explorer
from kd3a.plots import GREY, PALETTE
from kd3a.report import pareto


class Chart(Explorer):
    """A chart on a page: its data in HTML that the script brings to life."""

    def _repr_html_(self) -> str:
        return super()._repr_html_().replace("data-explorer=", "data-chart=", 1)


def trade_chart(points: pd.DataFrame, families: Mapping[str, Sequence[str]]) -> Chart | None:
    """Accuracy against the bytes of a run, with the front that no row is ahead of; nothing without a record.

    Args:
        points: from :func:`kd3a.report.trade`.
        families: name → rows that belong together, joined in this order.
    """
    if points.empty:
        return None
    best = pareto(points["megabytes"].tolist(), points["mean"].tolist())
    ahead = set(points.iloc[best]["row"])
    series = []
    for k, (name, rows) in enumerate(families.items()):
        mine = points[points["row"].isin(rows)].sort_values("megabytes")
        spread = mine["std"].fillna(0.0)
        ends = zip(mine["megabytes"], mine["mean"], mine["mean"] - spread, mine["mean"] + spread, strict=True)
        texts = [
            f"{r.row}: {100 * r.mean:.1f} % with {r.megabytes:,.1f} MB" + (", on the front" if r.row in ahead else "")
            for r in mine.itertuples()
        ]
        if texts:
            told = [[round(x, 3), *(round(100 * y, 2) for y in ys)] for x, *ys in ends]
            series.append({"name": name, "colour": PALETTE[k], "points": told, "texts": texts})
    front = [[round(r.megabytes, 3), round(100 * r.mean, 2)] for r in points.iloc[best].itertuples()]
    labels = {"xlabel": "megabytes exchanged in a run", "ylabel": "target accuracy (%)", "log": True, "whole": False}
    labels |= {"choose": "", "move": "go through the points", "label": "Accuracy against megabytes exchanged"}
    return Chart("trade", labels | {"panels": [{"name": "", "series": series, "front": front}]})


def weight_chart(history: pd.DataFrame, panels: Mapping[str, Mapping[str, str]], reference: str = "") -> Chart | None:
    """The weight of one domain by epoch, one situation at a time; nothing without a record.

    Args:
        history: from :func:`kd3a.report.weights`.
        panels: situation → what a line is called → row of the study.
        reference: a row that every situation shows.
    """
    names = list(dict.fromkeys(name for rows in panels.values() for name in rows))
    shown = []
    for title, rows in panels.items():
        series = []
        for name, row in (({reference: reference} if reference else {}) | rows).items():
            runs = history[history["row"] == row].groupby("epoch")["weight"]
            mean, std = runs.mean(), runs.std(ddof=1).fillna(0.0)
            if len(mean):
                ends = zip(mean.index, mean, mean - std, mean + std, strict=True)
                told = [[int(epoch), *(round(v, 4) for v in values)] for epoch, *values in ends]
                texts = [f"epoch {e}, {name}: {m:.3f}" for e, m, *_ in told]
                colour = PALETTE[names.index(name)] if name in names else GREY
                series.append({"name": name, "colour": colour, "points": told, "texts": texts})
        if any(one["name"] in rows for one in series):
            shown.append({"name": title, "series": series})
    if not shown:
        return None
    labels = {"xlabel": "epoch", "ylabel": "weight α", "log": False, "whole": True, "choose": "situation"}
    return Chart("weights", labels | {"move": "go through the epochs", "label": "Weight by epoch", "panels": shown})
