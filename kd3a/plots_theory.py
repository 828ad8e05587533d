"""The figures of the book's theory part, in the style of :mod:`kd3a.plots`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from kd3a.plots import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, SKY, canvas, styled
from kd3a.worlds import World, best, border, misleading

#: Colour and line style of a quantity wherever it appears.
LINES = {
    "target risk": (INK, "-"),
    "Proposition 1": (BLUE, "-"),
    "Theorem 2 (KD3A)": (GREEN, "--"),
    "Theorem 1": (ORANGE, "-."),
    "printed": (ORANGE, "-."),
    "corrected": (PURPLE, "--"),
    "exact": (BLUE, "-"),
}


@styled
def world_map(world: World) -> Figure:
    """Where the domains live: a contour at half the height of each, the true border, and each teacher's border."""
    side = round(np.sqrt(len(world.x)))
    first, second = (world.x[:, axis].reshape(side, side) for axis in (0, 1))
    figure, ax = canvas(4.1)
    fine = np.linspace(-1, 1, 201)
    ax.fill_between(fine, border(fine), 1, color="#e2ecf4", lw=0)
    (curve,) = ax.plot(fine, border(fine), color=INK, lw=2, label="true border")
    handles = [curve]
    colours = (BLUE, ORANGE, GREEN)
    for k, (mass, m) in enumerate(zip(world.masses, best(world.H, world.sources()), strict=True)):
        w, b = world.lines[m, :2], world.lines[m, 2]
        ax.axline(b * w, b * w + w[::-1] * (-1, 1), color=colours[k], lw=1)
        ax.contour(first, second, (mass / mass.max()).reshape(side, side), levels=[0.5], colors=[colours[k]])
        handles.append(Line2D([], [], color=colours[k], label=f"source {k + 1}"))
    height, dashed = (world.target_mass / world.target_mass.max()).reshape(side, side), (0, (4, 2))
    ax.contour(first, second, height, levels=[0.5], colors=[RED], linestyles=[dashed])
    handles.append(Line2D([], [], color=RED, ls=dashed, label="target"))
    ticks = np.linspace(-1, 1, 5)
    ax.set(xlabel="first feature", ylabel="second feature", aspect="equal", xlim=(-1, 1), ylim=(-1, 1))
    ax.set(xticks=ticks, yticks=ticks)
    ax.grid(False)
    figure.legend(handles=handles, loc="outside upper center", ncols=5, columnspacing=1.0, handlelength=1.5)
    return figure


@styled
def stacked_terms(parts: Mapping[str, Mapping[str, float]], truth: float) -> Figure:
    """What each bound is made of: a bar per bound, a piece per term, and the risk they all bound."""
    figure, ax = canvas(0.9 + 0.36 * len(parts))
    pieces = list(next(iter(parts.values())))
    left = np.zeros(len(parts))
    for piece, colour in zip(pieces, (SKY, ORANGE, PURPLE, GREEN), strict=False):
        values = np.array([bar[piece] for bar in parts.values()])
        ax.barh(range(len(parts)), values, 0.7, left=left, color=colour, label=piece)
        left += values
    for row, total in enumerate(left):
        ax.text(total + 0.01, row, f"{total:.2f}", va="center", fontsize=9.5)
    ax.axvline(truth, color=INK, lw=1.8, label=f"true target risk, {truth:.2f}")
    ax.set_yticks(range(len(parts)), list(parts))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.12)
    ax.set(xlabel="risk (share of samples)")
    figure.legend(loc="outside upper center", ncols=2, columnspacing=1.2, handlelength=1.3)
    return figure


@styled
def condition_sweep(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """The margins of the three conditions of Proposition 2 against the share of wrong labels, a panel per situation.

    A condition holds where its line is at or above zero; the shaded shares are where the printed one misleads.
    """
    figure, axes = canvas(1.1 + 2.1 * len(tables), len(tables), 1, sharex=True, sharey=True, squeeze=False)
    names = {"printed": "as printed", "corrected": "corrected", "exact": "exact"}
    for ax, (title, table) in zip(axes[:, 0], tables.items(), strict=True):
        ax.axhline(0, color=INK, lw=1)
        band = {"transform": ax.get_xaxis_transform(), "color": FAINT, "alpha": 0.6, "lw": 0}
        shade = ax.fill_between(table["share"], 0, 1, where=misleading(table), **band)
        shade.set_label("printed holds, bound is looser")
        for column, name in names.items():
            colour, style = LINES[column]
            ax.plot(table["share"], table[column], color=colour, ls=style, marker="o", ms=3, label=name)
        ax.set_title(title, fontweight="bold", loc="left")
    axes[-1, 0].set(xlabel="share of wrong labels")
    figure.supylabel("margin of the condition", fontsize=10)
    handles = [*axes[0, 0].get_lines()[1:], shade]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, columnspacing=1.2)
    return figure


@styled
def bound_training(runs: Mapping[str, pd.DataFrame]) -> Figure:
    """Bounds and the risk they bound, round by round, a panel per run."""
    figure, axes = canvas(0.9 + 1.9 * len(runs), len(runs), 1, sharex=True, sharey=True, squeeze=False)
    for ax, (title, rounds) in zip(axes[:, 0], runs.items(), strict=True):
        for column, wide in (("Theorem 1", 1.8), ("Theorem 2 (KD3A)", 1.8), ("Proposition 1", 4), ("target risk", 1.4)):
            colour, style = LINES[column]
            ax.plot(rounds.index, rounds[column], color=colour, ls=style, lw=wide, marker="o", ms=3, label=column)
        ax.set_title(title, fontweight="bold", loc="left")
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes[0, 0].set_ylim(bottom=0)
    axes[-1, 0].set(xlabel="round")
    figure.supylabel("risk (share of samples)", fontsize=10)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, columnspacing=1.2, handlelength=2.2)
    return figure
