"""Studies: a params file becomes a grid of runs, the missing ones are trained, the records become a table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import pandas as pd
import yaml
from pydantic import AfterValidator, Field

from kd3a import data, records
from kd3a.domains import Task
from kd3a.errors import Busy, Diverged, Lost, UserError, choose, listing
from kd3a.executors import Executor, ask
from kd3a.probes import PrivacyStudy, Probe
from kd3a.records import Record
from kd3a.runs import Run, execute, forget, make_run
from kd3a.settings import Hardware, Scale, Settings, Training
from kd3a.shards import WHOLE, Shard, deal
from kd3a.worker import call

#: How a run can end without stopping its study.
ENDINGS = {Busy: "busy", Diverged: "diverged", Lost: "lost"}


def _distinct(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("a seed is named twice")
    return seeds


class MethodEntry(Settings):
    """One row of the study's table."""

    method: str
    """Name of the method."""
    label: str = ""
    """How the table calls it; the method's name by default."""
    config: dict[str, Any] = Field(default_factory=dict, alias="set")
    """The method's own settings, where they differ from its defaults."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Settings of the study's training that are other for this row, such as rounds_per_epoch or poison."""

    @property
    def title(self) -> str:
        return self.label or self.method


class Study(Settings):
    """A params file: one dataset, one protocol, a grid of methods, targets and seeds."""

    study: str
    """Name of the study."""
    scale: Scale
    """quick: seconds a run; cpu: what the book publishes; paper: the paper's own settings, for a GPU."""
    dataset: str
    """Name of the dataset."""
    targets: list[str] = Field(default_factory=list)
    """Domains that are the target in turn; all of them by default."""
    seeds: Annotated[list[int], AfterValidator(_distinct)] = Field(min_length=1)
    """One run per seed."""
    apart: bool = False
    """Whether every run has a process of its own, so that its peak memory is its own too."""
    training: Training
    """Budget and optimiser, the same for every method."""
    methods: list[MethodEntry] = Field(min_length=1)
    """The rows of the table."""

    def domains(self) -> list[str]:
        return self.targets or list(data.domains(self.dataset))

    def training_of(self, entry: MethodEntry) -> Training:
        """Budget and optimiser of one row."""
        if not entry.training:
            return self.training
        return Training.read(self.training.model_dump() | entry.training, f"training of row {entry.title!r}")

    def runs(self) -> list[tuple[str, Run]]:
        """The grid as (row title, run), seeds outermost, so that an early stop leaves whole tables."""
        training = {entry.title: self.training_of(entry) for entry in self.methods}
        return [
            (entry.title, make_run(self.dataset, target, entry.method, seed, training[entry.title], entry.config))
            for seed in self.seeds
            for entry in self.methods
            for target in self.domains()
        ]


def _facts(title: str, run: Run | Probe) -> dict[str, str]:
    return {"method": run.method, "target": run.target, "seed": str(run.seed), "row": title}


def chosen(study: Study | PrivacyStudy, only: dict[str, set[str]] | None = None) -> list[tuple[str, Run | Probe]]:
    """The study's grid, or the part of it whose facts are among the wanted values."""
    grid = study.runs()
    for name, values in (only or {}).items():
        choose("key of --only", name, {"method": 0, "target": 0, "seed": 0, "row": 0})
        grid = [pair for pair in grid if _facts(*pair)[name] in values]
    if not grid:
        raise UserError(f"No run of study {study.study} matches {only}; see the params file for what it holds.")
    return grid


