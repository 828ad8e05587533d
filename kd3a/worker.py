"""What a worker of a study does: JSON text in, JSON text out. It opens its own data and writes no record."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kd3a import data, probes, runs
from kd3a.errors import Busy, Diverged, UserError
from kd3a.records import Record
from kd3a.settings import Hardware

KINDS = (Busy, Diverged, UserError)  # of errors that travel, the particular ones first


def sha256(dataset: str, target: str, folder: str | None) -> str:
    """The hash of the data that this worker sees."""
    return data.load(dataset, target, Path(folder) if folder else None).sha256


def run_of(facts: dict[str, Any]) -> runs.Run | probes.Probe:
    """The run or the probe that the ``facts()`` of either tell of."""
    return probes.probe_of(facts) if "wanted" in facts["config"] else runs.run_from(facts)


def train(
    told: dict[str, Any], key: str, hardware: dict[str, Any], study: str, scale: str, folder: str | None
) -> Record:
    """Train one run, or go on with it where this machine has a checkpoint; refuses if it would not be run ``key``."""
    run = run_of(told)
    task = data.load(run.dataset, run.target, Path(folder) if folder else None)
    if run.key(task.sha256) != key:
        raise UserError(
            f"A worker on {os.uname().nodename} has other data ({run.dataset}, sha256 {task.sha256[:12]}) or another "
            "version of kd3a than the rest of the study; give all workers the same."
        )
    if isinstance(run, runs.Run):
        return runs.execute(run, task, Hardware.read(hardware), study, scale, quiet=True)
    return probes.execute(run, task, Hardware.read(hardware), study, scale)


#: What a worker can be asked to do.
CALLS: dict[str, Callable[..., Any]] = {"sha256": sha256, "train": train, "forget": runs.forget}


def call(name: str, **arguments: Any) -> str:
    """A call of one of :data:`CALLS` as text."""
    return json.dumps({"call": name} | arguments)


def answer(text: str) -> str:
    """Do what a call says. A user's error is an answer, too: its kind and its sentence."""
    arguments = json.loads(text)
    try:
        return json.dumps({"value": CALLS[arguments.pop("call")](**arguments)})
    except UserError as error:
        kind = next(kind for kind in KINDS if isinstance(error, kind))
        return json.dumps({"error": kind.__name__, "sentence": str(error)})


def heard(text: str) -> Any:
    """The value of an answer; an error is returned, not raised."""
    told = json.loads(text)
    if "error" in told:
        return next(kind for kind in KINDS if kind.__name__ == told["error"])(told["sentence"])
    return told["value"]


def main() -> None:
    """Answer the calls that arrive on stdin, a line each; stop at once when it closes, as it does when the caller dies.

    Stdout carries nothing but answers: what else is printed goes to stderr.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    calls: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            calls.put(line)
        os._exit(0)  # a checkpoint is whole at any moment

    threading.Thread(target=listen, daemon=True).start()
    while True:
        out.write(answer(calls.get()) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
