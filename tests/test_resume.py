"""A run that is cut off at any moment goes on, and ends with the numbers of a run that was not."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from itertools import count
from pathlib import Path

import pytest
import tiny
import yaml
from safetensors.torch import load_file, save_file

from kd3a import cli, data, records, runs
from kd3a.errors import Busy
from kd3a.methods import METHODS
from kd3a.methods.base import Method, Rounds
from kd3a.settings import Training
from kd3a.study import Results, load_study

PARAMS = {
    "study": "tiny",
    "scale": "quick",
    "dataset": "digits",
    "targets": ["mnist_m"],
    "seeds": [0],
    "training": {"epochs": 3, "epoch_samples": 100, "batch_size": 25, "rounds_per_epoch": 2},
    "methods": [{"method": "kd3a", "set": {"vote_on": "stage"}}, {"method": "oracle"}],
}
SETTINGS = [f"--set={key}={value}" for key, value in PARAMS["training"].items()]
RUN = ["run", "--target=mnist_m", "--method=kd3a", "--set=vote_on=stage", *SETTINGS]
TRAINING = Training(model="small", epochs=2, epoch_samples=16, batch_size=8, rounds_per_epoch=2)


class Cut(Exception):
    """Stands for a kill, where no other process is needed to show the point."""


def result(record: records.Record) -> records.Record:
    """What of a record must not depend on how often the run was cut off."""
    return {name: value for name, value in record.items() if name not in ("seconds", "peak_mb", "provenance")}


def results(folder: Path) -> list[records.Record]:
    return [result(record) for record in records.read(folder / "tiny-quick.jsonl")]


def params_file(folder: Path, **changes) -> Path:
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(PARAMS | changes))
    return path


def study(params: Path, folder: Path) -> list[str]:
    return ["study", str(params), "--results", str(folder)]


def in_child(arguments: list[str], cache: Path, log: Path, start) -> None:
    """The command line in a process of its own, which writes a checkpoint after every round."""
    os.environ["KD3A_CACHE"] = str(cache)
    runs.CHECKPOINT_SECONDS = 0.0
    if start is not None:
        start.wait(60)
    with open(log, "w") as out, redirect_stdout(out), redirect_stderr(out):
        code = cli.main(arguments)
    sys.exit(code)


class Child:
    """``kd3a`` in another process: forked from a server that has imported everything, or started from nothing."""

    def __init__(self, arguments: list[str], cache: Path, log: Path, start=None, afresh: bool = False):
        self.log = log
        if afresh:
            command = [sys.executable, "-m", "kd3a.cli", *arguments]
            self.process = subprocess.Popen(command, env=os.environ | {"KD3A_CACHE": str(cache)}, stdout=log.open("w"))
        else:
            context = multiprocessing.get_context("forkserver")
            self.process = context.Process(target=in_child, args=(arguments, cache, log, start))
            self.process.start()

    def code(self) -> int | None:
        return self.process.poll() if isinstance(self.process, subprocess.Popen) else self.process.exitcode

    def wait(self) -> int | None:
        """Its exit code, once it has ended."""
        wait = self.process.wait if isinstance(self.process, subprocess.Popen) else self.process.join
        wait(120)
        return self.code()

    def kill_when(self, ready) -> bool:
        """Kill it as soon as ``ready()``; whether that found it alive."""
        deadline = time.monotonic() + 120
        while self.code() is None and not ready():
            assert time.monotonic() < deadline, f"{self.log.read_text()}: nothing to kill for two minutes"
            time.sleep(0.002)
        if self.code() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        assert self.wait() in (0, -signal.SIGKILL), self.log.read_text()
        return self.code() == -signal.SIGKILL


def checkpoints(cache: Path) -> list[Path]:
    return sorted((cache / "runs").glob("*.safetensors"))


def times_written(cache: Path) -> set[int]:
    """Tells whether any checkpoint was written since it was last asked."""
    return {path.stat().st_mtime_ns for path in checkpoints(cache)}


@pytest.fixture(scope="module")
def uninterrupted(digits_file, tmp_path_factory) -> list[records.Record]:
    """The records of the study when nobody disturbs it."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    (folder / digits_file.name).symlink_to(digits_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KD3A_CACHE", str(folder))
        assert cli.main(study(params_file(folder), folder)) == 0
    assert len(results(folder)) == 2 and not checkpoints(folder)
    return results(folder)


