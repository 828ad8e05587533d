"""The records of the privacy study: which attacks are there, which are missing, and the tables they make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import pandas as pd

from kd3a import data, probes
from kd3a.domains import Task
from kd3a.probes import RECOVERED, PrivacyStudy, Probe, probe_of
from kd3a.records import Record
from kd3a.settings import Hardware
from kd3a.shards import WHOLE, Shard
from kd3a.study import Results, Study

COLUMNS = ["row", "network", "attack", "seen", "kind", "target", "seed", "psnr", "ssim", "recovered"]


def control(row: str) -> str:
    """The title of a row's control."""
    return f"{row} · control"


def rivals(row: str) -> tuple[str, str]:
    """What an attack must beat to have learnt something: its control, and a guess that needs no update."""
    return control(row), f"{row} · mean image"


class Reconstructions(Results):
    """As for any study, but a run is an attack."""

    study: PrivacyStudy

    @property
    def spreads(self) -> bool:
        """Workers may share the attacks."""
        return True

    def execute(self, run: Probe, task: Task, hardware: Hardware, folder: Path | None, quiet: bool) -> Record:
        return probes.execute(run, task, hardware, self.study.study, self.study.scale, self.path)

    def outcome(self, record: Record) -> str:
        found, other = (record["images"][kind]["psnr"] for kind in ("attack", "control"))
        return f"PSNR {mean(found):.1f} dB, control {mean(other):.1f} dB"

    def expected(self, run: Probe, known: list[Record]) -> float | None:
        """Median of the same attack on the same network, by the images and steps it has to follow."""
        told = [
            record["seconds"] / probe_of(record).samples
            for record in known
            if "images" in record and (record["method"], record["config"]["model"]) == (run.method, run.setting.model)
        ]
        return median(told) * run.samples if told else None

    def frame(self) -> pd.DataFrame:
        """One line per image that an attack tried to recover, one for its control, one for the mean image."""
        lines = []
        cells = {cell.title: cell for cell in self.study.methods}
        for title, run, record in self.recorded():
            for kind, told in (record or {"images": {}})["images"].items():
                row = {"attack": title, "control": control(title)}.get(kind, f"{title} · {kind}")
                facts = {"row": row, "network": run.setting.model, "attack": run.method}
                facts |= {"seen": cells[title].seen.title, "kind": kind, "target": run.target}
                for i, (psnr, ssim) in enumerate(zip(told["psnr"], told["ssim"], strict=True)):
                    scored = {"psnr": psnr, "ssim": ssim, "recovered": float(psnr >= RECOVERED)}
                    lines.append(facts | {"seed": f"{run.seed}.{i}"} | scored)
        return pd.DataFrame(lines, columns=COLUMNS)

    def whole(self) -> pd.DataFrame:
        """The frame without rows of which an observation is missing: a verdict on a few images would mean little."""
        partial = {title for title, _, record in self.recorded() if record is None}
        frame = self.frame()
        return frame[~frame["row"].isin(partial | {r for title in partial for r in rivals(title)})]

    def text(self) -> str:
        title = "Attack / control, mean ± sample standard deviation over images"
        return f"{title}; {self.study.study}, {self.study.scale}\n\n{overview(self.frame()).to_string()}"


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def results_of(
    study: Study | PrivacyStudy,
    folder: Path | None = None,
    only: dict[str, set[str]] | None = None,
    shard: Shard = WHOLE,
) -> Results:
    """The records of a study of either kind."""
    return (Reconstructions if isinstance(study, PrivacyStudy) else Results)(study, folder, only, shard)


def overview(frame: pd.DataFrame) -> pd.DataFrame:
    """PSNR, SSIM and share of recovered images of every row, a stroke, and the control's: mean ± sample standard
    deviation over images, in text cells."""
    rows = list(frame[frame["kind"] == "attack"]["row"].drop_duplicates())
    table = pd.DataFrame(index=rows)
    groups = [frame[frame["row"].isin(map(name, rows))].groupby("row", sort=False) for name in (str, control)]
    table["images"] = groups[0].size().reindex(rows)
    for column, unit, form in (("psnr", "PSNR (dB)", "{:.1f} ± {:.1f}"), ("ssim", "SSIM", "{:.2f} ± {:.2f}")):
        own, other = (g[column].agg(["mean", "std"]).fillna(0.0).itertuples(index=False) for g in groups)
        pairs = zip(own, other, strict=True)
        table[unit] = [f"{form.format(*a)} / {form.format(*b)}".replace("-", "−") for a, b in pairs]
    shares = [100 * g["recovered"].mean() for g in groups]
    table["recovered (%)"] = [f"{a:.0f} / {b:.0f}" for a, b in zip(*shares, strict=True)]
    return table


def verify(record: Record, hardware: Hardware, folder: Path | None, say: Callable[[str], None]) -> int:
    """Repeat a recorded attack; 0 if it comes to the same images within a tenth of a decibel in the mean, 1 if not."""
    probe = probe_of(record)
    task = data.load(probe.dataset, probe.target, folder)
    again = probes.execute(probe, task, hardware, record["study"], record["scale"])
    gap = abs(mean(again["images"]["attack"]["psnr"]) - mean(record["images"]["attack"]["psnr"]))
    same = again["images"] == record["images"]
    say(
        f"{record['key']} {probe.method} on {probe.target} seed {probe.seed}: "
        + ("identical in every image" if same else f"PSNR differs by {gap:.2f} dB")
    )
    return int(not same and gap > 0.1)