def load_study(path: Path, folder: Path | None = None) -> Study | PrivacyStudy:
    """Read and check a params file, its methods' settings included, before anything else is loaded.

    ``folder`` holds the data, if ``KD3A_DATA`` does not: some datasets have the domains that lie there. A file with
    ``attacks`` in place of ``methods`` is a study of what updates give away.
    """
    try:
        values = yaml.safe_load(Path(path).read_text())
    except OSError:
        near = listing(sorted(file.name for file in Path(path).parent.glob("*.yaml")))
        there = f"its folder has {near}" if near else "the shipped ones are params/<study>/<scale>.yaml"
        raise UserError(f"There is no params file {path}; {there}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file; params files are YAML in UTF-8.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    return study_from(values, str(path), folder)


def study_from(values: Any, where: str, folder: Path | None = None) -> Study | PrivacyStudy:
    """The study that plain values describe, checked; ``where`` they stand is told with a mistake."""
    attacks = isinstance(values, dict) and "attacks" in values
    study = (PrivacyStudy if attacks else Study).read(values, where)
    choose(f"dataset in {where}:", study.dataset, data.DATASETS)
    known = data.domains(study.dataset, folder)
    if isinstance(study, Study) and not study.targets:
        study = study.model_copy(update={"targets": list(known)})
    for target in study.domains():
        choose(f"target in {where}:", target, known)
    study.runs()
    return study


def shipped(study: str, scale: str) -> Study | PrivacyStudy:
    """The study that ``params/<study>/<scale>.yaml`` describes."""
    return load_study(records.ROOT / "params" / study / f"{scale}.yaml")


def shipped_for(dataset: str, scale: str) -> Study:
    """The benchmark of a dataset. One of another size or split, such as ``pacs-96``, has the settings of ``pacs``; a
    reader's own ``folder`` those of Office-Caltech10."""
    name, folder = dataset.replace("folder", "office-caltech10"), records.ROOT / "params"
    study = max((path.name for path in folder.iterdir() if name.startswith(path.name)), key=len)
    scales = sorted(path.stem for path in (folder / study).glob("*.yaml"))
    return shipped(study, choose(f"scale of {dataset}", scale, scales))


def fields_given(names: Mapping[str, Any]) -> list[str]:
    """The fields of a params file among the names that a notebook knows; none if they do not make a whole study."""
    if not {"study", "dataset", "scale"} <= set(names) or not {"methods", "attacks"} & set(names):
        return []
    return [name for name in {**Study.model_fields, **PrivacyStudy.model_fields} if name in names]


def study_given(names: Mapping[str, Any], study: str) -> Study | PrivacyStudy | None:
    """The study of a notebook whose parameters are a whole params file, as ``papermill -f`` passes it.

    Args:
        names: all that the notebook knows.
        study: which study the page shows; a page may show several, named alike in their first word.
    """
    fields = fields_given(names)
    if not fields:
        return None
    if str(names["study"]).split("-")[0] != study.split("-")[0]:
        raise UserError(f"The parameters are those of study {names['study']}, and this page shows {study}.")
    values = {name: names[name] for name in fields}
    return study_from(values, "the notebook's parameters") if names["study"] == study else None


class Results:
    """The records of a study: which runs are there, which are missing, and the table they make."""

    def __init__(
        self,
        study: Study | PrivacyStudy,
        folder: Path | None = None,
        only: dict[str, set[str]] | None = None,
        shard: Shard = WHOLE,
    ):
        """``only`` and ``shard`` say which runs :meth:`train` trains; the records of all that ``only`` leaves count."""
        self.study, self.shard = study, shard
        self.path = records.results_file(study.study, study.scale) if folder is None else None
        if folder is not None:
            self.path = Path(folder) / f"{study.study}-{study.scale}.jsonl"
        self.grid = chosen(study, only)
        self.shards = deal([run for _, run in self.grid], shard.of)
        self.tasks: dict[str, Task] = {}

    def task(self, target: str, folder: Path | None = None) -> Task:
        if target not in self.tasks:
            self.tasks[target] = data.load(self.study.dataset, target, folder)
        return self.tasks[target]

    def found(self) -> dict[str, Record]:
        return {record["key"]: record for record in records.read(self.path)}

    def recorded(self) -> list[tuple[str, Run | Probe, Record | None]]:
        """The grid with the record of each run that has one. No data is read: the newest record says which was used."""
        found = self.found()
        newest = next((record["data_sha256"] for record in reversed(found.values())), "")
        return [(title, run, found.get(run.key(newest))) for title, run in self.grid]

    def missing(self, mine: bool = True) -> list[tuple[str, Run]]:
        """Runs without a record: of this shard, or of all others."""
        return [
            (title, run)
            for (title, run, record), shard in zip(self.recorded(), self.shards, strict=True)
            if record is None and (shard == self.shard.number) is mine
        ]

    def estimate(self, workers: int = 1) -> str:
        """How long the missing runs will take, in a sentence, going by the runs that are recorded in the folder.

        Of those that tell of a run, the ones of this machine's processor count alone, where there are any.
        """
        missing = [run for _, run in self.missing()]
        part = f" of shard {self.shard}" if self.shard.of > 1 else ""
        if not missing:
            return f"Every run{part} is recorded."
        known = [record for path in sorted(self.path.parent.glob("*.jsonl")) for record in records.read(path)]
        here = records.made_here(known)
        own = [self.expected(run, here) for run in missing]
        times = [t or self.expected(run, known) for t, run in zip(own, missing, strict=True)]
        told = [t for t in times if t is not None]
        foreign = len(told) - sum(t is not None for t in own)
        runs = f"{len(missing)} of {self.shards.count(self.shard.number)} runs{part} to train"
        if not told:
            return f"{runs}; no recorded run tells yet how long they take."
        together = f"{workers} at a time" if workers > 1 else "one after the other"
        guess = f"about {duration(sum(told) / len(told) * len(missing) / workers)} {together}"
        where = f" ({foreign} on other processors)" if foreign else ""
        return f"{runs}: {guess}, going by recorded runs of {len(told)} of them{where}."

    def train(
        self,
        hardware: Hardware,
        folder: Path | None = None,
        quiet: bool = False,
        say: Callable[[str], None] = lambda line: None,
        executor: Executor | None = None,
    ) -> Counter[str]:
        """Train what is missing of the shard, here or by an executor; each record is appended as it arrives.

        A run that diverges is told and passed over, as is one that is lost with its workers: it must not keep the
        others from being trained. Returns how many runs ended how: ``trained``, ``busy`` (left to others),
        ``diverged``, ``lost``.
        """
        spread = executor and self.spreads
        workers = (spread and executor.workers) or 1
        said, tally, began = self.estimate(workers), Counter(), time.monotonic()
        todo = len({run.key("") for _, run in self.missing()})
        say(said)
        outcomes = self._by(executor, hardware, folder) if spread else self._here(hardware, folder, quiet)
        for number, outcome in outcomes:
            title, run = self.grid[number]
            name = f"[{number + 1}/{len(self.grid)}] {title:24} {run.target:12} seed {run.seed}"
            ending = next((word for kind, word in ENDINGS.items() if isinstance(outcome, kind)), "trained")
            tally[ending] += 1
            if ending in ("diverged", "lost"):
                say(f"{name}  {ending}, no record: {outcome}")
            elif ending == "trained":
                left = f"  {remaining(todo, tally.total(), time.monotonic() - began)}" if executor else ""
                say(f"{name}  {self.outcome(outcome)}  {outcome['seconds']:.0f} s{left}")
                if "no recorded run" in said:  # now there is one
                    said = self.estimate(workers)
                    say(said)
        return tally

    def _mine(self, sha256: Callable[[Run], str]) -> Iterator[tuple[int, Run, str]]:
        """Number, run and key of what this shard has to train, looked at one by one: others may train the grid, too."""
        seen = set()
        for number, ((_, run), shard) in enumerate(zip(self.grid, self.shards, strict=True)):
            if shard != self.shard.number or run.key("") in seen:
                continue
            seen.add(run.key(""))
            key = run.key(sha256(run))
            if key in self.found():
                forget(key)
            else:
                yield number, run, key

    def _here(self, hardware: Hardware, folder: Path | None, quiet: bool) -> Iterator[tuple[int, Record | UserError]]:
        for number, run, key in self._mine(lambda run: self.task(run.target, folder).sha256):
            task = self.task(run.target, folder)
            try:
                outcome = self.execute(run, task, hardware, folder, quiet)
                forget(key)
            except (Busy, Diverged) as error:
                outcome = error
            yield number, outcome

    def _by(
        self, executor: Executor, hardware: Hardware, folder: Path | None
    ) -> Iterator[tuple[int, Record | UserError]]:
        """Workers train; this process alone writes. It opens no data: a worker tells their hash."""
        told = {"folder": str(Path(folder).absolute()) if folder else None}
        sha256 = ask(executor, call("sha256", dataset=self.study.dataset, target=self.grid[0][1].target, **told))
        told |= {"hardware": hardware.model_dump(), "study": self.study.study, "scale": self.study.scale}
        mine = self._mine(lambda _: sha256)
        for number, outcome in executor.outcomes((n, call("train", told=r.facts(), key=k, **told)) for n, r, k in mine):
            if isinstance(outcome, UserError):
                if not isinstance(outcome, tuple(ENDINGS)):
                    raise outcome
            else:
                outcome["provenance"]["command"] = records.command()  # the worker knows only its own
                records.append(self.path, outcome)
                executor.forget(number, outcome["key"])
            yield number, outcome

    @property
    def spreads(self) -> bool:
        """Whether workers may share the runs: not if every run is to have a process of its own."""
        return not self.study.apart

    def execute(self, run: Run, task: Task, hardware: Hardware, folder: Path | None, quiet: bool) -> Record:
        """Train one run and record it."""
        told = (hardware, self.study.study, self.study.scale, quiet)
        if not self.study.apart:
            return execute(run, task, *told, out=self.path)
        processes = get_context("forkserver")
        processes.set_forkserver_preload([__name__])  # read once, by the server that the processes are copied from
        with ProcessPoolExecutor(1, processes) as pool:
            return pool.submit(execute_apart, run, folder, *told, self.path).result()

    def outcome(self, record: Record) -> str:
        """A run's result in a few words."""
        return f"accuracy {record['target_accuracy']:.3f}"

    def expected(self, run: Run, known: list[Record]) -> float | None:
        """Seconds that a run will take, if records tell."""
        return expected_seconds(run, known)

    def text(self) -> str:
        """The table of what is recorded, for a terminal."""
        rows = list(dict.fromkeys(title for title, _ in self.grid))
        targets = [t for t in self.study.domains() if any(run.target == t for _, run in self.grid)]
        lines = ["Target accuracy in %, mean ± sample standard deviation (number of seeds); "]
        lines[0] += f"{self.study.study}, {self.study.scale}"
        if self.shard.of > 1:
            number = self.shards.count(self.shard.number)
            lines.append(
                f"Shard {self.shard} trains {number} of the {len(self.grid)} runs; elsewhere: runs that belong to "
                "other shards and have no record here"
            )
        cells = table(self.frame(), rows, targets, self.missing(mine=False)).to_string()
        return "\n".join([*lines, "", cells])

    def frame(self) -> pd.DataFrame:
        """One line per finished run of the grid: row, method, target, seed, accuracy, megabytes, seconds, processor."""
        rows = []
        for title, run, record in self.recorded():
            if record is not None:
                sent = sum(e["bytes_up"] + e["bytes_down"] for e in record["epochs"])
                rows.append(
                    {
                        "row": title,
                        **_facts(title, run),
                        "accuracy": record["target_accuracy"],
                        "megabytes": sent / 1e6,
                        "seconds": record["seconds"],
                        "processor": record["provenance"].get("cpu"),
                        "key": record["key"],
                    }
                )
        columns = ["row", "method", "target", "seed", "accuracy", "megabytes", "seconds", "processor", "key"]
        return pd.DataFrame(rows, columns=columns)


def execute_apart(run: Run, folder: Path | None, hardware: Hardware, study: str, scale: str, quiet: bool, out: Path):
    """:func:`kd3a.runs.execute` in another process, which reads the data itself."""
    task = data.load(run.dataset, run.target, folder)
    return execute(run, task, hardware, study, scale, quiet, out=out)


def expected_seconds(run: Run, known: list[Record]) -> float | None:
    """Median seconds of recorded runs of the same method, network and dataset, by the samples that they see.

    Those with the same batches and rounds count alone, where there are any. Settings of a method are not looked at:
    they change its time little beside the budget.
    """
    t = run.training
    told = [record for record in known if (record["dataset"], record["method"]) == (run.dataset, run.method)]
    told = [record for record in told if record["config"]["model"] == t.model]
    exact = [r for r in told if all(r["config"][n] == getattr(t, n) for n in ("batch_size", "rounds_per_epoch"))]
    rates = [r["seconds"] / (r["config"]["epochs"] * r["config"]["epoch_samples"]) for r in exact or told]
    return median(rates) * t.epochs * t.epoch_samples if rates else None


def duration(seconds: float) -> str:
    """Seconds as a reader says them.

    >>> duration(41), duration(300), duration(9000)
    ('41 s', '5 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def remaining(todo: int, done: int, seconds: float) -> str:
    """What is left of ``todo`` runs, when ``done`` of them took so many seconds in all.

    >>> remaining(12, 3, 100), remaining(3, 3, 100)
    ('9 left, about 5 min', '0 left')
    """
    left = max(0, todo - done)
    return f"{left} left" + (f", about {duration(seconds / done * left)}" if left else "")


def summary(frame: pd.DataFrame, rows: list[str], targets: list[str]) -> pd.DataFrame:
    """Mean, sample standard deviation (over seeds) and n, per row and target and for the mean over targets.

    The mean over targets is taken per seed, from seeds that have every target.
    """
    out = []
    for row in rows:
        mine = frame[frame["row"] == row]
        for target in targets:
            out.append({"row": row, "target": target, **_spread(mine[mine["target"] == target]["accuracy"])})
        wide = mine.pivot_table(index="seed", columns="target", values="accuracy").reindex(columns=targets).dropna()
        out.append({"row": row, "target": "mean", **_spread(wide.mean(axis=1))})
    return pd.DataFrame(out)


def _spread(values: pd.Series) -> dict[str, float]:
    return {"mean": values.mean(), "std": values.std(ddof=1) if len(values) > 1 else float("nan"), "n": len(values)}


def percent(mean: float, std: float, n: float) -> str:
    """``79.3 ± 0.4 (3)``: accuracy in percent, sample standard deviation, number of seeds."""
    if not n:
        return "–"
    return f"{100 * mean:.1f}" + (f" ± {100 * std:.1f}" if n > 1 else "") + f" ({int(n)})"


def table(
    frame: pd.DataFrame, rows: list[str], targets: list[str], elsewhere: Sequence[tuple[str, Run]] = ()
) -> pd.DataFrame:
    """The study's table as text cells: a row per method, a column per target, then the mean.

    A cell also counts the runs of it that are among ``elsewhere``, the missing ones of other shards.
    """
    stats = summary(frame, rows, targets)
    stats["cell"] = [percent(*cell) for cell in stats[["mean", "std", "n"]].itertuples(index=False)]
    cells = stats.pivot(index="row", columns="target", values="cell").reindex(index=rows, columns=[*targets, "mean"])
    for (row, target), count in Counter((title, run.target) for title, run in elsewhere).items():
        cells.loc[row, target] = f"{cells.loc[row, target]}, {count} elsewhere".removeprefix("–, ")
    return cells
