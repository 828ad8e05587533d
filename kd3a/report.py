"""What a study page says beside its table: what is missing, where it ran, what crossed, and the verdict."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from scipy import stats

from kd3a.records import Record
from kd3a.study import Results, duration, shipped


def open_results(study: str, scale: str, folder: str = "") -> Results:
    """The records of a shipped study, in ``folder``, else in ``KD3A_RESULTS``, else in the repository's results/."""
    chosen = folder or os.environ.get("KD3A_RESULTS")
    return Results(shipped(study, scale), Path(chosen) if chosen else None)


def finished(results: Results) -> list[tuple[str, Record]]:
    """Row title and record of every run of the grid that is recorded."""
    return [(title, record) for title, _, record in results.recorded() if record is not None]


def missing(results: Results) -> pd.DataFrame:
    """How many runs of each row and target are not recorded; empty when all are."""
    gaps = [{"row": title, "target": run.target} for title, run, record in results.recorded() if record is None]
    rows = list(dict.fromkeys(title for title, _ in results.grid))
    if not gaps:
        return pd.DataFrame(columns=results.study.domains())
    counts = pd.DataFrame(gaps).value_counts().unstack(fill_value=0)
    return counts.reindex(index=[r for r in rows if r in counts.index], columns=results.study.domains(), fill_value=0)


def history(runs: Sequence[tuple[str, Record]]) -> pd.DataFrame:
    """One line per epoch of every run: row, target, seed, epoch, accuracy."""
    lines = [
        {"row": title, "target": r["target"], "seed": r["seed"], "epoch": e["epoch"], "accuracy": e["target_accuracy"]}
        for title, r in runs
        for e in r["epochs"]
    ]
    return pd.DataFrame(lines, columns=["row", "target", "seed", "epoch", "accuracy"])


def provenance(runs: Sequence[tuple[str, Record]]) -> dict[str, str]:
    """Where the records come from, in a reader's words; several values are joined."""
    if not runs:
        return {}
    notes = [record["provenance"] for _, record in runs]
    days = sorted({note["started"][:10] for note in notes})
    seconds = sum(record["seconds"] for _, record in runs)

    def all_of(values) -> str:
        return ", ".join(dict.fromkeys(map(str, values)))

    return {
        "runs": str(len(runs)),
        "computing time": f"{duration(seconds)} in all, {duration(seconds / len(runs))} a run",
        "hardware": all_of(n["device"] if n["device"] != "cpu" else n["cpu"] for n in notes),
        "threads of a run": all_of(n["threads"] for n in notes),
        "largest memory": f"{max(record['peak_mb'] for _, record in runs):,.0f} MB",
        "versions": all_of(f"{name} {v}" for n in notes for name, v in n["versions"].items()),
        "commit": all_of(n["commit"][:10] + (" with changes" if n["dirty"] else "") for n in notes),
        "trained": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}",
    }


