"""SuperLink and SuperNodes as processes of this machine, for ``make federate`` and the tests.

Every node has a folder of its own with its key, its domain's file and its state. Nothing leaves the loopback.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from kd3a.domains import Task
from kd3a.errors import UserError
from kd3a.federation import files, keys
from kd3a.federation.proxy import Proxy
from kd3a.records import Record

APP = Path(__file__).parent / "app"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
    "OMP_NUM_THREADS": "1",
    "KD3A_PROGRESS": "0",
}


class Link:
    """A SuperLink and what belongs to it, in folder ``target``; a context that leaves no process behind."""

    def __init__(self, folder: Path, task: Task):
        self.folder, self.task = folder, task
        self.names = [source.name for source in task.sources]
        self.link_folder = folder / "target"
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen] = {}
        self.nodes: dict[str, int] = {}
        self.run = ""  # Flower's number of the last one
        self.asked = 0.0  # when Flower was last asked about it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.stop(*self.processes)

    # --- processes ------------------------------------------------------------------------------------------------

    def _link(self, connection: str, *options: str) -> None:
        """Start the SuperLink and tell Flower's command line how to connect to it."""
        database = f"--database={self.link_folder / 'state.db'}"
        off = "--disable-runtime-dependency-installation"
        self._start("superlink", self.link_folder, "flower-superlink", off, database, f"--port={self.port}", *options)
        (self.link_folder / "flower" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{connection}\n'
        )

    def _start(self, name: str, home: Path, *command: str) -> None:
        (home / "flower").mkdir(parents=True, exist_ok=True)
        with open(home / f"{name}.log", "ab") as out:
            self.processes[name] = subprocess.Popen(
                [self.program(command[0]), *command[1:]],
                cwd=home,
                env=self.environment(home),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the others in order
            )

    def listens(self, greet: Callable[[socket.socket], None] = socket.socket.close) -> bool:
        """Whether the SuperLink takes connections, and what ``greet`` does with one."""
        try:
            greet(socket.create_connection(("127.0.0.1", self.port), timeout=2))
        except OSError:
            return False
        return True

    def stop(self, *names: str, kill: bool = False) -> None:
        """End these processes, with their workers and all that they started; at once with ``kill``."""
        found: list[psutil.Process] = []
        names = [name for name in self.processes if name.removesuffix("-worker") in names or name in names]
        for name in names:
            with suppress(psutil.NoSuchProcess):
                top = psutil.Process(self.processes[name].pid)
                found += [*top.children(recursive=True), top]
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill() if kill else process.terminate()
        end = time.monotonic() + 10
        while any(map(alive, found)) and time.monotonic() < end:
            time.sleep(0.1)
        for process in filter(alive, found):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for name in names:
            self.processes.pop(name).wait()

    def wait(self, ready: Callable[[], Any], seconds: float, what: str, *needed: str) -> Any:
        """What ``ready()`` returns as soon as that is something; an error when it takes too long."""
        end = time.monotonic() + seconds
        while not (value := ready()):
            for name in needed:
                if self.processes[name].poll() is not None:
                    raise UserError(f"{name} ended while waiting for {what}; see {self.log(name)}.")
            if time.monotonic() > end:
                raise UserError(f"Waited {seconds:.0f} s for {what} in vain; see the logs in {self.folder}.")
            time.sleep(0.1)
        return value

    def log(self, name: str) -> Path:
        return (self.link_folder if name == "superlink" else self.folder / name) / f"{name}.log"

    # --- Flower's command line ------------------------------------------------------------------------------------

    @staticmethod
    def program(name: str) -> str:
        path = Path(sys.executable).parent / name
        if not path.exists():
            raise UserError(f"There is no {name} beside {sys.executable}; install the extra 'federated'.")
        return str(path)

    @staticmethod
    def environment(home: Path) -> dict[str, str]:
        """Flower finds its own programs on the path; it keeps its files in the party's folder and calls nobody."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return os.environ | QUIET | {"PATH": path, "FLWR_HOME": str(home / "flower"), "KD3A_CACHE": str(home / "cache")}

    def flwr(self, *words: str) -> str:
        """Give Flower's command to the SuperLink; returns what it prints."""
        done = subprocess.run(
            [self.program("flwr"), *words],
            env=self.environment(self.link_folder),
            cwd=self.link_folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode:
            raise UserError(f"flwr {words[0]} failed: {done.stdout.strip()} {done.stderr.strip()}")
        return done.stdout

    # --- runs -----------------------------------------------------------------------------------------------------

    def begin(self, plan: dict[str, Any], app: Path = APP, options: tuple[str, ...] = (), **told: str) -> None:
        """Start a run; nodes and files are filled in. ``told`` is more of the run's configuration."""
        for old in ("outcome.json", "rounds.jsonl"):
            (self.link_folder / old).unlink(missing_ok=True)
        whole = {
            "nodes": self.nodes,
            "sources": self.names,
            "domain": str(self.link_folder / f"{self.task.target.name}.safetensors"),
            "out": str(self.link_folder),
        } | plan
        path = self.link_folder / "plan.json"
        path.write_text(json.dumps(whole))
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in ({"plan": str(path)} | told).items())
        done = self.flwr("run", str(app), "here", "--run-config", words, *options, "--format=json")
        self.asked = time.monotonic()
        if not (found := re.search(r'"run-id": "?(\d+)', done)):
            raise UserError(f"flwr run failed: {json.loads(done).get('error-message', done)}")
        self.run = found.group(1)

    def said(self) -> str:
        """What the target's program logged in the run."""
        return self.flwr("log", self.run, "here", "--show")

    def rounds(self) -> list[dict[str, Any]]:
        """What the target noted about each round so far."""
        path = self.link_folder / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def outcome(self) -> Path:
        """Where the target leaves the record of its run, or the reason why there is none."""
        return self.link_folder / "outcome.json"

    def ended(self) -> bool:
        """Whether the run has left its outcome; every minute Flower is asked if it ended without one."""
        if not self.outcome.exists() and time.monotonic() > self.asked + 60:
            self.asked = time.monotonic()
            told = self.flwr("list", "here", f"--run-id={self.run}", "--format=json")
            if re.search(r'"status": "finished', told) and not self.outcome.exists():
                raise UserError(f"The run ended without a record; the log of run {self.run} says why:\n{self.said()}")
        return self.outcome.exists()

    def finish(self, seconds: float = 600) -> Record:
        """Wait for the record of the run; a run that failed is an error with its reason."""
        self.wait(self.ended, seconds, "the run to end", "superlink")
        outcome = json.loads(self.outcome.read_text())
        if "error" in outcome:
            raise UserError(outcome["error"])
        return outcome["record"]


