"""Ray trains a grid: the records of this process, though a worker is killed, on a cluster of our own or a running one.

Needs the extra ``ray``; every process that is ended here is known by the cache in its environment, which no other has.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from test_executors import HARDWARE, STUDY, outcomes

from kd3a import cli, records
from kd3a.on_ray import Ray
from kd3a.runs import checkpoint_folder
from kd3a.study import Results

pytestmark = pytest.mark.skipif(not find_spec("ray"), reason="pip install --editable '.[ray]'")


@pytest.fixture
def here(digits_cache, tmp_path) -> Results:
    """The grid, trained in this process."""
    results = Results(STUDY, tmp_path / "here")
    results.train(HARDWARE, quiet=True)
    return results


def training(cache: Path) -> list[int]:
    """Ray's worker processes that are at work with this cache."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title, settings = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:  # it has just ended, or is not ours
            continue
        if title.startswith(b"ray::answer_from_node") and f"KD3A_CACHE={cache}\0".encode() in settings:
            found.append(int(process.name))
    return found


def kill_one(cache: Path, killed: list[int]) -> None:
    """Kill a worker as soon as a run has left a checkpoint."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not killed:
        if list(checkpoint_folder().glob("*.safetensors")) and (pids := training(cache)):
            os.kill(pids[0], signal.SIGKILL)
            killed.append(pids[0])
        time.sleep(0.002)


def test_ray_writes_the_records_of_this_process_even_if_a_worker_is_killed(digits_cache, tmp_path):
    longer = STUDY.model_copy(update={"training": STUDY.training.model_copy(update={"epochs": 40})})  # to be killed in
    here, there = Results(longer, tmp_path / "here"), Results(longer, tmp_path / "there")
    here.train(HARDWARE, quiet=True)
    killed: list[int] = []
    with Ray(workers=2) as executor:
        killer = threading.Thread(target=kill_one, args=(digits_cache, killed))
        killer.start()
        ended = there.train(HARDWARE, quiet=True, executor=executor)
        killer.join()
    assert killed and ended == {"trained": 2, "diverged": 1}
    assert len(outcomes(there.path)) == 2 and outcomes(there.path) == outcomes(here.path)
    left = {path.stem for path in checkpoint_folder().glob("*.safetensors")}
    assert not left & {record["key"] for record in records.read(there.path)}


def test_the_command_line_uses_a_running_cluster(here, cluster, tmp_path, capsys):
    params, out = tmp_path / "params.yaml", tmp_path / "there"
    params.write_text(yaml.safe_dump(STUDY.model_dump(by_alias=True)))
    command = ["study", str(params), "--results", str(out), "--executor=ray", f"--address={cluster}"]
    assert cli.main([*command, "--shard=1/2"]) == 0
    assert "elsewhere" in capsys.readouterr().out
    found = outcomes(out / "tiny-quick.jsonl")
    assert len(found) == 1 and all(record in outcomes(here.path) for record in found)
    assert cli.main(command) == 0
    assert outcomes(out / "tiny-quick.jsonl") == outcomes(here.path)


@pytest.mark.parametrize(
    ("options", "words"), [(["--address=127.0.0.1:9"], "127.0.0.1:9"), (["--gpus-per-run=1"], "GPU")]
)
def test_what_ray_does_not_have_is_one_sentence(options, words, tmp_path, capsys):
    path = str(records.ROOT / "params" / "digits" / "quick.yaml")
    assert cli.main(["study", path, "--results", str(tmp_path), "--executor=ray", *options]) == 2
    told = capsys.readouterr().err
    assert words in told and told.count("kd3a: ") == 1
