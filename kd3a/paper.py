"""The paper's tables, as they are printed: ``results/paper.csv``."""

from __future__ import annotations

import pandas as pd

from kd3a import records, report
from kd3a.errors import UserError


def printed(name: str) -> pd.DataFrame:
    """A table of the paper as it stands there, mean ± standard deviation in percent."""
    cells = paper_cells(name)
    spread = [f" ± {std}" if pd.notna(std) else "" for std in cells["std"]]
    texts = {(r.row, r.column): f"{r.mean}{more}" for r, more in zip(cells.itertuples(), spread, strict=True)}
    return report.tabulated(texts)


def paper_table(name: str) -> dict[tuple[str, str], str]:
    """Numbers that the paper prints, by row and column; its average column is called ``mean``."""
    return {(r.row, r.column): r.mean for r in paper_cells(name).itertuples()}


def paper_cells(name: str) -> pd.DataFrame:
    """The lines of a table of the paper: row, column, mean, std; its average column is called ``mean``."""
    cells = pd.read_csv(records.ROOT / "results" / "paper.csv", dtype=str)
    cells = cells[cells["table"] == name]
    if cells.empty:
        raise UserError(f"The paper has no table {name!r} in results/paper.csv.")
    return cells.assign(column=cells["column"].str.replace("avg", "mean"))
