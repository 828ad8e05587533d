"""Real processes: a SuperLink and three SuperNodes with TLS and keys, one of them watched, and every fault in turn.

One SuperLink serves all tests. A node answers every order in a new process, which imports everything anew: seconds per
answer, so runs are short, and what several tests look at is trained once.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import h11
import psutil
import pytest
import tiny
import torch
from flwr.proto.message_pb2 import PushObjectRequest
from safetensors.torch import load_file

from kd3a import runs
from kd3a.channel import Channel
from kd3a.errors import UserError
from kd3a.federation import keys, wire
from kd3a.federation.demo import CPU, plan_of
from kd3a.federation.processes import Machines, alive
from kd3a.federation.proxy import Proxy
from kd3a.models import parcel
from kd3a.settings import Training
from kd3a.trainer import Trainer

FAULTY = Path(__file__).parent / "faulty_app"
TRAINING = Training(model="cnn-narrow", epochs=2, epoch_samples=16, batch_size=8, lr_begin=0.02)
PATIENCE = 900  # seconds; only a hanging test waits so long


def run_of(method: str, config: dict | None = None, **changes) -> runs.Run:
    return runs.make_run("tiny", "denim", method, 0, TRAINING.model_copy(update=changes), config or {})


def alone(run: runs.Run, task) -> tuple[dict, dict]:
    """Record and checkpoint of the run in this process."""
    record = runs.execute(run, task, CPU)
    path = runs.checkpoint_folder() / f"{record['key']}.safetensors"
    tensors = load_file(path)
    runs.forget(record["key"])
    return record, tensors


def assert_same_bits(machines: Machines, run: runs.Run, task, record: dict) -> None:
    expected, tensors = alone(run, task)
    reached = load_file(machines.link_folder / "cache" / "runs" / f"{record['key']}.safetensors")
    assert reached and all(torch.equal(reached[name], tensors[name]) for name in reached)
    apart = ("seconds", "peak_mb", "provenance", "study")
    assert {k: v for k, v in record.items() if k not in apart} == {k: v for k, v in expected.items() if k not in apart}
    assert record.keys() == expected.keys()
    assert record["provenance"].keys() - expected["provenance"].keys() == {"executor"}
    assert "token" not in record["provenance"]["command"]


@pytest.fixture(scope="module")
def machines(tiny_task, tmp_path_factory):
    with Machines(tmp_path_factory.mktemp("federation"), tiny_task, keep_traffic=True) as machines:
        machines.start_link()
        machines.register(*machines.names)
        # amber's traffic is decrypted on the way with the SuperLink's own key, the others' is not
        machines.proxies["amber"] = Proxy(machines.port, keep=True, keys=machines.link_folder / "keys")
        for name in machines.names:
            machines.start_node(name, faults="0=nan 1=nan")  # if it ran the bundle's program, which it must not
        yield machines
        started = [psutil.Process(process.pid) for process in machines.processes.values()]
        started += [child for process in started for child in process.children(recursive=True)]
    assert len(started) > 6 and not any(map(alive, started))  # nothing is left behind


@pytest.fixture(scope="module")
def strangers(machines, tmp_path_factory) -> dict[str, str]:
    """Two nodes that nobody registered, one without a key and one with a key of its own; and how they fared."""
    for name in ("keyless", "stranger"):
        home = machines.folder / name
        home.mkdir()
        (home / "amber.safetensors").symlink_to(machines.folder / "amber" / "amber.safetensors")
        if name == "stranger":
            keys.node_keys(home, "key")
        machines.start_node("amber", folder=name)
    return {name: machines.folder / name / f"{name}.log" for name in ("keyless", "stranger")}


@pytest.fixture(scope="module")
def official(machines, strangers):
    """A whole run of KD3A, official variant; strangers knock meanwhile, and the bundle brings a program of its own."""
    run = run_of("kd3a", tiny.LOW_GATE | {"variant": "official"})
    machines.begin(plan_of(run, deadline=300), app=FAULTY)
    return run, machines.finish(PATIENCE), machines.rounds()


def test_the_run_ends_with_the_bits_of_one_process(machines, official, tiny_task):
    run, record, rounds = official
    assert [entry["answered"] for entry in rounds] == [machines.names] * 2
    assert_same_bits(machines, run, tiny_task, record)
    assert record["provenance"]["executor"] == "flower"


def test_a_node_runs_its_own_program_and_not_the_bundles(machines, official):
    assert [entry["refused"] for entry in official[2]] == [{}, {}]
    assert not list(machines.folder.glob("*/state/fault-*"))


def test_a_node_has_its_own_domain_and_no_other(machines, official):
    for name in machines.names:
        assert [path.name for path in (machines.folder / name).glob("*.safetensors")] == [f"{name}.safetensors"]
    assert [path.name for path in machines.link_folder.glob("*.safetensors")] == ["denim.safetensors"]


def test_nodes_without_a_registered_key_never_join(machines, official, strangers):
    for name, path in strangers.items():
        machines.stop(name)
        assert "SuperNode ID" not in path.read_text(), name
    assert "SuperNode ID" in machines.log("amber").read_text()
    assert len(re.findall(r'"node-id"', machines.flwr("supernode", "list", "here", "--format=json"))) == 3


def test_the_sockets_carry_the_ledgers_bytes_and_little_more(machines, official):
    _, record, rounds = official
    for way in ("up", "down"):
        ledger = sum(entry[f"bytes_{way}"] for entry in record["epochs"])
        payload = sum(entry[f"payload_{way}"] for entry in rounds)
        crossed = sum(getattr(machines.proxies[name], way) for name in machines.names)
        assert ledger < payload < crossed
        assert payload < ledger + wire.HEADER * 200 and crossed < 1.5 * payload + 200_000


def test_traffic_is_not_readable(machines, official, tiny_task):
    """What anybody on the way sees of beige: no path, no name of a tensor, no weight, no key."""
    seen = b"".join(bytes(way) for stream in machines.proxies["beige"].streams for way in stream.values())
    sent = load_file(max((machines.folder / "beige" / "state").glob("*.safetensors")))
    weight = max(sent.values(), key=lambda t: t.numel()).contiguous().numpy().tobytes()
    assert len(seen) > len(weight)
    clear = b"".join(bytes(way) for stream in machines.proxies["amber"].streams for way in stream.values())
    for word in (b"/v1/fleet/push-object", b"params/", b"HTTP/1.1"):
        assert word in clear and word not in seen
    assert weight[:64] not in seen


def requests(stream: bytes) -> list[tuple[str, bytes]]:
    """Path and body of every request in what a node sent on one connection."""
    server, out = h11.Connection(h11.SERVER), []
    server.receive_data(stream)
    while True:
        event = server.next_event()
        if isinstance(event, h11.Request):
            out.append((event.target.decode(), b""))
        elif isinstance(event, h11.Data):
            out[-1] = (out[-1][0], out[-1][1] + bytes(event.data))
        elif event is h11.PAUSED:
            server.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            server.send(h11.EndOfMessage())
            server.start_next_cycle()
        elif event is h11.NEED_DATA:
            return out


def test_everything_that_a_node_ever_sent(machines, official, tiny_task):
    """Requests without content, and as content: two uploads of the network's tensors and N_k, and two losses."""
    sent = [pair for stream in machines.proxies["amber"].streams for pair in requests(bytes(stream["up"]))]
    paths = {path for path, _ in sent}
    quiet = {"activate-node", "pull-messages", "send-node-heartbeat", "get-run", "get-fab", "pull-object"}
    quiet |= {"confirm-message-received", "push-messages", "push-object", "deactivate-node"}
    assert {path.removeprefix("/v1/fleet/") for path in paths} <= quiet
    objects = [PushObjectRequest.FromString(body).object_content for path, body in sent if path.endswith("push-object")]
    kinds = sorted(content[:60].split(b" ")[0].decode() for content in objects)
    assert set(kinds) == {"Message", "RecordDict", "ArrayRecord", "Array", "ArrayChunk", "MetricRecord"}
    net = Trainer(TRAINING, CPU, 0).net(tiny_task)
    form = parcel(net) | {"stats": {"samples": torch.tensor(0)}}
    uploads = [content.split(b"\x00", 1)[1] for content in objects if content.startswith(b"ArrayChunk")]
    assert len(uploads) == 2
    for upload in uploads:
        message = wire.decode(upload, "amber", form)
        Channel("denim").check(message, "amber", like=form)
        assert message["stats"]["samples"] == tiny.SIZES["amber"]
    rest = [content for content in objects if not content.startswith(b"ArrayChunk")]
    assert max(map(len, rest)) < 1000  # no room for a sample among the descriptions
    others = [body for path, body in sent if not path.endswith(("push-object", "push-messages"))]
    assert max(map(len, others)) < 1000


