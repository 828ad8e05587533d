"""Figures of the privacy study, in the style of :mod:`kd3a.plots`; their numbers come from the study's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from kd3a.plots import BLUE, GREEN, GREY, ORANGE, bare, canvas, nothing, styled
from kd3a.probes import NAMES, RECOVERED

STYLES = {"dlg": (ORANGE, "s", -0.2), "idlg": (GREEN, "D", 0.0), "inversion": (BLUE, "o", 0.2)}
MEASURES = {"psnr": "PSNR (dB)", "ssim": "SSIM"}


@styled
def fidelity_curves(frame: pd.DataFrame, seen: Sequence[str]) -> Figure:
    """How close guesses come to the private images, by what the update sums up: a column of panels per network.

    Args:
        frame: from :meth:`kd3a.reconstructions.Reconstructions.frame`.
        seen: titles of the updates, in the order of the axis.
    """
    if frame.empty:
        return nothing()
    networks = list(dict.fromkeys(frame["network"]))
    figure, axes = canvas(4.6, len(MEASURES), len(networks), sharex=True, sharey="row", squeeze=False)
    single = [title for title in seen if title.endswith("× 1")]
    for column, network in enumerate(networks):
        for ax, (measure, label) in zip(axes[:, column], MEASURES.items(), strict=True):
            mine = frame[frame["network"] == network]
            spread = mine.groupby(["attack", "kind", "seen"])[measure].agg(["mean", "std"]).fillna(0.0)
            for kind, attack, part in product(("attack", "control"), STYLES, (single, [*seen[len(single) :]])):
                told = [title for title in part if (attack, kind, title) in spread.index]
                _whiskers(ax, [seen.index(title) for title in told], spread, attack, kind, told)
            if 0 < len(single) < len(seen):
                ax.axvline(len(single) - 0.5, color="#999999", lw=0.8, ls=(0, (3, 2)))
            if measure == "psnr":
                ax.axhline(RECOVERED, color=GREY, lw=1.2, label=f"recovered: {RECOVERED:g} dB")
            if column == 0:
                ax.set_ylabel(label)
        axes[0, column].set_title(network, fontweight="bold", loc="left")
        axes[-1, column].set_xticks(range(len(seen)), [t.replace(" × ", "\n×") for t in seen], fontsize=8.5)
    figure.supxlabel("local steps × images in a step", fontsize=10)
    handles, names = axes[0, 0].get_legend_handles_labels()
    known = dict(zip(names, handles, strict=True))
    order = sorted(known, key=lambda name: ("control" in name, "recovered" in name))
    figure.legend([known[n] for n in order], order, loc="outside upper center", ncols=2, columnspacing=1.2)
    return figure


def _whiskers(ax: Axes, at: Sequence[int], spread: pd.DataFrame, attack: str, kind: str, seen: Sequence[str]) -> None:
    """One attack, or its control, as points with whiskers, beside those of the other attacks."""
    colour, marker, shift = STYLES[attack]
    cells = spread.reindex([(attack, kind, title) for title in seen])
    hollow = kind == "control"
    ax.errorbar(np.array(at) + shift, cells["mean"], cells["std"], color=colour, marker=marker, ms=4, capsize=2,
                mfc="white" if hollow else colour, ls=":" if hollow else "-", lw=1.2, elinewidth=1,
                label=NAMES[attack] + ", control" * hollow)  # fmt: skip


@styled
def reconstruction_grid(rows: Mapping[str, Mapping[str, tuple[Tensor, str]]], columns: Sequence[str]) -> Figure:
    """Images (C, H, W) with pixels in [0, 1] in a grid, each above its caption; cells without one stay empty.

    Args:
        rows: title of a row → title of a column → image and caption.
        columns: titles in order.
    """
    rows = {title: cells for title, cells in rows.items() if cells}
    if not rows:
        return nothing()
    figure, axes = canvas(0.35 + 0.78 * len(rows), len(rows), len(columns), squeeze=False)
    for line, (title, cells) in zip(axes, rows.items(), strict=True):
        for ax, column in zip(line, columns, strict=True):
            bare(ax)
            ax.set(xticks=[], yticks=[])
            if column in cells:
                image, caption = cells[column]
                ax.imshow(image.permute(1, 2, 0).numpy(), interpolation="none", vmin=0, vmax=1)
                ax.set_xlabel(caption, fontsize=7.5, labelpad=1.5)
        line[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=8.5)
    for ax, column in zip(axes[0], columns, strict=True):
        ax.set_title(column.replace(" × ", "×"), fontsize=9)
    return figure