@pytest.fixture
def forbid_training(monkeypatch):
    def refuse(*_):
        raise AssertionError("a run was trained that need not be")

    return lambda: [monkeypatch.setattr(method, "run", refuse) for method in METHODS.values()]


@pytest.fixture
def trained_rounds(monkeypatch) -> list[int]:
    """The number of every round that decentralised methods train in this process."""
    seen, run = [], Rounds.run
    monkeypatch.setattr(Rounds, "run", lambda self, stage: seen.append(stage.round) or run(self, stage))
    return seen


def test_a_study_killed_again_and_again_ends_with_the_same_records(
    uninterrupted, digits_cache, tmp_path, forbid_training
):
    arguments = study(params_file(tmp_path), tmp_path)
    logs = (tmp_path / f"{i}.log" for i in count())
    assert Child(arguments, digits_cache, next(logs), afresh=True).kill_when(lambda: checkpoints(digits_cache))
    rng, killed = random.Random(0), 1
    for _ in range(4):
        before, patience = times_written(digits_cache), rng.uniform(0, 0.6)
        child, began = Child(arguments, digits_cache, next(logs)), time.monotonic()
        if rng.random() < 0.5:
            killed += child.kill_when(lambda before=before: times_written(digits_cache) != before)
        else:
            killed += child.kill_when(lambda end=began + patience: time.monotonic() > end)
    assert killed >= 3
    assert Child(arguments, digits_cache, next(logs)).wait() == 0
    assert results(tmp_path) == uninterrupted
    assert not checkpoints(digits_cache)

    lines = (tmp_path / "tiny-quick.jsonl").read_bytes()
    forbid_training()
    assert cli.main(arguments) == 0
    assert (tmp_path / "tiny-quick.jsonl").read_bytes() == lines


def test_a_single_run_goes_on_where_it_was_killed(uninterrupted, digits_cache, tmp_path, trained_rounds, capsys):
    assert Child(RUN, digits_cache, tmp_path / "log").kill_when(lambda: checkpoints(digits_cache))
    done = runs.load_checkpoint(checkpoints(digits_cache)[0])[1].rounds
    assert 1 <= done < 6
    assert cli.main([*RUN, "--json"]) == 0
    record = result(json.loads(capsys.readouterr().out))
    assert trained_rounds == list(range(done, 6))
    assert record | {"study": "tiny"} == uninterrupted[0]
    assert not checkpoints(digits_cache)


def test_two_studies_share_the_grid(digits_cache, tmp_path):
    short = {"epochs": 1, "epoch_samples": 50, "batch_size": 25}
    methods = [{"method": "oracle"}, {"method": "fedavg"}]
    params = params_file(tmp_path, training=short, methods=methods, targets=["optdigits", "mnist"])
    together = multiprocessing.get_context("forkserver").Barrier(2)
    pair = [Child(study(params, tmp_path), digits_cache, tmp_path / name, together) for name in ("one", "two")]
    assert [child.wait() for child in pair] == [0, 0]
    trained = [[line for line in child.log.read_text().splitlines() if line.startswith("[")] for child in pair]
    assert min(map(len, trained)) > 0 and len(trained[0]) + len(trained[1]) == 4
    assert len((tmp_path / "tiny-quick.jsonl").read_text().splitlines()) == 4


# --- the same on the tiny task, without other processes ---------------------------------------------------------------