# --- faults -----------------------------------------------------------------------------------------------------------


def restart(machines: Machines, **faults: str) -> None:
    """Start all nodes anew, with these faults; now they run the bundle's program."""
    machines.stop(*(name for name in machines.names if name in machines.processes))
    for name in machines.names:
        machines.start_node(name, bundled=True, faults=faults.get(name, ""))


def deadline_of(rounds: list[dict]) -> int:
    """Long enough for an honest answer on this machine, as it was measured a moment ago."""
    return round(20 + 2.5 * max(entry["seconds"] for entry in rounds))


@pytest.fixture(scope="module")
def faulty(machines, official):
    """Five rounds of FedAvg: beige uploads rubbish in four, coral is late in one, amber is killed in one.

    Coral holds the fourth until amber is back, so that all can take part in the fifth.
    """
    wait = deadline_of(official[2])
    restart(machines, beige="0=nan 1=shape 2=dtype 3=bytes", coral=f"1=late{wait + 15} 3=hold", amber="2=late9999")
    run = run_of("fedavg", epochs=5)
    machines.begin(plan_of(run, deadline=wait), app=FAULTY)
    hanging = machines.folder / "amber" / "state" / "fault-2-late9999"
    machines.wait(hanging.exists, PATIENCE, "amber to begin round 2")
    machines.stop("amber", kill=True)
    joined = machines.log("amber").read_text().count("SuperNode ID")
    machines.start_node("amber", bundled=True)
    back = lambda: machines.log("amber").read_text().count("SuperNode ID") > joined  # noqa: E731
    machines.wait(back, PATIENCE, "amber to come back", "amber")
    (machines.folder / "coral" / "state" / "go").touch()
    return machines.finish(PATIENCE), machines.rounds(), machines.said()


