"""Who trains the missing runs of a grid: worker processes on this machine, or Ray on any number of them.

An executor sends calls of :mod:`kd3a.worker` as JSON text and hands on the answers as they come; it knows nothing of
studies. A call whose worker dies is sent again, up to :data:`RETRIES` times: on the same machine the run then goes on
from its checkpoint, elsewhere it starts anew, and both end with the same numbers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from multiprocessing.connection import wait
from typing import Any, Literal, Protocol

from pydantic import Field, model_validator

from kd3a import runs, worker
from kd3a.errors import Lost, UserError
from kd3a.settings import Hardware, Settings

#: How often a call is sent again after its worker has died.
RETRIES = 3
PATIENCE = 5.0  # seconds for a worker to end by itself
COMMAND = [sys.executable, "-m", "kd3a.worker"]

Call = tuple[int, str]  # a number to know it by, and its text


class Executor(Protocol):
    """A context manager: its workers live as long as the ``with`` block."""

    workers: int | None
    """How many runs are trained at a time; nothing if only the cluster knows."""

    def __enter__(self) -> Executor: ...

    def __exit__(self, *_: object) -> None: ...

    def outcomes(self, calls: Iterable[Call]) -> Iterator[tuple[int, Any]]:
        """Value or user's error of each call, by its number, in the order in which they arrive.

        A call is taken from ``calls`` when there is a place for it.
        """

    def forget(self, number: int, key: str) -> None:
        """Remove the checkpoint of run ``key``, which call ``number`` trained and whose record is safe."""


def ask(executor: Executor, call: str) -> Any:
    """The value of one call; a user's error is raised."""
    ((_, value),) = executor.outcomes([(0, call)])
    if isinstance(value, UserError):
        raise value
    return value


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- processes --------------------------------------------------------------------------------------------------------


class Worker:
    """One process of :mod:`kd3a.worker`. Ctrl-C in a terminal does not reach it: it ends when its stdin closes."""

    def __init__(self, threads: int):
        environment = {"OMP_NUM_THREADS": str(threads)} | os.environ
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.call: Call = (0, "")
        self.losses = 0

    def fileno(self) -> int:
        return self.process.stdout.fileno()

    def send(self, call: Call, losses: int) -> None:
        self.call, self.losses = call, losses
        with contextlib.suppress(BrokenPipeError):  # it is dead, which shows when it is heard
            self.process.stdin.write(call[1] + "\n")
            self.process.stdin.flush()

    def hear(self) -> str | None:
        """Its answer, or nothing if it was killed. One that failed by itself has said why on stderr."""
        line = self.process.stdout.readline()
        if line.endswith("\n"):
            return line
        self.close()
        if self.process.returncode >= 0:
            raise RuntimeError(f"A worker ended with code {self.process.returncode}; what it said stands above.")
        return None

    def dismiss(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def close(self) -> None:
        self.dismiss()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()  # no harm: a checkpoint is whole at any moment
            self.process.wait()
        self.process.stdout.close()


class Processes:
    """Worker processes on this machine, each with ``threads`` threads and its own copy of the data."""

    def __init__(self, threads: int = 1, workers: int | None = None):
        self.threads = threads
        self.workers = workers or max(1, cores() // threads)
        self.alive: set[Worker] = set()
        self.idle: list[Worker] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.alive:
            one.dismiss()
        for one in self.alive:
            one.close()

    def outcomes(self, calls: Iterable[Call]) -> Iterator[tuple[int, Any]]:
        calls, again, busy = iter(calls), [], set()
        while True:
            while len(busy) < self.workers and (todo := again.pop() if again else next(((c, 0) for c in calls), None)):
                one = self._free()
                one.send(*todo)
                busy.add(one)
            if not busy:
                return
            for one in wait(busy):
                busy.remove(one)
                (number, text), losses, line = one.call, one.losses, one.hear()
                if line is not None:
                    self.idle.append(one)
                    yield number, worker.heard(line)
                    continue
                self.alive.remove(one)
                if losses < RETRIES:
                    again.append(((number, text), losses + 1))
                else:
                    yield number, lost(signal.Signals(-one.process.returncode).name)

    def _free(self) -> Worker:
        if not self.idle:
            self.idle.append(Worker(self.threads))
            self.alive.add(self.idle[-1])
        return self.idle.pop()

    def forget(self, number: int, key: str) -> None:
        runs.forget(key)


def lost(why: str) -> Lost:
    return Lost(f"Its worker died {RETRIES + 1} times ({why}), as it does when memory runs out; try fewer --workers.")


# --- what the command line says --------------------------------------------------------------------------------------


class Spread(Settings):
    """Who trains the runs of a grid, as the options of ``kd3a study`` say it."""

    executor: Literal["here", "processes", "ray"] = "here"
    """here: one after the other in this process; processes: several on this machine; ray: on a Ray cluster."""
    workers: int | None = Field(None, ge=1)
    """Runs at a time; as many as there are cores for by default."""
    address: str = ""
    """Of a Ray cluster that runs already; one is started on this machine by default."""
    gpus_per_run: float = Field(0.0, ge=0, le=1)
    """Share of a GPU that Ray keeps for each run; none trains on the CPU."""

    @model_validator(mode="after")
    def _belong_together(self) -> Spread:
        if self.executor == "here" and self.workers:
            raise ValueError("--executor here has no workers; leave out --workers, or the executor")
        if self.executor != "ray" and (self.address or self.gpus_per_run):
            raise ValueError("--address and --gpus-per-run belong to --executor ray; name it, or leave them out")
        return self

    def hardware(self, hardware: Hardware) -> Hardware:
        """What each run is told. On Ray, a run has a GPU if and only if it was given a share of one."""
        if self.executor != "ray":
            return hardware
        if hardware.device == "cuda" and not self.gpus_per_run:
            raise UserError("--device cuda on Ray needs --gpus-per-run, the share of a GPU for each run, such as 0.25.")
        if hardware.device == "cpu" and self.gpus_per_run:
            raise UserError(
                "--gpus-per-run keeps GPUs for runs that --device cpu would not use; leave one of them out."
            )
        device = "cuda" if self.gpus_per_run else hardware.device if hardware.device != "auto" else "cpu"
        return hardware.model_copy(update={"device": device})

    def open(self, threads: int) -> contextlib.AbstractContextManager[Executor | None]:
        """The executor, to be used in a ``with`` block; nothing for this process."""
        if self.executor == "processes":
            return Processes(threads, self.workers)
        if self.executor == "ray":
            from kd3a.on_ray import Ray

            return Ray(threads, self.workers, self.address, self.gpus_per_run)
        return contextlib.nullcontext()
