"""Run records: one JSON line per finished run, with what determines it and where it came from."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import stdev
from typing import Any

import torch
from filelock import FileLock
from scipy.special import stdtrit

from kd3a.errors import UserError

Record = dict[str, Any]

#: Raise it when a change of the code alters results: old records then no longer stand for a run of today's code.
PROTOCOL = 1
ROOT = Path(__file__).resolve().parent.parent


def key_of(determinants: dict[str, Any]) -> str:
    """Hash of everything that determines a result."""
    text = json.dumps({"protocol": PROTOCOL, **determinants}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def results_file(study: str, scale: str) -> Path:
    return ROOT / "results" / f"{study}-{scale}.jsonl"


def read(path: Path) -> list[Record]:
    """All records of a file, the first of each key. A last line that was cut off is left out."""
    if not path.exists():
        return []
    records: dict[str, Record] = {}
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = _parsed(line)
        if record is None:
            if number == len(lines):  # no newline after it: the writer was cut off
                continue
            raise UserError(f"{path}, line {number} is not a JSON record; restore the file or delete the line.")
        records.setdefault(record["key"], record)
    return list(records.values())


def _parsed(line: bytes) -> Record | None:
    """The record of a line, or nothing if it is none."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "key" in record else None


def append(path: Path, *records: Record) -> int:
    """Add records: a single write under a lock, after a cut line has been removed. A key is written once.

    Returns how many were new.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        known = {record["key"] for record in read(path)}
        new = {record["key"]: record for record in reversed(records) if record["key"] not in known}
        if not new:
            return 0
        with open(path, "ab+") as file:
            file.seek(0)
            text = file.read()
            whole = text.rfind(b"\n") + 1
            if text[whole:] and _parsed(text[whole:]):  # only its newline is missing
                file.write(b"\n")
            else:
                file.truncate(whole)
            lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in reversed(new.values())]
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())
    return len(new)


def merge(folder: Path, into: Path) -> dict[str, tuple[int, dict[str, str]]]:
    """Add the records of every ``.jsonl`` file of ``folder`` to the file of the same name in ``into``.

    Returns, by file name, how many were new, and by key why others stay out: ``into`` knows the run with another
    result, or its records are of other data, and a study is of one.
    """
    files = sorted(Path(folder).glob("*.jsonl"))
    if not files:
        raise UserError(f"There are no records in {folder}: it holds no .jsonl file.")
    out = {}
    for file in files:
        known, here = {record["key"]: record for record in read(into / file.name)}, read(file)
        data = {record["data_sha256"] for record in known.values()}
        odd = {r["key"]: "another result" for r in here if outcome(r) != outcome(known.get(r["key"], r))}
        odd |= {r["key"]: "other data" for r in here if data and r["data_sha256"] not in data}
        out[file.name] = append(into / file.name, *(r for r in here if r["key"] not in odd)), odd
    return out


def outcome(record: Record) -> Record:
    """What of a record is the same whoever trained the run, as long as the arithmetic is."""
    return {name: value for name, value in record.items() if name not in ("seconds", "peak_mb", "provenance")}


def siblings(record: Record, known: list[Record]) -> list[Record]:
    """The records that differ from one by nothing but the seed, itself among them."""
    names = ("study", "scale", "dataset", "data_sha256", "method", "target", "config")
    return [other for other in known if all(other[name] == record[name] for name in names)]


def chance_gap(accuracies: list[float]) -> float:
    """How far two runs that differ by chance alone lie apart, in 19 of 20 cases: Student's t over seeds.

    >>> round(chance_gap([0.70, 0.71, 0.72]), 3), chance_gap([0.7])
    (0.061, 0.0)
    """
    n = len(accuracies)
    return float(stdtrit(n - 1, 0.975)) * stdev(accuracies) * 2**0.5 if n > 1 else 0.0


def same_place(one: Record, other: Record) -> bool:
    """Whether two runs computed on processors of one kind with the same versions: then they must agree to the bit."""
    return all(
        one["provenance"][name] == other["provenance"][name] for name in ("versions", "device", "cpu", "threads")
    )


def made_here(known: list[Record]) -> list[Record]:
    """The records of runs that computed on a processor like this machine's."""
    cpu = _cpu()
    return [record for record in known if record["provenance"].get("cpu") == cpu]


def provenance(device: torch.device, threads: int) -> dict[str, Any]:
    """Commit, versions, hardware, time and command of the run that is starting."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--", "kd3a", "params")),
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in ("torch", "numpy", "kd3a")},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cpu": _cpu(),
        "threads": threads,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(),
    }


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu(info: Path = Path("/proc/cpuinfo")) -> str:
    """Name, family and model: processors of one name may round differently, as they have other instructions."""
    if not info.exists():
        return platform.processor() or platform.machine()
    facts = dict(
        reversed([map(str.strip, line.split(":", 1)) for line in info.read_text().splitlines() if ":" in line])
    )
    name = facts.get("model name") or platform.machine()
    kind = [f"{word} {facts[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in facts]
    return ", ".join([name, " ".join(kind)] if kind else [name])


def command() -> str:
    """The command that this process was started by, without anybody's folders."""
    program = Path(sys.argv[0])
    if program.name == "ipykernel_launcher.py":
        return "notebook"
    words = [re.sub(r"(^|=)/.*/", r"\1…/", word) for word in sys.argv[1:]]  # nobody's folders go into a record
    return " ".join([program.name, *words])