class Machines(Link):
    """A federation on one machine: TLS, keys, and a folder for every node with its own domain's file alone."""

    def __init__(self, folder: Path, task: Task, keep_traffic: bool = False):
        super().__init__(folder, task)
        self.keep = keep_traffic
        self.proxies: dict[str, Proxy] = {}
        keys.server(self.link_folder / "keys")
        for path in files.export(task, folder / "exported"):
            home = self.link_folder if path.stem == task.target.name else folder / path.stem
            home.mkdir(parents=True, exist_ok=True)
            path.replace(home / path.name)
        for name in self.names:
            keys.node_keys(folder / name, "key")

    def __exit__(self, *_) -> None:
        super().__exit__()
        for proxy in self.proxies.values():
            proxy.close()

    def start_link(self) -> None:
        """Start the SuperLink and wait until it answers."""
        own = self.link_folder / "keys"
        self._link(
            f'root-certificates = "{own / "ca.crt"}"',
            "--enable-supernode-auth",
            f"--ssl-ca-certfile={own / 'ca.crt'}",
            f"--ssl-certfile={own / 'server.crt'}",
            f"--ssl-keyfile={own / 'server.key'}",
        )
        self.wait(self._answers, 120, "the SuperLink to answer", "superlink")

    def register(self, *names: str) -> None:
        """Tell the SuperLink the public keys of these nodes."""
        for name in names:
            done = self.flwr("supernode", "register", str(self.folder / name / "key.pub"), "here", "--format=json")
            self.nodes[name] = int(re.search(r'"node-id": "?(\d+)', done).group(1))

    def start_node(self, name: str, folder: str = "", bundled: bool = False, **told: Any) -> None:
        """Start the SuperNode of a source and its worker; all of its traffic goes through a proxy that counts."""
        label, port = folder or name, free_port()
        home = self.folder / label
        if label not in self.proxies:
            self.proxies[label] = Proxy(self.port, self.keep)
        own = {"domain": str(home / f"{name}.safetensors"), "state": str(home / "state"), "device": "cpu"} | told
        self._start(
            label,
            home,
            "flower-supernode",
            f"--superlink=127.0.0.1:{self.proxies[label].port}",
            f"--root-certificates={self.link_folder / 'keys' / 'ca.crt'}",
            *([f"--auth-supernode-private-key={home / 'key'}"] if (home / "key").exists() else []),
            "--isolation=process",
            f"--port={port}",
            "--node-config=" + " ".join(f"{k}={json.dumps(v)}" for k, v in own.items()),
        )
        words = [str(port), str(self.processes[label].pid), *(["--bundled"] if bundled else [])]
        self._start(f"{label}-worker", home, "python", "-m", "kd3a.federation", "worker", *words)

    def _answers(self) -> bool:
        context = ssl.create_default_context(cafile=self.link_folder / "keys" / "ca.crt")
        return self.listens(lambda plain: context.wrap_socket(plain, server_hostname="127.0.0.1").close())


def alive(process: psutil.Process) -> bool:
    """Whether it still does something; one that ended and that nobody has asked for its code does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
