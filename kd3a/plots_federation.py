"""Figures of the chapter on federation: who runs what where, and what a round costs with more and more sources.

The style and :func:`kd3a.plots.save` are those of :mod:`kd3a.plots`.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from kd3a.federation.report import Comparison, line
from kd3a.plots import BLUE, GREEN, INK, ORANGE, SKY, WIDTH, arrow, box, canvas, nothing, styled


@styled
def architecture() -> Figure:
    """Three machines: two sources with a node and a worker each, the target with the SuperLink and the run."""
    figure = Figure(figsize=(WIDTH, 4.6))
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, 55), ylim=(0, 49))
    ax.axis("off")
    for x, name in ((0.5, "Source 1"), (28.5, "Source K")):
        box(ax, x, 28.5, 26, 20, "", edge=BLUE, fill="#eaf3fa")
        ax.text(x + 13, 46.3, f"{name}: its machine", ha="center", va="center", fontweight="bold")
        box(ax, x + 1, 30, 10.8, 14, "SuperNode", "its key;\ncalls the\nSuperLink", BLUE)
        box(ax, x + 14.2, 30, 10.8, 14, "worker", "samples,\nmomentum;\ntrains", BLUE)
        arrow(ax, (x + 11.8, 37), (x + 14.2, 37), INK, "<->")
        arrow(ax, (x + 4.9, 28.3), (x + 4.9, 18.9), BLUE)
        arrow(ax, (x + 7.9, 18.9), (x + 7.9, 28.3), GREEN)
        ax.text(x + 9.5, 23.5, "TLS: uploads one way,\norders and the\nmodel the other", va="center", fontsize=9.5)
    box(ax, 0.5, 0.5, 54, 18, "", edge=ORANGE, fill="#fdf4e9")
    ax.text(27.5, 16.4, "Target: its machine", ha="center", va="center", fontweight="bold")
    box(ax, 2, 1.8, 18, 12.8, "SuperLink", "public keys of\nthe nodes,\nmessages", ORANGE)
    work = "own samples; vote, distil,\nweigh, average; checkpoint\nafter every round"
    box(ax, 25, 1.8, 28, 12.8, "ServerApp", work, ORANGE)
    arrow(ax, (20, 8.2), (25, 8.2), INK, "<->")
    return figure


@styled
def byte_bars(c: Comparison | None) -> Figure:
    """Bytes up and down as the ledger, the messages and the sockets count them, in megabytes."""
    if c is None:
        return nothing("not measured")
    figure, ax = canvas(2.3)
    frame = c.bytes()[["up", "down"]] / 1e6
    height = 0.38
    for shift, (way, colour) in zip((-height / 2, height / 2), (("up", BLUE), ("down", GREEN)), strict=True):
        bars = ax.barh(np.arange(len(frame)) + shift, frame[way], height, color=colour, label=way)
        ax.bar_label(bars, [f"{value:.2f}" for value in frame[way]], padding=3, fontsize=9.5)
    ax.set(
        yticks=range(len(frame)),
        yticklabels=frame.index,
        xlabel="MB of the whole run",
        xlim=(0, 1.2 * frame.max().max()),
    )
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    figure.legend(loc="outside upper center", ncols=2)
    return figure


@styled
def many_sources(scaling: list[dict[str, float]] | None, most: int = 10_000) -> Figure:
    """Seconds and megabytes of a round against the number of sources: measured, and on by the fitted line."""
    if not scaling:
        return nothing("not measured")
    figure, (left, right) = canvas(2.9, 1, 2)
    numbers = np.array([entry["sources"] for entry in scaling])
    start, slope = line(scaling)
    on = np.geomspace(numbers.min(), most, 60)
    size = scaling[-1]["bytes"] / scaling[-1]["rounds"] / scaling[-1]["sources"] / 1e6
    measured = [entry["seconds"] / entry["rounds"] for entry in scaling]
    crossed = [entry["bytes"] / entry["rounds"] / 1e6 for entry in scaling]
    for ax, values, curve, label in (
        (left, measured, start + slope * on, "core seconds a round"),
        (right, crossed, size * on, "MB a round"),
    ):
        ax.plot(on, curve, color=SKY, ls=(0, (4, 2)), label="by formula")
        ax.plot(numbers, values, ls="", marker="o", ms=6, color=INK, label="measured")
        ax.set(xscale="log", yscale="log", xlabel="sources K", ylabel=label)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure
