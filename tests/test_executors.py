"""Whoever trains a grid, its records are the same; what happens when workers die, fail or are stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kd3a import cli, data, executors, on_ray, records, worker
from kd3a.errors import Busy, Diverged, Lost, UserError
from kd3a.executors import Processes, Spread, ask
from kd3a.runs import checkpoint_folder, make_run
from kd3a.settings import Hardware, Training
from kd3a.study import Results, Study, load_study

HARDWARE = Hardware(device="cpu")
STUDY = Study.read(
    {
        "study": "tiny",
        "scale": "quick",
        "dataset": "digits",
        "targets": ["mnist_m"],
        "seeds": [0],
        "training": {"epochs": 3, "epoch_samples": 50, "batch_size": 25},
        "methods": [
            {"method": "fedavg"},
            {"method": "oracle"},
            {"method": "fedavg", "label": "wild", "training": {"lr_begin": 1e30}},
        ],
    }
)

# --- what crosses between the parties is text, and the same run -------------------------------------------------------


GRIDS = sorted((records.ROOT / "params").glob("*/*.yaml"))


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_run_survives_being_told_as_text(path):
    for _, run in load_study(path).runs():
        again = worker.run_of(json.loads(json.dumps(run.facts())))
        assert again == run and again.key("x") == run.key("x")


@pytest.mark.parametrize("kind", [Busy, Diverged, UserError])
def test_a_users_error_travels_as_its_sentence(kind, monkeypatch):
    class Special(kind):
        pass

    def refuse() -> None:
        raise Special("It is so.")

    monkeypatch.setitem(worker.CALLS, "refuse", refuse)
    error = worker.heard(worker.answer(worker.call("refuse")))
    assert type(error) is kind and str(error) == "It is so."


def test_a_worker_with_other_data_refuses(monkeypatch, tiny_task):
    monkeypatch.setattr(data, "load", lambda *_: tiny_task)
    run = make_run("digits", "denim", "fedavg", 0, Training(), {})
    told = {"told": run.facts(), "hardware": {}, "study": "", "scale": "", "folder": None}
    error = worker.heard(worker.answer(worker.call("train", key=run.key("1" * 64), **told)))
    assert type(error) is UserError and "other data" in str(error) and "000000000000" in str(error)


# --- how processes are looked after, shown with workers that start at once --------------------------------------------

SCRIPT = """
import json, os, pathlib, signal, sys, time
for line in sys.stdin:
    call = json.loads(line)
    if call["call"] == "die":  # so many times, then answer
        marks = pathlib.Path(call["marks"])
        marks.write_text(marks.read_text() + "x" if marks.exists() else "x")
        if len(marks.read_text()) <= call["times"]:
            os.kill(os.getpid(), signal.SIGKILL)
    if call["call"] == "half":
        os.write(1, b'{"value"')
        os.kill(os.getpid(), signal.SIGTERM)
    if call["call"] == "fail":
        sys.exit(3)
    if call["call"] == "wait":
        time.sleep(60)
    print(json.dumps({"value": call["call"]}), flush=True)
"""


@pytest.fixture
def quick_workers(monkeypatch):
    monkeypatch.setattr(executors, "COMMAND", [sys.executable, "-c", SCRIPT])


def dead(pid: int) -> bool:
    """Whether a process has gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("workers", [1, 3])
def test_calls_are_answered_once_each_whoever_dies(workers, quick_workers, tmp_path):
    calls = [worker.call("say")] * 3
    calls += [
        worker.call("die", times=times, marks=str(tmp_path / str(times))) for times in range(executors.RETRIES + 2)
    ]
    calls.insert(2, worker.call("half"))
    with Processes(workers=workers) as executor:
        heard = list(executor.outcomes(enumerate(calls)))
        pids = [one.process.pid for one in executor.alive]
        assert len(pids) <= workers
    outcomes = dict(heard)
    assert len(heard) == len(outcomes) == len(calls)
    lost = {number: outcome for number, outcome in outcomes.items() if isinstance(outcome, Lost)}
    assert set(lost) == {2, len(calls) - 1} and "SIGTERM" in str(lost[2]) and "SIGKILL" in str(lost[len(calls) - 1])
    assert all(outcomes[number] in ("say", "die") for number in outcomes.keys() - lost)
    assert all(map(dead, pids))


def test_calls_are_taken_when_there_is_a_place(quick_workers):
    taken = []

    def calls():
        for number in range(5):
            taken.append(number)
            yield number, worker.call("say")

    with Processes(workers=2) as executor:
        outcomes = executor.outcomes(calls())
        assert not taken
        next(outcomes)
        assert len(taken) == 2
        assert len(list(outcomes)) == 4


def test_a_worker_that_fails_by_itself_stops_the_study(quick_workers):
    with Processes(workers=2) as executor, pytest.raises(RuntimeError, match="code 3"):
        list(executor.outcomes([(0, worker.call("fail"))]))
    assert all(one.process.returncode is not None for one in executor.alive)


def test_an_idle_worker_that_was_killed_is_replaced(quick_workers):
    with Processes(workers=1) as executor:
        assert ask(executor, worker.call("say")) == "say"
        (first,) = executor.alive
        first.process.kill()
        first.process.wait()
        assert ask(executor, worker.call("say")) == "say"
        assert executor.alive and first not in executor.alive


@pytest.fixture
def listening():
    """Ctrl-C is heard, even where the tests run in the background of a shell, which turns it off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_the_workers(quick_workers, listening, monkeypatch):
    monkeypatch.setattr(executors, "PATIENCE", 0.1)  # these two do not notice that nobody listens
    executor = Processes(workers=2)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt), executor:
        list(executor.outcomes([(0, worker.call("say")), (1, worker.call("wait")), (2, worker.call("wait"))]))
    timer.join()
    assert len(executor.alive) == 2 and all(one.process.returncode is not None for one in executor.alive)


# --- real workers -----------------------------------------------------------------------------------------------------

NOISY = """
import time
from kd3a import worker
worker.CALLS |= {"noise": lambda: print("not an answer") or "heard", "wait": lambda: time.sleep(60)}
worker.main()
"""


def test_a_worker_answers_on_stdout_alone_and_ends_with_its_caller(monkeypatch, capfd):
    monkeypatch.setattr(executors, "COMMAND", [sys.executable, "-c", NOISY])
    with Processes(workers=1) as executor:
        assert ask(executor, worker.call("noise")) == "heard"
        (one,) = executor.alive
        one.send((0, worker.call("wait")), 0)
        began = time.monotonic()
    assert one.process.returncode == 0 and time.monotonic() - began < 30
    assert "not an answer" in capfd.readouterr().err


def outcomes(path: Path) -> list[records.Record]:
    return sorted(map(records.outcome, records.read(path)), key=lambda record: record["key"])


def kill_one(executor: Processes, killed: list[int]) -> None:
    """Kill a worker as soon as a run has left a checkpoint."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(checkpoint_folder().glob("*.safetensors")):
        time.sleep(0.002)
    pid = min(one.process.pid for one in set(executor.alive))  # the first to start, hence to have one
    os.kill(pid, signal.SIGKILL)
    killed.append(pid)


def test_processes_write_the_records_of_this_process_even_if_one_is_killed(digits_cache, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/kd3a", "study", "tiny.yaml"])
    here, there = Results(STUDY, tmp_path / "here"), Results(STUDY, tmp_path / "there")
    here.train(HARDWARE, quiet=True)
    told: list[str] = []
    killed: list[int] = []
    with Processes(workers=2) as executor:
        killer = threading.Thread(target=kill_one, args=(executor, killed))
        killer.start()
        ended = there.train(HARDWARE, quiet=True, say=told.append, executor=executor)
        killer.join()
        assert killed and killed[0] not in [one.process.pid for one in executor.alive]
    assert ended == {"trained": 2, "diverged": 1}
    assert len(outcomes(there.path)) == 2 and outcomes(there.path) == outcomes(here.path)
    assert {record["provenance"]["command"] for record in records.read(there.path)} == {"kd3a study tiny.yaml"}
    left = [path.stem for path in checkpoint_folder().glob("*.safetensors")]
    assert not set(left) & {record["key"] for record in records.read(there.path)}
    assert sum("diverged, no record" in line for line in told) == 1
    last = [line for line in told if line.startswith("[")][-1]
    assert last.endswith("  0 left") or "diverged" in last
    assert there.train(HARDWARE, executor=None, quiet=True) == {"diverged": 1}


# --- what Ray is asked for; that it does so is tested where it is installed -------------------------------------------


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class FakeRay:
    """Runs a task when its result is fetched; a call that says "die" or "fail" ends as it would with a real Ray."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self):
        self.asked: list[dict] = []
        self.most = 0

    def remote(self, function):
        def options(**wanted):
            self.asked.append(wanted)
            return SimpleNamespace(remote=lambda text: (function, text))

        return SimpleNamespace(options=options)

    def wait(self, pending: list):
        self.most = max(self.most, len(pending))
        return pending[-1:], pending[:-1]

    def get(self, ref):
        function, text = ref
        if "die" in text or "fail" in text:
            raise RayError() if "die" in text else RayTaskError("our own mistake")
        return function(text)

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: "this node")


@pytest.fixture
def fake_ray(monkeypatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.setenv(name, "")  # to be restored
    return fake


def test_ray_is_asked_for_cores_shares_of_gpus_and_retries(fake_ray, monkeypatch):
    monkeypatch.setitem(worker.CALLS, "say", lambda **told: told["word"])
    executor = on_ray.Ray(threads=2, workers=3, gpus=0.25)
    calls = [worker.call("say", word=word) for word in ("a", "b", "die", "c", "d")]
    outcomes = dict(executor.outcomes(enumerate(calls)))
    assert isinstance(outcomes.pop(2), Lost) and outcomes == {0: "a", 1: "b", 3: "c", 4: "d"}
    assert fake_ray.asked == [{"num_cpus": 2, "num_gpus": 0.25, "max_retries": executors.RETRIES}]
    assert fake_ray.most == 3 and set(executor.nodes.values()) == {"this node"}
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_a_mistake_on_ray_is_raised(fake_ray):
    with pytest.raises(RayTaskError, match="our own mistake"):
        list(on_ray.Ray(workers=1).outcomes([(0, worker.call("fail"))]))


# --- what the command line says ---------------------------------------------------------------------------------------

WRONG = {
    "unknown executor": (["--executor=slurm"], ["executor", "slurm", "'processes'", "'ray'"]),
    "no workers": (["--workers=0"], ["workers", "0", "greater than or equal to 1"]),
    "words for workers": (["--workers=two"], ["workers", "two", "integer"]),
    "workers of none": (["--executor=here", "--workers=2"], ["--workers"]),
    "address without Ray": (["--address=auto"], ["--executor ray"]),
    "share without Ray": (["--workers=2", "--gpus-per-run=0.5"], ["--executor ray"]),
    "share above one": (["--executor=ray", "--gpus-per-run=2"], ["gpus_per_run", "less than or equal to 1"]),
    "a GPU without a share": (["--executor=ray", "--device=cuda"], ["--gpus-per-run"]),
    "a share without a GPU": (["--executor=ray", "--device=cpu", "--gpus-per-run=0.5"], ["--gpus-per-run"]),
    "no Ray": (["--executor=ray"], ["pip install --editable '.[ray]'"]),
}


@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_one_sentence(arguments, words, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    monkeypatch.setattr(data, "load", None)  # no data may be loaded
    path = str(records.ROOT / "params" / "digits" / "quick.yaml")
    assert cli.main(["study", path, "--results", str(tmp_path), *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    assert [word for word in words if word not in told.err] == []


@pytest.mark.parametrize(
    "address", ["127.0.0.1:9", "ray://127.0.0.1:9", "nowhere", "127.0.0.1:99999999", "127.0.0.1:", ":"]
)
def test_an_address_where_nobody_answers_is_refused_at_once(address):
    with pytest.raises(UserError, match=r"nobody answers there; expected auto, host:port .*\.$"):
        on_ray.check(address)


def test_an_address_where_somebody_answers_is_tried():
    on_ray.check("auto")
    with socket.create_server(("127.0.0.1", 0)) as server:
        on_ray.check(f"ray://127.0.0.1:{server.getsockname()[1]}")


def test_on_ray_a_run_has_a_gpu_if_it_was_given_a_share():
    share = Spread(executor="ray", gpus_per_run=0.25)
    assert [spread.hardware(Hardware()).device for spread in (share, Spread(executor="ray"), Spread())] == [
        "cuda",
        "cpu",
        "auto",
    ]


def test_workers_alone_mean_processes():
    read = cli.parser().parse_args
    assert cli.spread_of(read(["study", "x"])) == Spread()
    assert cli.spread_of(read(["study", "x", "--workers=3"])) == Spread(executor="processes", workers=3)
    ray = ["--executor=ray", "--address=auto", "--gpus-per-run=0.25"]
    assert cli.spread_of(read(["study", "x", *ray])) == Spread(executor="ray", address="auto", gpus_per_run=0.25)


def test_a_lost_run_gives_exit_code_1(digits_cache, tmp_path, monkeypatch, capsys):
    """Its worker dies whenever it trains; the table is printed all the same."""
    script = SCRIPT.replace('"die"', '"train"').replace('call["marks"]', f'"{tmp_path}/marks"')
    script = script.replace('call["times"]', "99")
    monkeypatch.setattr(executors, "COMMAND", [sys.executable, "-c", script])
    path = str(records.ROOT / "params" / "digits" / "quick.yaml")
    only = ["--only=method=oracle", "--only=target=mnist", "--only=seed=0"]
    assert cli.main(["study", path, "--results", str(tmp_path), "--workers=1", *only]) == 1
    told = capsys.readouterr().out
    assert "lost, no record: Its worker died 4 times (SIGKILL)" in told and "Target accuracy" in told
