"""How long the recorded runs took, with what and on what: the book's page of timings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from kd3a import records
from kd3a.records import Record
from kd3a.report import duration, provenance


def recorded(folder: Path | None = None) -> dict[str, list[Record]]:
    """The records of every results file, by the file's name without ``.jsonl``; files without a run are left out."""
    folder = records.ROOT / "results" if folder is None else Path(folder)
    found = {path.stem: records.read(path) for path in sorted(folder.glob("*.jsonl"))}
    return {name: lines for name, lines in found.items() if lines}


def by_study(found: Mapping[str, Sequence[Record]]) -> pd.DataFrame:
    """A line per results file: runs, computing time in all and for one run, memory, threads, days."""
    rows = {}
    for name, lines in found.items():
        told = provenance([("", line) for line in lines])
        seconds = [line["seconds"] for line in lines]
        rows[name] = {
            "runs": told["runs"],
            "in all": duration(sum(seconds)),
            "shortest run": duration(min(seconds)),
            "longest run": duration(max(seconds)),
            "largest memory": told["largest memory"],
            "trained": told["trained"],
        }
    return pd.DataFrame(rows).T


def by_method(found: Mapping[str, Sequence[Record]]) -> pd.DataFrame:
    """Mean seconds of a run, a row per method and a column per dataset, of which one results file is shown: the one
    with the most methods, then runs. Methods that it does not have are empty."""

    def size(name: str) -> tuple[int, int]:
        return len({r["method"] for r in found[name]}), len(found[name])

    files = {}
    for name in sorted(found, key=size):  # the largest last
        files[found[name][0]["dataset"]] = name
    seconds = [
        {"method": r["method"], "file": name, "seconds": r["seconds"]}
        for name in sorted(files.values(), key=size, reverse=True)
        for r in found[name]
    ]
    frame = pd.DataFrame(seconds, columns=["method", "file", "seconds"])
    means = frame.groupby(["method", "file"], sort=False)["seconds"].mean().unstack("file")
    return means.map(lambda value: "" if pd.isna(value) else f"{value:,.0f}").rename_axis(index=None, columns=None)


def machines(found: Mapping[str, Sequence[Record]]) -> pd.DataFrame:
    """A line per combination of hardware, threads and versions that a record names, with its number of runs."""
    rows = []
    for lines in found.values():
        for record in lines:
            notes = record["provenance"]
            hardware = notes["cpu"] if notes["device"] == "cpu" else notes["device"]
            rows.append({"hardware": hardware, "threads": notes["threads"]} | notes["versions"])
    frame = pd.DataFrame(rows)
    if frame.empty:
        return frame
    counts = frame.value_counts(sort=False, dropna=False).rename("runs").reset_index()
    return counts.set_index("hardware").rename_axis(index=None)