@pytest.mark.parametrize(
    ("at", "reason"), [(0, "is not finite"), (1, "expected"), (2, "torch.float16"), (3, "bytes, at most")]
)
def test_a_bad_upload_is_refused_by_name(faulty, at, reason):
    record, rounds, said = faulty
    assert "beige" not in rounds[at]["answered"] + rounds[at]["silent"]
    assert rounds[at]["refused"]["beige"].startswith("Message of beige") and reason in rounds[at]["refused"]["beige"]
    assert record["epochs"][at]["weights"]["beige"] == 0
    assert f"Round {at}: {rounds[at]['refused']['beige']}" in said


def test_a_slow_source_is_not_waited_for(faulty):
    record, rounds, _ = faulty
    assert rounds[1]["silent"] == ["coral"] and rounds[1]["answered"] == ["amber"]
    assert record["epochs"][1]["weights"] == {"amber": 1, "beige": 0, "coral": 0}
    assert "coral" in rounds[4]["answered"]


def test_a_source_that_dies_is_left_out_and_may_come_back(faulty):
    record, rounds, _ = faulty
    unheard = rounds[2]["silent"] + [n for n, why in rounds[2]["refused"].items() if "Node Unavailable" in why]
    assert unheard == ["amber"] and record["epochs"][2]["weights"]["amber"] == 0  # whichever comes first
    assert rounds[4]["answered"] == ["amber", "beige", "coral"] and not rounds[4]["refused"]
    weights = record["epochs"][4]["weights"]
    assert min(weights.values()) > 0 and sum(weights.values()) == pytest.approx(1)
    assert 0 < record["target_accuracy"] < 1


def test_too_few_sources_and_a_lost_superlink_do_not_lose_the_run(machines, official, tiny_task):
    """It stops in round 1 for want of sources, is resumed, loses its SuperLink, is resumed: the bits of one process."""
    wait = deadline_of(official[2])
    for old in machines.folder.glob("*/state/fault-*"):
        old.unlink()
    restart(machines, beige="1=nan", coral="1=late30")
    run = run_of("kd3a", tiny.LOW_GATE)
    plan = plan_of(run, deadline=wait + 30, min_sources=3)
    machines.begin(plan, app=FAULTY)
    with pytest.raises(
        UserError, match=r"Round 1: 2 of 3 sources \(amber, coral\) take part, fewer than min_sources = 3"
    ):
        machines.finish(PATIENCE)
    (machines.folder / "coral" / "state" / "fault-1-late30").unlink()
    machines.begin(plan, app=FAULTY)
    machines.wait((machines.folder / "coral" / "state" / "fault-1-late30").exists, PATIENCE, "coral to begin round 1")
    machines.stop("superlink", kill=True)
    time.sleep(1)
    machines.start_link()
    machines.begin(plan, app=FAULTY)
    record = machines.finish(PATIENCE)
    assert [entry["round"] for entry in machines.rounds()] == [1]
    assert_same_bits(machines, run, tiny_task, record)