def compact(cells: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """A table of :func:`kd3a.study.table` and how to say its numbers of seeds: once, if it is the same in all cells.

    >>> compact(pd.DataFrame({"t": ["79.3 ± 0.4 (3)"]}))[1]
    'n = 3'
    """
    cells = cells.rename_axis(index=None, columns=None)
    numbers = {text.rpartition(" ")[2] for text in cells.to_numpy().ravel()}
    if len(numbers) != 1 or numbers == {"–"}:
        return cells, "the number of seeds is in brackets"
    return cells.map(lambda text: text.rpartition(" ")[0]), f"n = {numbers.pop().strip('()')}"


def exchange(frame: pd.DataFrame, rows: Sequence[str]) -> pd.DataFrame:
    """What crossed in a run, its accuracy and its time, as means over targets and seeds, in text cells."""
    means = frame.groupby("row")[["megabytes", "accuracy", "seconds"]].mean().reindex(rows).astype(float)
    cells = pd.DataFrame(index=rows)
    for title, values, form in (
        ("MB exchanged", means["megabytes"], "{:,.1f}"),
        ("accuracy (%)", 100 * means["accuracy"], "{:.1f}"),
        ("seconds", means["seconds"], "{:,.0f}"),
    ):
        cells[title] = ["–" if pd.isna(value) else form.format(value) for value in values]
    return cells


@dataclass(frozen=True)
class Claim:
    """Row ``above`` beats every row of ``below``, in mean accuracy over all targets, by at least ``margin``.

    With ``printed``, it is held against that number instead: ``margin`` is then how far from it still counts.
    """

    text: str
    above: str
    below: tuple[str, ...] = ()
    margin: float = 0.0
    printed: float | None = None

    @property
    def needed(self) -> str:
        """The smallest lead that counts, in points."""
        return f"≥ {100 * self.margin:.1f}".replace("-", "−") if self.margin or self.printed else "> 0"

    def holds(self, lead: float) -> bool:
        return bool(lead >= self.margin if self.margin or self.printed else lead > 0)


@dataclass(frozen=True)
class Finding:
    """What the records say of a claim: the smallest lead over seeds they share; ``holds`` is None if there are none."""

    claim: Claim
    lead: float
    std: float
    seeds: int
    ahead: int  # seeds in which the claim holds

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the lead, by Student's t over seeds."""
        half = (
            float(stats.t.ppf(0.975, self.seeds - 1)) * self.std / self.seeds**0.5 if self.seeds > 1 else float("nan")
        )
        return self.lead - half, self.lead + half

    @property
    def holds(self) -> bool | None:
        if not self.seeds:
            return None
        return self.claim.holds(self.lead)


def judge(frame: pd.DataFrame, claims: Sequence[Claim], targets: Sequence[str]) -> list[Finding]:
    """Hold every claim against the records; only seeds that have all targets of all its rows count.

    The lead of a claim is that over its strongest rival, seed by seed.
    """
    wide = frame.pivot_table(index=["row", "seed"], columns="target", values="accuracy")
    means = wide.reindex(columns=list(targets)).dropna().mean(axis=1).unstack("row") if len(frame) else pd.DataFrame()
    findings = []
    for claim in claims:
        rows = [claim.above, *claim.below]
        if not (claim.below or claim.printed) or not set(rows) <= set(means.columns):
            findings.append(Finding(claim, float("nan"), float("nan"), 0, 0))
            continue
        shared = means[rows].dropna()
        leads = shared[claim.above] - (claim.printed or 0.0)
        if claim.below:
            rival = shared[list(claim.below)].mean().idxmax() if len(shared) else claim.below[0]
            leads = shared[claim.above] - shared[rival]
        ahead = sum(map(claim.holds, leads))
        findings.append(Finding(claim, leads.mean(), leads.std(ddof=1), len(leads), ahead))
    return findings


def verdict(findings: Sequence[Finding]) -> str:
    """``reproduced`` when every claim holds, ``not reproduced`` when none does, ``partly reproduced`` between; ``open``
    while a claim cannot be judged."""
    held = [finding.holds for finding in findings]
    if None in held:
        return "open"
    return "reproduced" if all(held) else "partly reproduced" if any(held) else "not reproduced"


def findings_table(findings: Sequence[Finding]) -> pd.DataFrame:
    """The claims, the leads in points of accuracy, and whether they hold."""
    answers = {True: "holds", False: "fails", None: "open"}
    lines = []
    for f in findings:
        spread = f" ± {100 * f.std:.1f}" if f.seeds > 1 else ""
        lead = f"{100 * f.lead:+.1f}{spread} ({f.seeds})".replace("-", "−") if f.seeds else "–"
        low, high = (f"{100 * end:+.1f}".replace("-", "−") for end in f.interval)
        lines.append(
            {
                "claim": f.claim.text,
                "needed": f.claim.needed,
                "measured": lead,
                "95 % interval": f"{low} to {high}" if f.seeds > 1 else "–",
                "outcome": answers[f.holds],
            }
        )
    return pd.DataFrame(lines).set_index("claim")