@pytest.fixture
def small_cache(own_cache, monkeypatch) -> Path:
    """A cache where every round of a small network leaves its checkpoint."""
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(records, "provenance", lambda *_: {})  # asks git, which takes longer than a tiny run
    return own_cache


def tiny_run(case: str = "kd3a") -> runs.Run:
    name, config = tiny.CASES[case]
    return runs.make_run("tiny", "denim", name, 0, TRAINING, config)


def execute_until(run: runs.Run, task, last: int | None = None) -> records.Record:
    """Execute the run; with ``last``, it is cut off right after so many rounds of it were done."""

    def cut(method: Method, stage) -> None:
        if last is not None and stage.round + 1 >= last:
            raise Cut

    return runs.execute(run, task, tiny.CPU, on_stage=cut)


@pytest.mark.parametrize("case", tiny.CASES)
def test_cut_off_after_every_round(case, small_cache, tiny_task):
    whole = execute_until(tiny_run(case), tiny_task)
    runs.forget(whole["key"])
    for last in range(1, len(runs.start(tiny_run(case), tiny_task, tiny.CPU).stages())):
        with pytest.raises(Cut):
            execute_until(tiny_run(case), tiny_task, last)
    assert result(execute_until(tiny_run(case), tiny_task)) == result(whole)


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not a checkpoint " * 99),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1000]),
    "header only": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "no journal": lambda path: save_file(load_file(path), path),
    "broken journal": lambda path: save_file(load_file(path), path, metadata={"journal": '{"rounds": 1'}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_ignored(damage, small_cache, tiny_task, trained_rounds):
    whole = execute_until(tiny_run("fedavg"), tiny_task)
    runs.forget(whole["key"])
    with pytest.raises(Cut):
        execute_until(tiny_run("fedavg"), tiny_task, 2)
    DAMAGE[damage](checkpoints(small_cache)[0])
    trained_rounds.clear()
    assert result(execute_until(tiny_run("fedavg"), tiny_task)) == result(whole)
    assert trained_rounds == [0, 1, 2, 3]


def test_a_draft_left_behind_is_harmless(small_cache, tiny_task, trained_rounds):
    with pytest.raises(Cut):
        execute_until(tiny_run("fedavg"), tiny_task, 2)
    checkpoints(small_cache)[0].with_suffix(".draft").write_bytes(b"half a checkpoint")
    execute_until(tiny_run("fedavg"), tiny_task)
    assert trained_rounds == [0, 1, 2, 3]


def test_a_run_in_progress_is_left_alone(small_cache, tiny_task):
    """While it is trained, the run's lock is held; afterwards, it is free again."""

    def meddle(method: Method, stage) -> None:
        with pytest.raises(Busy, match="another process"):
            runs.execute(tiny_run("oracle"), tiny_task, tiny.CPU)

    runs.execute(tiny_run("oracle"), tiny_task, tiny.CPU, on_stage=meddle)
    runs.execute(tiny_run("oracle"), tiny_task, tiny.CPU)


def test_a_run_that_another_process_just_finished_is_not_repeated(
    small_cache, tmp_path, tiny_task, monkeypatch, trained_rounds
):
    """Between looking for the record and taking the lock, another process may write the one and release the other."""
    monkeypatch.setattr(data, "load", lambda *_: tiny_task)
    params = params_file(tmp_path, methods=[{"method": "fedavg"}], training=TRAINING.model_dump())
    found = Results.found

    def found_too_early(self: Results) -> dict[str, records.Record]:
        answer = found(self)
        monkeypatch.setattr(Results, "found", found)
        Results(self.study, tmp_path).train(tiny.CPU, quiet=True)  # the other process
        trained_rounds.clear()
        return answer

    monkeypatch.setattr(Results, "found", found_too_early)
    Results(load_study(params), tmp_path).train(tiny.CPU, quiet=True)
    assert trained_rounds == []
