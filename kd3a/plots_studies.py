"""Figures of the studies, in the style of :mod:`kd3a.plots`; their numbers come from :mod:`kd3a.report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.special import beta

from kd3a.plots import BLUE, GREY, INK, MARKERS, ORANGE, PALETTE, SKY, canvas, nothing, remove_spare, styled
from kd3a.report import FAMILIES, pareto, whole_seeds


@styled
def measures(
    frame: pd.DataFrame, lines: Sequence[str], points: Sequence[str], values: Mapping[str, str], xlabel: str
) -> Figure:
    """Several measures against the rows of a study, a panel each and a colour per target.

    Args:
        frame: from :func:`kd3a.report.outcomes`.
        lines, points: rows along the axis; the first are joined, the others stand by themselves.
        values: columns of the frame and how their axes are called; fractions, shown in percent.
    """
    rows = [row for row in (*lines, *points) if (frame["row"] == row).any()]
    if not rows:
        return nothing()
    figure, axes = canvas(0.7 + 1.6 * len(values), len(values), 1, sharex=True, squeeze=False)
    joined = [row for row in rows if row in lines]
    for ax, (column, label) in zip(axes.flat, values.items(), strict=True):
        for k, target in enumerate(dict.fromkeys(frame["target"])):
            mine = frame[frame["target"] == target].groupby("row")[column]
            mean, std = (100 * s.reindex(rows) for s in (mine.mean(), mine.std(ddof=1).fillna(0)))
            style = {"color": PALETTE[k], "marker": MARKERS[k], "ms": 5, "capsize": 2.5, "elinewidth": 1.2}
            at = np.arange(len(rows))
            first = len(joined)
            ax.errorbar(at[:first], mean[:first], std[:first], label=target, **style)
            ax.errorbar(at[first:], mean[first:], std[first:], ls="", **style)
        if 0 < len(joined) < len(rows):
            ax.axvline(len(joined) - 0.5, color="#999999", lw=0.8, ls=(0, (3, 2)))
        ax.set(ylabel=label)
        ax.margins(y=0.12)
    names = short(rows)
    axes[-1, 0].set_xticks(range(len(rows)), names)
    axes[-1, 0].set(xlabel=xlabel)
    figure.align_ylabels()
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def short(rows: Sequence[str]) -> list[str]:
    """Titles without the words that all of them begin with, broken where they are long.

    >>> short(["gate 0.9", "gate 0.8 to 0.95"])
    ['0.9', '0.8\\nto\\n0.95']
    """
    words = [row.split() for row in rows]
    while len(words) > 1 and all(len(w) > 1 for w in words) and len({w[0] for w in words}) == 1:
        words = [w[1:] for w in words]
    return [" ".join(w).replace(" to ", "\nto\n") for w in words]


@styled
def weight_curves(history: pd.DataFrame, panels: Mapping[str, Mapping[str, str]], reference: str = "") -> Figure:
    """The weight of one domain by epoch: a panel per situation, a line per rule, a band of one standard deviation over
    targets and seeds.

    Args:
        history: from :func:`kd3a.report.weights`.
        panels: title of a panel → what a line is called → row of the study.
        reference: a row that every panel shows as a dashed line.
    """
    recorded = set(history["row"])
    shown = {t: {n: r for n, r in rows.items() if r in recorded} for t, rows in panels.items()}
    shown = {title: rows for title, rows in shown.items() if rows}
    if not shown:
        return nothing()
    columns = min(2, len(shown))
    lines = -(-len(shown) // columns)
    figure, axes = canvas(0.9 + 1.9 * lines, lines, columns, sharex=True, sharey=True, squeeze=False)
    names = list(dict.fromkeys(name for rows in panels.values() for name in rows))
    handles = {}
    for ax, (title, rows) in zip(axes.flat, shown.items(), strict=False):
        for name, row in (({reference: reference} if reference in recorded else {}) | rows).items():
            runs = history[history["row"] == row].groupby("epoch")["weight"]
            mean, std = runs.mean(), runs.std(ddof=1).fillna(0)
            k = names.index(name) if name in names else -1
            style = {"color": PALETTE[k], "marker": MARKERS[k], "ms": 3.5} if k >= 0 else {"color": INK, "ls": "--"}
            handles[name] = ax.plot(mean.index, mean, **style)[0]
            ax.fill_between(mean.index, mean - std, mean + std, color=style["color"], alpha=0.15, lw=0)
        ax.set_title(title, fontweight="bold", loc="left")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes[0, 0].set_ylim(bottom=0)  # shared by all, and only now: it ends the scaling
    remove_spare(axes, len(shown))
    figure.supxlabel("epoch", fontsize=10)
    figure.supylabel(r"weight $\alpha$ of the domain", fontsize=10)
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=2, columnspacing=1.2)
    return figure


@styled
def accuracy_against_bytes(points: pd.DataFrame, families: Mapping[str, Sequence[str]]) -> Figure:
    """Accuracy against the bytes of a run, on a logarithmic axis, with the front that no row is ahead of.

    Args:
        points: from :func:`kd3a.report.trade`.
        families: name → rows that belong together, joined in this order.
    """
    if points.empty:
        return nothing()
    figure, ax = canvas(3.6)
    front = points.iloc[pareto(points["megabytes"].tolist(), points["mean"].tolist())]
    ax.plot(front["megabytes"], 100 * front["mean"], color="#bbbbbb", lw=6, solid_capstyle="round", zorder=1,
            label="Pareto front", marker="o", ms=9)  # fmt: skip
    table = points.set_index("row")
    for k, (name, rows) in enumerate(families.items()):
        mine = table.reindex([row for row in rows if row in table.index])
        if mine.empty:
            continue
        ax.errorbar(mine["megabytes"], 100 * mine["mean"], 100 * mine["std"].fillna(0), color=PALETTE[k],
                    marker=MARKERS[k], ms=5.5, capsize=2.5, elinewidth=1.2, label=name, zorder=2)  # fmt: skip
        for row, text in zip(mine.index, short(list(mine.index)), strict=True):
            if len(mine) > 1:
                side = 1 if k % 2 == 0 else -1  # neighbours on other sides of their lines, beyond the whiskers
                end = mine.loc[row, "mean"] + side * mine["std"].fillna(0)[row]
                at, beside = (mine.loc[row, "megabytes"], 100 * end), (0, 7 if side > 0 else -14)
                ax.annotate(text.removeprefix("r = "), at, beside, textcoords="offset points", ha="center", fontsize=8)
    ax.set(xscale="log", xlabel="megabytes exchanged in a run", ylabel="target accuracy (%)")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.margins(y=0.15)
    figure.legend(loc="outside upper center", ncols=3, columnspacing=1.2)
    return figure


@styled
def sensitivity(frame: pd.DataFrame, panels: Mapping[str, Mapping[float, str]]) -> Figure:
    """Accuracy against one setting after another: a panel each, a line per target, whiskers over seeds.

    ``panels`` maps the name of a setting to its values and the rows that have them; axes are logarithmic.
    """
    if not any((frame["row"] == row).any() for rows in panels.values() for row in rows.values()):
        return nothing()
    figure, axes = canvas(2.9, 1, len(panels), sharey=True, squeeze=False)
    for ax, (title, rows) in zip(axes.flat, panels.items(), strict=True):
        values = [value for value, row in sorted(rows.items()) if (frame["row"] == row).any()]
        for k, target in enumerate(dict.fromkeys(frame["target"])):
            runs = frame[frame["target"] == target].groupby("row")["accuracy"]
            mean, std = (100 * s.reindex([rows[v] for v in values]) for s in (runs.mean(), runs.std(ddof=1).fillna(0)))
            ax.errorbar(values, mean, std, color=PALETTE[k], marker=MARKERS[k], ms=4.5, capsize=2, elinewidth=1,
                        label=target)  # fmt: skip
        ax.set(xlabel=title, xscale="log")
        ax.margins(x=0.12)
        ax.set_xticks(values, [f"{value:g}" for value in values])
        ax.minorticks_off()
    axes[0, 0].set_ylabel("accuracy (%)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


@styled
def cost_bars(frame: pd.DataFrame, rows: Sequence[str]) -> Figure:
    """Seconds, peak memory and megabytes exchanged of a run by row: means over targets and seeds that have them all."""
    frame = whole_seeds(frame)
    shown = [row for row in rows if (frame["row"] == row).any()]
    if not shown:
        return nothing()
    means = frame.groupby("row")[["seconds", "memory", "megabytes"]].mean().reindex(shown)
    figure, axes = canvas(0.7 + 0.24 * len(shown), 1, 3, sharey=True)
    at = np.arange(len(shown))
    for ax, (name, label), colour in zip(
        axes,
        (("seconds", "seconds"), ("memory", "peak memory (MB)"), ("megabytes", "MB exchanged")),
        (BLUE, ORANGE, GREY),
        strict=True,
    ):
        ax.barh(at, means[name], 0.72, color=colour)
        ax.set(xlabel=label)
        ax.grid(axis="y", visible=False)
        ax.tick_params(axis="y", length=0)
    axes[2].set_xscale("symlog", linthresh=1)
    axes[2].xaxis.set_major_formatter("{x:g}")
    axes[2].margins(y=0.01)
    axes[0].set_yticks(at, shown, fontsize=8.5)
    axes[0].invert_yaxis()
    return figure


@styled
def ranking(means: pd.DataFrame) -> Figure:
    """Mean accuracy of every row, best first, a colour and a marker for each family; whiskers: one standard deviation.

    Points, not bars: the axis begins where the data do, so that rows that lie close together can be told apart.

    ``means`` comes from :func:`kd3a.report.ranking`.
    """
    if means.empty:
        return nothing()
    figure, ax = canvas(0.9 + 0.24 * len(means))
    at = np.arange(len(means))
    for family, colour, marker in zip(FAMILIES, (BLUE, SKY, ORANGE, GREY), MARKERS, strict=False):
        mine = (means["family"] == family).to_numpy()
        if mine.any():
            style = {"ls": "", "marker": marker, "ms": 6, "capsize": 2.5, "color": colour, "label": family}
            ax.errorbar(100 * means["mean"][mine], at[mine], xerr=100 * means["std"][mine].fillna(0), **style)
    ax.set(xlabel="mean accuracy over all targets (%)", ylim=(len(means) - 0.4, -0.6))
    ax.set_yticks(at, means["row"], fontsize=8.5)
    ax.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper center", ncols=2)
    return figure


@styled
def ranked_effects(effects: pd.DataFrame) -> Figure:
    """What each switch adds, largest first, with its 95 % interval; a colour for each company it was turned in.

    ``effects`` comes from :func:`kd3a.report.effects`.
    """
    if effects.empty:
        return nothing()
    switches = list(dict.fromkeys(effects["switch"]))
    figure, ax = canvas(0.9 + 0.32 * len(switches))
    for company, colour, shift, marker in (("paper", BLUE, -0.14, "o"), ("official", ORANGE, 0.14, "s")):
        mine = effects[effects["company"] == company]
        at = np.array([switches.index(s) for s in mine["switch"]]) + shift
        lead = 100 * mine["lead"].to_numpy()
        reach = np.nan_to_num(100 * np.array([mine["lead"] - mine["low"], mine["high"] - mine["lead"]], dtype=float))
        ax.errorbar(lead, at, xerr=reach, ls="", marker=marker, ms=5, capsize=2.5, color=colour,
                    label=f"beside the {company} values")  # fmt: skip
    ax.axvline(0, color=GREY, lw=1)
    ax.set_yticks(range(len(switches)), switches)
    ax.set_ylim(len(switches) - 0.4, -0.6)
    figure.supxlabel("what the released code's value adds (points of accuracy)", fontsize=10)
    figure.legend(loc="outside upper center", ncols=2)
    return figure


@styled
def beta_densities(alphas: Sequence[float]) -> Figure:
    """The density of mixup's λ ~ Beta(α, α): how much of the first image a mixed one keeps."""
    figure, ax = canvas(2.3)
    x = np.linspace(0.005, 0.995, 397)
    for k, alpha in enumerate(alphas):
        density = (x * (1 - x)) ** (alpha - 1) / beta(alpha, alpha)
        ax.plot(x, density, color=PALETTE[k], label=f"Beta({alpha:g}, {alpha:g})",
                ls=("-", "--", ":")[k % 3])  # fmt: skip
    ax.set(xlabel="λ, the share of the first image", ylabel="density", ylim=(0, 4))
    figure.legend(loc="outside upper center", ncols=len(alphas))
    return figure


@styled
def criterion(trials: pd.DataFrame, columns: int = 4) -> Figure:
    """Accuracy of trials against the label-free criterion that chooses among them: a panel per method.

    ``trials`` comes from :func:`kd3a.report.trials`; both numbers are fractions, shown in percent.
    """
    if trials.empty:
        return nothing()
    methods = list(dict.fromkeys(trials["method"]))
    rows = -(-len(methods) // columns)
    figure, axes = canvas(0.5 + 1.5 * rows, rows, columns, sharex=True, sharey=True, squeeze=False)
    for ax, method in zip(axes.flat, methods, strict=False):
        mine = trials[trials["method"] == method].sort_values("criterion")
        x, y = 100 * mine["criterion"], 100 * mine["accuracy"]
        ax.plot(x, y, color=GREY, lw=0.8, zorder=1)
        ax.scatter(x, y, s=28, facecolors=np.where(mine["chosen"], BLUE, "white"), edgecolors=BLUE, zorder=2)
        ax.set_title(method, fontweight="bold", loc="left")
    remove_spare(axes, len(methods))
    figure.supxlabel("criterion (%)", fontsize=10)
    figure.supylabel("target accuracy (%)", fontsize=10)
    return figure
